"""Attention with relative position in half precision, each tensor written once, where the next product wants it.

What torch would do by itself for `GroupPass.attention` copies queries, keys and values several times each way: a fifth
of the time on a GPU. Shapes: n networks, rows, S tokens, of which the first `tokens` count; H heads of width D; C
places of a key (`cells`), O offsets in the tables. Queries are scaled from the beginning, so that

    e = choice (q T_k^T),   p = softmax([q e] [k c]^T),   [o m] = p [v c],   out = o + (choice^T m) T_v

with a matrix `choice` for each token. The gradients of the tables are reported, not formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch.proxies.reporting import LinearReport


@dataclass(frozen=True)
class Relative:
    """Tables of keys and of values [O, D], what is added to the products with the former, and constants."""

    keys: Tensor
    added: Tensor | None
    values: Tensor
    choice: Tensor
    """[S, O, C]."""
    cells: Tensor
    """[S, C]."""
    on_keys: LinearReport
    on_values: LinearReport
    """Who hears of (X, dY) of the tables."""


class RoughAttention(torch.autograd.Function):
    """[n, rows, S, 3 H D] -> [n, rows, tokens, H D]."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, tokens: int, scale: float, relative: Relative) -> Tensor:
        networks, rows, every, _ = qkv.shape
        qkv = qkv.reshape(networks, rows, every, 3, heads, -1).permute(3, 0, 1, 4, 2, 5)  # [3, n, rows, H, S, D]
        width, places = qkv.shape[-1], relative.cells.shape[1]
        q, k, v = qkv.new_empty(3, *qkv.shape[1:-1], width + places)
        torch.mul(qkv[0], scale, out=q[..., :width])
        added = None if relative.added is None else relative.added * scale
        q[..., width:] = per_token(F.linear(q[..., :width], relative.keys, added), relative.choice)
        for wide, own in ((k, qkv[1]), (v, qkv[2])):
            wide[..., :width], wide[..., width:] = own, relative.cells
        p = matrices(q).bmm(matrices(k).mT).softmax(-1)
        out = p.bmm(matrices(v)).view_as(v)
        mass = per_token(out[..., width:], relative.choice.mT)
        of_values = mass @ relative.values
        found = qkv.new_empty(networks, rows, tokens, heads, width)
        torch.add(out[..., :tokens, :width], of_values[..., :tokens, :], out=found.transpose(2, 3))
        ctx.save_for_backward(q, k, v, p, mass)
        ctx.tokens, ctx.scale, ctx.relative = tokens, scale, relative
        return found.flatten(-2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p, mass = ctx.saved_tensors
        relative: Relative = ctx.relative
        networks, rows, heads, every, _ = q.shape
        width = relative.keys.shape[1]
        back = torch.empty_like(v)
        given = gradients[0].reshape(networks, rows, ctx.tokens, heads, width).transpose(2, 3)
        back[..., : ctx.tokens, :width], back[..., ctx.tokens :, :] = given, 0
        relative.on_values(mass, back[..., :width], None)
        back[..., width:] = per_token(F.linear(back[..., :width], relative.values), relative.choice)
        ds = torch.ops.aten._softmax_backward_data(matrices(back).bmm(matrices(v).mT), p, -1, p.dtype)
        dqkv = q.new_empty(networks, rows, every, 3, heads, width)
        dq, dk, dv = dqkv.permute(3, 0, 1, 4, 2, 5)
        dk.copy_(ds.mT.bmm(matrices(q[..., :width])).view(dk.shape))
        dv.copy_(p.mT.bmm(matrices(back[..., :width])).view(dv.shape))
        wide = ds.bmm(matrices(k)).view_as(k)
        by_offset = per_token(wide[..., width:], relative.choice.mT)
        relative.on_keys(q[..., :width], by_offset, None)
        torch.add(wide[..., :width], by_offset @ relative.keys, out=dq)
        dq *= ctx.scale
        return dqkv.flatten(3), None, None, None, None


def matrices(x: Tensor) -> Tensor:
    return x.flatten(0, 2)


def per_token(x: Tensor, choice: Tensor) -> Tensor:
    """[..., S, a] times [S, a, b]: another matrix for each token."""
    lead = x.shape[:-2]
    return (x.flatten(0, -3).transpose(0, 1) @ choice).transpose(0, 1).reshape(*lead, x.shape[-2], choice.shape[-1])
