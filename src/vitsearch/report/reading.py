"""A study folder as somebody who looks on sees it: read again only where it has grown, whatever its kind.

Nothing is written, and what is wrong with a folder becomes a part of what is shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.ranking import pareto_front
from vitsearch.records import Objective, Trial, is_locked, parse_json, read_rows, read_trials
from vitsearch.report.columns import Columns
from vitsearch.report.kinds import Progress, count, geometry_of, objectives_of, progress_of, space_of_study

STUDY, TRIALS, EPOCHS = "study.json", "trials.jsonl", "epochs.jsonl"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
RESULTS = ("result.json", "found.json")  # of a training, of a discovery
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
        known = [self.folder / name for name in (STUDY, *RESULTS)]
        all_of_them = {*known, *self.folder.glob("*.jsonl")}
        return sorted(path for path in all_of_them if self._usable(path))

    def _usable(self, path: Path) -> bool:
        return path.is_file() and (self.inside is None or path.resolve().is_relative_to(self.inside))

    @property
    def has_trained(self) -> bool:
        """Whether the folder holds the network of this training, trained to the end, and not another's."""
        if self.kind != "train" or self.result is None or not self._usable(self.folder / WEIGHTS):
            return False
        try:
            written = (self._object(CONFIG) or {}).get("model_args")
        except (VitsearchError, OSError):
            return False
        ours = self.study.get("settings")
        return isinstance(ours, dict) and isinstance(written, dict) and written.get("settings") == ours

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
        self.result = next((found for name in RESULTS if (found := self._object(name)) is not None), None)
        for path in self._files():
            if path.suffix == ".json":
                continue
            if path.name == TRIALS and self.objectives:
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
        if self.objectives:
            return
        try:
            self.objectives = objectives_of(study)
            self.columns.geometry, self.columns.space = geometry_of(study), space_of_study(study)
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
    def progress(self) -> Progress:
        return progress_of(self.study, len(self.columns), self.rows, self.epochs, self.result is not None)

    @property
    def state(self) -> str:
        """running, finished, stopped or failed."""
        if self.problem is not None:
            return "failed"
        if self.running:
            return "running"
        if len(self.columns) and len(self.columns.errors) == len(self.columns):
            return "failed"
        return "finished" if self.progress.finished else "stopped"

    @property
    def seconds_left(self) -> float | None:
        """At the pace of the last trials or of the last epoch; None when it does not run or nothing is known."""
        done, wanted, unit, _ = self.progress
        if not self.running or wanted is None:
            return None
        left = max(0, wanted - done)
        if self.epochs:
            last = self.epochs[-1]
            images = count(self.study["recipe"].get("batch_size")), count(last.get("step"))
            speed = last.get("images_per_second")
            if None in images or not isinstance(speed, (int, float)) or not speed > 0:
                return None
            return left * math.prod(filter(None, images)) / max(1, done) / speed
        recent = self.columns.seconds[-RECENT:]
        return left * sum(recent) / len(recent) if recent and unit != "spaces" else None


def _only_grew(before: Mapping[str, tuple[int, int, int]], now: Mapping[str, tuple[int, int, int]]) -> bool:
    """Whether every journal is the file it was, and no shorter."""
    journals = [name for name in before if name.endswith(".jsonl")]
    return all(name in now and now[name][0] >= before[name][0] and now[name][2] == before[name][2] for name in journals)
