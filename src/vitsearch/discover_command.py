"""`vitsearch discover`: proxies as formulas, found on benchmark tables.

vitsearch discover --bench table.json --out found
vitsearch score arch.json --proxy file:found/found.json
"""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from vitsearch.architecture import brief
from vitsearch.bench_command import BenchOption
from vitsearch.errors import VitsearchError
from vitsearch.options import (
    NUMBER,
    AllowChangedOption,
    BatchOption,
    DataOption,
    DeviceOption,
    JsonOption,
    OutOption,
    ResumeOption,
    SeedOption,
    WeightsOption,
)
from vitsearch.terminal import emit, progress_bar, show

log = logging.getLogger("vitsearch")


def discover(
    bench: BenchOption,
    out: OutOption,
    column: Annotated[
        list[str] | None, typer.Option("--column", help="Only this column of accuracies [the distilled ones].")
    ] = None,
    alpha: Annotated[
        list[str] | None, typer.Option("--alpha", help="Weight of a column in the joint tau, as COLUMN=2 [1].")
    ] = None,
    strategy: Annotated[
        str,
        typer.Option("--strategy", help="elitism (Algorithm 1), naive, random, or pairs (all, of scalar branches)."),
    ] = "elitism",
    evaluations: Annotated[
        int, typer.Option("--evaluations", **NUMBER, help="Budget: different formulas that are judged.")
    ] = 2020,
    population: Annotated[int, typer.Option("--population", **NUMBER, help="Formulas in the population.")] = 20,
    sample_ratio: Annotated[float, typer.Option("--sample-ratio", help="Share that parents come from.")] = 0.5,
    top: Annotated[int, typer.Option("--top", **NUMBER, help="Best of the sample, one of which is the parent.")] = 5,
    mutation: Annotated[float, typer.Option("--mutation", help="Probability that a node is drawn again.")] = 0.5,
    margin: Annotated[float, typer.Option("--margin", help="Tau by which a child must beat its parent.")] = 0.001,
    tries: Annotated[int, typer.Option("--tries", **NUMBER, help="Children of one parent before it is left.")] = 10,
    crossover: Annotated[float, typer.Option("--crossover", help="Share of children with two parents.")] = 0.0,
    pareto: Annotated[bool, typer.Option("--pareto", help="Parents from the front of tau and formula size.")] = False,
    branches: Annotated[
        str, typer.Option("--branches", help="matrix: operations join matrices; scalar: the means of branches.")
    ] = "matrix",
    inputs: Annotated[
        str, typer.Option("--inputs", help="all, weights (no network runs at all), or names with commas.")
    ] = "all",
    aggregate: Annotated[
        str, typer.Option("--aggregate", help="How layers are put together: mean, sum, max, last; with commas.")
    ] = "mean",
    depth: Annotated[int, typer.Option("--depth", **NUMBER, help="Operations on the longest way [two branches].")] = 3,
    networks: Annotated[int, typer.Option("--networks", **NUMBER, help="At most so many of a column judge.")] = 100,
    folds: Annotated[int, typer.Option("--folds", **NUMBER, help="Parts that one search each does not see.")] = 5,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="The smallest formula at most this far below the best is found.")
    ] = 0.002,
    seed: SeedOption = 0,
    seeds: Annotated[
        int, typer.Option("--seeds", **NUMBER, help="Seeds of weights and batch, from --seed on, that judge together.")
    ] = 2,
    data: DataOption = "noise",
    batch_size: BatchOption = 8,
    weights: WeightsOption = "fresh",
    cache: Annotated[
        Path | None, typer.Option("--cache", help="Folder of the networks' statistics [in --out]; may be shared.")
    ] = None,
    beside: Annotated[
        str, typer.Option("--beside", help="Proxies for the table, with commas: they score the networks themselves.")
    ] = "",
    device: DeviceOption = "auto",
    resume: ResumeOption = False,
    allow_changed: AllowChangedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Discover a proxy: evolve formulas on benchmark tables, and say what they are worth on networks they never saw."""
    from vitsearch.benchmark import read_table
    from vitsearch.correlation import check_columns, choose_proxies
    from vitsearch.methods.discovery import DiscoveryPlan, run_discovery
    from vitsearch.methods.formula_draws import Grammar
    from vitsearch.methods.proxy_discovery import Evolution
    from vitsearch.proxies.size import BASELINES

    tables = [read_table(path) for path in bench]
    check_columns(tables, column or [])
    others = [name for name in choose_proxies(beside) if name not in BASELINES] if beside else []
    weighed = read_weights(alpha or [])
    check_columns(tables, list(weighed))
    evolution = Evolution(
        strategy="random" if strategy == "pairs" else strategy,
        evaluations=evaluations,
        population=population,
        sample_ratio=sample_ratio,
        top=top,
        mutation=mutation,
        margin=margin,
        tries=tries,
        crossover=crossover,
        pareto=pareto,
    )
    plan = DiscoveryPlan(
        tables=tuple(path.name for path in bench),
        columns=tuple(column or ()),
        weights=weighed,
        evolution=evolution,
        grammar=Grammar(
            branches=branches, aggregates=tuple(aggregate.split(",")), inputs=read_inputs(inputs), depth=depth
        ),
        pairs=strategy == "pairs",
        networks=networks,
        folds=folds,
        tolerance=tolerance,
        seed=seed,
        seeds=seeds,
        data=data,
        batch_size=batch_size,
        weights_scheme=weights,
    )
    with progress_bar("discovering", evaluations) as tick:
        found = run_discovery(
            tables,
            plan,
            out=out,
            cache=cache,
            device=device,
            resume=resume,
            allow_changed=allow_changed,
            beside=others,
            progress=lambda what, done, total, note: tick(done, total, f"{what} {note}"[:100]),
        )
    for warning in found.warnings:
        log.warning("warning: %s", warning)
    if as_json:
        return emit({"study": str(found.path), **found.to_json()})
    show_discovery(found)


def read_inputs(text: str) -> tuple[str, ...]:
    from vitsearch.proxies.expression import INPUTS

    groups = {"all": INPUTS, "weights": tuple(name for name in INPUTS if name.endswith(".weight"))}
    return groups.get(text, tuple(text.split(",")))


def read_weights(texts: list[str]) -> dict[str, float]:
    """`COLUMN=2` as numbers by column."""
    found: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            equals = ""
        if not equals or not 0 <= found[name] < float("inf"):
            raise VitsearchError(f"`alpha` must be COLUMN=NUMBER with a number from 0 on, but got {brief(text)}")
    return found


def show_discovery(found: Any) -> None:
    """Scores down, datasets across: cross-validated tau with its interval."""
    datasets = list(dict.fromkeys(row["dataset"] for row in found.rows))
    of = {(row["score"], row["dataset"]): row for row in found.rows}
    headings = [dataset.replace("/", "\n") for dataset in datasets]
    title = "Kendall's tau on networks outside the search"
    table = Table("score", *headings, "above the best size", "joint, at near size", title=title)
    for name in dict.fromkeys(row["score"] for row in found.rows):
        cells = [_cell(of[name, dataset], "kendall") for dataset in datasets]
        more = [_cell(of[name, "joint"], measure) for measure in ("above_best_size", "kendall_near_size")]
        table.add_row(name, *cells, *more)
    show(table)
    print(f"{found.formula}")
    print(f"joint tau {found.joint:.3f} on all networks; next: --proxy {shlex.quote(f'file:{found.path}/found.json')}")


def _cell(row: dict[str, Any], measure: str) -> str:
    if row[measure] is None:
        return "not defined"
    low, high = row[f"{measure}_low"], row[f"{measure}_high"]
    return f"{row[measure]:.3f}" + (f" [{low:.3f}, {high:.3f}]" if low is not None else "")
