"""What scores are worth on networks that they were not chosen by: folds, intervals, differences, size held fixed.

Every network is scored by what was found without its fold, so only networks of one fold compare. Kendall's tau is taken
over those pairs. Intervals come from resampling networks, the same ones for every score and every column of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitsearch.errors import VitsearchError
from vitsearch.methods.evidence import Column, Evidence
from vitsearch.methods.numbers import Array
from vitsearch.proxies.size import BASELINES
from vitsearch.ranking import NEAR
from vitsearch.spaces import cost_of, decode

TOO_NEAR = 0.95
"""A formula with this tau with one of `JUDGES_OF_SIZE` is a size baseline."""
JUDGES_OF_SIZE = ("params", "macs", "depth")
RESAMPLES = 1000
Places = NDArray[np.int64]
Rival = Callable[[Column, Places], Array]
"""Scores of all networks of a column, learned from those at the given places alone."""


def sizes_of(column: Column) -> dict[str, Array]:
    """The size baselines of a column's networks."""
    costs = [cost_of(network.settings, network.geometry) for network in column.networks]
    plans = [decode(network.settings) for network in column.networks]
    return {
        "params": np.array([cost.params for cost in costs], dtype=np.float64),
        "macs": np.array([cost.macs for cost in costs], dtype=np.float64),
        "depth": np.array([plan.depth for plan in plans], dtype=np.float64),
        "width": np.array([plan.mean_width for plan in plans], dtype=np.float64),
    }


@dataclass(frozen=True)
class Folds:
    """Which fold each entry of each table is in."""

    evidence: Evidence
    count: int
    seed: int

    @cached_property
    def of_columns(self) -> list[Places]:
        """For each column, the fold of each of its networks; one that is there twice, in any table, is in one fold."""
        columns, known = self.evidence.columns, dict[str, int]()
        fold: dict[tuple[str, int], int] = {}
        for table in dict.fromkeys(column.table for column in columns):
            texts: dict[int, list[str]] = {}
            for column in [column for column in columns if column.table == table]:
                for entry, network in zip(column.entries, column.networks, strict=True):
                    texts.setdefault(entry, []).append(network.text)
            numbers = sorted(texts)
            Random(f"{self.seed}/folds/{table}").shuffle(numbers)
            for place, entry in enumerate(numbers):
                before = [known[text] for text in texts[entry] if text in known]
                fold[table, entry] = before[0] if before else place % self.count
                known |= dict.fromkeys(texts[entry], fold[table, entry])
        return [np.array([fold[column.table, entry] for entry in column.entries]) for column in columns]

    def check(self) -> None:
        """Every search must have something to rank in every column, and so must what judges it."""
        for fold in (None, *range(self.count)):
            for column, places in zip(self.evidence.columns, self.outside(fold), strict=True):
                if len(np.unique(column.accuracies[places])) < 2:
                    rule = f"outside each of the {self.count} folds there must be two different accuracies"
                    raise VitsearchError(f"{rule}, but {column.label} has {len(places)} networks, all alike, there")
        for column, folds in zip(self.evidence.columns, self.of_columns, strict=True):
            if all(len(np.unique(column.accuracies[folds == fold])) < 2 for fold in range(self.count)):
                rule = "`folds` must have two networks of a column or more in some fold"
                raise VitsearchError(f"{rule}, but got {self.count} for the {len(folds)} of {column.label}")

    def outside(self, fold: int | None) -> list[Places]:
        """For each column, the places that are not in a fold; all without one."""
        return [
            np.flatnonzero(folds != fold) if fold is not None else np.arange(len(folds)) for folds in self.of_columns
        ]

    def joined(self, found: Sequence[Sequence[Array]]) -> list[Array]:
        """For each column, the scores of its networks by what was found without their fold."""
        return [np.choose(folds, [scores[number] for scores in found]) for number, folds in enumerate(self.of_columns)]

    def learned(self, rival: Rival) -> list[Array]:
        found = [
            [rival(column, places) for column, places in zip(self.evidence.columns, self.outside(fold), strict=True)]
            for fold in range(self.count)
        ]
        return self.joined(found)


class Comparison:
    """Scores beside one another, on the same resamples."""

    def __init__(self, folds: Folds, resamples: int = RESAMPLES, seed: int = 0) -> None:
        self.folds, self.columns = folds, folds.evidence.columns
        random = np.random.default_rng(seed)
        drawn: dict[str, Array] = {}
        for column in self.columns:
            if column.table not in drawn:
                count = 1 + max(max(c.entries) for c in self.columns if c.table == column.table)
                picked = random.multinomial(count, np.full(count, 1 / count), size=resamples)
                drawn[column.table] = np.concatenate([np.ones((1, count)), picked])
        self.counts = [drawn[column.table][:, list(column.entries)] for column in self.columns]
        self.sizes = [sizes_of(column) for column in self.columns]

    def taus(self, scores: Sequence[Array], near: bool = False) -> Array:
        """[columns, 1 + resamples]; the first is on the networks as they are. `near`: pairs of near size alone."""
        found = []
        for number, values in enumerate(scores):
            folds = self.folds.of_columns[number]
            mask = np.equal.outer(folds, folds)
            np.fill_diagonal(mask, False)
            if near:
                sizes = self.sizes[number]["params"]
                mask &= np.maximum.outer(sizes, sizes) <= (1 + NEAR) * np.minimum.outer(sizes, sizes)
            found.append(self._kendall(values, self.columns[number].accuracies, mask, self.counts[number]))
        return np.stack(found)

    @staticmethod
    def _kendall(x: Array, y: Array, mask: NDArray[np.bool_], counts: Array) -> Array:
        first, second = (np.sign(np.subtract.outer(v, v)) * mask for v in (x, y))

        def over_pairs(matrix: Array) -> Array:
            total: Array = ((counts @ matrix) * counts).sum(1)
            return total

        untied = over_pairs(np.abs(first)) * over_pairs(np.abs(second))
        with np.errstate(invalid="ignore", divide="ignore"):
            found: Array = np.where(untied > 0, over_pairs(first * second) / np.sqrt(untied), np.nan)
        return found

    def rows(self, scores: Mapping[str, Sequence[Array]]) -> list[dict[str, Any]]:
        """For each score: a row for each column, then the joint one with its differences from the size baselines."""
        everything = dict(scores)
        everything |= {name: [sizes[name] for sizes in self.sizes] for name in BASELINES}
        draws = {name: self.taus(values) for name, values in everything.items()}
        near = {name: self.taus(values, near=True) for name, values in everything.items()}
        joint = {name: values.mean(0) for name, values in draws.items()}
        best = max(BASELINES, key=lambda name: np.nan_to_num(joint[name][0], nan=-1))
        rows: list[dict[str, Any]] = []
        for name in [*BASELINES, *scores]:
            for number, column in enumerate(self.columns):
                row: dict[str, Any] = {"score": name, "dataset": column.label, "networks": len(column.networks)}
                row |= _interval("kendall", draws[name][number])
                rows.append(row | _interval("kendall_near_size", near[name][number]))
            row = {"score": name, "dataset": "joint", "best_size": best}
            row |= _interval("kendall", joint[name]) | _interval("kendall_near_size", near[name].mean(0))
            rows.append(row | _interval("above_best_size", joint[name] - joint[best]))
        return rows

    def nearness(self, scores: Sequence[Array]) -> dict[str, float]:
        """The tau with each size that is furthest from 0, over columns, regardless of folds."""
        found = {}
        for name in JUDGES_OF_SIZE:
            taus = []
            for values, sizes in zip(scores, self.sizes, strict=True):
                mask = ~np.eye(len(values), dtype=bool)
                taus.append(self._kendall(values, sizes[name], mask, np.ones((1, len(values))))[0])
            found[name] = float(max(np.nan_to_num(np.array(taus)), key=abs))
        return found


def _interval(name: str, draws: Array) -> dict[str, float | None]:
    known = draws[1:][np.isfinite(draws[1:])]
    if 2 * len(known) < len(draws) - 1 or not len(known):
        return {name: _plain(draws[0]), f"{name}_low": None, f"{name}_high": None}
    low, high = np.quantile(known, [0.025, 0.975])
    return {name: _plain(draws[0]), f"{name}_low": float(low), f"{name}_high": float(high)}


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
