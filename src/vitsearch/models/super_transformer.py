"""ViTAS's super-transformer: a supernet in which networks with other patches or heads have parts of their own.

supernet = SuperTransformer(SPACES["vitas"], geometry, sharing=Sharing(share="v"), seed=0)
logits = supernet(images, architecture)                # equals supernet.extract(architecture)(images)

Every patch size has a projection and a position table of its own, and a class token unless that is `shared`. In every
slot, what `share` does not name is there once for each head count: with `v`, queries and keys are private and values
shared (section 4.2); the projection after attention and the MLP are always shared. Rows of q and k take turns, so that
a narrower network has the first ones of each.

    stages.0.entries.16.{cls_token,pos_embed,entry.proj.weight,...}    stages.0.blocks.3.attn.qk.12.weight
    stages.0.blocks.3.attn.v.all.weight                                stages.0.blocks.3.{norm1,attn.proj,norm2,mlp}...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from vitsearch.architecture import Absent, Architecture, Attention, Patch
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.errors import BadSettings, VitsearchError
from vitsearch.models.initialise import initialise
from vitsearch.models.layers import Mlp, PatchEmbed, blank
from vitsearch.models.skeleton import Place, Side, Skeleton, Skeletons, cut, places_of
from vitsearch.models.supernet import Supernet, why_outside
from vitsearch.spaces import Space
from vitsearch.spaces.ratioed import Ratioed

Share = Literal["v", "qkv", "qk", "none"]
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What networks of a super-transformer share."""

    share: Share = "v"
    """Of attention, among networks with other head counts in a slot (Table 2's column MHSA)."""
    class_token: Literal["private", "shared"] = "private"
    """Whether each patch size has its own."""
    widths: Literal["prefix", "two-sided"] = "prefix"
    """Narrower networks are cut from the first channels, or from both ends, and trained as two (BCNet)."""

    def __post_init__(self) -> None:
        choices = {"share": get_args(Share), "class_token": ("private", "shared"), "widths": ("prefix", "two-sided")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                found = getattr(self, name)
                raise VitsearchError(f"`{name}` must be one of {', '.join(allowed)}, but got {found!r}")

    @property
    def sides(self) -> tuple[Side, ...]:
        return ("left",) if self.widths == "prefix" else ("left", "right")


class PrivateEntry(nn.Module):
    """What belongs to one patch size."""

    def __init__(self, size: int, geometry: Geometry, width: int, eps: float, own_token: bool) -> None:
        super().__init__()
        side = (geometry.image_size - size) // size + 1
        self.entry = PatchEmbed(Patch(size=size, stride=size), geometry.channels, width, eps)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width)) if own_token else None
        self.pos_embed = nn.Parameter(torch.empty(1, side * side + 1, width))


class PrivateAttention(nn.Module):
    """The weights of attention, by head count where they are private."""

    def __init__(self, width: int, inner: int, heads: tuple[int, ...], share: Share) -> None:
        super().__init__()
        private = [str(count) for count in heads]
        for name, rows in (("qk", 2 * inner), ("v", inner)):
            keys = [ALL] if share in ("qkv", name) else private
            setattr(self, name, nn.ModuleDict({key: blank(nn.Linear, width, rows) for key in keys}))
        self.proj = blank(nn.Linear, inner, width)


class PrivateBlock(nn.Module):
    def __init__(self, block: Attention, width: int, heads: tuple[int, ...], share: Share, eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = PrivateAttention(width, block.heads * block.head_dim, heads, share)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = Mlp(width, block.hidden)


class PrivateStage(nn.Module):
    def __init__(self, entries: dict[str, nn.Module], blocks: list[nn.Module]) -> None:
        super().__init__()
        self.entries = nn.ModuleDict(entries)
        self.blocks = nn.ModuleList(blocks)


class PrivateSkeleton(Skeleton):
    """A block's `qkv` is put together from the queries and keys, and the values, of its head count."""

    def places(self, source: nn.Module) -> tuple[list[Place], list[Place]]:
        """The weights of other head counts stay where they are."""
        parameters, buffers = places_of(source)
        return [place for place in parameters if self._own(place[0])], buffers

    def slices(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, shape in self.shapes.items():
            if name.startswith("attn.qkv."):
                leaf, inner = name.rpartition(".")[2], shape[0] // 3
                qk = cut("", whole[self._key("qk", leaf, whole)], (2 * inner, *shape[1:]), self.side)
                qk = qk.reshape(inner, 2, *shape[1:]).transpose(0, 1).flatten(0, 1)  # their rows take turns
                v = cut("", whole[self._key("v", leaf, whole)], (inner, *shape[1:]), self.side)
                found[name] = torch.cat([qk, v])
            else:
                found[name] = cut(name, whole[name], shape, self.side)
        return found

    def sources(self, name: str, whole: Mapping[str, Tensor]) -> dict[str, int]:
        if not name.startswith("attn.qkv."):
            return {name: 1}
        leaf = name.rpartition(".")[2]
        return {self._key("qk", leaf, whole): 2, self._key("v", leaf, whole): 1}

    def _key(self, kind: str, leaf: str, whole: Mapping[str, Tensor]) -> str:
        shared = f"attn.{kind}.{ALL}.{leaf}"
        return shared if shared in whole else f"attn.{kind}.{self._heads}.{leaf}"

    @property
    def _heads(self) -> int:
        return int(cast(Any, self.layer).attn.heads)

    def _own(self, name: str) -> bool:
        parts = name.split(".")
        return parts[:2] not in (["attn", "qk"], ["attn", "v"]) or parts[2] in (ALL, str(self._heads))


class SuperTransformer(Supernet):
    """The weights of all networks of one of ViTAS's spaces."""

    space: Ratioed

    @property
    def few_shapes(self) -> bool:
        return False

    def __init__(
        self,
        space: Ratioed,
        geometry: Geometry = IMAGENET,
        *,
        sharing: Sharing | None = None,
        seed: int | None = None,
        drop_path_rate: float = 0.0,
    ) -> None:
        self.sharing = sharing or Sharing()
        super().__init__(space, geometry, seed=seed, drop_path_rate=drop_path_rate, sides=self.sharing.sides)
        (stage,), eps = self.envelope.stages, self.envelope.norm_eps
        own_token = self.sharing.class_token == "private"
        entries: dict[str, nn.Module] = {
            str(size): PrivateEntry(size, geometry, stage.width, eps, own_token) for size in space.patches
        }
        blocks: list[nn.Module] = [
            PrivateBlock(cast(Attention, block), stage.width, space.num_heads, self.sharing.share, eps)
            for block in stage.blocks
        ]
        self.pos_embed = None
        self.cls_token = None if own_token else self.cls_token
        self.stages = nn.ModuleList([PrivateStage(entries, blocks)])
        self._skeletons = Skeletons(entangled=True, made_as=PrivateSkeleton)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        initialise(self.stages, self.envelope.initialisation, generator, prefix="stages.")

    def check(self, architecture: Architecture) -> None:
        """A patch size and head counts that have weights, and within the envelope otherwise."""
        stage, entry = architecture.stages[0], architecture.stages[0].entry
        sizes, counts = self.space.patches, self.space.num_heads
        if architecture.late_token:
            raise self._refusal("it ends with class attention (`cait`), for which no supernet has weights")
        if entry not in [Patch(size=size, stride=size) for size in sizes]:
            raise self._refusal(f"it begins with {entry}, and the supernet has patch sizes {list(sizes)}")
        for number, block in enumerate(stage.blocks):
            if not isinstance(block, Absent) and getattr(block, "heads", None) not in counts:
                raise self._refusal(f"block {number} is {block}, and the supernet has head counts {list(counts)}")
        alike = dataclasses.replace(stage, entry=self.envelope.stages[0].entry)
        if reason := why_outside(
            dataclasses.replace(architecture, stages=(alike, *architecture.stages[1:])), self.envelope
        ):
            raise self._refusal(reason)

    def _refusal(self, reason: str) -> BadSettings:
        return BadSettings(f"`architecture` must be a part of the supernet of {self.space.name}, but {reason}")

    def _entry(self, architecture: Architecture) -> PrivateEntry:
        size = cast(Patch, architecture.stages[0].entry).size
        return cast(PrivateEntry, cast(PrivateStage, self.stages[0]).entries[str(size)])

    def _sources(self, architecture: Architecture) -> list[tuple[nn.Module, nn.ModuleList]]:
        return [(self._entry(architecture).entry, cast(PrivateStage, self.stages[0]).blocks)]

    def _tokens(self, architecture: Architecture) -> dict[str, Tensor | None]:
        own = self._entry(architecture)
        return {"cls_token": own.cls_token if self.cls_token is None else self.cls_token, "pos_embed": own.pos_embed}


def sharing_of(space: Space, **given: str | None) -> Sharing | None:
    """What was given, with the defaults; None for a space that leaves nothing to choose and where nothing was given."""
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not chosen and not isinstance(space, Ratioed):
        return None
    found = Sharing(**chosen)
    if not isinstance(space, Ratioed) and {"share", "class_token"} & chosen.keys():
        raise _shares_everything(space)
    return found


def check_sharing(space: Space, sharing: Sharing) -> None:
    if not isinstance(space, Ratioed) and sharing != Sharing(widths=sharing.widths):
        raise _shares_everything(space)


def _shares_everything(space: Space) -> VitsearchError:
    return VitsearchError(f"`share` and `class_token` must not be given for {space.name}: it shares everything")


def supernet_for(
    space: Space, geometry: Geometry = IMAGENET, *, sharing: Sharing | None = None, **options: Any
) -> Supernet:
    """The kind of supernet that this space has: ViTAS's, or the one with every weight entangled."""
    if isinstance(space, Ratioed):
        return SuperTransformer(space, geometry, sharing=sharing, **options)
    check_sharing(space, sharing := sharing or Sharing())
    return Supernet(space, geometry, sides=sharing.sides, **options)
