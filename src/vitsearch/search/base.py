"""What a strategy gets and gives, and the registry of strategies."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from vitsearch.architecture import Settings, brief
from vitsearch.cost import IMAGENET, Geometry, Limits, architecture_cost
from vitsearch.errors import UnknownName, VitsearchError
from vitsearch.latency.speed import Speed
from vitsearch.records import Objective, Trial
from vitsearch.registry import Registry, did_you_mean
from vitsearch.search.sieve import PATIENCE, Sieve, fast_enough
from vitsearch.spaces import Region, Space
from vitsearch.spaces.region import Cell

KINDS = {int: "a whole number", float: "a number"}


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Where to search and for what: a space, the budget, the input the cost is counted for, and the objectives."""

    space: Space
    limits: Limits
    geometry: Geometry = IMAGENET
    objectives: tuple[Objective, ...] = ()
    """The most important one first."""
    speed: Speed | None = None
    """Predicted latency and its bound, where there is one."""
    listed: tuple[Settings, ...] | None = None
    """All that there is, where it is not the whole space: the networks of a benchmark table."""

    @cached_property
    def region(self) -> Region:
        """The architectures of an allowed cost, be they too slow; raises `NothingFits` when there are none."""
        if self.listed is None:
            return self.space.region(self.limits, self.geometry)
        costs = (architecture_cost(self.space.decode(settings), self.geometry) for settings in self.listed)
        cells = [Cell(1, cost, settings) for cost, settings in zip(costs, self.listed, strict=True)]
        return Region(cells, lambda settings, rank: settings).within(self.limits, self.space.name)

    @cached_property
    def _keys(self) -> frozenset[str] | None:
        return None if self.listed is None else frozenset(map(key_of, self.listed))

    def allows(self, settings: Settings) -> bool:
        if settings not in self.space if self._keys is None else key_of(settings) not in self._keys:
            return False
        architecture = self.space.decode(settings)
        return self.limits.allow(architecture_cost(architecture, self.geometry)) and (
            self.speed is None or self.speed.allows(architecture)
        )

    def part(self, start: int, count: int, seed: int | None = None) -> list[Settings]:
        """What is allowed, from number `start` on, in the order of the space or the one of a seed."""
        if (bound := self._bound) is None:
            return self.region.part(start, count, seed)
        if seed not in self._sieves:
            every = fast_enough(self.region, self.space, bound, None)
            self._sieves[seed] = Sieve(every if seed is None else self.walk(seed))
        return self._sieves[seed].part(start, count)

    def walk(self, seed: int) -> Iterator[Settings]:
        """All that is allowed, in the order of a seed."""
        members, bound = self.region.walk(seed), self._bound
        return members if bound is None else fast_enough(members, self.space, bound, PATIENCE)

    @property
    def _bound(self) -> Speed | None:
        return self.speed if self.speed is not None and self.speed.bounded else None

    @cached_property
    def _sieves(self) -> dict[int | None, Sieve]:
        return {}

    def check(self, seed: int) -> None:
        """Raises `NothingFits` where nothing is allowed, or nothing can be found."""
        _ = self.region
        self.part(0, 1, seed)


class TriedIndex:
    """The number of the first trial of each architecture, kept up with a journal that only grows."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._length = 0
        self.bred: tuple[object, list[Settings]] | None = None
        """The last generation, and what it depends on: it is asked for in parts, and takes half a second."""

    def first(self, trials: Sequence[Trial], length: int, settings: Settings) -> int | None:
        """None where the first `length` trials do not have it."""
        for number in range(self._length, length):
            self._first.setdefault(key_of(trials[number].settings), number)
        self._length = max(self._length, length)
        number = self._first.get(key_of(settings), length)
        return number if number < length else None


def key_of(settings: Settings) -> str:
    """Equal for equal settings in canonical form."""
    return json.dumps(settings)


@dataclass(frozen=True, slots=True)
class History:
    """The first `length` trials of a journal that only grows."""

    trials: Sequence[Trial]
    length: int
    index: TriedIndex = field(default_factory=TriedIndex, compare=False, repr=False)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Trial:
        if not 0 <= number < self.length:
            raise IndexError(f"trial {number} is not in a history of {self.length}")
        return self.trials[number]

    def before(self, number: int) -> History:
        """The trials before this one."""
        return History(self.trials, min(number, self.length), self.index)

    def tried(self, settings: Settings) -> bool:
        """Whether a trial has this architecture, be it a failed one."""
        return self.index.first(self.trials, self.length, settings) is not None

    def valid(self) -> list[Trial]:
        """The trials that did not fail."""
        return [trial for trial in self.trials[: self.length] if trial.error is None]


class Strategy(Protocol):
    """Proposes the next architectures. Same domain, history and seed: same proposal.

    Fewer than `count` are given where the next ones need the results of these: it is asked again when they are there.
    None means that there is nothing left to try. A strategy that is a dataclass has its fields as options. One that
    looks at the first of several objectives alone says so with `one_objective = True`.
    """

    def ask(self, domain: Domain, history: History, seed: int, count: int) -> Sequence[Settings]: ...


STRATEGIES: Registry[Strategy] = Registry("strategy", "vitsearch.search")


def parse_strategy(text: str) -> Strategy:
    """``random`` or, with options, ``evolution:population=20,parents=5``."""
    name, colon, rest = text.partition(":")
    found: Any = STRATEGIES[name]
    fields = dataclasses.fields(found) if dataclasses.is_dataclass(found) else ()
    defaults = {field.name: getattr(found, field.name) for field in fields}
    kinds = {field.name: _kind(field, defaults[field.name]) for field in fields}
    values: dict[str, Any] = {}
    for part in rest.split(",") if colon else ():
        option, equals, value = part.partition("=")
        if not equals or option not in defaults:
            known = ", ".join(f"{key}={default}" for key, default in defaults.items()) or "none"
            near = did_you_mean(option, list(defaults))
            raise UnknownName(f"strategy {name!r} has no option {brief(part)}.{near} Its options: {known}")
        if option in values:
            raise VitsearchError(f"option `{option}` of strategy {name!r} must be given once, but got {brief(text)}")
        values[option] = _option(name, option, value, kinds[option])
    strategy: Strategy = dataclasses.replace(found, **values) if values else found
    return strategy


def _kind(field: dataclasses.Field[Any], default: Any) -> type:
    """Of an option's values; where the default is none, what is written beside it: `int | None`, `float | None`."""
    return type(default) if default is not None else int if str(field.type).startswith("int") else float


def _option(strategy: str, option: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        rule = f"option `{option}` of strategy {strategy!r} must be {KINDS.get(kind, kind.__name__)}"
        raise VitsearchError(f"{rule}, but got {brief(text)}") from None
