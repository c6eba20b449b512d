from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import combinations
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vitsearch import ranking
from vitsearch.ranking import (
    MEASURES,
    agreement,
    bootstrap_agreement,
    kendall,
    kendall_equal_size,
    kendall_near_size,
    mean_best_rank,
    pareto_front,
    partial_kendall,
    pearson,
    spearman,
    top_regret,
)

points = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=40)
sized = st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.sampled_from([100, 104, 105, 106, 111])))
Column = Sequence[float]


@given(points)
def test_front_equals_brute_force(found: list[tuple[int, int, int]]) -> None:
    def beaten(point: tuple[int, ...]) -> bool:
        return any(all(o >= p for o, p in zip(other, point, strict=True)) and other != point for other in found)

    assert pareto_front(found) == [index for index, point in enumerate(found) if not beaten(point)]


# Slow references: one loop for each definition


def columns(rows: Sequence[tuple[int, ...]]) -> tuple[list[float], list[float], list[float]]:
    return [float(row[0]) for row in rows], [float(row[1]) for row in rows], [float(row[2]) for row in rows]


def reference(function: Callable[[Column, Column], tuple[float, float]], x: Column, y: Column) -> float | None:
    return None if len(set(x)) < 2 or len(set(y)) < 2 else float(function(x, y)[0])


def slow_partial(x: Column, y: Column, z: Column) -> float | None:
    pairs = [reference(stats.kendalltau, *both) for both in ((x, y), (x, z), (y, z))]
    if None in pairs or any(math.isclose(abs(found or 0), 1) for found in pairs[1:]):
        return None
    xy, xz, yz = (float(found or 0) for found in pairs)
    return (xy - xz * yz) / math.sqrt((1 - xz**2) * (1 - yz**2))


def slow_among(
    x: Column, y: Column, z: Column, within: float, names: Sequence[int] | None = None
) -> tuple[float | None, int]:
    """`names`: items of one name are copies and no pair."""
    total = pairs = 0
    for i, j in combinations(range(len(x)), 2):
        if max(z[i], z[j]) <= (1 + within) * min(z[i], z[j]) and (names is None or names[i] != names[j]):
            pairs += 1
            product = (x[i] - x[j]) * (y[i] - y[j])
            total += (product > 0) - (product < 0)
    return (total / pairs if pairs else None), pairs


def slow_regret(x: Column, y: Column, k: int) -> float | None:
    chosen = sorted(zip(x, y, strict=True), key=lambda pair: (-pair[0], pair[1]))[:k]
    return max(y) - max(value for _, value in chosen) if x else None


def slow_best_rank(x: Column, y: Column, groups: Sequence[object]) -> float | None:
    above = below = 0.0
    for group in set(groups):
        members = [index for index, label in enumerate(groups) if label == group]
        falling = sorted((y[index] for index in members), reverse=True)
        best = [index for index in members if x[index] == max(x[other] for other in members)]
        ranks = [mean(place for place, value in enumerate(falling, 1) if value == y[index]) for index in best]
        above += mean(ranks) - 1
        below += len(members) - 1
    return above / below if below else None


@given(sized)
def test_correlations_equal_scipy(rows: list[tuple[int, int, int]]) -> None:
    x, y, z = columns(rows)
    assert kendall(x, y) == pytest.approx(reference(stats.kendalltau, x, y), abs=1e-9)
    assert spearman(x, y) == pytest.approx(reference(stats.spearmanr, x, y), abs=1e-9)
    assert pearson(x, y) == pytest.approx(reference(stats.pearsonr, x, y), abs=1e-9)
    assert partial_kendall(x, y, z) == pytest.approx(slow_partial(x, y, z), abs=1e-9)


@given(sized, st.integers(1, 12), st.sampled_from([0.0, 0.01, 0.05, 1.0]))
def test_pairs_regret_and_best_rank_equal_their_definitions(
    rows: list[tuple[int, int, int]], k: int, within: float
) -> None:
    x, y, z = columns(rows)
    assert kendall_equal_size(x, y, z) == pytest.approx(slow_among(x, y, z, 0.0))
    assert kendall_near_size(x, y, z, within) == pytest.approx(slow_among(x, y, z, within))
    assert top_regret(x, y, k) == slow_regret(x, y, k)
    assert mean_best_rank(x, y, z) == pytest.approx(slow_best_rank(x, y, z))
    assert mean_best_rank(x, y, [f"size {size}" for size in z]) == mean_best_rank(x, y, z)


@given(sized)
def test_agreement_is_every_measure(rows: list[tuple[int, int, int]]) -> None:
    x, y, z = columns(rows)
    equal, near = kendall_equal_size(x, y, z), kendall_near_size(x, y, z)
    assert asdict(agreement(x, y, z)) == {
        "networks": len(x),
        "kendall": kendall(x, y),
        "spearman": spearman(x, y),
        "pearson": pearson(x, y),
        "partial_kendall": partial_kendall(x, y, z),
        "kendall_equal_size": equal[0],
        "equal_size_pairs": equal[1],
        "kendall_near_size": near[0],
        "near_size_pairs": near[1],
        "regret_1": top_regret(x, y, 1),
        "regret_5": top_regret(x, y, 5),
        "regret_10": top_regret(x, y, 10),
        "mean_best_rank": mean_best_rank(x, y, z),
    }


def test_worked_by_hand() -> None:
    # two groups: the first puts its third of three on top, the second its best of two; the last network stands alone
    scores, values, sizes = [9, 5, 1, 4, 2, 7], [60, 70, 80, 75, 65, 90], [10, 10, 10, 20, 20, 21]
    assert mean_best_rank(scores, values, sizes) == (2 + 0) / (2 + 1)
    assert kendall_equal_size(scores, values, sizes) == ((-3 + 1) / 4, 4)
    assert kendall_near_size(scores, values, sizes) == ((-3 + 1 + 2) / 6, 6)  # 20 and 21 are 5% apart
    assert [top_regret(scores, values, k) for k in (1, 2, 3)] == [90 - 60, 0, 0]
    # two share the highest score: they rank 1 and 2.5, as two share the second place by value
    assert mean_best_rank([3, 3, 1], [80, 70, 70], "aaa") == (1.75 - 1) / 2
    # three share the second-highest score: the lower values come first
    assert [top_regret([2, 1, 1, 1], [5, 9, 7, 8], k) for k in (1, 2, 3, 4)] == [4, 2, 1, 0]


def test_chance_is_a_half() -> None:
    generator = np.random.default_rng(0)
    scores, values, groups = generator.random(3000), generator.random(3000), generator.integers(400, size=3000)
    assert mean_best_rank(scores, values, groups.tolist()) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_scores_of_any_magnitude(scale: float) -> None:
    scores, values = [scale, 2 * scale, 4 * scale], [1, 3, 2]
    assert pearson(scores, values) == pytest.approx(pearson([1, 2, 4], values))
    assert pearson([0.1 * scale] * 3, values) is None  # though the mean of three equal floats may be another float


def test_undefined_is_none() -> None:
    for measure in (kendall, spearman, pearson):
        assert measure([], []) is measure([1], [2]) is measure([1, 1], [1, 2]) is measure([1, 2], [3, 3]) is None
    assert partial_kendall([1, 2, 3], [2, 1, 3], [5, 5, 5]) is None
    assert partial_kendall([1, 2, 3], [2, 1, 3], [1, 2, 3]) is None  # `given` says all that the scores say
    assert kendall_equal_size([1, 2], [1, 2], [10, 20]) == kendall_near_size([1, 2], [1, 2], [10, 20]) == (None, 0)
    assert mean_best_rank([1, 2], [1, 2], "ab") is mean_best_rank([], [], []) is top_regret([], [], 1) is None
    assert top_regret([1], [2], 5) == 0


def test_bad_arguments() -> None:
    for call in (
        lambda: kendall([1, 2], [1]),
        lambda: partial_kendall([1, 2], [1, 2], [1]),
        lambda: kendall_near_size([1, 2], [1, 2], [1]),
        lambda: kendall_near_size([1, 2], [1, 2], [1, 2], within=-0.1),
        lambda: top_regret([1, 2], [1, 2], 0),
        lambda: mean_best_rank([1, 2], [1, 2], "a"),
        lambda: agreement([1, 2], [1, 2], [1]),
        lambda: bootstrap_agreement([[1, 2]], [1, 2, 3], [1, 2]),
        lambda: bootstrap_agreement([[[1, 2]]], [1, 2], [1, 2]),
        lambda: bootstrap_agreement(np.zeros((0, 2)), [1, 2], [1, 2]),
        lambda: bootstrap_agreement([1, 2], [1, 2], [1, 2], resamples=0),
        lambda: bootstrap_agreement([1, 2], [1, 2], [1, 2], level=1),
    ):
        with pytest.raises(ValueError, match="must"):
            call()


# Bootstrap


def expanded(x: Column, y: Column, z: Column, counts: Sequence[int]) -> dict[str, float | None]:
    """Every measure of one resample, written out with its copies."""
    names = [index for index, count in enumerate(counts) for _ in range(int(count))]
    x, y, z = ([column[name] for name in names] for column in (x, y, z))
    measures = asdict(agreement(x, y, z))
    measures["kendall_equal_size"] = slow_among(x, y, z, 0.0, names)[0]
    measures["kendall_near_size"] = slow_among(x, y, z, 0.05, names)[0]
    return {name: measures[name] for name in MEASURES}


def slow_intervals(
    runs: Sequence[Column], y: Column, z: Column, resamples: int, seed: int, level: float
) -> dict[str, tuple[float, float] | None]:
    draws = ranking._counts(len(y), resamples, seed).astype(int).tolist()
    found: dict[str, tuple[float, float] | None] = {}
    tables = [[expanded(x, y, z, counts) for x in runs] for counts in draws]
    for name in MEASURES:
        values = [[one[name] for one in table] for table in tables]
        if name == "mean_best_rank":  # a network drawn twice is one member of its group
            drawn = [[min(count, 1) for count in counts] for counts in draws]
            values = [[expanded(x, y, z, counts)[name] for x in runs] for counts in drawn]
        defined = [mean(each) for each in values if None not in each]
        ends = [100 * (1 - level) / 2, 100 * (1 + level) / 2]
        found[name] = tuple(np.percentile(defined, ends).tolist()) if 2 * len(defined) >= resamples else None
    return found


@settings(max_examples=100)
@given(st.data(), st.integers(1, 14), st.integers(1, 3), st.integers(0, 5), st.sampled_from([0.5, 0.9]))
def test_bootstrap_equals_a_loop(data: st.DataObject, n: int, seeds: int, seed: int, level: float) -> None:
    rows = data.draw(st.lists(st.tuples(*[st.integers(0, 4)] * (seeds + 1)), min_size=n, max_size=n))
    sizes = data.draw(st.lists(st.sampled_from([100, 104, 106]), min_size=n, max_size=n))
    *runs, values = ([float(row[column]) for row in rows] for column in range(seeds + 1))
    found = bootstrap_agreement(runs, values, sizes, resamples=12, seed=seed, level=level)
    expected = slow_intervals(runs, values, sizes, 12, seed, level)
    assert list(found) == list(MEASURES)
    for name, interval in expected.items():
        assert found[name] == (None if interval is None else pytest.approx(interval, abs=1e-9)), name
    if seeds == 1:
        assert bootstrap_agreement(runs[0], values, sizes, resamples=12, seed=seed, level=level) == found


def test_counts_draw_n_of_n() -> None:
    counts = ranking._counts(30, 2000, 4)
    assert counts.shape == (2000, 30)
    assert (counts.sum(1) == 30).all()
    assert counts.mean(0) == pytest.approx(1, abs=0.1)
    assert counts.var() == pytest.approx(29 / 30, abs=0.05)  # multinomial
    assert (counts == ranking._counts(30, 2000, 4)).all()
    assert (counts != ranking._counts(30, 2000, 5)).any()


def test_interval_covers_and_narrows() -> None:
    generator = np.random.default_rng(0)
    values, sizes = generator.normal(size=120), generator.integers(5, 9, size=120)
    scores = values + generator.normal(size=120)
    whole, wide = asdict(agreement(scores, values, sizes)), bootstrap_agreement(scores, values, sizes)
    narrow = bootstrap_agreement(scores, values, sizes, level=0.5)
    for name in ("kendall", "spearman", "pearson", "partial_kendall", "kendall_equal_size", "kendall_near_size"):
        assert wide[name][0] < narrow[name][0] < whole[name] < narrow[name][1] < wide[name][1], name


def test_bootstrap_without_enough_networks() -> None:
    assert bootstrap_agreement([], [], []) == dict.fromkeys(MEASURES)
    alone = bootstrap_agreement([1], [2], [3])
    assert [name for name in MEASURES if alone[name]] == ["regret_1", "regret_5", "regret_10"]
    same = bootstrap_agreement([1, 2, 3], [5, 5, 5], [1, 2, 4])
    assert same["kendall"] is same["kendall_equal_size"] is same["kendall_near_size"] is None
    assert same["regret_1"] == (0, 0)
