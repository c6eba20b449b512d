"""What strategies with generations share.

Generation g has the trials [g * population, (g + 1) * population) and depends on the trials before it and on
`Random(f"{seed}/{g}")`, so that asking for a part of it, once or again, gives that part. Nothing is tried twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from vitsearch.architecture import Settings, brief
from vitsearch.errors import VitsearchError
from vitsearch.records import Objective
from vitsearch.search.base import Domain, History, key_of


class Brood:
    """The members of a generation as they come: allowed, tried neither before nor in this generation."""

    def __init__(self, domain: Domain, history: History) -> None:
        self.domain = domain
        self.history = history
        self.members: list[Settings] = []
        self._keys: set[str] = set()

    def breed(self, count: int, tries: int, child: Callable[[], Settings]) -> None:
        """Add `count` children, or as many as come out of `tries` draws for each."""
        wanted = len(self.members) + count
        for _ in range(tries * count):
            if len(self.members) == wanted:
                return
            settings = child()
            if not self._known(settings) and self.domain.allows(settings):
                self._add(settings)

    def fill(self, size: int, random: Random) -> None:
        """Add random members of the domain until there are `size`, or none is left."""
        order = random.getrandbits(63)
        if len(self.members) >= size:
            return
        for settings in self.domain.walk(order):
            if not self._known(settings):
                self._add(settings)
            if len(self.members) >= size:
                return

    def _known(self, settings: Settings) -> bool:
        return key_of(settings) in self._keys or self.history.tried(settings)

    def _add(self, settings: Settings) -> None:
        self._keys.add(key_of(settings))
        self.members.append(settings)


Breed = Callable[[Brood, Random], None]


def ask_generation(
    domain: Domain,
    history: History,
    seed: int,
    count: int,
    population: int,
    breed: Breed,
    begin: Breed | None = None,
) -> Sequence[Settings]:
    """The next of the current generation. `begin` begins the first one and `breed` the others, chance fills them."""
    generation, position = divmod(len(history), population)
    key = (breed, begin, domain, seed, generation, population)
    if history.index.bred is None or history.index.bred[0] != key:
        brood = Brood(domain, history.before(generation * population))
        random = Random(f"{seed}/{generation}")
        if generation:
            breed(brood, random)
        elif begin is not None:
            begin(brood, random)
        brood.fill(population, random)
        history.index.bred = key, brood.members
    return history.index.bred[1][position : position + count]


def objectives_of(domain: Domain, strategy: str) -> Sequence[Objective]:
    if not domain.objectives:
        raise VitsearchError(f"`objectives` of the domain must not be empty: strategy {strategy!r} compares by them")
    return domain.objectives


def check_share(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise VitsearchError(f"`{name}` must be a number from 0 to 1, but got {brief(value)}")
    return value
