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
from vitsearch.evaluate import ProxyEvaluator
from vitsearch.models.layers import Attention
from vitsearch.proxies import batched, centred
from vitsearch.spaces import decode


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def alike(count: int, tokens: int, width: int, seed: int, spread: float = 0.1) -> Tensor:
    mean, rest = drawn(count, 1, 1, width, seed=seed), drawn(count, 1, tokens, width, seed=seed + 1)
    return (mean + spread * rest).detach()


def linear(x: Tensor, half: torch.dtype, back: Tensor) -> tuple[list[Tensor], list[Any]]:
    """Of fixed weights: outputs and gradient of x, and what was reported."""
    weight, bias = drawn(7, 5, seed=1).detach().to(x.dtype), drawn(7, seed=2).detach().to(x.dtype)
    seen: list[Any] = []
    x = x.clone().requires_grad_()
    y = centred.CentredLinear.apply(x, weight, weight.to(half), bias, lambda *given: seen.append(given), True)
    (dx,) = torch.autograd.grad(y, [x], back.to(x.dtype))
    exact = F.linear(x.double(), weight.double(), bias.double()), back @ weight.double()
    return [y.detach(), dx, *(one.detach() for one in exact)], seen


def test_linear_layers_are_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    x, back = alike(3, 11, 5, seed=3), alike(3, 11, 7, seed=5)
    (y, dx, *exact), _ = linear(x.float(), torch.bfloat16, back)
    errors = [float((one - other).abs().max()) for one, other in zip((y, dx), exact, strict=True)]
    assert 1e-5 < max(errors) < 0.1 * 2**-7 * 3 * 5  # bfloat16 of the rest, which is a tenth
    monkeypatch.setattr(centred, "HALF", torch.float64)
    (y, dx, *exact), seen = linear(x, torch.float64, back)
    torch.testing.assert_close([y, dx], exact, rtol=1e-12, atol=1e-12)
    (given,) = seen
    torch.testing.assert_close(given, (x, back, y), rtol=0, atol=0)


@pytest.mark.parametrize("distance", [0, 2, 14])
def test_attention_is_the_definition(monkeypatch: pytest.MonkeyPatch, distance: int) -> None:
    """With clipped offsets, with all of them, and without relative position."""
    monkeypatch.setattr(centred, "HALF", torch.float64)
    side, heads, width = 4, 2, 8
    torch.manual_seed(0)
    layer = Attention(24, Block(heads=heads, head_dim=width, hidden=4, relative_distance=distance), side).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    qkv, back = drawn(3, side**2 + 1, 3, heads, width, seed=0), drawn(3, heads, side**2 + 1, width, seed=1)
    position = None
    if layer.relative is not None:
        tables = {name: table.detach() for name, table in layer.relative.named_parameters()}
        position = centred.relative(side, distance, tables)
    ours = centred.CentredAttention.apply(qkv, layer.scale, position)
    definition = layer.explicit_form(*qkv.permute(2, 0, 3, 1, 4))
    torch.testing.assert_close(ours, definition, rtol=1e-10, atol=1e-10)
    found, exact = (torch.autograd.grad(out, [qkv], back) for out in (ours, definition))
    torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-9)


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
    assert kinds(network, "synflow", "snip", "dss-saliency") == {False}
    assert kinds(tokens, "dss") == {False}  # its classifier reads one token
    small = [ProxyEvaluator(["dss"], geometry=Geometry(image_size=32), seed=0, device="cpu") for _ in range(2)]
    first = small[0]([network])[0].scores
    monkeypatch.setattr(batched, "pays", lambda device: False)
    assert small[1]([network])[0].scores == first
