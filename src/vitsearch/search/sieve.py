"""What is fast enough among members that come in some order.

Cost is counted in cells, latency is not: members that are too slow are passed over one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from vitsearch.architecture import Settings
from vitsearch.errors import NothingFits
from vitsearch.latency.speed import Speed
from vitsearch.spaces import Space

PATIENCE = 100_000  # members one after the other that are all too slow: about ten seconds


def fast_enough(members: Iterable[Settings], space: Space, speed: Speed, patience: int | None) -> Iterator[Settings]:
    """Those that the bound allows; `NothingFits` where none does, or none of `patience` one after the other."""
    fastest, found, misses = math.inf, 0, 0
    for settings in members:
        latency = speed.latency_ms(space.decode(settings))
        fastest = min(fastest, latency)
        if latency <= speed.slowest_ms:
            found, misses = found + 1, 0
            yield settings
            continue
        misses += 1
        if misses == patience:
            raise NothingFits(
                f"{misses} architectures of {space.name} in a row are too slow for {speed.limits}, after {found} that "
                f"are not; the fastest has {fastest:.4g} ms: allow more, or bound params or macs too"
            )
    if not found:
        raise NothingFits(
            f"no architecture of {space.name} within the limits has {speed.limits}; the fastest has {fastest:.4g} ms"
        )


class Sieve:
    """What comes through, kept as far as it was asked for: an order is walked once, however often it is asked."""

    def __init__(self, members: Iterator[Settings]) -> None:
        self._members = members
        self._found: list[Settings] = []

    def part(self, start: int, count: int) -> list[Settings]:
        while len(self._found) < start + count and (settings := next(self._members, None)) is not None:
            self._found.append(settings)
        return self._found[start : start + count]
