"""Handwritten digits, 8x8 grey, 1,797 images in 10 classes: real data that comes with scikit-learn."""

from __future__ import annotations

from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch.cost import Geometry
from vitsearch.data.base import DATASETS, Batch, Split, generator_for
from vitsearch.data.stored import check_count, check_geometry
from vitsearch.errors import VitsearchError

SPLIT_SEED = 0  # which images are for training never changes
TRAIN_PART = 0.7


@lru_cache(maxsize=1)
def everything() -> tuple[Tensor, Tensor, dict[Split, Tensor]]:
    """Images in [0, 1] as [N, 8, 8], labels, and the indices of each part: 70 %, 15 % and 15 %."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images).float() / 16
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    train = int(TRAIN_PART * len(labels))
    middle = train + (len(labels) - train) // 2
    parts: dict[Split, Tensor] = {"train": order[:train], "validation": order[train:middle], "test": order[middle:]}
    return images, labels, {split: chosen.sort().values for split, chosen in parts.items()}


def training_part() -> tuple[Tensor, Tensor]:
    """Images in [0, 1] as [N, 8, 8] and labels; the other 30 % stay shut here."""
    images, labels, parts = everything()
    return images[parts["train"]], labels[parts["train"]]


class DigitImages:
    def __init__(self, split: Split) -> None:
        images, labels, parts = everything()
        if split not in parts:
            raise VitsearchError(f"`split` must be one of {', '.join(parts)}, but got {split!r}")
        self.pixels = (images[parts[split]] * 255).round().to(torch.uint8)[:, None]
        self.labels = labels[parts[split]]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> Tensor:
        return self.pixels[index]


@DATASETS.register("digits")
class Digits:
    name = "digits"
    classes = 10
    channels = 1
    class_names = tuple("0123456789")

    @cached_property
    def mean(self) -> tuple[float, ...]:
        return (round(float(training_part()[0].mean()), 4),)

    @cached_property
    def std(self) -> tuple[float, ...]:
        return (round(float(training_part()[0].std()), 4),)

    def part(self, split: Split) -> DigitImages:
        return DigitImages(split)

    def draw(self, count: int, geometry: Geometry, seed: int) -> Batch:
        check_geometry("digits", 10, 1, geometry)
        images, labels = training_part()
        check_count("digits", count, len(labels))
        chosen = torch.randperm(len(labels), generator=generator_for(seed, "digits"))[:count]
        normal = (images[chosen] - images.mean()) / images.std()
        side = (geometry.image_size, geometry.image_size)
        grey = F.interpolate(normal[:, None], size=side, mode="bilinear", align_corners=False)
        return Batch(grey.repeat(1, geometry.channels, 1, 1), labels[chosen])
