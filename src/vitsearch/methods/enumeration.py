"""`branches=scalar`, whole: every pair of branches, by every operation, from the table.

With the layers put together by `mean`, `sum` or `last`, a network's score is linear in what its layers say, so that a
sum or difference of branches is one of two numbers, and all products of branches are a matrix product for each
network. Pairs are first compared on some pairs of networks; the best are then judged on all.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitsearch.architecture import brief
from vitsearch.errors import VitsearchError
from vitsearch.methods.evidence import Evidence, Pairs, Part
from vitsearch.methods.numbers import Array, rounded
from vitsearch.proxies.branches import branches, rename
from vitsearch.proxies.expression import INPUTS, Binary, Formula, Node
from vitsearch.proxies.layers import OF_MLP

LINEAR = ("mean", "sum", "last")
AT_ONCE = 8
"""Branches whose pairs are compared together."""
SCREENED = 400
"""Pairs of networks of each column that candidates are compared on first."""
JUDGED = 20_000
"""Candidates that are judged on all."""
Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Found:
    """A formula and its joint correlation."""

    formula: Formula
    joint: float


class Pairings:
    """All branches with a finite value that is not the same for all networks."""

    def __init__(self, evidence: Evidence, aggregate: str) -> None:
        if aggregate not in LINEAR:
            raise VitsearchError(f"`aggregate` must be one of {', '.join(LINEAR)} here, but got {brief(aggregate)}")
        self.aggregate, numbers = aggregate, evidence.numbers
        weights = np.where(numbers.mask, 1.0, 0.0)
        if aggregate == "mean":
            weights /= numbers.counts[:, None]
        elif aggregate == "last":
            weights = np.eye(numbers.layers)[numbers.counts.astype(int) - 1]
        self.nodes: list[Node] = []
        layers: list[Array] = []
        seen: set[bytes] = set()
        for name in INPUTS:
            slots = [numbers.slot(name, which) for which in (("fc1", "fc2") if name in OF_MLP else ("fc1", "fc1"))]
            for place, node in enumerate(branches().values()):
                values = np.where(numbers.mask[:, None], numbers.table[slots, place].transpose(1, 0, 2), 0.0)
                values = rounded(values)
                if np.isfinite(values).all() and values.tobytes() not in seen:
                    seen.add(values.tobytes())
                    self.nodes.append(rename(node, name))
                    layers.append(values)
        self.layers = np.stack(layers)  # [branches, networks, 2, layers]
        self.weighted = self.layers * (weights[:, None] / 2)
        self.singles = self.weighted.sum((2, 3))

    def __len__(self) -> int:
        return len(self.nodes)

    def blocks(self) -> Iterator[tuple[str, int, Array]]:
        """Signs, the first of some branches, and scores [branches, all branches, networks]."""
        by_network = self.layers.transpose(1, 2, 3, 0).reshape(self.layers.shape[1], -1, len(self))
        for start in range(0, len(self), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            yield "+", start, self.singles[some, None] + self.singles[None]
            yield "-", start, self.singles[some, None] - self.singles[None]
            rows = self.weighted[some].transpose(1, 0, 2, 3).reshape(by_network.shape[0], -1, by_network.shape[1])
            with np.errstate(all="ignore"):
                products = (rows @ by_network).transpose(1, 2, 0)
            yield "*", start, products

    def formula(self, sign: str, first: int, second: int) -> Formula:
        tree = Binary(sign, self.nodes[first], self.nodes[second])
        return Formula(tree=tree, aggregate=self.aggregate, scalar=True).simplified()


def enumerate_pairs(
    evidence: Evidence,
    part: Part,
    aggregate: str,
    keep: int = 50,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Found], int]:
    """The best pairs on a part, best first, and how many different branches were paired."""
    pairings = Pairings(evidence, aggregate)
    ends = np.cumsum([0, *evidence.lengths])
    screens = [_screen(pairs, start) for pairs, start in zip(part.pairs, ends[:-1], strict=True)]
    best: list[tuple[float, str, int, int]] = []
    for sign, start, scores in pairings.blocks():
        joint = sum(
            weight * _taus(scores, *screen) for weight, screen in zip(part.weights, screens, strict=True)
        ) / len(screens)
        rows, columns = (
            np.triu_indices(len(joint), 1 + start, len(pairings)) if sign != "-" else np.indices(joint.shape)
        )
        flat, rows, columns = joint[rows, columns].ravel(), rows.ravel(), columns.ravel()
        some = np.argpartition(-flat, 200)[:200] if len(flat) > 200 else np.arange(len(flat))
        found = [(float(flat[at]), sign, start + int(rows[at]), int(columns[at])) for at in some]
        best = heapq.nlargest(JUDGED, best + found)
        if progress:
            progress(start, len(pairings))
    judged = []
    for _, sign, first, second in best:
        formula = pairings.formula(sign, first, second)
        joint, error = evidence.judge(formula, part)
        if error is None:
            judged.append(Found(formula, joint))
    judged.sort(key=lambda one: (-one.joint, one.formula.size, str(one.formula)))
    unique = {str(one.formula): one for one in judged}
    return list(unique.values())[:keep], len(pairings)


def _screen(pairs: Pairs, start: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Singles]:
    """Evenly spaced pairs, as places among the networks of all columns."""
    count = len(pairs.signs)
    some = np.unique(np.linspace(0, count - 1, min(count, SCREENED)).astype(int))
    return pairs.first[some] + start, pairs.second[some] + start, pairs.signs[some]


def _taus(scores: Array, first: NDArray[np.int64], second: NDArray[np.int64], signs: Singles) -> Singles:
    """[branches, branches]; -1 where there is none."""
    with np.errstate(all="ignore"):
        narrow = scores.astype(np.float32)
        differences = np.sign(narrow[..., first] - narrow[..., second])
        untied = np.abs(differences).sum(-1) * np.abs(signs).sum()
        found: Singles = np.where(untied > 0, (differences @ signs) / np.sqrt(untied), -1).astype(np.float32)
    return found
