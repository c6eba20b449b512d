"""Products around means: with float64 in the place of bfloat16 they are the definition, and DSS keeps its digits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch import sample
from vitsearch.architecture import Attention as Block
from vitsearch.cost import Geometry
from vitsearch.models.layers import Attention
from vitsearch.proxies import batched, centred, diversity
from vitsearch.scoring import ProxyEvaluator
from vitsearch.spaces import decode


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alike(count: int, tokens: int, width: int, seed: int, spread: float = 0.1) -> Tensor:
    return drawn(count, 1, width, seed=seed) + spread * drawn(count, tokens, width, seed=seed + 1)


def layer(name: str, weight: Tensor, bias: Tensor) -> centred.Layer:
    return centred.Layer(name, weight.detach(), weight.detach().to(centred.HALF), bias.detach())


def seen_by(half: type[torch.autograd.Function], x: Tensor, back: Tensor, *given: Any) -> tuple[list[Tensor], Any]:
    """Outputs, gradient of the inputs, and what was told of each layer."""
    seen: dict[str, dict[str, Any]] = {}

    def told(name: str, weight: Tensor, **found: Any) -> None:
        assert name not in seen
        seen[name] = found | {"weight": weight}

    x = x.clone().requires_grad_()
    y = half.apply(x, *given, told)
    return [y.detach(), *torch.autograd.grad(y, [x], back)], seen


def exactly(x: Tensor, back: Tensor, run: Any, *weights: Tensor) -> list[Tensor]:
    """The same by the definition, one network at a time; then gradients of the weights."""
    found = []
    for one, gradient in zip(x, back, strict=True):
        inputs = one.clone().requires_grad_()
        y = run(inputs)
        found.append([y.detach(), *torch.autograd.grad(y, [inputs, *weights], gradient)])
    return [torch.stack(values) for values in zip(*found, strict=True)]


def mlp(dtype: torch.dtype) -> tuple[list[Tensor], Any, list[Tensor]]:
    x, back = (alike(3, 11, 6, seed=seed).to(dtype) for seed in (3, 5))
    weights = [drawn(10, 6, seed=1), drawn(6, 10, seed=2)]
    biases = [drawn(10, seed=7), drawn(6, seed=8)]
    layers = [
        layer(name, weight.to(dtype), bias.to(dtype))
        for name, weight, bias in zip(("first", "second"), weights, biases, strict=True)
    ]
    found, seen = seen_by(centred.MlpHalf, x, back, *layers, 1e-6)
    leaves = [weight.requires_grad_() for weight in weights]

    def run(one: Tensor) -> Tensor:
        hidden = F.gelu(F.linear(F.layer_norm(one, (6,), eps=1e-6), leaves[0], biases[0]))
        return one + F.linear(hidden, leaves[1], biases[1])

    return found, seen, exactly(x.double(), back.double(), run, *leaves)


def test_mlps_are_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, exact = mlp(torch.float32)
    errors = [float((one - other).norm() / other.norm()) for one, other in zip(found, exact, strict=False)]
    assert 1e-5 < max(errors) < 2**-8  # less than bfloat16 has: it is one of the rest, which is a tenth
    monkeypatch.setattr(centred, "HALF", torch.float64)
    found, seen, (*expected, first, second) = mlp(torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    for name, gradient in (("first", first), ("second", second)):
        saliency = (gradient * seen[name]["weight"]).sum((1, 2))
        torch.testing.assert_close(seen[name]["saliency"], saliency, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("distance", [0, 2, 14])
def test_attention_is_the_definition(monkeypatch: pytest.MonkeyPatch, distance: int) -> None:
    """With clipped offsets, with all of them, and without relative position."""
    monkeypatch.setattr(centred, "HALF", torch.float64)
    side, heads, width = 4, 2, 8
    torch.manual_seed(0)
    block = Block(heads=heads, head_dim=width, hidden=4, relative_distance=distance)
    attention = Attention(24, block, side, fused=False).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    position = None
    if attention.relative is not None:
        tables = {name: table.detach() for name, table in attention.relative.named_parameters()}
        position = centred.relative(side, distance, **tables)
    qkv, proj = attention.qkv, attention.proj
    layers = layer("qkv", qkv.weight, qkv.bias), layer("proj", proj.weight, proj.bias)
    x, back = (alike(3, side**2 + 1, 24, seed=seed) for seed in (0, 4))
    found, seen = seen_by(centred.AttentionHalf, x, back, *layers, heads, position, 1e-6)

    def run(one: Tensor) -> Tensor:
        y: Tensor = attention(F.layer_norm(one, (24,), eps=1e-6)[None])[0]
        return one + y

    *expected, of_qkv, of_proj = exactly(x, back, run, qkv.weight, proj.weight)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    for name, gradient in (("qkv", of_qkv), ("proj", of_proj)):
        formed = seen[name]["gradient"].formed(torch.arange(3))
        torch.testing.assert_close(formed, gradient, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("small", [1e-6, 1e-3, 1.0, 0.0])
@pytest.mark.parametrize("decay", [0, -6])
def test_nuclear_norms_around_an_outer_product(small: float, decay: int) -> None:
    """Whatever the spectrum: where few vectors do not suffice, the bound notices."""
    x = drawn(3, 80, 64, seed=0) * torch.logspace(0, decay, 64, dtype=torch.float64)
    dy, left, right = (drawn(*shape, seed=seed) for seed, shape in enumerate([(3, 80, 96), (3, 96), (3, 64)], 1))
    dy, x = (one.to(torch.bfloat16).flatten(0, 1) for one in (small / 80 * dy, x))
    around = diversity.Around(left.float(), right.float(), dy, x)
    gradients = left[..., None] * right[:, None]
    gradients = gradients + dy.double().view(3, 80, -1).mT @ x.double().view(3, 80, -1)
    expected = torch.linalg.svdvals(gradients).sum(-1)
    assert around.sizes == (80, 96, 64)
    torch.testing.assert_close(diversity.nuclear_norms_of(around), expected, rtol=2e-3 * small + 1e-4, atol=0)


@pytest.mark.parametrize("space", ["autoformer-micro", "autoformer-tiny-plain"])
def test_dss_keeps_its_digits(monkeypatch: pytest.MonkeyPatch, space: str) -> None:
    networks, geometry = sample(space, 4, seed=2), Geometry(image_size=224, classes=10)
    passes: list[bool] = []
    real = batched.GroupPass.run

    def counted(self: batched.GroupPass, *arguments: Any) -> None:
        passes.append(self.centred)
        real(self, *arguments)

    monkeypatch.setattr(batched.GroupPass, "run", counted)
    scores = {}
    for on in (True, False):
        monkeypatch.setattr(batched, "pays", lambda device, on=on: on)
        scorer = ProxyEvaluator(["dss"], geometry=geometry, seed=0, device="cpu")
        scores[on] = [score.scores["dss"] for score in scorer(networks)]
        assert passes and set(passes) == {on}
        passes.clear()
    assert scores[True] == pytest.approx([scorer.one(settings).scores["dss"] for settings in networks], rel=5e-5)
    assert scores[True] != scores[False]


def test_few_tokens_and_sums_that_cancel_are_not_centred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "pays", lambda device: True)
    (network,) = sample("autoformer-micro", 1, seed=0)
    (tokens,) = sample("pit-tiny", 1, seed=0)
    cpu = torch.device("cpu")

    def kinds(settings: Any, *proxies: str) -> set[bool]:
        return {route.centred for route in batched.routes(proxies, decode(settings), cpu)}

    assert kinds(network, "dss") == {True}
    assert kinds(network, "snip", "dss-saliency") == {False} and kinds(network, "synflow") == {True}
    assert kinds(tokens, "dss", "synflow") == {False}  # its classifier reads one token
    small = [ProxyEvaluator(["dss"], geometry=Geometry(image_size=32), seed=0, device="cpu") for _ in range(2)]
    first = small[0]([network])[0].scores
    monkeypatch.setattr(batched, "pays", lambda device: False)
    assert small[1]([network])[0].scores == first
