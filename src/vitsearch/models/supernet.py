"""AutoFormer's weight-entangled supernet: one set of weights, and every network of a space is a part of it.

supernet = Supernet(space, geometry, seed=0)
logits = supernet(images, space.decode(settings))      # equals supernet.extract(space.decode(settings))(images)

The parameters are those of the largest network, under its names. A network has the first rows and columns of every
tensor and the first blocks of every stage; of patch merging, the first channels of each of the four corners; and the
bias tables of its own windows (`cut` in skeleton.py). In `qkv`, weight and bias, the rows of q, k and v take turns
(row 3 i + t is row i of q, k, v for t = 0, 1, 2), so that fewer heads are the first ones of each; that is the one place
where the state dict is laid out unlike the largest network's, whose `qkv` is `slices(envelope)`.

What a step moves: the gradient is zero outside the part that took part, and None for tensors of which no part did. With
gradients set to None after each step (torch's default) an optimizer leaves those tensors alone; inside a tensor that
took part, momentum and weight decay move the rest too. `zero_grad(set_to_none=False)` is what the published code had:
then blocks that were not sampled go on decaying and moving.

BatchNorm. Running statistics are of one network, so the supernet has none: it normalises by the batch that it is given.
`extract` gives a network that has its own, which must be found on training images before it is evaluated
(`training/calibration.py`); in training mode it is what the supernet is.

With two `sides` (BCNet, CVPR 2021) a network is cut twice, from the first and from the last rows and columns, and a
call adds the logits of the two: otherwise the first channels would be trained far more often than the last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import prod
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitsearch.architecture import (
    Absent,
    Architecture,
    Attention,
    Block,
    Bottleneck,
    Entry,
    InvertedResidual,
    Stage,
    WindowAttention,
)
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.errors import BadSettings, VitsearchError
from vitsearch.models.convolution import resized
from vitsearch.models.initialise import draw_seed, initial_values
from vitsearch.models.recorded import RecordedLayers, Recorder
from vitsearch.models.skeleton import (
    COMPILING,
    Compiled,
    Side,
    Skeleton,
    Skeletons,
    forget_statistics,
    kept_paths,
    part,
)
from vitsearch.models.vit import (
    NetworkStage,
    VisionNetwork,
    build,
    check_input,
    drop_path_rates,
    embed,
    pool,
    tokens_and_tables,
)
from vitsearch.spaces import Space

UNPLANNED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention without cuDNN, which makes a plan whenever a shape is new, and takes longer for that than for the rest."""


class Supernet(nn.Module):
    """The weights of all networks of a space. `drop_path_rate` grows over the blocks of the largest network."""

    def __init__(
        self,
        space: Space,
        geometry: Geometry = IMAGENET,
        *,
        seed: int | None = None,
        drop_path_rate: float = 0.0,
        sides: tuple[Side, ...] = ("left",),
    ) -> None:
        super().__init__()
        if not 0 <= drop_path_rate < 1:
            raise VitsearchError(f"`drop_path_rate` must be in [0, 1), but got {drop_path_rate}")
        largest = build(space.envelope(), geometry, seed=seed).train()
        self.space, self.geometry, self.envelope = space, geometry, largest.architecture
        self.drop_path_rate = drop_path_rate
        self.cls_token, self.pos_embed = largest.cls_token, largest.pos_embed
        self.stages = largest.stages
        self.norm, self.head = largest.norm, cast(nn.Linear, largest.head)
        forget_statistics(self)
        self._pool = largest.global_pool
        separate_bias_tables(space, largest, seed)
        rates = iter(drop_path_rates(self.envelope, drop_path_rate))
        self._rates = [[next(rates) for _ in stage.blocks] for stage in self.envelope.stages]
        self.sides = sides
        self._skeletons, self._compiled = Skeletons(entangled=True), Compiled(None)

    @property
    def few_shapes(self) -> bool:
        """Whether its layers have so few that compiling each pays: choices for each stage make hundreds."""
        return not any(knob.per.startswith("stage") for knob in self.space.knobs)

    @property
    def shapes(self) -> int:
        """So many its transformer blocks have together, at most."""
        count = 0
        for index, stage in enumerate(self.envelope.stages):
            if all(isinstance(block, InvertedResidual) for block in stage.blocks):
                continue
            staged = {knob.name: knob.choices[index] for knob in self.space.knobs if knob.per.startswith("stage")}
            found = {knob.name: knob.choices for knob in self.space.knobs if knob.name != "depth"} | staged
            count += len(stage.blocks) * prod(len(choices) for name, choices in found.items() if name != "depth")
        return count

    @property
    def batch_norm(self) -> bool:
        """Whether its networks have statistics of their own."""
        return any(isinstance(module, nn.BatchNorm2d) for module in self.modules())

    def forward(self, x: Tensor, architecture: Architecture, side: Side | None = None) -> Tensor:
        """Logits of this network of the supernet; without a side, the sum over the supernet's sides."""
        sides = self.sides if side is None else (side,)
        logits = [self._logits(x, architecture, one) for one in sides]
        return logits[0] if len(logits) == 1 else torch.stack(logits).sum(0)

    def _logits(self, x: Tensor, architecture: Architecture, side: Side) -> Tensor:
        width, eps = architecture.stages[-1].width, architecture.norm_eps if architecture.final_norm else None
        end = self._compiled.get(classify, width)
        x, _ = self._through_blocks(x, architecture, (), side)
        return end(x, self._frame(architecture, side), eps, self._pool, int(architecture.class_token))

    def trace(
        self, x: Tensor, architecture: Architecture, taps: Collection[int] = (), side: Side = "left"
    ) -> tuple[Tensor, list[Tensor]]:
        """All tokens after the final norm, and those after some blocks, counted over all stages."""
        x, found = self._through_blocks(x, architecture, taps, side)
        return normed(
            x, self._frame(architecture, side), architecture.norm_eps if architecture.final_norm else None
        ), found

    def _through_blocks(
        self, x: Tensor, architecture: Architecture, taps: Collection[int], side: Side
    ) -> tuple[Tensor, list[Tensor]]:
        self.check(architecture)
        check_input(x, self.geometry.channels, self.geometry.image_size)
        x = resized(x, architecture.resolution)
        frame, parts = self._frame(architecture, side), self._parts(architecture, side)
        sources, begin = self._sources(architecture), self._compiled.get(embed, architecture.stages[0].width)
        found, number = [], 0
        with nullcontext() if self.few_shapes else sdpa_kernel(UNPLANNED):
            for index, (source, (entry, blocks), rates) in enumerate(zip(sources, parts, self._rates, strict=True)):
                x = entry(source[0], x)
                x = x if index else begin(x, frame.get("cls_token"), frame.get("pos_embed"))
                for own, block, rate in zip(source[1], blocks, rates, strict=False):
                    x = x if block is None else block(own, x, self._factors(x, rate))
                    if number in taps:
                        found.append(x if x.requires_grad else x.clone())  # layers write where they did
                    number += 1
        return x, found

    def forward_head(self, x: Tensor, architecture: Architecture, side: Side = "left") -> Tensor:
        return classify(x, self._frame(architecture, side), None, self._pool, int(architecture.class_token))

    def slices(self, architecture: Architecture, side: Side = "left") -> dict[str, Tensor]:
        """The weights of one network by its own names: views with gradient, copies of q, k and v."""
        self.check(architecture)
        found = self._frame(architecture, side)
        sources, parts = self._sources(architecture), self._parts(architecture, side)
        for index, (source, (entry, blocks)) in enumerate(zip(sources, parts, strict=True)):
            used = [("entry", source[0], entry)]
            used += [(f"blocks.{n}", source[1][n], block) for n, block in enumerate(blocks) if block is not None]
            for place, layer, skeleton in used:
                tensors = skeleton.slices(dict(layer.named_parameters()))
                found |= {f"stages.{index}.{place}.{name}": tensor for name, tensor in tensors.items()}
        return found

    @torch.no_grad()
    def extract(self, architecture: Architecture, side: Side = "left") -> VisionNetwork:
        """One network with weights of its own, in evaluation mode. BatchNorm's statistics are still to be found."""
        network = build(architecture, self.geometry, draw_weights=False)
        network.to(self.head.weight.device, self.head.weight.dtype)
        network.load_state_dict(network.state_dict() | self.slices(architecture, side))
        return network

    def compile(self, **options: Any) -> None:
        """Compile each layer when its shape first occurs, with these options of `torch.compile` in place of ours.

        There are few shapes and many architectures: compiled as a whole, the supernet would be compiled at every step.
        """
        known = self._skeletons
        self._skeletons = Skeletons(
            entangled=True, fused=known.fused, compiling=options or COMPILING, made_as=known.made_as
        )
        self._compiled = Compiled(options or COMPILING)

    def record_layers(self, recorder: Recorder, only: Sequence[Architecture] | None = None) -> None:
        """Train each layer of each shape as two launches; networks with two sides go through a layer twice, and cannot.

        With `only`, in the shapes that these networks have. From here on a network has to go backward before the next
        one goes forward.
        """
        if len(self.sides) > 1:
            return
        self.forget_recorded()
        (side,) = self.sides
        wanted = None if only is None else {b for one in only for _, blocks in self._parts(one, side) for b in blocks}
        self._skeletons.record(RecordedLayers(recorder, wanted))

    def forget_recorded(self) -> None:
        known = self._skeletons
        self._skeletons = Skeletons(entangled=True, fused=known.fused, compiling=known.compiling, made_as=known.made_as)

    def set_fused_attention(self, fused: bool) -> None:
        """Which kernel attention uses, as `VisionNetwork.set_fused_attention` has it."""
        known = self._skeletons
        self._skeletons = Skeletons(entangled=True, fused=fused, compiling=known.compiling, made_as=known.made_as)

    def no_weight_decay(self) -> set[str]:
        """Tokens and tables: position, class token, relative position."""
        return tokens_and_tables(self)

    def check(self, architecture: Architecture) -> None:
        if reason := why_outside(architecture, self.envelope):
            raise BadSettings(f"`architecture` must be a part of the supernet of {self.space.name}, but {reason}")

    def _sources(self, architecture: Architecture) -> list[tuple[nn.Module, nn.ModuleList]]:
        """For each stage the layers that this network's entry and blocks are cut from."""
        return [(stage.entry, stage.blocks) for stage in cast(list[NetworkStage], list(self.stages))]

    def _tokens(self, architecture: Architecture) -> dict[str, Tensor | None]:
        return {"cls_token": self.cls_token, "pos_embed": self.pos_embed}

    def _frame(self, architecture: Architecture, side: Side) -> dict[str, Tensor]:
        """All but entries and blocks."""
        first, last = architecture.stages[0].width, architecture.stages[-1].width
        tokens, own = self._tokens(architecture), part(side, last)
        found = {name: whole[..., part(side, first)] for name, whole in tokens.items() if whole is not None}
        found |= {f"norm.{name}": tensor[own] for name, tensor in self.norm.named_parameters()}
        return found | {"head.weight": self.head.weight[:, own], "head.bias": self.head.bias}

    def _parts(self, architecture: Architecture, side: Side) -> list[tuple[Skeleton, list[Skeleton | None]]]:
        """For each stage its entry and its blocks; None where a block is absent."""
        parts: list[tuple[Skeleton, list[Skeleton | None]]] = []
        before, before_grid = self.geometry.channels, architecture.resolution or self.geometry.image_size
        eps, token = architecture.norm_eps, architecture.class_token
        drops = self.training and self.drop_path_rate > 0
        for stage, grid in zip(architecture.stages, architecture.sides(self.geometry.image_size), strict=True):
            entry = self._skeletons.get(stage.entry, False, before, stage.width, before_grid, eps, token, side=side)
            blocks = [
                None
                if isinstance(block, Absent)
                else self._skeletons.get(block, drops, stage.width, grid, eps, 0.0, side=side)
                for block in stage.blocks
            ]
            parts.append((entry, blocks))
            before, before_grid = stage.width, grid
        return parts

    def _factors(self, x: Tensor, rate: float) -> list[Tensor]:
        return kept_paths(x, rate) if self.training and self.drop_path_rate else []


def normed(x: Tensor, frame: Mapping[str, Tensor], eps: float | None) -> Tensor:
    """The final norm; None: there is none."""
    return x if eps is None else F.layer_norm(x, x.shape[-1:], frame["norm.weight"], frame["norm.bias"], eps)


def classify(x: Tensor, frame: Mapping[str, Tensor], eps: float | None, how: str, prefix_tokens: int) -> Tensor:
    return F.linear(pool(normed(x, frame, eps), how, prefix_tokens), frame["head.weight"], frame["head.bias"])


def separate_bias_tables(space: Space, network: VisionNetwork, seed: int | None) -> None:
    """Where a space has `bias_tables` apart, a table `..._ROWS` for each window smaller than a block's largest."""
    if getattr(space, "bias_tables", "interpolated") != "separate":
        return
    windows: Any = next(knob.choices for knob in space.knobs if knob.name == "window_size")
    drawn = draw_seed(None if seed is None else torch.Generator().manual_seed(seed))
    for index, stage in enumerate(cast(list[NetworkStage], list(network.stages))):
        for number, block in enumerate(list[Any](stage.blocks)):
            table = block.attn.relative_position_bias_table
            for rows in sorted({(2 * min(window, stage.side) - 1) ** 2 for window in windows[index]} - {len(table)}):
                name = f"relative_position_bias_table_{rows}"
                place, shape = f"stages.{index}.blocks.{number}.attn.{name}", torch.Size((rows, table.shape[1]))
                values = initial_values(place, shape, rows, network.architecture.initialisation, drawn)
                block.attn.register_parameter(name, nn.Parameter(values))


def why_outside(architecture: Architecture, envelope: Architecture) -> str | None:
    """None for a part of the supernet with this envelope; otherwise the first reason why it is not."""
    for field in dataclasses.fields(Architecture):
        own, theirs = getattr(architecture, field.name), getattr(envelope, field.name)
        if field.name not in ("stages", "resolution") and own != theirs:  # weights know no resolution
            return f"its `{field.name}` is {own}, and the supernet's is {theirs}"
    if len(architecture.stages) != len(envelope.stages):
        return f"it has {len(architecture.stages)} stages, and the supernet has {len(envelope.stages)}"
    for index, (stage, most) in enumerate(zip(architecture.stages, envelope.stages, strict=True)):
        if reason := _why_outside_stage(stage, most):
            return f"in stage {index} {reason}"
    return None


def _why_outside_stage(stage: Stage, most: Stage) -> str | None:
    if not _same_entry(stage.entry, most.entry):
        return f"it begins with {stage.entry}, and the supernet with {most.entry}"
    if stage.width > most.width:
        return f"it is {stage.width} wide, and the supernet {most.width}"
    if len(stage.blocks) > len(most.blocks):
        return f"it has {len(stage.blocks)} blocks, and the supernet {len(most.blocks)}"
    for number, (block, largest) in enumerate(zip(stage.blocks, most.blocks, strict=False)):
        if not isinstance(block, Absent) and not _fits(block, largest):
            return f"block {number} is {block}, and the supernet has {largest}"
    return None


def _same_entry(entry: Entry, largest: Entry) -> bool:
    """Equal, but for a smaller kernel."""
    if isinstance(entry, Bottleneck) and isinstance(largest, Bottleneck):
        return entry.kernel <= largest.kernel and replace(entry, kernel=largest.kernel) == largest
    return entry == largest


def _fits(block: Block, largest: Block) -> bool:
    """Fewer heads and hidden units and a smaller window are a part; another reach of the relative position is not."""
    if isinstance(block, InvertedResidual) and isinstance(largest, InvertedResidual):
        return block.expansion == largest.expansion and block.kernel <= largest.kernel
    if isinstance(block, InvertedResidual) or isinstance(largest, InvertedResidual):
        return False
    if isinstance(block, Absent) or isinstance(largest, Absent) or type(block) is not type(largest):
        return False
    if block.hidden > largest.hidden or block.heads * block.head_dim > largest.heads * largest.head_dim:
        return False
    if isinstance(block, WindowAttention):
        assert isinstance(largest, WindowAttention)
        within = block.window <= largest.window and block.shifted == largest.shifted
        return within and block.heads <= largest.heads
    if not isinstance(block, Attention) or not isinstance(largest, Attention):
        return False
    alike = [(one.relative_distance, one.scale, one.layer_scale) for one in (block, largest)]
    if alike[0] != alike[1]:
        return False
    return not block.relative_distance or block.head_dim <= largest.head_dim
