"""What ViTAS's spaces share: widths as ratios of the largest, plain blocks, and settings beside the choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, TypeAlias, cast

from vitsearch.architecture import (
    LARGEST,
    SCALES,
    Absent,
    Architecture,
    Attention,
    Block,
    ClassAttention,
    Patch,
    Scale,
    Settings,
    Stage,
    attention,
    brief,
    check_whole,
)
from vitsearch.cost import Geometry, vitas_counter_macs
from vitsearch.errors import BadSettings, VitsearchError
from vitsearch.spaces.base import Space

EXTRAS: dict[str, Any] = {"scale": "head", "cait": 0}
"""Settings that no search changes, and what they are where they are left out."""
Readers: TypeAlias = Mapping[str, Callable[[str, str], Any]]


def read_number(name: str, text: str, most: int = LARGEST) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise VitsearchError(f"`{name}` must be a whole number, but got {brief(text)}")
    return check_whole(name, int(text), most=most)


def read_count(name: str, text: str) -> int:
    return read_number(name, text, most=1024)


def read_numbers(name: str, text: str) -> tuple[int, ...]:
    return tuple(read_number(name, choice) for choice in text.split("+"))


READERS: Readers = {
    "embed_dim": read_numbers,
    "num_heads": read_numbers,
    "attention_dim": read_number,
    "mlp_dim": read_number,
    "steps": read_count,
}
"""What a variant's name may say, and how it is read: + stands between choices."""


@dataclass(frozen=True, kw_only=True)
class Ratioed(Space):
    """What the spaces share: widths as ratios k / `steps` of the largest."""

    embed_dim: tuple[int, ...]
    num_heads: tuple[int, ...] = (3, 6, 12, 16)
    attention_dim: int = 1440
    """Queries, keys and values of the largest block together."""
    mlp_dim: int = 1440
    steps: int = 10

    def __post_init__(self) -> None:
        for name in ("embed_dim", "num_heads"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise VitsearchError(f"`{name}` must have different choices, but got {brief(getattr(self, name))}")
        for heads in self.num_heads:
            if self.attention_dim % (3 * self.steps * heads):
                rule = f"`attention_dim` must divide by 3 x `steps` x heads, 3 x {self.steps} x {heads}"
                raise VitsearchError(f"{rule}, but got {self.attention_dim}")
        if self.mlp_dim % self.steps:
            raise VitsearchError(f"`mlp_dim` must divide by `steps`, {self.steps}, but got {self.mlp_dim}")

    own_readers: ClassVar[Readers] = {}
    """Of the fields that a subclass adds, those that a variant may change."""

    def variant(self, text: str) -> Space:
        readers = {**READERS, **self.own_readers}
        said = self.said(text, list(readers), "embed_dim=32+64,num_heads=2+4,mlp_dim=240")
        return self.varied(text, {name: readers[name](name, given) for name, given in said.items()})

    @cached_property
    def ratios(self) -> tuple[float, ...]:
        return tuple(step / self.steps for step in range(1, self.steps + 1))

    @property
    def patches(self) -> tuple[int, ...]:
        """Patch sizes that occur."""
        return (self.patch_size,)

    def published_macs(self, architecture: Architecture, geometry: Geometry) -> int | None:
        return None if architecture.late_token else vitas_counter_macs(architecture, geometry)

    def block(self, heads: int, attention_ratio: float, mlp_ratio: float, scale: Scale = "head") -> Attention:
        return _block(heads, attention_ratio, mlp_ratio, scale, self.attention_dim, self.mlp_dim)

    def ratios_of(self, block: Attention) -> tuple[float, float]:
        """Those that give this block; choices where there are such."""
        inner = 3 * block.heads * block.head_dim
        pairs = (inner, self.attention_dim), (block.hidden, self.mlp_dim)
        found = [next((r for r in self.ratios if round(most * r) == width), width / most) for width, most in pairs]
        return found[0], found[1]

    def blueprint(self, patch_size: int, width: int, blocks: Iterable[Block], cait: int = 0) -> Architecture:
        """With `cait`, so many blocks of class attention after the last, as wide as it, and LayerScale."""
        given = tuple(blocks)
        narrow = [b.heads for b in given if isinstance(b, Attention) and b.scale == "embed" and b.heads > width]
        if narrow:
            rule = f"`embed_dim` must be at least the heads where `scale` is embed, {max(narrow)}"
            raise BadSettings(f"{rule}, but got {width}")
        if cait:
            present = [block for block in given if isinstance(block, Attention)]
            if not present:
                raise BadSettings(f"`cait` must be 0 in a network without blocks, but got {cait}")
            shape = {name: getattr(present[-1], name) for name in ("heads", "head_dim", "hidden")}
            scaled = [replace(b, layer_scale=True) if isinstance(b, Attention) else b for b in given]
            given = (*scaled, *[ClassAttention(**shape)] * cait)
        stage = Stage(entry=Patch(size=patch_size, stride=patch_size), width=width, blocks=given)
        return Architecture(stages=(stage,), readout="class", position="patches" if cait else "all")

    def largest_block(self) -> Attention:
        return self.block(max(self.num_heads), 1.0, 1.0)

    def read(self, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """As the base, and what is not searched: `scale` of the softmax, and `cait`."""
        if not isinstance(settings, Mapping):
            raise BadSettings(f"an architecture must be a JSON object of settings, but got {brief(settings)}")
        scale, cait = settings.get("scale", "head"), settings.get("cait", 0)
        if not isinstance(scale, str) or scale not in SCALES:
            raise BadSettings(f"`scale` must be one of {', '.join(SCALES)}, but got {brief(scale)}")
        values, fixed = super().read({name: value for name, value in settings.items() if name not in EXTRAS})
        return values | {"scale": scale, "cait": check_whole("cait", cait, least=0, most=16)}, fixed

    def check_blueprint(self, architecture: Architecture) -> tuple[Patch, int, list[Attention | None], dict[str, Any]]:
        """Patch, width and slots of a blueprint that settings can say, and what else they say of it."""
        stage, entry = architecture.stages[0], architecture.stages[0].entry
        cait = sum(isinstance(block, ClassAttention) for block in stage.blocks)
        slots = stage.blocks[: len(stage.blocks) - cait]
        plain = [replace(b, layer_scale=False) if isinstance(b, Attention) and cait else b for b in slots]
        scales = {block.scale for block in plain if isinstance(block, Attention)} or {"head"}
        square = isinstance(entry, Patch) and self.blueprint(entry.size, stage.width, plain, cait) == architecture
        known = all(isinstance(b, Absent) or (isinstance(b, Attention) and not b.relative_distance) for b in plain)
        if len(scales) != 1 or not (square and known):
            raise BadSettings(f"{self.name} has one stage of plain attention blocks, and this blueprint is another")
        blocks = [block if isinstance(block, Attention) else None for block in plain]
        return cast(Patch, entry), stage.width, blocks, {"scale": scales.pop(), "cait": cait}

    def settings(self, **values: Any) -> Settings:
        extras = {name: values[name] for name, usual in EXTRAS.items() if values.get(name, usual) != usual}
        return super().settings(**values) | extras

    def why_not_choices(self, spelled: Settings) -> str | None:
        for name, usual in EXTRAS.items():
            if spelled.get(name, usual) != usual:
                return f"`{name}` is {spelled[name]}, and {self.name} has {usual}"
        return super().why_not_choices({name: value for name, value in spelled.items() if name not in EXTRAS})


def check_ratio(name: str, ratio: object) -> float:
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= LARGEST:
        raise BadSettings(f"`{name}` must be a positive number up to {LARGEST}, but got {brief(ratio)}")
    return ratio


@lru_cache(maxsize=1 << 14, typed=True)
def _kept_block(
    heads: int, attention_ratio: float, mlp_ratio: float, scale: Scale, attention_dim: int, mlp_dim: int
) -> Attention:
    hidden = check_whole("mlp_ratio * width", round(mlp_dim * check_ratio("mlp_ratio", mlp_ratio)), most=LARGEST * 16)
    whole = round(attention_dim * check_ratio("attention_ratio", attention_ratio))
    if whole % (3 * heads) or not whole:
        raise BadSettings(
            f"`attention_ratio` must give a width that 3 x {heads} heads divide, but got {attention_ratio}: {whole}"
        )
    return attention(heads, whole // 3 // heads, hidden, 0, scale)


def _block(heads: int, attention_ratio: Any, mlp_ratio: Any, scale: Scale, *widths: int) -> Attention:
    for name, ratio in (("attention_ratio", attention_ratio), ("mlp_ratio", mlp_ratio)):
        check_ratio(name, ratio)  # before it is looked up: not everything can be
    return _kept_block(heads, attention_ratio, mlp_ratio, scale, *widths)
