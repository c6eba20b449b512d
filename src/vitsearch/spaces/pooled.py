"""PiT's spaces: stages of attention with pooling between them, and a class token that is carried along.

Heo et al., PiT, ICCV 2021. `pit` are the 1,600 networks of Auto-Prox (total depth 12-14); `pit-tiny`, `pit-xs` and
`pit-small` are TF-TAS's, with heads that do not decrease (4,320 networks each; the paper does not write the rule
down, its networks obey it, and the pooling convolution needs it).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vitsearch.architecture import (
    Architecture,
    Attention,
    Patch,
    Pool,
    Settings,
    Stage,
    attention,
    brief,
    check_whole,
    hidden_ratio,
    hidden_width,
)
from vitsearch.errors import BadSettings
from vitsearch.spaces.base import SPACES, Knob, Space, one_patch_size


@dataclass(frozen=True, kw_only=True)
class Pooled(Space):
    base_dim: tuple[int, ...]
    mlp_ratio: tuple[float, ...]
    depth: tuple[tuple[int, ...], ...]
    num_heads: tuple[tuple[int, ...], ...]
    patch_stride: int = 8
    initialisation: str = "autoprox"

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob(name="base_dim", choices=self.base_dim),
            Knob(name="mlp_ratio", choices=self.mlp_ratio),
            Knob(name="depth", choices=self.depth),
            Knob(name="num_heads", choices=self.num_heads),
        )

    def fixed(self) -> dict[str, int]:
        return {"patch_size": self.patch_size, "patch_stride": self.patch_stride}

    def with_patch_size(self, patch_size: int | Sequence[int]) -> Space:
        """Patches overlap by half, as 16 with stride 8 does."""
        size = one_patch_size(self, patch_size)
        return dataclasses.replace(self, patch_size=size, patch_stride=max(1, size // 2))

    def decode(self, settings: Mapping[str, Any]) -> Architecture:
        values, fixed = self.read(settings)
        base = check_whole("base_dim", values["base_dim"])
        depth, heads = (
            _whole_numbers("depth", values["depth"], 1024),
            _whole_numbers("num_heads", values["num_heads"], 1024),
        )
        if len(depth) != len(heads):
            raise BadSettings(
                f"`depth` and `num_heads` must have one entry for each stage, but got {depth} and {heads}"
            )
        stages = []
        for index, (blocks, count) in enumerate(zip(depth, heads, strict=True)):
            width = base * count
            block = attention(count, base, hidden_width(width, values["mlp_ratio"]))
            entry = Pool() if index else Patch(size=fixed["patch_size"], stride=fixed["patch_stride"])
            stages.append(Stage(entry=entry, width=width, blocks=(block,) * blocks))
        return Architecture(
            stages=tuple(stages),
            position="patches",
            readout="class",
            norm_eps=1e-6,
            initialisation=self.initialisation,
        )

    def envelope(self) -> Architecture:
        depth, heads = (
            [max(stage) for stage in zip(*choices, strict=True)] for choices in (self.depth, self.num_heads)
        )
        largest = {"base_dim": max(self.base_dim), "mlp_ratio": max(self.mlp_ratio), "depth": depth, "num_heads": heads}
        return self.decode(largest | self.fixed())

    def encode(self, architecture: Architecture) -> Settings:
        stages = architecture.stages
        first, entry = stages[0].blocks[0] if stages[0].blocks else None, stages[0].entry
        if not isinstance(first, Attention) or not isinstance(entry, Patch):
            raise BadSettings(f"{self.name} has stages of attention blocks, and this blueprint is another")
        blocks = [(stage.width, block) for stage in stages for block in stage.blocks[:1]]
        hidden = [(width, block.hidden) for width, block in blocks if isinstance(block, Attention)]
        ratio = max(hidden_ratio(width, value) for width, value in hidden)  # the one ratio that rounds to all of them
        settings = self.settings(
            patch_size=entry.size,
            patch_stride=entry.stride,
            base_dim=first.head_dim,
            mlp_ratio=int(ratio) if ratio.is_integer() else ratio,
            depth=[len(stage.blocks) for stage in stages],
            num_heads=[stage.width // first.head_dim for stage in stages],
        )
        if self.decode(settings) != architecture:
            raise BadSettings(f"{self.name} has one head width and one MLP ratio, and this blueprint is another")
        return settings


def _whole_numbers(name: str, value: object, most: int) -> list[int]:
    if not isinstance(value, (list, tuple)) or not value:
        raise BadSettings(f"`{name}` must be a list of numbers, one for each stage, but got {brief(value)}")
    return [check_whole(name, entry, most=most) for entry in value]


def _non_decreasing(choices: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(itertools.combinations_with_replacement(choices, 3))


_DEPTHS = tuple(itertools.product((1, 2, 3), (4, 6, 8), (2, 4, 6)))
_TFTAS = "Zhou et al., Training-free Transformer Architecture Search, CVPR 2022"

for _space in (
    Pooled(
        name="pit",
        description="the 1,600 PiT networks of Auto-Prox, 12-14 blocks",
        paper="Wei et al., Auto-Prox: Training-Free ViT Architecture Search via Automatic Proxy Discovery, AAAI 2024",
        base_dim=(16, 24, 32, 40),
        mlp_ratio=(2, 4, 6, 8),
        depth=tuple(depth for depth in _DEPTHS if 12 <= sum(depth) <= 14),
        num_heads=_non_decreasing((2, 4, 8)),
    ),
    *(
        Pooled(
            name=f"pit-{size}",
            description=f"TF-TAS's PiT space, {size}",
            paper=_TFTAS,
            base_dim=base_dim,
            mlp_ratio=(2, 4, 6, 8),
            depth=_DEPTHS,
            num_heads=_non_decreasing(heads),
            initialisation="tftas-pit",
        )
        for size, base_dim, heads in (
            ("tiny", (16, 24, 32, 40), (2, 4, 8)),
            ("xs", (40, 48, 56, 64), (2, 4, 8)),
            ("small", (36, 48, 60, 72), (3, 6, 12)),
        )
    ),
):
    SPACES.add(_space.name, _space)
