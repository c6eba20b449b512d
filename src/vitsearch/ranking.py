"""Comparing numbers: plain functions that know neither networks nor studies."""

from __future__ import annotations

from collections.abc import Sequence


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
