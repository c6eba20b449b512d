"""Mutation and crossover on settings, for every space: they read the knobs and know nothing else.

A space whose knobs cannot all be combined is respected: a child outside the space is drawn again.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from vitsearch.architecture import Settings
from vitsearch.errors import VitsearchError
from vitsearch.spaces import Knob, Space

ATTEMPTS = 1000


def mutate(space: Space, settings: Settings, random: Random, *, network: float = 0.4, block: float = 0.2) -> Settings:
    """Redraw each network knob and each block entry with these probabilities (AutoFormer's: 0.4 and 0.2).

    A new value may equal the old one. Deeper networks get random blocks at the end; shallower ones lose theirs.
    """

    def child() -> Settings:
        values: dict[str, Any] = dict(settings)
        for knob in space.knobs:
            if knob.per == "network" and random.random() < network:
                values[knob.name] = random.choice(knob.choices)
        for knob in space.knobs:
            if knob.per == "block":
                entries = _fit(values[knob.name], space.slots(values), knob, random)
                values[knob.name] = [random.choice(knob.choices) if random.random() < block else e for e in entries]
        return space.settings(**space.repaired(values, random))

    return _inside(space, child)


def crossover(space: Space, first: Settings, second: Settings, random: Random) -> Settings:
    """Each network knob and each block entry from one of the two parents, with equal chance.

    Where only one parent has a block, or a value, at a position, the child takes that parent's.
    """

    def child() -> Settings:
        values: dict[str, Any] = dict(first)
        for knob in space.knobs:
            if knob.per == "network":
                values[knob.name] = random.choice((first, second))[knob.name]
        for knob in space.knobs:
            if knob.per == "block":
                parents = [first[knob.name], second[knob.name]]
                values[knob.name] = [
                    random.choice([parent[index] for parent in parents if _has(parent, index)] or [None])
                    for index in range(space.slots(values))
                ]
        return space.settings(**space.repaired(values, random))

    return _inside(space, child)


def _fit(entries: list[Any], depth: int, knob: Knob, random: Random) -> list[Any]:
    missing = depth - len(entries)
    return entries[:depth] if missing <= 0 else entries + [random.choice(knob.choices) for _ in range(missing)]


def _has(entries: list[Any], index: int) -> bool:
    return index < len(entries) and entries[index] is not None


def _inside(space: Space, child: Callable[[], Settings]) -> Settings:
    for _ in range(ATTEMPTS):
        if (settings := child()) in space:
            return settings
    raise VitsearchError(f"no member of {space.name} came out of {ATTEMPTS} attempts at this operation")
