"""How well a formula ranks benchmark networks: the joint correlation, on the networks one may look at.

JCM = 1/M sum over columns of alpha tau,        tau: Kendall's tau-b with its sign, alpha 1 unless given
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vitsearch.benchmark import Table
from vitsearch.correlation import Network, network_of
from vitsearch.errors import VitsearchError
from vitsearch.methods.numbers import Array, Numbers
from vitsearch.methods.sketch import Sketches
from vitsearch.methods.statistics import StatisticsCache
from vitsearch.proxies.expression import Formula

PROMISING = 0.05
"""A formula that the sketch places at most this far below the best is looked at on the whole blocks."""


@dataclass(frozen=True, slots=True)
class Column:
    """Accuracies of a column; `entries` are the numbers of its networks in their table."""

    table: str
    name: str
    networks: tuple[Network, ...]
    entries: tuple[int, ...]
    accuracies: Array

    @property
    def label(self) -> str:
        return f"{self.table}/{self.name}"


def columns_of(tables: Sequence[Table], names: Sequence[str]) -> list[Column]:
    """The named columns; without names, the distilled ones, and all where a table has none such."""
    found = []
    spaces = [table.space for table in tables]
    for place, table in enumerate(tables):
        label = table.space if spaces.count(table.space) == 1 else f"{table.space}#{place}"
        distilled = [name for name in table.columns if name.endswith("_kd")]
        usual = distilled or list(table.columns)
        for name in [name for name in names if name in table.columns] if names else usual:
            pairs = table.accuracies(name)
            if len(pairs) > 1:
                entries = tuple(number for number, _ in pairs)
                networks = tuple(network_of(table, number, name) for number in entries)
                found.append(Column(label, name, networks, entries, np.array([value for _, value in pairs])))
    if not found:
        raise VitsearchError("there must be a column with two accuracies or more, but got none")
    return found


@dataclass(frozen=True, slots=True)
class Pairs:
    """Every two of some networks of a column, and which one is better."""

    chosen: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    signs: NDArray[np.float32]
    untied: float

    @classmethod
    def of(cls, accuracies: Array, chosen: NDArray[np.int64]) -> Pairs:
        """`chosen` are places in the column."""
        above, below = np.triu_indices(len(chosen), 1)
        signs = np.sign(accuracies[chosen[above]] - accuracies[chosen[below]]).astype(np.float32)
        return cls(chosen, chosen[above], chosen[below], signs, float(np.abs(signs).sum()))

    def tau(self, scores: Array) -> float:
        """NaN where all are equal."""
        found = np.sign(scores[self.first] - scores[self.second]).astype(np.float32)
        untied = float(np.abs(found).sum()) * self.untied
        return float(found @ self.signs) / math.sqrt(untied) if untied else math.nan


@dataclass(frozen=True, slots=True)
class Part:
    """Some networks of every column: those a search may look at, or those it is judged by."""

    pairs: tuple[Pairs, ...]
    weights: Array

    def taus(self, scores: Sequence[Array]) -> Array:
        return np.array([pairs.tau(values) for pairs, values in zip(self.pairs, scores, strict=True)])

    def joint(self, scores: Sequence[Array]) -> float:
        return float((self.weights * self.taus(scores)).mean())


@dataclass(frozen=True)
class Evidence:
    """Columns, and what caches know of their networks, each with another seed of weights and batch.

    Initial weights depend on name and shape, so networks of one shape share them, and with one seed a formula can rank
    shapes by an accident of the draw. Scores are lists by seed, then column; the joint correlation is over all.
    """

    columns: Sequence[Column]
    caches: Sequence[StatisticsCache]
    weights: Mapping[str, float]
    """Alpha by name of a column; 1 where not named."""

    @cached_property
    def networks(self) -> list[Network]:
        return [network for column in self.columns for network in column.networks]

    @cached_property
    def numbers(self) -> Numbers:
        return Numbers(cache.read(network) for cache in self.caches for network in self.networks)

    @cached_property
    def sketches(self) -> Sketches:
        return Sketches(cache.read(network) for cache in self.caches for network in self.networks)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of networks and accuracies."""
        found = [
            (column.label, *zip([str(network) for network in column.networks], column.accuracies.tolist(), strict=True))
            for column in self.columns
        ]
        return hashlib.sha256(json.dumps(found).encode()).hexdigest()

    @property
    def lengths(self) -> list[int]:
        """Networks of each column, for each seed."""
        return [len(column.networks) for column in self.columns] * len(self.caches)

    def part(self, chosen: Sequence[NDArray[np.int64]]) -> Part:
        weights = np.array([self.weights.get(column.name, 1.0) for column in self.columns])
        pairs = tuple(Pairs.of(column.accuracies, some) for column, some in zip(self.columns, chosen, strict=True))
        return Part(pairs * len(self.caches), np.tile(weights, len(self.caches)))

    def split(self, values: Array) -> list[Array]:
        """By seed, then column."""
        return list(np.split(values, np.cumsum(self.lengths)[:-1]))

    def scores(self, formula: Formula, stride: int = 1) -> list[Array]:
        """Exact where the tables say, else from blocks (stride 1) or sketches (stride 2)."""
        values = self.numbers.of_networks(formula)
        if values is None:
            layers = self.sketches.of_layers(formula, stride)
            values = self.numbers.put_together(formula.aggregate, layers)
        return self.split(values)

    def exact(self, formula: Formula) -> bool:
        """Whether scores are those of whole matrices."""
        return self.numbers.of_networks(formula) is not None

    def shown(self, formula: Formula) -> list[Array]:
        """By column, with the first seed."""
        return self.scores(formula)[: len(self.columns)]

    def judge(self, formula: Formula, part: Part, best: float = -math.inf) -> tuple[float, str | None]:
        """JCM on a part, or why there is none: an element that is not finite, or one value for all."""
        exact = self.numbers.of_networks(formula)
        if exact is None:
            sketched = self._joint(self.scores(formula, stride=2), part)
            if isinstance(sketched, str) or sketched < best - PROMISING:
                return (-1.0, sketched) if isinstance(sketched, str) else (sketched, None)
            found = self._joint(self.scores(formula), part)
        else:
            found = self._joint(self.split(exact), part)
        return (-1.0, found) if isinstance(found, str) else (found, None)

    @staticmethod
    def _joint(scores: Sequence[Array], part: Part) -> float | str:
        for pairs, values in zip(part.pairs, scores, strict=True):
            if not np.isfinite(values[pairs.chosen]).all():
                return "not finite"
        joint = part.joint(scores)
        return "the same for all networks" if math.isnan(joint) else joint
