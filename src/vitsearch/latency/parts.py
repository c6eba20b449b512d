"""The parts a network's time is the sum of: its blocks, each where it stands, and the frame, which is all the rest.

Features are what the time of a part grows with. A part that was not measured gets its time from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from vitsearch.architecture import (
    Absent,
    Architecture,
    Attention,
    Block,
    Bottleneck,
    ClassAttention,
    Entry,
    InvertedResidual,
    Patch,
    Stage,
    WindowAttention,
)
from vitsearch.cost import Geometry, block_cost, fixed_cost

Frame: TypeAlias = tuple[int | None, tuple[tuple[Entry, int], ...]]  # resolution; entry and width of each stage


class Place(NamedTuple):
    """A block where it stands: in a stage of this width, on a map of this side, with so many tokens besides."""

    block: Block
    width: int
    side: int
    extra_tokens: int


def places_of(architecture: Architecture, image_size: int) -> list[Place]:
    extra, sides = int(architecture.class_token), architecture.sides(image_size)
    return [
        Place(block, stage.width, side, extra)
        for stage, side in zip(architecture.stages, sides, strict=True)
        for block in stage.blocks
        if not isinstance(block, Absent)
    ]


def frame_of(architecture: Architecture) -> Frame:
    return architecture.resolution, tuple([(stage.entry, stage.width) for stage in architecture.stages])


def without_blocks(architecture: Architecture) -> Architecture:
    """Entries, tokens, position, norm and classifier alone."""
    return replace(architecture, stages=tuple(replace(stage, blocks=()) for stage in architecture.stages))


def chain(like: Architecture, place: Place, length: int) -> Architecture:
    """A network of one stage that is `length` times this block; its image is the block's map, one pixel a token."""
    stage = Stage(entry=Patch(size=1, stride=1), width=place.width, blocks=(place.block,) * length)
    return replace(like, stages=(stage,), resolution=None)


def attention_features(place: Place) -> list[float]:
    block = place.block
    assert isinstance(block, Attention)
    tokens = place.side**2 + place.extra_tokens
    products = (4 if block.relative_distance else 2) * tokens * tokens * block.heads * block.head_dim
    return _features(place, block, tokens, products, block.heads * tokens * tokens)


def class_attention_features(place: Place) -> list[float]:
    block = place.block
    assert isinstance(block, ClassAttention)
    tokens, inner = place.side**2 + 1, block.heads * block.head_dim
    cost, products = block_cost(block, place.width, place.side, place.extra_tokens), 2 * tokens * inner
    moved = tokens * (2 * place.width + 2 * inner) + 4 * place.width + 2 * block.hidden
    return [float(number) for number in (cost.macs - products, products, moved, block.heads * tokens, cost.params, 1)]


def window_features(place: Place) -> list[float]:
    block = place.block
    assert isinstance(block, WindowAttention)
    window, _, padded = block.on(place.side)
    pairs = padded * padded * window * window
    return _features(place, block, padded * padded, 2 * pairs * block.heads * block.head_dim, block.heads * pairs)


def inverted_features(place: Place) -> list[float]:
    """MACs of the two convolutions of single places, of the one of single channels, elements moved, weights."""
    block = place.block
    assert isinstance(block, InvertedResidual)
    cost, tokens = block_cost(block, place.width, place.side, place.extra_tokens), place.side**2
    hidden = place.width * block.expansion
    apart = tokens * hidden * block.kernel**2
    moved = tokens * (3 * place.width + (4 if block.expansion > 1 else 2) * hidden)
    return [float(number) for number in (cost.macs - apart, apart, moved, cost.params, 1)]


def _features(place: Place, block: Attention | WindowAttention, tokens: int, products: int, scores: int) -> list[float]:
    """MACs with weights, MACs of attention, elements moved by all else, softmax's elements, weights, a constant."""
    cost, inner = block_cost(block, place.width, place.side, place.extra_tokens), block.heads * block.head_dim
    moved = tokens * (6 * place.width + 4 * inner + 2 * block.hidden)
    return [float(number) for number in (cost.macs - products, products, moved, scores, cost.params, 1)]


FEATURES: dict[type[Any], Callable[[Place], list[float]]] = {
    Attention: attention_features,
    ClassAttention: class_attention_features,
    WindowAttention: window_features,
    InvertedResidual: inverted_features,
}


def block_features(place: Place) -> list[float]:
    return FEATURES[type(place.block)](place)


def frame_features(architecture: Architecture, geometry: Geometry) -> list[float]:
    """MACs of entries and classifier, elements of the maps, a constant; of a network with or without blocks.

    Where stages begin with blocks, these are most of the work: then MACs of single channels apart, and the weights.
    """
    sides, extra = architecture.sides(geometry.image_size), int(architecture.class_token)
    params, macs = fixed_cost(architecture, geometry, sides, extra)
    moved = sum(stage.width * (side * side + extra) for stage, side in zip(architecture.stages, sides, strict=True))
    if architecture.final_norm:
        return [float(macs), float(moved), 1.0]
    apart = 0
    for number, (before, stage) in enumerate(pairwise(architecture.stages)):
        if isinstance(stage.entry, Bottleneck):
            hidden = before.width * stage.entry.expansion
            moved += hidden * (sides[number] ** 2 + sides[number + 1] ** 2)
            apart += hidden * (stage.entry.kernel * sides[number + 1]) ** 2
    return [float(macs - apart), float(apart), float(moved), float(params), 1.0]


def spread(found: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of a sorted list, evenly over it, its ends among them."""
    if len(found) <= count:
        return list(found)
    step = (len(found) - 1) / (count - 1)
    return [found[round(number * step)] for number in range(count)]
