"""Images per second, measured on this machine, and the identity probability that brings their mean to a budget."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import torch

from vitsearch.architecture import Settings, check_whole
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.environment import pick_device
from vitsearch.errors import VitsearchError
from vitsearch.latency.timing import images_per_second
from vitsearch.models import build
from vitsearch.spaces import Space, decode
from vitsearch.spaces.identity import check_identity

BATCH = 256
SAMPLES = 1000
Measure = Callable[[Settings], float]


@dataclass(frozen=True, kw_only=True)
class Stopwatch:
    """Measures the networks of settings, with weights that do not matter; on a GPU in half precision."""

    geometry: Geometry = IMAGENET
    batch_size: int = BATCH
    device: torch.device = field(default_factory=pick_device)
    repeats: int = 10

    def __call__(self, settings: Settings) -> float:
        check_whole("batch_size", self.batch_size)
        dtype = torch.float16 if self.device.type == "cuda" else torch.float32
        shape = (self.batch_size, self.geometry.channels, self.geometry.image_size, self.geometry.image_size)
        network = build(decode(settings), self.geometry, seed=0).to(self.device, dtype)
        images = torch.zeros(shape, device=self.device, dtype=dtype)
        return images_per_second(network.eval(), images, self.repeats)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProbability:
    """Where a mean throughput is met."""

    probability: float
    low: float
    """The mean is at most the target here, and at least the target at `high`."""
    high: float
    low_95: float
    high_95: float
    """Where the mean over all networks, and not only over these, may meet the target: 95 %, by the standard error."""
    images_per_second: float
    """The mean at `probability`, over `samples` networks."""
    standard_error: float
    samples: int


class MeanThroughput:
    """The mean over networks as a function of the probability.

    The same numbers are drawn at every probability, so that a network at a higher one is a network at a lower one
    with some slots emptied. What was measured once is not measured again.
    """

    def __init__(
        self, space: Space, measure: Measure, samples: int, seed: int, told: Callable[[], None] = lambda: None
    ) -> None:
        self.space = check_identity(space, "an identity probability")
        self.measure, self.samples, self.seed = measure, check_whole("samples", samples, least=2), seed
        self.told, self.means = told, dict[float, float]()
        self._known: dict[str, float] = {}

    def __call__(self, probability: float) -> tuple[float, float]:
        """Mean and its standard error."""
        found = [self._one(self.space.draw(Random(f"{self.seed}/{n}"), probability)) for n in range(self.samples)]
        self.means[probability] = statistics.fmean(found)
        return self.means[probability], statistics.stdev(found) / math.sqrt(len(found))

    def where(self, target: float) -> float:
        """The probability at which the mean is this one, along a line between those that are known."""
        ends = sorted(self.means.items())
        for (low, slower), (high, faster) in itertools.pairwise(ends):
            if slower <= target <= faster:
                return low + (high - low) * (target - slower) / (faster - slower) if faster > slower else low
        return ends[0][0] if target < ends[0][1] else ends[-1][0]

    def _one(self, settings: Settings) -> float:
        key = json.dumps(settings)
        if key not in self._known:
            self._known[key] = self.measure(settings)
        self.told()
        return self._known[key]


def identity_for_throughput(
    space: Space,
    target: float,
    measure: Measure,
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    tolerance: float = 0.01,
    progress: Callable[[int, int], None] | None = None,
) -> MeasuredProbability:
    """Bisection: emptier networks are faster. It ends with an interval of probabilities no wider than `tolerance`.

    `progress` counts networks, of which most are measured in the first means.
    """
    if not target >= 1:  # before anything is measured
        raise VitsearchError(f"`min_throughput` must be at least 1 image/s, but got {target}")
    steps = max(1, math.ceil(math.log2(1 / tolerance)))
    count = itertools.count(1)

    def told() -> None:
        if progress:
            progress(next(count), (steps + 3) * samples)

    mean, low, high = MeanThroughput(space, measure, samples, seed, told), 0.0, 1.0
    slowest, fastest = mean(low)[0], mean(high)[0]
    if not slowest <= target <= fastest:
        rule = f"`min_throughput` must be from {slowest:,.0f} to {fastest:,.0f} images/s"
        why = f"what {space.name} has on average here with no slot empty and with all"
        raise VitsearchError(f"{rule}, {why}, but got {target:,.0f}")
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle)[0] < target else (low, middle)
    value, error = mean(high)
    return MeasuredProbability(
        probability=high,
        low=low,
        high=high,
        low_95=min(low, mean.where(target - 1.96 * error)),
        high_95=max(high, mean.where(target + 1.96 * error)),
        images_per_second=value,
        standard_error=error,
        samples=samples,
    )
