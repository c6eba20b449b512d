"""Layers against slow definitions written out in loops, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vitsearch import architecture as blueprint
from vitsearch.models import kernels, layers
from vitsearch.models.layers import Attention, WindowAttention, attend


def randomised(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data.normal_(0, 0.5, generator=generator)
    return module.double()


def relative_row(query: int, key: int, side: int, distance: int, axis: int) -> int:
    """Row of a relative table for two tokens, 0 being the class token."""
    if query == 0 or key == 0:
        return 0
    places = [divmod(token - 1, side)[axis] for token in (query, key)]
    return max(-distance, min(distance, places[1] - places[0])) + distance + 1


def slow_attention(module: Attention, x: Tensor, heads: int, head_dim: int, side: int, distance: int) -> Tensor:
    """AutoFormer's attention, one pair of tokens at a time."""
    tokens = x.shape[1]
    inner = heads * head_dim
    relative = module.relative
    qkv = x[0] @ module.qkv.weight.T + module.qkv.bias
    out = torch.zeros(tokens, inner, dtype=torch.float64)
    for head in range(heads):
        part = slice(head * head_dim, (head + 1) * head_dim)
        q, k, v = (qkv[:, start * inner :][:, part] for start in range(3))
        for i in range(tokens):
            logits, values = [], []
            for j in range(tokens):
                key, value = k[j].clone(), v[j].clone()
                if relative is not None:
                    row, column = (relative_row(i, j, side, distance, axis) for axis in (0, 1))
                    key += relative.key_rows[row] + relative.key_columns[column]
                    value += relative.value_rows[row] + relative.value_columns[column]
                logits.append(q[i] @ key / math.sqrt(head_dim))
                values.append(value)
            weights = torch.softmax(torch.stack(logits), 0)
            out[i, part] = (weights[:, None] * torch.stack(values)).sum(0)
    return out @ module.proj.weight.T + module.proj.bias


@pytest.mark.parametrize("distance", [0, 2, 14])
@pytest.mark.parametrize("side", [1, 4])
def test_attention_equals_its_definition(distance: int, side: int) -> None:
    block = blueprint.Attention(heads=2, head_dim=6, hidden=8, relative_distance=distance)
    module = randomised(Attention(10, block, side))
    assert isinstance(module, Attention)
    x = torch.randn(1, side * side + 1, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        expected = slow_attention(module, x, 2, 6, side, distance)
        for fused in (True, False):
            module.fused = fused
            torch.testing.assert_close(module(x)[0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("in_steps", [False, True])
@pytest.mark.parametrize("kind", ["global", "relative", "window"])
def test_fused_and_explicit_forms_have_the_same_gradients(
    kind: str, in_steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "is_faster_in_steps", lambda q, tokens: in_steps)
    if kind == "window":
        window = blueprint.WindowAttention(heads=2, head_dim=6, hidden=8, window=4, shifted=True)
        module: torch.nn.Module = WindowAttention(10, window, 6)
        tokens = 36
    else:
        distance = 3 if kind == "relative" else 0
        module = Attention(10, blueprint.Attention(heads=2, head_dim=6, hidden=8, relative_distance=distance), 5)
        tokens = 26
    randomised(module)
    x = torch.randn(3, tokens, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = []
    for fused in (True, False):
        module.fused = fused
        gradients.append(torch.autograd.grad(module(x).pow(3).sum(), list(module.parameters())))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_attention_in_steps_is_for_bfloat16_on_a_processor_that_has_units_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 20, 8, generator=generator).bfloat16() for _ in range(3))
    few, many = 20, kernels.FEW_TOKENS + 1
    for has, expected in ((True, [True, False, False]), (False, [False] * 3)):
        monkeypatch.setattr(kernels, "multiplies_half", lambda has=has: has)
        asked = (q, few), (q, many), (q.float(), few)
        assert [kernels.is_faster_in_steps(*one) for one in asked] == expected
        exact = (q.double() @ k.double().mT / 8**0.5).softmax(-1) @ v.double()
        torch.testing.assert_close(attend(q, k, v, 8**-0.5).double(), exact, rtol=0, atol=0.03)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_blank_layers_draw_nothing(device: str) -> None:
    """They are layers of the very class, on the device of the hour, and the generator is where it was."""
    before = torch.random.get_rng_state()
    with torch.device(device):
        made = [layers.blank(torch.nn.Linear, 3, 4), layers.blank(torch.nn.Conv2d, 3, 4, 2, stride=2, bias=False)]
    assert [type(layer) for layer in made] == [torch.nn.Linear, torch.nn.Conv2d]
    assert all(parameter.device.type == device for layer in made for parameter in layer.parameters())
    assert torch.equal(before, torch.random.get_rng_state())
    made[0].reset_parameters()  # as of any layer
    assert torch.equal(before, torch.random.get_rng_state()) == (device == "meta")
    torch.random.set_rng_state(before)
