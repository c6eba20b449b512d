"""What a study writes down: trials, one JSON object a line, append-only; objectives; strict JSON in general."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from vitsearch.architecture import Settings, brief
from vitsearch.errors import BadStudy, VitsearchError

IMAGES = ":images="
MAY_OVERFLOW = re.compile(r"\d[eE]\+?\d{3}|\d{300}")  # what a float literal beyond the largest float looks like


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One architecture and what was measured of it. A failed trial has an `error` and measures nothing."""

    number: int
    settings: Settings
    measured: Mapping[str, float]
    error: str | None = None
    seconds: float

    def to_line(self) -> str:
        fields = {
            "number": self.number,
            "settings": self.settings,
            "measured": dict(self.measured),
            "error": self.error,
            "seconds": self.seconds,
        }
        return json.dumps(fields, allow_nan=False, separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, data: object) -> Trial:
        """Raises ValueError with the rule that is broken."""
        if not isinstance(data, dict) or not set(data) >= {"number", "settings", "measured", "error", "seconds"}:
            raise ValueError("a trial must be an object with number, settings, measured, error and seconds")
        number, settings, measured = data["number"], data["settings"], data["measured"]
        if not _is_number(number) or not isinstance(number, int) or not isinstance(settings, dict):
            raise ValueError("`number` must be a whole number and `settings` an object")
        if not isinstance(measured, dict) or not all(map(_is_number, measured.values())):
            raise ValueError("`measured` must be an object of numbers")
        if not isinstance(data["error"], (str, type(None))) or not _is_number(data["seconds"]):
            raise ValueError("`error` must be a text or null and `seconds` a number")
        return cls(number=number, settings=settings, measured=measured, error=data["error"], seconds=data["seconds"])


def trial_number(name: str) -> int | None:
    """Of `DIR#17`; None where it is none that a journal can have."""
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 16 else None


def supernet_and_images(text: str) -> tuple[str, int | None]:
    """What follows `supernet:` in an objective: a folder, or `FOLDER:images=1000`; None: all validation images."""
    folder, given, count = text.rpartition(IMAGES)
    if not given:
        _, colon, option = text.rpartition(":")
        if not text or (colon and "=" in option and not Path(text).exists()):
            raise VitsearchError(f"`objective` must be supernet:DIR or supernet:DIR{IMAGES}N, but got {brief(text)}")
        return text, None
    if not (count.isascii() and count.isdecimal() and len(count) < 10):
        raise VitsearchError(f"`images` must be a whole number, as in supernet:DIR{IMAGES}1000, but got {brief(count)}")
    return folder, int(count)


TRAINED = ("supernet:", "predictor:", "bench:")
SIZES = {"params", "macs", "depth", "width", "latency", "latency_ms", "throughput"}


def looks_into_networks(names: Sequence[str]) -> bool:
    """Whether data, and the classes it has, matter to these objectives: not where what was trained or measured says its
    input itself, and nothing but sizes and times stands beside it."""
    return has_proxies(names) or not any(name.startswith(TRAINED) for name in names)


def has_proxies(names: Sequence[str]) -> bool:
    """Whether some of these objectives score networks with initial weights, most of them on a batch of images."""
    return any(not name.startswith(TRAINED) and name not in SIZES for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A measured name and whether more of it is better."""

    name: str
    direction: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.direction not in ("min", "max"):
            raise VitsearchError(f"an objective must have a name and a direction min or max, but got {brief(self)}")

    def gain(self, trial: Trial) -> float:
        """The measured value, negated where less is better."""
        value = trial.measured[self.name]
        return value if self.direction == "max" else -value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def parse_json(text: str | bytes, source: str) -> Any:
    """Strict JSON: no NaN, no infinities; whatever is wrong becomes one line that names the source."""

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not a number in JSON")

    def finite(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"{digits[:40]} is too large for a number")
        return value

    try:
        decoded = text if isinstance(text, str) else text.decode()
        parse_float = finite if MAY_OVERFLOW.search(decoded) else None  # a call for each number is slow
        return json.loads(decoded, parse_constant=refuse, parse_float=parse_float)
    except RecursionError:
        raise VitsearchError(f"{source} is nested too deeply to be read") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, integers with thousands of digits
        raise VitsearchError(f"{source} is not valid JSON: {' '.join(str(error).split())}") from None


def check_made_alike(path: Path, first_line: bytes, header: Mapping[str, Any], remedy: str) -> None:
    """That the first line of a file is this header; else an error with the first thing that differs."""
    found = parse_json(first_line, f"{path} line 1")
    known = found if isinstance(found, dict) else {}
    for key in (*header, *known):
        if known.get(key) != header.get(key):
            was, wanted = (brief(one.get(key)) for one in (known, header))
            raise BadStudy(f"{path} was made with {key} {was}, not with {wanted}: {remedy}")


def write_atomically(path: Path, text: str) -> None:
    """The file has the old content or all of the new one, whatever happens in between."""
    write_bytes_atomically(path, text.encode())


def write_bytes_atomically(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise VitsearchError(f"cannot write {path}: {error.strerror or error}") from error
        raise
    _sync_folder(path.parent)


def remove_temporaries(folder: Path, names: Sequence[str]) -> None:
    """What writes of these files left behind when they were killed. Only for who alone writes there."""
    left = re.compile(rf"\.({'|'.join(map(re.escape, names))})\.[a-z0-9_]{{8}}")  # as `mkstemp` names them
    for file in folder.iterdir():
        if left.fullmatch(file.name):
            file.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """Make a folder that must not exist, with its parents; take away again what was made if the block fails."""
    made: list[Path] = []
    try:
        for folder in [parent for parent in reversed(path.parents) if not parent.exists()] + [path]:
            folder.mkdir()
            made.append(folder)
        yield
    except BaseException:
        for folder in reversed(made):
            with suppress(OSError):  # not empty: somebody else's by now
                folder.rmdir()
        raise


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path, start: int = 0) -> tuple[list[bytes], int]:
    """The complete lines of a journal from byte `start` on, and the byte after the last of them.

    What follows the last newline is a write that was cut off and counts as never written.
    """
    with open(path, "rb") as file:
        file.seek(start)
        content = file.read()
    complete = content.rfind(b"\n") + 1
    return content[:complete].splitlines(), start + complete


def read_trials(path: Path, start: int = 0, first: int = 0) -> tuple[list[Trial], int]:
    """The trials from byte `start` on, the first of them with number `first`, and the byte after the last.

    Anything wrong in a complete line is an error that names it.
    """
    lines, end = read_lines(path, start)
    trials = []
    for index, line in enumerate(lines, first):
        try:
            trial = Trial.from_json(parse_json(line, "it"))
            if trial.number != index:
                raise ValueError(f"its number must be {index}, but got {trial.number}")
        except (ValueError, VitsearchError) as error:
            raise BadStudy(f"{path} is broken at line {index + 1}: {error}; it reads {brief(line[:60])}") from None
        trials.append(trial)
    return trials, end


def read_rows(path: Path, start: int = 0, first: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The same for a journal of plain objects."""
    lines, end = read_lines(path, start)
    rows = []
    for number, line in enumerate(lines, first + 1):
        row = parse_json(line, f"{path} line {number}")
        if not isinstance(row, dict):
            raise BadStudy(f"{path} is broken at line {number}: it must be an object, but got {brief(row)}")
        rows.append(row)
    return rows, end


class Journal:
    """The one writer of a journal file: locked, cut to its last complete line, then only appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115, closed by `close`
        try:
            lock_file(self._file, path)
            self.trials, size = read_trials(path)
            self._file.truncate(size)
        except BaseException:
            self._file.close()
            raise

    def append(self, trials: Sequence[Trial]) -> None:
        """One write and one fsync. If the disk refuses, what was there before stays, and nothing else."""
        if not trials:
            return
        data = "".join(trial.to_line() for trial in trials).encode()
        with uninterrupted():
            append_whole(self._file, data, self.path, f"its {len(self.trials)} trials are safe")
            self.trials.extend(trials)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def append_whole(file: IO[bytes], content: bytes, path: Path, safe: str) -> None:
    """All of it, durably, at the end of an unbuffered file; or an error that ends with `safe`, and nothing of it."""
    start = os.fstat(file.fileno()).st_size
    try:
        written = 0
        while written < len(content):
            written += file.write(content[written:]) or 0
        os.fsync(file.fileno())
    except OSError as error:
        file.truncate(start)
        raise BadStudy(f"cannot write {path}: {error.strerror}; {safe}") from error


def lock_file(file: IO[bytes], path: Path) -> None:
    import fcntl  # POSIX only, so not at the top

    for last in (False, True):
        try:
            return fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if last:
                raise BadStudy(f"{path.parent} is being written by another process") from error
            time.sleep(0.05)  # it may have been `is_locked`, for a moment


def is_locked(path: Path) -> bool:
    """Whether somebody is writing this journal now."""
    import fcntl

    try:
        with open(path, "rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)  # gone again when the file is closed
    except BlockingIOError:
        return True
    except OSError:  # not there, or a file system without locks
        return False
    return False


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the block is through. Only the main thread gets signals, so others need nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[tuple[int, FrameType | None]] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: pending.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if pending and callable(previous):
        previous(*pending[0])
