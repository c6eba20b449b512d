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

BLOCK = 2048
WIDE, HIGH, EACH = 256, 16, 512
"""Columns and rows that go through at once, and rows that one program adds up."""


def biased_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x + bias), for tokens [..., C] and a bias [C]."""
    out: Tensor = gelu_there(x, bias)[0]
    return out


@torch.library.custom_op("vitsearch::gelu_there", mutates_args=())
def gelu_there(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Also the slope, which the way back needs."""
    x = x.contiguous()
    out, slope = torch.empty_like(x), torch.empty_like(x)
    sizes = {"columns": x.shape[-1], "block": BLOCK}
    forward_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, bias.contiguous(), out, slope, x.numel(), **sizes)
    return out, slope


@gelu_there.register_fake
def _(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


@torch.library.custom_op("vitsearch::gelu_back", mutates_args=())
def gelu_back(gradient: Tensor, slope: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    gradient, columns = gradient.contiguous(), slope.shape[-1]
    rows, dx = slope.numel() // columns, torch.empty_like(slope)
    programs = triton.cdiv(rows, EACH), triton.cdiv(columns, WIDE)
    parts = slope.new_empty(programs[0], columns, dtype=torch.float32)
    sizes = {"columns": columns, "wide": WIDE, "high": HIGH, "each": EACH}
    backward_kernel[programs](gradient, slope, dx, parts, rows, **sizes)
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
