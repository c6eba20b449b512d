"""Images on disk or in memory as a dataset: parts that never share an image, normalisation, batches for proxies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor

from vitsearch.cost import Geometry
from vitsearch.data.base import Batch, Split, generator_for
from vitsearch.data.decoding import channels_of, in_channels, resize_and_crop, to_mode, to_tensor
from vitsearch.data.splits import TEST, VALIDATION, check_labels, check_no_class_is_empty, hold_out
from vitsearch.errors import BadData, CorruptImage, VitsearchError

log = logging.getLogger("vitsearch")
SAMPLED = 1000  # images looked at for mean and standard deviation
LARGE = 160  # colour images with a shorter side from here on are photographs: ImageNet's numbers
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LUMA = (0.299, 0.587, 0.114)
FOUND: dict[Split, tuple[str, ...]] = {  # what files and folders are called
    "train": ("train",),
    "validation": ("validation", "valid", "val"),
    "test": ("test",),
}


class Records(Protocol):
    """What one kind of storage knows of one part. `labels` are checked by the dataset; `open` may raise anything."""

    @property
    def labels(self) -> Any: ...
    def open(self, index: int) -> Image.Image: ...
    def describe(self, index: int) -> str: ...


class StoredImages:
    """Some of the records, in ascending order."""

    def __init__(self, records: Records, chosen: Tensor, labels: Tensor, channels: int) -> None:
        self.records = records
        self.chosen = chosen
        self.labels = labels[chosen]
        self.channels = channels

    def __len__(self) -> int:
        return len(self.chosen)

    def read(self, index: int) -> Tensor:
        number = int(self.chosen[index])
        try:
            return to_tensor(to_mode(self.records.open(number), self.channels))
        except Exception as error:  # decoders of foreign bytes raise whatever they like
            reason = " ".join(f"{error}".split())[:200] or type(error).__name__
            raise CorruptImage(f"{self.records.describe(number)} cannot be decoded: {reason}") from None


class StoredDataset:
    """`records` has a function for each part the files have; what is missing is held out of the training part.

    `mean` and `std` are ImageNet's for large colour images, else computed from a fixed sample of the training part.
    """

    def __init__(
        self,
        name: str,
        records: Mapping[Split, Callable[[], Records]],
        *,
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self.class_names = tuple(class_names) if class_names else None
        self._records = records
        train = records["train"]()
        known = classes or (len(class_names) if class_names else None)
        labels = check_labels(train.labels, known, f"{name}, train")
        if not len(labels):
            raise BadData(f"{name}: the training part must have images, but has none")
        self.classes: int = known or int(labels.max()) + 1
        check_no_class_is_empty(labels, self.classes, self.class_names, name)
        self._train = train, labels
        self._chosen = self._hold_out(labels)
        self._parts: dict[Split, StoredImages] = {}

    def _hold_out(self, labels: Tensor) -> dict[Split, Tensor]:
        chosen: dict[Split, Tensor] = {}
        rest = torch.arange(len(labels))
        shares: dict[Split, float] = {"validation": VALIDATION, "test": TEST}
        for split, fraction in shares.items():
            if split not in self._records:
                kept, held = hold_out(labels[rest], fraction, split)
                chosen[split], rest = rest[held], rest[kept]
        return chosen | {"train": rest}

    @cached_property
    def channels(self) -> int:
        """3 if any of a few training images has colour."""
        records, labels = self._train
        found = []
        for number in sorted(torch.randperm(len(labels), generator=generator_for(0, "channels"))[:32].tolist()):
            try:
                found.append(channels_of(records.open(number)))
            except Exception:  # counted and reported where the images are used
                log.debug("%s cannot be opened", records.describe(number))
        if not found:
            raise BadData(f"{self.name}: none of {min(32, len(labels))} images can be decoded")
        return max(found)

    def part(self, split: Split) -> StoredImages:
        if split not in FOUND:
            raise VitsearchError(f"`split` must be one of {', '.join(FOUND)}, but got {split!r}")
        if split not in self._parts:
            records, labels = self._train
            if split not in self._chosen:
                records = self._records[split]()
                labels = check_labels(records.labels, self.classes, f"{self.name}, {split}")
            chosen = self._chosen.get(split, torch.arange(len(labels)))
            if not len(chosen):
                raise BadData(f"{self.name}: the {split} part must have images, but has none")
            self._parts[split] = StoredImages(records, chosen, labels, self.channels)
        return self._parts[split]

    @cached_property
    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        images = self.part("train")
        order = torch.randperm(len(images), generator=generator_for(0, "statistics"))[:SAMPLED].tolist()
        sample = [pixels.double() / 255 for pixels in read_some(images, order[:32])]
        if self.channels == 3 and sorted(min(pixels.shape[1:]) for pixels in sample)[len(sample) // 2] >= LARGE:
            return IMAGENET_MEAN, IMAGENET_STD
        sample += [pixels.double() / 255 for pixels in read_some(images, order[32:])]
        means = torch.stack([pixels.mean(dim=(1, 2)) for pixels in sample])
        squares = torch.stack([pixels.square().mean(dim=(1, 2)) for pixels in sample])
        mean = means.mean(dim=0)  # every image counts the same, whatever its size
        std = (squares.mean(dim=0) - mean.square()).clamp(min=0).sqrt().clamp(min=1 / 255)
        return tuple(round(x, 4) for x in mean.tolist()), tuple(round(x, 4) for x in std.tolist())

    @property
    def mean(self) -> tuple[float, ...]:
        return self._statistics[0]

    @property
    def std(self) -> tuple[float, ...]:
        return self._statistics[1]

    def draw(self, count: int, geometry: Geometry, seed: int) -> Batch:
        images = self.part("train")
        check_geometry(self.name, self.classes, self.channels, geometry)
        check_count(self.name, count, len(images))
        order = torch.randperm(len(images), generator=generator_for(seed, "draw")).tolist()
        side = geometry.image_size
        pixels, labels = [], []
        for index in order:
            try:
                read = in_channels(images.read(index), geometry.channels)
            except CorruptImage as error:
                log.warning("%s; the next one is taken", error)
                continue
            pixels.append(resize_and_crop(read, side, side))
            labels.append(int(images.labels[index]))
            if len(labels) == count:
                break
        check_count(self.name, count, len(labels))
        normalise = Normaliser(self, geometry.channels, torch.device("cpu"))
        return Batch(normalise(torch.stack(pixels)), torch.tensor(labels))


def read_some(images: StoredImages, order: Sequence[int]) -> list[Tensor]:
    found = []
    for index in sorted(order):
        try:
            found.append(images.read(index))
        except CorruptImage as error:  # counted and reported where the images are used
            log.debug("%s", error)
    return found


def check_count(name: str, count: int, available: int) -> None:
    if not 1 <= count <= available:
        raise VitsearchError(f"`batch_size` must be from 1 to {available} for {name}, but got {count}")


def check_geometry(name: str, classes: int, channels: int, geometry: Geometry) -> None:
    if geometry.classes < classes:
        raise VitsearchError(f"`classes` must be at least {classes} for {name}, but got {geometry.classes}")
    if channels == 3 and geometry.channels not in (1, 3):
        raise VitsearchError(f"`channels` must be 1 or 3 for {name}, but got {geometry.channels}")


class Normalised(Protocol):
    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...


def normalisation(source: Normalised, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation for `channels`: grey ones repeated; colour ones weighted by the luma."""
    mean, std = source.mean, source.std
    if len(mean) == channels:
        return mean, std
    if len(mean) == 1:
        return mean * channels, std * channels
    return (sum(a * b for a, b in zip(LUMA, mean, strict=True)),), (sum(a * b for a, b in zip(LUMA, std, strict=True)),)


class Normaliser:
    """uint8 [B, 1 or 3, H, W] to float32 [B, channels, H, W]; grey is repeated."""

    def __init__(self, source: Normalised, channels: int, device: torch.device) -> None:
        mean, std = (torch.tensor(values)[:, None, None] for values in normalisation(source, channels))
        self.factor, self.shift = (1 / (255 * std)).to(device), (mean / std).to(device)

    def __call__(self, pixels: Tensor) -> Tensor:
        return (pixels * self.factor).sub_(self.shift)  # one kernel reads the bytes, one works in place
