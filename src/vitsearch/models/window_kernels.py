"""Triton kernels of attention in windows: see window_attention.py.

A tile is one head of one window, [tokens, width]; `size` is the number of tokens, and `padded` the next power of two.
Products of tiles take the tensors' own precision and add up in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    qkv,
    place,
    bias,
    out,
    lse,
    scale,
    heads,
    windows,
    biased,
    tokens,
    size: tl.constexpr,
    padded: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """A program is one head of one window of one image. `biased` windows have a bias of their own, or one all."""
    head, item = tl.program_id(0) % heads, tl.program_id(0) // heads
    window, image = item % windows, (item // windows).to(tl.int64)
    n, d = tl.arange(0, padded), tl.arange(0, width)
    real = n < size
    at = image * tokens + tl.load(place + window * size + n, mask=real, other=0)
    start = qkv + at[:, None] * (3 * heads * width) + head * width + d[None, :]
    q = tl.load(start, mask=real[:, None], other=0.0)
    k = tl.load(start + heads * width, mask=real[:, None], other=0.0)
    v = tl.load(start + 2 * heads * width, mask=real[:, None], other=0.0)
    pair = real[:, None] & real[None, :]
    own = bias + ((window % biased) * heads + head) * size * size
    added = tl.load(own + n[:, None] * size + n[None, :], mask=pair, other=0.0).to(tl.float32)

    s = tl.dot(q, tl.trans(k), input_precision=precision) * scale + added
    s = tl.where(real[None, :], s, float("-inf"))
    most = tl.max(s, 1)
    p = tl.exp(s - most[:, None])
    total = tl.sum(p, 1)
    o = tl.dot(p.to(q.dtype), v, input_precision=precision) / total[:, None]
    there = out + at[:, None] * (heads * width) + head * width + d[None, :]
    tl.store(there, o.to(out.dtype.element_ty), mask=real[:, None])
    tl.store(lse + at * heads + head, most + tl.log(total), mask=real)


@triton.jit
def backward_kernel(
    qkv,
    place,
    bias,
    lse,
    dout,
    dqkv,
    dbias,
    scale,
    heads,
    windows,
    biased,
    tokens,
    items,
    each: tl.constexpr,
    size: tl.constexpr,
    padded: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """A program is one head of `each` windows, whose gradients of the bias it adds up; `items` windows are there."""
    head, group = tl.program_id(0) % heads, tl.program_id(0) // heads
    n, d = tl.arange(0, padded), tl.arange(0, width)
    row = 3 * heads * width
    kind = dqkv.dtype.element_ty
    pair = n[:, None] * size + n[None, :]
    both = (n[:, None] < size) & (n[None, :] < size)
    total = tl.zeros((padded, padded), tl.float32)
    for number in range(each):
        item = group * each + number
        window, image = item % windows, (item // windows).to(tl.int64)
        real = n < tl.where(item < items, size, 0)
        at = image * tokens + tl.load(place + window * size + n, mask=real, other=0)
        start = qkv + at[:, None] * row + head * width + d[None, :]
        q = tl.load(start, mask=real[:, None], other=0.0)
        k = tl.load(start + heads * width, mask=real[:, None], other=0.0)
        v = tl.load(start + 2 * heads * width, mask=real[:, None], other=0.0)
        there = dout + at[:, None] * (heads * width) + head * width + d[None, :]
        do = tl.load(there, mask=real[:, None], other=0.0)
        own = bias + ((window % biased) * heads + head) * size * size
        added = tl.load(own + pair, mask=both, other=0.0).to(tl.float32)
        sums = tl.load(lse + at * heads + head, mask=real, other=0.0)

        s = tl.dot(q, tl.trans(k), input_precision=precision) * scale + added
        p = tl.where(real[:, None] & real[None, :], tl.exp(s - sums[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision=precision)
        ds = p * (dp - tl.sum(p * dp, 1)[:, None])
        total += ds
        rounded = (ds * scale).to(q.dtype)
        here = dqkv + at[:, None] * row + head * width + d[None, :]
        tl.store(here, tl.dot(rounded, k, input_precision=precision).to(kind), mask=real[:, None])
        dk = tl.dot(tl.trans(rounded), q, input_precision=precision)
        tl.store(here + heads * width, dk.to(kind), mask=real[:, None])
        dv = tl.dot(tl.trans(p.to(q.dtype)), do, input_precision=precision)
        tl.store(here + 2 * heads * width, dv.to(kind), mask=real[:, None])
    tl.store(dbias + tl.program_id(0) * size * size + pair, total, mask=both)
