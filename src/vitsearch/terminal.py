"""What the command line shows: results on stdout, progress on stderr."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from vitsearch.architecture import Settings

log = logging.getLogger("vitsearch")
PLAIN_EVERY = 10.0  # seconds between two lines of progress in a file
CORRELATION_TABLES = {
    "kendall": "Kendall's tau [95 % interval]",
    "kendall_equal_size": "Kendall's tau among networks of equal size",
    "kendall_near_size": "Kendall's tau among networks within 5 % of parameters",
}


def summary(settings: Settings) -> str:
    """The settings in a few words, for tables."""
    words = [str(value) if name == "space" else f"{name}={json.dumps(value)}" for name, value in settings.items()]
    return " ".join(words)


def in_words(value: float) -> str:
    """A number for tables: counts whole, the rest to six digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def emit(value: Any) -> None:
    print(json.dumps(value, allow_nan=False))


def show(table: Table) -> None:
    """Brackets are lists here, and no markup. Nowhere where stdout was closed before we came, as `print`."""
    if sys.stdout is not None:
        Console(width=None if sys.stdout.isatty() else 160, markup=False).print(table)


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar on stderr with count, rate and time left; plain lines where that is no terminal; nothing with --quiet."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:.2f}/s" if task.speed else "-/s")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain_lines(what, total)
        return
    hidden = not log.isEnabledFor(logging.INFO)
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task(what, total=total)

        def tick(done: int, total: int | None = None, note: str = "") -> None:
            bar.update(task, completed=done, total=total, description=f"{what} {note}".rstrip())

        yield tick


def _plain_lines(what: str, total: int) -> Callable[..., None]:
    """A line in the log now and then, for files and pipes."""
    start = said = time.monotonic()
    first: int | None = None
    last = 0

    def tick(done: int, wanted: int | None = None, note: str = "") -> None:
        nonlocal start, said, first, last
        now, end = time.monotonic(), total if wanted is None else wanted
        if first is None or done < last:  # what was there before, or another part of the work, with a pace of its own
            start, first = now, done
        last = done
        if now - said < PLAIN_EVERY or done == first or now == start:
            return
        said = now
        pace = (done - first) / (now - start)
        log.info("%s", f"{what} {note}".rstrip() + f" {done}/{end}, {pace:.2f}/s, {(end - done) / pace:,.0f} s left")

    return tick


def show_correlations(rows: list[dict[str, Any]]) -> None:
    """One table for each benchmark: Kendall by dataset with its interval, then at equal and at near size."""
    plain = [row for row in rows if row["source"] is None]
    for benchmark in dict.fromkeys(row["benchmark"] for row in plain):
        here = [row for row in plain if row["benchmark"] == benchmark]
        datasets = list(dict.fromkeys(row["dataset"] for row in here))
        of = {(row["proxy"], row["dataset"]): row for row in here}
        for measure, title in CORRELATION_TABLES.items():
            table = Table("proxy", *datasets, title=f"{benchmark}: {title}")
            for name in dict.fromkeys(row["proxy"] for row in here):
                table.add_row(name, *(_correlation_cell(of.get((name, dataset)), measure) for dataset in datasets))
            show(table)


def show_fit(facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """How baselines and predictor rank held-out networks, a column for each source where there are several."""
    sources = list(dict.fromkeys(row["source"] for row in rows))
    of = {(row["proxy"], row["source"]): row for row in rows}
    title = f"{facts['dataset']}, {facts['networks']} networks of {facts['space']}: {CORRELATION_TABLES['kendall']}"
    table = Table("ranked by", *(source or "all" for source in sources), title=title)
    for name in dict.fromkeys(row["proxy"] for row in rows):
        what = f"{name}, on the fold left out of {facts['folds']}" if name == rows[-1]["proxy"] else name
        table.add_row(what, *(_correlation_cell(of[name, source], "kendall") for source in sources))
    show(table)
    last = of[rows[-1]["proxy"], None]
    shares = f"{last['within_one_std']:.0%} within one standard deviation, {last['within_two_std']:.0%} within two"
    print(f"mean error {last['mean_error']:.2f} percentage points; {shares}")


def _correlation_cell(row: dict[str, Any] | None, measure: str) -> str:
    if row is None or row[measure] is None:
        return "-" if row is None or not row.get("failure") else "not defined"
    low, high = row.get(f"{measure}_low"), row.get(f"{measure}_high")
    return f"{row[measure]:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None else "")
