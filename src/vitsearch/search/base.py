"""What a strategy gets and gives, and the registry of strategies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from vitsearch.architecture import Settings
from vitsearch.cost import IMAGENET, Geometry, Limits, architecture_cost
from vitsearch.records import Trial
from vitsearch.registry import Registry
from vitsearch.spaces import Region, Space


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Where to search: a space, the budget, and the input the cost is counted for."""

    space: Space
    limits: Limits
    geometry: Geometry = IMAGENET

    @cached_property
    def region(self) -> Region:
        """The architectures that are allowed; raises `NothingFits` when there are none."""
        return self.space.region(self.limits, self.geometry)

    def allows(self, settings: Settings) -> bool:
        inside = settings in self.space
        return inside and self.limits.allow(architecture_cost(self.space.decode(settings), self.geometry))


@dataclass(frozen=True, slots=True)
class History:
    """The first `length` trials of a journal that only grows."""

    trials: Sequence[Trial]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Trial:
        if not 0 <= number < self.length:
            raise IndexError(f"trial {number} is not in a history of {self.length}")
        return self.trials[number]


class Strategy(Protocol):
    """Proposes the next architectures. Same domain, history and seed: same proposal.

    Fewer than `count` (or none) means that there is nothing left to try.
    """

    def ask(self, domain: Domain, history: History, seed: int, count: int) -> Sequence[Settings]: ...


STRATEGIES: Registry[Strategy] = Registry("strategy", "vitsearch.search")
