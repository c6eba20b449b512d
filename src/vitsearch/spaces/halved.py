"""Regions of spaces that are chains of steps, counted exactly under limits although no two costs need be equal.

What a step costs depends on its own choice and on the width before it. So a network is cut in the middle: for each
resolution and each width there, the costs of all first halves and of all second halves are listed, the latter in
order, and those that a first half leaves room for are a range of them. A billion networks are pairs of some thousands
and some ten thousands of halves. Draws under limits are uniform over the members that fit, and none is rejected.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, TypeAlias

from vitsearch.architecture import Settings
from vitsearch.cost import Cost, Geometry, Limits
from vitsearch.errors import NothingFits, VitsearchError
from vitsearch.spaces.region import Region

Step: TypeAlias = tuple[int, ...]  # a width, then whatever else the step chooses
Numbers: TypeAlias = Any  # an array; numpy is imported where it is used
LISTED = 4_000_000  # halves of one kind that are listed at most
BEYOND = 1 << 62
PARAMS_BITS, MACS_BITS = 27, 36


class Chain(Protocol):
    """A space whose members are a resolution and a choice for each step."""

    @property
    def name(self) -> str: ...

    @property
    def resolution(self) -> tuple[int, ...]: ...

    @property
    def steps(self) -> tuple[tuple[Step, ...], ...]: ...

    def step_cost(self, number: int, before: int, step: Step, resolution: int, geometry: Geometry) -> Cost: ...

    def linked(self, resolution: int, steps: Sequence[Step]) -> Settings: ...


def sums(
    steps: Sequence[Sequence[Step]], before: int, value: Callable[[int, int, Step], Sequence[float]], start: int = 0
) -> Numbers:
    """[ways, values]: the sum over each way through the steps, in the order of `itertools.product`.

    `value` gets the number of the step, the width before it, and the choice.
    """
    import numpy as np

    known: dict[tuple[int, int], Numbers] = {}

    def onward(place: int, width: int) -> Numbers:
        if place == len(steps):
            return np.zeros((1, 1), dtype=np.int64)
        if (place, width) not in known:
            rows = [onward(place + 1, step[0]) + np.array(value(start + place, width, step)) for step in steps[place]]
            known[place, width] = np.concatenate(rows)
        return known[place, width]

    return onward(0, before)


def way(steps: Sequence[Sequence[Step]], rank: int) -> list[Step]:
    """The choices of way `rank`."""
    found: list[Step] = []
    for own in reversed(steps):
        rank, digit = divmod(rank, len(own))
        found.insert(0, own[digit])
    return found


class Link(NamedTuple):
    """Where halves meet: networks of a resolution whose step in the middle has this width."""

    resolution: int
    width: int
    first: tuple[tuple[Step, ...], ...]
    second: tuple[tuple[Step, ...], ...]

    @property
    def seconds(self) -> int:
        return math.prod(map(len, self.second))

    @property
    def members(self) -> int:
        return math.prod(map(len, self.first)) * self.seconds


def links_of(space: Chain) -> list[Link]:
    """Cut where the longer of the two lists is shortest."""
    steps = space.steps
    sizes = [max(math.prod(map(len, steps[:cut])), math.prod(map(len, steps[cut:]))) for cut in range(1, len(steps))]
    cut = 1 + sizes.index(min(sizes))
    if min(sizes) > LISTED:
        raise VitsearchError(f"{space.name} must have fewer choices: {min(sizes)} halves are more than {LISTED}")
    found = []
    for resolution in space.resolution:
        for width in dict.fromkeys(step[0] for step in steps[cut - 1]):
            first = (*steps[: cut - 1], tuple(step for step in steps[cut - 1] if step[0] == width))
            found.append(Link(resolution, width, first, steps[cut:]))
    return found


class Halves(NamedTuple):
    """The costs of a link's halves, [ways, (params, macs)]."""

    link: Link
    first: Numbers
    second: Numbers

    def within(self, limits: Limits) -> Fitting:
        return Fitting(self, limits)


class Fitting:
    """The pairs of halves within limits; `second` has second halves in the order of the resource that is limited."""

    def __init__(self, halves: Halves, limits: Limits) -> None:
        import numpy as np

        self.halves, bounds = halves, limits.bounds()
        self.axis = int("min_macs" in bounds or "max_macs" in bounds)
        ranges = [(bounds.get(f"min_{name}", 0), bounds.get(f"max_{name}", BEYOND)) for name in ("params", "macs")]
        self.order = np.argsort(halves.second[:, self.axis], kind="stable")
        self.second = halves.second[self.order]
        low, high = ranges[self.axis]
        along, room = self.second[:, self.axis], halves.first[:, self.axis]
        self.starts = np.searchsorted(along, low - room, side="left")
        self.stops = np.searchsorted(along, high - room, side="right")
        both = self.axis and ("min_params" in bounds or "max_params" in bounds)
        self.other = ranges[0] if both else None
        self.counts = self.stops - self.starts
        if self.other is not None:
            self.counts = np.array([len(self.places(number)) for number in range(len(room))])

    def places(self, number: int) -> Numbers:
        """Of the second halves in order, those that go with this first half."""
        import numpy as np

        start, stop = self.starts[number], self.stops[number]
        if self.other is None:
            return np.arange(start, stop)
        low, high = (bound - self.halves.first[number, 0] for bound in self.other)
        params = self.second[start:stop, 0]
        return start + np.flatnonzero((params >= low) & (params <= high))

    def extreme(self, which: Callable[[Numbers], Any]) -> list[tuple[int, int, int]]:
        """(key, first half, second half) of the best pair of each first half; `which` is np.argmin or np.argmax."""
        import numpy as np

        firsts, seconds = keys_of(self.halves.first), keys_of(self.second)
        found = []
        for number in map(int, np.flatnonzero(self.counts)):
            places = self.places(number)
            place = places[which(seconds[places])]
            found.append((int(firsts[number] + seconds[place]), number, int(self.order[place])))
        return found


def keys_of(costs: Numbers) -> Numbers:
    """Parameters, then MACs, as one number; sums of them compare alike (`halves_of` sees that they fit)."""
    return (costs[:, 0] << MACS_BITS) + costs[:, 1]


class HalvedRegion(Region):
    """All members of a chain, or those within limits."""

    def __init__(
        self, space: Chain, geometry: Geometry, limits: Limits | None = None, halves: list[Halves] | None = None
    ) -> None:
        super().__init__([], lambda place, rank: {})  # no cells are listed
        self.space, self.geometry, self.limits, self._halves = space, geometry, limits, halves
        self.links = links_of(space)

    @cached_property
    def halves(self) -> list[Halves]:
        return self._halves or [halves_of(self.space, link, self.geometry) for link in self.links]

    @cached_property
    def fitting(self) -> list[Fitting]:
        return [halves.within(self.limits or Limits()) for halves in self.halves]

    @cached_property
    def _totals(self) -> list[int]:
        """Members up to and with each link."""
        if self.limits is None:
            return list(accumulate(link.members for link in self.links))
        return list(accumulate(int(fitting.counts.sum()) for fitting in self.fitting))

    @property
    def size(self) -> int:
        return self._totals[-1]

    def __getitem__(self, index: int) -> Settings:
        import numpy as np

        if not 0 <= index < self.size:
            raise IndexError(f"index {index} is not in a region of {self.size} architectures")
        place = bisect_right(self._totals, index)
        rank = index - (self._totals[place - 1] if place else 0)
        if self.limits is None:
            return self._pair(place, *divmod(rank, self.links[place].seconds))
        ends = np.cumsum(self.fitting[place].counts)
        number = int(np.searchsorted(ends, rank, side="right"))
        rank -= int(ends[number - 1]) if number else 0
        fitting = self.fitting[place]
        return self._pair(place, number, int(fitting.order[fitting.places(number)[rank]]))

    def smallest(self) -> Settings:
        import numpy as np

        return self._end(min, np.argmin)

    def largest(self) -> Settings:
        import numpy as np

        return self._end(max, np.argmax)

    def within(self, limits: Limits, space: str) -> Region:
        region = HalvedRegion(self.space, self.geometry, limits, self.halves)
        if not region.size:
            spans = ", ".join("{}={} to {}".format(name, *self.span(name)) for name in ("params", "macs"))
            raise NothingFits(f"no architecture of {space} satisfies {limits}; they have {spans}")
        return region

    def span(self, resource: str) -> tuple[int, int]:
        """The least and the most of it that any member has, whatever the limits."""
        axis = ("params", "macs").index(resource)
        least = min(halves.first[:, axis].min() + halves.second[:, axis].min() for halves in self.halves)
        most = max(halves.first[:, axis].max() + halves.second[:, axis].max() for halves in self.halves)
        return int(least), int(most)

    def _end(self, which: Callable[..., Any], place_of: Callable[[Numbers], Any]) -> Settings:
        found = []
        for place, halves in enumerate(self.halves):
            if self.limits is None:
                keys = [keys_of(costs) for costs in (halves.first, halves.second)]
                first, second = (int(place_of(one)) for one in keys)
                found.append((int(keys[0][first] + keys[1][second]), place, first, second))
            else:
                ends = self.fitting[place].extreme(place_of)
                found += [(key, place, first, second) for key, first, second in ends]
        best = which(found, key=lambda one: one[0])
        return self._pair(*best[1:])

    def _pair(self, place: int, first: int, second: int) -> Settings:
        link = self.links[place]
        return self.space.linked(link.resolution, [*way(link.first, first), *way(link.second, second)])


def halves_of(space: Chain, link: Link, geometry: Geometry) -> Halves:
    def cost(number: int, before: int, step: Step) -> Cost:
        return space.step_cost(number, before, step, link.resolution, geometry)

    first = sums(link.first, geometry.channels, cost)
    second = sums(link.second, link.width, cost, start=len(link.first))
    params, macs = (int(most) for most in first.max(0) + second.max(0))
    if params >> PARAMS_BITS or macs >> MACS_BITS:
        rule = f"networks of {space.name} must have less than 2^{PARAMS_BITS} parameters and 2^{MACS_BITS} MACs"
        raise VitsearchError(f"{rule}, but got {params} and {macs}")
    return Halves(link, first, second)
