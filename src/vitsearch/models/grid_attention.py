"""Attention with relative position over a small grid and a class token, as one kernel each way (grid_kernels.py).

torch's fused attention works in tiles of 64 or 128 tokens: of 65, one beyond a tile, half of the work is padding, and
the channels of the relative position have to be copied beside queries, keys and values. Here the grid is one tile, the
class token goes beside it as vectors, and q, k and v are read where `qkv` left them.

S tokens, the class token first; A [V, D] and B [V, D] the vectors of keys and values (`RelativePosition.all_vectors`):

    G = q A^T,   logit_ij = (q_i . k_j + sum of G_i over the cells of key j) scale     (`FusedMaps.of_cell`)
    out_i = sum_j p_ij v_j + M_i B,    M_i the mass of p_i on the vectors of its cells

`attend` and `attend_back` are operators of torch, so that compiled layers call them and CUDA graphs record them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from vitsearch.models.grid_kernels import backward_kernel, forward_kernel


def relative_attention(
    qkv: Tensor, key_vectors: Tensor, value_vectors: Tensor, cells: Tensor, of_cell: Tensor, scale: float
) -> Tensor:
    """[B, S, 3, H, D] -> [B, S, H, D]. `cells` and `of_cell` are those of `FusedMaps`."""
    out: Tensor = attend(qkv, key_vectors, value_vectors, cells.to(qkv.dtype), of_cell, scale)[0]
    return out


def by_head(x: Tensor) -> Tensor:
    """[B, S, H, D] -> [H, B S, D], a view."""
    return x.permute(2, 0, 1, 3).flatten(1, 2)


def sizes(qkv: Tensor, vectors: Tensor, cells: Tensor) -> dict[str, Any]:
    tokens, stride = cells.shape
    side = round((tokens - 1) ** 0.5)
    padded = max(16, triton.next_power_of_2(2 * side))
    precision = "ieee" if qkv.dtype == torch.float32 else "tf32"
    found = {"patches": tokens - 1, "width": qkv.shape[-1], "vectors": len(vectors), "places": padded, "stride": stride}
    return found | {"class_cell": 2 * side, "precision": precision, "num_warps": 4}


@torch.library.custom_op("vitsearch::attend", mutates_args=())
def attend(
    qkv: Tensor, key_vectors: Tensor, value_vectors: Tensor, cells: Tensor, of_cell: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Also what the way back needs: products of queries with vectors, mass on vectors, logarithms of sums."""
    qkv = qkv.contiguous()
    images, tokens, _, heads, width = qkv.shape
    products = by_head(qkv[:, :, 0]) @ key_vectors.T.to(qkv.dtype)  # [H, B S, V]
    out, lse = qkv.new_empty(images, tokens, heads, width), qkv.new_empty(images, heads, tokens, dtype=torch.float32)
    mass = torch.zeros_like(products)
    options = sizes(qkv, key_vectors, cells)
    forward_kernel[(images * heads,)](qkv, products, cells, of_cell, out, mass, lse, scale, images, heads, **options)
    mass.view(heads, images, tokens, -1)[:, :, 0, 2 * options["class_cell"] - 2] = 1  # all that the class token pays
    rows = by_head(out)
    torch.baddbmm(rows, mass, value_vectors.to(qkv.dtype).expand(heads, -1, -1), out=rows)
    return out, products, mass, lse


@attend.register_fake
def _(
    qkv: Tensor, key_vectors: Tensor, value_vectors: Tensor, cells: Tensor, of_cell: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, tokens, _, heads, width = qkv.shape
    products = qkv.new_empty(heads, images * tokens, len(key_vectors))
    sums = qkv.new_empty(images, heads, tokens, dtype=torch.float32)
    return qkv.new_empty(images, tokens, heads, width), products, torch.empty_like(products), sums


@torch.library.custom_op("vitsearch::attend_back", mutates_args=())
def attend_back(
    gradient: Tensor,
    qkv: Tensor,
    key_vectors: Tensor,
    value_vectors: Tensor,
    cells: Tensor,
    of_cell: Tensor,
    products: Tensor,
    mass: Tensor,
    lse: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    qkv, gradient = qkv.contiguous(), gradient.contiguous()
    images, _, _, heads, _ = qkv.shape
    rows = by_head(gradient)
    dmass = rows @ value_vectors.T.to(qkv.dtype)
    dqkv, dproducts = torch.empty_like(qkv), torch.zeros_like(products)
    arguments = (qkv, products, cells, of_cell, lse, gradient, dmass, dqkv, dproducts, scale, images, heads)
    backward_kernel[(images * heads,)](*arguments, **sizes(qkv, key_vectors, cells))
    queries = by_head(dqkv[:, :, 0])
    torch.baddbmm(queries, dproducts, key_vectors.to(qkv.dtype).expand(heads, -1, -1), out=queries)
    of_keys, of_values = (x.mT @ y for x, y in ((dproducts, by_head(qkv[:, :, 0])), (mass, rows)))
    return dqkv, of_keys.sum(0, dtype=key_vectors.dtype), of_values.sum(0, dtype=value_vectors.dtype)


@attend_back.register_fake
def _(
    gradient: Tensor,
    qkv: Tensor,
    key_vectors: Tensor,
    value_vectors: Tensor,
    cells: Tensor,
    of_cell: Tensor,
    products: Tensor,
    mass: Tensor,
    lse: Tensor,
    scale: float,
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
    found = attend_back(gradient, *ctx.saved_tensors, ctx.scale)
    return *found, None, None, None


attend.register_autograd(_back, setup_context=_remember)
