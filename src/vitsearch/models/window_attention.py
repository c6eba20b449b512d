"""Attention in (shifted) windows that are tiles of a GPU, as one kernel each way (window_kernels.py).

Spelled out, the map is rolled, cut into windows, put together and rolled back, and the bias with its mask is written
out for every window of every image. Here q, k and v are read where `qkv` left them, token by token from `place`, and a
window's bias is there once. Its gradient is added up in a fixed order.

`attend` and `attend_back` are operators of torch, so that compiled layers call them and CUDA graphs record them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from vitsearch.models.window_kernels import backward_kernel, forward_kernel

EACH = 16
"""Windows that one program goes back through."""


def window_attention(qkv: Tensor, bias: Tensor, mask: Tensor | None, place: Tensor, scale: float) -> Tensor:
    """[B, S, 3, H, D] -> [B, S, H, D].

    `bias` is [H, size, size], `mask` [windows, size, size] is added to it; `place` [windows, size] says which token is
    where in a window.
    """
    out: Tensor = attend(qkv, bias, mask, place, scale)[0]
    return out


def sizes(qkv: Tensor, place: Tensor) -> dict[str, Any]:
    size = place.shape[1]
    precision = "ieee" if qkv.dtype == torch.float32 else "tf32"
    found = {"size": size, "padded": max(16, triton.next_power_of_2(size)), "width": qkv.shape[-1]}
    return found | {"precision": precision, "num_warps": 1 if size <= 16 else 4}


def written_out(bias: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """[1 or windows, H, size, size]."""
    return (bias[None] if mask is None else bias + mask[:, None]).to(dtype).contiguous()


@torch.library.custom_op("vitsearch::attend_in_windows", mutates_args=())
def attend(qkv: Tensor, bias: Tensor, mask: Tensor | None, place: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Also the logarithms of sums, which the way back needs."""
    qkv, added = qkv.contiguous(), written_out(bias, mask, qkv.dtype)
    images, tokens, _, heads, width = qkv.shape
    out, lse = qkv.new_empty(images, tokens, heads, width), qkv.new_empty(images, tokens, heads, dtype=torch.float32)
    counts = (heads, len(place), len(added), tokens)
    forward_kernel[(images * len(place) * heads,)](qkv, place, added, out, lse, scale, *counts, **sizes(qkv, place))
    return out, lse


@attend.register_fake
def _(qkv: Tensor, bias: Tensor, mask: Tensor | None, place: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    images, tokens, _, heads, width = qkv.shape
    return qkv.new_empty(images, tokens, heads, width), qkv.new_empty(images, tokens, heads, dtype=torch.float32)


@torch.library.custom_op("vitsearch::attend_in_windows_back", mutates_args=())
def attend_back(
    gradient: Tensor, qkv: Tensor, bias: Tensor, mask: Tensor | None, place: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    qkv, gradient, added = qkv.contiguous(), gradient.contiguous(), written_out(bias, mask, qkv.dtype)
    images, tokens, _, heads, _ = qkv.shape
    items = images * len(place)
    groups = -(-items // EACH)
    dqkv = torch.empty_like(qkv)
    dbias = bias.new_empty(groups, *bias.shape, dtype=torch.float32)
    counts = (heads, len(place), len(added), tokens, items)
    backward_kernel[(groups * heads,)](
        qkv, place, added, lse, gradient, dqkv, dbias, scale, *counts, each=EACH, **sizes(qkv, place)
    )
    return dqkv, dbias.sum(0).to(bias.dtype)


@attend_back.register_fake
def _(
    gradient: Tensor, qkv: Tensor, bias: Tensor, mask: Tensor | None, place: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    # contiguous, as the kernel's are: empty_like takes over strides of a transposed view
    return qkv.new_empty(qkv.shape), bias.new_empty(bias.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, output[1])


def _back(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    return *attend_back(gradient, *ctx.saved_tensors, ctx.scale), None, None, None


attend.register_autograd(_back, setup_context=_remember)
