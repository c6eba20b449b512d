"""Every allowed architecture, in the order of the space: for spaces and budgets small enough."""

from __future__ import annotations

from collections.abc import Sequence

from vitsearch.architecture import Settings
from vitsearch.search.base import STRATEGIES, Domain, History


class ExhaustiveSearch:
    def ask(self, domain: Domain, history: History, seed: int, count: int) -> Sequence[Settings]:
        return domain.region.part(len(history), count)


STRATEGIES.add("exhaustive", ExhaustiveSearch())
