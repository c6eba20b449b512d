"""PreNAS's preferred training: the steps of a supernet train networks that were chosen before (Eq. 11).

| scheme      | what a step trains                                                           | paper            |
|-------------|------------------------------------------------------------------------------|------------------|
| `balanced`  | a group of equal width and depth, each as likely, then one of its members     | Eq. 11           |
| `chosen`    | one of the chosen networks, each as likely; also `uniform` with candidates    | Figure 5, uniform |
| `resampled` | a network put together from what the chosen ones of a width have, block by block | Figure 5     |
| `redundant` | any network of the space, as `uniform`; the chosen ones are only evaluated    | Figure 4         |
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from vitsearch.architecture import Settings
from vitsearch.errors import VitsearchError
from vitsearch.spaces import Space
from vitsearch.spaces.identity import check_identity
from vitsearch.training.subnets import (
    ATTEMPTS,
    SUBNET_SCHEMES,
    Identity,
    SubnetScheme,
    Uniform,
    generator_of,
    parse_scheme,
)


@dataclass(frozen=True)
class Preferred(ABC):
    """A scheme over chosen networks, which `scheme_of` fills in."""

    candidates: tuple[Settings, ...] = ()

    def choose(self, space: Space, seed: int, step: int) -> list[Settings]:
        return [self.draw(space, generator_of(seed, step))]

    @abstractmethod
    def draw(self, space: Space, random: Random) -> Settings: ...


class Balanced(Preferred):
    def draw(self, space: Space, random: Random) -> Settings:
        groups = list(by_size(space, self.candidates).values())
        return random.choice(random.choice(groups))


class Chosen(Preferred):
    def draw(self, space: Space, random: Random) -> Settings:
        return random.choice(self.candidates)


class Resampled(Preferred):
    def draw(self, space: Space, random: Random) -> Settings:
        """Each width as likely; of the candidates that have it, each depth, and each value that occurs in a block."""
        lead = space.knobs[0].name
        for _ in range(ATTEMPTS):
            width = random.choice(_distinct([one[lead] for one in self.candidates]))
            alike = [one for one in self.candidates if one[lead] == width]
            values = {
                k.name: random.choice(_distinct([one[k.name] for one in alike]))
                for k in space.knobs
                if k.per == "network"
            }
            for knob in (knob for knob in space.knobs if knob.per == "block"):
                known = [one[knob.name] for one in alike]
                values[knob.name] = [
                    random.choice(_distinct([blocks[at] for blocks in known if at < len(blocks)]))
                    for at in range(space.slots(values))
                ]
            settings = space.settings(**space.repaired(values, random))
            if settings in space:
                return settings
        raise VitsearchError(f"no member of {space.name} came out of {ATTEMPTS} draws from its candidates")


SUBNET_SCHEMES.add("balanced", Balanced())
SUBNET_SCHEMES.add("chosen", Chosen())
SUBNET_SCHEMES.add("resampled", Resampled())
SUBNET_SCHEMES.add("redundant", Uniform())


def by_size(space: Space, candidates: Sequence[Settings]) -> dict[str, list[Settings]]:
    """Candidates in groups of equal width and depth, or what the space has in their place."""
    groups: dict[str, list[Settings]] = {}
    for one in candidates:
        groups.setdefault(json.dumps(space.size_group(one)), []).append(one)
    return groups


def scheme_of(name: str, space: Space, candidates: Sequence[Settings] | None) -> SubnetScheme:
    """The scheme of this name, over these candidates where it is one over candidates; with some, `uniform` is."""
    found = parse_scheme("chosen" if name == "uniform" and candidates else name)
    if isinstance(found, Identity):
        check_identity(space, "subnets identity")
    if isinstance(found, Resampled) and any(knob.per.startswith("stage") for knob in space.knobs):
        raise VitsearchError(f"subnets resampled must be of a space without stages, but got {space.name}")
    for number, settings in enumerate(candidates or ()):
        if reason := space.why_not(settings):
            raise VitsearchError(f"`candidates` must be networks of the space, but entry {number} is not: {reason}")
    if not isinstance(found, Preferred):
        return found
    if not candidates:
        raise VitsearchError(f"`candidates` must be given for subnets {name}, networks to choose from, but got none")
    return replace(found, candidates=tuple(candidates))


def _distinct(values: Sequence[Any]) -> list[Any]:
    return list({json.dumps(value): value for value in values}.values())
