"""Triton kernels of the layer norm, for tokens of a few hundred channels at most: see norms.py.

A program has a tile of tokens, [tokens, channels] with room for a power of two. All sums are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def forward_kernel(
    x,
    weight,
    bias,
    out,
    mean,
    rate,
    tokens,
    width,
    eps,
    tile: tl.constexpr,
    padded: tl.constexpr,
    learned: tl.constexpr,
):
    n, c = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, padded)
    inside = (n < tokens)[:, None] & (c < width)[None, :]
    at = n.to(tl.int64)[:, None] * width + c[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    m = tl.sum(value, 1) / width
    value = tl.where(inside, value - m[:, None], 0.0)
    r = 1.0 / tl.sqrt(tl.sum(value * value, 1) / width + eps)
    y = value * r[:, None]
    if learned:
        y = y * tl.load(weight + c, mask=c < width, other=0.0).to(tl.float32)[None, :]
        y += tl.load(bias + c, mask=c < width, other=0.0).to(tl.float32)[None, :]
    tl.store(out + at, y.to(out.dtype.element_ty), mask=inside)
    tl.store(mean + n, m, mask=n < tokens)
    tl.store(rate + n, r, mask=n < tokens)


@triton.jit(do_not_specialize=["tokens", "each"])
def backward_kernel(
    x,
    weight,
    dout,
    mean,
    rate,
    dx,
    dweight,
    dbias,
    tokens,
    width,
    each,
    tile: tl.constexpr,
    padded: tl.constexpr,
    learned: tl.constexpr,
):
    """Sums over tokens are those of the `each` tiles of this program."""
    c = tl.arange(0, padded)
    of_weight, of_bias = tl.zeros([padded], tl.float32), tl.zeros([padded], tl.float32)
    for number in range(each):
        n = (tl.program_id(0) * each + number) * tile + tl.arange(0, tile)
        inside = (n < tokens)[:, None] & (c < width)[None, :]
        at = n.to(tl.int64)[:, None] * width + c[None, :]
        m, r = tl.load(mean + n, mask=n < tokens, other=0.0), tl.load(rate + n, mask=n < tokens, other=0.0)
        y = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - m[:, None]) * r[:, None]
        y = tl.where(inside, y, 0.0)
        dy = tl.load(dout + at, mask=inside, other=0.0).to(tl.float32)
        if learned:
            of_weight += tl.sum(dy * y, 0)
            of_bias += tl.sum(dy, 0)
            dy = dy * tl.load(weight + c, mask=c < width, other=0.0).to(tl.float32)[None, :]
        back = dy - (tl.sum(dy, 1) / width)[:, None] - y * (tl.sum(dy * y, 1) / width)[:, None]
        tl.store(dx + at, (back * r[:, None]).to(dx.dtype.element_ty), mask=inside)
    if learned:
        place = tl.program_id(0) * width + c
        tl.store(dweight + place, of_weight, mask=c < width)
        tl.store(dbias + place, of_bias, mask=c < width)
