"""No data: standard normal images and uniform random labels."""

from __future__ import annotations

import torch

from vitsearch.cost import Geometry
from vitsearch.data.base import DATASETS, Batch, generator_for


@DATASETS.register("noise")
class Noise:
    classes: int | None = None

    def draw(self, count: int, geometry: Geometry, seed: int) -> Batch:
        generator = generator_for(seed, "noise")
        side = geometry.image_size
        images = torch.randn(count, geometry.channels, side, side, generator=generator)
        return Batch(images, torch.randint(geometry.classes, (count,), generator=generator))
