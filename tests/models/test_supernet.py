"""The supernet against the networks that are cut from it, and what a training step moves in it."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import cast

import pytest
import torch
from timm.layers import DropPath
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from vitsearch.architecture import (
    Absent,
    Architecture,
    Attention,
    Merge,
    Patch,
    Settings,
    Stage,
    WindowAttention,
)
from vitsearch.cost import Geometry
from vitsearch.errors import BadSettings, VitsearchError
from vitsearch.models import Supernet, build
from vitsearch.models.skeleton import cut
from vitsearch.models.weights import WeightBank
from vitsearch.spaces import SPACES, Space, sample
from vitsearch.spaces.isotropic import Isotropic
from vitsearch.spaces.mobile import Mobile
from vitsearch.spaces.pooled import Pooled
from vitsearch.spaces.windowed import Windowed

SMALL = Geometry(image_size=32, classes=10)
MICRO = SPACES["autoformer-micro"]
DEEP = MICRO.decode(MICRO.settings(embed_dim=48, depth=3, num_heads=[3, 3, 3], mlp_ratio=[3.0, 3.0, 3.0]))
S3_SMALL = "s3:depth=1+2,embed_dim=16+24,num_heads=1+2,mlp_ratio=2,window_size=2+4+7"
SHALLOW = MICRO.decode(MICRO.settings(embed_dim=32, depth=2, num_heads=[2, 3], mlp_ratio=[2.0, 3.0]))


def images(geometry: Geometry, count: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    shape = (count, geometry.channels, geometry.image_size, geometry.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def supernet_of(space: Space, geometry: Geometry = SMALL, drop_path_rate: float = 0.0) -> Supernet:
    """In float64, with weights that all differ: initial biases are zero and would hide a wrong slice."""
    supernet = Supernet(space, geometry, seed=0, drop_path_rate=drop_path_rate).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in supernet.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return supernet


def narrow(name: str) -> Space:
    """The space with the same choices of depth, heads and ratios, but less wide; the smallest spaces as they are."""
    space = SPACES[name]
    if name == "autoformer-micro":
        return space
    if isinstance(space, Isotropic):
        if space.head_dim is None:  # the width stays a multiple of the heads
            return dataclasses.replace(space, embed_dim=tuple(width // 2 for width in space.embed_dim))
        return dataclasses.replace(space, embed_dim=tuple(width // 4 for width in space.embed_dim), head_dim=8)
    if isinstance(space, Windowed):
        few = {"s3": ((1, 2), (1,), (2, 3), (1, 2)), "s3-initial": ((1, 2),) * 4}[name]
        widths = tuple(tuple(width // 16 for width in stage) for stage in space.embed_dim)
        return dataclasses.replace(space, depth=few, embed_dim=widths, head_dim=2)
    if isinstance(space, Mobile):
        widths = tuple(tuple(width // 8 for width in place) for place in space.width)
        return dataclasses.replace(space, resolution=(32, 64), width=widths)
    assert isinstance(space, Pooled)
    return dataclasses.replace(space, base_dim=tuple(width // 4 for width in space.base_dim))


def reference_slice(name: str, whole: Tensor, shape: torch.Size) -> Tensor:
    """By hand, entry by entry along each axis: q, k, v rows 0, 3, 6, ...; 1, 4, 7, ...; 2, 5, 8, ...

    In patch merging the first channels of each of four corners; a smaller window's biases by torch's interpolation; the
    middle of a kernel.
    """
    rows = list(range(shape[0]))
    if "qkv" in name:
        rows = [3 * row + turn for turn in range(3) for row in range(shape[0] // 3)]
    if "norm_corners" in name or "reduction" in name:
        corner, part = whole.shape[-1] // 4, shape[-1] // 4
        columns = [corner * number + channel for number in range(4) for channel in range(part)]
        return whole[..., columns][: shape[0]] if whole.ndim == 2 else whole[columns]
    if "bias_table" in name and len(whole) != shape[0]:
        large, small = math.isqrt(len(whole)), math.isqrt(shape[0])
        grid = whole.T.reshape(1, -1, large, large)
        if small == 1:
            return grid[0, : shape[1], large // 2, large // 2][None]
        resized = torch.nn.functional.interpolate(grid, (small, small), mode="bilinear", align_corners=True)
        return resized[0].flatten(1).T[:, : shape[1]]
    if "depthwise" in name:
        rim = (whole.shape[-1] - shape[-1]) // 2
        inside = [rim + place for place in range(shape[-1])]
        return whole[rows][:, :, inside][..., inside]
    return whole[rows][tuple(slice(size) for size in shape)]


@torch.no_grad()
def check_equal(supernet: Supernet, networks: list[Architecture], geometry: Geometry = SMALL) -> None:
    """The call, the extracted network, and a network filled by hand agree: with BatchNorm, in training mode."""
    x = images(geometry)
    whole = dict(supernet.named_parameters())
    for architecture in networks:
        by_hand = build(architecture, geometry, draw_weights=False).double()
        for name, parameter in by_hand.named_parameters():
            parameter.copy_(reference_slice(name, whole[name], parameter.shape))
        expected = by_hand.train(supernet.batch_norm)(x)
        torch.testing.assert_close(supernet(x, architecture), expected, rtol=1e-12, atol=1e-12)
        extracted = supernet.extract(architecture).train(supernet.batch_norm)
        torch.testing.assert_close(extracted(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in SPACES if not name.startswith("vitas")])
def test_a_call_equals_the_extracted_network(name: str) -> None:
    space = narrow(name)
    count = 100 if name == "autoformer-micro" else 6
    networks = [space.decode(settings) for settings in sample(space, count, seed=3)]
    check_equal(supernet_of(space, drop_path_rate=0.3).eval(), networks)


@pytest.mark.parametrize("name", ["autoformer-tiny", "autoformer-tiny-plain", "pit"])
def test_a_call_equals_the_extracted_network_at_full_width(name: str) -> None:
    space = SPACES[name]
    ends = [space.region().smallest(), space.region().largest(), *sample(space, 1, seed=5)]
    check_equal(supernet_of(space), [space.decode(settings) for settings in ends])


@pytest.mark.parametrize(("image_size", "patch_size", "channels"), [(32, 4, 3), (28, 7, 1), (50, 16, 3)])
@pytest.mark.parametrize("name", ["autoformer-micro", "pit-tiny"])
def test_any_image_and_patch_size(name: str, image_size: int, patch_size: int, channels: int) -> None:
    space = narrow(name).with_patch_size(patch_size)
    geometry = Geometry(image_size=image_size, classes=7, channels=channels)
    networks = [space.decode(settings) for settings in sample(space, 4, seed=1)]
    check_equal(supernet_of(space, geometry), networks, geometry)


def test_the_state_dict_is_that_of_the_largest_network_and_of_the_weight_bank() -> None:
    for name in ("autoformer-micro", "pit", S3_SMALL):
        space = SPACES[name]
        supernet = Supernet(space, SMALL, seed=4)
        largest = build(space.envelope(), SMALL, seed=4)
        assert [*supernet.state_dict()] == [*largest.state_dict()]
        assert all(torch.equal(value, largest.state_dict()[key]) for key, value in supernet.state_dict().items())
        assert supernet.no_weight_decay() == largest.no_weight_decay()
        architecture = space.decode(sample(space, 1, seed=2)[0])
        bank = WeightBank(
            *(architecture.initialisation, 4, torch.device("cpu"), lambda found: found[0], 1 << 30),
            envelope=space.envelope(),
            geometry=SMALL,
        )
        expected = bank.network(architecture, SMALL).state_dict()
        slices = supernet.slices(architecture)
        assert slices.keys() == expected.keys()
        assert all(torch.equal(slices[key], expected[key]) for key in expected)


def test_extracted_weights_are_copies_and_slices_are_not() -> None:
    supernet = Supernet(MICRO, SMALL, seed=0)
    network = supernet.extract(SHALLOW)
    assert not network.training and supernet.training
    before = supernet.head.weight.detach().clone()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert torch.equal(supernet.head.weight, before)
    with torch.no_grad():
        supernet.slices(SHALLOW)["head.weight"].zero_()
    assert not supernet.head.weight[:, :32].any() and torch.equal(supernet.head.weight[:, 32:], before[:, 32:])


def set_rates(network: nn.Module, rates: list[float]) -> None:
    blocks = [block for stage in network.stages for block in stage.blocks]  # type: ignore[union-attr, operator]
    for block, rate in zip(blocks, rates, strict=True):
        block.drop_path1, block.drop_path2 = DropPath(rate), DropPath(rate)


def test_drop_path_follows_the_depth_of_the_largest_network() -> None:
    x = images(SMALL, 8)
    supernet = supernet_of(MICRO, drop_path_rate=0.6)
    pooled = supernet_of(narrow("pit"), drop_path_rate=0.9)  # at most 3, 8 and 6 blocks
    settings = SPACES["pit"].settings(base_dim=16, mlp_ratio=2, depth=[2, 6, 4], num_heads=[2, 2, 4])
    plan = SPACES["pit"].decode(settings | {"base_dim": 4})
    of_pooled = [0.9 * place / 16 for place in (0, 1, *range(3, 9), *range(11, 15))]
    for owner, architecture, rates in ((supernet, SHALLOW, [0.0, 0.3]), (pooled, plan, of_pooled)):
        network = owner.extract(architecture).train()
        set_rates(network, rates)
        torch.manual_seed(7)
        ours = owner(x, architecture)
        torch.manual_seed(7)
        torch.testing.assert_close(ours, network(x), rtol=1e-6, atol=1e-6)  # timm's rates went through float32
        assert not torch.allclose(ours, owner.extract(architecture)(x))
        assert torch.equal(owner.eval()(x, architecture), owner(x, architecture))


def test_the_gradient_touches_the_slice_and_nothing_else() -> None:
    for space, architecture in ((MICRO, SHALLOW), (narrow("pit"), None)):
        plan = architecture or space.decode(space.region().smallest())
        supernet = supernet_of(space)
        supernet(images(SMALL), plan).pow(2).sum().backward()
        network = supernet.extract(plan)
        network(images(SMALL)).pow(2).sum().backward()
        theirs = {name: parameter.grad for name, parameter in network.named_parameters()}
        for name, parameter in supernet.named_parameters():
            if name not in theirs:
                assert parameter.grad is None, name
                continue
            expected, own = torch.zeros_like(parameter), theirs[name]
            assert own is not None and parameter.grad is not None
            marked = torch.arange(parameter.numel()).reshape(parameter.shape)
            expected.view(-1)[reference_slice(name, marked, own.shape)] = own
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-10, atol=1e-12)
            assert not parameter.grad[expected == 0].any()
        assert len(theirs) < len(list(supernet.parameters()))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_what_a_step_moves_that_was_not_sampled(set_to_none: bool) -> None:
    """The default: what took no part stays, the rest of a tensor that did is decayed and moved by its momentum."""
    rate, decay, first, second = 1e-3, 0.1, 0.9, 0.999
    supernet = supernet_of(MICRO)
    optimizer = torch.optim.AdamW(supernet.parameters(), lr=rate, weight_decay=decay, betas=(first, second), eps=0.0)
    supernet(images(SMALL), DEEP).pow(2).sum().backward()
    optimizer.step()
    kept = {name: parameter.detach().clone() for name, parameter in supernet.named_parameters()}
    grads = {name: cast(Tensor, parameter.grad).clone() for name, parameter in supernet.named_parameters()}
    optimizer.zero_grad(set_to_none=set_to_none)
    supernet(images(SMALL), SHALLOW).pow(2).sum().backward()
    optimizer.step()

    def moved(name: str) -> Tensor:
        """AdamW's second step where the second gradient is zero."""
        mean = first * (1 - first) * grads[name] / (1 - first**2)
        square = second * (1 - second) * grads[name] ** 2 / (1 - second**2)
        return kept[name] * (1 - rate * decay) - rate * mean / square.sqrt()

    unsampled = "stages.0.blocks.2.mlp.fc1.weight"
    now = supernet.get_parameter(unsampled)
    assert torch.equal(now, kept[unsampled]) == set_to_none
    if not set_to_none:
        torch.testing.assert_close(now.detach(), moved(unsampled))
    partly = "stages.0.blocks.0.mlp.fc1.weight"  # 64 of 144 rows, 32 of 48 columns
    now = supernet.get_parameter(partly).detach()
    torch.testing.assert_close(now[64:], moved(partly)[64:])
    torch.testing.assert_close(now[:, 32:], moved(partly)[:, 32:])
    assert not torch.isclose(now[:64, :32], moved(partly)[:64, :32], rtol=1e-7).all()


def test_compiling_is_once_per_shape_and_changes_nothing() -> None:
    counter = CompileCounterWithBackend("eager")
    plain = supernet_of(MICRO, drop_path_rate=0.5)
    compiled = copy.deepcopy(plain)
    compiled.compile(backend=counter, fullgraph=True, dynamic=False)
    x = images(SMALL)
    few: list[Settings] = [
        MICRO.settings(embed_dim=32, depth=2, num_heads=[2, 3], mlp_ratio=[2.0, 2.0]),
        MICRO.settings(embed_dim=32, depth=3, num_heads=[3, 3, 2], mlp_ratio=[2.0, 2.0, 2.0]),
    ]
    for settings in few:
        results = []
        for supernet in (plain, compiled):
            torch.manual_seed(0)
            results.append(supernet(x, MICRO.decode(settings)))
        torch.testing.assert_close(*results)
    assert (
        counter.frame_count == 5
    )  # the patches, with class token and position; blocks of two and of three heads; the end


def test_a_copy_is_independent() -> None:
    supernet = supernet_of(MICRO)
    expected = supernet(images(SMALL), SHALLOW)
    twin = copy.deepcopy(supernet)
    with torch.no_grad():
        for parameter in supernet.parameters():
            parameter.zero_()
    assert torch.equal(twin(images(SMALL), SHALLOW), expected)
    assert twin.float()(images(SMALL, dtype=torch.float32), SHALLOW).dtype == torch.float32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imagined(Pooled):
    """Not a space of the package: window attention, merging and an absent block under one envelope."""

    def envelope(self) -> Architecture:
        return windowed(width=16, heads=2, hidden=48, last=WindowAttention(heads=4, head_dim=8, hidden=64, window=2))


def windowed(width: int, heads: int, hidden: int, last: WindowAttention | Absent) -> Architecture:
    block = WindowAttention(heads=heads, head_dim=8, hidden=hidden, window=4, shifted=True)
    first = Stage(entry=Patch(size=4, stride=4, norm=True), width=width, blocks=(block, block))
    second = Stage(entry=Merge(), width=2 * width, blocks=(last,))
    return Architecture(stages=(first, second), class_token=False, position="none")


def test_windows_and_absent_blocks() -> None:
    space = Imagined(name="windowed", base_dim=(8,), mlp_ratio=(2,), depth=((1,),), num_heads=((1,),))
    supernet = supernet_of(space)
    smaller = WindowAttention(heads=3, head_dim=8, hidden=40, window=2)
    check_equal(supernet, [space.envelope(), windowed(12, 1, 20, smaller), windowed(12, 1, 20, Absent())])
    with pytest.raises(BadSettings, match="in stage 1 block 0 is WindowAttention"):
        supernet.check(windowed(12, 1, 20, dataclasses.replace(smaller, window=4)))


def test_windows_share_a_table_or_have_their_own() -> None:
    """At 32 px with patch 2 the maps have 16, 8, 4 and 2 tokens a side; 4 and 7 do not all divide them."""
    separate = f"{S3_SMALL},bias_tables=separate"
    for name in (S3_SMALL, separate):
        space = SPACES[name].with_patch_size(2)
        check_bias_tables(supernet_of(space), [space.decode(settings) for settings in sample(space, 5, seed=2)])
    own = dict(supernet_of(SPACES[separate]).named_parameters())
    assert {f"stages.0.blocks.1.attn.relative_position_bias_table{end}" for end in ("", "_9", "_49")} <= set(own)
    tables = [key for key in own if "stages.3" in key and "bias_table" in key]
    assert len(tables) == 2, "every window is the map there"
    assert all(key in supernet_of(SPACES[separate]).no_weight_decay() for key in tables)


@torch.no_grad()
def check_bias_tables(supernet: Supernet, networks: list[Architecture]) -> None:
    x, whole = images(SMALL), dict(supernet.named_parameters())
    for architecture in networks:
        by_hand = build(architecture, SMALL, draw_weights=False).double()
        for name, parameter in by_hand.named_parameters():
            source = whole.get(f"{name}_{len(parameter)}", whole[name])
            parameter.copy_(reference_slice(name, source, parameter.shape))
        torch.testing.assert_close(supernet(x, architecture), by_hand(x), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(supernet.extract(architecture)(x), by_hand(x), rtol=1e-12, atol=1e-12)


def test_the_gradient_of_an_interpolated_table() -> None:
    space = SPACES[S3_SMALL]
    supernet = supernet_of(space)
    table = supernet.get_parameter("stages.0.blocks.0.attn.relative_position_bias_table")
    smallest = space.decode(space.region().smallest())
    supernet(images(SMALL), smallest).pow(2).sum().backward()
    assert table.grad is not None and table.grad[:, 0].count_nonzero() == 9 and not table.grad[:, 1].any()


def outsiders() -> dict[str, Architecture]:
    stage = DEEP.stages[0]
    block = stage.blocks[0]
    assert isinstance(block, Attention)

    def with_stage(**changes: object) -> Architecture:
        return dataclasses.replace(DEEP, stages=(dataclasses.replace(stage, **changes),))  # type: ignore[arg-type]

    def with_block(**changes: int) -> Architecture:
        return with_stage(blocks=(block, dataclasses.replace(block, **changes)))

    return {
        "in stage 0 it is 49 wide, and the supernet 48": with_stage(width=49),
        "in stage 0 it has 4 blocks, and the supernet 3": with_stage(blocks=(block,) * 4),
        "in stage 0 it begins with Patch.size=8": with_stage(entry=Patch(size=8, stride=8)),
        "in stage 0 block 1 is Attention.heads=4": with_block(heads=4),
        "in stage 0 block 1 is Attention.heads=3, head_dim=16, hidden=145": with_block(hidden=145),
        "block 1 is .*relative_distance=7.*, and the supernet has .*relative_distance=14": with_block(
            relative_distance=7
        ),
        "block 1 is Attention.heads=1, head_dim=32": with_block(heads=1, head_dim=32),
        "its `readout` is class, and the supernet's is mean": dataclasses.replace(DEEP, readout="class"),
        "it has 3 stages, and the supernet has 1": dataclasses.replace(
            SPACES["pit"].envelope(), position="all", readout="mean", norm_eps=1e-5, initialisation="autoformer"
        ),
    }


@pytest.mark.parametrize("reason", outsiders())
def test_what_is_not_a_part_is_refused_with_a_reason(reason: str) -> None:
    supernet = Supernet(MICRO, SMALL, seed=0)
    message = f"`architecture` must be a part of the supernet of autoformer-micro, but .*{reason}"
    for call in (supernet.slices, supernet.extract, lambda plan: supernet(images(SMALL), plan)):
        with pytest.raises(BadSettings, match=message):
            call(outsiders()[reason])


def test_other_wrong_arguments_are_named() -> None:
    with pytest.raises(VitsearchError, match=r"`drop_path_rate` must be in \[0, 1\), but got 1.0"):
        Supernet(MICRO, SMALL, drop_path_rate=1.0)
    with pytest.raises(ValueError, match=r"input must be \[batch, 3, 32, 32\], but got \[2, 3, 16, 16\]"):
        Supernet(MICRO, SMALL)(torch.zeros(2, 3, 16, 16), DEEP)
    inside = dataclasses.replace(DEEP.stages[0], width=40)  # between the choices, and so no member, but a part
    Supernet(MICRO, SMALL).check(dataclasses.replace(DEEP, stages=(inside,)))


def test_both_ends_of_merged_maps() -> None:
    """A narrow network from the right has the last channels of each of the four corners that its stage before has."""
    whole = torch.arange(2 * 4 * 3, dtype=torch.float64).reshape(2, 12)  # [out, four corners of 3 channels]
    columns = [3 * corner + channel for corner in range(4) for channel in (1, 2)]
    assert torch.equal(cut("entry.reduction.weight", whole, (1, 8), "right"), whole[-1:, columns])
    assert torch.equal(cut("entry.norm_corners.bias", whole[0], (8,), "right"), whole[0, columns])
    assert torch.equal(cut("entry.norm_corners.bias", whole[0], (8,)), whole[0, [column - 1 for column in columns]])
