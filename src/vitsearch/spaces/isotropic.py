"""AutoFormer's spaces: one width for the whole network, heads and MLP ratio for each block.

Chen et al., AutoFormer, ICCV 2021. Choices and counts as in the released networks: `autoformer-small` has depth
12-14 and `autoformer-base` 9 or 10 heads; the 8-10 heads of PreNAS's Table 1 are `autoformer-base-wide`.
`autoformer-tiny-plain` is the variant behind ViT-Bench-101 (Auto-Prox): no relative position, attention as wide as
the network, so that heads change the head width and nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from vitsearch.architecture import (
    Architecture,
    Attention,
    Patch,
    Settings,
    Stage,
    attention,
    brief,
    check_whole,
    hidden_ratio,
    hidden_width,
)
from vitsearch.cost import Cost, Geometry, architecture_cost, autoformer_counter_macs, block_cost
from vitsearch.errors import BadSettings
from vitsearch.spaces.base import SPACES, Knob, Space
from vitsearch.spaces.region import Cell

Table = list[dict[Cost, int]]  # Table[depth][cost of the blocks] = how many sequences of blocks cost that
Place = tuple[int, int, Cost, Table, list[tuple[int, float, Cost]]]


@dataclass(frozen=True, kw_only=True)
class Isotropic(Space):
    embed_dim: tuple[int, ...]
    depth: tuple[int, ...]
    num_heads: tuple[int, ...]
    mlp_ratio: tuple[float, ...]
    head_dim: int | None = 64
    """Width of a head; None splits the embedding width among the heads."""
    relative_distance: int = 14
    norm_eps: float = 1e-5

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob(name="embed_dim", choices=self.embed_dim),
            Knob(name="depth", choices=self.depth),
            Knob(name="num_heads", choices=self.num_heads, per="block"),
            Knob(name="mlp_ratio", choices=self.mlp_ratio, per="block"),
        )

    def published_macs(self, architecture: Architecture, geometry: Geometry) -> int | None:
        return autoformer_counter_macs(architecture, geometry) if self.relative_distance else None

    def decode(self, settings: Mapping[str, Any]) -> Architecture:
        values, fixed = self.read(settings)
        width, depth = check_whole("embed_dim", values["embed_dim"]), check_whole("depth", values["depth"], most=1024)
        heads, ratios = values["num_heads"], values["mlp_ratio"]
        for name, kinds in (("num_heads", {int}), ("mlp_ratio", {int, float})):
            if not isinstance(values[name], (list, tuple)) or not set(map(type, values[name])) <= kinds:
                raise BadSettings(
                    f"`{name}` must be a list of numbers, one for each block, but got {brief(values[name])}"
                )
            if len(values[name]) != depth:
                raise BadSettings(f"`{name}` must have `depth` = {depth} entries, but got {len(values[name])}")
        shape = (self.head_dim, self.relative_distance)
        blocks = tuple([_block(width, h, r, *shape) for h, r in zip(heads, ratios, strict=True)])
        return self._blueprint(width, blocks, fixed["patch_size"])

    def encode(self, architecture: Architecture) -> Settings:
        stage = architecture.stages[0]
        if len(architecture.stages) != 1 or not all(isinstance(block, Attention) for block in stage.blocks):
            raise BadSettings(f"{self.name} has one stage of attention blocks, and this blueprint is another")
        blocks = [block for block in stage.blocks if isinstance(block, Attention)]
        assert isinstance(stage.entry, Patch)
        return self.settings(
            patch_size=stage.entry.size,
            embed_dim=stage.width,
            depth=len(blocks),
            num_heads=[block.heads for block in blocks],
            mlp_ratio=[_ratio(stage.width, block.hidden, self.mlp_ratio) for block in blocks],
        )

    def envelope(self) -> Architecture:
        block = self._block(max(self.embed_dim), max(self.num_heads), max(self.mlp_ratio))
        return self._blueprint(max(self.embed_dim), (block,) * max(self.depth), self.patch_size)

    def cells(self, geometry: Geometry) -> Iterator[Cell]:
        """Blocks cost the same wherever they stand, so counting sequences by their sum is a convolution."""
        pairs = list(itertools.product(self.num_heads, self.mlp_ratio))
        for width in self.embed_dim:
            empty = self._blueprint(width, (), self.patch_size)
            (side,) = empty.sides(geometry.image_size)
            fixed = architecture_cost(empty, geometry)
            choices = [(h, r, block_cost(self._block(width, h, r), width, side, 1)) for h, r in pairs]
            table = count_sequences([cost for _, _, cost in choices], max(self.depth))
            for depth in self.depth:
                for total, count in table[depth].items():
                    cost = Cost(fixed.params + total.params, fixed.macs + total.macs)
                    yield Cell(count, cost, (width, depth, total, table, choices))

    def member(self, place: Place, rank: int) -> Settings:
        """Walk the counts: at each block, skip the choices whose continuations come before `rank`."""
        width, depth, (params, macs), table, choices = place
        blocks: list[tuple[int, float]] = []
        for left in range(depth - 1, -1, -1):
            for heads, ratio, cost in choices:
                rest = Cost(params - cost.params, macs - cost.macs)
                count = table[left].get(rest, 0)
                if rank < count:
                    blocks.append((heads, ratio))
                    params, macs = rest
                    break
                rank -= count
        return self.settings(
            embed_dim=width, depth=depth, num_heads=[b[0] for b in blocks], mlp_ratio=[b[1] for b in blocks]
        )

    def _blueprint(self, width: int, blocks: tuple[Attention, ...], patch_size: int) -> Architecture:
        return Architecture(
            stages=(Stage(entry=_patch(patch_size), width=width, blocks=blocks),), norm_eps=self.norm_eps
        )

    def _block(self, width: int, heads: int, ratio: float) -> Attention:
        return _block(width, heads, ratio, self.head_dim, self.relative_distance)


def count_sequences(costs: list[Cost], longest: int) -> Table:
    table: Table = [{Cost(0, 0): 1}]
    for _ in range(longest):
        counts: dict[Cost, int] = {}
        for total, count in table[-1].items():
            for cost in costs:
                key = Cost(total.params + cost.params, total.macs + cost.macs)
                counts[key] = counts.get(key, 0) + count
        table.append(counts)
    return table


@lru_cache(maxsize=1 << 14, typed=True)
def _block(width: int, heads: int, ratio: float, head_dim: int | None, relative_distance: int) -> Attention:
    check_whole("num_heads", heads)
    if head_dim is None and width % heads:
        raise BadSettings(f"`embed_dim` must be a multiple of `num_heads`, but got {width} and {heads}")
    return attention(heads, head_dim or width // heads, hidden_width(width, ratio), relative_distance)


@lru_cache(maxsize=1 << 14)
def _ratio(width: int, hidden: int, choices: tuple[float, ...]) -> float:
    """The choice that gives this hidden width, or a ratio that does."""
    found = [ratio for ratio in choices if int(width * ratio) == hidden]
    return found[0] if found else hidden_ratio(width, hidden)


@lru_cache(maxsize=256)
def _patch(size: int) -> Patch:
    return Patch(size=size, stride=size)


_AUTOFORMER = "Chen et al., AutoFormer: Searching Transformers for Visual Recognition, ICCV 2021"

for _space in (
    Isotropic(
        name="autoformer-tiny",
        description="AutoFormer-T: 5.4-10.5 M parameters",
        paper=_AUTOFORMER,
        embed_dim=(192, 216, 240),
        depth=(12, 13, 14),
        num_heads=(3, 4),
        mlp_ratio=(3.5, 4.0),
    ),
    Isotropic(
        name="autoformer-small",
        description="AutoFormer-S: 13-35 M parameters",
        paper=_AUTOFORMER,
        embed_dim=(320, 384, 448),
        depth=(12, 13, 14),
        num_heads=(5, 6, 7),
        mlp_ratio=(3.0, 3.5, 4.0),
    ),
    Isotropic(
        name="autoformer-base",
        description="AutoFormer-B: 42-77 M parameters",
        paper=_AUTOFORMER,
        embed_dim=(528, 576, 624),
        depth=(14, 15, 16),
        num_heads=(9, 10),
        mlp_ratio=(3.0, 3.5, 4.0),
    ),
    Isotropic(
        name="autoformer-base-wide",
        description="AutoFormer-B with 8-10 heads, as in PreNAS's Table 1",
        paper="Wang et al., PreNAS: Preferred One-Shot Learning Towards Efficient NAS, ICML 2023",
        embed_dim=(528, 576, 624),
        depth=(14, 15, 16),
        num_heads=(8, 9, 10),
        mlp_ratio=(3.0, 3.5, 4.0),
    ),
    Isotropic(
        name="autoformer-tiny-plain",
        description="AutoFormer-T without relative position, attention as wide as the network (ViT-Bench-101)",
        paper="Wei et al., Auto-Prox: Training-Free ViT Architecture Search via Automatic Proxy Discovery, AAAI 2024",
        embed_dim=(192, 216, 240),
        depth=(12, 13, 14),
        num_heads=(3, 4),
        mlp_ratio=(3.5, 4.0),
        head_dim=None,
        relative_distance=0,
        norm_eps=1e-6,
    ),
    Isotropic(
        name="autoformer-micro",
        description="160 very small networks, for tests and brute-force checks",
        paper=_AUTOFORMER,
        embed_dim=(32, 48),
        depth=(2, 3),
        num_heads=(2, 3),
        mlp_ratio=(2.0, 3.0),
        head_dim=16,
    ),
):
    SPACES.add(_space.name, _space)
