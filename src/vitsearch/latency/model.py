"""A fitted predictor of latency for the networks of one space, and what a search asks of it.

A network takes the time of its frame and of its blocks, times a scale, and a constant: each part's own measured time
or, where it was not measured, a sum of non-negative multiples of its features. The file is JSON, and the prediction a
function of it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitsearch.architecture import BLOCK_KINDS, Architecture, Settings, brief, check_whole
from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.latency.parts import Frame, Place, block_features, frame_features, frame_of, places_of, without_blocks
from vitsearch.records import parse_json, write_atomically
from vitsearch.spaces import SPACES, Space

FORMAT = 1
LATENCY = "latency_ms"  # the name among what is measured of a trial
FRAME = "frame"
KIND_NAMES = {cls: name for name, cls in BLOCK_KINDS.items()}
log = logging.getLogger("vitsearch")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A network that nothing was fitted on."""

    settings: Settings
    measured_ms: float
    predicted_ms: float

    @property
    def error(self) -> float:
        return abs(self.predicted_ms / self.measured_ms - 1)


@dataclass(frozen=True, kw_only=True)
class LatencyModel:
    """Milliseconds of a batch, as one engine takes them on one machine."""

    space: Space
    geometry: Geometry
    engine: str
    batch: int
    environment: Mapping[str, Any]
    """Device, its name, threads and versions: where and with what the times were measured."""
    scale: float
    """From the sum of the parts to the whole network: this much of it, and so much more."""
    constant_ms: float
    frames: Mapping[Frame, float]
    blocks: Mapping[Place, float]
    examples: Mapping[Frame | Place, Architecture]
    """For each measured part the network it was measured in, a block alone for a block."""
    coefficients: Mapping[str, Sequence[float]]
    """Milliseconds for each unit of each feature, by kind of part."""
    held_out: tuple[HeldOut, ...]
    macs_error: float
    """Median error on the same networks of a straight line over MACs, to compare with."""

    @cached_property
    def _cache(self) -> dict[Place, float]:
        return dict(self.blocks)

    def latency_ms(self, architecture: Architecture) -> float:
        known, total = self._cache, self._frame_ms(architecture)
        for place in places_of(architecture, self.geometry.image_size):
            if place not in known:
                known[place] = self._from_features(KIND_NAMES[type(place.block)], block_features(place))
            total += known[place]
        return total * self.scale + self.constant_ms

    def _frame_ms(self, architecture: Architecture) -> float:
        own = self.frames.get(frame_of(architecture))
        return self._from_features(FRAME, frame_features(architecture, self.geometry)) if own is None else own

    def _from_features(self, kind: str, features: Sequence[float]) -> float:
        if kind not in self.coefficients:
            raise VitsearchError(f"the latency file of {self.space.name} was fitted on no block of kind {kind!r}")
        return math.fsum(a * b for a, b in zip(self.coefficients[kind], features, strict=True))

    @property
    def errors(self) -> dict[str, float | int]:
        """Relative errors on held-out networks."""
        found = sorted(one.error for one in self.held_out)
        return {"networks": len(found), "median": quantile(found, 0.5), "p95": quantile(found, 0.95)} | {
            "macs_median": self.macs_error
        }

    def check(self, space: Space, geometry: Geometry) -> None:
        """Whether it speaks of these networks; a word where the classifier is another."""
        mine = (self.space, self.geometry.image_size, self.geometry.channels)
        if mine != (space, geometry.image_size, geometry.channels):
            ours = f"{space.name} {space.fixed()} at {geometry.image_size} px, {geometry.channels} channels"
            theirs = f"{self.space.name} {self.space.fixed()} at {mine[1]} px, {mine[2]} channels"
            raise VitsearchError(f"`latency` must be fitted on the space that is searched, {ours}, but got {theirs}")
        if self.geometry.classes != geometry.classes:
            log.warning("note: latencies are for %d classes, not %d", self.geometry.classes, geometry.classes)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": "latency",
            "space": self.space.name,
            "fixed": self.space.fixed(),
            **dataclasses.asdict(self.geometry),
            "engine": self.engine,
            "batch": self.batch,
            "environment": dict(self.environment),
            "errors": self.errors,
            "scale": self.scale,
            "constant_ms": self.constant_ms,
            "coefficients": {kind: list(numbers) for kind, numbers in self.coefficients.items()},
            "frames": [{"ms": ms, "network": self.examples[frame].to_json()} for frame, ms in self.frames.items()],
            "blocks": [
                {"ms": ms, "side": place.side, "network": self.examples[place].to_json()}
                for place, ms in self.blocks.items()
            ],
            "held_out": [dataclasses.asdict(one) for one in self.held_out],
        }

    def save(self, path: str | Path) -> None:
        write_atomically(Path(path), json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted numbers, between neighbours in proportion."""
    place = share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def read_latency(path: str | Path) -> LatencyModel:
    """The inverse of `LatencyModel.save`; whatever is wrong with the file is one line."""
    try:
        data = parse_json(Path(path).read_bytes(), str(path))
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise VitsearchError(f"`latency` must be a file that can be read, but got {str(path)!r}: {reason}") from None
    if not isinstance(data, dict) or (data.get("format"), data.get("kind")) != (FORMAT, "latency"):
        raise VitsearchError(f"{path} must have format {FORMAT} and kind 'latency', as `vitsearch fit-latency` writes")
    try:
        return _from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, VitsearchError) as error:
        raise VitsearchError(f"{path} is broken: {type(error).__name__}: {error}") from None


def _from_json(data: Mapping[str, Any]) -> LatencyModel:
    fixed: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data["fixed"].items()}
    frames: dict[Frame, float] = {}
    blocks: dict[Place, float] = {}
    examples: dict[Frame | Place, Architecture] = {}
    for row in data["frames"]:
        network = without_blocks(Architecture.from_json(row["network"]))
        frames[frame_of(network)] = check_number("ms", row["ms"])
        examples[frame_of(network)] = network
    for row in data["blocks"]:
        network = Architecture.from_json(row["network"])
        (place,) = places_of(network, check_whole("side", row["side"]))
        blocks[place], examples[place] = check_number("ms", row["ms"]), network
    coefficients = {
        kind: [check_number("coefficient", number) for number in numbers]
        for kind, numbers in data["coefficients"].items()
    }
    return LatencyModel(
        space=dataclasses.replace(SPACES[data["space"]], **fixed),
        geometry=Geometry(**{name: data[name] for name in ("image_size", "classes", "channels")}),
        engine=str(data["engine"]),
        batch=check_whole("batch", data["batch"]),
        environment=dict(data["environment"]),
        scale=check_number("scale", data["scale"]),
        constant_ms=check_number("constant_ms", data["constant_ms"]),
        frames=frames,
        blocks=blocks,
        examples=examples,
        coefficients=coefficients,
        held_out=tuple(HeldOut(**row) for row in data["held_out"]),
        macs_error=check_number("macs_median", data["errors"]["macs_median"]),
    )


def check_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise VitsearchError(f"`{name}` must be a number from 0 on, but got {brief(value)}")
    return float(value)
