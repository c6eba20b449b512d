"""What a dataset offers to a search, and the registry of datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from vitsearch.cost import Geometry
from vitsearch.registry import Registry


class Batch(NamedTuple):
    """`images` [B, channels, side, side] in float32, normalised; `labels` [B] in int64. On the CPU."""

    images: Tensor
    labels: Tensor


class ImageSource(Protocol):
    """Labelled images. `draw` takes from the training part alone and depends on nothing but its arguments."""

    classes: int | None
    """None: labels are drawn for whatever number of classes the network has."""

    def draw(self, count: int, geometry: Geometry, seed: int) -> Batch: ...


DATASETS: Registry[Callable[[], ImageSource]] = Registry("dataset", "vitsearch.data")


def open_data(name: str) -> ImageSource:
    return DATASETS[name]()


def generator_for(seed: int, purpose: str) -> torch.Generator:
    """A generator of its own for each purpose, so that images do not repeat the numbers of the weights."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
