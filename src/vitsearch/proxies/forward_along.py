"""Half blocks with derivatives along the scaling of all parameters by 1 + a, for a pass that does not go back.

A value z has the derivative z_a; z+ is their sum. A layer whose parameters are scaled has (W z + b)_a = W z+ + b, so
that values and sums go through one product, side by side: tensors are [n, 2, S, C].
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitsearch.models.products import linear
from vitsearch.proxies.along import norm_backward
from vitsearch.proxies.centred import HALF, Attended, Layer, Relative, apart, together


def normal_sums(x: Tensor, eps: float) -> Tensor:
    """From x and x_a to y and y+ of a layer norm with the weight 1 + a; y_a = P x_a + y, as `along.py` has it."""
    value, derivative = (half.contiguous() for half in x.unbind(1))
    y, mean, scale = torch.native_layer_norm(value, value.shape[-1:], None, None, eps)
    sums = norm_backward(derivative, value, mean, scale).add_(y, alpha=2)
    return torch.stack([y, sums], 1)


def mlp_forward(x: Tensor, normal: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """x + MLP(normal), each layer with its weight and bias, and its derivative."""
    hidden = linear(normal, *first)
    value, derivative = hidden.unbind(1)
    torch.ops.aten.gelu_backward.grad_input(derivative, value, grad_input=derivative)
    derivative += torch.ops.aten.gelu_(value)
    return linear(hidden, *second).add_(x)


def attention_forward(
    x: Tensor, normal: Tensor, qkv: Layer, proj: Layer, heads: int, position: Relative | None
) -> Tensor:
    """x + attention(normal) and its derivative, around the mean over tokens as in `centred.py`."""
    base, rest = qkv.there(*apart(normal.flatten(0, 1)))
    out = together(*proj.there(*attended(base, rest.view(*x.shape[:3], -1), heads, position)))
    return out.view_as(x).add_(x)


def attended(base: Tensor, rest: Tensor, heads: int, position: Relative | None) -> tuple[Tensor, Tensor]:
    """From q, k, v and their derivatives, [2n, 3C] and [n, 2, S, 3C], to out and out+, [2n, C] and [2n S, C].

    With the names of `Attended`, where rows of P_a sum up to zero,

        P_a  = P (L_a - P L_a),     L_a = scale (q_a k' + q k'_a)       + what is the same for all keys
        out+ = bar v+ + (P - 1 / S) v'+ + P_a v'
    """
    (base, base_a), (rest, rest_a) = base.view(len(rest), 2, -1).unbind(1), rest.unbind(1)
    of = Attended(base, rest, heads, position)
    (q_a, k_a, v_a), (of_queries, _, of_values) = of.split(base_a, rest_a)
    width = of.width

    left = of.widened(q_a, of_queries * of.scale, of.scale)
    if position is not None:  # vectors of offsets are scaled too
        left[..., width:] = position.beside(left[..., :width], position.keys).add_(of.q[..., width:])
    left = torch.cat([left, of.q[..., :width]], -1)
    right = torch.cat([of.k, k_a.flatten(0, 1)], -1)
    weights = torch.bmm(of.q, of.k.mT).to(base.dtype).softmax(-1)
    uneven = (weights - 1 / of.tokens).to(HALF)
    logits = torch.bmm(left, right.mT).to(base.dtype)
    derivative = torch._softmax_backward_data(logits, weights, -1, base.dtype).to(HALF)

    values = of.v * 2  # as those of offsets, each with its own derivative
    torch.add(of.v[..., :width], v_a.flatten(0, 1), out=values[..., :width])
    both = torch.bmm(uneven, values).baddbmm_(derivative, of.v)
    first = of.finished(torch.bmm(uneven, of.v), of.of_values)
    pairs = zip(first, of.finished(both, of.of_values + of_values, 2), strict=True)
    means, others = (torch.stack([one.view(len(rest), -1) for one in pair], 1) for pair in pairs)
    return means.flatten(0, 1), others.view(-1, means.shape[-1])
