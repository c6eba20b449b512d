"""Dynamic programming against trying everything; Algorithm 1 and the public code's rule against both."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest

from vitsearch.methods.allocation import (
    Allocation,
    agreement,
    best_by_total,
    counts_of_the_code,
    greedy,
    largest_first,
    total_size,
    total_value,
)

SIZES = [(3, 4), (5, 6, 7), (1, 2, 4, 7), (48, 96, 112)]


def growing(random: Random, blocks: int, choices: int) -> list[list[float]]:
    """Values of blocks that grow with the choice, by steps in any order."""
    return [list(itertools.accumulate(random.random() for _ in range(choices))) for _ in range(blocks)]


def by_trying(values: list[list[float]], sizes: tuple[int, ...]) -> dict[int, float]:
    best: dict[int, float] = {}
    for allocation in itertools.product(range(len(sizes)), repeat=len(values)):
        total = sum(sizes[choice] for choice in allocation)
        value = math.fsum(values[block][choice] for block, choice in enumerate(allocation))
        best[total] = max(best.get(total, -math.inf), value)
    return best


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", range(5))
def test_the_optimum_is_that_of_trying_everything(sizes: tuple[int, ...], seed: int) -> None:
    values = growing(Random(seed), 5, len(sizes))
    expected, found = by_trying(values, sizes), best_by_total(values, sizes)
    assert set(found) == set(expected)
    for total, allocation in found.items():
        assert total_size(sizes, allocation) == total
        assert total_value(values, allocation) == pytest.approx(expected[total], rel=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_algorithm_1_is_never_above_the_optimum_and_equal_with_two_choices(seed: int) -> None:
    below = 0
    for sizes in SIZES:
        values = growing(Random(seed), 12, len(sizes))
        for total, best in best_by_total(values, sizes).items():
            found = greedy(values, sizes, total)
            if found is None:
                assert sizes in SIZES[2:]  # steps of unequal size may leave a rest
                continue
            assert total_size(sizes, found) == total
            assert total_value(values, found) <= total_value(values, best)  # to the last bit
            if len(sizes) == 2:
                assert found == best
            below += total_value(values, found) < total_value(values, best)
    assert below > 5  # with more than two choices Algorithm 1 does miss the optimum


def test_algorithm_1_by_hand() -> None:
    """A small first step hides a large second one."""
    values = [[0.0, 1.0, 9.0], [0.0, 2.0, 3.0]]
    assert greedy(values, (1, 2, 3), 4) == (1, 1)  # 2, then max(1, 1): the first of equals
    assert best_by_total(values, (1, 2, 3))[4] == (2, 0)


def test_the_rule_of_the_public_code_by_hand() -> None:
    values = [[0.0, 5.0, 6.0], [0.0, 1.0, 4.0], [0.0, 2.0, 4.0], [0.0, 3.0, 3.5]]
    # last steps 1, 3, 2, 0.5: block 1 gets the most; of the rest, first steps 5, 2, 3: blocks 0 and 3 get the middle
    assert largest_first(values, (1, 2, 1)) == (1, 2, 0, 1)
    assert largest_first(values, (4, 0, 0)) == (0, 0, 0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_all_three_rules_agree_with_two_choices(seed: int) -> None:
    values = growing(Random(seed), 12, 2)
    for total, best in best_by_total(values, (3, 4)).items():
        large = total - 3 * 12
        assert largest_first(values, (12 - large, large)) == best == greedy(values, (3, 4), total)


def test_the_public_code_never_leaves_the_middle_out() -> None:
    assert list(counts_of_the_code(3, 2)) == [(0, 3), (1, 2), (2, 1), (3, 0)]
    three = list(counts_of_the_code(13, 3))
    assert len(three) == len(set(three)) == 91  # of 105 with a middle of zero
    assert all(middle >= 1 and low + middle + high == 13 for low, middle, high in three)


def test_agreement_is_1_for_the_same_and_0_by_chance() -> None:
    one: Allocation = (0, 0, 0, 1, 1, 1, 1, 1)
    assert agreement(one, one) == 1
    assert agreement((0, 0, 0), (0, 0, 0)) is None
    assert agreement((0, 1), (1, 0)) == -1
    random = Random(0)
    found = [agreement(one, tuple(random.sample(one, len(one)))) for _ in range(2000)]
    known = [value for value in found if value is not None]
    assert len(known) == 2000 and abs(sum(known) / 2000) < 0.03
