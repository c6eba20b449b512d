"""The folder of a space evolution: its plan, what was measured, and how the space moved."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from vitsearch.architecture import Settings, brief
from vitsearch.cost import Geometry, Limits
from vitsearch.environment import describe_changes
from vitsearch.errors import BadStudy
from vitsearch.methods.space_moves import Rules, ranked_errors
from vitsearch.records import Journal, Objective, Trial, parse_json, read_trials, write_atomically
from vitsearch.spaces import SPACES
from vitsearch.spaces.windowed import Windowed
from vitsearch.training.distill import Distillation
from vitsearch.training.plan import read_epochs
from vitsearch.training.recipe import Recipe

FORMAT, KIND = 1, "evolve-space"
STUDY, TRIALS, MOVES = "study.json", "trials.jsonl", "moves.jsonl"
ERROR = Objective(name="error", direction="min")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How the supernet of every space is trained."""

    data: str
    recipe: Recipe
    subnets: str = "sandwich"
    distillation: Distillation | None = None
    images: int | None = None
    """Of the validation part, that judge a network; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolutionPlan:
    """What an evolution is, apart from the machine."""

    space: str
    fixed: dict[str, int]
    iterations: int
    samples: int
    paired: bool
    """Whether the networks of all choices of a dimension are the same but for the choice, and not drawn anew."""
    rules: Rules
    limits: Limits
    geometry: Geometry
    seed: int
    training: Training | None
    objective: Objective | None
    data: str
    batch_size: int

    def to_json(self) -> dict[str, Any]:
        found = dataclasses.asdict(self) | {"limits": self.limits.bounds()}
        if self.training is not None:  # as in folders of before there was a teacher, or a choice of images
            asked = found["training"]
            found["training"] = {name: value for name, value in asked.items() if value is not None}
        return {"format": FORMAT, "kind": KIND, **found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolved:
    path: Path
    space: Windowed
    """The first one."""
    geometry: Geometry
    spaces: list[dict[str, Any]]
    """Of every space: its name, size, E-T error and its parts, and whether the limits were kept."""
    moves: list[dict[str, Any]]
    trials: list[Trial]
    """All networks that were measured, space by space: those of the whole space, then those of each choice."""
    objective: Objective | None
    seed: int

    def trials_of(self, iteration: int) -> list[Trial]:
        """The networks of one space."""
        start = sum(space["trials"] for space in self.spaces[:iteration])
        return self.trials[start : start + self.spaces[iteration]["trials"]]

    def errors_of(self, iteration: int) -> list[tuple[Settings, float]]:
        """Networks drawn from the whole of a space, with their errors in percent."""
        trials = self.trials_of(iteration)
        (errors,) = errors_of([[trial.settings for trial in trials]], trials, self.objective)
        valid = [trial for trial in trials if trial.error is None]
        known = {trial.number: error for trial, error in zip(valid, errors, strict=True)}
        own = trials[: self.spaces[iteration]["drawn"]]
        return [(trial.settings, known[trial.number]) for trial in own if trial.number in known]


def enter(path: Path, plan: EvolutionPlan, environment: dict[str, Any], journal: Journal, allow: bool) -> None:
    """A new folder with its plan, or one that holds this very plan."""
    file, new = path / STUDY, json.loads(json.dumps(plan.to_json()))
    if not file.exists():
        try:
            return write_atomically(file, json.dumps(new | {"environments": [environment]}, indent=2) + "\n")
        except BaseException:
            journal.path.unlink()  # empty; so that a new folder can be taken away again
            raise
    old = read_study(path)
    for name, value in new.items():
        if old.get(name) != value:
            raise BadStudy(f"{path} was made with {name}={brief(old.get(name))}, but got {name}={brief(value)}")
    older = {} if plan.training is None else {"precision": plan.training.recipe.precision}  # where it does not say so
    changes = describe_changes(older | old["environments"][-1], environment)
    if changes and not allow:
        raise BadStudy(f"{path} was made elsewhere ({changes}); give --allow-changed to continue, which is recorded")
    if changes:
        old["environments"].append({**environment, "from_trial": len(journal.trials)})
        write_atomically(file, json.dumps(old, indent=2) + "\n")


def read_study(path: Path) -> dict[str, Any]:
    try:
        found = parse_json((path / STUDY).read_bytes(), str(path / STUDY))
    except (FileNotFoundError, NotADirectoryError):
        raise BadStudy(f"{path} is not a study: it has no {STUDY}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("kind") != KIND:
        raise BadStudy(f"{path / STUDY} must have format {FORMAT} and kind {KIND!r}")
    return found


def errors_of(
    groups: Sequence[Sequence[Settings]], trials: Sequence[Trial], objective: Objective | None
) -> list[list[float]]:
    valid = {trial.number: (objective or ERROR).gain(trial) for trial in trials if trial.error is None}
    values = [-gain for gain in valid.values()] if objective is None else ranked_errors(list(valid.values()))
    known = dict(zip(valid, values, strict=True))
    numbers = iter([trial.number for trial in trials])
    return [[known[number] for _ in group if (number := next(numbers)) in known] for group in groups]


def read_evolution(path: str | Path) -> Evolved:
    """What an evolution has found so far."""
    folder = Path(path)
    study = read_study(folder)
    rows = read_epochs(folder / MOVES) if (folder / MOVES).exists() else []
    by_kind: dict[str, list[dict[str, Any]]] = {"space": [], "move": []}
    for row in rows:
        by_kind[row["kind"]].append({name: value for name, value in row.items() if name not in ("step", "kind")})
    given = study["objective"]
    return Evolved(
        path=folder,
        space=cast(Windowed, SPACES[study["space"]].with_fixed(study["fixed"])),
        geometry=Geometry(**study["geometry"]),
        spaces=by_kind["space"],
        moves=by_kind["move"],
        trials=read_trials(folder / TRIALS)[0] if (folder / TRIALS).exists() else [],
        objective=None if given is None else Objective(**given),
        seed=study["seed"],
    )
