"""The layer norm of narrow tokens on a GPU, in the precision that the layer behind it wants (norm_kernels.py).

Torch's kernels have a block of threads for every token, which is mostly idle where a token has a hundred channels, and
under autocast they write float32, which is read again to be rounded. Gradients of weight and bias are added up in a
fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from vitsearch.models.norm_kernels import backward_kernel, forward_kernel

TILE = 4096
"""Numbers of a program's tile."""
PROGRAMS = 1024
"""At most, on the way back: each leaves sums for the weight and the bias."""


def sizes(width: int, learned: bool) -> dict[str, Any]:
    padded = triton.next_power_of_2(width)
    return {"tile": max(1, TILE // padded), "padded": padded, "learned": learned, "num_warps": 4}


def norm_there(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Of contiguous x [..., C]: the norm, and what the way back needs, the mean of each token and one over its root."""
    width = x.shape[-1]
    tokens, how = x.numel() // width, sizes(width, weight is not None)
    out = torch.empty_like(x, dtype=dtype)
    mean, rate = x.new_empty(tokens, dtype=torch.float32), x.new_empty(tokens, dtype=torch.float32)
    programs = triton.cdiv(tokens, how["tile"])
    forward_kernel[(programs,)](x, weight, bias, out, mean, rate, tokens, width, eps, **how)
    return out, mean, rate


def norm_back(
    gradient: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rate: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of x, of the weight and of the bias."""
    width = x.shape[-1]
    tokens, how = x.numel() // width, sizes(width, weight is not None)
    dx, tiles = torch.empty_like(x), triton.cdiv(tokens, how["tile"])
    each = triton.cdiv(tiles, PROGRAMS)
    programs = triton.cdiv(tiles, each)
    sums = None if weight is None else x.new_empty(2, programs, width, dtype=torch.float32)
    of_weight, of_bias = (None, None) if sums is None else sums
    gradient = gradient.contiguous()
    backward_kernel[(programs,)](x, weight, gradient, mean, rate, dx, of_weight, of_bias, tokens, width, each, **how)
    if sums is None or weight is None:
        return dx, None, None
    dweight, dbias = sums.sum(1).to(weight.dtype)
    return dx, dweight, dbias


class Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        out, mean, rate = norm_there(x, weight, bias, eps, dtype)
        ctx.save_for_backward(x, weight, mean, rate)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rate = ctx.saved_tensors
        return *norm_back(gradients[0], x, weight, mean, rate), None, None
