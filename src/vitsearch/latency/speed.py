"""What a search asks of predicted latency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vitsearch.architecture import Architecture, brief
from vitsearch.errors import VitsearchError
from vitsearch.latency.model import LatencyModel, check_number, read_latency
from vitsearch.predictor import digest_of_file


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedLimits:
    """What a search asks of predicted latency, and the sha256 of the file that predicts it."""

    max_latency_ms: float | None = None
    min_throughput: float | None = None
    """Images per second, in batches of the file's size."""
    digest: str

    def __post_init__(self) -> None:
        if not isinstance(self.digest, str) or not self.digest:
            raise VitsearchError(f"`digest` must be a text, but got {brief(self.digest)}")
        for name in ("max_latency_ms", "min_throughput"):
            if (value := getattr(self, name)) is not None and check_number(name, value) == 0:
                raise VitsearchError(f"`{name}` must be more than 0, but got {value}")

    def __str__(self) -> str:
        latency = f"at most {self.max_latency_ms:g} ms" if self.max_latency_ms is not None else ""
        throughput = f"at least {self.min_throughput:g} images per second" if self.min_throughput is not None else ""
        return " and ".join(text for text in (latency, throughput) if text)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Predicted latency of the networks of a search, and the slowest that is allowed."""

    model: LatencyModel
    limits: SpeedLimits

    @cached_property
    def slowest_ms(self) -> float:
        asked = self.limits.max_latency_ms, self.limits.min_throughput
        by_latency = math.inf if asked[0] is None else asked[0]
        return by_latency if asked[1] is None else min(by_latency, self.model.batch * 1000 / asked[1])

    @property
    def bounded(self) -> bool:
        return self.slowest_ms < math.inf

    def latency_ms(self, architecture: Architecture) -> float:
        return self.model.latency_ms(architecture)

    def allows(self, architecture: Architecture) -> bool:
        return self.latency_ms(architecture) <= self.slowest_ms


def read_speed(
    latency: str | Path | None, max_latency_ms: float | None = None, min_throughput: float | None = None
) -> Speed | None:
    """None where nothing is asked; bounds need a file."""
    if latency is not None:
        model = read_latency(latency)
        limits = SpeedLimits(
            max_latency_ms=max_latency_ms, min_throughput=min_throughput, digest=digest_of_file(latency)
        )
        return Speed(model=model, limits=limits)
    for name, value in (("max_latency", max_latency_ms), ("min_throughput", min_throughput)):
        if value is not None:
            raise VitsearchError(f"`{name}` needs a file of `vitsearch fit-latency` in `latency`, but got none")
    return None
