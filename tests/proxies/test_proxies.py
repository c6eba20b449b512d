"""Proxies against slow references in float64 that share no code with them but the network."""

from __future__ import annotations

import math
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vitsearch.cost import Geometry
from vitsearch.data import open_data
from vitsearch.errors import ProxyUndefined, UnknownName
from vitsearch.models import VisionNetwork, build
from vitsearch.proxies import PROXIES, Subject, parse_proxy, proxy
from vitsearch.proxies.base import linear_roles
from vitsearch.proxies.diversity import nuclear_norms
from vitsearch.scoring import ProxyEvaluator, score
from vitsearch.spaces import SPACES, cost_of, decode, sample

GEOMETRY = Geometry(image_size=32, classes=10)


def absolute_network(settings: dict[str, Any], geometry: Geometry, seed: int) -> tuple[VisionNetwork, list[Tensor]]:
    """In float64 with explicit attention, every parameter overwritten by its absolute value, gradients filled in."""
    network = build(settings, geometry, seed=seed).double().set_fused_attention(False)
    signed = [parameter.detach().clone() for parameter in network.parameters()]
    for parameter in network.parameters():
        parameter.data.abs_()
    side = geometry.image_size
    network(torch.ones(1, geometry.channels, side, side, dtype=torch.float64)).sum().backward()
    return network, signed


def slow_dss(settings: dict[str, Any], geometry: Geometry, seed: int, signed: bool = False) -> float:
    """TF-TAS eq. 4-6, by singular values."""
    network, before = absolute_network(settings, geometry, seed)
    total = 0.0
    for (name, parameter), original in zip(network.named_parameters(), before, strict=True):
        gradient = parameter.grad
        assert gradient is not None
        if name.endswith(("attn.qkv.weight", "attn.proj.weight")):
            weight = original if signed else parameter.detach()
            total += float(torch.linalg.svdvals(gradient).sum() * torch.linalg.svdvals(weight).sum())
        elif name.endswith(("mlp.fc1.weight", "mlp.fc2.weight")):
            total += float((gradient * parameter.detach()).sum())
    return total


def slow_loss_gradients(settings: dict[str, Any], geometry: Geometry, seed: int, batch_size: int) -> VisionNetwork:
    network = build(settings, geometry, seed=seed).double().set_fused_attention(False)
    batch = open_data("noise").draw(batch_size, geometry, seed)
    log_probabilities = torch.log_softmax(network(batch.images.double()), -1)
    (-sum(log_probabilities[i, label] for i, label in enumerate(batch.labels)) / batch_size).backward()
    return network


@pytest.mark.parametrize(
    "space", [name for name in SPACES if SPACES[name].envelope().final_norm and name != "autoformer-base-wide"]
)
def test_dss_equals_the_equations(space: str) -> None:
    region = SPACES[space].region()
    with_blocks = (region[number] for number in range(region.size) if decode(region[number]).depth)
    settings = region.smallest() if decode(region.smallest()).depth else next(with_blocks)
    (ours,) = score(settings, "dss,dss-signed", geometry=GEOMETRY, seed=3, device="cpu")
    assert ours.scores["dss"] == pytest.approx(slow_dss(settings, GEOMETRY, 3), rel=1e-4)
    assert ours.scores["dss-signed"] == pytest.approx(slow_dss(settings, GEOMETRY, 3, signed=True), rel=1e-4)


def test_a_network_without_blocks_is_scored_where_that_means_something() -> None:
    """Alone, and beside one that goes through in a batch."""
    empty, other = SPACES["vitas-micro"].region().smallest(), sample("vitas-micro", 1, seed=0)[0]
    for networks in ([empty], [empty, other]):
        found = score(networks, "dss,snip", geometry=GEOMETRY, device="cpu")
        assert set(found[0].scores) == {"snip"} and "not defined" in found[0].errors["dss"]
    assert set(found[1].scores) == {"dss", "snip"}


def test_dss_at_full_size() -> None:
    settings = sample("autoformer-tiny", 1, seed=4)[0]
    (ours,) = score(settings, "dss", seed=0, device="cpu")
    assert ours.scores["dss"] == pytest.approx(slow_dss(settings, Geometry(), 0), rel=1e-4)


@pytest.mark.parametrize("space", ["autoformer-micro", "pit"])
def test_saliency_equals_its_definition(space: str) -> None:
    settings = SPACES[space].region().smallest()
    names = [f"{name}{variant}" for name in ("snip", "plain", "grad_norm") for variant in ("", ":params=linear")]
    (ours,) = score(settings, [*names, "synflow"], geometry=GEOMETRY, seed=2, device="cpu", batch_size=5)
    network = slow_loss_gradients(settings, GEOMETRY, 2, 5)
    linear = {f"{name}.weight" for name, module in network.named_modules() if isinstance(module, torch.nn.Linear)}
    expected = dict.fromkeys(names, 0.0)
    for name, parameter in network.named_parameters():
        product = parameter.grad * parameter.detach()
        terms = {"snip": product.abs().sum(), "plain": product.sum(), "grad_norm": parameter.grad.pow(2).sum().sqrt()}
        for key, term in terms.items():
            expected[key] += float(term)
            expected[f"{key}:params=linear"] += float(term) if name in linear else 0.0
    for name, value in expected.items():
        assert ours.scores[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    absolute, _ = absolute_network(settings, GEOMETRY, 2)
    synflow = sum(float((p.grad * p.detach()).sum()) for p in absolute.parameters())
    assert ours.scores["synflow"] == pytest.approx(synflow, rel=1e-6)
    alone = ProxyEvaluator(["synflow"], geometry=GEOMETRY, seed=2, device="cpu").one(settings)
    assert alone.scores["synflow"] == pytest.approx(synflow, rel=1e-8)


def test_sizes_are_exact_and_need_no_network() -> None:
    settings = SPACES["pit"].settings(base_dim=16, mlp_ratio=2, depth=(2, 4, 6), num_heads=(2, 2, 4))

    def never() -> Any:
        raise AssertionError("a size needs no network and no data")

    from vitsearch.spaces import decode

    subject = Subject(name="x", network=never, batch=never, geometry=GEOMETRY, architecture=decode(settings))
    values = {name: PROXIES[name].score(subject) for name in ("params", "macs", "depth", "width")}
    cost = cost_of(settings, GEOMETRY)
    assert values == {"params": cost.params, "macs": cost.macs, "depth": 12, "width": (6 * 32 + 6 * 64) / 12}


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000), st.booleans())
def test_nuclear_norm_equals_singular_values(rows: int, columns: int, seed: int, low_rank: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, columns, generator=generator)
    if low_rank:
        matrix = matrix[:, :1] @ matrix[:1, :]
    expected = float(torch.linalg.svdvals(matrix.double()).sum())
    assert float(nuclear_norms([matrix])[0]) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_scores_repeat_with_the_seed_and_leave_the_network_alone() -> None:
    settings = SPACES["autoformer-micro"].region().smallest()
    every = [name for name in PROXIES if name != "zen"]
    first = score(settings, every, geometry=GEOMETRY, seed=1, device="cpu")[0].scores
    assert first == score(settings, every, geometry=GEOMETRY, seed=1, device="cpu")[0].scores
    assert first == score(settings, every[::-1], geometry=GEOMETRY, seed=1, device="cpu")[0].scores
    other = score(settings, every, geometry=GEOMETRY, seed=2, device="cpu")[0].scores
    changing = {name for name in every if first[name] != other[name]}
    assert changing == set(every) - {"params", "macs", "depth", "width", "linear_regions"}


def test_dss_and_synflow_do_not_depend_on_data() -> None:
    settings = SPACES["autoformer-micro"].region().smallest()
    names = ["dss", "synflow", "snip"]
    noise = score(settings, names, geometry=GEOMETRY, device="cpu")[0].scores
    digits = score(settings, names, geometry=GEOMETRY, device="cpu", data="digits")[0].scores
    assert (noise["dss"], noise["synflow"]) == (digits["dss"], digits["synflow"])
    assert noise["snip"] != digits["snip"]


TIMM = ("vit_tiny_patch16_224", "pit_ti_224", "xcit_nano_12_p16_224")


@pytest.mark.parametrize("model", TIMM)
def test_timm_networks_are_scored_as_built(model: str) -> None:
    evaluator = ProxyEvaluator(["dss", "params", "depth", "width"], geometry=Geometry(classes=10), seed=0, device="cpu")
    ours = evaluator.timm(model)
    torch.manual_seed(0)
    network = timm.create_model(model, num_classes=10).eval().double()
    for parameter in network.parameters():
        parameter.data.abs_()
    network(torch.ones(1, 3, 224, 224, dtype=torch.float64)).sum().backward()
    total = 0.0
    for name, parameter in network.named_parameters():
        if parameter.ndim == 2 and ".attn." in name:
            total += float(torch.linalg.svdvals(parameter.grad).sum() * torch.linalg.svdvals(parameter.detach()).sum())
        elif parameter.ndim == 2 and ".mlp." in name:
            total += float((parameter.grad * parameter.detach()).sum())
    assert ours.scores["dss"] == pytest.approx(total, rel=1e-6)
    assert ours.scores["params"] == sum(p.numel() for p in network.parameters())
    assert ours.errors == {}


def test_counted_sizes_of_timm_networks() -> None:
    """PiT-Ti as published, its MACs as counted by others; LeViT hides its linears inside other modules."""
    evaluator = ProxyEvaluator(["params", "macs", "depth", "width"], device="cpu")
    scores = evaluator.timm("pit_ti_224").scores
    assert (scores["params"], scores["macs"], scores["depth"]) == (4847272, 699059456, 12)
    settings = {"space": "pit-tiny", "base_dim": 32, "mlp_ratio": 4, "depth": [2, 6, 4], "num_heads": [2, 4, 8]}
    assert scores == evaluator.one(settings).scores
    levit = evaluator.timm("levit_128s").scores
    modules = timm.create_model("levit_128s").modules()
    assert levit["depth"] == sum("Attention" in type(module).__name__ for module in modules)


def test_what_is_not_defined_says_so() -> None:
    evaluator = ProxyEvaluator(["dss", "depth", "snip"], geometry=GEOMETRY, device="cpu")
    found = evaluator.timm("resnet18", image_size=32)
    assert found.errors["dss"] == "dss is not defined for resnet18: it has no linear layer inside an attention module"
    assert "not defined" in found.errors["depth"]
    assert math.isfinite(found.scores["snip"])


def test_roles_of_linear_layers() -> None:
    with torch.device("meta"):
        roles = {name: role for name, role, _ in linear_roles(timm.create_model("cait_xxs24_224"))}
    assert roles["blocks.0.attn.qkv"] == "attention" and roles["blocks.0.mlp.fc1"] == "mlp"
    assert roles["blocks_token_only.0.attn.q"] == "attention" and roles["blocks_token_only.0.mlp.fc2"] == "mlp"
    assert roles["head"] == "other"


def test_failures_are_recorded_with_their_reason() -> None:
    @proxy("test-infinite", paper="none")
    def infinite(subject: Subject) -> float:
        return math.inf

    @proxy("test-broken", paper="none")
    def broken(subject: Subject) -> float:
        raise KeyError("a bug\nin a plugin")

    @proxy("test-undefined", paper="none")
    def undefined(subject: Subject) -> float:
        raise ProxyUndefined("not defined for this network: it has no batch norm")

    @proxy("test-memory", paper="none")
    def memory(subject: Subject) -> float:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    @proxy("test-tensor", paper="none")
    def tensor(subject: Subject) -> Any:
        return torch.tensor(2.5)

    names = ["test-infinite", "test-broken", "test-undefined", "test-memory"]
    found = score(
        SPACES["autoformer-micro"].region().smallest(),
        [*names, "params", "test-tensor"],
        geometry=GEOMETRY,
        device="cpu",
    )[0]
    assert found.errors == {
        "test-infinite": "ArithmeticError: the score is not finite: inf",
        "test-broken": "KeyError: 'a bug\\nin a plugin'",
        "test-undefined": "not defined for this network: it has no batch norm",
        "test-memory": "out of memory",
    }
    assert set(found.scores) == {"params", "test-tensor"}
    assert [type(value) for value in found.scores.values()] == [int, float]


def test_variants_are_spelled_with_colons() -> None:
    assert parse_proxy("snip:params=linear")[1] == {"params": "linear"}
    with pytest.raises(UnknownName, match=r"has no option \'colour=red\'\. Its options: params=all\|linear"):
        parse_proxy("snip:colour=red")
    with pytest.raises(UnknownName, match=r"must be one of all, linear, but got \'liner\'\. Did you mean \'linear\'"):
        parse_proxy("snip:params=liner")
    with pytest.raises(UnknownName, match="Its options: none"):
        parse_proxy("dss:params=all")


def test_cross_entropy_is_the_mean() -> None:
    """Twice the same batch gives the same gradients, so the size of a batch does not scale the score."""
    settings = SPACES["autoformer-micro"].region().smallest()
    one = open_data("noise").draw(3, GEOMETRY, 0)
    network = build(settings, GEOMETRY, seed=0)
    subject = Subject(name="x", network=lambda: network, batch=lambda: one, geometry=GEOMETRY)
    loss = F.cross_entropy(network(torch.cat([one.images] * 2)), torch.cat([one.labels] * 2))
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    expected = sum(float((g * p).abs().sum()) for g, p in zip(gradients, subject.parameters.values(), strict=True))
    assert PROXIES["snip"].score(subject) == pytest.approx(expected, rel=1e-4)
