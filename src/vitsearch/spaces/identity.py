"""ViTAS's identity probability: how often a slot must be empty so that networks cost, on average, what a budget says.

Patch size, width and ratios are drawn uniformly and each slot is empty with probability p, so that the mean cost is
linear in p: that of a network without blocks, plus (1 - p) x slots x the mean cost of a block (section 4.3).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from vitsearch.cost import IMAGENET, Geometry, Limits
from vitsearch.errors import VitsearchError
from vitsearch.spaces.base import Space
from vitsearch.spaces.channelwise import Channelwise


class MeanCost(NamedTuple):
    """Exact means over the draws of a space."""

    params: Fraction
    macs: Fraction


class Reach(NamedTuple):
    """Mean costs of networks without blocks, and with a block in every slot."""

    least: MeanCost
    most: MeanCost

    def at(self, probability: float) -> MeanCost:
        share = 1 - Fraction(probability)
        return MeanCost(*(low + share * (high - low) for low, high in zip(self.least, self.most, strict=True)))


def check_identity(space: Space, what: str) -> Channelwise:
    """A space with slots that may be empty."""
    if not isinstance(space, Channelwise) or not space.identity:
        raise VitsearchError(f"{what} must be of a space whose slots may be empty, such as vitas, but got {space.name}")
    return space


def reach(space: Space, geometry: Geometry = IMAGENET) -> Reach:
    slotted = check_identity(space, "an identity probability")
    frames, mean_step = slotted.frames(geometry), Fraction(slotted.steps + 1, 2)
    least = [Fraction(sum(frame.fixed[kind] for frame in frames), len(frames)) for kind in (0, 1)]
    blocks = [
        sum((f.block[kind] + mean_step * (f.attention_step[kind] + f.mlp_step[kind]) for f in frames), Fraction(0))
        / len(frames)
        for kind in (0, 1)
    ]
    most = [low + slotted.slot_count * block for low, block in zip(least, blocks, strict=True)]
    return Reach(MeanCost(*least), MeanCost(*most))


def identity_probability(space: Space, limits: Limits, geometry: Geometry = IMAGENET) -> Fraction:
    """The probability at which the mean cost is the one upper bound of these limits, exactly."""
    bounds = {name: bound for name, bound in limits.bounds().items() if name.startswith("max")}
    if len(bounds) != 1 or len(bounds) != len(limits.bounds()):
        raise VitsearchError(f"a budget for the mean must be either `max_params` or `max_macs`, but got {limits}")
    ((name, bound),) = bounds.items()
    found, kind = reach(space, geometry), name.removeprefix("max_")
    low, high = (getattr(mean, kind) for mean in found)
    if not low <= bound <= high:
        rule = f"`{name}` must be from {math.ceil(low):,} to {math.floor(high):,}"
        why = f"what {space.name} has on average with all slots empty and with none"
        raise VitsearchError(f"{rule}, {why}, but got {bound:,}")
    return Fraction(high - bound, high - low)
