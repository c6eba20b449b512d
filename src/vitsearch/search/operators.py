"""Mutation and crossover on settings, for every space: they read the knobs and know nothing else.

A space whose knobs cannot all be combined is respected: a child outside the space is drawn again. In a space with
stages, the depth and the width of each are its network knobs, and a block is one thing: it is redrawn, or comes from a
parent, with all that it has (S3's Algorithm 3).
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
        values |= _mutate_stages(space, values, random, network, block)
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
        values |= _cross_stages(space, first, second, random)
        return space.settings(**space.repaired(values, random))

    return _inside(space, child)


def _mutate_stages(space: Space, values: Settings, random: Random, network: float, block: float) -> Settings:
    """What knobs per stage and per block of a stage become."""
    own = [knob for knob in space.knobs if knob.per == "stage"]
    found: Settings = {
        knob.name: [
            random.choice(choices) if random.random() < network else value
            for value, choices in zip(values[knob.name], knob.choices, strict=True)
        ]
        for knob in own
    }

    def redrawn(stage: int, number: int) -> bool:
        return number >= values["depth"][stage] or random.random() < block

    def other(stage: int, number: int, knobs: list[Knob]) -> list[Any]:
        if redrawn(stage, number):
            return [random.choice(knob.choices[stage]) for knob in knobs]
        return [values[knob.name][stage][number] for knob in knobs]

    return found | (_by_stage(space, found["depth"], other) if own else {})


def _cross_stages(space: Space, first: Settings, second: Settings, random: Random) -> Settings:
    own = [knob for knob in space.knobs if knob.per == "stage"]
    found: Settings = {
        knob.name: [random.choice(pair) for pair in zip(first[knob.name], second[knob.name], strict=True)]
        for knob in own
    }

    def inherited(stage: int, number: int, knobs: list[Knob]) -> list[Any]:
        parent = random.choice([one for one in (first, second) if number < one["depth"][stage]])
        return [parent[knob.name][stage][number] for knob in knobs]

    return found | (_by_stage(space, found["depth"], inherited) if own else {})


def _by_stage(space: Space, depth: list[int], block: Callable[[int, int, list[Knob]], list[Any]]) -> Settings:
    """The knobs of blocks, each block made as one."""
    knobs = [knob for knob in space.knobs if knob.per == "stage block"]
    made = [[block(stage, number, knobs) for number in range(count)] for stage, count in enumerate(depth)]
    return {knob.name: [[own[place] for own in blocks] for blocks in made] for place, knob in enumerate(knobs)}


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
