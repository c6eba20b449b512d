"""ViTAS's super-transformer against networks filled by hand, for every way of sharing, and what a step moves in it."""

from __future__ import annotations

import copy
from random import Random

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from vitsearch.architecture import Absent, Architecture, Attention, Patch, Stage
from vitsearch.cost import Geometry
from vitsearch.errors import BadSettings, VitsearchError
from vitsearch.models import Supernet, SuperTransformer, build
from vitsearch.models.super_transformer import Sharing, sharing_of, supernet_for
from vitsearch.spaces import SPACES
from vitsearch.spaces.channelwise import Channelwise, Repeated
from vitsearch.training.subnets import draw

GEOMETRY = Geometry(image_size=16, classes=5)
SPACE = Channelwise(
    name="small",
    patch_sizes=(2, 4, 8),
    embed_dim=(8, 20),
    num_heads=(2, 4),
    attention_dim=72,
    mlp_dim=30,
    steps=3,
    slot_count=4,
)
REPEATED = Repeated(
    name="one-block", patch_size=4, embed_dim=(8, 20), num_heads=(2, 4), attention_dim=72, mlp_dim=30, steps=3, depth=2
)
SHARES = ("v", "qkv", "qk", "none")


def supernet_of(sharing: Sharing, drop_path_rate: float = 0.0) -> SuperTransformer:
    """In float64, with weights that all differ: initial biases are zero and would hide a wrong slice."""
    supernet = SuperTransformer(SPACE, GEOMETRY, sharing=sharing, seed=0, drop_path_rate=drop_path_rate).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in supernet.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return supernet.eval()


def members(count: int, seed: int = 0) -> list[Architecture]:
    return [SPACE.decode(draw(SPACE, Random(f"{seed}/{number}"))) for number in range(count)]


def images() -> Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def first(side: str, size: int, whole: int) -> list[int]:
    """Places that a network has of `whole`: counted from the left or from the right."""
    return list(range(size)) if side == "left" else list(range(whole - size, whole))


@torch.no_grad()
def by_hand(supernet: SuperTransformer, architecture: Architecture, side: str) -> Tensor:
    """The network's outputs, its weights gathered entry by entry."""
    whole, sharing = dict(supernet.named_parameters()), supernet.sharing
    network = build(architecture, GEOMETRY, draw_weights=False).double()
    patch = architecture.stages[0].entry.size  # type: ignore[union-attr]
    for name, parameter in network.named_parameters():
        parts = name.split(".")
        if name in ("cls_token", "pos_embed"):
            private = name == "pos_embed" or sharing.class_token == "private"
            source = whole[f"stages.0.entries.{patch}.{name}" if private else name]
        elif "entry" in parts:
            source = whole[name.replace("stages.0.entry", f"stages.0.entries.{patch}.entry")]
        elif "qkv" in parts:
            block = architecture.stages[0].blocks[int(parts[3])]
            assert isinstance(block, Attention)
            stem, leaf, inner = ".".join(parts[:5]), parts[6], block.heads * block.head_dim
            own = {kind: "all" if sharing.share in ("qkv", kind) else str(block.heads) for kind in ("qk", "v")}
            qk, v = whole[f"{stem}.qk.{own['qk']}.{leaf}"], whole[f"{stem}.v.{own['v']}.{leaf}"]
            pairs = first(side, 2 * inner, len(qk))
            rows = torch.cat([qk[pairs[0::2]], qk[pairs[1::2]], v[first(side, inner, len(v))]])
            parameter.copy_(rows if leaf == "bias" else rows[:, first(side, parameter.shape[1], rows.shape[1])])
            continue
        else:
            source = whole[name]
        for axis, size in enumerate(parameter.shape):
            source = source.index_select(axis, torch.tensor(first(side, size, source.shape[axis])))
        parameter.copy_(source)
    return network(images())


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("class_token", ["private", "shared"])
def test_a_call_equals_the_extracted_network_and_one_filled_by_hand(share: str, class_token: str) -> None:
    supernet = supernet_of(Sharing(share=share, class_token=class_token), drop_path_rate=0.3)  # type: ignore[arg-type]
    for architecture in members(12):
        expected = by_hand(supernet, architecture, "left")
        torch.testing.assert_close(supernet(images(), architecture), expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(supernet.extract(architecture)(images()), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("share", SHARES)
def test_two_sides_are_two_networks_whose_logits_are_added(share: str) -> None:
    supernet = supernet_of(Sharing(share=share, widths="two-sided"))  # type: ignore[arg-type]
    differ = 0
    for architecture in members(6, seed=1):
        left, right = (by_hand(supernet, architecture, side) for side in ("left", "right"))
        torch.testing.assert_close(supernet(images(), architecture, "right"), right, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(supernet.extract(architecture, "right")(images()), right, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(supernet(images(), architecture), left + right, rtol=1e-12, atol=1e-12)
        differ += not torch.allclose(left, right)
    assert differ >= 4


def test_any_supernet_may_have_two_sides() -> None:
    space = SPACES["autoformer-micro"]
    supernet = supernet_for(space, GEOMETRY, sharing=Sharing(widths="two-sided"), seed=0).double().eval()
    narrow = space.with_patch_size(16).decode(space.region().smallest())
    logits = [supernet.extract(narrow, side)(images()) for side in ("left", "right")]
    torch.testing.assert_close(supernet(images(), narrow), logits[0] + logits[1], rtol=1e-12, atol=1e-12)
    assert type(supernet) is Supernet and not torch.allclose(*logits)
    with pytest.raises(VitsearchError, match="`share` and `class_token` must not be given for autoformer-micro"):
        supernet_for(space, GEOMETRY, sharing=Sharing(share="qkv"))
    for given in ({"share": "v"}, {"class_token": "private"}):  # what it would have anyway, in a space of ViTAS's
        with pytest.raises(VitsearchError, match="must not be given for autoformer-micro"):
            sharing_of(space, **given)


def only(heads: int, patch: int) -> Architecture:
    """One narrow block in slot 2."""
    block = SPACE.block(heads, 1 / 3, 2 / 3)
    blocks = (Absent(), Absent(), block, Absent())
    return SPACE.blueprint(patch, 8, blocks)


@pytest.mark.parametrize("share", SHARES)
def test_gradients_lie_in_the_part_that_took_part(share: str) -> None:
    supernet = supernet_of(Sharing(share=share)).train()  # type: ignore[arg-type]
    supernet(images(), only(4, 4)).square().sum().backward()
    found = {name: parameter.grad for name, parameter in supernet.named_parameters() if parameter.grad is not None}
    assert not any(f"blocks.{slot}." in name for name in found for slot in (0, 1, 3))
    assert not any("entries.2." in name or "entries.8." in name for name in found)
    assert not any(f".{kind}.2." in name for name in found for kind in ("qk", "v"))
    own = {kind: "all" if share in ("qkv", kind) else "4" for kind in ("qk", "v")}
    stem = "stages.0.blocks.2.attn"
    for kind, rows in (("qk", 16), ("v", 8)):
        gradient = found[f"{stem}.{kind}.{own[kind]}.weight"]
        assert gradient[:rows, :8].abs().amin() > 0 and gradient[rows:].eq(0).all() and gradient[:, 8:].eq(0).all()
    assert found["stages.0.entries.4.cls_token"][..., :8].abs().amin() > 0
    assert found["stages.0.entries.4.cls_token"][..., 8:].eq(0).all()


def test_private_parts_are_not_moved_by_others() -> None:
    supernet = supernet_of(Sharing())
    before = supernet(images(), only(2, 4))
    with torch.no_grad():
        for name, parameter in supernet.named_parameters():
            if ".qk.4." in name or "entries.8" in name:
                parameter += 1.0
    assert torch.equal(supernet(images(), only(2, 4)), before)
    assert not torch.equal(supernet(images(), only(4, 4)), supernet_of(Sharing())(images(), only(4, 4)))


def test_one_repeated_block_too() -> None:
    supernet = SuperTransformer(REPEATED, GEOMETRY, seed=0).double().eval()
    assert len(list(REPEATED.region(geometry=GEOMETRY))) == 2 * 2 * 9
    for settings in list(REPEATED.region(geometry=GEOMETRY))[::7]:
        architecture = REPEATED.decode(settings)
        outputs = supernet.extract(architecture)(images())
        torch.testing.assert_close(supernet(images(), architecture), outputs, rtol=1e-12, atol=1e-12)


def test_layers_are_compiled_once_for_each_shape() -> None:
    supernet, plain = supernet_of(Sharing()), supernet_of(Sharing())
    counter = CompileCounterWithBackend("eager")
    supernet.compile(backend=counter)
    for architecture in (only(4, 4), only(4, 4), only(2, 4)):
        torch.testing.assert_close(supernet(images(), architecture), plain(images(), architecture))
    assert counter.frame_count == 5  # one entry, tokens and position, two kinds of block, the end
    copy.deepcopy(supernet)(images(), only(2, 4)).sum().backward()
    assert counter.frame_count <= 9


def test_what_is_not_a_part() -> None:
    supernet = supernet_of(Sharing())
    plan = only(4, 4)
    for broken, why in (
        (only(4, 16), "patch sizes"),
        (SPACE.blueprint(4, 8, [Attention(heads=3, head_dim=2, hidden=4)]), "head counts"),
        (SPACE.blueprint(4, 32, [Absent()]), "32 wide"),
        (SPACE.blueprint(4, 8, [SPACE.block(2, 1 / 3, 2 / 3)], cait=1), "class attention .`cait`."),
        (SPACE.blueprint(4, 8, [Attention(heads=2, head_dim=4, hidden=10, scale="embed")]), "block 0"),
        (Architecture(stages=(Stage(entry=Patch(size=4, stride=2), width=8, blocks=()),), readout="class"), "patch"),
    ):
        with pytest.raises(BadSettings, match=why):
            supernet(images(), broken)
    assert supernet(images(), plan).shape == (2, 5)


@pytest.mark.parametrize("bad", [{"share": "k"}, {"class_token": "none"}, {"widths": "left"}])
def test_sharing_has_rules(bad: dict[str, str]) -> None:
    with pytest.raises(VitsearchError, match=f"`{next(iter(bad))}` must be one of"):
        Sharing(**bad)  # type: ignore[arg-type]


def test_size_of_the_whole() -> None:
    """Table 1's super-transformer, counted by hand: the private parts, and what is shared."""
    with torch.device("meta"):
        supernet = SuperTransformer(SPACES["vitas"])  # type: ignore[arg-type]
    width, inner, hidden = 384, 480, 1440
    entries = sum(3 * p * p * width + width + width + ((224 // p) ** 2 + 1) * width for p in (14, 16, 32))
    attention = 4 * (width + 1) * 2 * inner + (width + 1) * inner + (inner + 1) * width
    block = 4 * width + attention + (width + 1) * hidden + (hidden + 1) * width
    assert sum(p.numel() for p in supernet.parameters()) == entries + 16 * block + 2 * width + (width + 1) * 1000
