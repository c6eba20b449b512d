"""Comparing numbers: plain functions that know neither networks nor studies.

How well scores predict values, with `n` items (networks) throughout: higher is better on both sides, numbers must be
finite, and a measure that is undefined is None. Every measure is written once, for items that are drawn `counts` times
each ([resamples, n]): drawing each once gives the measure itself, drawing at random its bootstrap distribution. Pairs
are held as matrices [n, n].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Array: TypeAlias = NDArray[np.float64]

NEAR = 0.05  # two sizes are near when the larger is at most this share above the smaller
MEASURES = (
    "kendall",
    "spearman",
    "pearson",
    "partial_kendall",
    "kendall_equal_size",
    "kendall_near_size",
    "regret_1",
    "regret_5",
    "regret_10",
    "mean_best_rank",
)


def dominates(first: Sequence[float], second: Sequence[float]) -> bool:
    """No worse in every number and better in one; higher is better."""
    return all(a >= b for a, b in zip(first, second, strict=True)) and tuple(first) != tuple(second)


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the points that no other dominates (higher is better), in their order; equal points all stay."""
    order = sorted(range(len(points)), key=lambda index: tuple(points[index]), reverse=True)
    front: list[int] = []
    for index in order:  # whatever dominates a point sorts before it, and so does a front member that dominates it
        if not any(dominates(points[kept], points[index]) for kept in front):
            front.append(index)
    return sorted(front)


def kendall(scores: ArrayLike, values: ArrayLike) -> float | None:
    """Kendall's tau-b: agreement over all pairs, corrected for ties."""
    return _single(_kendall, scores, values)


def spearman(scores: ArrayLike, values: ArrayLike) -> float | None:
    """Correlation of the ranks; equal numbers share their mean rank."""
    return _single(_spearman, scores, values)


def pearson(scores: ArrayLike, values: ArrayLike) -> float | None:
    """Linear correlation."""
    return _single(_pearson, scores, values)


def partial_kendall(scores: ArrayLike, values: ArrayLike, given: ArrayLike) -> float | None:
    """Kendall's partial tau: what scores say of values beyond what `given` says of both."""
    return _single(_partial_kendall, scores, values, given)


def kendall_equal_size(scores: ArrayLike, values: ArrayLike, sizes: ArrayLike) -> tuple[float | None, int]:
    """(concordant - discordant) / pairs over the pairs of exactly the same size, and their number; ties are pairs."""
    return kendall_near_size(scores, values, sizes, within=0.0)


def kendall_near_size(
    scores: ArrayLike, values: ArrayLike, sizes: ArrayLike, within: float = NEAR
) -> tuple[float | None, int]:
    """(concordant - discordant) / pairs over the pairs with larger <= (1 + within) * smaller size, and their number.

    Ties are pairs too. Sizes are positive.
    """
    if not within >= 0:
        raise ValueError(f"`within` must not be negative, but got {within=}")
    near = _near(_columns(sizes)[0], within)
    return _single(lambda x, y, _, counts: _among(x, y, near, counts), scores, values, sizes), int(near.sum()) // 2


def top_regret(scores: ArrayLike, values: ArrayLike, k: int) -> float | None:
    """The best value, less the best among the k items with the highest scores; of equal scores the worst come first."""
    if k < 1:
        raise ValueError(f"`k` must be at least 1, but got {k=}")
    return _single(lambda x, y, counts: _top_regret(x, y, k, counts), scores, values)


def mean_best_rank(scores: ArrayLike, values: ArrayLike, groups: Sequence[Hashable]) -> float | None:
    """Where the member with the highest score stands in its group by value: 0 is the best, 0.5 is chance.

    Sum of (rank - 1) over sum of (members - 1), over the groups of at least two; `groups` has the label of each item.
    Equal values share their mean rank; where several members tie for the highest score, their mean rank counts.
    """
    numbers = {label: number for number, label in enumerate(dict.fromkeys(groups))}
    return _single(_mean_best_rank, scores, values, [numbers[label] for label in groups])


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Every measure of how well one set of scores predicts values; `partial_kendall` is given the sizes."""

    networks: int
    kendall: float | None
    spearman: float | None
    pearson: float | None
    partial_kendall: float | None
    kendall_equal_size: float | None
    equal_size_pairs: int
    kendall_near_size: float | None
    near_size_pairs: int
    regret_1: float | None
    regret_5: float | None
    regret_10: float | None
    mean_best_rank: float | None


def agreement(scores: ArrayLike, values: ArrayLike, sizes: ArrayLike) -> Agreement:
    """All measures at once; the groups of `mean_best_rank` are the networks of exactly the same size."""
    scores, values, sizes = _columns(scores, values, sizes)
    equal, equal_pairs = kendall_equal_size(scores, values, sizes)
    near, near_pairs = kendall_near_size(scores, values, sizes)
    return Agreement(
        networks=len(scores),
        kendall=kendall(scores, values),
        spearman=spearman(scores, values),
        pearson=pearson(scores, values),
        partial_kendall=partial_kendall(scores, values, sizes),
        kendall_equal_size=equal,
        equal_size_pairs=equal_pairs,
        kendall_near_size=near,
        near_size_pairs=near_pairs,
        regret_1=top_regret(scores, values, 1),
        regret_5=top_regret(scores, values, 5),
        regret_10=top_regret(scores, values, 10),
        mean_best_rank=mean_best_rank(scores, values, sizes.tolist()),
    )


def bootstrap_agreement(
    scores: ArrayLike,
    values: ArrayLike,
    sizes: ArrayLike,
    *,
    resamples: int = 500,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, tuple[float, float] | None]:
    """Percentile interval of each measure of `Agreement`, over resamples of the networks with replacement.

    `scores` is [n] or [seeds, n]; with several seeds the value of a resample is the mean over the seeds, undefined when
    it is for one of them. A network drawn twice is tied with itself, but is no pair of equal or near size, and no
    second member of its group in `mean_best_rank`. Undefined resamples are left out; the interval is None when fewer
    than half are left.
    """
    import numpy as np

    if resamples < 1 or not 0 < level < 1:
        raise ValueError(f"`resamples` must be at least 1 and `level` between 0 and 1, but got {resamples=}, {level=}")
    runs = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    if not len(runs):
        raise ValueError("`scores` must have at least one seed")
    rows = [_columns(run, values, sizes) for run in runs]
    if not runs.size:
        return dict.fromkeys(MEASURES)
    counts = _counts(runs.shape[1], resamples, seed)
    found = [_measures(x, y, z, counts) for x, y, z in rows]
    return {name: _interval(np.mean([one[name] for one in found], axis=0), level) for name in MEASURES}


def _interval(draws: Array, level: float) -> tuple[float, float] | None:
    import numpy as np

    defined = draws[~np.isnan(draws)]
    if 2 * len(defined) < len(draws):
        return None
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _counts(n: int, resamples: int, seed: int) -> Array:
    """How often each of n items is drawn when n are drawn with replacement, [resamples, n]."""
    import numpy as np

    drawn = np.random.default_rng(seed).integers(n, size=(resamples, n))
    flat = (drawn + n * np.arange(resamples)[:, None]).ravel()
    return np.bincount(flat, minlength=resamples * n).reshape(resamples, n).astype(np.float64)


def _measures(scores: Array, values: Array, sizes: Array, counts: Array) -> dict[str, Array]:
    """Each measure in each resample, nan where it is undefined."""
    import numpy as np

    return {
        "kendall": _kendall(scores, values, counts),
        "spearman": _spearman(scores, values, counts),
        "pearson": _pearson(scores, values, counts),
        "partial_kendall": _partial_kendall(scores, values, sizes, counts),
        "kendall_equal_size": _among(scores, values, _near(sizes, 0.0), counts),
        "kendall_near_size": _among(scores, values, _near(sizes, NEAR), counts),
        "regret_1": _top_regret(scores, values, 1, counts),
        "regret_5": _top_regret(scores, values, 5, counts),
        "regret_10": _top_regret(scores, values, 10, counts),
        "mean_best_rank": _mean_best_rank(scores, values, sizes, np.minimum(counts, 1)),
    }


def _columns(*columns: ArrayLike) -> list[Array]:
    """As arrays of one length."""
    import numpy as np

    arrays = [np.asarray(column, dtype=np.float64) for column in columns]
    if any(array.ndim != 1 or len(array) != len(arrays[0]) for array in arrays):
        raise ValueError(f"Numbers must be lists of one length, but got shapes {[array.shape for array in arrays]}")
    return arrays


def _single(measure: Callable[..., Array], *columns: ArrayLike) -> float | None:
    """The measure with each item drawn once."""
    import numpy as np

    arrays = _columns(*columns)
    if not len(arrays[0]):
        return None
    value = float(measure(*arrays, np.ones((1, len(arrays[0]))))[0])
    return None if math.isnan(value) else value


def _ratio(above: Array, below: Array) -> Array:
    """nan where `below` is 0; it is never negative."""
    import numpy as np

    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(below > 0, above / below, np.nan)


def _signs(x: Array) -> Array:
    """Sign of x_i - x_j."""
    import numpy as np

    return np.greater.outer(x, x).astype(np.float64) - np.less.outer(x, x)


def _over_pairs(matrix: Array, counts: Array) -> Array:
    """Sum over ordered pairs of draws."""
    total: Array = (counts @ matrix * counts).sum(1)
    return total


def _kendall(x: Array, y: Array, counts: Array) -> Array:
    import numpy as np

    first, second = _signs(x), _signs(y)
    untied = _over_pairs(abs(first), counts) * _over_pairs(abs(second), counts)
    return _ratio(_over_pairs(first * second, counts), np.sqrt(untied))


def _partial_kendall(x: Array, y: Array, z: Array, counts: Array) -> Array:
    import numpy as np

    xy, xz, yz = _kendall(x, y, counts), _kendall(x, z, counts), _kendall(y, z, counts)
    return np.clip(_ratio(xy - xz * yz, np.sqrt((1 - xz**2) * (1 - yz**2))), -1, 1)


def _among(x: Array, y: Array, pairs: Array, counts: Array) -> Array:
    return _ratio(_over_pairs(_signs(x) * _signs(y) * pairs, counts), _over_pairs(pairs, counts))


def _near(sizes: Array, within: float) -> Array:
    """1 for two different networks of near size, else 0."""
    import numpy as np

    near = np.maximum.outer(sizes, sizes) <= (1 + within) * np.minimum.outer(sizes, sizes)
    np.fill_diagonal(near, False)
    return near.astype(np.float64)


def _pearson(x: Array, y: Array, counts: Array) -> Array:
    import numpy as np

    cosine: Array = (_direction(x, counts) * _direction(y, counts)).sum(1)
    return np.clip(cosine, -1, 1)


def _spearman(x: Array, y: Array, counts: Array) -> Array:
    return _pearson(counts @ _signs(x), counts @ _signs(y), counts)  # n + 1 - 2 * mean rank


def _direction(x: Array, counts: Array) -> Array:
    """Deviations from the mean of the draws as a vector of length 1, [resamples, n]; nan where all draws are equal."""
    import numpy as np

    low = np.where(counts > 0, x, np.inf).min(1, keepdims=True)
    x = np.where(counts > 0, x, low) - low
    x = _ratio(x, x.max(1, keepdims=True))  # equal draws are found exactly, and no square is too small or too large
    deviations = np.sqrt(counts) * (x - (counts * x).sum(1, keepdims=True) / counts.sum(1, keepdims=True))
    return _ratio(deviations, np.linalg.norm(deviations, axis=1, keepdims=True))


def _top_regret(x: Array, y: Array, k: int, counts: Array) -> Array:
    import numpy as np

    order = np.lexsort((y, -x))
    y, counts = y[order], counts[:, order]
    chosen = (counts > 0) & (counts.cumsum(1) - counts < k)
    regret: Array = np.where(counts > 0, y, -np.inf).max(1) - np.where(chosen, y, -np.inf).max(1)
    return regret


def _mean_best_rank(x: Array, y: Array, groups: Array, counts: Array) -> Array:
    import numpy as np

    same = np.equal.outer(groups, groups).astype(np.float64)
    members = counts @ same  # of each item's group
    best = counts * (counts @ (same * np.greater.outer(x, x)) == 0)
    weights = best / np.maximum(best @ same, 1)  # sum to 1 in each group that is drawn
    places = (counts @ (same * _signs(y)) + members - 1) / 2  # better ones, and half of the equal others
    return _ratio((weights * places).sum(1), (weights * (members - 1)).sum(1))
