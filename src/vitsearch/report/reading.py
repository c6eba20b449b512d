"""A study folder as somebody who looks on sees it: read again only where it has grown, whatever its kind.

Nothing is written, and what is wrong with a folder becomes a part of what is shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from vitsearch.architecture import check_whole
from vitsearch.cost import Geometry
from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.ranking import pareto_front
from vitsearch.records import Objective, Trial, is_locked, parse_json, read_rows, read_trials
from vitsearch.report.columns import Columns

STUDY, TRIALS, EPOCHS, RESULT = "study.json", "trials.jsonl", "epochs.jsonl", "result.json"
TRAININGS = ("train", "supernet")
LARGEST_STUDY = 16 << 20  # bytes; more is no study.json
WRITER = ""  # stands for the lock where file names stand
Fingerprint: TypeAlias = tuple[tuple[str, tuple[int, int, int]], ...]
RECENT = 64  # trials whose pace tells the time left


class Reader:
    """One study folder. `refresh` brings it up to date; `version` changes when anything did."""

    def __init__(self, folder: Path, name: str | None = None, *, inside: Path | None = None) -> None:
        """`inside`: files that lie elsewhere, through a link, do not count."""
        self.folder = folder
        self.name = folder.resolve().name if name is None else name
        self.inside = inside
        self.version = 0
        self.generation = 0
        """Changes when what was read before is no longer true."""
        self._seen: Fingerprint = ()
        self._forget()

    def _forget(self) -> None:
        self.generation += 1
        self.study: dict[str, Any] = {}
        self.problem: str | None = None
        self.columns = Columns()
        self.objectives: list[Objective] = []
        self.best: int | None = None
        self.front: list[int] = []
        self.epochs: list[dict[str, Any]] = []
        self.rows: dict[str, list[dict[str, Any]]] = {}
        """Of journals that are neither trials nor epochs, by file name."""
        self.result: dict[str, Any] | None = None
        self._ends: dict[str, int] = {}
        self._gains: dict[int, list[float]] = {}

    @property
    def kind(self) -> str:
        return str(self.study.get("kind", "unknown"))

    def refresh(self) -> None:
        try:
            seen = self._fingerprint()
            if seen == self._seen:
                return
            if self._seen and (self.problem is not None or not _only_grew(dict(self._seen), dict(seen))):
                self._forget()
            self._seen = seen
            self.version += 1
            self._read()
        except VitsearchError as error:
            self.problem = str(error)
        except OSError as error:
            self.problem = f"cannot be read: {error.strerror or error}"

    def _fingerprint(self) -> Fingerprint:
        """Name, size, time and inode of what is looked at, and whether somebody writes."""
        found, written = [], False
        for path in self._files():
            stat = path.stat()
            found.append((path.name, (stat.st_size, stat.st_mtime_ns, stat.st_ino)))
            written = written or (path.suffix == ".jsonl" and is_locked(path))
        return (*found, (WRITER, (int(written), 0, 0)))

    def _files(self) -> list[Path]:
        all_of_them = {self.folder / STUDY, self.folder / RESULT, *self.folder.glob("*.jsonl")}
        return sorted(path for path in all_of_them if self._usable(path))

    def _usable(self, path: Path) -> bool:
        return path.is_file() and (self.inside is None or path.resolve().is_relative_to(self.inside))

    @property
    def running(self) -> bool:
        return (WRITER, (1, 0, 0)) in self._seen

    @property
    def changed(self) -> float:
        """When anything in it was last written, in seconds of the epoch."""
        times = [time for name, (_, time, _) in self._seen if name != WRITER]
        return max(times, default=0) / 1e9

    def _read(self) -> None:
        study = self._object(STUDY)
        if study is None:
            raise BadStudy(f"{self.folder} is not a study: it has no {STUDY}")
        if study != self.study:
            self._take(study)
        self.result = self._object(RESULT)
        for path in self._files():
            if path.suffix == ".json":
                continue
            if path.name == TRIALS and "objectives" in self.study:
                self._read_trials(path)
            elif path.name == EPOCHS:
                self.epochs = read_rows(path)[0]  # whole: a resumed training takes lines back
            else:
                self._read_rows(path)

    def _object(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name
        if not self._usable(path):
            return None
        if path.stat().st_size > LARGEST_STUDY:
            raise BadStudy(f"{path} must be a small JSON object, but has {path.stat().st_size} bytes")
        data = parse_json(path.read_bytes(), str(path))
        if not isinstance(data, dict):
            raise BadStudy(f"{path} must be a JSON object")
        return data

    def _take(self, study: dict[str, Any]) -> None:
        """A new `study.json`. Objectives and input stay what they are while a study grows."""
        self.study = study
        if "objectives" not in study or self.objectives:
            return
        try:
            self.objectives = [Objective(**one) for one in study["objectives"]]
            self.columns.geometry = geometry_of(study)
        except (TypeError, VitsearchError) as error:
            raise BadStudy(f"{self.folder / STUDY} is broken: {error}") from None

    def _read_trials(self, path: Path) -> None:
        new, self._ends[TRIALS] = read_trials(path, self._ends.get(TRIALS, 0), len(self.columns))
        self.columns.extend(new)
        for trial in new:
            self._rank(trial)
        candidates = [*self.front, *(trial.number for trial in new if trial.number in self._gains)]
        kept = pareto_front([self._gains[number] for number in candidates])
        self.front = [candidates[index] for index in kept]
        self._gains = {number: self._gains[number] for number in {*self.front, self.best} if number is not None}

    def _read_rows(self, path: Path) -> None:
        rows = self.rows.setdefault(path.name, [])
        new, self._ends[path.name] = read_rows(path, self._ends.get(path.name, 0), len(rows))
        rows.extend(new)

    def _rank(self, trial: Trial) -> None:
        if trial.error is not None or not self.objectives:
            return
        missing = [one.name for one in self.objectives if one.name not in trial.measured]
        if missing:
            raise BadStudy(f"{self.folder / TRIALS} line {trial.number + 1} has no {missing[0]!r}, an objective")
        gains = self._gains[trial.number] = [one.gain(trial) for one in self.objectives]
        if self.best is None or gains[0] > self._gains[self.best][0]:
            self.best = trial.number

    @property
    def done(self) -> int:
        if self.kind in TRAININGS:
            return (_count(self.epochs[-1].get("epoch")) or 0) if self.epochs else 0
        return len(self.columns) or sum(map(len, self.rows.values()))

    @property
    def wanted(self) -> int | None:
        if self.kind in TRAININGS:
            recipe = self.study.get("recipe")
            return _count(recipe.get("epochs")) if isinstance(recipe, dict) else None
        return _count(self.study.get("wanted"))

    @property
    def state(self) -> str:
        """running, finished, stopped or failed."""
        if self.problem is not None:
            return "failed"
        if self.running:
            return "running"
        if self.kind in TRAININGS:
            return "finished" if self.result is not None else "stopped"
        if len(self.columns) and len(self.columns.errors) == len(self.columns):
            return "failed"
        return "stopped" if self.wanted is not None and self.done < self.wanted else "finished"

    @property
    def seconds_left(self) -> float | None:
        """At the pace of the last trials or of the last epoch; None when it does not run or nothing is known."""
        if not self.running or self.wanted is None:
            return None
        left = max(0, self.wanted - self.done)
        if self.epochs:
            last = self.epochs[-1]
            images = _count(self.study["recipe"].get("batch_size")), _count(last.get("step"))
            speed = last.get("images_per_second")
            if None in images or not isinstance(speed, (int, float)) or not speed > 0:
                return None
            return left * math.prod(filter(None, images)) / max(1, self.done) / speed
        recent = self.columns.seconds[-RECENT:]
        return left * sum(recent) / len(recent) if recent else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 53 else None


def _only_grew(before: Mapping[str, tuple[int, int, int]], now: Mapping[str, tuple[int, int, int]]) -> bool:
    """Whether every journal is the file it was, and no shorter."""
    journals = [name for name in before if name.endswith(".jsonl")]
    return all(name in now and now[name][0] >= before[name][0] and now[name][2] == before[name][2] for name in journals)


def geometry_of(study: Mapping[str, Any]) -> Geometry:
    """What the networks of a study see; ImageNet's where it does not say."""
    given = study.get("geometry")
    if not isinstance(given, dict):
        return Geometry()
    known = {name: check_whole(name, given[name], most=1 << 24) for name in Geometry.__slots__ if name in given}
    return Geometry(**known)
