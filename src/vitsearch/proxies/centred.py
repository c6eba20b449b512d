"""Layers for tokens that are nearly alike, with their matrix products in bfloat16.

In the absolute network on an image of ones a token differs from the mean of all by about a tenth. So with

    x = mean + rest,        x W^T = mean W^T + rest W^T

the first product, one row for each network, is one of float32; the second, with all the work, goes through the
processor's units for bfloat16, which are twice as fast, and their rounding of one part in 500 is one of the rest alone.
In attention nothing but the rest of keys and values counts: softmax does not see what it adds to a whole row of logits,
and its rows sum up to one. Scores of DSS keep five digits, where bfloat16 without the means would leave three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch.models.layers import FusedMaps, fused_maps
from vitsearch.proxies.reporting import LinearReport

HALF = torch.bfloat16


def pays(device: torch.device) -> bool:
    """Whether a processor multiplies bfloat16 faster than float32."""
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()


def rest_of(x: Tensor, mean: Tensor) -> Tensor:
    return (x - mean).to(HALF)


class CentredLinear(torch.autograd.Function):
    """As `TracedLinear`, over tokens [n, rows, S, channels]. `half` is the weight in bfloat16."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, half: Tensor, bias: Tensor, report: LinearReport, keep: bool
    ) -> Tensor:
        mean = x.mean(2, keepdim=True)
        y = F.linear(rest_of(x, mean), half).to(x.dtype).add_(F.linear(mean, weight, bias))
        ctx.save_for_backward(x, weight, half, y if keep else None)
        ctx.report = report
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, half, y = ctx.saved_tensors
        (dy,) = gradients
        ctx.report(x, dy, y)
        mean = dy.mean(2, keepdim=True)
        return (rest_of(dy, mean) @ half).to(dy.dtype).add_(mean @ weight), None, None, None, None, None


class Relative(NamedTuple):
    """The relative position as channels beside those of q, k and v: see `RelativePosition`."""

    maps: FusedMaps
    keys: Tensor
    """[V, D]: the vectors of all offsets, of keys, in bfloat16."""
    values: Tensor

    def beside(self, by_vector: Tensor) -> Tensor:
        """[n, H, S, V], of a query with all vectors, to [n, H, S, E], those it needs for each cell."""
        return by_vector.gather(-1, self.maps.of_cell.expand(*by_vector.shape[:2], -1, -1))

    def by_vector(self, beside: Tensor) -> Tensor:
        """The way back, which is its gradient too: no place but the spare one is read twice."""
        return beside.gather(-1, self.maps.of_vector.expand(*beside.shape[:2], -1, -1))


def relative(side: int, distance: int, tables: Mapping[str, Tensor]) -> Relative:
    """From the tables `key_rows`, `key_columns`, `value_rows` and `value_columns`."""
    maps = fused_maps(side, distance, tables["key_rows"].shape[1])

    def vectors(kind: str) -> Tensor:
        rows, columns = tables[f"{kind}_rows"], tables[f"{kind}_columns"]
        choice = maps.offset_choice.to(rows.dtype)
        found = torch.cat([choice @ rows, choice @ columns, rows[:1] + columns[:1]])
        return F.pad(found, (0, 0, 0, maps.own.shape[1] - len(found)))

    return Relative(maps, vectors("key").to(HALF), vectors("value"))


class CentredAttention(torch.autograd.Function):
    """softmax(q k^T scale) v of [n, S, 3, H, D], as [n, H, S, D]. The relative position is more channels of q, k and v.

    With a bar for means over tokens, a' = a - bar a, and P = softmax(L), whose rows sum up to one,

        L_ij = scale q_i . k'_j      + what is the same for all j
        out  = bar v + (P - 1 / S) v'
        dP   = dout_i . v'_j         + what is the same for all j, which softmax's gradient does not see
        dv   = (sum_i P_ij) bar dout + (P - 1 / S)^T dout'
        dq   = dL k',       dk = dL^T q       as the rows of dL sum up to zero
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, scale: float, position: Relative | None) -> Tensor:
        tokens, width, dtype = qkv.shape[1], qkv.shape[-1], qkv.dtype
        mean = qkv.mean(1, keepdim=True)
        mean[:, :, 0] = 0  # of queries nothing is left out
        q, k, v = rest_of(qkv, mean).permute(2, 0, 3, 1, 4)
        if position is not None:
            cells = position.maps.key_cells.to(dtype)
            cell_mean = cells.mean(0)
            own_cells = rest_of(cells, cell_mean).expand(*k.shape[:-1], -1)
            q = torch.cat([q, position.beside(q @ position.keys.T)], -1)
            k, v = torch.cat([k, own_cells], -1), torch.cat([v, own_cells], -1)
        weights = (q @ k.mT).to(dtype).mul_(scale).softmax(-1)
        uneven = (weights - 1 / tokens).to(HALF)
        ctx.save_for_backward(q, k, v, weights, uneven)
        ctx.scale, ctx.width, ctx.position = scale, width, position
        both = uneven @ v
        out = both[..., :width].to(dtype).add_(mean[:, :, 2].transpose(1, 2))
        if position is not None:
            mass = both[..., width:].to(dtype).add_(cell_mean)
            out += (position.by_vector(mass) + position.maps.own) @ position.values
        return cast(Tensor, out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, uneven = ctx.saved_tensors
        (gradient,), width, position = gradients, ctx.width, cast(Relative | None, ctx.position)
        dtype, half = gradient.dtype, gradient.to(HALF)
        if position is not None:
            half = torch.cat([half, position.beside(half @ position.values.to(HALF).T)], -1)
        of_logits = torch._softmax_backward_data((half @ v.mT).to(dtype), weights, -1, dtype)
        half = of_logits.mul_(ctx.scale).to(HALF)
        both = half @ k
        dq = both[..., :width]
        if position is not None:
            dq = dq + position.by_vector(both[..., width:]) @ position.keys
        dk = half.mT @ q[..., :width]
        mean = gradient.mean(-2, keepdim=True)
        dv = (uneven.mT @ rest_of(gradient, mean)).to(dtype).add_(weights.sum(-2)[..., None] * mean)
        return torch.stack([one.transpose(1, 2).to(dtype) for one in (dq, dk, dv)], 2), None, None
