"""Fit the predictor: measure the parts of a space's networks and a few whole ones, all in turns.

A block is measured as a chain of itself, less the same network without blocks, so that neither the timer nor the call
matters; a frame as a network without blocks. Whole networks give scale and constant; others, which nothing is fitted
on, the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitsearch.architecture import Architecture, Settings, check_seed, check_whole
from vitsearch.cost import IMAGENET, Geometry, architecture_cost, block_cost
from vitsearch.environment import pick_device
from vitsearch.errors import VitsearchError
from vitsearch.latency.engines import check_engine
from vitsearch.latency.machine import describe_machine
from vitsearch.latency.model import FRAME, KIND_NAMES, HeldOut, LatencyModel
from vitsearch.latency.parts import (
    Frame,
    Place,
    block_features,
    chain,
    frame_features,
    frame_of,
    places_of,
    spread,
    without_blocks,
)
from vitsearch.latency.timing import Candidate, Progress, measure
from vitsearch.models import build
from vitsearch.spaces import SPACES, Space

Array: TypeAlias = NDArray[np.float64]
CHAIN = 6
LOOKED_AT = 400  # networks drawn to find the parts of a space
MOST_FRAMES = 16


class Timed(NamedTuple):
    """A network to be measured and its input."""

    architecture: Architecture
    geometry: Geometry


Stopwatch: TypeAlias = Callable[[Sequence[Timed]], Array]  # seconds [networks, runs], measured in turns


@dataclass(frozen=True, kw_only=True)
class RealTime:
    """This machine as a stopwatch."""

    engine: str
    batch: int
    threads: int
    device: torch.device
    repeats: int
    progress: Progress | None = None

    def __call__(self, networks: Sequence[Timed]) -> Array:
        built = [build(timed.architecture, timed.geometry, draw_weights=False) for timed in networks]
        lend_weights(built, self.device)
        timings = measure(
            [Candidate(network=one, geometry=timed.geometry) for one, timed in zip(built, networks, strict=True)],
            engines=[self.engine],
            batch_sizes=[self.batch],
            threads=self.threads,
            device=self.device,
            repeats=self.repeats,
            progress=self.progress,
        )
        return np.array([timing.seconds for timing in timings])


def lend_weights(networks: Sequence[nn.Module], device: torch.device) -> None:
    """All networks share the numbers of the largest one: a hundred of them would not fit into memory."""
    sizes = [[-(-parameter.numel() // 64) * 64 for parameter in network.parameters()] for network in networks]
    generator = torch.Generator().manual_seed(0)
    pool = (torch.randn(max(map(sum, sizes)), generator=generator) * 0.02).to(device)
    for network, counts in zip(networks, sizes, strict=True):
        start = 0
        for parameter, count in zip(network.parameters(), counts, strict=True):
            parameter.requires_grad_(False).data = pool[start : start + parameter.numel()].view(parameter.shape)
            start += count


def undisturbed(seconds: Array) -> Array:
    """Times of [networks, runs] without what slowed a whole round, and what slowed single runs: lower quartiles."""
    medians = np.median(seconds, axis=1, keepdims=True)
    slowness = np.median(seconds / medians, axis=0, keepdims=True)
    result: Array = np.quantile(seconds / slowness, 0.25, axis=1)
    return result


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is measured."""

    frames: dict[Frame, Architecture]
    places: list[Place]
    like: Architecture
    """Any network of the space: chains have its tokens, position and readout."""
    fitted: list[Settings]
    held_out: list[Settings]


def fit_latency(
    space: str | Space,
    *,
    geometry: Geometry = IMAGENET,
    engine: str = "eager",
    batch: int = 1,
    threads: int | None = None,
    device: str = "cpu",
    blocks: int = 48,
    networks: int = 12,
    held_out: int = 20,
    repeats: int = 30,
    seed: int = 0,
    stopwatch: Stopwatch | None = None,
    progress: Progress | None = None,
) -> LatencyModel:
    """Measure at most `blocks` blocks, `networks` networks for scale and constant, and `held_out` for the error.

    `stopwatch` measures in place of this machine.
    """
    found = SPACES[space] if isinstance(space, str) else space
    chosen = pick_device(device)
    check_engine(engine, chosen)
    count = torch.get_num_threads() if threads is None else check_whole("threads", threads, most=1024)
    for name, number in (("blocks", blocks), ("networks", networks), ("held_out", held_out)):
        check_whole(name, number, least=2)
    choice = choose(found, geometry, blocks, networks, held_out, seed)
    watch = stopwatch or RealTime(
        engine=engine,
        batch=check_whole("batch_size", batch),
        threads=count,
        device=chosen,
        repeats=check_whole("repeats", repeats),
        progress=progress,
    )
    draft = LatencyModel(
        space=found,
        geometry=geometry,
        engine=engine,
        batch=batch,
        environment=describe_machine(chosen, count, engine),
        scale=1.0,
        constant_ms=0.0,
        frames={},
        blocks={},
        examples={},
        coefficients={},
        held_out=(),
        macs_error=0.0,
    )
    return fit_parts(draft, choice, watch)


def choose(space: Space, geometry: Geometry, blocks: int, networks: int, held_out: int, seed: int) -> Choice:
    """Parts from many networks of the space, evenly over their cost; whole networks at random, none twice."""
    region = space.region(None, geometry)
    if region.size < networks + held_out:
        asked = f"{networks} + {held_out}"
        raise VitsearchError(f"`networks` + `held_out` must be at most the {region.size} of {space.name}, got {asked}")
    count = min(region.size, max(LOOKED_AT, networks + held_out))
    drawn = [region.shuffled(check_seed(seed), number) for number in range(count)]
    plans = [space.decode(settings) for settings in drawn]
    frames = {frame_of(plan): without_blocks(plan) for plan in plans}
    cheapest = sorted(frames, key=lambda frame: (frame_features(frames[frame], geometry), repr(frame)))
    places = {place for plan in plans for place in places_of(plan, geometry.image_size)}
    by_cost = sorted(places, key=lambda place: (KIND_NAMES[type(place.block)], place.side, _macs(place), repr(place)))
    return Choice(
        frames={frame: frames[frame] for frame in spread(cheapest, MOST_FRAMES)},
        places=spread(by_cost, blocks),
        like=plans[0],
        fitted=drawn[:networks],
        held_out=drawn[networks : networks + held_out],
    )


def _macs(place: Place) -> int:
    return block_cost(place.block, place.width, place.side, place.extra_tokens).macs


def fit_parts(draft: LatencyModel, choice: Choice, stopwatch: Stopwatch) -> LatencyModel:
    """All measurements in one go, then times of parts, coefficients, scale and errors from them.

    Parts count undisturbed; the scale takes their sum to the median of whole networks, which is what is predicted.
    """
    geometry, space = draft.geometry, draft.space
    empty = {(place.width, place.side): place for place in choice.places}
    whole = [space.decode(settings) for settings in [*choice.fitted, *choice.held_out]]
    plans = [
        *(Timed(frame, geometry) for frame in choice.frames.values()),
        *(_chain(choice.like, place, 0, geometry) for place in empty.values()),
        *(_chain(choice.like, place, CHAIN, geometry) for place in choice.places),
        *(Timed(plan, geometry) for plan in whole),
    ]
    seconds = stopwatch(plans)
    times = iter(1000 * undisturbed(seconds)[: -len(whole)])
    frames = {frame: float(next(times)) for frame in choice.frames}
    overhead = {key: float(next(times)) for key in empty}
    blocks = {place: max(float(next(times)) - overhead[place[1:3]], 0.0) / CHAIN for place in choice.places}
    measured = [1000 * float(number) for number in np.median(seconds[-len(whole) :], axis=1)]
    examples: dict[Frame | Place, Architecture] = {place: chain(choice.like, place, 1) for place in choice.places}
    examples.update(choice.frames.items())
    coefficients = fit_coefficients(blocks) | fit_frames(choice.frames, frames, geometry)
    parts = replace(draft, frames=frames, blocks=blocks, examples=examples, coefficients=coefficients)
    count = len(choice.fitted)
    sums = [[parts.latency_ms(plan), 1.0] for plan in whole[:count]]
    scale, constant = non_negative(sums, measured[:count])
    fitted = replace(parts, scale=scale, constant_ms=constant)
    return judged(fitted, choice.held_out, whole, measured)


def _chain(like: Architecture, place: Place, length: int, geometry: Geometry) -> Timed:
    return Timed(chain(like, place, length), replace(geometry, image_size=place.side))


def fit_coefficients(blocks: Mapping[Place, float]) -> dict[str, list[float]]:
    by_kind: dict[str, list[Place]] = {}
    for place in blocks:
        by_kind.setdefault(KIND_NAMES[type(place.block)], []).append(place)
    return {
        kind: non_negative([block_features(place) for place in places], [blocks[place] for place in places])
        for kind, places in by_kind.items()
    }


def fit_frames(
    examples: Mapping[Frame, Architecture], frames: Mapping[Frame, float], geometry: Geometry
) -> dict[str, list[float]]:
    features = [frame_features(examples[frame], geometry) for frame in frames]
    return {FRAME: non_negative(features, list(frames.values()))}


def non_negative(features: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """The non-negative coefficients of the least sum of squared relative errors."""
    from scipy.optimize import nnls

    rows, aims = np.array(features, dtype=np.float64), np.array(times, dtype=np.float64)
    weights = 1 / np.maximum(aims, 1e-9 * max(aims.max(), 1e-300))
    units = rows.max(axis=0)
    units[units == 0] = 1.0
    found, _ = nnls(rows / units * weights[:, None], aims * weights, maxiter=1000)
    return [float(number) for number in found / units]


def judged(
    model: LatencyModel, settings: Sequence[Settings], plans: Sequence[Architecture], measured: Sequence[float]
) -> LatencyModel:
    """With its errors on the last networks, beside those of a line over MACs through the first."""
    count = len(plans) - len(settings)
    macs = np.array([architecture_cost(plan, model.geometry).macs for plan in plans], dtype=np.float64)
    times = np.array(measured)
    slope, constant = np.polyfit(macs[:count] / macs.max(), times[:count], 1)
    line = slope * macs[count:] / macs.max() + constant
    held_out = tuple(
        HeldOut(settings=one, measured_ms=float(ms), predicted_ms=model.latency_ms(plan))
        for one, ms, plan in zip(settings, times[count:], plans[count:], strict=True)
    )
    macs_error = float(np.median(abs(line / times[count:] - 1)))
    return replace(model, held_out=held_out, macs_error=macs_error)
