"""What the command line shows: results on stdout, progress on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from vitsearch.architecture import Settings

log = logging.getLogger("vitsearch")


def summary(settings: Settings) -> str:
    """The settings in a few words, for tables."""
    return " ".join(f"{name}={value}" if name != "space" else str(value) for name, value in settings.items())


def emit(value: Any) -> None:
    print(json.dumps(value, allow_nan=False))


def show(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar on stderr with count, rate and time left; nothing with --quiet."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:.2f}/s" if task.speed else "-/s")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    console = Console(stderr=True)
    hidden = not log.isEnabledFor(logging.INFO) or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, *_: bar.update(task, completed=done)
