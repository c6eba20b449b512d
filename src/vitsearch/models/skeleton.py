"""Layers without weights, one for each shape: compiled once, used at every depth and by every network that has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, Literal, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from timm.layers import drop_path
from torch import Tensor, nn
from torch.func import functional_call

from vitsearch.architecture import Block, Entry
from vitsearch.models.builders import BLOCK_BUILDERS, ENTRY_BUILDERS
from vitsearch.models.cutting import Cut, Part
from vitsearch.models.layers import Attention, TransformerBlock, WindowAttention
from vitsearch.models.recorded import RecordedLayers

Shape: TypeAlias = tuple[int, ...]
Side: TypeAlias = Literal["left", "right"]
"""Whether a network has the first rows and columns of a supernet's tensors, or the last."""
BIAS_TABLE = "relative_position_bias_table"
PRODUCTS = ("attn.qkv.", "attn.proj.", "mlp.")
"""Beginnings of the names of a block's parameters that autocast rounds."""
Place: TypeAlias = tuple[str, dict[str, Any], str]
Given = TypeVar("Given")
COMPILING: dict[str, Any] = {"dynamic": False, "options": {"comprehensive_padding": False}}
"""With strides padded, the matrix products between two blocks copy their inputs: 8 % of a step on an H200."""


class KeptPath(nn.Module):
    """Stochastic depth whose draw the caller brings: per image 0, or 1 / (1 - rate)."""

    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.empty(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor.to(x.dtype)


def forget_statistics(layer: nn.Module) -> None:
    """BatchNorm without running statistics: it normalises by the batch, in training and in evaluation."""
    for module in layer.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None


def kept_paths(x: Tensor, rate: float) -> list[Tensor]:
    """For each branch of a block what it is multiplied by, [B, 1, 1]: drawn as timm draws it."""
    return [drop_path(x.new_ones(len(x), 1, 1), rate, training=True) for _ in range(2)]


def part(side: Side, size: int) -> slice:
    """The first or the last `size` places."""
    return slice(size) if side == "left" else slice(-size, None)


def cut(name: str, whole: Tensor, shape: tuple[int, ...], side: Side = "left") -> Tensor:
    """The part of a supernet's tensor that a network of this shape has: a view, but for q, k, v, and what windows need.

    Patch merging has four corners side by side: the first (last) channels of each. A bias table for a smaller window
    is interpolated, so that an offset has the bias of the same share of the window. A smaller convolution is the middle
    of a larger one, as in BigNAS: a learned map from one to the other (Once-for-All) would be weights that no network
    has alone.
    """
    if name.endswith("reduction.weight") or "norm_corners." in name:
        whole = whole.reshape(*whole.shape[:-1], 4, -1)[..., part(side, shape[-1] // 4)].flatten(-2)
    if name.endswith(BIAS_TABLE) and whole.shape[0] != shape[0]:
        whole = interpolated(whole, shape[0])
    for axis, size in enumerate(shape):
        if (spare := whole.shape[axis] - size) != 0:
            middle = len(shape) == 4 and axis > 1
            start = spare // 2 if middle else 0 if side == "left" else spare
            whole = whole.narrow(axis, start, size)
    if ".qkv." in name:
        whole = whole.reshape(-1, 3, *shape[1:]).transpose(0, 1).flatten(0, 1)  # their rows take turns
    return whole


def interpolated(table: Tensor, rows: int) -> Tensor:
    """Swin's [(2 large - 1) ** 2, H] for a smaller window, [rows, H]: linear along both axes, offset 0 in the middle.

    As products, because they add gradients up in a fixed order.
    """
    large, small = math.isqrt(table.shape[0]) // 2, math.isqrt(rows) // 2  # the farthest offsets
    places = torch.arange(2 * large + 1, device=table.device, dtype=table.dtype)
    wanted = torch.arange(-small, small + 1, device=table.device, dtype=table.dtype) * (large / max(small, 1)) + large
    weights = (1 - (wanted[:, None] - places).abs()).clamp(0)
    grid = table.reshape(len(places), len(places), -1)
    return torch.einsum("ip,jq,pqh->ijh", weights, weights, grid).flatten(0, 1)


class Skeleton:
    """A layer of one shape without weights: each call brings those of another layer, and cuts them.

    A call depends on nothing but its tensors.
    """

    def __init__(
        self, layer: nn.Module, entangled: bool, compiling: Mapping[str, Any] | None, side: Side = "left"
    ) -> None:
        self.layer, self.entangled, self.side = layer, entangled, side
        self.split = Split(layer) if isinstance(layer, TransformerBlock) else layer
        self.shapes: dict[str, Shape] = {name: tuple(p.shape) for name, p in layer.named_parameters()}
        self._constants: dict[torch.device, dict[str, Tensor]] = {}
        self._places: WeakKeyDictionary[nn.Module, tuple[list[Place], list[Place]]] = WeakKeyDictionary()
        self.recorded: RecordedLayers | None = None
        self.apply: Callable[..., Tensor] = self._apply
        self.parts: Callable[..., tuple[Tensor, Tensor]] = self._parts
        if compiling is not None:
            self.apply = torch.compile(MethodType(copied(Skeleton._apply), self), **compiling)
            self.parts = torch.compile(MethodType(copied(Skeleton._parts), self), **compiling)

    @property
    def is_block(self) -> bool:
        return isinstance(self.layer, TransformerBlock)

    def slices(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if not self.entangled:
            return dict(whole)
        return {
            name: self._table(name, whole) if name.endswith(BIAS_TABLE) else cut(name, whole[name], shape, self.side)
            for name, shape in self.shapes.items()
        }

    def sources(self, name: str, whole: Mapping[str, Tensor]) -> dict[str, int]:
        """Of which tensors a parameter is a part, and between how many groups the rows of each take turns."""
        return {name: 3 if ".qkv." in name else 1}

    def given(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`slices` for a step that is not compiled: a block's in few launches, what goes into products rounded."""
        plain = torch.compiler.is_compiling() or not torch.is_grad_enabled()
        plain = plain or torch._C._are_functorch_transforms_active()  # which know no functions of this kind
        if plain or not self.entangled or not self.is_block:
            return self.slices(whole)
        kind = next(iter(whole.values())).device.type
        rounds = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)  # the meta device has none
        rounded = torch.get_autocast_dtype(kind) if rounds else None
        tables = {name: shape for name, shape in self.shapes.items() if name.endswith(BIAS_TABLE)}
        sources = {name: self.sources(name, whole) for name in self.shapes if name not in tables}
        parts = [
            Part(self.shapes[name], tuple(turns.values()), rounded if name.startswith(PRODUCTS) else None)
            for name, turns in sources.items()
        ]
        tensors = [whole[key] for turns in sources.values() for key in turns]
        found = dict(zip(sources, Cut.apply(parts, self.side == "right", *tensors), strict=True))
        return found | {name: self._table(name, whole) for name in tables}

    def _table(self, name: str, whole: Mapping[str, Tensor]) -> Tensor:
        """A window's biases: a space may have them apart for each window."""
        shape = self.shapes[name]
        return cut(name, whole.get(f"{name}_{shape[0]}", whole[name]), shape, self.side)

    def places(self, source: nn.Module) -> tuple[list[Place], list[Place]]:
        """Where the parameters and buffers are that a call brings."""
        return places_of(source)

    def __call__(self, source: nn.Module, x: Tensor, factors: Sequence[Tensor] = ()) -> Tensor:
        if source not in self._places:
            self._places[source] = self.places(source)
        parameters, buffers = ({name: held[key] for name, held, key in places} for places in self._places[source])
        constants = self._own_constants(x.device) or buffers
        if self.recorded is None:
            return self.apply(parameters, constants, x, factors)
        return self.recorded.run(self, source, parameters, constants, x, factors)

    def _own_constants(self, device: torch.device) -> dict[str, Tensor]:
        """Of a window, which need not be the largest one's; for other layers those of the supernet serve."""
        attention = getattr(self.layer, "attn", None)
        if not self.entangled or not isinstance(attention, WindowAttention):
            return {}
        if device not in self._constants:
            made = attention.constants(device)
            self._constants[device] = {f"attn.{name}": one for name, one in made.items() if one is not None}
        return self._constants[device]

    def _apply(
        self, whole: dict[str, Tensor], constants: dict[str, Tensor], x: Tensor, factors: Sequence[Tensor]
    ) -> Tensor:
        return cast(Tensor, self._call(self.layer, whole, constants, x, factors))

    def _parts(
        self, whole: dict[str, Tensor], constants: dict[str, Tensor], x: Tensor, factors: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Of a block, what has yet to be added up."""
        return cast(tuple[Tensor, Tensor], self._call(self.split, whole, constants, x, factors))

    def _call(
        self,
        layer: nn.Module,
        whole: dict[str, Tensor],
        constants: dict[str, Tensor],
        x: Tensor,
        factors: Sequence[Tensor],
    ) -> Any:
        kept = {f"drop_path{number}.factor": factor for number, factor in enumerate(factors, 1)}
        given = self.given(whole) | constants | kept
        if layer is not self.layer:
            given = {f"block.{name}": tensor for name, tensor in given.items()}
        return functional_call(layer, given, (x,), tie_weights=False)


class Split(nn.Module):
    """A block that gives its parts."""

    def __init__(self, block: TransformerBlock) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.block.parts(x)


def places_of(source: nn.Module) -> tuple[list[Place], list[Place]]:
    """Where parameters and buffers are: `named_parameters` walks the module at every call, 1 ms of a step."""
    modules = [(f"{prefix}." if prefix else "", module) for prefix, module in source.named_modules()]
    held = [(prefix, module._parameters, module._buffers) for prefix, module in modules]
    parameters = [(prefix + key, own, key) for prefix, own, _ in held for key in own if own[key] is not None]
    buffers = [(prefix + key, own, key) for prefix, _, own in held for key in own if own[key] is not None]
    return parameters, buffers


def copied(function: Callable[..., Given]) -> Callable[..., Given]:
    """The same function with code of its own: torch keeps what it compiled with the code, eight shapes at most."""
    assert isinstance(function, FunctionType)
    code, defaults = function.__code__.replace(), function.__defaults__
    made = FunctionType(code, function.__globals__, argdefs=defaults, closure=function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class Compiled:
    """Functions of tensors, compiled apart for every key; None: as they are."""

    def __init__(self, compiling: Mapping[str, Any] | None) -> None:
        self.compiling = compiling
        self._made: dict[Any, Callable[..., Tensor]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return self  # they hold no weights

    def get(self, function: Callable[..., Tensor], key: int) -> Callable[..., Tensor]:
        if self.compiling is None:
            return function
        if (function, key) not in self._made:
            self._made[function, key] = torch.compile(copied(function), **self.compiling)
        return self._made[function, key]


class Skeletons:
    """Made when they are first asked for. `entangled`: the weights that calls bring are a supernet's."""

    def __init__(
        self,
        *,
        entangled: bool,
        fused: bool = True,
        compiling: Mapping[str, Any] | None = None,
        made_as: type[Skeleton] = Skeleton,
    ) -> None:
        self.entangled, self.fused, self.compiling, self.made_as = entangled, fused, compiling, made_as
        self.recorded: RecordedLayers | None = None
        self._made: dict[tuple[Any, ...], Skeleton] = {}

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Skeletons:
        return self  # they hold no weights

    def get(self, kind: Block | Entry, drops: bool, *arguments: Any, side: Side = "left") -> Skeleton:
        """`arguments` are the builder's; with `drops`, calls bring `kept_paths`."""
        key = (kind, drops, side, *arguments)
        if key not in self._made:
            with torch.device("meta"):
                layer = (BLOCK_BUILDERS | ENTRY_BUILDERS)[type(kind)](kind, *arguments)
                for name in ("drop_path1", "drop_path2") if drops else ():
                    setattr(layer, name, KeptPath())
                if self.entangled:
                    forget_statistics(layer)
            if isinstance(layer, TransformerBlock):
                cast(Attention | WindowAttention, layer.attn).fused = self.fused
            made = self._made[key] = self.made_as(layer, self.entangled, self.compiling, side)
            made.recorded = self.recorded if made.is_block else None
        return self._made[key]

    def record(self, recorded: RecordedLayers) -> None:
        """Blocks from here on."""
        self.recorded = recorded
        for made in self._made.values():
            made.recorded = recorded if made.is_block else None


COMPILED = Skeletons(entangled=False, compiling=COMPILING)
"""For networks with weights of their own: what one compiled, the next one of this process need not."""
