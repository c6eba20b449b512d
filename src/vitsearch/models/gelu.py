"""GELU with the bias of the layer before it, as one kernel each way (gelu_kernels.py).

    out = u Phi(u), u = x + bias;    slope = Phi(u) + u phi(u);    dx = dout slope, dbias = its sum over tokens

The hidden tokens of an MLP are the largest tensors of a block. A compiler writes their gradient and reads it again to
sum it up; here both are done at once, and what is kept for the way back is the slope, so that nothing has to be
computed there. Phi is formula 7.1.26 of Abramowitz and Stegun, right to 1.5e-7: the error function of CUDA's library
takes longer than reading and writing.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from vitsearch.models.gelu_kernels import backward_kernel, forward_kernel

WIDEST, THERE, BACK, EACH = 1024, 4096, 8192, 64
"""Columns of a tile at most: whole rows, since parts of them do not begin where memory does. Numbers of a tile on
either way, and rows that a program adds up."""


def biased_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x + bias), for tokens [..., C] and a bias [C]."""
    out: Tensor = gelu_there(x, bias)[0]
    return out


def tile_of(columns: int, numbers: int) -> dict[str, int]:
    wide = min(WIDEST, triton.next_power_of_2(columns))
    return {"columns": columns, "wide": wide, "high": min(EACH, numbers // wide), "num_warps": 8}


@torch.library.custom_op("vitsearch::gelu_there", mutates_args=())
def gelu_there(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Also the slope, which the way back needs."""
    x = x.contiguous()
    out, slope = torch.empty_like(x), torch.empty_like(x)
    rows, tile = x.numel() // x.shape[-1], tile_of(x.shape[-1], THERE)
    programs = triton.cdiv(rows, tile["high"]), triton.cdiv(x.shape[-1], tile["wide"])
    forward_kernel[programs](x, bias.contiguous(), out, slope, rows, **tile)
    return out, slope


@gelu_there.register_fake
def _(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


@torch.library.custom_op("vitsearch::gelu_back", mutates_args=())
def gelu_back(gradient: Tensor, slope: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    gradient, columns = gradient.contiguous(), slope.shape[-1]
    rows, tile, dx = slope.numel() // columns, tile_of(columns, BACK), torch.empty_like(slope)
    programs = triton.cdiv(rows, EACH), triton.cdiv(columns, tile["wide"])
    parts = slope.new_empty(programs[0], columns, dtype=torch.float32)
    backward_kernel[programs](gradient, slope, dx, parts, rows, each=EACH, **tile)
    return dx, parts.sum(0).to(bias.dtype)


@gelu_back.register_fake
def _(gradient: Tensor, slope: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return slope.new_empty(slope.shape), bias.new_empty(bias.shape)


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], inputs[1])


def _back(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = gelu_back(gradient, *ctx.saved_tensors)
    return found


gelu_there.register_autograd(_back, setup_context=_remember)
