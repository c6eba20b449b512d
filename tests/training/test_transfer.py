"""Weights in a network of another input: tables against direct evaluation, networks against timm's own loading."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import adapt_input_conv
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer import checkpoint_filter_fn as filter_swin
from timm.models.vision_transformer import checkpoint_filter_fn as filter_vit
from torch import Tensor

from vitsearch.architecture import Architecture, Attention, Patch, Stage
from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.export import export_timm
from vitsearch.models import VisionNetwork, build
from vitsearch.models.resize import (
    adapt_channels,
    resize_position,
    resize_position_map,
    resize_relative,
    resize_window_bias,
)
from vitsearch.spaces import SPACES
from vitsearch.training.transfer import fit_weights, load_weights

MICRO = SPACES["autoformer-micro"].region().largest()
SMALL = Geometry(image_size=32, classes=10)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cubic(x: np.ndarray) -> np.ndarray:
    """Keys 1981, a = -1/2."""
    x = np.abs(x)
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def resampling(old: int, new: int) -> np.ndarray:
    """[new, old]: the kernel at each pixel centre, stretched when shrinking, weights inside the image adding to 1."""
    ratio = old / new
    centres = (np.arange(new) + 0.5) * ratio
    weights = cubic((np.arange(old) + 0.5 - centres[:, None]) / max(ratio, 1))
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize(("old", "new"), [(4, 6), (7, 3), (14, 12), (2, 14)])
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_position_tables_against_direct_evaluation(old: int, new: int, prefix: int) -> None:
    table = drawn(1, prefix + old * old, 5)
    grid = table[0, prefix:].double().numpy().reshape(old, old, 5)
    matrix = resampling(old, new)
    expected = np.einsum("ia,jb,abc->ijc", matrix, matrix, grid)
    found = resize_position(table, (new, new), prefix)
    np.testing.assert_allclose(found[0, prefix:].numpy(), expected.reshape(new * new, 5), atol=1e-5)
    assert torch.equal(found[:, :prefix], table[:, :prefix])
    as_map = resize_position_map(torch.tensor(grid.transpose(2, 0, 1)[None]).float(), (new, new))
    np.testing.assert_allclose(as_map[0].permute(1, 2, 0).numpy(), expected, atol=1e-5)


def test_a_linear_ramp_stays_one_inside() -> None:
    rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    table = (3 + 2 * rows - columns).reshape(1, 64, 1)
    found = resize_position(table, (12, 12), 0).reshape(12, 12)
    at = (torch.arange(12.0) + 0.5) * 8 / 12 - 0.5
    inside = slice(3, 9)
    expected = 3 + 2 * at[:, None] - at[None, :]
    torch.testing.assert_close(found[inside, inside], expected[inside, inside], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("old", "new"), [(2, 5), (7, 3), (14, 14)])
def test_relative_tables_of_another_distance(old: int, new: int) -> None:
    table = drawn(2 * old + 2, 3)
    found = resize_relative(table, 2 * new + 2)
    assert torch.equal(found[0], table[0])
    at = np.arange(-new, new + 1) * old / new  # in old offsets
    for column in range(3):
        expected = np.interp(at, np.arange(-old, old + 1), table[1:, column].numpy())
        np.testing.assert_allclose(found[1:, column].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(("old", "new"), [(4, 7), (7, 4), (1, 3), (5, 5)])
def test_window_tables_against_direct_evaluation(old: int, new: int) -> None:
    """Old offsets lie at sums of a geometric progression that ends at the new window's edge; linear between them."""
    table = drawn((2 * old - 1) ** 2, 3)
    found = resize_window_bias(table, (new, new), torch.Size([(2 * new - 1) ** 2, 3]))
    ratios = np.linspace(1.01, 1.5, 200_001)
    reach = (1 - ratios ** (old - 1)) / (1 - ratios)
    steps = np.cumsum(ratios[np.argmin(np.abs(reach - (new - 1)))] ** np.arange(old - 1))
    places = np.concatenate([-steps[::-1], [0], steps]) if old != new else np.arange(-old + 1, old)
    wanted = np.arange(-new + 1, new)
    along = np.array([np.interp(wanted, places, row) for row in np.eye(2 * old - 1)]).T
    grid = table.double().numpy().reshape(2 * old - 1, 2 * old - 1, 3)
    expected = np.einsum("ia,jb,abc->ijc", along, along, grid).reshape(-1, 3)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)


def relative_logits(network: VisionNetwork) -> Tensor:
    """[side, side, side, side]: what one and the same query adds to the logit of each pair of patches."""
    relative: Any = network.stages[0].blocks[0].attn.relative
    vectors = relative.vectors(relative.key_rows, relative.key_columns)[1:, 1:]
    side = network.grid_size[0]
    return (vectors @ drawn(vectors.shape[-1], seed=3)).reshape(side, side, side, side)


def test_autoformers_relative_logits_at_another_size() -> None:
    small, large = build(MICRO, SMALL, seed=0), build(MICRO, Geometry(image_size=48, classes=10), seed=1)
    report = fit_weights(small.state_dict(), large)
    assert report.resized == ("pos_embed",) and not report.fresh and "head.weight" in report.copied
    with torch.no_grad():
        ours, theirs = relative_logits(large), relative_logits(small)
    shared = 0
    for row, column, key_row, key_column in np.ndindex(3, 3, 3, 3):
        down, right = key_row - row, key_column - column
        if abs(down) < 2 and abs(right) < 2:
            query_row, query_column = max(0, -down), max(0, -right)
            other = theirs[query_row, query_column, query_row + down, query_column + right]
            assert float(ours[row, column, key_row, key_column]) == float(other)
            shared += 1
    assert shared == 49


def test_another_distance_is_resized_and_another_head_width_refused() -> None:
    def network(distance: int, head_dim: int = 8) -> VisionNetwork:
        block = Attention(heads=2, head_dim=head_dim, hidden=32, relative_distance=distance)
        stage = Stage(entry=Patch(size=8, stride=8), width=16, blocks=(block,))
        return build(Architecture(stages=(stage,)), SMALL, seed=distance)

    source, target = network(3), network(2)
    report = fit_weights(source.state_dict(), target)
    names = [f"stages.0.blocks.0.attn.relative.{name}" for name in ("key_columns", "key_rows", "value_columns")]
    assert report.resized == (*names, "stages.0.blocks.0.attn.relative.value_rows")
    table = source.state_dict()[names[0]]
    torch.testing.assert_close(target.state_dict()[names[0]], resize_relative(table, 6))
    with pytest.raises(VitsearchError, match=r"of another shape: .*qkv\.weight"):
        fit_weights(source.state_dict(), network(2, head_dim=4))


def test_equals_timms_loading_of_a_vision_transformer() -> None:
    torch.manual_seed(0)
    source = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2, num_classes=10)
    options = {"img_size": 112, "depth": 2, "num_classes": 10}
    ours, theirs = (timm.create_model("vit_tiny_patch16_224", **options) for _ in range(2))
    report = fit_weights(source.state_dict(), ours)
    theirs.load_state_dict(filter_vit(source.state_dict(), theirs))
    assert report.resized == ("pos_embed",)
    for name, value in theirs.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name]), name


@pytest.mark.parametrize("window", [3, 6])
def test_equals_timms_loading_of_swin(window: int) -> None:
    torch.manual_seed(0)

    def swin(side: int, window: int) -> SwinTransformer:
        return SwinTransformer(
            img_size=side, window_size=window, embed_dim=16, depths=(2,), num_heads=(2,), num_classes=3
        )

    source, ours, theirs = swin(64, 4), swin(96, window), swin(96, window)
    report = fit_weights(source.state_dict(), ours)
    theirs.load_state_dict(filter_swin(source.state_dict(), theirs))
    assert len(report.resized) == 2
    for name, value in theirs.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name]), name


def test_timms_pit_at_another_size() -> None:
    torch.manual_seed(0)
    source = timm.create_model("pit_ti_224", num_classes=3).state_dict()
    network = timm.create_model("pit_ti_224", img_size=96, num_classes=3)
    report = fit_weights(source, network)
    side = network.pos_embed.shape[-1]
    matrix = resampling(source["pos_embed"].shape[-1], side)
    expected = np.einsum("ia,jb,cab->cij", matrix, matrix, source["pos_embed"][0].double().numpy())
    assert report.resized == ("pos_embed",) and side == 11
    np.testing.assert_allclose(network.pos_embed[0].detach().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("space", ["autoformer-micro", "pit"])
def test_equals_what_timm_makes_of_an_exported_folder(tmp_path: Path, space: str) -> None:
    settings = SPACES[space].region().smallest()
    export_timm(settings, tmp_path / "net", geometry=SMALL, seed=0)
    state, config = load_weights(tmp_path / "net")
    assert config is not None and config["model_args"] == {"settings": settings}
    geometry = Geometry(image_size=64, classes=4, channels=1)
    ours = build(settings, geometry, seed=1)
    head = ours.head.weight.detach().clone()
    report = fit_weights(state, ours)
    options = {"img_size": 64, "num_classes": 4, "in_chans": 1}
    theirs = timm.create_model(f"local-dir:{tmp_path / 'net'}", pretrained=True, **options).state_dict()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs[name]) or name.startswith("head."), name
    assert report.fresh == report.dropped == ("head.bias", "head.weight")
    assert report.adapted == ("stages.0.entry.proj.weight",) and torch.equal(ours.head.weight, head)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
def test_first_convolution(channels: int) -> None:
    weight = drawn(4, 3, 5, 5)
    torch.testing.assert_close(adapt_channels(weight, channels), adapt_input_conv(channels, weight))
    grey = drawn(4, 1, 5, 5)
    image = drawn(1, 1, 9, 9)
    repeated = torch.nn.functional.conv2d(image.expand(1, channels, 9, 9), adapt_channels(grey, channels))
    torch.testing.assert_close(repeated, torch.nn.functional.conv2d(image, grey), rtol=1e-4, atol=1e-5)


def test_tables_of_a_network_that_does_not_know_its_grid_are_refused() -> None:
    network = timm.create_model("cait_xxs24_224", img_size=32, num_classes=3)
    network.patch_embed.grid_size = ()
    other = network.state_dict() | {"pos_embed": drawn(1, 9, 192)}
    with pytest.raises(VitsearchError, match=r"of another shape: pos_embed \[1, 9, 192\] instead of \[1, 4, 192\]"):
        fit_weights(other, network)


def test_the_same_network_gives_the_same_outputs() -> None:
    source, target = build(MICRO, SMALL, seed=0), build(MICRO, SMALL, seed=1)
    report = fit_weights(source.state_dict(), target)
    assert set(report.copied) == set(source.state_dict()) and not report.resized + report.fresh + report.dropped
    with torch.no_grad():
        assert torch.equal(source(drawn(2, 3, 32, 32)), target(drawn(2, 3, 32, 32)))
    assert str(report) == f"{len(source.state_dict())} copied"
    target.reset_classifier(0)
    headless = fit_weights(source.state_dict(), target)
    assert headless.dropped == ("head.bias", "head.weight")
    assert str(headless) == f"{len(target.state_dict())} copied, 2 dropped"


def test_what_does_not_fit_is_listed_and_changes_nothing() -> None:
    network = build(MICRO, SMALL, seed=0)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    other = build(MICRO, SMALL, seed=1).state_dict()
    with pytest.raises(VitsearchError, match=r"missing: norm.weight; unexpected: extra$"):
        fit_weights({name: v for name, v in other.items() if name != "norm.weight"} | {"extra": drawn(1)}, network)
    with pytest.raises(VitsearchError, match=r"of another shape: norm.bias \[3\] instead of \["):
        fit_weights(other | {"norm.bias": drawn(3)}, network)
    with pytest.raises(VitsearchError, match=r"of another shape: pos_embed \[1, 7, "):  # 6 patches are no square
        fit_weights(other | {"pos_embed": drawn(1, 7, before["pos_embed"].shape[2])}, network)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_forms_of_files(tmp_path: Path) -> None:
    state = build(MICRO, SMALL, seed=0).state_dict()
    averaged = {name: value + 1 for name, value in state.items()}
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "bare.pth")
    torch.save({"model": state, "epoch": 3}, tmp_path / "wrapped.pt")
    torch.save({"state_dict": {f"module.{name}": v for name, v in state.items()}}, tmp_path / "parallel.pth")
    torch.save({"model": state, "model_ema": averaged}, tmp_path / "averaged.pth")
    for name in ("a.safetensors", "bare.pth", "wrapped.pt", "parallel.pth", "averaged.pth"):
        found, config = load_weights(tmp_path / name)
        expected = averaged if name == "averaged.pth" else state
        assert config is None and set(found) == set(state), name
        assert all(torch.equal(value, expected[key]) for key, value in found.items()), name


class Harm:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    torch.save({"model": Harm(tmp_path / "harmed")}, tmp_path / "harm.pth")
    torch.save({"epoch": 3}, tmp_path / "empty.pth")
    (tmp_path / "broken.pth").write_bytes(b"nothing")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    (tmp_path / "weights.bin").write_bytes(b"")
    rules = {
        "harm.pth": "must hold tensors alone",
        "broken.pth": "must hold tensors alone",
        "empty.pth": "must hold a state dict",
        "broken.safetensors": "must be readable safetensors",
        "weights.bin": "must be a folder, .safetensors, .pth or .pt",
        "absent.pth": "must be an existing file or folder",
        ".": "must be a folder with config.json and model.safetensors",
    }
    for name, rule in rules.items():
        with pytest.raises(VitsearchError, match=f"`weights` {rule}.*, but got ") as caught:
            load_weights(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "harmed").exists()
