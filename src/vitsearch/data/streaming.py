"""Images decoded as they are needed, by worker processes, with timm's transforms.

timm draws from the global generators, so each image's transforms run under a seed of its own, from the seed of the
run, the step and its place in the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count as count_from
from typing import Any, NamedTuple

import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as MapDataset

from vitsearch.cost import Geometry
from vitsearch.data.augment import Augmentation
from vitsearch.data.base import Batch, Dataset, Images, generator_for, seeded_everything
from vitsearch.data.decoding import RESAMPLING, in_channels, resize_and_crop, to_image, to_tensor
from vitsearch.data.order import Order, Unreadable
from vitsearch.data.rand_augment import timm_operations, timm_policy
from vitsearch.data.resident import Finisher, send
from vitsearch.data.stored import normalisation
from vitsearch.errors import CorruptImage

Key = tuple[int, int, int]
"""Step, place in the whole batch, index of the image."""


class Sample(NamedTuple):
    pixels: Tensor | None
    label: int
    failed: list[tuple[int, str]]


class Samples(NamedTuple):
    """`pixels` uint8 [b, C, side, side] of those that could be read."""

    pixels: Tensor | None
    labels: Tensor
    failed: list[tuple[int, str]]


def collate(samples: list[Sample]) -> Samples:
    read = [sample for sample in samples if sample.pixels is not None]
    pixels = torch.stack([sample.pixels for sample in read if sample.pixels is not None]) if read else None
    failed = [failure for sample in samples for failure in sample.failed]
    return Samples(pixels, torch.tensor([sample.label for sample in read], dtype=torch.int64), failed)


def posterize(image: Image.Image, bits: int, **_: Any) -> Image.Image:
    """timm's magnitudes reach 0 bits, which is black; newer Pillows refuse it."""
    return ImageOps.posterize(image, bits) if bits else Image.new(image.mode, image.size)


def timm_transform(
    dataset: Dataset, augmentation: Augmentation, side: int, channels: int
) -> Callable[[Image.Image], Image.Image]:
    """The pieces timm makes a training transform of, up to the tensor."""
    from timm.data.transforms import RandomResizedCropAndInterpolation
    from torchvision import transforms

    pieces: list[Any] = []
    if augmentation.crop == "resized":
        options = {"scale": augmentation.scale, "ratio": augmentation.ratio}
        pieces.append(RandomResizedCropAndInterpolation(side, interpolation=augmentation.interpolation, **options))
    elif augmentation.crop == "padded":
        pieces.append(transforms.RandomCrop(side, padding=max(1, side // 8)))
    if augmentation.flip:
        pieces.append(transforms.RandomHorizontalFlip(augmentation.flip))
    if augmentation.rand_augment is not None:
        mean, _ = normalisation(dataset, channels)
        fill = tuple(min(255, round(255 * value)) for value in mean)
        settings = {
            "translate_const": int(side * 0.45),
            "img_mean": fill if channels == 3 else fill[0],
            "interpolation": RESAMPLING[augmentation.interpolation],
        }
        policy = timm_policy(augmentation.rand_augment, settings)
        for operation in timm_operations(policy):
            if operation.name.startswith("Posterize"):
                operation.aug_fn = posterize
        pieces.append(policy)
    if augmentation.color_jitter:
        pieces.append(transforms.ColorJitter(*[augmentation.color_jitter] * 3))
    composed: Callable[[Image.Image], Image.Image] = transforms.Compose(pieces)
    return composed


class TrainingSamples(MapDataset[Sample]):
    """An image that cannot be read is replaced by the next one that can, as in a resident part."""

    def __init__(
        self, images: Images, dataset: Dataset, geometry: Geometry, augmentation: Augmentation, seed: int, limit: int
    ) -> None:
        self.images, self.seed, self.limit = images, seed, limit
        self.side, self.augmentation = geometry.image_size, augmentation
        self.channels = geometry.channels if geometry.channels == 1 else dataset.channels
        self.transform = timm_transform(dataset, augmentation, self.side, self.channels)

    def __getitem__(self, key: Key) -> Sample:
        step, place, index = key
        failed: list[tuple[int, str]] = []
        while len(failed) <= self.limit:
            try:
                pixels = in_channels(self.images.read(index), self.channels)
            except CorruptImage as error:
                failed.append((index, str(error)))
                index = (index + 1) % len(self.images)
                continue
            with seeded_everything(self.seed, "image", step, place):
                return Sample(self._augmented(pixels), int(self.images.labels[index]), failed)
        return Sample(None, 0, failed)  # the process that counts them stops here

    def _augmented(self, pixels: Tensor) -> Tensor:
        if self.augmentation.crop != "resized":
            pixels = resize_and_crop(pixels, self.side, self.side, self.augmentation.interpolation)
        return to_tensor(self.transform(to_image(pixels)))


class StepKeys:
    """Batches of keys for this process, from a step on, without end."""

    def __init__(self, order: Order, start: int) -> None:
        self.order, self.start = order, start

    def __iter__(self) -> Iterator[list[Key]]:
        places = range(self.order.batch_size)[self.order.own]
        for step in count_from(self.start):
            indices = self.order.batch(step).tolist()
            yield [(step, place, indices[place]) for place in places]


def worker_loader(samples: MapDataset[Sample], keys: Any, device: torch.device, workers: int) -> DataLoader[Sample]:
    return DataLoader(
        samples,
        batch_sampler=keys,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=device.type == "cuda",
        prefetch_factor=4 if workers else None,
        generator=generator_for(0, "workers"),  # without one, every pass would take a number from the global generator
    )


class StreamingLoader:
    def __init__(
        self,
        images: Images,
        dataset: Dataset,
        geometry: Geometry,
        augmentation: Augmentation,
        order: Order,
        device: torch.device,
        workers: int,
    ) -> None:
        self.order, self.device, self.workers = order, device, workers
        self.steps_per_epoch = order.steps_per_epoch
        self.unreadable = Unreadable(len(images))
        self.samples = TrainingSamples(images, dataset, geometry, augmentation, order.seed, self.unreadable.limit)
        self.finish = Finisher(dataset, geometry, augmentation, order, device)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        loader = worker_loader(self.samples, StepKeys(self.order, start), self.device, self.workers)
        for step, found in zip(count_from(start), loader, strict=False):
            for index, reason in found.failed:
                self.unreadable.add(index, reason)
            if (step + 1) % self.steps_per_epoch == 0:
                self.unreadable.report()
            assert found.pixels is not None
            pixels = found.pixels.to(self.device, non_blocking=True)
            labels, *boxes = send([found.labels, *self.finish.boxes(step)], self.device)
            with torch.no_grad():
                images = self.finish(pixels, boxes)
            yield Batch(images, labels)  # outside: whoever takes it wants gradients


class EvaluationSamples(MapDataset[Sample]):
    """Images by index, prepared; one that cannot be read has no pixels."""

    def __init__(self, images: Images, prepare: Callable[[Tensor], Tensor]) -> None:
        self.images, self.prepare = images, prepare

    def __getitem__(self, index: int) -> Sample:
        try:
            return Sample(self.prepare(self.images.read(index)), int(self.images.labels[index]), [])
        except CorruptImage as error:
            return Sample(None, 0, [(index, str(error))])
