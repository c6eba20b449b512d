"""Members of a space of slots, counted: each slot is empty, or has heads, an attention step and an MLP step.

The cost of a network depends on its patch size and width, the number of its blocks, and the sums of their attention
and MLP steps, and is linear in those three. So limits leave an interval of MLP sums for each combination of the others,
and a space of 10^43 networks is some 37,000 rows, each with a known number of members.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from random import Random
from typing import NamedTuple

from vitsearch.architecture import Settings
from vitsearch.cost import Cost, Limits
from vitsearch.errors import NothingFits, VitsearchError
from vitsearch.spaces.region import Cell, Region

MOST_ROWS = 1_000_000  # some twenty seconds and half a gigabyte


class Slots(NamedTuple):
    """The choices of a slot. `optional`: it may be empty."""

    number: int
    heads: tuple[int, ...]
    steps: int
    optional: bool

    @property
    def depths(self) -> range:
        return range(0 if self.optional else self.number, self.number + 1)

    @property
    def rows(self) -> int:
        """How many there are for each frame: so many depths and sums of attention steps."""
        return sum(depth * (self.steps - 1) + 1 for depth in self.depths)


class Frame(NamedTuple):
    """What a patch size and a width cost: the rest of the network, a block, and each step of its two ratios."""

    patch_size: int
    width: int
    fixed: Cost
    block: Cost
    attention_step: Cost
    mlp_step: Cost

    def cost(self, depth: int, attention: int, mlp: int) -> Cost:
        parts = zip(self.fixed, self.block, self.attention_step, self.mlp_step, strict=True)
        return Cost(*(fixed + depth * block + attention * a + mlp * m for fixed, block, a, m in parts))


class Row(NamedTuple):
    """Networks with these sums of steps: of attention exactly, of the MLPs from `low` to `high`."""

    frame: Frame
    depth: int
    attention: int
    low: int
    high: int


class Member(NamedTuple):
    """Per slot, None or (heads, attention step, MLP step)."""

    patch_size: int
    width: int
    blocks: list[tuple[int, int, int] | None]


@lru_cache(maxsize=32)
def sequences(depth: int, steps: int) -> list[list[int]]:
    """[length][sum]: how many sequences of so many steps, each 1 to `steps`, add up to that."""
    table = [[1] + [0] * (depth * steps)]
    for _ in range(depth):
        before = table[-1]
        table.append([sum(before[max(0, total - steps) : total]) for total in range(depth * steps + 1)])
    return table


def nth_sequence(table: Sequence[Sequence[int]], length: int, total: int, rank: int, steps: int) -> list[int]:
    found: list[int] = []
    for left in range(length - 1, -1, -1):
        for step in range(1, min(steps, total) + 1):
            count = table[left][total - step]
            if rank < count:
                found.append(step)
                total -= step
                break
            rank -= count
    return found


def nth_places(slots: int, depth: int, rank: int) -> list[int]:
    """Of the ways to choose `depth` slots, in lexicographic order."""
    found: list[int] = []
    for place in range(slots):
        with_it = math.comb(slots - place - 1, depth - len(found) - 1) if len(found) < depth else 0
        if rank < with_it:
            found.append(place)
        else:
            rank -= with_it
    return found


class SlottedRegion(Region):
    """A region whose cells are rows: the networks of a cell differ in cost, and all of them satisfy the limits."""

    def __init__(
        self,
        slots: Slots,
        frames: Sequence[Frame],
        limits: Limits,
        space: str,
        settings: Callable[[Member], Settings],
    ) -> None:
        self.slots, self._table = slots, sequences(slots.number, slots.steps)
        self._sums = [list(accumulate(counts)) for counts in self._table]
        self._settings, self._space, self._limits = settings, space, limits
        super().__init__([self._cell(row) for row in self._rows(frames, limits)], self._settle)
        if not self.cells:
            nearest = self._nearest(frames)
            raise NothingFits(
                f"no architecture of {space} satisfies {limits}; "
                f"the nearest has params={nearest.params}, macs={nearest.macs}"
            )
        self._leaning: dict[Fraction, list[int]] = {}

    def largest(self) -> Settings:
        cell = max(self.cells, key=lambda cell: cell.place.frame.cost(*cell.place[1:3], cell.place.high))
        return self._settle(cell.place, cell.members - 1)

    @cached_property
    def depths(self) -> set[int]:
        """Numbers of blocks that occur."""
        return {cell.place.depth for cell in self.cells}

    def lean(self, random: Random, identity: float) -> Settings:
        """One member as drawing each slot apart gives it, empty with this probability, given that the limits hold."""
        share = Fraction(identity).limit_denominator(10**6)
        if share not in self._leaning:
            if not 0 <= share <= 1 or not self.slots.optional:
                rule = "must be from 0 to 1, in a space whose slots may be empty"
                raise VitsearchError(f"`identity` {rule}, but got {identity} in {self._space}")
            present, choices = 1 - share, len(self.slots.heads) * self.slots.steps**2
            # of a network with d blocks, times a common factor: (identity * choices)^(slots - d) * present^d
            empty, block = share.numerator * choices, present.numerator * (share.denominator // present.denominator)
            weights = [empty ** (self.slots.number - d) * block**d for d in range(self.slots.number + 1)]
            self._leaning[share] = list(accumulate(cell.members * weights[cell.place.depth] for cell in self.cells))
        ends = self._leaning[share]
        if not ends[-1]:
            raise NothingFits(f"no network of {self._space} with {self._limits} has probability at identity {identity}")
        cell = self.cells[bisect.bisect_right(ends, random.randrange(ends[-1]))]
        return self._settle(cell.place, random.randrange(cell.members))

    def _rows(self, frames: Sequence[Frame], limits: Limits) -> Iterator[Row]:
        steps = self.slots.steps
        for frame in frames:
            for depth in self.slots.depths:
                for attention in range(depth, depth * steps + 1):
                    start = frame.cost(depth, attention, 0)
                    low, high = mlp_sums(limits, start, frame.mlp_step, depth, depth * steps)
                    if low <= high:
                        yield Row(frame, depth, attention, low, high)

    def _cell(self, row: Row) -> Cell:
        ways = math.comb(self.slots.number, row.depth) * len(self.slots.heads) ** row.depth
        sums = self._sums[row.depth]
        mlps = sums[row.high] - (sums[row.low - 1] if row.low else 0)
        members = ways * self._table[row.depth][row.attention] * mlps
        return Cell(members, row.frame.cost(row.depth, row.attention, row.low), row)

    def _settle(self, row: Row, rank: int) -> Settings:
        """The sum of the MLP steps counts most, so that ranks begin with the least costly networks."""
        table, (count, heads, steps, _) = self._table, self.slots
        ways = math.comb(count, row.depth), len(heads) ** row.depth, table[row.depth][row.attention]
        rank, place = divmod(rank, ways[0])
        rank, choice = divmod(rank, ways[1])
        rank, attention_rank = divmod(rank, ways[2])
        mlp = row.low
        while rank >= table[row.depth][mlp]:
            rank -= table[row.depth][mlp]
            mlp += 1
        attention_steps = nth_sequence(table, row.depth, row.attention, attention_rank, steps)
        mlp_steps = nth_sequence(table, row.depth, mlp, rank, steps)
        blocks: list[tuple[int, int, int] | None] = [None] * count
        for slot, attention, hidden in zip(
            nth_places(count, row.depth, place), attention_steps, mlp_steps, strict=True
        ):
            choice, number = divmod(choice, len(heads))
            blocks[slot] = (heads[number], attention, hidden)
        return self._settings(Member(row.frame.patch_size, row.frame.width, blocks))

    def _nearest(self, frames: Sequence[Frame]) -> Cost:
        """The excess is linear between the sums at which a bound is met: those and the ends are enough."""
        found: list[Cost] = []
        for row in self._rows(frames, Limits()):
            start = row.frame.cost(row.depth, row.attention, 0)
            sums = {row.low, row.high}
            for name, bound in self._limits.bounds().items():
                kind = name.partition("_")[2]
                met = (bound - getattr(start, kind)) // getattr(row.frame.mlp_step, kind)
                sums |= {total for total in (met, met + 1) if row.low <= total <= row.high}
            found += [row.frame.cost(row.depth, row.attention, total) for total in sums]
        return min(found, key=self._limits.excess)


def mlp_sums(limits: Limits, start: Cost, step: Cost, low: int, high: int) -> tuple[int, int]:
    """The sums of MLP steps, within `low` to `high`, that the limits allow."""
    for name, bound in limits.bounds().items():
        kind = name.partition("_")[2]
        room, each = bound - getattr(start, kind), getattr(step, kind)
        if name.startswith("max"):
            high = min(high, room // each)
        else:
            low = max(low, -(-room // each))
    return low, high
