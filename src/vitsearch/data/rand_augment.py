"""RandAugment and colour jitter on whole batches of bytes, as timm and Pillow do them on single images.

What is applied to which image is decided on the CPU. On the device every operation then sees just its own images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from vitsearch.architecture import brief
from vitsearch.errors import BadSettings

LEVELS = 10.0  # timm's magnitudes run from 0 to 10
TABLES = ("AutoContrast", "Equalize", "Invert", "Posterize", "Solarize", "SolarizeAdd", "Contrast", "Brightness")
BLENDS = ("Color", "Sharpness")
MOVES = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
OPERATIONS = TABLES + BLENDS + MOVES


class Layer(NamedTuple):
    """For each image the number of an operation, -1 for none, and its argument; int64 and float64 [B]."""

    operation: Tensor
    argument: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What timm's text says: operations by timm's names, with weights if they are not equal."""

    names: tuple[str, ...]
    weights: tuple[float, ...] | None
    layers: int
    probability: float
    magnitude: float
    deviation: float
    highest: float

    @staticmethod
    @lru_cache(maxsize=16)
    def parse(text: str) -> Policy:
        from timm.data.auto_augment import rand_augment_transform

        wrong = f"`rand_augment` must be timm's text such as rand-m9-mstd0.5-inc1, but got {brief(text)}"
        try:
            parsed = rand_augment_transform(text, {"translate_const": 100, "img_mean": (128, 128, 128)})
        except (AssertionError, AttributeError, ValueError, TypeError, IndexError):
            raise BadSettings(wrong) from None
        first = parsed.ops[0]
        names = tuple(operation.name for operation in parsed.ops)
        if unknown := [name for name in names if base_name(name) not in OPERATIONS]:
            raise BadSettings(f"`rand_augment` must be without {unknown[0]}, but got {brief(text)}")
        weights = parsed.choice_weights
        if parsed.num_layers < 1 or (weights is not None and parsed.num_layers > len(names)):
            raise BadSettings(wrong)
        return Policy(
            names=names,
            weights=None if weights is None else tuple(float(weight) for weight in weights),
            layers=parsed.num_layers,
            probability=float(first.prob),
            magnitude=float(first.magnitude),
            deviation=float(first.magnitude_std),
            highest=float(first.magnitude_max or LEVELS),
        )


def base_name(name: str) -> str:
    return name.removesuffix("Increasing").removesuffix("Rel")


def argument_of(name: str, level: Tensor, sign: Tensor) -> Tensor:
    """timm's argument for a magnitude `level`; `sign` is 1 or -1."""
    share = level / LEVELS
    match name:
        case "Rotate":
            return sign * share * 30
        case "ShearX" | "ShearY":
            return sign * share * 0.3
        case "TranslateXRel" | "TranslateYRel":
            return sign * share * 0.45
        case "Posterize":
            return (share * 4).floor()
        case "PosterizeIncreasing":
            return 4 - (share * 4).floor()
        case "Solarize":
            return (share * 256).floor().clamp(max=256)
        case "SolarizeIncreasing":
            return 256 - (share * 256).floor().clamp(max=256)
        case "SolarizeAdd":
            return (share * 110).floor().clamp(max=128)
        case "Color" | "Contrast" | "Brightness" | "Sharpness":
            return share * 1.8 + 0.1
        case "ColorIncreasing" | "ContrastIncreasing" | "BrightnessIncreasing" | "SharpnessIncreasing":
            return (1 + sign * share * 0.9).clamp(min=0.1)
        case _:  # AutoContrast, Equalize, Invert take none
            return torch.zeros_like(share)


def draw_layers(policy: Policy, count: int, random: torch.Generator) -> list[Layer]:
    shape = (policy.layers, count)
    applied = torch.rand(shape, generator=random, dtype=torch.float64) < policy.probability
    normal = torch.randn(shape, generator=random, dtype=torch.float64)
    share, sign = torch.rand((2, *shape), generator=random, dtype=torch.float64)
    level = policy.magnitude * share if math.isinf(policy.deviation) else policy.magnitude + policy.deviation * normal
    level = level.clamp(0, policy.highest)
    sign = torch.where(sign > 0.5, -1.0, 1.0).double()
    if policy.weights is None:
        chosen = torch.randint(len(policy.names), shape, generator=random)
    else:  # without replacement, as timm: the largest of log weight + Gumbel noise
        noise = -torch.rand(count, len(policy.names), generator=random, dtype=torch.float64).log()
        keys = torch.tensor(policy.weights, dtype=torch.float64).log() - noise.log()
        chosen = keys.topk(policy.layers, dim=1).indices.T
    arguments = torch.stack([argument_of(name, level, sign) for name in policy.names])  # [names, layers, B]
    argument = arguments.gather(0, chosen[None])[0]
    numbers = torch.tensor([OPERATIONS.index(base_name(name)) for name in policy.names])
    operation = torch.where(applied, numbers[chosen], -1)
    return [Layer(operation[layer], argument[layer]) for layer in range(policy.layers)]


def draw_jitter(strength: float, count: int, random: torch.Generator) -> list[Layer]:
    """Brightness, contrast and saturation, each by 1 - strength to 1 + strength, in an order of its own per image."""
    operations = torch.tensor([OPERATIONS.index(name) for name in ("Brightness", "Contrast", "Color")])
    order = torch.rand(count, 3, generator=random, dtype=torch.float64).argsort(dim=1)
    factors = 1 + strength * (2 * torch.rand(count, 3, generator=random, dtype=torch.float64) - 1)
    return [Layer(operations[order[:, turn]], factors[:, turn]) for turn in range(3)]


def luma(images: Tensor) -> Tensor:
    """Pillow's grey in int32 [B, 1, H, W]."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = images.int().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16)[:, None]


def blend(degenerate: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Pillow's: from `degenerate` at 0 through the image at 1 and beyond, cut to bytes."""
    below = degenerate.float()
    return (below + factor.view(-1, 1, 1, 1) * (images.float() - below)).clamp_(0, 255).to(torch.uint8)


def color(images: Tensor, factor: Tensor) -> Tensor:
    return blend(luma(images), images, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Towards the image smoothed by (1 1 1; 1 5 1; 1 1 1) / 13; its border stays."""
    if min(images.shape[-2:]) < 3:
        return images
    values = images.float()
    smooth = values.clone()
    total = sum(
        values[..., y : values.shape[-2] - 2 + y, x : values.shape[-1] - 2 + x] for y in range(3) for x in range(3)
    )
    smooth[..., 1:-1, 1:-1] = ((total + 4 * values[..., 1:-1, 1:-1]) / 13 + 0.5).floor()
    return blend(smooth, images, factor)


def table_of(name: str, images: Tensor, argument: Tensor) -> Tensor:
    """What each byte becomes: uint8 [B, C, 256]."""
    count, channels = images.shape[:2]
    byte = torch.arange(256, device=images.device, dtype=torch.float32).view(1, 1, 256)
    value = argument.view(-1, 1, 1)
    match name:
        case "Invert":
            table = 255 - byte
        case "Posterize":  # the lower 8 - bits are cleared
            size = torch.exp2(8 - value.clamp(max=8))
            table = (byte / size).floor() * size
        case "Solarize":
            table = torch.where(byte < value, byte, 255 - byte)
        case "SolarizeAdd":
            table = torch.where(byte < 128, (byte + value).clamp(max=255), byte)
        case "Brightness":
            table = (byte * value).clamp(0, 255)
        case "Contrast":
            mean = (luma(images).float().mean(dim=(1, 2, 3)) + 0.5).floor().view(-1, 1, 1)
            table = (mean + value * (byte - mean)).clamp(0, 255)
        case "AutoContrast":
            flat = images.flatten(2)
            low, high = flat.amin(2, keepdim=True).float(), flat.amax(2, keepdim=True).float()
            stretched = ((byte - low) * 255 / (high - low).clamp(min=1)).clamp(0, 255)
            table = torch.where(high > low, stretched, byte)
        case _:
            table = equalised(images)
    return table.to(torch.uint8).expand(count, channels, 256)


def equalised(images: Tensor) -> Tensor:
    """Pillow's equalize: the running count of darker pixels in steps of 1/255 of all but the brightest."""
    indices = images.flatten(2).long()
    zeros = torch.zeros(*images.shape[:2], 256, dtype=torch.int64, device=images.device)
    counts = zeros.scatter_add(2, indices, torch.ones_like(indices))
    brightest = counts.gather(2, indices.amax(2, keepdim=True))
    step = (indices.shape[2] - brightest) // 255
    darker = counts.cumsum(2) - counts
    table = ((step // 2 + darker) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table, torch.arange(256, device=images.device))


def matrices(name: str, argument: Tensor, height: int, width: int) -> Tensor:
    """float64 [b, 6]: (x, y) of the result to a x + b y + c, d x + e y + f of the source, as Pillow's AFFINE."""
    zero, one = torch.zeros_like(argument), torch.ones_like(argument)
    if name == "Rotate":
        cosine, sine = torch.cos(-argument.deg2rad()), torch.sin(-argument.deg2rad())
        x, y = width / 2, height / 2
        rows = [cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y]
    elif name == "ShearX":
        rows = [one, argument, zero, zero, one, zero]
    elif name == "ShearY":
        rows = [one, zero, zero, argument, one, zero]
    elif name == "TranslateX":
        rows = [one, zero, argument * width, zero, one, zero]
    else:
        rows = [one, zero, zero, zero, one, argument * height]
    return torch.stack(rows, dim=1)


def move(images: Tensor, matrix: Tensor, fill: Tensor, interpolation: str) -> Tensor:
    """Resample by `matrix` float32 [b, 6]; what comes from outside is `fill` [C]."""
    height, width = images.shape[-2:]
    x = torch.arange(width, device=images.device) + 0.5
    y = (torch.arange(height, device=images.device) + 0.5)[:, None]
    a, b, c, d, e, f = (column[:, None, None] for column in matrix.unbind(1))
    across, down = a * x + b * y + c, d * x + e * y + f  # [b, height, width]
    inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
    grid = torch.stack([across * (2 / width) - 1, down * (2 / height) - 1], dim=3)
    found = torch.nn.functional.grid_sample(
        images.float(), grid, mode=interpolation, padding_mode="border", align_corners=False
    )
    # a hair more than nothing, so that whole numbers that came out a little short are not cut to the next below
    return torch.where(inside[:, None], found + 1e-3, fill.view(1, -1, 1, 1)).clamp_(0, 255).to(torch.uint8)


Group = tuple[str, Tensor, Tensor]
"""An operation, the rows it is for, and its arguments [b] (matrices [b, 6] for "move"), on the device."""


def apply_groups(images: Tensor, groups: list[Group], fill: Tensor, interpolation: str) -> None:
    """One layer on uint8 [B, C, H, W], in place. No image is in two groups."""
    tables: list[tuple[Tensor, Tensor]] = []
    others: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "Color": color,
        "Sharpness": sharpness,
        "move": lambda chosen, matrix: move(chosen, matrix, fill, interpolation),
    }
    for name, rows, argument in groups:
        chosen = images.index_select(0, rows)
        if name in others:
            images.index_copy_(0, rows, others[name](chosen, argument))
        else:
            tables.append((rows, table_of(name, chosen, argument)))
    if tables:
        rows, table = torch.cat([rows for rows, _ in tables]), torch.cat([table for _, table in tables])
        chosen = images.index_select(0, rows)
        images.index_copy_(0, rows, table.gather(2, chosen.flatten(2).long()).view_as(chosen))
