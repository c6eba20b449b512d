"""Regions of spaces whose stages are independent and whose costs are too many to list.

Without limits every member has a number: one digit for each choice. Under limits, networks are drawn from a table of
how many ways are left at each point for what is left of the budget, in `BINS` parts that round each block's cost down:
so it allows all that fit and a few more, and those are passed over. Draws are uniform over the members that fit. How
many those are is not counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from random import Random
from typing import Any

from vitsearch.architecture import Settings, brief
from vitsearch.cost import Cost, Geometry, Limits, architecture_cost, block_cost, entry_cost, fixed_cost
from vitsearch.errors import NothingFits, VitsearchError
from vitsearch.spaces.region import Region

BINS = 1 << 14
COUNTED = 1 << 1000  # below what a float holds
PATIENCE = 10_000
"""So many draws in a row that give nothing new are taken for the end."""


def count_stage(choices: Sequence[Sequence[Any]]) -> int:
    """Members of one stage: `choices` of depth, of width, and then of what each block has."""
    depths, widths, *block = choices
    kinds = 1
    for own in block:
        kinds *= len(own)
    total: int = len(widths) * sum(kinds**depth for depth in depths)
    return total


def stage_member(choices: Sequence[Sequence[Any]], rank: int) -> list[Any]:
    """Depth, width, and for each thing that blocks have the list of it."""
    depths, widths, *block = choices
    rank, place = divmod(rank, len(widths))
    kinds = 1
    for own in block:
        kinds *= len(own)
    depth = 0
    for depth in depths:
        if rank < kinds**depth:
            break
        rank -= kinds**depth
    values: list[list[Any]] = [[] for _ in block]
    for _ in range(depth):
        for own, found in zip(block, values, strict=True):
            rank, digit = divmod(rank, len(own))
            found.append(own[digit])
    return [depth, widths[place], *values]


class StagedRegion(Region):
    """All members of a space (`Windowed`), or those within limits."""

    def __init__(self, space: Any, geometry: Geometry, limits: Limits | None = None) -> None:
        super().__init__([], space.member)  # no cells are listed
        self.space, self.geometry, self.limits = space, geometry, limits
        self._walks: dict[int, tuple[Iterator[Settings], list[Settings]]] = {}

    @property
    def size(self) -> int:
        if self.limits is not None:
            raise VitsearchError(f"`size` of {self.space.name} is known without limits only, but got {self.limits}")
        return int(self.space.count)

    def __getitem__(self, index: int) -> Settings:
        if self.limits is not None:
            return self.shuffled(0, index)
        if not 0 <= index < self.size:
            raise IndexError(f"index {index} is not in a region of {self.size} architectures")
        found: Settings = self.space.numbered(index)
        return found

    def __iter__(self) -> Iterator[Settings]:
        return super().__iter__() if self.limits is None else self.walk(0)

    def sample(self, random: Random) -> Settings:
        if self.limits is None:
            return super().sample(random)
        for _ in range(PATIENCE):
            settings = self.ways.draw(random)
            if self.limits.allow(self._cost(settings)):
                return settings
        raise NothingFits(
            f"none of {PATIENCE} architectures of {self.space.name} drawn near them satisfies {self.limits}"
        )

    def smallest(self) -> Settings:
        return self._end(min)

    def largest(self) -> Settings:
        return self._end(max)

    def within(self, limits: Limits, space: str) -> Region:
        region = StagedRegion(self.space, self.geometry, limits)
        if not region.ways.total:
            ends = [self._cost(self.space.end(which)) for which in (min, max)]
            nearest = min(ends, key=limits.excess)
            raise NothingFits(
                f"no architecture of {space} satisfies {limits}; "
                f"the nearest has params={nearest.params}, macs={nearest.macs}"
            )
        return region

    def shuffled(self, seed: int, number: int) -> Settings:
        if self.limits is None:
            return super().shuffled(seed, number)
        if not (found := self.part(number, 1, seed)):
            raise IndexError(f"index {number} is not in this region of fewer architectures")
        return found[0]

    def part(self, start: int, count: int, seed: int | None = None) -> list[Settings]:
        if self.limits is None:
            return super().part(start, count, seed)
        walk, found = self._walks.setdefault(seed or 0, (self.walk(seed or 0), []))
        found += islice(walk, max(0, start + count - len(found)))
        return found[start : start + count]

    def walk(self, seed: int) -> Iterator[Settings]:
        if self.limits is None:
            yield from super().walk(seed)
            return
        random, known, again = Random(f"{seed}/walk"), set(), 0
        while again < PATIENCE:
            settings = self.sample(random)
            key = str(settings)
            again = again + 1 if key in known else 0
            if not again:
                known.add(key)
                yield settings

    @cached_property
    def ways(self) -> Ways:
        """By the resource whose limits leave the smaller share."""
        assert self.limits is not None
        resources = dict.fromkeys(name.partition("_")[2] for name in self.limits.bounds())
        found = [Ways(self.space, self.geometry, resource, self.limits) for resource in resources]
        return min(found, key=lambda ways: ways.total)

    def _cost(self, settings: Settings) -> Cost:
        return architecture_cost(self.space.decode(settings), self.geometry)

    def _end(self, which: Callable[..., Any]) -> Settings:
        settings: Settings = self.space.end(which)
        if self.limits is not None and not self.limits.allow(self._cost(settings)):
            raise VitsearchError(f"the {which.__name__} of {self.space.name} must satisfy {self.limits}")
        return settings


class Ways:
    """How many networks have a total of so many bins of one resource, from each point of the network to its end."""

    def __init__(self, space: Any, geometry: Geometry, resource: str, limits: Limits) -> None:
        import numpy as np

        if space.count >= COUNTED:
            rule = "`limits` must be of a space of fewer than 2^1000 networks, which can be counted"
            raise VitsearchError(f"{rule}, but got {brief(space.name)}")
        self.space, self.geometry, self.resource = space, geometry, resource
        self.smallest = space.decode(space.end(min))
        self.sides = self.smallest.sides(geometry.image_size)
        largest = architecture_cost(space.decode(space.end(max)), geometry)
        bounds = limits.bounds()
        most = min(bounds.get(f"max_{resource}", 1 << 62), int(getattr(largest, resource)))
        self.unit = max(1, most // BINS)
        high = most // self.unit
        parts = sum(max(stage) for stage in space.depth) + space.stages + 1  # each loses less than a bin
        low = max(0, bounds.get(f"min_{resource}", 0) // self.unit - parts)
        self.bins = high + 1
        self.kinds: dict[tuple[int, int], tuple[list[tuple[Any, ...]], list[int]]] = {}
        """For each stage and width what a block may be, and the bins that it takes."""
        self.whole: dict[tuple[int, int], Any] = {}
        self.blocks: list[dict[int, list[Any]]] = [{} for _ in range(space.stages)]
        for stage in reversed(range(space.stages)):
            for width in space.embed_dim[stage]:
                self._fill(stage, width)
        start = self._ahead(-1, geometry.channels)
        start[:low] = 0
        self.by_bin = np.cumsum(start)
        self.total = float(self.by_bin[-1])

    def _fill(self, stage: int, width: int) -> None:
        """blocks[stage][width][n][bin]: ways from where n blocks of this stage are left."""
        import numpy as np

        if stage == self.space.stages - 1:
            ways = np.zeros(self.bins)
            if (last := self._final(width)) < self.bins:
                ways[last] = 1.0
        else:
            ways = self._ahead(stage, width)
        kinds = list(itertools.product(*self.space.stage_choices(stage)[2:]))
        bins = [self._block(stage, width, kind) for kind in kinds]
        self.kinds[stage, width] = kinds, bins
        levels = [ways]
        for _ in range(max(self.space.depth[stage])):
            levels.append(sum(_shifted(levels[-1], own) for own in bins))
        self.blocks[stage][width] = levels
        self.whole[stage, width] = sum(levels[depth] for depth in self.space.depth[stage])

    def _ahead(self, stage: int, width: int) -> Any:
        """Ways from the end of a stage of this width, over all widths of the next."""
        return sum(
            _shifted(self.whole[stage + 1, wide], self._entry(stage + 1, width, wide))
            for wide in self.space.embed_dim[stage + 1]
        )

    def _bins(self, cost: Cost) -> int:
        return int(getattr(cost, self.resource)) // self.unit

    def _block(self, stage: int, width: int, kind: tuple[Any, ...]) -> int:
        return self._bins(block_cost(self.space.block(width, *kind), width, self.sides[stage], 0))

    def _entry(self, stage: int, before: int, width: int) -> int:
        return self._bins(entry_cost(self.smallest.stages[stage].entry, before, width, self.sides[stage], 0))

    def _final(self, width: int) -> int:
        """Final norm and classifier: all that is not a block, less the entries."""
        plan, sides = self.space.with_last_width(self.smallest, width), self.sides
        fixed = fixed_cost(plan, self.geometry, sides, 0)
        before = [self.geometry.channels, *(stage.width for stage in plan.stages)]
        entries = [
            entry_cost(stage.entry, before[index], stage.width, sides[index], 0)
            for index, stage in enumerate(plan.stages)
        ]
        rest = Cost(fixed.params - sum(e.params for e in entries), fixed.macs - sum(e.macs for e in entries))
        return self._bins(rest)

    def draw(self, random: Random) -> Settings:
        """Each network that the bins allow with the same probability."""
        import numpy as np

        left = int(np.searchsorted(self.by_bin, random.random() * self.total, side="right"))
        left = min(left, self.bins - 1)
        before, found = self.geometry.channels, []
        for stage in range(self.space.stages):
            widths = self.space.embed_dim[stage]
            after = [left - self._entry(stage, before, width) for width in widths]
            ways = [_at(self.whole[stage, width], bins) for width, bins in zip(widths, after, strict=True)]
            place = _pick(ways, random)
            width, left = widths[place], after[place]
            levels, depths = self.blocks[stage][width], self.space.depth[stage]
            depth = depths[_pick([_at(levels[depth], left) for depth in depths], random)]
            chosen, (kinds, bins) = [], self.kinds[stage, width]
            for more in range(depth - 1, -1, -1):
                place = _pick([_at(levels[more], left - own) for own in bins], random)
                chosen.append(kinds[place])
                left -= bins[place]
            found.append([depth, width, *(list(values) for values in zip(*chosen, strict=True))])
            before = width
        settings: Settings = self.space.joined(found)
        return settings


def _shifted(ways: Any, bins: int) -> Any:
    import numpy as np

    moved = np.zeros_like(ways)
    if bins < len(ways):
        moved[bins:] = ways[: len(ways) - bins]
    return moved


def _at(ways: Any, bins: int) -> float:
    return float(ways[bins]) if bins >= 0 else 0.0


def _pick(weights: Sequence[float], random: Random) -> int:
    left = random.random() * sum(weights)
    for place, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return place
    return max(place for place, weight in enumerate(weights) if weight > 0)  # rounding at the end
