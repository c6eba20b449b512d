"""Layers for tokens that are nearly alike, with their matrix products in bfloat16.

In the absolute network on an image of ones a token differs from the mean of all by about a tenth. So with

    x = mean + rest,        x W^T = mean W^T + rest W^T

the first product, one row for each network, is one of float32; the second, with all the work, goes through the
processor's units for bfloat16, which are twice as fast, and their rounding of one part in 500 is one of the rest alone.
In attention nothing but the rest of keys and values counts: softmax does not see what it adds to a whole row of logits,
and its rows sum up to one. Scores of DSS keep five digits, where bfloat16 without the means would leave three.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch.models.layers import FusedMaps, Rearranged, fused_maps
from vitsearch.proxies.reporting import LinearReport

HALF = torch.bfloat16


def pays(device: torch.device) -> bool:
    """Whether a processor multiplies bfloat16 faster than float32."""
    return device.type == "cpu" and any(
        getattr(torch.cpu, name, lambda: False)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    )


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
    """[V, D]: the vectors of all offsets, of keys."""
    values: Tensor


def relative(side: int, distance: int, tables: dict[str, Tensor]) -> Relative:
    """From the tables `key_rows`, `key_columns`, `value_rows` and `value_columns`."""
    maps = fused_maps(side, distance, tables["key_rows"].shape[1])

    def vectors(rows: Tensor, columns: Tensor) -> Tensor:
        found = torch.cat([maps.offset_choice @ rows, maps.offset_choice @ columns, rows[:1] + columns[:1]])
        return F.pad(found, (0, 0, 0, maps.own.shape[1] - len(found)))

    keys, values = (vectors(tables[f"{kind}_rows"], tables[f"{kind}_columns"]) for kind in ("key", "value"))
    return Relative(maps, keys, values)


def centred_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, position: Relative | None) -> Tensor:
    """softmax(q k^T scale) v over [n, H, S, D], with the relative position where there is one."""
    if position is None:
        nothing = q[..., :0]
        out: Tensor = CentredAttention.apply(q, nothing, k, v, nothing[0, 0], scale)
        return out
    maps = position.maps
    beside = Rearranged.apply(q @ position.keys.T, maps.of_cell, maps.of_vector)
    both: Tensor = CentredAttention.apply(q, beside, k, v, maps.key_cells, scale)
    out, mass = both[..., : v.shape[-1]], both[..., v.shape[-1] :]
    by_vector: Tensor = Rearranged.apply(mass, maps.of_vector, maps.of_cell) + maps.own
    return out + by_vector @ position.values


class CentredAttention(torch.autograd.Function):
    """With more channels of q and, the same for all keys and for all values, of k and v: `cells` [S, E].

    With a bar for means over tokens, a' = a - bar a, and P = softmax(L), whose rows sum up to one,

        L_ij = scale (bar q . k_j + q'_i . k'_j)  + what is the same for all j
        out  = bar v + (P - 1 / S) v'
        dP   = bar dout . v_j + dout'_i . v'_j    + what is the same for all j, which softmax's gradient does not see
        dv   = (sum_i P_ij) bar dout + (P - 1 / S)^T dout'
        dq   = dL k',       dk = (sum_i dL_ij) bar q + dL^T q'       as the rows of dL sum up to zero
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, beside: Tensor, k: Tensor, v: Tensor, cells: Tensor, scale: float) -> Tensor:
        tokens, width = q.shape[-2:]
        mean_q, mean_beside, mean_v = (one.mean(-2, keepdim=True) for one in (q, beside, v))
        cell_mean = cells.mean(0)
        own_cells = rest_of(cells, cell_mean).expand(*k.shape[:-1], -1)
        rest_q = torch.cat([rest_of(q, mean_q), rest_of(beside, mean_beside)], -1)
        rest_k = torch.cat([rest_of(k, k.mean(-2, keepdim=True)), own_cells], -1)
        rest_v = torch.cat([rest_of(v, mean_v), own_cells], -1)
        base = mean_q @ k.mT + mean_beside @ cells.T
        logits = (rest_q @ rest_k.mT).to(q.dtype).add_(base).mul_(scale)
        weights = logits.softmax(-1)
        uneven = (weights - 1 / tokens).to(HALF)
        mean = torch.cat([mean_v, cell_mean.expand(*mean_v.shape[:-1], -1)], -1)
        ctx.save_for_backward(mean_q, rest_q, rest_k, v, rest_v, cells, weights, uneven)
        ctx.scale, ctx.width = scale, width
        return (uneven @ rest_v).to(q.dtype).add_(mean)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        mean_q, rest_q, rest_k, v, rest_v, cells, weights, uneven = ctx.saved_tensors
        (gradient,), width, dtype = gradients, ctx.width, v.dtype
        mean = gradient.mean(-2, keepdim=True)
        rest = rest_of(gradient, mean)
        of_values, of_cells = mean[..., :width], mean[..., width:]
        base = of_values @ v.mT + of_cells @ cells.T
        of_weights = (rest @ rest_v.mT).to(dtype).add_(base)
        of_logits = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype).mul_(ctx.scale)
        half = of_logits.to(HALF)
        both = (half @ rest_k).to(dtype)
        dk = (half.mT @ rest_q[..., :width]).to(dtype).add_(of_logits.sum(-2)[..., None] * mean_q)
        dv = (uneven.mT @ rest[..., :width]).to(dtype).add_(weights.sum(-2)[..., None] * of_values)
        return both[..., :width], both[..., width:], dk, dv, None, None
