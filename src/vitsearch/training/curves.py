"""Curves for TensorBoard, an epoch at a time, beside `epochs.jsonl`, which has the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitsearch.errors import require


def require_tensorboard() -> None:
    require("tensorboard", extra="tensorboard")


class Curves:
    """Called with each epoch's row. What a stopped training wrote beyond its checkpoint is taken back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def __call__(self, row: dict[str, Any]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.folder, purge_step=row["step"])
        for name, value in row.items():
            if name not in ("epoch", "step"):
                self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()
