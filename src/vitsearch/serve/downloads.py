"""A trial as a file to keep: its settings, or its network through `vitsearch.export`, packed."""

from __future__ import annotations

import io
import json
import tempfile
import threading
import zipfile
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError

NEEDED = {"timm": ("timm",), "onnx": ("onnx", "onnxscript", "onnxruntime"), "torch": ("torch",)}
"""Formats of `vitsearch.export`; without these packages one is not offered."""


class Busy(VitsearchError):
    """Another network is being written."""


class File(NamedTuple):
    name: str
    kind: str
    content: bytes


class Downloads:
    """One network at a time: building it fills a core and some memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @cached_property
    def formats(self) -> list[str]:
        return ["json", *(name for name, packages in NEEDED.items() if all(map(find_spec, packages)))]

    def make(self, label: str, form: str, settings: Settings, geometry: Geometry, seed: int) -> File:
        if form == "json":
            return File(f"{label}.json", "application/json", (json.dumps(settings, indent=2) + "\n").encode())
        if not self._lock.acquire(blocking=False):
            raise Busy("another network is being written; try again in a moment")
        try:
            return File(f"{label}-{form}.zip", "application/zip", self._packed(label, form, settings, geometry, seed))
        finally:
            self._lock.release()

    def _packed(self, label: str, form: str, settings: Settings, geometry: Geometry, seed: int) -> bytes:
        from vitsearch.export import export, untrained  # not before: it brings torch

        with tempfile.TemporaryDirectory(prefix="vitsearch-") as temporary:
            out = Path(temporary) / label
            export(lambda: untrained(settings, geometry, seed), out, form)
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as archive:
                for file in sorted(out.rglob("*")):
                    archive.write(file, file.relative_to(temporary))
            return packed.getvalue()
