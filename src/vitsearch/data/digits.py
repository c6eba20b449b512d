"""Handwritten digits, 8x8 grey, 1,797 images in 10 classes: real data that comes with scikit-learn."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch.cost import Geometry
from vitsearch.data.base import DATASETS, Batch, generator_for
from vitsearch.errors import VitsearchError

SPLIT_SEED = 0  # which images are for training never changes
TRAIN_PART = 0.7


@lru_cache(maxsize=1)
def training_part() -> tuple[Tensor, Tensor]:
    """Images in [0, 1] as [N, 8, 8] and labels; the other 30 % are for validation and test and stay shut here."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images).float() / 16
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    chosen = order[: int(TRAIN_PART * len(labels))].sort().values
    return images[chosen], labels[chosen]


@DATASETS.register("digits")
class Digits:
    classes: int | None = 10

    def draw(self, count: int, geometry: Geometry, seed: int) -> Batch:
        if geometry.classes < 10:
            raise VitsearchError(f"`classes` must be at least 10 for digits, but got {geometry.classes}")
        images, labels = training_part()
        if not 1 <= count <= len(labels):
            raise VitsearchError(f"`batch_size` must be from 1 to {len(labels)} for digits, but got {count}")
        chosen = torch.randperm(len(labels), generator=generator_for(seed, "digits"))[:count]
        normal = (images[chosen] - images.mean()) / images.std()
        side = (geometry.image_size, geometry.image_size)
        grey = F.interpolate(normal[:, None], size=side, mode="bilinear", align_corners=False)
        return Batch(grey.repeat(1, geometry.channels, 1, 1), labels[chosen])
