"""Small datasets of every kind, written by the tests themselves."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor


def encoded(number: int, mode: str = "RGB", size: tuple[int, int] = (10, 8), kind: str = "PNG") -> bytes:
    """An image that no other number has: noise, with the number in its corner."""
    shape = size[::-1] if mode == "L" else (*size[::-1], 3)
    pixels = np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)
    pixels[0, 0] = number % 256
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def write_parquet(
    path: Path, labels: Sequence[Any], images: Sequence[Any] | None = None, first: int = 0, **columns: Any
) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    given = images if images is not None else [encoded(first + number) for number in range(len(labels))]
    structs = [image if isinstance(image, dict) else {"bytes": image, "path": None} for image in given]
    table = pa.table(columns or {"image": structs, "label": list(labels)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=7)
    return path


def write_folder(folder: Path, counts: dict[str, int], first: int = 0) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            (folder / name / f"{number}.png").write_bytes(encoded(first))
            first += 1
    return folder


def write_tar(path: Path, samples: Sequence[dict[str, bytes]], first: int = 0) -> Path:
    with tarfile.open(path, "w") as tar:
        for number, fields in enumerate(samples):
            for field, data in fields.items():
                member = tarfile.TarInfo(f"a/{first + number:05d}.{field}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


class Memory:
    """A dataset in memory whose only part is itself; pixels [N, C, H, W]. `broken` images cannot be read."""

    name = "memory"
    class_names = None

    def __init__(self, pixels: Tensor, labels: Tensor, broken: Sequence[int] = ()) -> None:
        self.pixels, self.labels, self.broken = pixels, labels, set(broken)
        self.classes, self.channels = int(labels.max()) + 1, pixels.shape[1]
        self.mean, self.std = (0.45,) * self.channels, (0.25,) * self.channels

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> Tensor:
        from vitsearch.errors import CorruptImage

        if index in self.broken:
            raise CorruptImage(f"item {index} cannot be decoded")
        return self.pixels[index]

    def part(self, split: str) -> Memory:
        return self


@pytest.fixture
def memory() -> Callable[..., Memory]:
    def make(count: int = 40, channels: int = 3, side: int = 16, broken: Sequence[int] = ()) -> Memory:
        random = torch.Generator().manual_seed(0)
        coarse = torch.rand(count, channels, 4, 4, generator=random)
        smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic").clamp(0, 1)
        return Memory((smooth * 255).to(torch.uint8), torch.arange(count) % 5, broken)

    return make


@pytest.fixture
def make() -> Any:
    """The writers above, for tests that cannot import this file."""

    class Writers:
        image = staticmethod(encoded)
        parquet = staticmethod(write_parquet)
        folder = staticmethod(write_folder)
        tar = staticmethod(write_tar)

    return Writers
