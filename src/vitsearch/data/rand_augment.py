"""RandAugment, AutoAugment and colour jitter as timm writes them: which image is changed in which way, on the CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitsearch.architecture import brief
from vitsearch.errors import BadSettings

LEVELS = 10.0  # timm's magnitudes run from 0 to 10
ARITHMETIC = ("AutoContrast", "Invert", "Posterize", "Solarize", "SolarizeAdd", "Contrast", "Brightness", "Color")
MOVES = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
OPERATIONS = (*ARITHMETIC, "Equalize", "Sharpness", *MOVES)


class Meaning(NamedTuple):
    """The argument for a level is offset + sign min(scale level / 10, most), and not below `least`."""

    scale: float = 0.0
    offset: float = 0.0
    sign: float = 1.0  # 0: either, at random
    whole: bool = False  # what is scaled is cut to a whole number
    most: float = math.inf
    least: float = -math.inf


EITHER = Meaning(scale=0.9, offset=1.0, sign=0.0, least=0.1)
FACTOR = Meaning(scale=1.8, offset=0.1)
MEANINGS = {
    "AutoContrast": Meaning(),
    "Equalize": Meaning(),
    "Invert": Meaning(),
    "Rotate": Meaning(scale=30, sign=0),
    "Posterize": Meaning(scale=4, whole=True),
    "PosterizeIncreasing": Meaning(scale=4, whole=True, offset=4, sign=-1),
    "PosterizeOriginal": Meaning(scale=4, whole=True, offset=4),
    "Solarize": Meaning(scale=256, whole=True, most=256),
    "SolarizeIncreasing": Meaning(scale=256, whole=True, most=256, offset=256, sign=-1),
    "SolarizeAdd": Meaning(scale=110, whole=True, most=128),
    "Color": FACTOR,
    "ColorIncreasing": EITHER,
    "Contrast": FACTOR,
    "ContrastIncreasing": EITHER,
    "Brightness": FACTOR,
    "BrightnessIncreasing": EITHER,
    "Sharpness": FACTOR,
    "SharpnessIncreasing": EITHER,
    "ShearX": Meaning(scale=0.3, sign=0),
    "ShearY": Meaning(scale=0.3, sign=0),
    "TranslateXRel": Meaning(scale=0.45, sign=0),
    "TranslateYRel": Meaning(scale=0.45, sign=0),
}


class Layer(NamedTuple):
    """For each image the number of an operation, -1 for none, and its argument; int64 and float64 [B]."""

    operation: Tensor
    argument: Tensor


class Entry(NamedTuple):
    name: str
    probability: float
    magnitude: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What timm's text says: for each layer the operations, by timm's names, that one is chosen of."""

    layers: tuple[tuple[Entry, ...], ...]
    together: bool
    """One choice holds for all layers, as in AutoAugment."""
    weights: tuple[float, ...] | None
    """Of the choices, where they are not equal; then no layer repeats one before it."""
    deviation: float
    highest: float

    @staticmethod
    @lru_cache(maxsize=16)
    def parse(text: str) -> Policy:
        wrong = (
            "`rand_augment` must be timm's text such as rand-m9-mstd0.5-inc1 (RandAugment) or v0r-mstd0.5"
            f" (AutoAugment), but got {brief(text)}"
        )
        try:
            parsed = timm_policy(text, {"translate_const": 100, "img_mean": (128, 128, 128)})
        except (AssertionError, AttributeError, ValueError, TypeError, IndexError):
            raise BadSettings(wrong) from None
        operations = timm_operations(parsed)
        if unknown := [each.name for each in operations if each.name not in MEANINGS]:
            raise BadSettings(f"`rand_augment` must be without {unknown[0]}, but got {brief(text)}")
        together = hasattr(parsed, "policy")
        weights = None if together else parsed.choice_weights
        rows = zip(*parsed.policy, strict=True) if together else [parsed.ops] * parsed.num_layers
        layers = tuple(tuple(Entry(each.name, float(each.prob), float(each.magnitude)) for each in row) for row in rows)
        if not layers or (weights is not None and len(layers) > len(weights)):
            raise BadSettings(wrong)
        return Policy(
            layers=layers,
            together=together,
            weights=None if weights is None else tuple(float(weight) for weight in weights),
            deviation=float(operations[0].magnitude_std),
            highest=float(operations[0].magnitude_max or LEVELS),
        )


def timm_policy(text: str, settings: dict[str, Any]) -> Any:
    """timm's own transform for a text, as its `create_transform` chooses it."""
    from timm.data.auto_augment import auto_augment_transform, rand_augment_transform

    return (rand_augment_transform if text.startswith("rand") else auto_augment_transform)(text, settings)


def timm_operations(policy: Any) -> list[Any]:
    return [each for row in policy.policy for each in row] if hasattr(policy, "policy") else list(policy.ops)


def base_name(name: str) -> str:
    return name.removesuffix("Increasing").removesuffix("Original").removesuffix("Rel")


@lru_cache(maxsize=16)
def table_of(policy: Policy) -> Tensor:
    """float64 [9, layers x choices]: number, probability and magnitude of an operation, and what its levels mean."""
    entries = [entry for layer in policy.layers for entry in layer]
    rows = [(OPERATIONS.index(base_name(name)), *numbers, *MEANINGS[name]) for name, *numbers in entries]
    return torch.tensor(rows, dtype=torch.float64).T.contiguous()


def arguments_of(meaning: Tensor, level: Tensor, negative: Tensor) -> Tensor:
    """`meaning` [6, ...] as float64, in the order of its fields."""
    scale, offset, sign, whole, most, least = meaning
    scaled = level / LEVELS * scale
    scaled = torch.where(whole > 0, scaled.floor(), scaled).minimum(most)
    sign = torch.where(sign == 0, torch.where(negative, -1.0, 1.0).double(), sign)
    return torch.maximum(offset + sign * scaled, least)


def draw_layers(policy: Policy, count: int, random: torch.Generator) -> list[Layer]:
    shape, choices = (len(policy.layers), count), len(policy.layers[0])
    applied, negated, share = torch.rand((3, *shape), generator=random, dtype=torch.float64)
    if policy.weights is not None:  # without replacement, as timm: the largest of log weight + Gumbel noise
        noise = -torch.rand(count, choices, generator=random, dtype=torch.float64).log()
        keys = torch.tensor(policy.weights, dtype=torch.float64).log() - noise.log()
        chosen = keys.topk(shape[0], dim=1).indices.T
    else:
        chosen = torch.randint(choices, (1, count) if policy.together else shape, generator=random)
    places = chosen + choices * torch.arange(shape[0])[:, None]  # [layers, B]
    found = table_of(policy).index_select(1, places.flatten()).view(-1, *shape)
    number, probability, magnitude = found[:3]
    if math.isinf(policy.deviation):
        level = magnitude * share
    elif policy.deviation:
        level = magnitude + policy.deviation * torch.randn(shape, generator=random, dtype=torch.float64)
    else:
        level = magnitude
    argument = arguments_of(found[3:], level.clamp(0, policy.highest), negated < 0.5)
    operation = torch.where(applied < probability, number, -1.0).long()
    return [Layer(*layer) for layer in zip(operation, argument, strict=True)]


def draw_jitter(strength: float, count: int, random: torch.Generator) -> list[Layer]:
    """Brightness, contrast and saturation, each by 1 - strength to 1 + strength, in an order of its own per image."""
    operations = torch.tensor([OPERATIONS.index(name) for name in ("Brightness", "Contrast", "Color")])
    order = torch.rand(count, 3, generator=random, dtype=torch.float64).argsort(dim=1)
    factors = 1 + strength * (2 * torch.rand(count, 3, generator=random, dtype=torch.float64) - 1)
    return [Layer(operations[order[:, turn]], factors[:, turn]) for turn in range(3)]
