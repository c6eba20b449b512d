"""What can be said of a difference between trained networks, beside the spread between seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean, stdev, variance
from typing import Any, NamedTuple

from scipy.stats import t

Row = dict[str, Any]
CONFIDENCE = 0.95


class Noise(NamedTuple):
    """Of one run from one seed to the next."""

    deviation: float
    freedom: int


def spread(values: Sequence[float]) -> Row | None:
    """Mean and deviation; None where there is nothing."""
    if not values:
        return None
    return {"mean": fmean(values), "deviation": stdev(values) if len(values) > 1 else None, "values": list(values)}


def between_seeds(groups: Iterable[Sequence[float]]) -> Noise | None:
    """Pooled over groups, each of runs that differ in their seed alone; None where none has two."""
    several = [values for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom:
        return None
    return Noise(sqrt(sum((len(values) - 1) * variance(values) for values in several) / freedom), freedom)


def difference(
    ours: Sequence[float], others: Sequence[float], noise: Noise | None, *, higher_is_better: bool = True
) -> Row | None:
    """Of two means, with its interval by Student's t; without `noise` nothing is said of it.

    A difference whose interval holds zero, or that is below the deviation of a single run, is not distinguishable.
    """
    if not ours or not others:
        return None
    found = fmean(ours) - fmean(others)
    if noise is None:
        return {"mean": found, "deviation": None, "interval": None, "reading": "one seed: no statement"}
    half = float(t.ppf((1 + CONFIDENCE) / 2, noise.freedom)) * noise.deviation * sqrt(1 / len(ours) + 1 / len(others))
    clear = abs(found) > max(half, noise.deviation)
    reading = "not distinguishable" if not clear else "better" if (found > 0) == higher_is_better else "worse"
    return {"mean": found, "deviation": noise.deviation, "interval": [found - half, found + half], "reading": reading}
