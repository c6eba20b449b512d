"""Parameters and multiply-accumulates in closed form, equal to the built network to the last digit.

MACs are those of matrix products and convolutions in one forward pass of one image: what torch's counter sees,
halved. Norms, softmax, biases and additions are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from vitsearch.architecture import (
    Absent,
    Architecture,
    Attention,
    Block,
    Bottleneck,
    ClassAttention,
    Convolution,
    Entry,
    InvertedResidual,
    Merge,
    Patch,
    Pool,
    WindowAttention,
    check_whole,
)
from vitsearch.errors import VitsearchError


class Cost(NamedTuple):
    """Exact integers."""

    params: int
    macs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What the blueprint leaves open: side of the square image, classes, image channels."""

    image_size: int = 224
    classes: int = 1000
    channels: int = 3

    def __post_init__(self) -> None:
        check_whole("image_size", self.image_size)
        check_whole("classes", self.classes, most=1 << 24)
        check_whole("channels", self.channels)

    @classmethod
    def of_config(cls, config: Any) -> Geometry:
        """What a `config.json` says that timm reads; KeyError, TypeError or ValueError where it does not."""
        channels, side, _ = config["pretrained_cfg"]["input_size"]
        return cls(image_size=side, classes=config["num_classes"], channels=channels)


IMAGENET = Geometry()


class BlockCost(Protocol):
    def __call__(self, block: Any, width: int, side: int, extra_tokens: int) -> Cost: ...


class EntryCost(Protocol):
    def __call__(self, entry: Any, before: int, width: int, side: int, extra_tokens: int) -> Cost: ...


def attention_cost(block: Attention, width: int, side: int, extra_tokens: int) -> Cost:
    tokens = side * side + extra_tokens
    inner = block.heads * block.head_dim
    params, macs = _linears_cost(width, inner, block.hidden, tokens, tokens)
    products = 4 if block.relative_distance else 2  # q k^T and a v, each once more with the relative vectors
    params += 2 * width * block.layer_scale
    return Cost(
        params + 4 * block.relative_rows * block.head_dim,  # vertical and horizontal, for keys and for values
        macs + products * tokens * tokens * inner,
    )


def class_attention_cost(block: ClassAttention, width: int, side: int, extra_tokens: int) -> Cost:
    tokens, inner = side * side + 1, block.heads * block.head_dim
    params, macs = _linears_cost(width, inner, block.hidden, 1, 1)  # as if the class token were alone
    more = (tokens - 1) * 2 * width * inner + 2 * tokens * inner  # keys and values of the patches; one row of attention
    return Cost(params + 2 * width, macs + more)


def window_attention_cost(block: WindowAttention, width: int, side: int, extra_tokens: int) -> Cost:
    window, _, padded = block.on(side)
    inner = block.heads * block.head_dim
    params, macs = _linears_cost(width, inner, block.hidden, padded * padded, side * side)
    return Cost(params + (2 * window - 1) ** 2 * block.heads, macs + 2 * padded * padded * window * window * inner)


def _linears_cost(width: int, inner: int, hidden: int, attention_tokens: int, mlp_tokens: int) -> Cost:
    """Two norms, the query-key-value and output projections, the two MLP layers: what every attention block has."""
    params = 4 * width + (width + 1) * 3 * inner + (inner + 1) * width + (width + 1) * hidden + (hidden + 1) * width
    macs = attention_tokens * 4 * width * inner + mlp_tokens * 2 * width * hidden
    return Cost(params, macs)


def inverted_residual_cost(block: InvertedResidual, width: int, side: int, extra_tokens: int) -> Cost:
    return _inverted(block.expansion, block.kernel, width, width, side, side)


def _inverted(expansion: int, kernel: int, before: int, width: int, before_side: int, side: int) -> Cost:
    """Three convolutions, each with a norm of two vectors; the first one is absent where nothing is expanded."""
    hidden = before * expansion
    expand, depthwise, project = before * hidden if expansion > 1 else 0, kernel * kernel * hidden, hidden * width
    norms = (4 if expansion > 1 else 2) * hidden + 2 * width
    macs = expand * before_side * before_side + (depthwise + project) * side * side
    return Cost(expand + depthwise + project + norms, macs)


def absent_cost(block: Absent, width: int, side: int, extra_tokens: int) -> Cost:
    return Cost(0, 0)


def patch_cost(entry: Patch, before: int, width: int, side: int, extra_tokens: int) -> Cost:
    weights = entry.size * entry.size * before * width
    return Cost(weights + width + 2 * width * entry.norm, weights * side * side)


def pool_cost(entry: Pool, before: int, width: int, side: int, extra_tokens: int) -> Cost:
    carry = before * width if extra_tokens else 0
    return Cost(
        9 * width + width + (carry + width if extra_tokens else 0), 9 * width * side * side + carry * extra_tokens
    )


def merge_cost(entry: Merge, before: int, width: int, side: int, extra_tokens: int) -> Cost:
    return Cost(8 * before + 4 * before * width, side * side * 4 * before * width)


def convolution_cost(entry: Convolution, before: int, width: int, side: int, extra_tokens: int) -> Cost:
    weights = entry.kernel * entry.kernel * before * width
    return Cost(weights + 2 * width, weights * side * side)


def bottleneck_cost(entry: Bottleneck, before: int, width: int, side: int, extra_tokens: int) -> Cost:
    # `Architecture.resolution` is a multiple of all strides, so the side before is exact
    return _inverted(entry.expansion, entry.kernel, before, width, side * entry.stride, side)


BLOCK_COSTS: dict[type[Any], BlockCost] = {
    Attention: attention_cost,
    ClassAttention: class_attention_cost,
    WindowAttention: window_attention_cost,
    InvertedResidual: inverted_residual_cost,
    Absent: absent_cost,
}
ENTRY_COSTS: dict[type[Any], EntryCost] = {
    Patch: patch_cost,
    Pool: pool_cost,
    Merge: merge_cost,
    Convolution: convolution_cost,
    Bottleneck: bottleneck_cost,
}


@lru_cache(maxsize=1 << 16)
def block_cost(block: Block, width: int, side: int, extra_tokens: int) -> Cost:
    return BLOCK_COSTS[type(block)](block, width, side, extra_tokens)


@lru_cache(maxsize=1 << 12)
def entry_cost(entry: Entry, before: int, width: int, side: int, extra_tokens: int) -> Cost:
    return ENTRY_COSTS[type(entry)](entry, before, width, side, extra_tokens)


def architecture_cost(architecture: Architecture, geometry: Geometry = IMAGENET) -> Cost:
    """Exact cost of the network this blueprint describes."""
    sides = architecture.sides(geometry.image_size)
    extra_tokens = int(architecture.class_token)
    params, macs = fixed_cost(architecture, geometry, sides, extra_tokens)
    for stage, side in zip(architecture.stages, sides, strict=True):
        width, seen = stage.width, 0 if architecture.late_token else extra_tokens
        for block in stage.blocks:
            block_params, block_macs = block_cost(block, width, side, seen)
            params += block_params
            macs += block_macs
    return Cost(params, macs)


def fixed_cost(architecture: Architecture, geometry: Geometry, sides: list[int], extra_tokens: int) -> Cost:
    """Everything but the blocks: entries, tokens, position table, final norm, classifier."""
    first, last = architecture.stages[0].width, architecture.stages[-1].width
    params = extra_tokens * first + 2 * last * architecture.final_norm + (last + 1) * geometry.classes
    macs = last * geometry.classes
    if architecture.position != "none":
        covered = sides[0] * sides[0] + (extra_tokens if architecture.position == "all" else 0)
        params += covered * first
    before = geometry.channels
    for stage, side in zip(architecture.stages, sides, strict=True):
        entry_params, entry_macs = entry_cost(stage.entry, before, stage.width, side, extra_tokens)
        params += entry_params
        macs += entry_macs
        before = stage.width
    return Cost(params, macs)


def vitas_counter_macs(architecture: Architecture, geometry: Geometry = IMAGENET) -> int:
    """What ViTAS's public counter gives: no class token anywhere, and the classifier once for every patch."""
    (stage,), (side,) = architecture.stages, architecture.sides(geometry.image_size)
    patches, entry = side * side, stage.entry
    macs = entry_cost(entry, geometry.channels, stage.width, side, 0).macs
    macs += sum(block_cost(block, stage.width, side, 0).macs for block in stage.blocks)
    return macs + patches * stage.width * geometry.classes


def autoformer_counter_macs(architecture: Architecture, geometry: Geometry = IMAGENET) -> int:
    """What AutoFormer's `get_complexity` gives: with the class token twice in blocks, the classifier once for every
    token, little for the relative position, and halves for position tables and softmax."""
    (stage,), (side,) = architecture.stages, architecture.sides(geometry.image_size)
    width, patches = stage.width, side * side
    tokens = patches + 2
    doubled = 2 * entry_cost(stage.entry, geometry.channels, width, side, 0).macs
    doubled += 2 * width + (patches + 1) * width + 2 * (patches + 1) * width * geometry.classes
    for block in stage.blocks:
        assert isinstance(block, Attention)
        inner = block.heads * block.head_dim
        linear = 2 * width + 4 * width * inner + 2 * width * block.hidden  # with the norms
        pairs = 2 * inner + 2 * block.relative_distance
        doubled += 2 * (tokens * linear + tokens**2 * pairs) + tokens**2 + tokens * inner
    return doubled // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The budget: inclusive bounds on exact costs. None means no bound."""

    min_params: int | None = None
    max_params: int | None = None
    min_macs: int | None = None
    max_macs: int | None = None

    def __post_init__(self) -> None:
        for name, bound in self.bounds().items():
            check_whole(name, bound, least=1, most=1 << 62)
        for low, high in (("min_params", "max_params"), ("min_macs", "max_macs")):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and least > most:
                raise VitsearchError(f"`{low}` <= `{high}` must hold, but got {low}={least}, {high}={most}")

    def bounds(self) -> dict[str, int]:
        """The bounds that are set, by name."""
        pairs = {name: getattr(self, name) for name in ("min_params", "max_params", "min_macs", "max_macs")}
        return {name: bound for name, bound in pairs.items() if bound is not None}

    def allow(self, cost: Cost) -> bool:
        return self.excess(cost) == 0

    def excess(self, cost: Cost) -> float:
        """0 inside; outside, how far as a sum of relative distances to the broken bounds."""
        total = 0.0
        for name, bound in self.bounds().items():
            value = cost.params if name.endswith("params") else cost.macs
            over = value - bound if name.startswith("max") else bound - value
            total += max(over, 0) / bound
        return total

    def __str__(self) -> str:
        return ", ".join(f"{name}={bound}" for name, bound in self.bounds().items()) or "no limits"
