"""`vitsearch bench`: benchmark tables, which proxy agrees with them, and a predictor from them.

vitsearch bench show --bench table.json
vitsearch bench correlate --bench table.json --proxy fast
vitsearch bench fit --bench table.json --dataset cifar100 --out predictor.json
"""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from vitsearch.architecture import check_whole
from vitsearch.arguments import check_new_file, read_quantity
from vitsearch.options import (
    NUMBER,
    BatchOption,
    DataOption,
    DeviceOption,
    JsonOption,
    MemoryOption,
    ProxyOption,
    SeedOption,
    WeightsOption,
)
from vitsearch.terminal import emit, progress_bar, show, show_correlations, show_fit

log = logging.getLogger("vitsearch")
bench = typer.Typer(no_args_is_help=True, help="Benchmark tables: what is in them, and which proxy agrees with them.")
BenchOption = Annotated[
    list[Path],
    typer.Option("--bench", help="Benchmark tables, one or more: JSON, CSV, Parquet, or published .pth lists."),
]


@bench.command("show")
def bench_show(bench: BenchOption, as_json: JsonOption = False) -> None:
    """What is in benchmark tables: spaces, columns, ranges, and what looks wrong."""
    from vitsearch.benchmark import describe, read_table

    found = [describe(read_table(path)) for path in bench]
    if as_json:
        return emit(found)
    for one in found:
        table = Table("column", "space", "classes", "px", "measured", "lowest", "median", "highest")
        table.title = f"{one['name']}: {one['entries']} networks of {one['space']}"
        for column in one["columns"]:
            numbers = [f"{column[key]:.2f}" if column[key] is not None else "" for key in ("min", "median", "max")]
            cells = [column["name"], column["space"], *(str(column[k]) for k in ("classes", "image_size", "measured"))]
            table.add_row(*cells, *numbers)
        show(table)
        for warning in one["warnings"]:
            log.warning("%s", warning)


@bench.command("correlate")
def bench_correlate(
    bench: BenchOption,
    proxy: ProxyOption = "fast",
    column: Annotated[list[str] | None, typer.Option("--column", help="Only this column of accuracies.")] = None,
    data: DataOption = "noise",
    batch_size: BatchOption = 8,
    seed: SeedOption = 0,
    seeds: Annotated[int, typer.Option("--seeds", **NUMBER, help="How many seeds, from --seed on.")] = 1,
    weights: WeightsOption = "fresh",
    memory: MemoryOption = None,
    scores: Annotated[
        Path | None, typer.Option("--scores", help="Keep scores in this file, and take from it what it has.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="Write plots to this HTML file; a page that exists is replaced.")
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """How well proxies rank the networks of benchmark tables, beside the size baselines and at equal size."""
    from vitsearch.benchmark import read_table
    from vitsearch.correlation import Conditions, ScoreBook, check_columns, choose_proxies, correlate, measured

    names, columns = choose_proxies(proxy), column or []
    used = [seed + number for number in range(check_whole("--seeds", seeds))]
    tables = [read_table(path) for path in bench]
    check_columns(tables, columns)
    if page is not None:
        from vitsearch.report import check_page

        check_page("page", page)  # not after the scoring
    conditions = Conditions(
        data=data, batch_size=batch_size, weights=weights, device=device, memory=read_quantity("--memory", memory)
    )
    book = ScoreBook(conditions, scores)
    networks = [
        network
        for table in tables
        for name in columns or table.columns
        if name in table.columns
        for network, _ in measured(table, name)
    ]
    with progress_bar("scoring", len(set(networks)) * len(used)) as tick:
        book.fill(networks, names, used, lambda done, total: tick(done, total))
    rows = correlate(tables, book, names, used, columns)
    if page is not None:
        from vitsearch.report import write_correlation_page

        write_correlation_page(page, tables, book, names, used, rows, columns)
        log.info("plots: %s", page)
    if as_json:
        return emit(rows)
    show_correlations(rows)


@bench.command("fit")
def bench_fit(
    bench: BenchOption,
    out: Annotated[Path, typer.Option("--out", help="A file that does not exist yet, for the predictor.")],
    dataset: Annotated[str | None, typer.Option("--dataset", help="Column of accuracies [the first].")] = None,
    seed: Annotated[int, typer.Option("--seed", **NUMBER, help="Of the five folds.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Fit a predictor of accuracy to the settings; say how it ranks networks it never saw, beside the baselines."""
    from vitsearch.cross_validation import FOLDS, compare, fit_measured, held_out, read_measured

    check_new_file("--out", out)
    measured = read_measured(bench, dataset)
    with progress_bar("fitting", FOLDS + 1) as tick:
        rows = compare(measured, held_out(measured, seed=seed, progress=tick))
        tick(FOLDS)
        predictor = fit_measured(measured)
    predictor.save(out)
    if dataset is None:
        log.info("--dataset is not given: %s, the first column", measured.dataset)
    shown = {"out": str(out), "dataset": measured.dataset, "space": predictor.space.name, "folds": FOLDS, "seed": seed}
    if as_json:
        return emit(shown | {"networks": len(measured.networks), "benchmarks": measured.benchmarks, "rows": rows})
    show_fit(shown | {"networks": len(measured.networks)}, rows)
    objective = shlex.quote(f"predictor:{out}")
    print(f"next: vitsearch search {predictor.space.name} --objective {objective} --trials 1000 --out run")
