"""ViTAS's spaces: patch size, one width, and slots that are empty or have heads, an attention and an MLP ratio.

Su et al., ViTAS: Vision Transformer Architecture Search, ECCV 2022. `vitas` is Table 1, `vitas-large` Table 9 with
twice the widths; `vitas-block` and `vitas-block-large` repeat one block twelve times at patch size 16 (section 5.3).
A ratio r gives queries, keys and values together round(1440 r) channels, and MLPs round(1440 r). In settings, 0 heads
is the identity: the slot chooses nothing but which weights of a supernet the others have, and its ratios are null.

Any other choices are a variant with a name, as in windowed.py: `vitas:embed_dim=32+64,num_heads=2+4,attention_dim=240`,
with `mlp_dim`, `steps` (of ratios), `slot_count` and `identity=no`, for slots that are never empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from random import Random
from typing import Any, cast

from vitsearch.architecture import (
    Absent,
    Architecture,
    Block,
    Scale,
    Settings,
    brief,
    check_whole,
)
from vitsearch.cost import IMAGENET, Cost, Geometry, Limits, architecture_cost, block_cost
from vitsearch.errors import BadSettings, VitsearchError
from vitsearch.spaces.base import ENUMERABLE, SPACES, Knob, Space
from vitsearch.spaces.ratioed import Ratioed, check_ratio, read_count
from vitsearch.spaces.slotted import MOST_ROWS, Frame, Member, Slots, SlottedRegion


def read_flag(name: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise VitsearchError(f"`{name}` must be yes or no, but got {text!r}")
    return text == "yes"


@dataclass(frozen=True, kw_only=True)
class Channelwise(Ratioed):
    """Slots of blocks, each with choices of its own."""

    own_readers = {"slot_count": read_count, "identity": read_flag}
    patch_sizes: tuple[int, ...] = (14, 16, 32)
    slot_count: int = 16
    identity: bool = True
    """Whether slots may be empty."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.slot_choices.rows * len(self.patch_sizes) * len(self.embed_dim)
        if rows > MOST_ROWS:
            found = f"{self.slot_count} slots of {self.steps} steps, {len(self.embed_dim)} widths"
            rule = f"`slot_count`, `steps`, `embed_dim` and patch sizes must make at most {MOST_ROWS} rows to count"
            raise VitsearchError(f"{rule}, but got {rows}: {found}, {len(self.patch_sizes)} patch sizes")

    @property
    def slot_choices(self) -> Slots:
        return Slots(self.slot_count, self.num_heads, self.steps, self.identity)

    @property
    def patches(self) -> tuple[int, ...]:
        return self.patch_sizes

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob(name="patch_size", choices=self.patch_sizes),
            Knob(name="embed_dim", choices=self.embed_dim),
            Knob(name="num_heads", choices=(0, *self.num_heads) if self.identity else self.num_heads, per="block"),
            Knob(name="attention_ratio", choices=self.ratios, per="block"),
            Knob(name="mlp_ratio", choices=self.ratios, per="block"),
        )

    def fixed(self) -> dict[str, Any]:
        return {"patch_sizes": list(self.patch_sizes)}

    def spelled(self) -> dict[str, int]:
        """Settings name one of the sizes, and not the others."""
        return {}

    def with_patch_size(self, patch_size: int | Sequence[int]) -> Space:
        return self.with_fixed({"patch_sizes": [patch_size] if isinstance(patch_size, int) else list(patch_size)})

    def with_fixed(self, fixed: Mapping[str, Any]) -> Space:
        sizes = fixed.get("patch_sizes", list(self.patch_sizes))
        if not isinstance(sizes, list) or not sizes or len(set(map(str, sizes))) != len(sizes):
            raise BadSettings(f"`patch_sizes` must be a list of different numbers, but got {brief(sizes)}")
        return replace(self, patch_sizes=tuple(check_whole("patch_size", size) for size in sizes))

    def over(self, settings: Mapping[str, Any]) -> Space:
        return self.with_patch_size(settings["patch_size"])

    def slots(self, values: Mapping[str, Any]) -> int:
        return self.slot_count

    def repaired(self, values: Mapping[str, Any], random: Random) -> Mapping[str, Any]:
        """A block that has become one draws its ratios."""
        drawn = {
            name: [
                random.choice(self.ratios) if heads and ratio is None else ratio
                for heads, ratio in zip(values["num_heads"], values[name], strict=True)
            ]
            for name in ("attention_ratio", "mlp_ratio")
        }
        return {**values, **drawn}

    def draw(self, random: Random, identity: float) -> Settings:
        """Each slot empty with this probability, all else uniform; every draw takes as many random numbers."""
        size, width = random.choice(self.patch_sizes), random.choice(self.embed_dim)
        drawn = [
            (random.random(), random.choice(self.num_heads), random.choice(self.ratios), random.choice(self.ratios))
            for _ in range(self.slot_count)
        ]
        return self.settings(
            patch_size=size,
            embed_dim=width,
            num_heads=[0 if chance < identity else heads for chance, heads, _, _ in drawn],
            attention_ratio=[ratio for _, _, ratio, _ in drawn],
            mlp_ratio=[ratio for _, _, _, ratio in drawn],
        )

    def settings(self, **values: Any) -> Settings:
        """The ratios of an empty slot are null."""
        given: dict[str, Any] = dict(values)
        for name in ("attention_ratio", "mlp_ratio"):
            pairs = zip(values["num_heads"], values[name], strict=True)
            given[name] = [ratio if heads else None for heads, ratio in pairs]
        return super().settings(**given)

    def decode(self, settings: Mapping[str, Any]) -> Architecture:
        values, _ = self.read(settings)
        size, width = (check_whole(name, values[name]) for name in ("patch_size", "embed_dim"))
        lists = [values[name] for name in ("num_heads", "attention_ratio", "mlp_ratio")]
        if not all(isinstance(one, (list, tuple)) for one in lists) or len({len(one) for one in lists}) != 1:
            found = brief([values[name] for name in ("num_heads", "attention_ratio", "mlp_ratio")])
            rule = "must be lists with one entry for each slot"
            raise BadSettings(f"`num_heads`, `attention_ratio` and `mlp_ratio` {rule}, but got {found}")
        check_whole("slots", len(lists[0]), least=0, most=1024)
        blocks = [self._slot(h, a, m, values["scale"]) for h, a, m in zip(*lists, strict=True)]
        return self.blueprint(size, width, blocks, values["cait"])

    def _slot(self, heads: Any, attention_ratio: Any, mlp_ratio: Any, scale: Scale) -> Block:
        if check_whole("num_heads", heads, least=0):
            return self.block(heads, attention_ratio, mlp_ratio, scale)
        for name, ratio in (("attention_ratio", attention_ratio), ("mlp_ratio", mlp_ratio)):
            if ratio is not None:
                check_ratio(name, ratio)
        return ABSENT

    def encode(self, architecture: Architecture) -> Settings:
        entry, width, blocks, extras = self.check_blueprint(architecture)
        ratios = [(None, None) if block is None else self.ratios_of(block) for block in blocks]
        return self.settings(
            patch_size=entry.size,
            embed_dim=width,
            num_heads=[0 if block is None else block.heads for block in blocks],
            attention_ratio=[attention for attention, _ in ratios],
            mlp_ratio=[mlp for _, mlp in ratios],
            **extras,
        )

    def why_not(self, settings: Mapping[str, Any]) -> str | None:
        reason = super().why_not(settings)
        if reason is None and settings["patch_size"] not in self.patch_sizes:
            allowed = ", ".join(map(str, self.patch_sizes))
            return f"`patch_size` is {settings['patch_size']}, and this {self.name} has {allowed}"
        return reason

    def __contains__(self, settings: Mapping[str, Any]) -> bool:
        """As the base. What is written as this space writes it is known at once: a generation asks for two thousand."""
        return self._writes(settings) or super().__contains__(settings)

    def _writes(self, settings: Mapping[str, Any]) -> bool:
        """Whether these are settings of a member in canonical form."""
        names = [knob.name for knob in self.knobs]
        if not isinstance(settings, Mapping) or list(settings) != ["space", *names] or settings["space"] != self.name:
            return False
        size, width, *lists = (settings[name] for name in names)
        if {type(size), type(width)} != {int} or any(type(one) is not list for one in lists):
            return False
        if size not in self.patch_sizes or width not in self.embed_dim or {*map(len, lists)} != {self.slot_count}:
            return False
        return all(tuple(map(type, block)) in BLOCK and block in self._blocks for block in zip(*lists, strict=True))

    @cached_property
    def _blocks(self) -> frozenset[tuple[int, float | None, float | None]]:
        """What a slot may be: heads and two ratios."""
        filled = product(self.num_heads, self.ratios, self.ratios)
        return frozenset(filled) | ({(0, None, None)} if self.identity else frozenset())

    def why_not_choices(self, spelled: Settings) -> str | None:
        """Over whatever patches; an empty slot has no ratios to ask about."""
        if len(spelled["num_heads"]) != self.slot_count:
            return f"`num_heads` has {len(spelled['num_heads'])} entries, and {self.name} has {self.slot_count} slots"
        filled = {name: [r or self.ratios[0] for r in spelled[name]] for name in ("attention_ratio", "mlp_ratio")}
        return super().why_not_choices(spelled | filled | {"patch_size": self.patch_sizes[0]})

    def envelope(self) -> Architecture:
        return self.blueprint(max(self.patch_sizes), max(self.embed_dim), [self.largest_block()] * self.slot_count)

    def region(self, limits: Limits | None = None, geometry: Geometry = IMAGENET) -> SlottedRegion:
        return _region(self, limits or Limits(), geometry)

    def frames(self, geometry: Geometry) -> list[Frame]:
        """A block's cost is linear in its two steps; three blocks say how."""
        found = []
        for size in self.patch_sizes:
            for width in self.embed_dim:
                empty = self.blueprint(size, width, ())
                (side,) = empty.sides(geometry.image_size)
                heads, step = self.num_heads[0], 1 / self.steps
                three = [self.block(heads, step * a, step * m) for a, m in ((1, 1), (2, 1), (1, 2))]
                one, more_attention, more_mlp = (block_cost(block, width, side, 1) for block in three)
                attention_step, mlp_step = _minus(more_attention, one), _minus(more_mlp, one)
                block = _minus(_minus(one, attention_step), mlp_step)
                fixed = architecture_cost(empty, geometry)
                found.append(Frame(size, width, fixed, block, attention_step, mlp_step))
        return found

    def settle(self, member: Member) -> Settings:
        return self.settings(
            patch_size=member.patch_size,
            embed_dim=member.width,
            num_heads=[block[0] if block else 0 for block in member.blocks],
            attention_ratio=[self.ratios[block[1] - 1] if block else None for block in member.blocks],
            mlp_ratio=[self.ratios[block[2] - 1] if block else None for block in member.blocks],
        )


@dataclass(frozen=True, kw_only=True)
class Repeated(Ratioed):
    """One block, `depth` times."""

    own_readers = {"depth": read_count}
    depth: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        members = len(self.embed_dim) * len(self.num_heads) * self.steps**2
        if members > ENUMERABLE:
            found = f"{len(self.embed_dim)} widths, {len(self.num_heads)} head counts, {self.steps} steps"
            rule = f"`embed_dim`, `num_heads` and `steps` must make at most {ENUMERABLE} networks to list"
            raise VitsearchError(f"{rule}, but got {members}: {found}")

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        return (
            Knob(name="embed_dim", choices=self.embed_dim),
            Knob(name="num_heads", choices=self.num_heads),
            Knob(name="attention_ratio", choices=self.ratios),
            Knob(name="mlp_ratio", choices=self.ratios),
        )

    def decode(self, settings: Mapping[str, Any]) -> Architecture:
        values, fixed = self.read(settings)
        heads = check_whole("num_heads", values["num_heads"])
        block = self.block(heads, values["attention_ratio"], values["mlp_ratio"], values["scale"])
        width = check_whole("embed_dim", values["embed_dim"])
        return self.blueprint(fixed["patch_size"], width, [block] * self.depth, values["cait"])

    def encode(self, architecture: Architecture) -> Settings:
        entry, width, blocks, extras = self.check_blueprint(architecture)
        block = blocks[0] if blocks else None
        if block is None or set(blocks) != {block} or len(blocks) != self.depth:
            raise BadSettings(f"{self.name} has one block {self.depth} times, and this blueprint is another")
        attention_ratio, mlp_ratio = self.ratios_of(block)
        values = {"embed_dim": width, "num_heads": block.heads, "attention_ratio": attention_ratio}
        return self.settings(patch_size=entry.size, mlp_ratio=mlp_ratio, **values, **extras)

    def envelope(self) -> Architecture:
        return self.blueprint(self.patch_size, max(self.embed_dim), [self.largest_block()] * self.depth)


ABSENT = Absent()
BLOCK = (int, float, float), (int, type(None), type(None))
"""Since True is 1 for Python."""


@lru_cache(maxsize=32)
def _region(space: Channelwise, limits: Limits, geometry: Geometry) -> SlottedRegion:
    return SlottedRegion(space.slot_choices, space.frames(geometry), limits, space.name, space.settle)


def _minus(more: Cost, less: Cost) -> Cost:
    return Cost(more.params - less.params, more.macs - less.macs)


def _widths(largest: int) -> tuple[int, ...]:
    return tuple(round(largest * step / 10) for step in range(1, 11))


_VITAS = "Su et al., ViTAS: Vision Transformer Architecture Search, ECCV 2022"

for _space in (
    Channelwise(
        name="vitas",
        description="ViTAS, Table 1: patch size, width, 16 slots of heads and ratios or nothing",
        paper=_VITAS,
        embed_dim=_widths(384),
    ),
    Channelwise(
        name="vitas-large",
        description="ViTAS, Table 9: the same with twice the widths",
        paper=_VITAS,
        embed_dim=_widths(768),
        attention_dim=2880,
        mlp_dim=2880,
    ),
    Repeated(
        name="vitas-block",
        description="ViTAS, section 5.3: one block twelve times",
        paper=_VITAS,
        embed_dim=_widths(384),
    ),
    Repeated(
        name="vitas-block-large",
        description="ViTAS, appendix E: one block twelve times, with twice the widths",
        paper=_VITAS,
        embed_dim=_widths(768),
        attention_dim=2880,
        mlp_dim=2880,
    ),
    Channelwise(
        name="vitas-micro",
        description="39,366 very small networks, for tests and brute-force checks",
        paper=_VITAS,
        patch_sizes=(16, 32),
        embed_dim=(16, 24, 32),
        num_heads=(2, 4),
        attention_dim=96,
        mlp_dim=64,
        steps=2,
        slot_count=4,
    ),
):
    SPACES.add(_space.name, cast(Space, _space))
