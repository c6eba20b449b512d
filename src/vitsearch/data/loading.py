"""Batches for training and evaluation: from memory where the images fit, else streamed from where they are stored."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from vitsearch.architecture import check_seed, check_whole
from vitsearch.cost import Geometry
from vitsearch.data.ahead import Ahead
from vitsearch.data.augment import Augmentation
from vitsearch.data.base import Batch, Dataset, Images
from vitsearch.data.decoding import in_channels, resize_and_crop
from vitsearch.data.order import Order, Unreadable, check_world
from vitsearch.data.resident import ResidentLoader, decode_all, stored_side
from vitsearch.data.stored import Normaliser, check_geometry
from vitsearch.data.streaming import EvaluationSamples, StreamingLoader, worker_loader
from vitsearch.errors import VitsearchError

RESIDENT_BYTES = 8 << 30


class Loader(Protocol):
    """Batches on the device, without end. Step s belongs to epoch s // steps_per_epoch."""

    @property
    def steps_per_epoch(self) -> int: ...

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """From global step `start` on: the same batches as a run that got there."""
        ...


def train_loader(
    images: Images,
    *,
    dataset: Dataset,
    geometry: Geometry,
    augmentation: Augmentation,
    batch_size: int,
    seed: int,
    device: torch.device,
    rank: int = 0,
    world: int = 1,
    resident: bool | None = None,
    workers: int = 0,
) -> Loader:
    """`batch_size` is that of all processes together; each sees a slice. `resident` None: where the images fit."""
    check_geometry(dataset.name, dataset.classes, dataset.channels, geometry)
    check_whole("workers", workers, least=0, most=1024)
    order = Order(
        len(images),
        batch_size=check_whole("batch_size", batch_size),
        seed=check_seed(seed),
        repeats=augmentation.repeats,
        rank=rank,
        world=world,
    )
    if resident is not False:
        stored = stored_side(images, geometry.image_size, augmentation)
        size = len(images) * stored**2 * min(dataset.channels, geometry.channels)
        if resident or size <= resident_bytes(device):
            return _beside(ResidentLoader(images, dataset, geometry, augmentation, order, device, stored), device)
    return _beside(StreamingLoader(images, dataset, geometry, augmentation, order, device, workers), device)


def _beside(loader: Loader, device: torch.device) -> Loader:
    return Ahead(loader, device) if device.type == "cuda" else loader


def resident_bytes(device: torch.device) -> int:
    """What decoded images may take: a quarter of a GPU's memory, else 8 GiB and no more than a quarter of all."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory) // 4
    return min(RESIDENT_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)


class Prepare:
    """timm's evaluation transform: the shorter side to side / crop_pct, then the middle; uint8."""

    def __init__(self, side: int, crop_pct: float, channels: int) -> None:
        self.resized, self.side, self.channels = math.floor(side / crop_pct), side, channels

    def __call__(self, pixels: Tensor) -> Tensor:
        return resize_and_crop(in_channels(pixels, self.channels), self.resized, self.side)


class EvaluationBatches:
    """Can be gone through again and again; where the images fit, they are decoded the first time only."""

    def __init__(
        self,
        images: Images,
        keys: list[list[int]],
        prepare: Prepare,
        normalise: Normaliser,
        device: torch.device,
        workers: int,
    ) -> None:
        self.images, self.keys, self.prepare, self.normalise = images, keys, prepare, normalise
        self.device, self.workers = device, workers
        self.unreadable = Unreadable(len(images))
        self._kept: list[tuple[Tensor, Tensor]] | None = None

    def __iter__(self) -> Iterator[Batch]:
        for pixels, labels in self._bytes():
            with torch.no_grad():
                images = self.normalise(pixels.to(self.device, non_blocking=True))
            yield Batch(images, labels.to(self.device, non_blocking=True))

    def _bytes(self) -> Iterable[tuple[Tensor, Tensor]]:
        if self._kept is not None:
            return self._kept
        count = sum(len(keys) for keys in self.keys)
        if count * self.prepare.channels * self.prepare.side**2 > resident_bytes(self.device):
            return self._stream()
        self._kept = self._decode()
        return self._kept

    def _decode(self) -> list[tuple[Tensor, Tensor]]:
        indices = [index for keys in self.keys for index in keys]
        if not indices:
            return []
        pixels, missing = decode_all(self.images, indices, self.prepare, self.unreadable)
        labels = self.images.labels[torch.tensor(indices)]
        there = torch.ones(len(indices), dtype=torch.bool)
        there[missing] = False
        sizes = [len(keys) for keys in self.keys]
        rows = zip(*(torch.split(tensor, sizes) for tensor in (pixels, labels, there)), strict=True)
        return [(part[kept].to(self.device), label[kept].to(self.device)) for part, label, kept in rows if kept.any()]

    def _stream(self) -> Iterator[tuple[Tensor, Tensor]]:
        samples = EvaluationSamples(self.images, self.prepare)
        for found in worker_loader(samples, self.keys, self.device, self.workers):
            for index, reason in found.failed:
                self.unreadable.add(index, reason)
            if found.pixels is not None:
                yield found.pixels, found.labels
        self.unreadable.report()


def evaluation_batches(
    images: Images,
    *,
    dataset: Dataset,
    geometry: Geometry,
    batch_size: int,
    device: torch.device,
    rank: int = 0,
    world: int = 1,
    crop_pct: float = 1.0,
    workers: int = 0,
) -> Iterable[Batch]:
    """Every image once over all processes, in their order; the last batch is short, and unreadable ones are left out.

    `batch_size` is that of all processes together.
    """
    check_geometry(dataset.name, dataset.classes, dataset.channels, geometry)
    check_world(check_whole("batch_size", batch_size), rank, world)
    if not 0 < crop_pct <= 1:
        raise VitsearchError(f"`crop_pct` must be above 0 and at most 1, but got {crop_pct}")
    share = batch_size // world
    keys = []
    for start in range(rank * share, len(images), batch_size):
        keys.append(list(range(start, min(start + share, len(images)))))
    prepare = Prepare(geometry.image_size, crop_pct, min(geometry.channels, dataset.channels))
    normalise = Normaliser(dataset, geometry.channels, device)
    return EvaluationBatches(
        images, keys, prepare, normalise, device, check_whole("workers", workers, least=0, most=1024)
    )
