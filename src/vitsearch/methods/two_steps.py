"""PreNAS's choice in two steps: the best isomer of every kind by normalised SNIP, then the best of those by plain SNIP.

A kind is a width, a depth, a total of heads and a total of MLP units. Heads and MLP units add to the score, to
parameters and to MACs independently, so the best of a kind is the best allocation of each, and all kinds of one width
and depth are a table of heads by MLP units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitsearch.architecture import Settings
from vitsearch.cost import Cost, Geometry, Limits, architecture_cost
from vitsearch.errors import NothingFits
from vitsearch.latency import Speed
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
from vitsearch.methods.score_tables import Array, ScoreTables, Tables, Variant, blocks_by_ratio, one_block
from vitsearch.spaces.isotropic import Isotropic

Resource: TypeAlias = Literal["params", "macs", "latency"]
SPLITS = 16
RELIABLE = 0.5
"""An allocation on which halves of the draws agree less than this is within its own noise."""


class Window(NamedTuple):
    """What a budget allows: `low` <= resource < `high`. The paper has no lower end (Eq. 9), the public code bins."""

    low: float
    high: float


class Kind(NamedTuple):
    """Where a representative stands: index of the width, depth, and its two allocations."""

    width: int
    depth: int
    heads: Allocation
    ratios: Allocation


@dataclass(frozen=True, kw_only=True, slots=True)
class Pick:
    """A chosen network. Scores are means over the draws."""

    budget: float
    """Milliseconds for latency, otherwise whole."""
    settings: Settings
    cost: Cost
    latency_ms: float | None
    """Predicted; None where nothing predicts it."""
    snip: float
    score: float
    """Normalised SNIP: what it is the best isomer by."""
    greedy_score: float | None
    """Of the isomer that Algorithm 1 finds; never above `score`."""
    agreement_heads: float | None
    """Between halves of the draws; None with one draw, or where all blocks have the same."""
    agreement_ratios: float | None
    agreement_settings: float | None = None
    """Where no allocation is chosen for its own sake: the share of equal settings, of the best of the budget."""

    @property
    def agreement(self) -> float | None:
        named = (self.agreement_heads, self.agreement_ratios, self.agreement_settings)
        found = [value for value in named if value is not None]
        return sum(found) / len(found) if found else None

    @property
    def noisy(self) -> list[str]:
        """The allocations that are within their own noise."""
        named = {"heads": self.agreement_heads, "ratios": self.agreement_ratios}
        return [name for name, value in named.items() if value is not None and value < RELIABLE]


class Selector:
    """The choice over the mean of some draws."""

    def __init__(
        self, space: Isotropic, draws: Sequence[ScoreTables], *, geometry: Geometry, variant: Variant = "paper"
    ) -> None:
        self.space, self.draws, self.geometry, self.variant = space, draws, geometry, variant
        self.mean = ScoreTables.mean(draws)
        self.head_choices, self.ratio_choices = sorted(space.num_heads), sorted(space.mlp_ratio)

    @property
    def heads_matter(self) -> bool:
        """Not where the width of the network is split among its heads: then they change neither scores nor costs."""
        return bool(np.ptp(self.mean.normalised.heads, axis=2).any())

    def picks(
        self,
        windows: Sequence[Window],
        *,
        top: int,
        resource: Resource,
        limits: Limits,
        speed: Speed | None = None,
        seed: int = 0,
    ) -> list[Pick]:
        """The `top` best of every budget, best first; a budget that nothing fits has none.

        Isomers cost the same, but need not take the same time: the best isomer of a kind stands for it, with its own.
        """
        kinds, snip, costs = self.representatives()
        allowed = np.array([limits.allow(Cost(*cost)) for cost in costs.tolist()])
        used: NDArray[np.int64 | np.float64] = costs[:, int(resource == "macs")]
        if speed is not None:
            times = np.array([speed.latency_ms(self.space.decode(self.settings(kind))) for kind in kinds])
            allowed &= times <= speed.slowest_ms
            used = times if resource == "latency" else used
        order = np.argsort(-snip, kind="stable")
        found = []
        for low, high in windows:
            fits = allowed & (used >= low) & (used < high)
            found += [self._pick(kinds[index], high, speed, seed) for index in order[fits[order]][:top].tolist()]
        if not found:
            considered = "the public code considers" if self.variant == "code" else "PreNAS considers"
            raise NothingFits(f"{considered} no architecture of {self.space.name} within these budgets and limits")
        return found

    def representatives(self) -> tuple[list[Kind], Array, NDArray[np.int64]]:
        """The best isomer of every kind, its plain SNIP, and its parameters and MACs."""
        kinds: list[Kind] = []
        snip, costs = [], []
        for width in range(len(self.space.embed_dim)):
            for depth in sorted(self.space.depth):
                heads, ratios = self.allocations(self.mean.normalised, width, depth)
                kinds += [Kind(width, depth, one, other) for one in heads for other in ratios]
                of_heads, of_ratios = self._snip_parts(width, depth, heads, ratios)
                snip.append(np.add.outer(of_heads, of_ratios).ravel())
                costs.append(self._costs(width, depth, heads, ratios))
        return kinds, np.concatenate(snip), np.concatenate(costs)

    def allocations(self, tables: Tables, width: int, depth: int) -> tuple[list[Allocation], list[Allocation]]:
        """The best ones of every total of heads, and of every total of MLP units."""
        values = tables.heads[width, :depth].tolist(), tables.ratios[width, :depth].tolist()
        heads, ratios = (list(self._best(each, sizes)) for each, sizes in zip(values, self._sizes(width), strict=True))
        return heads, ratios

    def _best(self, values: list[list[float]], sizes: Sequence[int]) -> Iterator[Allocation]:
        if self.variant == "code":
            return (largest_first(values, counts) for counts in counts_of_the_code(len(values), len(sizes)))
        return iter(best_by_total(values, sizes).values())

    def _sizes(self, width: int) -> tuple[list[int], list[int]]:
        """Of each choice: heads, and MLP units."""
        hidden = [block.hidden for block in blocks_by_ratio(self.space, self.space.embed_dim[width])]
        return self.head_choices, hidden

    def _snip_parts(
        self, width: int, depth: int, heads: list[Allocation], ratios: list[Allocation]
    ) -> tuple[Array, Array]:
        tables, blocks = self.mean.snip, np.arange(depth)
        fixed = tables.frame[width] + tables.block[width, :depth].sum()
        of_heads = [tables.heads[width, blocks, list(allocation)].sum() for allocation in heads]
        of_ratios = [tables.ratios[width, blocks, list(allocation)].sum() for allocation in ratios]
        return np.array(of_heads) + fixed, np.array(of_ratios)

    def _costs(self, width: int, depth: int, heads: list[Allocation], ratios: list[Allocation]) -> NDArray[np.int64]:
        """[heads * ratios, 2]: exact, since both are sums over blocks of a part of heads and a part of MLP units."""
        least = self.head_choices[0], self.ratio_choices[0]
        one = np.array(self._cost(width, *least))
        by_head = np.array([self._cost(width, choice, least[1]) for choice in self.head_choices]) - one
        by_ratio = np.array([self._cost(width, least[0], choice) for choice in self.ratio_choices]) - one
        smallest = self.space.decode(self.settings(Kind(width, depth, (0,) * depth, (0,) * depth)))
        of_heads = by_head[np.array(heads)].sum(1) + np.array(architecture_cost(smallest, self.geometry))
        of_ratios = by_ratio[np.array(ratios)].sum(1)
        return np.asarray(of_heads[:, None] + of_ratios[None], dtype=np.int64).reshape(-1, 2)

    def _cost(self, width: int, heads: int, ratio: float) -> Cost:
        return architecture_cost(one_block(self.space, self.space.embed_dim[width], heads, ratio), self.geometry)

    def settings(self, kind: Kind) -> Settings:
        return self.space.settings(
            embed_dim=self.space.embed_dim[kind.width],
            depth=kind.depth,
            num_heads=[self.head_choices[choice] for choice in kind.heads],
            mlp_ratio=[self.ratio_choices[choice] for choice in kind.ratios],
        )

    def kind(self, settings: Settings) -> Kind:
        """The inverse of `settings`."""
        heads = tuple(self.head_choices.index(heads) for heads in settings["num_heads"])
        ratios = tuple(self.ratio_choices.index(ratio) for ratio in settings["mlp_ratio"])
        return Kind(self.space.embed_dim.index(settings["embed_dim"]), settings["depth"], heads, ratios)

    def score(self, tables: Tables, kind: Kind) -> float:
        """Of one network: the sum of its entries."""
        width, depth = kind.width, kind.depth
        fixed = float(tables.frame[width] + tables.block[width, :depth].sum())
        heads = total_value(tables.heads[width, :depth].tolist(), kind.heads)
        return fixed + heads + total_value(tables.ratios[width, :depth].tolist(), kind.ratios)

    def greedy(self, kind: Kind) -> Kind | None:
        """The isomer that Algorithm 1 finds; for the public code, which has its own rule, that rule's."""
        if self.variant == "code":
            return kind
        width, depth, tables = kind.width, kind.depth, self.mean.normalised
        values = tables.heads[width, :depth].tolist(), tables.ratios[width, :depth].tolist()
        found = [
            greedy(each, sizes, total_size(sizes, allocation))
            for each, sizes, allocation in zip(values, self._sizes(width), (kind.heads, kind.ratios), strict=True)
        ]
        return None if found[0] is None or found[1] is None else Kind(width, depth, found[0], found[1])

    def _pick(self, kind: Kind, budget: float, speed: Speed | None, seed: int) -> Pick:
        settings, other = self.settings(kind), self.greedy(kind)
        network = self.space.decode(settings)
        heads, ratios = self._agreements(kind, seed)
        return Pick(
            budget=budget,
            settings=settings,
            cost=architecture_cost(network, self.geometry),
            latency_ms=None if speed is None else speed.latency_ms(network),
            snip=self.score(self.mean.snip, kind),
            score=self.score(self.mean.normalised, kind),
            greedy_score=None if other is None else self.score(self.mean.normalised, other),
            agreement_heads=heads,
            agreement_ratios=ratios,
        )

    def _agreements(self, kind: Kind, seed: int) -> tuple[float | None, float | None]:
        """Of the best isomers of this kind by two halves of the draws, mean over some ways to halve them."""
        found: tuple[list[float], list[float]] = ([], [])
        for halves in halvings(len(self.draws), seed):
            means = (Tables.mean([self.draws[number].normalised for number in half]) for half in halves)
            one, other = (self.best_isomer(mean, kind) for mean in means)
            for values, pair in zip(found, ((one.heads, other.heads), (one.ratios, other.ratios)), strict=True):
                if (value := agreement(*pair)) is not None:
                    values.append(value)
        heads, ratios = (sum(values) / len(values) if values else None for values in found)
        return heads, ratios

    def best_isomer(self, tables: Tables, kind: Kind) -> Kind:
        """Of the same width, depth and totals (in the public code: counts), the best by these tables."""
        width, depth = kind.width, kind.depth
        values = tables.heads[width, :depth].tolist(), tables.ratios[width, :depth].tolist()
        found = []
        for each, sizes, like in zip(values, self._sizes(width), (kind.heads, kind.ratios), strict=True):
            if self.variant == "code":
                found.append(largest_first(each, [like.count(choice) for choice in range(len(sizes))]))
            else:
                found.append(best_by_total(each, sizes)[total_size(sizes, like)])
        return Kind(width, depth, found[0], found[1])


def halvings(draws: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Some ways to cut the draws in two; none for a single draw."""
    if draws < 2:
        return []
    found = {}
    for number in range(SPLITS):
        half = sorted(Random(f"{seed}/halves/{number}").sample(range(draws), draws // 2))
        rest = [other for other in range(draws) if other not in half]
        found[min(tuple(half), tuple(rest))] = (half, rest)
    return list(found.values())
