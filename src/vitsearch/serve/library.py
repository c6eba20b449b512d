"""The studies under a folder. What is not among them has no name here: no path that a reader writes is ever opened."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.report.kinds import geometry_of
from vitsearch.report.reading import STUDY, Reader
from vitsearch.report.views import summary, trials_of, view

DEEPEST, MOST = 4, 2000
FRESH = 0.5  # seconds for which what was read is not looked at again


class Wanted(NamedTuple):
    """A network to take home."""

    settings: Settings
    geometry: Geometry
    seed: int
    """Of its initial weights."""
    trained: Path | None
    """The folder that has its trained ones."""


class NotThere(VitsearchError):
    """No study or trial of that name."""


class Library:
    """Readers of all studies under `root`, one at a time for each study, shared by all who look on."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._id = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._names: dict[str, Path] = {}
        self._looked = -FRESH
        self._shelf: dict[str, _Shelved] = {}

    def studies(self) -> list[dict[str, Any]]:
        """A summary of each, the last written first."""
        found = []
        for name in self._found():
            with self._opened(name) as shelved:
                found.append(summary(shelved.reader))
        return sorted(found, key=lambda one: (-one["changed"], one["name"]))

    def study(self, name: str, start: int = 0, seen: str = "") -> bytes | None:
        """What is known of a study as JSON; None where that is what the reader has `seen` already.

        Of the trials those from `start` on, or all where those before are not the ones that the reader has.
        """
        with self._opened(name) as shelved:
            reader = shelved.reader
            generation = f"{self._id}.{reader.generation}"
            version = f"{generation}.{reader.version}"
            if seen == version:
                return None
            first = start if seen.startswith(f"{generation}.") and start <= len(trials_of(reader)) else 0
            return shelved.body((version, first), lambda: view(reader, first) | {"version": version})

    def network(self, name: str, number: int) -> Wanted:
        with self._opened(name) as shelved:
            reader = shelved.reader
            columns, study = trials_of(reader), reader.study
            if not 0 <= number < len(columns):
                raise NotThere(f"{name} has no trial {number}")
            seed = study.get("seed")
            folder = reader.folder if reader.has_trained else None
            return Wanted(columns.settings_at(number), geometry_of(study), seed if isinstance(seed, int) else 0, folder)

    @contextmanager
    def _opened(self, name: str) -> Iterator[_Shelved]:
        folder = self._found().get(name)
        if folder is None:
            raise NotThere("there is no such study")
        with self._lock:
            shelved = self._shelf.setdefault(name, _Shelved(Reader(folder, name, inside=self.root)))
        with shelved.lock:
            if time.monotonic() - shelved.looked >= FRESH:
                shelved.reader.refresh()
                shelved.looked = time.monotonic()
            yield shelved

    def _found(self) -> dict[str, Path]:
        with self._lock:
            if time.monotonic() - self._looked >= FRESH:
                self._names = dict(sorted(self._walk()))
                self._shelf = {name: shelved for name, shelved in self._shelf.items() if name in self._names}
                self._looked = time.monotonic()
            return self._names

    def _walk(self) -> Iterator[tuple[str, Path]]:
        """Folders with a study.json of their own; links are not followed."""
        count = 0
        for text, folders, files in os.walk(self.root, followlinks=False):
            folder = Path(text)
            below = folder.relative_to(self.root)
            folders[:] = sorted(one for one in folders if not one.startswith("."))
            if len(below.parts) >= DEEPEST:
                folders.clear()
            if STUDY in files and not (folder / STUDY).is_symlink():  # others may lie below it: supernets
                yield (str(below) if below.parts else self.root.name or "study"), folder
                count += 1
                if count == MOST:
                    return


class _Shelved:
    """A reader with its lock and the last answers that were made from it."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.lock = threading.Lock()
        self.looked = -FRESH
        self._bodies: dict[tuple[str, int], bytes] = {}

    def body(self, key: tuple[str, int], make: Any) -> bytes:
        if key not in self._bodies:
            kept = {old: body for old, body in self._bodies.items() if old[0] == key[0]}
            text = json.dumps(make(), allow_nan=False, separators=(",", ":"))
            self._bodies = dict(list(kept.items())[-7:]) | {key: text.encode()}
        return self._bodies[key]
