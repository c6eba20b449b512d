"""The part of a space that satisfies limits: its exact size, and its members by index.

A space is cut into cells of equal cost with a known number of members. Keeping the cells that the limits allow and
adding up their counts turns an index below `size` into a member, so that uniform sampling under limits needs no
rejection, and an iteration visits each member once.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

from vitsearch.architecture import Settings
from vitsearch.cost import Cost, Limits
from vitsearch.errors import NothingFits


class Cell(NamedTuple):
    """So many `members` that all have this cost; `place` tells the space which ones."""

    members: int
    cost: Cost
    place: Any


class Region:
    """Members are numbered from 0 to `size - 1`; `member` maps (place, rank inside the cell) to settings."""

    def __init__(self, cells: Sequence[Cell], member: Callable[[Any, int], Settings]) -> None:
        self.cells = cells
        self._member = member
        self._ends = list(accumulate(cell.members for cell in cells))

    @property
    def size(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Settings:
        if not 0 <= index < self.size:
            raise IndexError(f"index {index} is not in a region of {self.size} architectures")
        position = bisect.bisect_right(self._ends, index)
        start = self._ends[position - 1] if position else 0
        return self._member(self.cells[position].place, index - start)

    def __iter__(self) -> Iterator[Settings]:
        return (self[index] for index in range(self.size))

    def sample(self, random: Random) -> Settings:
        """One member, each with the same probability."""
        return self[random.randrange(self.size)]

    def smallest(self) -> Settings:
        """A member with the fewest parameters (then the fewest MACs)."""
        return self._member(min(self.cells, key=lambda cell: cell.cost).place, 0)

    def largest(self) -> Settings:
        """A member with the most parameters (then the most MACs)."""
        return self._member(max(self.cells, key=lambda cell: cell.cost).place, 0)

    def within(self, limits: Limits, space: str) -> Region:
        """The members that satisfy `limits`; `NothingFits`, with the nearest cost, when there are none."""
        cells = [cell for cell in self.cells if limits.allow(cell.cost)]
        if not cells:
            nearest = min(self.cells, key=lambda cell: limits.excess(cell.cost)).cost
            raise NothingFits(
                f"no architecture of {space} satisfies {limits}; "
                f"the nearest has params={nearest.params}, macs={nearest.macs}"
            )
        return Region(cells, self._member)

    def shuffled(self, seed: int, number: int) -> Settings:
        """Member `number` of an order that depends on the seed alone and repeats nothing."""
        return self[permute(number, self.size, seed)]

    def walk(self, seed: int) -> Iterator[Settings]:
        """All members in that order."""
        return (self.shuffled(seed, number) for number in range(self.size))

    def part(self, start: int, count: int, seed: int | None = None) -> list[Settings]:
        """Members from `start` on, in their own order or the one of a seed; fewer at the end."""
        numbers = range(start, min(start + count, self.size))
        return [self[number] if seed is None else self.shuffled(seed, number) for number in numbers]


def permute(number: int, size: int, seed: int) -> int:
    """A pseudo-random permutation of range(size), one value at a time.

    A balanced Feistel network over the next even number of bits; values beyond `size` are sent round again
    (cycle walking), which takes fewer than four rounds on average.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = number >> half, number & mask
        for round_number in range(8):
            text = f"{seed}/{size}/{round_number}/{right}".encode()
            digest = hashlib.blake2b(text, digest_size=half // 8 + 1).digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        number = left << half | right
        if number < size:
            return number
