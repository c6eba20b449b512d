"""Random search: a seeded order of everything that is allowed, from its beginning. Nothing comes twice."""

from __future__ import annotations

from collections.abc import Sequence

from vitsearch.architecture import Settings
from vitsearch.search.base import STRATEGIES, Domain, History


class RandomSearch:
    """Each trial is uniform over the allowed architectures and depends on (seed, number) alone."""

    def ask(self, domain: Domain, history: History, seed: int, count: int) -> Sequence[Settings]:
        return domain.region.part(len(history), count, seed)


STRATEGIES.add("random", RandomSearch())
