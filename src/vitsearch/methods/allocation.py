"""Which block gets how much, so that the scores of all blocks add up to the most.

`values[block][choice]` is what a block adds with a choice, `sizes[choice]` what the choice takes, both growing with the
choice. An allocation is one choice for each block; those of one total size are PreNAS's isomers (appendix B).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

Values: TypeAlias = Sequence[Sequence[float]]
Allocation: TypeAlias = tuple[int, ...]


def total_size(sizes: Sequence[int], allocation: Allocation) -> int:
    return sum(sizes[choice] for choice in allocation)


def total_value(values: Values, allocation: Allocation) -> float:
    """Added up from the first block on, as `best_by_total` does: rounding never puts another one above the best."""
    total = 0.0
    for block, choice in zip(values, allocation, strict=True):
        total += block[choice]
    return total


def best_by_total(values: Values, sizes: Sequence[int]) -> dict[int, Allocation]:
    """The best allocation of every total that can be had: dynamic programming over the blocks. Exact."""
    reached: list[dict[int, tuple[float, int]]] = [{0: (0.0, -1)}]  # [blocks so far][total] = value, last choice
    for block in values:
        found: dict[int, tuple[float, int]] = {}
        for total, (value, _) in reached[-1].items():
            for choice, size in enumerate(sizes):
                known = found.get(total + size)
                if known is None or value + block[choice] > known[0]:
                    found[total + size] = (value + block[choice], choice)
        reached.append(found)
    return {total: _trace(reached, sizes, total) for total in sorted(reached[-1])}


def _trace(reached: Sequence[dict[int, tuple[float, int]]], sizes: Sequence[int], total: int) -> Allocation:
    choices: list[int] = []
    for found in reversed(reached[1:]):
        choice = found[total][1]
        choices.append(choice)
        total -= sizes[choice]
    return tuple(reversed(choices))


def greedy(values: Values, sizes: Sequence[int], total: int) -> Allocation | None:
    """Algorithm 1: from the lowest choice everywhere, the next step goes to the block that gains the most by it.

    None where steps of unequal size leave a rest that no step fits.
    """
    allocation = [0] * len(values)
    left = total - len(values) * sizes[0]
    while left > 0:
        gains = {
            number: block[choice + 1] - block[choice]
            for number, (block, choice) in enumerate(zip(values, allocation, strict=True))
            if choice + 1 < len(sizes) and sizes[choice + 1] - sizes[choice] <= left
        }
        if not gains:
            return None
        best = max(gains, key=gains.__getitem__)
        left -= sizes[allocation[best] + 1] - sizes[allocation[best]]
        allocation[best] += 1
    return tuple(allocation) if left == 0 else None


def largest_first(values: Values, counts: Sequence[int]) -> Allocation:
    """The public code: `counts[choice]` blocks get each choice, the largest choice first.

    It goes to the blocks that gain the most by the last step to it; the next one, among the rest, likewise.
    """
    allocation = [0] * len(values)
    free = list(range(len(values)))
    for choice in range(len(counts) - 1, 0, -1):
        # the public code sorts upwards and takes from the end: of equals the last
        free.sort(key=lambda number: (values[number][choice] - values[number][choice - 1], number))
        for _ in range(counts[choice]):
            allocation[free.pop()] = choice
    return tuple(allocation)


def counts_of_the_code(blocks: int, choices: int) -> Iterator[tuple[int, ...]]:
    """How many blocks get each choice. Cut points never coincide, so a choice between others is never left out."""
    for cuts in itertools.combinations(range(blocks + 1), choices - 1):
        edges = (0, *cuts, blocks)
        yield tuple(after - before for before, after in itertools.pairwise(edges))


def agreement(one: Allocation, other: Allocation) -> float | None:
    """Cohen's kappa: 1 where two allocations are the same, 0 where they agree as often as chance has it.

    None where there is nothing to agree about: both give every block the same.
    """
    blocks, choices = len(one), set(one) | set(other)
    chance = sum(one.count(choice) * other.count(choice) for choice in choices) / blocks**2
    if chance == 1:
        return None
    same = sum(a == b for a, b in zip(one, other, strict=True)) / blocks
    return (same - chance) / (1 - chance)
