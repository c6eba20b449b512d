"""S3's spaces: four stages of window attention with patch merging between them.

Chen et al., Searching the Search Space of Vision Transformer, NeurIPS 2021. A stage has a depth and a width; a block
has a window, heads and an MLP ratio of its own. Queries, keys and values are 32 channels a head, whatever the width:
so heads and the paper's Q-K-V dimension are one knob (its section 4.1 lists both, {7, 8, 9} and {224, 256, 288}, with
the lists of heads and MLP ratios swapped). Every second block of a stage is shifted by half its window.

`s3-initial` is the space that the paper begins with, the same in every stage. `s3` has the choices that lie around the
published networks S3-T, S3-S and S3-B, which are members; the paper does not list its final space. Any other choices
are a variant with a name: `s3:depth=1+2/1+2/4+6/1+2,window_size=4+8`, with + between choices, / between stages (one
list is for all of them) and a comma between knobs. That name is all there is to know of a variant: it stands in
settings and in studies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from vitsearch.architecture import (
    LARGEST,
    Architecture,
    Merge,
    Patch,
    Settings,
    Stage,
    WindowAttention,
    brief,
    check_whole,
    hidden_ratio,
    hidden_width,
)
from vitsearch.cost import Geometry, architecture_cost
from vitsearch.errors import BadSettings, VitsearchError
from vitsearch.spaces.base import SPACES, Knob, Space
from vitsearch.spaces.region import Cell, Region
from vitsearch.spaces.staged import StagedRegion, count_stage, stage_member

Choices: TypeAlias = tuple[tuple[Any, ...], ...]  # for each stage what it may have
DIMENSIONS = ("depth", "embed_dim", "num_heads", "mlp_ratio", "window_size")
BLOCK_DIMENSIONS = DIMENSIONS[2:]
DEEPEST = 1024  # blocks of a stage
LISTED = 20_000  # members of a space whose costs are all found at once
BIAS_TABLES = ("interpolated", "separate")


@dataclass(frozen=True, kw_only=True)
class Windowed(Space):
    patch_size: int = 4
    depth: Choices
    embed_dim: Choices
    num_heads: Choices
    mlp_ratio: Choices
    window_size: Choices
    head_dim: int = 32
    bias_tables: str = "interpolated"
    """In a supernet: one table for the largest window, from which those of smaller ones are interpolated, or
    `separate` ones for each window."""

    def __post_init__(self) -> None:
        for dimension in DIMENSIONS:
            choices = getattr(self, dimension)
            if len(choices) != len(self.depth) or not all(choices):
                rule = f"`{dimension}` must have choices for each of {len(self.depth)} stages"
                raise VitsearchError(f"{rule}, but got {brief(choices)}")
            if any(len(set(stage)) < len(stage) for stage in choices):
                raise VitsearchError(f"`{dimension}` must have different choices in a stage, but got {brief(choices)}")
            for stage, choice in ((stage, choice) for stage, own in enumerate(choices) for choice in own):
                if dimension == "mlp_ratio":
                    for width in (min(self.embed_dim[stage]), max(self.embed_dim[stage])):
                        hidden_width(width, choice)
                else:
                    check_whole(dimension, choice, most=DEEPEST if dimension == "depth" else LARGEST)
        if self.bias_tables not in BIAS_TABLES:
            raise VitsearchError(f"`bias_tables` must be one of {', '.join(BIAS_TABLES)}, but got {self.bias_tables!r}")

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        return tuple(
            Knob(name=name, choices=getattr(self, name), per="stage block" if name in BLOCK_DIMENSIONS else "stage")
            for name in DIMENSIONS
        )

    @property
    def stages(self) -> int:
        return len(self.depth)

    def decode(self, settings: Mapping[str, Any]) -> Architecture:
        values, fixed = self.read(settings)
        depth, widths = (_whole_numbers(name, values[name]) for name in ("depth", "embed_dim"))
        if len(widths) != len(depth):
            raise BadSettings(f"`embed_dim` must have one entry for each of {len(depth)} stages, but got {widths}")
        per_block = [_by_block(name, values[name], depth) for name in BLOCK_DIMENSIONS]
        stages = []
        for index, (width, *stage) in enumerate(zip(widths, *per_block, strict=True)):
            blocks = tuple(
                self.block(width, heads, ratio, window, bool(number % 2))
                for number, (heads, ratio, window) in enumerate(zip(*stage, strict=True))
            )
            stages.append(Stage(entry=Merge() if index else _patch(fixed["patch_size"]), width=width, blocks=blocks))
        return Architecture(stages=tuple(stages), class_token=False, position="none", norm_eps=1e-5)

    def encode(self, architecture: Architecture) -> Settings:
        stages, entry = architecture.stages, architecture.stages[0].entry
        plain = all(isinstance(block, WindowAttention) for stage in stages for block in stage.blocks)
        if not plain or not isinstance(entry, Patch):
            raise BadSettings(f"{self.name} has stages of window attention, and this blueprint is another")
        blocks: list[list[Any]] = [list(stage.blocks) for stage in stages]
        settings = self.settings(
            patch_size=entry.size,
            depth=[len(stage) for stage in blocks],
            embed_dim=[stage.width for stage in stages],
            num_heads=[[block.heads for block in stage] for stage in blocks],
            mlp_ratio=[
                [self._ratio(index, stages[index].width, block.hidden) for block in stage]
                for index, stage in enumerate(blocks)
            ],
            window_size=[[block.window for block in stage] for stage in blocks],
        )
        if self.decode(settings) != architecture:
            raise BadSettings(f"{self.name} has heads of {self.head_dim} channels, and this blueprint is another")
        return settings

    def _ratio(self, stage: int, width: int, hidden: int) -> float:
        """The choice that gives this hidden width, or a ratio that does."""
        choices = self.mlp_ratio[min(stage, self.stages - 1)]
        found = [float(ratio) for ratio in choices if int(width * ratio) == hidden]
        return found[0] if found else hidden_ratio(width, hidden)

    def envelope(self) -> Architecture:
        return self.decode(self.end(max))

    def end(self, which: Any) -> Settings:
        """`max` or `min`: the network that has the largest or smallest choice everywhere, windows too."""
        depth = [which(stage) for stage in self.depth]
        per_block = {
            name: [[which(stage)] * count for stage, count in zip(getattr(self, name), depth, strict=True)]
            for name in BLOCK_DIMENSIONS
        }
        return self.settings(depth=depth, embed_dim=[which(stage) for stage in self.embed_dim], **per_block)

    def whole(self, geometry: Geometry) -> Region:
        """Small spaces are listed with their costs; larger ones are counted, and costs found when they are asked."""
        return super().whole(geometry) if self.count <= LISTED else StagedRegion(self, geometry)

    def cells(self, geometry: Geometry) -> Iterator[Cell]:
        for index in range(self.count):
            settings = self.numbered(index)
            yield Cell(1, architecture_cost(self.decode(settings), geometry), settings)

    @property
    def count(self) -> int:
        """The stages are independent: so many members have so many times as many others."""
        total = 1
        for stage in range(self.stages):
            total *= count_stage(self.stage_choices(stage))
        return total

    def stage_choices(self, stage: int) -> list[tuple[Any, ...]]:
        """In the order of `DIMENSIONS`."""
        return [getattr(self, name)[stage] for name in DIMENSIONS]

    def numbered(self, index: int) -> Settings:
        """The member with this number, in a system of digits with one digit for each choice."""
        found = []
        for stage in range(self.stages):
            choices = self.stage_choices(stage)
            index, rank = divmod(index, count_stage(choices))
            found.append(stage_member(choices, rank))
        return self.joined(found)

    def joined(self, stages: Sequence[Sequence[Any]]) -> Settings:
        """Settings from what each stage has, in the order of `DIMENSIONS`."""
        columns = [list(values) for values in zip(*stages, strict=True)]
        return self.settings(**dict(zip(DIMENSIONS, columns, strict=True)))

    def block(self, width: int, heads: int, ratio: float, window: int, shifted: bool = False) -> WindowAttention:
        return _block(heads, self.head_dim, hidden_width(width, ratio), window, shifted)

    def with_last_width(self, plan: Architecture, width: int) -> Architecture:
        last = dataclasses.replace(plan.stages[-1], width=width)
        return dataclasses.replace(plan, stages=(*plan.stages[:-1], last))

    def with_choices(self, **choices: Any) -> Windowed:
        """The variant with these choices for some knobs: for each stage, or one list for all."""
        base = SPACES[self.name.partition(":")[0]]
        assert isinstance(base, Windowed)
        spelled = {name: getattr(self, name) for name in DIMENSIONS} | {"bias_tables": self.bias_tables} | choices
        changed = {
            name: value if name == "bias_tables" else _spell(_per_stage(value, base.stages))
            for name, value in spelled.items()
        }
        same = {name: _spell(getattr(base, name)) for name in DIMENSIONS} | {"bias_tables": base.bias_tables}
        text = ",".join(f"{name}={value}" for name, value in changed.items() if value != same[name])
        found = base.variant(text) if text else base
        return dataclasses.replace(found, patch_size=self.patch_size)  # type: ignore[return-value]

    def variant(self, text: str) -> Space:
        said = self.said(text, (*DIMENSIONS, "bias_tables"), "depth=1+2/1+2/4+6/1+2")
        values = {
            name: given if name == "bias_tables" else read_choices(name, given, self.stages)
            for name, given in said.items()
        }
        return self.varied(text, values)


def scale_windows(settings: Settings, before: int, after: int) -> Settings:
    """The network for another image size with windows that cover the same share of it, to the nearest token.

    The paper does not say what it did at 384 px; 7 -> 12 and 14 -> 24 give its 33 and 46 GMAC.
    """
    check_whole("image size", before)
    windows = [[max(1, round(size * after / before)) for size in stage] for stage in settings["window_size"]]
    return {**settings, "window_size": windows}


@lru_cache(maxsize=1 << 14)
def _block(heads: int, head_dim: int, hidden: int, window: int, shifted: bool) -> WindowAttention:
    return WindowAttention(heads=heads, head_dim=head_dim, hidden=hidden, window=window, shifted=shifted)


@lru_cache(maxsize=256)
def _patch(size: int) -> Patch:
    return Patch(size=size, stride=size, norm=True)


def _whole_numbers(name: str, value: object) -> list[int]:
    if not isinstance(value, (list, tuple)) or not value:
        raise BadSettings(f"`{name}` must be a list of numbers, one for each stage, but got {brief(value)}")
    return [check_whole(name, entry, most=DEEPEST if name == "depth" else LARGEST) for entry in value]


def _by_block(name: str, value: object, depth: Sequence[int]) -> list[list[Any]]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(stage, (list, tuple)) for stage in value):
        raise BadSettings(f"`{name}` must be a list for each stage of a number for each block, but got {brief(value)}")
    if [len(stage) for stage in value] != list(depth):
        got = [len(stage) for stage in value]
        raise BadSettings(f"`{name}` must have `depth` = {list(depth)} entries in its stages, but got {got}")
    if name != "mlp_ratio":
        for entry in (entry for stage in value for entry in stage):
            check_whole(name, entry)
    return [list(stage) for stage in value]


def _per_stage(choices: Sequence[Any], stages: int) -> Choices:
    nested = choices if isinstance(choices[0], (list, tuple)) else [choices] * stages
    return tuple(tuple(stage) for stage in nested)


def _spell(choices: Choices) -> str:
    stages = ["+".join(f"{choice:g}" for choice in stage) for stage in choices]
    return stages[0] if len(set(stages)) == 1 else "/".join(stages)


def read_choices(name: str, text: str, stages: int) -> Choices:
    kind = float if name == "mlp_ratio" else int
    try:
        found = [tuple(kind(choice) for choice in stage.split("+")) for stage in text.split("/")]
    except ValueError:
        raise VitsearchError(
            f"`{name}` must be numbers, + between choices and / between stages, but got {text!r}"
        ) from None
    if len(found) not in (1, stages):
        raise VitsearchError(f"`{name}` must have choices for one or for {stages} stages, but got {text!r}")
    return _per_stage(found[0] if len(found) == 1 else found, stages)


_PAPER = "Chen et al., Searching the Search Space of Vision Transformer, NeurIPS 2021"

for _space in (
    Windowed(
        name="s3-initial",
        description="where S3 begins: the same choices in every stage, 5-17 M parameters, 4.6-18.8 GMAC",
        paper=_PAPER,
        depth=((2, 3, 4),) * 4,
        embed_dim=((224, 256, 288),) * 4,
        num_heads=((7, 8, 9),) * 4,
        mlp_ratio=((3.0, 3.5, 4.0),) * 4,
        window_size=((7, 14),) * 4,
    ),
    Windowed(
        name="s3",
        description="around S3-T, S3-S and S3-B, which are members",
        paper=_PAPER,
        depth=((1, 2, 3), (1, 2, 3), (6, 18, 30), (1, 2, 3)),
        embed_dim=((64, 96, 128), (160, 192, 224), (352, 384, 416), (736, 768, 800)),
        num_heads=((2, 3, 4), (5, 6, 7), (11, 12, 13), (23, 24, 25)),
        mlp_ratio=((3.0, 3.5, 4.0),) * 4,
        window_size=((7, 14),) * 4,
    ),
):
    SPACES.add(_space.name, _space)
