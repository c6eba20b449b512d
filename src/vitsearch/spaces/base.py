"""What every space offers, and the registry of spaces.

A space has knobs. From them and from the exact cost of each choice follow its size, its members by index, uniform
sampling, also under limits, and the membership test. A new space says how settings become a blueprint and back.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random
from typing import Any, Literal, NamedTuple, TypeAlias

from vitsearch.architecture import Architecture, Settings, brief, check_seed, check_whole
from vitsearch.cost import IMAGENET, Cost, Geometry, Limits, architecture_cost
from vitsearch.errors import BadSettings, VitsearchError
from vitsearch.registry import Registry, did_you_mean
from vitsearch.spaces.region import Cell, Region

Choice: TypeAlias = Any  # a number, or a tuple of numbers (one for each stage)
ENUMERABLE = 200_000  # a space this small may be listed member by member


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A name in the settings and its choices; `per` block knobs hold `depth` values.

    Knobs `per` stage have choices for each stage; those per stage block hold a list for each stage, of its `depth`.
    """

    name: str
    choices: tuple[Choice, ...]
    per: Literal["network", "block", "stage", "stage block"] = "network"

    @cached_property
    def allowed(self) -> frozenset[Choice]:
        return frozenset(self.choices)

    def why_not(self, value: Any, space: str) -> str | None:
        """The first entry of a setting that is not among the choices."""
        if self.per.startswith("stage"):
            return self._why_not_stages(value, space)
        entries = value if self.per == "block" else [tuple(value) if isinstance(value, list) else value]
        if self.allowed.issuperset(entries):
            return None
        index = next(index for index, entry in enumerate(entries) if entry not in self.allowed)
        where = f"{self.name}[{index}]" if self.per == "block" else self.name
        allowed = ", ".join(str(list(c) if isinstance(c, tuple) else c) for c in self.choices)
        return f"`{where}` is {brief(entries[index] if self.per == 'block' else value)}, and {space} has {allowed}"

    def _why_not_stages(self, value: Any, space: str) -> str | None:
        if len(value) != len(self.choices):
            return f"`{self.name}` has {len(value)} stages, and {space} has {len(self.choices)}"
        for stage, (own, choices) in enumerate(zip(value, self.choices, strict=True)):
            for index, entry in enumerate(own if self.per == "stage block" else [own]):
                if entry not in choices:
                    where = f"{self.name}[{stage}]" + (f"[{index}]" if self.per == "stage block" else "")
                    return f"`{where}` is {brief(entry)}, and {space} has {', '.join(map(str, choices))}"
        return None


@dataclass(frozen=True, kw_only=True)
class Space(ABC):
    """A set of architectures. Subclasses add the choices as fields and the two translations below."""

    name: str
    description: str = ""
    paper: str = ""
    patch_size: int = 16
    """Fixed in every member, free to choose: `with_patch_size` gives the same space over other patches."""

    @cached_property
    @abstractmethod
    def knobs(self) -> tuple[Knob, ...]: ...

    @abstractmethod
    def decode(self, settings: Mapping[str, Any]) -> Architecture:
        """The blueprint. Takes whatever can be built, member or not; `BadSettings` otherwise."""

    @abstractmethod
    def encode(self, architecture: Architecture) -> Settings:
        """The settings that `decode` turns into this blueprint."""

    @abstractmethod
    def envelope(self) -> Architecture:
        """The supernet: as deep and wide in every part as any member."""

    def cells(self, geometry: Geometry) -> Iterable[Cell]:
        """The space cut into cells of equal cost. This one lists every member, for spaces that are small."""
        per_network = all(knob.per == "network" for knob in self.knobs)
        if not per_network or math.prod(len(knob.choices) for knob in self.knobs) > ENUMERABLE:
            raise VitsearchError(f"{self.name} is too large to list: its class must give `cells` and `member`")
        for settings in self.product():
            yield Cell(1, architecture_cost(self.decode(settings), geometry), settings)

    def member(self, place: Any, rank: int) -> Settings:
        """The member with this rank inside the cell at this place."""
        return self.settings(**place)

    def product(self) -> Iterator[Settings]:
        """Every combination of the knobs, which must all be per network."""
        choices = [knob.choices for knob in self.knobs]
        names = [knob.name for knob in self.knobs]
        for values in itertools.product(*choices):
            yield self.settings(**dict(zip(names, values, strict=True)))

    def with_patch_size(self, patch_size: int | Sequence[int]) -> Space:
        """The same space over other patches; several sizes are for spaces that search them."""
        return dataclasses.replace(self, patch_size=one_patch_size(self, patch_size))

    def with_fixed(self, fixed: Mapping[str, Any]) -> Space:
        """The space with these `fixed` parts."""
        checked: dict[str, Any] = {name: check_whole(name, value) for name, value in fixed.items()}
        return dataclasses.replace(self, **checked)

    def over(self, settings: Mapping[str, Any]) -> Space:
        """The space over the patches that these settings name."""
        fixed = {name: settings[name] for name in self.fixed() if name in settings}
        return self.with_fixed(fixed) if fixed else self

    def size_group(self, settings: Mapping[str, Any]) -> Any:
        """What networks have alike that balanced training counts as of one size: all but what blocks have."""
        return [settings[knob.name] for knob in self.knobs if knob.per in ("network", "stage")]

    def slots(self, values: Mapping[str, Any]) -> int:
        """How many entries a knob has that is per block."""
        return int(values["depth"])

    def repaired(self, values: Mapping[str, Any], random: Random) -> Mapping[str, Any]:
        """Values whose entries go together; what is missing is drawn."""
        return values

    def published_macs(self, architecture: Architecture, geometry: Geometry) -> int | None:
        """What the paper's own counter says, where it counts otherwise than we do."""
        return None

    def variant(self, text: str) -> Space:
        """The space named `name:text`: the same kind of networks with other choices."""
        raise VitsearchError(f"`space` {self.name} has no variants, but got {brief(f'{self.name}:{text}')}")

    def said(self, text: str, known: Sequence[str], example: str) -> dict[str, str]:
        """What a variant's name says of each of the `known` things."""
        found: dict[str, str] = {}
        for part in text.split(","):
            name, equals, given = part.partition("=")
            if not equals or name not in known or name in found:
                rule = f"a variant of {self.name} must name its choices once each, such as {example}"
                raise VitsearchError(f"{rule}, but got {brief(part)}.{did_you_mean(name, list(known))}")
            found[name] = given
        return found

    def varied(self, text: str, values: Mapping[str, Any]) -> Space:
        """The variant with this text behind its name and with these fields."""
        named: dict[str, Any] = {"name": f"{self.name}:{text}", "description": f"{self.name} with other choices"}
        return dataclasses.replace(self, **named, **values)

    def whole(self, geometry: Geometry) -> Region:
        """All members, with their costs for this input."""
        return Region(list(self.cells(geometry)), self.member)

    def region(self, limits: Limits | None = None, geometry: Geometry = IMAGENET) -> Region:
        """The members that satisfy the limits, counted and numbered."""
        whole = _whole(self, geometry)
        return whole if limits is None or not limits.bounds() else whole.within(limits, self.name)

    @property
    def size(self) -> int:
        """Exact number of architectures."""
        return self.region().size

    def settings(self, **values: Any) -> Settings:
        """Settings in their canonical form: space first, fixed parts that differ from the default, then the knobs."""
        settings: Settings = {"space": self.name}
        for name, value in self.spelled().items():
            if values.get(name, value) != self.default(name):
                settings[name] = values.get(name, value)
        for knob in self.knobs:
            value = values[knob.name]
            settings[knob.name] = list(value) if isinstance(value, (tuple, list)) else value
        return settings

    def fixed(self) -> dict[str, Any]:
        """Parts that are not searched and that users may choose."""
        return {"patch_size": self.patch_size}

    def spelled(self) -> dict[str, int]:
        """Those of the fixed parts that settings spell out where they differ from the default."""
        return self.fixed()

    def default(self, name: str) -> int:
        """The value of a fixed part that settings leave out."""
        value: Any = self.__dataclass_fields__[name].default
        return int(value)

    def why_not(self, settings: Mapping[str, Any]) -> str | None:
        """None for a member; otherwise the first reason why these settings are not in the space."""
        try:
            spelled = self.encode(self.decode(settings))
        except BadSettings as error:
            return str(error)
        for name, value in self.spelled().items():
            given = spelled.get(name, self.default(name))
            if given != value:
                return f"`{name}` is {given}, and this {self.name} has {value}"
        return self.why_not_choices(spelled)

    def why_not_choices(self, spelled: Settings) -> str | None:
        """The same for settings in canonical form, over whatever patches."""
        found = (knob.why_not(spelled[knob.name], self.name) for knob in self.knobs)
        return next((reason for reason in found if reason), None)

    def __contains__(self, settings: Mapping[str, Any]) -> bool:
        return self.why_not(settings) is None

    def read(self, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """The knobs' values and the fixed parts, after checking that all names are there and known."""
        if not isinstance(settings, Mapping):
            raise BadSettings(f"an architecture must be a JSON object of settings, but got {brief(settings)}")
        if settings.get("space", self.name) != self.name:
            raise BadSettings(f"`space` must be {self.name!r}, but got {brief(settings['space'])}")
        names = [knob.name for knob in self.knobs]
        fixed = self.spelled()
        for name in settings:
            if name not in names and name not in fixed and name != "space":
                raise BadSettings(f"{self.name} has no setting {brief(name)}; it has {', '.join([*names, *fixed])}")
        for name in names:
            if name not in settings:
                raise BadSettings(f"settings of {self.name} need `{name}`; it is missing")
        return {name: settings[name] for name in names}, {
            name: check_whole(name, settings.get(name, self.default(name))) for name in fixed
        }


def one_patch_size(space: Space, patch_size: int | Sequence[int]) -> int:
    sizes = [patch_size] if isinstance(patch_size, int) else list(patch_size)
    if len(sizes) != 1:
        raise VitsearchError(f"`patch_size` must be one number for {space.name}, but got {brief(sizes)}")
    return check_whole("patch_size", sizes[0])


@lru_cache(maxsize=64)
def _whole(space: Space, geometry: Geometry) -> Region:
    return space.whole(geometry)


class SpaceRegistry(Registry[Space]):
    """Names of spaces, and those of their variants: `s3:depth=1+2/1+2/4+6/1+2`."""

    def __init__(self) -> None:
        super().__init__("space", "vitsearch.spaces")
        self._variants: dict[str, Space] = {}

    def __getitem__(self, name: str) -> Space:
        if name not in self._variants:
            base, colon, rest = name.partition(":")
            found = super().__getitem__(base)
            if not colon:
                return found
            self._variants[name] = found.variant(rest)
        return self._variants[name]


SPACES = SpaceRegistry()


def space_of(settings: Mapping[str, Any]) -> Space:
    """The registered space that these settings name."""
    if not isinstance(settings, Mapping):
        raise BadSettings(f"an architecture must be a JSON object of settings, but got {brief(settings)}")
    name = settings.get("space")
    if not isinstance(name, str):
        raise BadSettings(f"settings need `space`, the name of a space, but got {brief(name)}")
    return SPACES[name]


def find_space(space: str | Space, patch_size: int | Sequence[int] | None = None) -> Space:
    """A space, by its name too, over other patches where they are given."""
    found = SPACES[space] if isinstance(space, str) else space
    return found if patch_size is None else found.with_patch_size(patch_size)


def space_over(settings: Mapping[str, Any]) -> Space:
    """The space that these settings name, over the patches they name."""
    return space_of(settings).over(settings)


def patches_of(fixed: Mapping[str, Any]) -> Any:
    """A patch size, or those that are searched; None where nothing is said of patches."""
    return fixed.get("patch_sizes", fixed.get("patch_size"))


def patch_words(space: str, fixed: Mapping[str, Any]) -> list[str]:
    """What a command line says for a space with these fixed parts: nothing where they are its own."""
    sizes = patches_of(fixed)
    if dict(fixed) == SPACES[space].fixed() or sizes is None:
        return []
    return ["--patch-size", ",".join(map(str, sizes)) if isinstance(sizes, list | tuple) else str(sizes)]


def decode(settings: Mapping[str, Any]) -> Architecture:
    """Settings to blueprint, whether they lie inside their space or not."""
    return space_of(settings).decode(settings)


def canonical(settings: Mapping[str, Any]) -> Settings:
    """The one spelling of these settings: key order, number types."""
    return understand(settings).settings


def cost_of(architecture: Architecture | Mapping[str, Any], geometry: Geometry = IMAGENET) -> Cost:
    """Exact parameters and MACs of a blueprint or of settings."""
    return architecture_cost(architecture if isinstance(architecture, Architecture) else decode(architecture), geometry)


class Understood(NamedTuple):
    """Settings after reading: the blueprint, the one spelling, and why they lie outside their space (None: inside)."""

    architecture: Architecture
    settings: Settings
    outside: str | None


def understand(settings: Mapping[str, Any]) -> Understood:
    """Read settings once for everything they are asked."""
    space = space_of(settings)
    architecture = space.decode(settings)
    spelled = space.encode(architecture)
    return Understood(architecture, spelled, space.why_not_choices(spelled))


def outside(settings: Mapping[str, Any]) -> str | None:
    """Why these settings lie outside the space they name, over whatever patches; None when they are inside."""
    return understand(settings).outside


def sample(
    space: str | Space,
    count: int = 1,
    *,
    seed: int = 0,
    limits: Limits | None = None,
    geometry: Geometry = IMAGENET,
) -> list[Settings]:
    """Independent uniform draws from the members that satisfy the limits."""
    check_whole("count", count, least=0, most=1 << 24)  # all of them are held in memory
    region = (SPACES[space] if isinstance(space, str) else space).region(limits, geometry)
    random = Random(f"{check_seed(seed)}/sample")
    return [region.sample(random) for _ in range(count)]
