"""Which networks go through together, and how they change places so that equal ones are neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitsearch.architecture import Architecture, Attention, Block, Entry, Patch, Pool


def can_batch(architecture: Architecture) -> bool:
    """Whether every part of the blueprint is of a kind that goes through together, and no stage is without blocks."""
    return architecture.resolution is None and all(
        _known(stage.entry) and len(stage.blocks) > 0 and all(map(_plain, stage.blocks))
        for stage in architecture.stages
    )


def _known(entry: Entry) -> bool:
    return isinstance(entry, Pool) or (isinstance(entry, Patch) and not entry.norm)


def _plain(block: Block) -> bool:
    return isinstance(block, Attention) and block.scale == "head" and not block.layer_scale


def skeleton(architecture: Architecture) -> tuple[Any, ...]:
    """What networks must have in common to go through together: everything but the blocks."""
    stages = tuple((stage.entry, stage.width) for stage in architecture.stages)
    rest = (architecture.class_token, architecture.position, architecture.readout, architecture.norm_eps)
    return (stages, rest, architecture.initialisation)


def group_by_skeleton(plans: Mapping[int, Architecture]) -> list[list[int]]:
    """Numbers of plans that can go through together, in a fixed order: those of one depth are neighbours."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, plan in sorted(plans.items(), key=lambda item: sum(len(stage.blocks) for stage in item[1].stages)):
        groups.setdefault(skeleton(plan), []).append(number)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class Step:
    """Half a block: networks of equal settings go in together, and those that have no more blocks leave the stage."""

    before: list[int]
    groups: list[list[int]]
    left: list[int]
    blocks: list[Attention]

    @property
    def order(self) -> list[int]:
        return [*(network for group in self.groups for network in group), *self.left]

    def indices(self) -> list[list[int]]:
        """Rows to take, rows to take on the way back, and the networks of each group."""
        return [places(self.before, self.order), places(self.order, self.before), *self.groups]


def places(before: Sequence[int], after: Sequence[int]) -> list[int]:
    place = {network: row for row, network in enumerate(before)}
    return [place[network] for network in after]


def route(blocks: Sequence[Sequence[Attention]]) -> list[Step]:
    """The way of networks through a stage: first by attention, then by MLP, for each of their blocks."""
    steps: list[Step] = []
    order = list(range(len(blocks)))
    for number in range(max(map(len, blocks))):
        for key in (_attention_key, _mlp_key):
            members: dict[Any, list[int]] = {}
            for network in order:
                if number < len(blocks[network]):
                    members.setdefault(key(blocks[network][number]), []).append(network)
            groups = list(members.values())
            left = [network for network in order if number >= len(blocks[network])]
            steps.append(Step(order, groups, left, [blocks[group[0]][number] for group in groups]))
            order = [network for group in groups for network in group]
    return steps


def _attention_key(block: Attention) -> tuple[int, ...]:
    return block.heads, block.head_dim, block.relative_distance


def _mlp_key(block: Attention) -> int:
    return block.hidden
