"""Many trainings beside each other on one device, within a stated time, none of them twice.

Each is a row: name, seed, settings, parameters, accuracy, curve, images seen, wall time. Rows of an earlier run are
kept, so that an experiment can be done in several sittings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sittings import in_time

from vitsearch.architecture import Settings
from vitsearch.cost import Cost, Geometry
from vitsearch.spaces import cost_of
from vitsearch.training.distill import Distillation
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import Recipe
from vitsearch.training.run import Machine, Trained, train_network

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    name: str
    plan: TrainingPlan

    def is_row(self, row: Row) -> bool:
        return (row["name"], row["seed"], row["settings"]) == (self.name, self.plan.seed, self.plan.settings)


def from_scratch(
    networks: Iterable[tuple[str, Settings, int]],
    *,
    geometry: Geometry,
    data: str,
    recipe: Recipe,
    taught: Distillation | None,
) -> list[Training]:
    """Of every name, network and seed."""
    common: dict[str, Any] = {"geometry": geometry, "data": data, "recipe": recipe, "distillation": taught}
    return [
        Training(name=name, plan=TrainingPlan(settings=settings, seed=seed, **common))
        for name, settings, seed in networks
    ]


def train_one(training: Training, folder: Path, machine: Machine) -> Row:
    plan = training.plan
    assert plan.settings is not None
    done = train_network(plan, folder / f"{training.name}-{plan.seed}", machine=machine, resume=True)
    cost: Cost = cost_of(plan.settings, plan.geometry)
    row = {"name": training.name, "seed": plan.seed, "settings": plan.settings, "params": cost.params}
    row |= {"macs": cost.macs, "epochs": plan.recipe.epochs, "test_top1": done.result["test_top1"]}
    return row | how_it_went(done)


def how_it_went(done: Trained) -> Row:
    """The curve, images seen and wall time."""
    curve = [
        {key: row[key] for key in ("epoch", "loss", "validation_top1") if key in row}
        for row in done.epochs
        if "validation_top1" in row
    ]
    return {"curve": curve} | {key: done.result[key] for key in ("images_seen", "seconds")}


def train_all(
    trainings: Sequence[Training],
    folder: Path,
    *,
    machine: Machine,
    at_once: int,
    until: float,
    known: Sequence[Row],
    keep: Callable[[Row], None],
) -> bool:
    """Train what is not among `known`, `at_once` at a time; `keep` gets each row as it comes. Whether all are done.

    After `until` (of `time.monotonic`) none is begun.
    """
    missing = [training for training in trainings if not any(training.is_row(row) for row in known)]
    cells = {f"{training.name}-{training.plan.seed}": training for training in missing}
    done = 0
    for _, row in in_time(partial(train_one, folder=folder, machine=machine), cells, at_once=at_once, until=until):
        keep(row)
        done += 1
    return done == len(cells)


def by_name(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Test accuracies of each network, over its seeds."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["name"], []).append(row["test_top1"])
    return found
