"""AutoFormer's evolution: children of the best so far, half by mutation, half by crossover (ICCV 2021)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from vitsearch.architecture import Settings, check_whole
from vitsearch.errors import VitsearchError
from vitsearch.records import Trial
from vitsearch.search.base import STRATEGIES, Domain, History
from vitsearch.search.generations import Brood, ask_generation, check_share, objectives_of
from vitsearch.search.operators import crossover, mutate


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """Looks at the first objective alone. The defaults are AutoFormer's."""

    one_objective: ClassVar[bool] = True
    population: int = 50
    parents: int = 10
    """As many of the best trials of all generations have children."""
    mutated: float = 0.5
    """Share of a generation that comes from mutation, as `crossed` from crossover; the rest is random."""
    crossed: float = 0.5
    network_rate: float = 0.4
    block_rate: float = 0.2
    tries: int = 10
    """Draws for each child before chance takes its place."""

    def __post_init__(self) -> None:
        for name in ("population", "parents", "tries"):
            check_whole(name, getattr(self, name))
        for name in ("mutated", "crossed", "network_rate", "block_rate"):
            check_share(name, getattr(self, name))
        if self.mutated + self.crossed > 1:
            shares = f"mutated={self.mutated}, crossed={self.crossed}"
            raise VitsearchError(f"`mutated` and `crossed` must not be more than 1 together, but got {shares}")

    def ask(self, domain: Domain, history: History, seed: int, count: int) -> Sequence[Settings]:
        return ask_generation(domain, history, seed, count, self.population, self._breed)

    def best(self, domain: Domain, history: History) -> list[Trial]:
        """The parents, best first; the earlier of equals."""
        objective = objectives_of(domain, "evolution")[0]
        return heapq.nlargest(self.parents, history.valid(), key=lambda trial: (objective.gain(trial), -trial.number))

    def _breed(self, brood: Brood, random: Random) -> None:
        space, parents = brood.domain.space, self.best(brood.domain, brood.history)
        if not parents:
            return

        def parent() -> Settings:
            return random.choice(parents).settings

        def mutant() -> Settings:
            return mutate(space, parent(), random, network=self.network_rate, block=self.block_rate)

        mutants = round(self.mutated * self.population)
        crossed = min(round(self.crossed * self.population), self.population - mutants)
        brood.breed(mutants, self.tries, mutant)
        brood.breed(crossed, self.tries, lambda: crossover(space, parent(), parent(), random))


STRATEGIES.add("evolution", Evolution())
