"""`vitsearch search`: search a space under limits, or choose networks for budgets.

vitsearch search autoformer-tiny --objective dss --max-params 6M --trials 200 --seed 0 --out run
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from vitsearch.arguments import choose_geometry, read_limits, read_quantity
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.options import (
    NUMBER,
    AllowChangedOption,
    BatchOption,
    ClassesOption,
    DataOption,
    DeviceOption,
    ImageSizeOption,
    JsonOption,
    MaxMacs,
    MaxParams,
    MemoryOption,
    MinMacs,
    MinParams,
    OutOption,
    PatchOption,
    ResumeOption,
    SeedOption,
    SpaceArgument,
    WeightsOption,
)
from vitsearch.spaces import SPACES
from vitsearch.terminal import emit, progress_bar, show, summary

log = logging.getLogger("vitsearch")


def search(
    space: SpaceArgument,
    out: OutOption,
    strategy: Annotated[
        str,
        typer.Option("--strategy", help="random, exhaustive, evolution or nsga2; options as evolution:population=20."),
    ] = "random",
    objective: Annotated[
        str, typer.Option("--objective", help="A proxy, or several with commas; min: or max: overrules its direction.")
    ] = "dss",
    trials: Annotated[int, typer.Option("--trials", **NUMBER, help="How many architectures to evaluate.")] = 100,
    seed: SeedOption = 0,
    min_params: MinParams = None,
    max_params: MaxParams = None,
    min_macs: MinMacs = None,
    max_macs: MaxMacs = None,
    data: DataOption = "noise",
    batch_size: BatchOption = 8,
    image_size: ImageSizeOption = None,
    classes: ClassesOption = None,
    patch_size: PatchOption = None,
    weights: WeightsOption = "fresh",
    memory: MemoryOption = None,
    device: DeviceOption = "auto",
    resume: ResumeOption = False,
    allow_changed: AllowChangedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search a space under limits; print the best and keep every trial."""
    limits = read_limits(min_params, max_params, min_macs, max_macs)
    SPACES[space]  # a wrong name is said before torch is loaded
    from vitsearch.data import open_data
    from vitsearch.study import run_search

    base, patch_size = supernet_input(objective, patch_size)
    if base == IMAGENET and classes is None:
        classes = open_data(data).classes
    with progress_bar("searching", trials) as tick:
        result = run_search(
            space,
            out=out,
            objective=objective,
            strategy=strategy,
            trials=trials,
            limits=limits,
            geometry=choose_geometry(base, image_size, classes),
            seed=seed,
            data=data,
            batch_size=batch_size,
            patch_size=patch_size,
            weights=weights,
            memory=read_quantity("--memory", memory),
            device=device,
            resume=resume,
            allow_changed=allow_changed,
            progress=tick,
        )
    report_search(result, as_json)


def supernet_input(objective: str, patch_size: int | None) -> tuple[Geometry, int | None]:
    """Image size, classes and patches of the supernet that is an objective, where one is."""
    for name in objective.split(","):
        _, found, folder = name.partition("supernet:")
        if found:
            from vitsearch.training.plan import read_plan

            plan, _ = read_plan(Path(folder))
            fixed = plan.space["fixed"] if plan.space else {}
            return plan.geometry, patch_size if patch_size is not None else fixed.get("patch_size")
    return IMAGENET, patch_size


def report_search(result: Any, as_json: bool) -> None:
    study = result.study
    best, front = study.best, study.front
    if as_json:
        shown = {"study": str(study.path), "trials": len(study.trials), "stopped": result.stopped}
        emit(shown | {"best": trial_json(best) if best else None, "front": [trial_json(trial) for trial in front]})
    if best is None:
        log.error("error: all %d trials failed; the first: %s", len(study.trials), study.trials[0].error)
        raise typer.Exit(1)
    if as_json:
        return
    print(f"{result.stopped}; the study is in {study.path}")
    table = Table("trial", *best.measured, "architecture")
    for trial in dict.fromkeys(trial.number for trial in [best, *front[:20]]):
        row = study.trials[trial]
        cells = [f"{value:,}" if isinstance(value, int) else f"{value:.6g}" for value in row.measured.values()]
        table.add_row(f"{trial}{' (best)' if trial == best.number else ''}", *cells, summary(row.settings))
    show(table)
    print(json.dumps(best.settings))
    print(f"next: vitsearch export {study.path}#best --format timm --out best")


def trial_json(trial: Any) -> dict[str, Any]:
    return {"number": trial.number, "settings": trial.settings, "measured": dict(trial.measured)}
