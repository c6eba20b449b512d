"""Attention with relative position over a small grid and a class token, as one kernel each way (grid_kernels.py).

torch's fused attention works in tiles of 64 or 128 tokens: of 65, one beyond a tile, half of the work is padding, and
the channels of the relative position have to be copied beside queries, keys and values. Here the grid is one tile, the
class token goes beside it, q, k and v are read where `qkv` left them, and what belongs to the relative position stays
in registers.

S tokens, the class token first; A [V, D] and B [V, D] the vectors of keys and values (`RelativePosition.all_vectors`):

    G = q A^T,   logit_ij = (q_i . k_j + sum of G_i over the cells of key j) scale     (`FusedMaps.of_cell`)
    out_i = sum_j p_ij v_j + M_i B,    M_i the mass of p_i on the vectors of its cells

`attend` and `attend_back` are operators of torch, so that compiled layers call them and CUDA graphs record them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitsearch.models.grid_kernels import backward_kernel, forward_kernel

REGISTERS = 128
"""Of a thread, at most, on the way there: so that four programs are on a multiprocessor, not three."""


def relative_attention(qkv: Tensor, key_vectors: Tensor, value_vectors: Tensor, scale: float) -> Tensor:
    """[B, S, 3, H, D] -> [B, S, H, D]."""
    out: Tensor = attend(qkv, key_vectors, value_vectors, scale)[0]
    return out


def sizes(qkv: Tensor) -> dict[str, Any]:
    side = round((qkv.shape[1] - 1) ** 0.5)
    precision = "ieee" if qkv.dtype == torch.float32 else "tf32"
    return {"side": side, "width": qkv.shape[-1], "places": max(16, 2 * side), "precision": precision, "num_warps": 4}


@torch.library.custom_op("vitsearch::attend", mutates_args=())
def attend(qkv: Tensor, key_vectors: Tensor, value_vectors: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Also the logarithms to base 2 of sums, [B, H, S], which the way back needs."""
    qkv = qkv.contiguous()
    images, tokens, _, heads, width = qkv.shape
    out, lse = qkv.new_empty(images, tokens, heads, width), qkv.new_empty(images, heads, tokens, dtype=torch.float32)
    vectors = key_vectors.contiguous(), value_vectors.contiguous()
    forward_kernel[(images * heads,)](qkv, *vectors, out, lse, scale, heads, **sizes(qkv), maxnreg=REGISTERS)
    return out, lse


@attend.register_fake
def _(qkv: Tensor, key_vectors: Tensor, value_vectors: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    images, tokens, _, heads, width = qkv.shape
    sums = qkv.new_empty(images, heads, tokens, dtype=torch.float32)
    return qkv.new_empty(images, tokens, heads, width), sums


@torch.library.custom_op("vitsearch::attend_back", mutates_args=())
def attend_back(
    gradient: Tensor, qkv: Tensor, key_vectors: Tensor, value_vectors: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    qkv, gradient = qkv.contiguous(), gradient.contiguous()
    images, tokens, _, heads, width = qkv.shape
    vectors = key_vectors.contiguous(), value_vectors.contiguous()
    dqkv, on_vectors = torch.empty_like(qkv), qkv.new_empty(2, images * tokens, heads * len(key_vectors))
    arguments = (qkv, *vectors, lse, gradient, dqkv, *on_vectors, scale, heads)
    backward_kernel[(images * heads,)](*arguments, **sizes(qkv))
    queries = qkv.view(images * tokens, 3 * heads * width)[:, : heads * width]
    rows = gradient.view(images * tokens, heads * width)
    of_keys, of_values = (
        summed_over_heads(part.mT @ x, heads).to(one.dtype)
        for part, x, one in zip(on_vectors, (queries, rows), vectors, strict=True)
    )
    return dqkv, of_keys, of_values


def summed_over_heads(products: Tensor, heads: int) -> Tensor:
    """[H V, H D] -> [V, D]: the products of each head with itself. The others are there because one large product is
    many times as fast as a narrow one for each head."""
    apart = products.view(heads, -1, heads, products.shape[1] // heads)
    return apart.diagonal(dim1=0, dim2=2).sum(-1, dtype=torch.float32)


@attend_back.register_fake
def _(
    gradient: Tensor, qkv: Tensor, key_vectors: Tensor, value_vectors: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    # contiguous, as the kernel's are: empty_like takes over strides of a transposed view
    return (
        qkv.new_empty(qkv.shape),
        key_vectors.new_empty(key_vectors.shape),
        value_vectors.new_empty(value_vectors.shape),
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output[1:])


def _back(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    return *attend_back(gradient, *ctx.saved_tensors, ctx.scale), None


attend.register_autograd(_back, setup_context=_remember)
