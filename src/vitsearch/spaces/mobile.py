"""PreNAS's space of convolutional networks: seven stages of MobileNetV2's inverted residual blocks.

Wang et al., PreNAS, ICML 2023, Table 2, after BigNAS (Yu et al., ECCV 2020). The table gives ranges, and the steps are
ours:

| what        | table                | choices                                                               |
|-------------|----------------------|-----------------------------------------------------------------------|
| resolution  | 192-320              | 192, 224, 256, 288, 320                                               |
| width       | 32-40, ..., 320-352  | every multiple of 8, of a stage; 1280, 1344, 1408 of the last convolution |
| depth       | 1-2, ..., 2-6        | every whole number, of a stage                                        |
| kernel      | 3; 3, 5              | as listed, one for all blocks of a stage                              |

Strides follow from the table's resolutions: stages 2, 3, 4 and 6 and the first convolution have 2. Blocks are those of
Sandler et al. 2018, which the table cites: an expansion of 6 (of 1 in stage 1), ReLU6, no squeeze and excitation.
`width` has the first convolution, the seven stages and the last convolution. Images are resized to `resolution` inside
the network, whatever size they come in.

Any other choices are a variant with a name, as in windowed.py: `mobilenetv2:resolution=32+64,depth=1+2`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from vitsearch.architecture import (
    Architecture,
    Bottleneck,
    Convolution,
    InvertedResidual,
    Settings,
    Stage,
    brief,
    check_kernel,
    check_whole,
)
from vitsearch.cost import Cost, Geometry, block_cost, entry_cost
from vitsearch.errors import BadSettings, VitsearchError
from vitsearch.spaces.base import SPACES, Knob, Space
from vitsearch.spaces.halved import HalvedRegion, Step
from vitsearch.spaces.region import Region
from vitsearch.spaces.windowed import Choices, read_choices

EXPANSIONS = (1, 6, 6, 6, 6, 6, 6)
STRIDES = (1, 2, 2, 2, 1, 2, 1)
STAGES = len(STRIDES)
FIRST, LAST = Convolution(kernel=3, stride=2), Convolution(kernel=1)
DOWN = FIRST.stride * math.prod(STRIDES)
KNOBS = ("resolution", "depth", "width", "kernel")


@dataclass(frozen=True, kw_only=True)
class Mobile(Space):
    resolution: tuple[int, ...]
    depth: Choices
    width: Choices
    kernel: Choices

    def __post_init__(self) -> None:
        sizes = {"depth": STAGES, "width": STAGES + 2, "kernel": STAGES}
        for name, count in sizes.items():
            choices = getattr(self, name)
            if len(choices) != count or not all(choices):
                raise VitsearchError(f"`{name}` must have choices for each of {count} places, but got {brief(choices)}")
            if any(len(set(place)) < len(place) for place in choices) or len(set(self.resolution)) < len(
                self.resolution
            ):
                raise VitsearchError(f"choices of {self.name} must differ, but some are there twice")
        for resolution in self.resolution:
            check_resolution(resolution)
        for stage in self.depth:
            for choice in stage:
                check_whole("depth", choice, most=1024)
        for choice in (choice for place in self.width for choice in place):
            check_whole("width", choice)
        for choice in (choice for stage in self.kernel for choice in stage):
            check_kernel(choice)

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        by_stage = (Knob(name=name, choices=getattr(self, name), per="stage") for name in KNOBS[1:])
        return (Knob(name="resolution", choices=self.resolution), *by_stage)

    def fixed(self) -> dict[str, Any]:
        return {}

    def with_patch_size(self, patch_size: int | Sequence[int]) -> Space:
        raise VitsearchError(f"`patch_size` must not be given for {self.name}, which has no patches")

    def decode(self, settings: Mapping[str, Any]) -> Architecture:
        values, _ = self.read(settings)
        depth, width, kernel = (_numbers(name, values[name]) for name in KNOBS[1:])
        stages = [Stage(entry=FIRST, width=width[0], blocks=())]
        for number in range(1, STAGES + 1):
            entry, block = stage_parts(number, check_kernel(kernel[number - 1]))
            blocks = (block,) * (check_whole("depth", depth[number - 1], most=1024) - 1)
            stages.append(Stage(entry=entry, width=width[number], blocks=blocks))
        stages.append(Stage(entry=LAST, width=width[-1], blocks=()))
        return Architecture(
            stages=tuple(stages),
            class_token=False,
            position="none",
            norm_eps=1e-5,
            initialisation="mobilenetv2",
            resolution=check_resolution(values["resolution"]),
        )

    def encode(self, architecture: Architecture) -> Settings:
        inner = architecture.stages[1:-1]
        entries = [stage.entry for stage in inner if isinstance(stage.entry, Bottleneck)]
        if len(inner) != STAGES or len(entries) != STAGES or architecture.resolution is None:
            raise BadSettings(f"{self.name} has {STAGES} stages of inverted residuals, and this blueprint is another")
        settings = self.settings(
            resolution=architecture.resolution,
            depth=[len(stage.blocks) + 1 for stage in inner],
            width=[stage.width for stage in architecture.stages],
            kernel=[entry.kernel for entry in entries],
        )
        if self.decode(settings) != architecture:
            raise BadSettings(f"{self.name} has one kernel in a stage and fixed strides, and this blueprint is another")
        return settings

    def envelope(self) -> Architecture:
        stages = {name: [max(choices) for choices in getattr(self, name)] for name in KNOBS[1:]}
        return self.decode(self.settings(resolution=max(self.resolution), **stages))

    @cached_property
    def steps(self) -> tuple[tuple[Step, ...], ...]:
        """First convolution (width), stages (width, depth, kernel), last convolution (width)."""
        inner = (tuple(itertools.product(*one)) for one in zip(self.width[1:-1], self.depth, self.kernel, strict=True))
        first, last = (tuple((width,) for width in self.width[place]) for place in (0, -1))
        return first, *inner, last

    def step_cost(self, number: int, before: int, step: Step, resolution: int, geometry: Geometry) -> Cost:
        side = resolution // math.prod((FIRST.stride, *STRIDES)[: number + 1])
        width = step[0]
        depth, kernel = step[1:] or (1, 1)
        entry, block = stage_parts(number, kernel)
        params, macs = entry_cost(entry, before, width, side, 0)
        more, classes = block_cost(block, width, side, 0), geometry.classes if number > STAGES else 0
        params += (depth - 1) * more.params + (width + 1) * classes
        return Cost(params, macs + (depth - 1) * more.macs + width * classes)

    def linked(self, resolution: int, steps: Sequence[Step]) -> Settings:
        """Settings from what each step has."""
        depth, kernel = ([step[place] for step in steps[1:-1]] for place in (1, 2))
        return self.settings(resolution=resolution, depth=depth, width=[step[0] for step in steps], kernel=kernel)

    def size_group(self, settings: Mapping[str, Any]) -> Any:
        """Resolution and total depth: with the widths of all stages too, hardly two networks would be alike."""
        return [settings["resolution"], sum(settings["depth"])]

    def whole(self, geometry: Geometry) -> Region:
        return HalvedRegion(self, geometry)

    def variant(self, text: str) -> Space:
        values: dict[str, Any] = {}
        for name, given in self.said(text, KNOBS, "resolution=32+64,depth=1+2").items():
            places = 1 if name == "resolution" else len(getattr(self, name))
            found = read_choices(name, given, places)
            values[name] = found[0] if name == "resolution" else found
        return self.varied(text, values)


def check_resolution(value: object) -> int:
    resolution = check_whole("resolution", value, most=1 << 13)
    if resolution % DOWN:
        raise BadSettings(f"`resolution` must be a multiple of {DOWN}, but got {resolution}")
    return resolution


@lru_cache(maxsize=256)
def stage_parts(number: int, kernel: int) -> tuple[Convolution | Bottleneck, InvertedResidual]:
    """The entry of step `number` and its further blocks; the first and the last step are convolutions without any."""
    if not 1 <= number <= STAGES:
        return (FIRST if number == 0 else LAST), InvertedResidual(expansion=1, kernel=1)
    expansion = EXPANSIONS[number - 1]
    entry = Bottleneck(expansion=expansion, kernel=kernel, stride=STRIDES[number - 1])
    return entry, InvertedResidual(expansion=expansion, kernel=kernel)


def _numbers(name: str, value: object) -> list[int]:
    count = STAGES + 2 if name == "width" else STAGES
    if not isinstance(value, (list, tuple)) or len(value) != count:
        raise BadSettings(f"`{name}` must be a list of {count} numbers, but got {brief(value)}")
    return [check_whole(name, entry) for entry in value]


def _every(least: int, most: int, step: int = 1) -> tuple[int, ...]:
    return tuple(range(least, most + 1, step))


SPACES.add(
    "mobilenetv2",
    Mobile(
        name="mobilenetv2",
        description="PreNAS's convolutional networks, around MobileNetV2, of BigNAS's space",
        paper="Wang et al., PreNAS, ICML 2023, Table 2; Yu et al., BigNAS, ECCV 2020",
        resolution=_every(192, 320, 32),
        depth=(*map(_every, (1, 2, 2, 2, 2, 2, 1), (2, 3, 3, 4, 6, 6, 2)),),
        width=(
            _every(32, 40, 8),
            _every(16, 24, 8),
            _every(24, 32, 8),
            _every(40, 48, 8),
            _every(80, 88, 8),
            _every(112, 128, 8),
            _every(192, 216, 8),
            _every(320, 352, 8),
            _every(1280, 1408, 64),
        ),
        kernel=((3,), (3,), *(((3, 5),) * 5)),
    ),
)
