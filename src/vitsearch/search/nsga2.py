"""NSGA-II for several objectives (Deb et al. 2002), as ViTAS searches; sorting and crowding are pymoo's.

Survivors are chosen among all trials so far, so that no trial of the front is ever forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from vitsearch.architecture import Settings, check_whole
from vitsearch.errors import VitsearchError
from vitsearch.search.base import STRATEGIES, Domain, History
from vitsearch.search.generations import Brood, ask_generation, check_share, objectives_of
from vitsearch.search.operators import crossover, mutate
from vitsearch.spaces.identity import check_identity
from vitsearch.spaces.slotted import SlottedRegion


class Survivor(NamedTuple):
    point: int
    rank: int
    """0 for the front, 1 for the front of the rest, and so on."""
    crowding: float
    """How far away the neighbours in its front are; infinite at the ends."""


def survive(gains: Sequence[Sequence[float]], count: int) -> list[Survivor]:
    """The `count` points of the lowest rank and, in the last front that counts, the least crowded; best first.

    Higher is better; the earlier of equals.
    """
    import numpy as np
    from pymoo.operators.survival.rank_and_crowding.metrics import get_crowding_function
    from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

    costs = -np.asarray(gains, dtype=np.float64)
    survivors: list[Survivor] = []
    for rank, front in enumerate(NonDominatedSorting().do(costs, n_stop_if_ranked=count)):
        crowding = get_crowding_function("cd").do(costs[front])
        members = [Survivor(int(point), rank, float(distance)) for point, distance in zip(front, crowding, strict=True)]
        survivors += sorted(members, key=lambda member: -member.crowding)
    return survivors[:count]


def tournament(survivors: Sequence[Survivor], random: Random) -> Survivor:
    """The better of two: lower rank, then less crowded, then chance."""
    first, second = random.choice(survivors), random.choice(survivors)
    return first if (first.rank, -first.crowding) <= (second.rank, -second.crowding) else second


@dataclass(frozen=True, kw_only=True)
class NSGA2:
    """ViTAS's are `nsga2:parents=20,identity=P` over 40 generations, P the identity probability of its supernet."""

    population: int = 50
    parents: int | None = None
    """As many survivors have children; all of a population's number unless given."""
    identity: float | None = None
    """Networks that are not bred, the first generation and what later ones lack, have empty slots as often as drawing
    with this probability gives them within the limits."""
    network_rate: float = 0.4
    block_rate: float = 0.2
    tries: int = 10
    """Draws for each child before chance takes its place."""

    def __post_init__(self) -> None:
        for name in ("population", "parents", "tries"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        for name in ("identity", "network_rate", "block_rate"):
            if getattr(self, name) is not None:
                check_share(name, getattr(self, name))

    def ask(self, domain: Domain, history: History, seed: int, count: int) -> Sequence[Settings]:
        begin = None if self.identity is None else self._lean
        return ask_generation(domain, history, seed, count, self.population, self._breed, begin)

    def _lean(self, brood: Brood, random: Random) -> None:
        """Fill a generation with draws as the supernet's steps have them."""
        check_identity(brood.domain.space, "option `identity` of strategy 'nsga2'")
        region, identity = brood.domain.region, self.identity
        if not isinstance(region, SlottedRegion):
            raise VitsearchError("option `identity` of strategy 'nsga2' must not be given with a benchmark table")
        assert identity is not None
        brood.breed(self.population - len(brood.members), self.tries, lambda: region.lean(random, identity))

    def _breed(self, brood: Brood, random: Random) -> None:
        space, valid = brood.domain.space, brood.history.valid()
        if not valid:
            return
        objectives = objectives_of(brood.domain, "nsga2")
        gains = [[one.gain(trial) for one in objectives] for trial in valid]
        survivors = survive(gains, self.population if self.parents is None else self.parents)

        def parent() -> Settings:
            return valid[tournament(survivors, random).point].settings

        def child() -> Settings:
            both = crossover(space, parent(), parent(), random)
            return mutate(space, both, random, network=self.network_rate, block=self.block_rate)

        brood.breed(self.population, self.tries, child)
        if self.identity is not None:  # uniform draws of so large a space have hardly a slot empty
            self._lean(brood, random)


STRATEGIES.add("nsga2", NSGA2())
