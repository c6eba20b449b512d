"""Augmentation: what is asked for, what is decided for each image of a step, and the last stage on the device.

Every decision of a step is drawn on the CPU for the whole batch over all processes, from the seed and the step; a
process then takes its rows. So the number of processes and the step a run starts at change nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from vitsearch.architecture import brief, check_whole
from vitsearch.data.base import generator_for
from vitsearch.data.rand_augment import Layer, Policy, draw_jitter, draw_layers
from vitsearch.errors import BadSettings

ATTEMPTS = 10  # at a crop or a box that fits, as in torchvision and timm
ERASED_AREA, ERASED_RATIO = (0.02, 1 / 3), (0.3, 1 / 0.3)
NOISE_MARGIN = 64  # offsets into the noise that fills erased boxes


@dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """In the order of timm: crop, flip, RandAugment, AutoAugment or colour jitter, normalisation, random erasing."""

    crop: Literal["resized", "padded", "none"] = "resized"
    """Random resized crop; zeros of 1/8 of the side around it and a crop of the old size; or the whole image."""
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    rand_augment: str | None = None
    """RandAugment or AutoAugment as timm writes it, such as rand-m9-mstd0.5-inc1 or v0r-mstd0.5."""
    color_jitter: float = 0.0
    erase: float = 0.0
    erase_count: int = 1
    """An erased image loses 1 to this many boxes; the more, the smaller each."""
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    repeats: int = 1
    """How often an epoch shows an image; its length stays, so it shows fewer of them."""

    def __post_init__(self) -> None:
        one_of("crop", self.crop, ("resized", "padded", "none"))
        one_of("interpolation", self.interpolation, ("bilinear", "bicubic"))
        object.__setattr__(self, "scale", check_range("scale", self.scale, 1.0))
        object.__setattr__(self, "ratio", check_range("ratio", self.ratio, 100.0))
        for name in ("flip", "erase", "color_jitter"):
            check_share(name, getattr(self, name))
        check_whole("repeats", self.repeats, most=1000)
        check_whole("erase_count", self.erase_count, most=64)
        if self.rand_augment is not None:
            Policy.parse(self.rand_augment)
            if self.color_jitter:
                raise BadSettings(
                    "`color_jitter` must be 0 beside `rand_augment` (timm leaves it out there),"
                    f" but got {self.color_jitter}"
                )


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadSettings(f"`{name}` must be one of {', '.join(known)}, but got {brief(value)}")


def check_share(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise BadSettings(f"`{name}` must be from 0 to 1, but got {brief(value)}")


def check_range(name: str, value: Any, most: float) -> tuple[float, float]:
    numbers = isinstance(value, (list, tuple)) and len(value) == 2 and all(type(x) in (int, float) for x in value)
    if not numbers or not 0 < value[0] <= value[1] <= most:
        raise BadSettings(f"`{name}` must be two numbers, 0 < low <= high <= {most:g}, but got {brief(value)}")
    return float(value[0]), float(value[1])


class Crops(NamedTuple):
    """In pixels of the stored images, int64 [B] each; `top` and `left` are negative where zeros come in."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flipped: Tensor


class Boxes(NamedTuple):
    """What is erased, int64 [B, boxes] each: a height of 0 is nothing. `down` and `across` are places in the noise."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    down: Tensor
    across: Tensor


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def whole(share: Tensor, count: Tensor | int) -> Tensor:
    """Uniform in 0, ..., count - 1, from `share` in [0, 1)."""
    return (share * count).floor().long()


def draw_crops(augmentation: Augmentation, stored: int, count: int, seed: int, step: int) -> Crops:
    random = generator_for(seed, f"crop/{step}")
    height = width = torch.full((count,), stored)
    top = left = torch.zeros(count, dtype=torch.int64)
    place = uniform(random, 2, count)
    if augmentation.crop == "resized":
        areas, ratios = stored**2, (math.log(augmentation.ratio[0]), math.log(augmentation.ratio[1]))
        height, width = draw_sides(random, count, augmentation.scale, ratios, areas, most=stored, otherwise=stored)
        top, left = whole(place[0], stored - height + 1), whole(place[1], stored - width + 1)
    elif augmentation.crop == "padded":
        margin = max(1, stored // 8)
        top, left = (whole(share, 2 * margin + 1) - margin for share in place)
    return Crops(top, left, height, width, uniform(random, count) < augmentation.flip)


def draw_sides(
    random: torch.Generator,
    count: int,
    shares: tuple[float, float],
    log_ratios: tuple[float, float],
    area: int | Tensor,
    most: int,
    otherwise: int,
) -> tuple[Tensor, Tensor]:
    """Height and width of the first attempt that fits; `otherwise` where none does."""
    drawn = uniform(random, 2, count, ATTEMPTS)
    height, width, found = first_fit(drawn[:, :, :1], shares, log_ratios, area, most)  # mostly there already
    left = (~found).nonzero()[:, 0]
    remaining = area[left] if isinstance(area, Tensor) else area
    height[left], width[left], found[left] = first_fit(drawn[:, left], shares, log_ratios, remaining, most)
    return height.where(found, torch.tensor(otherwise)), width.where(found, torch.tensor(otherwise))


def first_fit(
    drawn: Tensor, shares: tuple[float, float], log_ratios: tuple[float, float], area: int | Tensor, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Height and width for the first of `drawn` [2, b, attempts] that fits, and whether one does."""
    areas = (shares[0] + drawn[0] * (shares[1] - shares[0])) * area
    ratios = (log_ratios[0] + drawn[1] * (log_ratios[1] - log_ratios[0])).exp()
    widths, heights = (areas * ratios).sqrt().round().long(), (areas / ratios).sqrt().round().long()
    fits = (widths <= most) & (heights <= most)
    first = fits.byte().argmax(dim=1, keepdim=True)
    height, width = (sides.gather(1, first)[:, 0].clamp(min=1) for sides in (heights, widths))
    return height, width, fits.any(dim=1)


def draw_boxes(probability: float, side: int, count: int, seed: int, step: int, most: int = 1) -> Boxes:
    """1 to `most` boxes for an image; its boxes share the area that one box would have."""
    random = generator_for(seed, f"erase/{step}")
    number = 1 + whole(uniform(random, count, 1), most) if most > 1 else torch.ones(count, 1, dtype=torch.int64)
    areas = (side**2 / number.double()).expand(count, most).reshape(-1, 1)
    ratios = (math.log(1 / ERASED_RATIO[1]), math.log(1 / ERASED_RATIO[0]))
    sides = draw_sides(random, count * most, ERASED_AREA, ratios, areas, most=side - 1, otherwise=0)
    height, width = (each.view(count, most) for each in sides)
    place = uniform(random, 4, count, most)
    erased = (uniform(random, count, 1) < probability) & (width > 0) & (torch.arange(most) < number)
    height = height.where(erased, torch.tensor(0))
    down, across = (whole(share, NOISE_MARGIN + 1) for share in place[2:])
    return Boxes(whole(place[0], side - height + 1), whole(place[1], side - width + 1), height, width, down, across)


def draw_changes(augmentation: Augmentation, count: int, seed: int, step: int) -> list[Layer]:
    """Changes of colour and shape, one after the other."""
    random = generator_for(seed, f"colour/{step}")
    if augmentation.rand_augment is not None:
        return draw_layers(Policy.parse(augmentation.rand_augment), count, random)
    return draw_jitter(augmentation.color_jitter, count, random) if augmentation.color_jitter else []


def noise_for(seed: int, channels: int, side: int) -> Tensor:
    """Standard normal [channels, side + margin, side + margin]: every erased box shows a window of it.

    Drawing each box's own would mean many more numbers a step than the CPU can give.
    """
    size = side + NOISE_MARGIN
    return torch.randn(channels, size, size, generator=generator_for(seed, "noise of erased boxes"))


def finished(pixels: Tensor, factor: Tensor, shift: Tensor, boxes: Boxes, noise: Tensor) -> Tensor:
    """Levels [B, 1 or 3, side, side] to normalised float32 [B, channels, side, side] with the boxes filled by noise."""
    images = levels(pixels).float() * factor - shift
    side = torch.arange(noise.shape[-1] - NOISE_MARGIN, device=pixels.device)
    for box in zip(*(values.unbind(1) for values in boxes), strict=True):
        top, left, height, width, first_down, first_across = (values[:, None] for values in box)
        down, across = (side >= top) & (side < top + height), (side >= left) & (side < left + width)  # [B, side]
        window = noise[:, (side + first_down)[:, :, None], (side + first_across)[:, None, :]]
        inside = down[:, None, :, None] & across[:, None, None, :]
        images = torch.where(inside, window.transpose(0, 1), images)
    return images.contiguous()


def normalised(pixels: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    return (levels(pixels).float() * factor - shift).contiguous()


def levels(pixels: Tensor) -> Tensor:
    """Whole numbers from 0 to 255, in the type they came in."""
    return pixels if pixels.dtype == torch.uint8 else (pixels + 0.5).floor().clamp(0, 255)  # halves go up, as in Pillow


def as_bytes(pixels: Tensor) -> Tensor:
    return levels(pixels).to(torch.uint8).contiguous()
