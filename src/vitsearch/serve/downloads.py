"""A trial as a file to keep: its settings, or its network through `vitsearch.export`, packed.

A training's network comes with its trained weights, others with the initial ones of their study's seed.
"""

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

from vitsearch.errors import VitsearchError
from vitsearch.serve.library import Wanted

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

    def make(self, label: str, form: str, wanted: Wanted) -> File:
        if form == "json":
            return File(f"{label}.json", "application/json", (json.dumps(wanted.settings, indent=2) + "\n").encode())
        if not self._lock.acquire(blocking=False):
            raise Busy("another network is being written; try again in a moment")
        try:
            return File(f"{label}-{form}.zip", "application/zip", self._packed(label, form, wanted))
        finally:
            self._lock.release()

    def _packed(self, label: str, form: str, wanted: Wanted) -> bytes:
        from vitsearch.export import export, export_trained, untrained  # not before: it brings torch

        with tempfile.TemporaryDirectory(prefix="vitsearch-") as temporary:
            out = Path(temporary) / label
            if wanted.trained is not None:
                export_trained(wanted.trained, out, form)
            else:
                export(lambda: untrained(wanted.settings, wanted.geometry, wanted.seed), out, form)
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as archive:
                for file in sorted(out.rglob("*")):
                    archive.write(file, file.relative_to(temporary))
            return packed.getvalue()
