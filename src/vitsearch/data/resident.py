"""A whole part in memory, on the device: decoded once, then every step is a handful of kernels over its batch.

All images are kept as squares of one side: the shorter side is resized to it and the middle is kept. It is what the
crop needs (256/224 of the network's side for random resized crops, else the network's side), but no more than most of
the images have.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count as count_from
from time import perf_counter

import torch
from torch import Tensor

from vitsearch.cost import Geometry
from vitsearch.data.augment import (
    Augmentation,
    Boxes,
    Crops,
    as_bytes,
    draw_boxes,
    draw_changes,
    draw_crops,
    finished,
    noise_for,
    normalised,
)
from vitsearch.data.base import Batch, Dataset, Images, generator_for
from vitsearch.data.decoding import in_channels, resize_and_crop
from vitsearch.data.fusing import Fused
from vitsearch.data.operations import Changer, Group, grouped
from vitsearch.data.order import Order, Unreadable, next_readable
from vitsearch.data.rand_augment import Layer
from vitsearch.data.resampling import BatchResampler
from vitsearch.data.stored import Normaliser, normalisation
from vitsearch.errors import BadData, CorruptImage

log = logging.getLogger("vitsearch")
AT_A_TIME = 256  # images decoded by one task of a thread
LOOKED_AT = 64  # images whose size is looked at
SMALL = 64 * 64 * 3  # numbers: below, threads wait for Python's lock more than they decode, 24 s with 16 of them


def stored_side(images: Images, side: int, augmentation: Augmentation) -> int:
    """The side all images are kept at; images below it are enlarged, so it is at most the median of what there is."""
    wanted = -(-side * 256 // 224) if augmentation.crop == "resized" else side
    sides = []
    for index in sorted(torch.randperm(len(images), generator=generator_for(0, "sides"))[:LOOKED_AT].tolist()):
        try:
            sides.append(min(images.read(index).shape[1:]))
        except CorruptImage:  # counted where all are read
            continue
    if not sides:
        raise BadData(f"none of {min(LOOKED_AT, len(images))} images can be decoded")
    return min(wanted, sorted(sides)[len(sides) // 2])


def decode_all(
    images: Images, indices: Sequence[int], prepare: Callable[[Tensor], Tensor], unreadable: Unreadable
) -> tuple[Tensor, list[int]]:
    """Prepared images as one tensor, and the places in `indices` of those that could not be read."""
    first, read_size = _first(images, indices, prepare)
    found = torch.zeros(len(indices), *first.shape, dtype=torch.uint8)

    def read(start: int) -> list[tuple[int, str]]:
        failed = []
        for place in range(start, min(start + AT_A_TIME, len(indices))):
            try:
                found[place] = prepare(images.read(indices[place]))
            except CorruptImage as error:
                failed.append((place, str(error)))
        return failed

    began = perf_counter()
    missing: list[int] = []
    pool = ThreadPoolExecutor(1 if read_size <= SMALL else min(16, os.cpu_count() or 1))
    try:
        for failed in pool.map(read, range(0, len(indices), AT_A_TIME)):
            for place, reason in failed:
                unreadable.add(indices[place], reason)
                missing.append(place)
    finally:
        pool.shutdown(cancel_futures=True)
    log.info("%d images decoded in %.1f s, %.1f MiB", len(indices), perf_counter() - began, found.nbytes / 2**20)
    unreadable.report()
    return found, missing


def _first(images: Images, indices: Sequence[int], prepare: Callable[[Tensor], Tensor]) -> tuple[Tensor, int]:
    """The first that can be read, prepared, and how many numbers it was before."""
    for index in indices:
        try:
            read = images.read(index)
            return prepare(read), read.numel()
        except CorruptImage:
            continue
    raise BadData(f"none of {len(indices)} images can be decoded")


def send(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Many small tensors to the device in one transfer that nothing waits for."""
    if device.type == "cpu":
        return list(tensors)
    sizes = [-(-tensor.nbytes // 16) * 16 for tensor in tensors]  # compiled kernels want each at a multiple of 16
    packed = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    for tensor, piece in zip(tensors, torch.split(packed, sizes), strict=True):
        piece[: tensor.nbytes] = tensor.contiguous().view(-1).view(torch.uint8)
    pieces = torch.split(packed.to(device, non_blocking=True), sizes)
    return [
        piece[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, piece in zip(tensors, pieces, strict=True)
    ]


class Finisher:
    """What is the same for resident and streamed images: normalisation and erasing, on the device."""

    def __init__(
        self, dataset: Dataset, geometry: Geometry, augmentation: Augmentation, order: Order, device: torch.device
    ) -> None:
        normaliser = Normaliser(dataset, geometry.channels, device)
        self.factor, self.shift = normaliser.factor, normaliser.shift
        self.probability, self.count = augmentation.erase, augmentation.erase_count
        self.side, self.order = geometry.image_size, order
        self.finished, self.normalised = Fused(finished, device), Fused(normalised, device)
        if self.probability:
            self.noise = noise_for(order.seed, geometry.channels, self.side).to(device)

    def boxes(self, step: int) -> list[Tensor]:
        """What is erased of the images of this process, on the CPU; nothing where nothing ever is."""
        if not self.probability:
            return []
        drawn = draw_boxes(self.probability, self.side, self.order.batch_size, self.order.seed, step, self.count)
        return [values[self.order.own] for values in drawn]

    def __call__(self, pixels: Tensor, boxes: Sequence[Tensor]) -> Tensor:
        """`boxes` on the device."""
        if not boxes:
            return self.normalised(pixels, self.factor, self.shift)
        return self.finished(pixels, self.factor, self.shift, Boxes(*boxes), self.noise)


class ResidentLoader:
    def __init__(
        self,
        images: Images,
        dataset: Dataset,
        geometry: Geometry,
        augmentation: Augmentation,
        order: Order,
        device: torch.device,
        stored: int,
    ) -> None:
        self.augmentation, self.order, self.device = augmentation, order, device
        self.steps_per_epoch = order.steps_per_epoch
        self.side, self.stored = geometry.image_size, stored
        self.finish = Finisher(dataset, geometry, augmentation, order, device)
        self.pixels, self.labels = self._load(images, geometry.channels)
        every_length = augmentation.crop == "resized"
        self.resample = BatchResampler(stored, self.side, augmentation.interpolation, device, every_length)
        self.as_bytes = Fused(as_bytes, device)
        mean, _ = normalisation(dataset, self.pixels.shape[2])
        fill = torch.tensor([min(255, round(255 * value)) for value in mean], device=device)
        self.change = Changer(fill, augmentation.interpolation, order.own.stop - order.own.start, device)

    def _load(self, images: Images, channels: int) -> tuple[Tensor, Tensor]:
        """uint8 [N, stored, C, stored] and labels; an unreadable image has the next readable one in its place."""

        def prepare(read: Tensor) -> Tensor:
            interpolation = self.augmentation.interpolation
            squared = resize_and_crop(in_channels(read, channels), self.stored, self.stored, interpolation)
            return squared.transpose(0, 1)

        unreadable = Unreadable(len(images))
        pixels, missing = decode_all(images, range(len(images)), prepare, unreadable)
        labels = images.labels.clone()
        for index in missing:
            other = next_readable(index, len(images), missing)
            pixels[index], labels[index] = pixels[other], labels[other]
        return pixels.to(self.device), labels.to(self.device)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        for step in count_from(start):
            yield self.batch(step)

    @torch.no_grad()
    def batch(self, step: int) -> Batch:
        own, count, seed = self.order.own, self.order.batch_size, self.order.seed
        crops = [values[own] for values in draw_crops(self.augmentation, self.stored, count, seed, step)]
        layers = [
            grouped(Layer(layer.operation[own], layer.argument[own]), self.side, self.change.size)
            for layer in draw_changes(self.augmentation, count, seed, step)
        ]
        boxes = self.finish.boxes(step)
        changes = [tensor for groups in layers for _, *tensors in groups for tensor in tensors]
        sent = iter(send([self.order.batch(step)[own], *crops, *changes, *boxes], self.device))
        index = next(sent)
        pixels = self.resample(self.pixels, index, Crops(*(next(sent) for _ in crops)))
        if layers:
            pixels = self.as_bytes(pixels)
        for groups in layers:
            on_device: list[Group] = [(name, next(sent), next(sent)) for name, *_ in groups]
            self.change(pixels, on_device)
        return Batch(self.finish(pixels, list(sent)), self.labels.index_select(0, index))
