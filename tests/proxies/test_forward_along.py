"""Derivatives along the scaling of all parameters, against those of the definition: in float64 they are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitsearch import sample
from vitsearch.architecture import Attention as Block
from vitsearch.cost import Geometry
from vitsearch.models.layers import Attention, Mlp
from vitsearch.proxies import batched, centred, forward_along, group_pass, takers
from vitsearch.scoring import ProxyEvaluator

EPS = 1e-6


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_definition(module: nn.Module, x: Tensor) -> Tensor:
    """x + module(norm(x)) and its derivative, where parameters, the norm's weight too, are those here times 1 + a."""
    values = {name: value.detach() for name, value in module.named_parameters()}

    def half(x: Tensor, weight: Tensor, values: Mapping[str, Tensor]) -> Any:
        return x + torch.func.functional_call(module, dict(values), (F.layer_norm(x, x.shape[-1:], weight, eps=EPS),))

    one = torch.ones(x.shape[-1], dtype=torch.float64)
    jvp: Callable[..., tuple[Tensor, Tensor]] = torch.func.jvp
    return torch.stack(jvp(half, (x[:, 0], one, values), (x[:, 1], one, values)), 1)


def random(module: nn.Module) -> nn.Module:
    for number, parameter in enumerate(module.double().parameters()):
        parameter.data = 0.3 * drawn(*parameter.shape, seed=number)
    return module


@pytest.mark.parametrize("distance", [0, 2, 14])
def test_attention(monkeypatch: pytest.MonkeyPatch, distance: int) -> None:
    """With clipped offsets, with all of them, and without relative position."""
    for module in (centred, forward_along):
        monkeypatch.setattr(module, "HALF", torch.float64)
    side, heads = 4, 2
    attention = random(Attention(24, Block(heads=heads, head_dim=8, hidden=4, relative_distance=distance), side, False))
    assert isinstance(attention, Attention)
    position = None
    if attention.relative is not None:
        tables = {name: table.detach() for name, table in attention.relative.named_parameters()}
        position = centred.relative(side, distance, **tables)
    layers = [
        centred.Layer(name, layer.weight.detach(), layer.weight.detach(), layer.bias.detach())
        for name, layer in (("qkv", attention.qkv), ("proj", attention.proj))
    ]
    x = drawn(3, 2, side**2 + 1, 24, seed=9)
    normal = forward_along.normal_sums(x, EPS)
    found = forward_along.attention_forward(x, normal, layers[0], layers[1], heads, position)
    torch.testing.assert_close(found, by_definition(attention, x), rtol=1e-9, atol=1e-9)


def test_mlp() -> None:
    mlp = random(Mlp(6, 10))
    assert isinstance(mlp, Mlp)
    x = drawn(3, 2, 11, 6, seed=9)
    given = [(layer.weight.detach(), layer.bias.detach()) for layer in (mlp.fc1, mlp.fc2)]
    found = forward_along.mlp_forward(x, forward_along.normal_sums(x, EPS), *given)
    torch.testing.assert_close(found, by_definition(mlp, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("on", [True, False])
def test_synflow_keeps_its_digits(monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    """At full size, with attention in bfloat16 and without; what a network reads is known as well as is said."""
    monkeypatch.setattr(batched, "pays", lambda device: on)
    networks = sample("autoformer-micro", 6, seed=2)
    scorer = ProxyEvaluator(["synflow"], geometry=Geometry(image_size=224, classes=10), seed=0, device="cpu")
    exact = [scorer.one(settings).scores["synflow"] for settings in networks]
    found = [score.scores["synflow"] for score in scorer(networks)]
    assert found == pytest.approx(exact, rel=1e-4) and found != exact


def test_what_float32_leaves_open_float64_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finer pass of those networks alone; where none is fine enough, the definition."""
    passes: list[tuple[torch.dtype, bool, int]] = []
    real = group_pass.GroupPass.run

    def counted(self: group_pass.GroupPass, *arguments: Any) -> None:
        passes.append((self.dtype, self.centred, self.count))
        real(self, *arguments)

    monkeypatch.setattr(group_pass.GroupPass, "run", counted)
    monkeypatch.setattr(batched, "pays", lambda device: True)
    networks = sample("autoformer-micro", 40, seed=2)
    networks = [one for one in networks if one["embed_dim"] == networks[0]["embed_dim"]][:3]
    assert len(networks) == 3
    scorer = ProxyEvaluator(["synflow"], geometry=Geometry(image_size=224, classes=10), seed=0, device="cpu")
    exact = [scorer.one(settings).scores["synflow"] for settings in networks]
    steps = [(torch.float32, True), (torch.float32, False), (torch.float64, False)]
    for tolerance, count, error in ((1.0, 1, 1e-4), (1e-9, 3, 1e-7), (0.0, 3, 0.0)):
        passes.clear()
        monkeypatch.setattr(takers.SynapticFlow, "TOLERANCE", tolerance)
        found = [score.scores["synflow"] for score in scorer(networks)]
        assert passes == [(*step, 3) for step in steps[:count]]
        assert found == pytest.approx(exact, rel=error, abs=0.0)
