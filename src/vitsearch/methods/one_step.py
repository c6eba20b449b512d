"""PreNAS's choice among convolutional networks: plain SNIP, in one step, and exact.

Isomers hardly occur there, so the paper skips Eq. 13 (section 4.5). A network inherits the weights and the gradients of
the largest network at its own resolution, so its score is a sum over the steps of its chain (`spaces/halved.py`):

    score = sum over steps n of  scores[resolution][n][width before, choice of step n]

Each resolution has a forward and backward pass of its own, on the same batch, and picks of its own for every budget:
SNIP is a sum over weights, of which a resolution has no more than another, so that across resolutions it would always
take the lowest. Then nothing above 664 MMAC could be chosen, and the paper's networks go up to 986; it does not say how
they were. The best networks of a budget are found among all of a space by its halves: a first half goes through its
second halves only where the best one among those it leaves room for could be among the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry, Limits, architecture_cost
from vitsearch.data import Batch
from vitsearch.errors import NothingFits
from vitsearch.methods.score_tables import Array, Products, differentiate
from vitsearch.methods.two_steps import Pick, Resource, Window, halvings
from vitsearch.models.builders import BLOCK_BUILDERS, ENTRY_BUILDERS
from vitsearch.models.skeleton import Shape, cut
from vitsearch.models.supernet import Supernet
from vitsearch.spaces.halved import Fitting, HalvedRegion, Link, Step, sums, way
from vitsearch.spaces.mobile import STAGES, Mobile, stage_parts


@dataclass(frozen=True, kw_only=True)
class ChainTables:
    scores: tuple[tuple[Array, ...], ...]
    """For each resolution and each step [widths before, choices], in the order of the space."""

    def to_json(self) -> dict[str, Any]:
        return {"scores": [[table.tolist() for table in tables] for tables in self.scores]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ChainTables:
        return cls(scores=tuple(tuple(np.array(t, dtype=np.float64) for t in tables) for tables in data["scores"]))

    @classmethod
    def mean(cls, draws: Sequence[ChainTables]) -> ChainTables:
        count = len(draws)
        return cls(
            scores=tuple(
                tuple(np.asarray(sum(tables) / count) for tables in zip(*of_resolution, strict=True))
                for of_resolution in zip(*(one.scores for one in draws), strict=True)
            )
        )


def chain_tables(supernet: Supernet, batch: Batch) -> ChainTables:
    """The tables of one draw: a pass of the largest network at each resolution."""
    space = supernet.space
    assert isinstance(space, Mobile)
    found = []
    for resolution in space.resolution:
        weights, gradients = differentiate(supernet, batch, replace(supernet.envelope, resolution=resolution))
        products = {name: (weight.double() * gradients[name].double()).abs() for name, weight in weights.items()}
        found.append(tuple(_step_table(space, supernet.geometry, products, step) for step in range(STAGES + 2)))
    return ChainTables(scores=tuple(found))


def widths_before(space: Mobile, geometry: Geometry, number: int) -> tuple[int, ...]:
    return space.width[number - 1] if number else (geometry.channels,)


def _step_table(space: Mobile, geometry: Geometry, products: Products, number: int) -> Array:
    """[widths before, choices]; the classifier belongs to the last step."""
    rows = []
    for before in widths_before(space, geometry, number):
        row = []
        for width, *more in space.steps[number]:
            depth, kernel = more or (1, 1)
            entry, block = stage_parts(number, kernel)
            score = _part(products, f"stages.{number}.entry.", entry, before, width, 1, 1e-5, False)
            for place in range(depth - 1):
                score += _part(products, f"stages.{number}.blocks.{place}.", block, width, 1, 1e-5, 0.0)
            if number == STAGES + 1:
                score += float(products["head.weight"][:, :width].sum() + products["head.bias"].sum())
            row.append(score)
        rows.append(row)
    return np.array(rows)


def _part(products: Products, place: str, kind: Any, *arguments: Any) -> float:
    """The sum over what a layer of this shape has of the largest one's tensors."""
    shapes = _shapes(kind, *arguments).items()
    return sum(float(cut(name, products[place + name], shape).sum()) for name, shape in shapes)


@lru_cache(maxsize=4096)
def _shapes(kind: Any, *arguments: Any) -> dict[str, Shape]:
    with torch.device("meta"):
        layer = (BLOCK_BUILDERS | ENTRY_BUILDERS)[type(kind)](kind, *arguments)
    return {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()}


class Scores(NamedTuple):
    """Of the first and of the second halves of a link, in their own order."""

    first: Array
    second: Array


class ChainSelector:
    """The choice over the mean of some draws."""

    heads_matter = True

    def __init__(self, space: Mobile, draws: Sequence[ChainTables], *, geometry: Geometry) -> None:
        self.space, self.draws, self.geometry = space, draws, geometry
        region = space.region(None, geometry)
        assert isinstance(region, HalvedRegion)
        self.halves = region.halves

    def picks(
        self, windows: Sequence[Window], *, top: int, resource: Resource, limits: Limits, seed: int = 0
    ) -> list[Pick]:
        """The `top` best of every budget and resolution, best first; where nothing fits there are none."""
        mean = self._scored(self.draws)
        halves = [
            [self._scored([self.draws[number] for number in half]) for half in pair]
            for pair in halvings(len(self.draws), seed)
        ]
        found = []
        for window in windows:
            if (merged := both(limits, window, resource)) is None:
                continue
            for resolution in self.space.resolution:
                fitting = {
                    place: own.within(merged)
                    for place, own in enumerate(self.halves)
                    if own.link.resolution == resolution
                }
                agreement = self._agreement(fitting, halves)
                chosen = self._best(fitting, mean, top)
                found += [self._pick(settings, score, int(window.high), agreement) for score, settings in chosen]
        if not found:
            raise NothingFits(f"no architecture of {self.space.name} is within these budgets")
        return found

    def _pick(self, settings: Settings, score: float, budget: int, agreement: float | None) -> Pick:
        return Pick(
            budget=budget,
            settings=settings,
            cost=architecture_cost(self.space.decode(settings), self.geometry),
            snip=score,
            score=score,
            greedy_score=None,
            latency_ms=None,
            agreement_heads=None,
            agreement_ratios=None,
            agreement_settings=agreement,
        )

    def _scored(self, draws: Sequence[ChainTables]) -> list[Scores]:
        """For each link, by the mean of these draws."""
        tables = ChainTables.mean(draws)
        return [self._of_link(own.link, tables) for own in self.halves]

    def _of_link(self, link: Link, tables: ChainTables) -> Scores:
        of_resolution = tables.scores[self.space.resolution.index(link.resolution)]

        def score(number: int, before: int, step: Step) -> list[float]:
            row = widths_before(self.space, self.geometry, number).index(before)
            return [float(of_resolution[number][row, self.space.steps[number].index(step)])]

        first = sums(link.first, self.geometry.channels, score)
        return Scores(first[:, 0], sums(link.second, link.width, score, start=len(link.first))[:, 0])

    def _best(self, fitting: Mapping[int, Fitting], scores: Sequence[Scores], top: int) -> list[tuple[float, Settings]]:
        found = best([(own, scores[place]) for place, own in fitting.items()], top)
        return [(score, self._settings(link, *ranks)) for score, link, *ranks in found]

    def _settings(self, link: Link, first: int, second: int) -> Settings:
        return self.space.linked(link.resolution, [*way(link.first, first), *way(link.second, second)])

    def _agreement(self, fitting: Mapping[int, Fitting], halves: Sequence[Sequence[Sequence[Scores]]]) -> float | None:
        """Share of equal numbers in the settings of the best network by two halves of the draws, mean over halvings."""
        shares = []
        for pair in halves:
            ones = [self._best(fitting, scores, 1) for scores in pair]
            if all(ones):
                one, other = (numbers_of(self.space, found[0][1]) for found in ones)
                shares.append(sum(a == b for a, b in zip(one, other, strict=True)) / len(one))
        return sum(shares) / len(shares) if shares else None


def numbers_of(space: Mobile, settings: Settings) -> list[int]:
    """Those of depth, width and kernel that the space leaves a choice of."""
    found: list[int] = []
    for name in ("depth", "width", "kernel"):
        own = zip(settings[name], getattr(space, name), strict=True)
        found += [value for value, choices in own if len(choices) > 1]
    return found or [0]


def both(limits: Limits, window: Window, resource: Resource) -> Limits | None:
    """Limits and a budget together; None where they leave nothing."""
    bounds = limits.bounds()
    low, high = f"min_{resource}", f"max_{resource}"
    least, most = int(window.low), int(window.high)
    bounds |= {low: max(bounds.get(low, 1), least, 1), high: min(bounds.get(high, most), most - 1)}
    return Limits(**bounds) if bounds[high] >= bounds[low] else None


def fitting_count(region: HalvedRegion, limits: Limits | None) -> int:
    """How many of all members, whatever the region's own limits, are within these."""
    if limits is None:
        return 0
    return sum(int(halves.within(limits).counts.sum()) for halves in region.halves)


def best(halves: Sequence[tuple[Fitting, Scores]], top: int) -> list[tuple[float, Link, int, int]]:
    """The `top` pairs of halves with the highest scores, best first, as score, link and the ranks of the two."""
    bounds = []
    for own, scores in halves:
        highest = np.maximum.accumulate(scores.second[own.order])  # of those that take as much as this one, or less
        reach = highest[np.maximum(own.stops, 1) - 1]
        bounds.append(np.where(own.counts > 0, scores.first + reach, -np.inf))
    places = [(link, number) for link, one in enumerate(bounds) for number in range(len(one))]
    flat = np.concatenate(bounds)
    found: list[tuple[float, int, int, int]] = []
    for rank in np.argsort(-flat, kind="stable"):
        if not np.isfinite(flat[rank]) or (len(found) >= top and flat[rank] <= found[-1][0]):
            break
        link, number = places[rank]
        own, scores = halves[link]
        seconds = own.order[own.places(number)]
        values = scores.first[number] + scores.second[seconds]
        for place in np.argsort(-values, kind="stable")[:top]:
            found.append((float(values[place]), link, number, int(seconds[place])))
        found = sorted(found, key=lambda one: (-one[0], *one[1:]))[:top]
    return [(score, halves[link][0].halves.link, first, second) for score, link, first, second in found]
