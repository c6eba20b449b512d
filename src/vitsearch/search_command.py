"""`vitsearch search`: search a space under limits, or choose networks for budgets.

vitsearch search autoformer-tiny --objective dss --max-params 6M --trials 200 --seed 0 --out run
vitsearch search autoformer-tiny --strategy prenas --budgets 6M:11M:1M --draws 8 --out chosen
"""

from __future__ import annotations

import json
import logging
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from vitsearch.arguments import (
    are_times,
    choose_geometry,
    objective_input,
    read_budgets,
    read_limits,
    read_milliseconds,
    read_quantity,
    read_rate,
    refuse,
)
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.errors import VitsearchError
from vitsearch.options import (
    NUMBER,
    AllowChangedOption,
    ClassesOption,
    DeviceOption,
    ImageSizeOption,
    JsonOption,
    LatencyOption,
    MaxLatency,
    MaxMacs,
    MaxParams,
    MemoryOption,
    MinMacs,
    MinParams,
    MinThroughput,
    OutOption,
    PatchOption,
    ResumeOption,
    SeedOption,
    SpaceArgument,
)
from vitsearch.records import has_proxies, looks_into_networks, supernet_and_images
from vitsearch.spaces import SPACES, patch_words, patches_of
from vitsearch.terminal import emit, in_words, progress_bar, show, summary

log = logging.getLogger("vitsearch")


def search(
    space: SpaceArgument,
    out: OutOption,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy", help="random, exhaustive, evolution, nsga2 or prenas; options as evolution:population=20."
        ),
    ] = "random",
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            help="Proxies, supernet:RUN[:images=N], predictor:FILE, bench:FILE[:column=NAME], latency, throughput, "
            "with commas; min: or max: in front [dss].",
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", **NUMBER, help="How many architectures to evaluate [100].")
    ] = None,
    budgets: Annotated[
        str | None, typer.Option("--budgets", help="prenas: 6M:11M:1M for 6M, 7M, ... 11M; a list; times, as 5ms,8ms.")
    ] = None,
    resource: Annotated[
        str | None,
        typer.Option("--resource", help="prenas: what budgets bound: params, macs, or latency [params]."),
    ] = None,
    top: Annotated[int | None, typer.Option("--top", **NUMBER, help="prenas: networks for each budget [1].")] = None,
    variant: Annotated[
        str | None,
        typer.Option("--variant", help="prenas: paper, code (the public code's), snip (not normalised) [paper]."),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option("--draws", **NUMBER, help="prenas: initial weights and batches to average over [1]."),
    ] = None,
    seed: SeedOption = 0,
    min_params: MinParams = None,
    max_params: MaxParams = None,
    min_macs: MinMacs = None,
    max_macs: MaxMacs = None,
    latency: LatencyOption = None,
    max_latency: MaxLatency = None,
    min_throughput: MinThroughput = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="digits, parquet:PATH, folder:PATH, ... [noise, or the trained supernet's]."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", **NUMBER, help="Images for proxies that need them [8].")
    ] = None,
    image_size: ImageSizeOption = None,
    classes: ClassesOption = None,
    patch_size: PatchOption = None,
    weights: Annotated[
        str | None,
        typer.Option("--weights", help="fresh, shared (one supernet), or for prenas a trained supernet [fresh]."),
    ] = None,
    memory: MemoryOption = None,
    device: DeviceOption = "auto",
    resume: ResumeOption = False,
    allow_changed: AllowChangedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search a space under limits; print the best and keep every trial."""
    limits = read_limits(min_params, max_params, min_macs, max_macs)
    SPACES[space]  # a wrong name is said before torch is loaded
    given = {"budgets": budgets, "resource": resource, "top": top, "variant": variant, "draws": draws}
    shared: dict[str, Any] = {"out": out, "limits": limits, "seed": seed, "device": device}
    shared |= {"resume": resume, "allow_changed": allow_changed}
    shared |= {"latency": latency, "max_latency_ms": read_milliseconds("--max-latency", max_latency)}
    shared |= {"min_throughput": read_rate("--min-throughput", min_throughput)}
    if strategy == "prenas":
        refuse("strategy prenas", {"objective": objective, "trials": trials, "memory": memory})
        sizes = {"image_size": image_size, "classes": classes, "patch_size": patch_size, "batch_size": batch_size}
        return choose(space, given, sizes, data, weights, shared, as_json)
    refuse(f"strategy {strategy}", given)
    if strategy.startswith("prenas:"):
        raise VitsearchError(f"`--strategy` prenas has options of its own, --budgets and others, but got {strategy!r}")
    from vitsearch.data import open_data
    from vitsearch.study import run_search

    objective, trials = "dss" if objective is None else objective, 100 if trials is None else trials
    names = [name.removeprefix("min:").removeprefix("max:") for name in objective.split(",")]
    if not has_proxies(names):  # throughput has a batch of its own
        refuse(f"objective {objective}", {"batch-size": batch_size})
    if not looks_into_networks(names):
        refuse(f"objective {objective}", {"data": data, "weights": weights, "memory": memory})
    data = "noise" if data is None else data
    known, patch_size = objective_input(objective, patch_size)
    if latency is not None:
        image_size, patch_size = latency_input(latency, known, image_size, patch_size)
    if known is None and classes is None:
        classes = open_data(data).classes
    with progress_bar("searching", trials) as tick:
        result = run_search(
            space,
            objective=objective,
            strategy=strategy,
            trials=trials,
            geometry=choose_geometry(known or IMAGENET, image_size, classes),
            data=data,
            batch_size=8 if batch_size is None else batch_size,
            patch_size=patch_size,
            weights="fresh" if weights is None else weights,
            memory=read_quantity("--memory", memory),
            progress=tick,
            **shared,
        )
    report_search(result, as_json)


def choose(
    space: str,
    given: dict[str, Any],
    sizes: dict[str, Any],
    data: str | None,
    weights: str | None,
    shared: dict[str, Any],
    as_json: bool,
) -> None:
    """PreNAS's choice."""
    if given["budgets"] is None:
        raise VitsearchError("`--budgets` must be given with strategy prenas, such as 6M:11M:1M, but got nothing")
    bounds, below = read_budgets(given["budgets"])
    given["resource"] = resource_of(given["budgets"], given["resource"])
    from vitsearch.data import open_data
    from vitsearch.methods.preselection import Budgets, preselect

    known, patch_size, classes = None, sizes["patch_size"], sizes["classes"]
    trained = None if weights in (None, "fresh", "shared") else weights
    usual = "noise"
    if trained is not None:
        known, patch_size, own = input_of(trained, patch_size)
        usual = "noise" if given["variant"] == "code" else own
    data = usual if data is None else data
    image_size = sizes["image_size"]
    if shared["latency"] is not None:
        image_size, patch_size = latency_input(shared["latency"], known, image_size, patch_size)
    if trained is None and classes is None:
        classes = open_data(data).classes
    options = {name: value for name, value in given.items() if value is not None and name != "budgets"}
    with progress_bar("drawing", given["draws"] or 1) as tick:
        result = preselect(
            space,
            budgets=Budgets(bounds=bounds, below=below),
            geometry=choose_geometry(known or IMAGENET, image_size, classes),
            data=data,
            batch_size=sizes["batch_size"],
            patch_size=patch_size,
            weights=trained,
            progress=tick,
            **options,
            **shared,
        )
    report_choice(result, as_json)


def resource_of(budgets: str, resource: str | None) -> str | None:
    """Latency where budgets are times, and only there."""
    timed = are_times(budgets)
    if resource is not None and timed != (resource == "latency"):
        rule = "must be latency for times" if timed else "must be params or macs for budgets that are no times"
        raise VitsearchError(f"`--resource` {rule} such as {budgets}, but got {resource!r}")
    return "latency" if timed else resource


def input_of(folder: str, patch_size: Any) -> tuple[Geometry, Any, str]:
    """Image size and classes, patches, and data of a trained supernet."""
    from vitsearch.training.plan import read_plan

    plan, _ = read_plan(Path(folder))
    fixed = plan.space["fixed"] if plan.space else {}
    return plan.geometry, patch_size if patch_size is not None else patches_of(fixed), plan.data


def latency_input(
    file: Path, known: Geometry | None, image_size: int | None, patch_size: Any
) -> tuple[int | None, Any]:
    """Image size and patches that the latencies are for, where nothing else says them."""
    from vitsearch.latency import read_latency

    model = read_latency(file)
    if image_size is None and known is None:
        image_size = model.geometry.image_size
    return image_size, patches_of(model.space.fixed()) if patch_size is None else patch_size


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
        cells = [in_words(value) for value in row.measured.values()]
        table.add_row(f"{trial}{' (best)' if trial == best.number else ''}", *cells, summary(row.settings))
    show(table)
    print(json.dumps(best.settings))
    first, path = study.plan.objectives[0].name, shlex.quote(str(study.path))
    if first.startswith("supernet:"):
        supernet = shlex.quote(supernet_and_images(first.removeprefix("supernet:"))[0])
        return print(f"next: vitsearch supernet extract {supernet} {path}#best --out inherited")
    print(f"next: vitsearch export {path}#best --format timm --out best")


def report_choice(result: Any, as_json: bool) -> None:
    study = result.study
    if as_json:
        shown = {"study": str(study.path), "trials": len(study.trials), "stopped": result.stopped}
        shown |= {"best": trial_json(study.best), "front": [trial_json(trial) for trial in study.front]}
        return emit(shown | {"picks": [pick_json(pick) for pick in result.picks]})
    print(f"{result.stopped}; the study is in {study.path}")
    timed = ["latency"] if any(pick.latency_ms is not None for pick in result.picks) else []
    scores = ("SNIP", "normalised", "greedy", "agreement")
    table = Table("trial", "budget", "parameters", "MACs", *timed, *scores, "architecture")
    for number, pick in enumerate(result.picks):
        numbers = [f"{pick.snip:.6g}", *(decimals(value, 6) for value in (pick.score, pick.greedy_score))]
        numbers.append(decimals(pick.agreement, 3))
        budget = f"{pick.budget:g} ms" if isinstance(pick.budget, float) else f"{pick.budget:,}"
        latency = [f"{pick.latency_ms:.4g} ms"] if timed else []
        cells = [budget, f"{pick.cost.params:,}", f"{pick.cost.macs:,}", *latency, *numbers]
        table.add_row(str(number), *cells, summary(pick.settings))
    show(table)
    plan = study.plan
    words = ["vitsearch", "supernet", "train", plan.space, "--candidates", str(study.path)]
    words += ["--image-size", str(plan.geometry.image_size), *patch_words(plan.space, plan.fixed)]
    words += [] if plan.data == "noise" else ["--data", plan.data]
    print(f"next: {shlex.join(words)} --out preferred")


def decimals(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def pick_json(pick: Any) -> dict[str, Any]:
    names = ("budget", "settings", "score", "greedy_score", "agreement", "agreement_heads", "agreement_ratios", "snip")
    found = {name: getattr(pick, name) for name in names}
    found |= {"params": pick.cost.params, "macs": pick.cost.macs, "noisy": pick.noisy}
    return found | ({} if pick.latency_ms is None else {"latency_ms": pick.latency_ms})


def trial_json(trial: Any) -> dict[str, Any]:
    return {"number": trial.number, "settings": trial.settings, "measured": dict(trial.measured)}
