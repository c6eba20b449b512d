"""Which networks of a supernet a training step trains: a function of (seed, step), and of nothing that went before.

So all processes of a distributed training draw the same networks, and a resumed one draws those it would have drawn.
The gradients of the networks of one step are added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from vitsearch.architecture import Settings, brief, check_seed, check_whole
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.errors import VitsearchError
from vitsearch.registry import Registry
from vitsearch.spaces import Space
from vitsearch.spaces.identity import check_identity
from vitsearch.spaces.windowed import Windowed

ATTEMPTS = 1000


class SubnetScheme(Protocol):
    def choose(self, space: Space, seed: int, step: int) -> list[Settings]: ...


SUBNET_SCHEMES: Registry[SubnetScheme] = Registry("subnet scheme", "vitsearch.training")


class Uniform:
    """One network per step, each knob uniform over its choices, each block apart (AutoFormer).

    Not uniform over architectures: each depth is drawn equally often, and there are far fewer shallow networks than
    deep ones.
    """

    def choose(self, space: Space, seed: int, step: int) -> list[Settings]:
        return [draw(space, generator_of(seed, step))]


@dataclass(frozen=True, kw_only=True)
class Sandwich:
    """The largest network, the smallest, and two drawn as `Uniform` draws (Yu et al., ICCV 2019; S3).

    Largest and smallest are by parameters; in a space with windows, they have its largest and smallest windows too.
    """

    geometry: Geometry = IMAGENET
    """Of the images: which of several patch sizes has the fewest parameters is a matter of them."""

    def choose(self, space: Space, seed: int, step: int) -> list[Settings]:
        random = generator_of(seed, step)
        return [*self.always(space), draw(space, random), draw(space, random)]

    def always(self, space: Space) -> list[Settings]:
        """Those of every step. Windows that all cover a map cost the same: the ends of the space know them apart."""
        if isinstance(space, Windowed):
            return [space.end(max), space.end(min)]
        region = space.region(geometry=self.geometry)
        return [region.largest(), region.smallest()]


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One network per step, each slot empty with this probability, all else uniform (ViTAS, section 4.3)."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise VitsearchError(f"`probability` of subnets must be from 0 to 1, but got {self.probability}")

    def choose(self, space: Space, seed: int, step: int) -> list[Settings]:
        slotted = check_identity(space, "subnets identity")
        return [slotted.draw(generator_of(seed, step), self.probability)]


SUBNET_SCHEMES.add("identity", Identity())
SUBNET_SCHEMES.add("uniform", Uniform())
SUBNET_SCHEMES.add("sandwich", Sandwich())


def parse_scheme(text: str) -> SubnetScheme:
    """`uniform`, or `identity:probability=0.4`."""
    name, colon, rest = text.partition(":")
    found = SUBNET_SCHEMES[name]
    if not colon:
        return found
    option, _, value = rest.partition("=")
    if not isinstance(found, Identity) or option != "probability":
        raise VitsearchError(f"`subnets` must be a name, or identity:probability=0.4, but got {brief(text)}")
    try:
        return Identity(probability=float(value))
    except ValueError:
        raise VitsearchError(f"`probability` of subnets must be a number, but got {brief(value)}") from None


def generator_of(seed: int, step: int) -> Random:
    return Random(f"{check_seed(seed)}/subnets/{check_whole('step', step, least=0, most=1 << 62)}")


def draw(space: Space, random: Random) -> Settings:
    """Every knob uniform over its choices; drawn again where the space does not have the combination."""
    for _ in range(ATTEMPTS):
        values: dict[str, Any] = {k.name: random.choice(k.choices) for k in space.knobs if k.per == "network"}
        for knob in space.knobs:
            if knob.per == "block":
                values[knob.name] = [random.choice(knob.choices) for _ in range(space.slots(values))]
            elif knob.per == "stage":
                values[knob.name] = [random.choice(choices) for choices in knob.choices]
            elif knob.per == "stage block":
                stages = zip(values["depth"], knob.choices, strict=True)
                values[knob.name] = [[random.choice(choices) for _ in range(depth)] for depth, choices in stages]
        settings = space.settings(**space.repaired(values, random))
        if settings in space:
            return settings
    raise VitsearchError(f"no member of {space.name} came out of {ATTEMPTS} draws of its knobs")
