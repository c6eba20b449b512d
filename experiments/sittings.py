"""An experiment in several sittings: cells of work, each with a row, as many at once as the device bears.

Rows are kept as they come, with the commit and the machine they are of; a later run with the same `--out` does the
cells that are missing. Processes that share a GPU get on best under NVIDIA's MPS (`nvidia-cuda-mps-control -d`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

from common import RESULTS, circumstances, command_line, write

from vitsearch.environment import pick_device
from vitsearch.errors import VitsearchError

Row = dict[str, Any]
Cell = TypeVar("Cell")


def add_sitting_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--work", type=Path, required=True, help="where runs are kept, and resumed")
    parser.add_argument("--at-once", type=int, default=1, help="cells, each in a process of its own")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which no cell is begun")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, default=RESULTS)


def kept(name: str, options: argparse.Namespace) -> Row:
    """What an earlier sitting wrote."""
    path = options.out / name
    found: Row = json.loads(path.read_text()) if path.exists() else {}
    return found


class Sittings:
    """The result file. `about` says what the experiment is: a file of another one is refused.

    Its circumstances are those of the last sitting that did anything.
    """

    def __init__(self, name: str, options: argparse.Namespace, about: Row) -> None:
        self.name, self.options, self.about = name, options, json.loads(json.dumps(about))
        self.now = circumstances(pick_device(options.device), options.commit) | {"command": command_line()}
        options.out.mkdir(parents=True, exist_ok=True)
        known = kept(name, options)
        self.rows: list[Row] = known.get("cells", [])
        self.circumstances = {key: known.get(key, value) if self.rows else value for key, value in self.now.items()}
        differ = [key for key, value in self.about.items() if self.rows and known.get(key) != value]
        if differ:
            raise VitsearchError(f"{options.out / name} was made with another {differ[0]}: give another --out")

    def run(self, work: Callable[[Cell], Row], cells: Mapping[str, Cell]) -> bool:
        """A row for every cell that has none; whether all have one now."""
        done = {row["cell"] for row in self.rows}
        missing = {name: cell for name, cell in cells.items() if name not in done}
        until = time.monotonic() + 60 * self.options.minutes
        for name, row in in_time(work, missing, at_once=self.options.at_once, until=until):
            self.circumstances = self.now
            self.rows.append({"cell": name} | {key: self.now[key] for key in ("commit", "machine")} | row)
            self.write({})
        return {row["cell"] for row in self.rows} >= set(cells)

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row["cell"] == name), None)

    def write(self, summary: Row) -> Row:
        found = self.circumstances | self.about | summary | {"cells": self.rows}
        write(self.name, found, self.options.out)
        return found


def in_time(
    work: Callable[[Cell], Row], cells: Mapping[str, Cell], *, at_once: int, until: float
) -> Iterator[tuple[str, Row]]:
    """Rows as they come; after `until` (of `time.monotonic`) no cell is begun.

    Of cells that fail beside others the first error is raised when there is nothing more to come.
    """
    if at_once == 1:
        for name, cell in cells.items():
            if time.monotonic() < until:
                yield name, work(cell)
        return
    share = max(1, (os.cpu_count() or 1) // at_once)  # without it every process has threads for every core
    for name in ("TORCHINDUCTOR_COMPILE_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, str(share))
    coming = iter(cells.items())
    running: dict[Future[Row], str] = {}
    failed: list[BaseException] = []
    with ProcessPoolExecutor(at_once, mp_context=multiprocessing.get_context("spawn")) as pool:
        while True:
            while len(running) < at_once and time.monotonic() < until:
                name, cell = next(coming, (None, None))
                if name is None:
                    break
                running[pool.submit(work, cell)] = name  # type: ignore[arg-type]
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name, error = running.pop(future), future.exception()
                if error is None:
                    yield name, future.result()
                else:
                    print(f"{name} failed: {error}", flush=True)
                    failed.append(error)
    if failed:
        raise failed[0]
