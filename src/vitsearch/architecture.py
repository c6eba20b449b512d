"""The blueprint of a network: complete, frozen, and ignorant of the space it came from.

A blueprint is a list of stages; a stage is an entry (how its map of tokens is made), a width and blocks. It fixes
everything but the input size, the input channels and the number of classes, which `cost.Geometry` holds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, Union

from vitsearch.errors import BadSettings

Settings: TypeAlias = dict[str, Any]  # a point in a space, as users read and write it in JSON

Scale: TypeAlias = Literal["head", "embed"]
SCALES: tuple[Scale, ...] = ("head", "embed")
LARGEST = 1 << 16  # no width, window or grid beyond this: a typing error, not a network


def check_whole(name: str, value: object, least: int = 1, most: int = LARGEST) -> int:
    """`value` as an int between `least` and `most`, or an error that names the rule."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadSettings(f"`{name}` must be a whole number from {least} to {most}, but got {brief(value)}")
    return value


def check_seed(seed: object) -> int:
    """What Python's and torch's generators both take."""
    return check_whole("seed", seed, least=0, most=(1 << 63) - 1)


def brief(value: object) -> str:
    """`repr`, cut to a length that fits an error line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Pre-norm block over all tokens: x + attention(norm(x)), then x + mlp(norm(x)).

    The query, key and value width is `heads * head_dim`, independent of the stage's width. `relative_distance` > 0
    adds AutoFormer's relative position tables on keys and values, clipped at that distance. The softmax sees products
    times (width of a head)^-0.5; `scale` 'embed' takes (stage's width // heads)^-0.5, as ViTAS's released networks do.
    """

    heads: int
    head_dim: int
    hidden: int
    relative_distance: int = 0
    scale: Scale = "head"
    layer_scale: bool = False
    """Whether each branch is multiplied by a learned factor per channel (CaiT)."""

    def __post_init__(self) -> None:
        _check_attention(self)
        check_whole("relative_distance", self.relative_distance, least=0)

    @property
    def relative_rows(self) -> int:
        """Rows of each relative table: -distance..distance, and one for pairs with the class token."""
        return 2 * self.relative_distance + 2 if self.relative_distance else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassAttention:
    """CaiT's block: the class token alone attends, to itself and the patches, with LayerScale.

    In a network that has such blocks, at its end, the class token does not enter the blocks before them.
    """

    heads: int
    head_dim: int
    hidden: int

    def __post_init__(self) -> None:
        _check_attention(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAttention:
    """Pre-norm block with attention inside square windows and a bias per relative offset (Swin, S3).

    A window at least as large as the map becomes the map, unshifted; a map that the window does not divide is padded.
    """

    heads: int
    head_dim: int
    hidden: int
    window: int
    shifted: bool = False

    def __post_init__(self) -> None:
        _check_attention(self)
        check_whole("window", self.window)

    def on(self, side: int) -> tuple[int, int, int]:
        """On a map of this side: the window used, the shift used, and the side after padding."""
        window = min(self.window, side)
        shift = self.window // 2 if self.shifted and window < side else 0
        return window, shift, -(-side // window) * window


@dataclass(frozen=True, slots=True, kw_only=True)
class InvertedResidual:
    """MobileNetV2's block over a map: x + project(depthwise(expand(x))), BatchNorm after each convolution, ReLU6
    after the first two. `expansion` 1 has no convolution that expands."""

    expansion: int
    kernel: int

    def __post_init__(self) -> None:
        check_whole("expansion", self.expansion, most=64)
        check_kernel(self.kernel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A slot without a block (ViTAS's identity): no parameters, no work."""


def _check_attention(block: Attention | ClassAttention | WindowAttention) -> None:
    check_whole("heads", block.heads)
    check_whole("head_dim", block.head_dim)
    check_whole("hidden", block.hidden, most=LARGEST * 16)
    check_whole("heads * head_dim", block.heads * block.head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Image to map: one convolution with this kernel size and stride, no padding, optionally followed by a norm."""

    size: int
    stride: int
    norm: bool = False

    def __post_init__(self) -> None:
        check_whole("patch_size", self.size)
        check_whole("patch_stride", self.stride)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """PiT's pooling: depth-wise 3x3 convolution with stride 2; a linear layer carries the class token over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Swin's patch merging: 2x2 neighbours side by side, norm, linear layer without bias."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """Image or map to map: a padded convolution without bias, BatchNorm, ReLU6. MobileNetV2's first and last layer."""

    kernel: int
    stride: int = 1

    def __post_init__(self) -> None:
        check_kernel(self.kernel)
        check_whole("stride", self.stride)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The first block of a stage of `InvertedResidual`: it changes the width, has the stride, and adds nothing."""

    expansion: int
    kernel: int
    stride: int = 1

    def __post_init__(self) -> None:
        check_whole("expansion", self.expansion, most=64)
        check_kernel(self.kernel)
        check_whole("stride", self.stride)


def check_kernel(kernel: object) -> int:
    """An odd number, so that the middle of a larger kernel is a smaller one."""
    found = check_whole("kernel", kernel, most=1023)
    if found % 2 == 0:
        raise BadSettings(f"`kernel` must be odd, but got {found}")
    return found


Block: TypeAlias = Union[Attention, ClassAttention, WindowAttention, InvertedResidual, Absent]
Entry: TypeAlias = Union[Patch, Pool, Merge, Convolution, Bottleneck]
BLOCK_KINDS: dict[str, type[Any]] = {
    "attention": Attention,
    "class_attention": ClassAttention,
    "window_attention": WindowAttention,
    "inverted_residual": InvertedResidual,
    "absent": Absent,
}
ENTRY_KINDS: dict[str, type[Any]] = {
    "patch": Patch,
    "pool": Pool,
    "merge": Merge,
    "convolution": Convolution,
    "bottleneck": Bottleneck,
}
Position: TypeAlias = Literal["all", "patches", "none"]
Readout: TypeAlias = Literal["mean", "class"]
INITIALISATIONS = ("autoformer", "autoprox", "tftas-pit", "mobilenetv2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    entry: Entry
    width: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A whole network. `position`: which tokens the learned table covers; `readout`: what the classifier reads."""

    stages: tuple[Stage, ...]
    class_token: bool = True
    position: Position = "all"
    readout: Readout = "mean"
    norm_eps: float = 1e-6
    initialisation: str = "autoformer"
    resolution: int | None = None
    """The side that images are resized to before the first entry, whatever `Geometry.image_size` they come in: so
    networks of several resolutions share one data set, and MACs are those at the network's own. None: as they come."""

    def __post_init__(self) -> None:
        if not self.stages or not isinstance(self.stages[0].entry, Patch | Convolution):
            raise BadSettings("the first stage must begin with a patch or convolution entry")
        self._check_resolution()
        if self.readout == "class" and not self.class_token:
            raise BadSettings("`readout` 'class' needs `class_token` true, but got false")
        for stage in self.stages:
            if self.class_token and WindowAttention in map(type, stage.blocks):
                raise BadSettings("window attention has no place for a class token: `class_token` must be false")
            if not self.class_token and any(getattr(block, "relative_distance", 0) for block in stage.blocks):
                raise BadSettings("relative position tables need `class_token` true, but got false")
        if self.late_token:
            self._check_late_token()
        for earlier, later in zip(self.stages, self.stages[1:], strict=False):
            check_follows(earlier.width, later, self.class_token)

    def _check_resolution(self) -> None:
        if self.resolution is not None:
            check_whole("resolution", self.resolution, most=1 << 13)
        convolutions = [s.entry for s in self.stages if isinstance(s.entry, Convolution | Bottleneck)]
        maps = any(InvertedResidual in map(type, stage.blocks) for stage in self.stages)
        if (convolutions or maps) and self.class_token:
            raise BadSettings("convolutions have no place for a class token: `class_token` must be false")
        if convolutions and len(convolutions) < len(self.stages):
            raise BadSettings("stages that begin with convolutions must not be mixed with others")
        strides = math.prod(entry.stride for entry in convolutions)
        if convolutions and (self.resolution is None or self.resolution % strides):
            raise BadSettings(f"`resolution` must be a multiple of {strides}, but got {self.resolution}")

    @property
    def final_norm(self) -> bool:
        """Whether a norm comes before the classifier: not after a convolution, which has one."""
        return not isinstance(self.stages[-1].entry, Convolution)

    @property
    def late_token(self) -> bool:
        """Whether the class token enters the network in class-attention blocks at its end."""
        return any(ClassAttention in map(type, stage.blocks) for stage in self.stages)

    def _check_late_token(self) -> None:
        kinds = [type(block) for block in self.stages[0].blocks]
        first = kinds.index(ClassAttention) if ClassAttention in kinds else 0
        if len(self.stages) > 1 or set(kinds[first:]) != {ClassAttention} or self.position == "all":
            rule = "class attention must end a network of one stage whose `position` is patches or none"
            raise BadSettings(f"{rule}, but got {len(self.stages)} stages and {self.position!r}")
        if self.readout != "class" or any(getattr(block, "relative_distance", 0) for block in self.stages[0].blocks):
            raise BadSettings("class attention needs `readout` 'class' and no relative position")

    @property
    def depth(self) -> int:
        """Blocks that are there, and those that stages begin with."""
        blocks = sum(not isinstance(block, Absent) for stage in self.stages for block in stage.blocks)
        return blocks + sum(isinstance(stage.entry, Bottleneck) for stage in self.stages)

    @property
    def mean_width(self) -> float:
        """Stage widths, each weighted by its blocks; the embedding width when there is one stage."""
        weights = [sum(not isinstance(block, Absent) for block in stage.blocks) for stage in self.stages]
        total = sum(weights)
        if total == 0:
            return float(self.stages[-1].width)
        return sum(stage.width * weight for stage, weight in zip(self.stages, weights, strict=True)) / total

    def present(self) -> Architecture:
        """Without the slots that have no block: the same function of its weights."""
        if not any(isinstance(block, Absent) for stage in self.stages for block in stage.blocks):
            return self
        stages = (
            dataclasses.replace(s, blocks=tuple(block for block in s.blocks if not isinstance(block, Absent)))
            for s in self.stages
        )
        return dataclasses.replace(self, stages=tuple(stages))

    def sides(self, image_size: int) -> list[int]:
        """Side of the (square) token map in each stage."""
        image_size = image_size if self.resolution is None else self.resolution
        sides: list[int] = []
        for stage in self.stages:
            entry = stage.entry
            if isinstance(entry, Patch):
                if image_size < entry.size:
                    raise BadSettings(
                        f"`image_size` must be at least the patch size {entry.size}, but got {image_size}"
                    )
                sides.append((image_size - entry.size) // entry.stride + 1)
            elif isinstance(entry, Convolution | Bottleneck):
                sides.append((sides[-1] if sides else image_size) // entry.stride)
            else:  # pooling and merging both halve, rounding up
                sides.append((sides[-1] + 1) // 2)
        return sides

    def key(self) -> str:
        """A short name that equal blueprints share, on every machine."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def to_json(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.resolution is None:
            del fields["resolution"]  # as below: older blueprints keep their keys
        fields["stages"] = [
            {
                "entry": _part_to_json(stage.entry, ENTRY_KINDS),
                "width": stage.width,
                "blocks": [_part_to_json(block, BLOCK_KINDS) for block in stage.blocks],
            }
            for stage in self.stages
        ]
        return fields

    @classmethod
    def from_json(cls, data: object) -> Architecture:
        """The inverse of `to_json`; anything else is a `BadSettings` that names the field."""
        fields = _check_fields("architecture", data, {field.name for field in dataclasses.fields(cls)}, {"stages"})
        stages = fields.pop("stages")
        if not isinstance(stages, list):
            raise BadSettings(f"`stages` must be a list, but got {brief(stages)}")
        _check_choice(fields, "position", ("all", "patches", "none"))
        _check_choice(fields, "readout", ("mean", "class"))
        _check_choice(fields, "initialisation", INITIALISATIONS)
        _check_choice(fields, "class_token", (True, False))
        epsilon = fields.get("norm_eps", 1e-6)
        if isinstance(epsilon, bool) or not isinstance(epsilon, float) or not 0 < epsilon < 1:
            raise BadSettings(f"`norm_eps` must be a number between 0 and 1, but got {brief(epsilon)}")
        return cls(stages=tuple(_stage_from_json(stage) for stage in stages), **fields)


def check_follows(width: int, stage: Stage, class_token: bool) -> None:
    """Whether `stage` can follow a stage of this width."""
    if isinstance(stage.entry, Merge) and class_token:
        raise BadSettings("patch merging has no place for a class token: `class_token` must be false")
    if isinstance(stage.entry, Patch):
        raise BadSettings("only the first stage may begin with a patch entry")
    if isinstance(stage.entry, Pool) and stage.width % width:
        raise BadSettings(
            f"a pooled stage's width must be a multiple of the width before it, but got {stage.width} after {width}"
        )


@cache
def attention(heads: int, head_dim: int, hidden: int, relative_distance: int = 0, scale: Scale = "head") -> Attention:
    """`Attention`, made once per distinct value: spaces use the same few blocks over and over."""
    return Attention(heads=heads, head_dim=head_dim, hidden=hidden, relative_distance=relative_distance, scale=scale)


def hidden_width(width: int, ratio: float) -> int:
    """Hidden width of an MLP; every published code rounds down."""
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= LARGEST:
        raise BadSettings(f"`mlp_ratio` must be a positive number up to {LARGEST}, but got {brief(ratio)}")
    return check_whole("width * mlp_ratio", int(width * ratio), most=LARGEST * 16)


def hidden_ratio(width: int, hidden: int) -> float:
    """A ratio that `hidden_width` turns into `hidden` again."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def _part_to_json(part: Block | Entry, kinds: Mapping[str, type[Any]]) -> dict[str, Any]:
    kind = next(name for name, cls in kinds.items() if cls is type(part))
    fields = dataclasses.asdict(part)
    for name, default in (("scale", "head"), ("layer_scale", False)):
        if fields.get(name) == default:
            del fields[name]  # blueprints are older than these fields, and keep their keys
    return {"kind": kind, **fields}


def _part_from_json(what: str, data: object, kinds: Mapping[str, type[Any]]) -> Any:
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str) or data["kind"] not in kinds:
        raise BadSettings(f"`{what}` must be an object whose kind is one of {', '.join(kinds)}, but got {brief(data)}")
    cls = kinds[data["kind"]]
    known = dataclasses.fields(cls)
    needed = {field.name for field in known if field.default is dataclasses.MISSING}
    fields = _check_fields(what, {k: v for k, v in data.items() if k != "kind"}, {f.name for f in known}, needed)
    for name in ("norm", "shifted", "layer_scale"):
        _check_choice(fields, name, (True, False))
    _check_choice(fields, "scale", SCALES)
    return cls(**fields)


def _stage_from_json(data: object) -> Stage:
    fields = _check_fields("stage", data, {"entry", "width", "blocks"}, {"entry", "width", "blocks"})
    if not isinstance(fields["blocks"], list):
        raise BadSettings(f"`blocks` must be a list, but got {brief(fields['blocks'])}")
    return Stage(
        entry=_part_from_json("entry", fields["entry"], ENTRY_KINDS),
        width=check_whole("width", fields["width"]),
        blocks=tuple(_part_from_json("block", block, BLOCK_KINDS) for block in fields["blocks"]),
    )


def _check_fields(what: str, data: object, known: set[str], needed: set[str]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise BadSettings(f"`{what}` must be a JSON object, but got {brief(data)}")
    if unknown := sorted(set(data) - known):
        raise BadSettings(f"`{what}` has no field {unknown[0]!r}; its fields are {', '.join(sorted(known))}")
    if missing := sorted(needed - set(data)):
        raise BadSettings(f"`{what}` needs the field {missing[0]!r}")
    return dict(data)


def _check_choice(fields: Mapping[str, Any], name: str, choices: tuple[Any, ...]) -> None:
    if name in fields and (type(fields[name]) is not type(choices[0]) or fields[name] not in choices):
        raise BadSettings(f"`{name}` must be one of {', '.join(map(str, choices))}, but got {brief(fields[name])}")
