"""Triton kernels of a rough pass between its matrix products: see rough.py.

The residual stream is [networks, tokens of all images, channels] in float32, in the order of the networks; what goes
into matrix products is float16, in the order of the groups of its half block. `network` is the place of a network of
this half in the stream, `before` that in the half before. A program has some tokens of one network, with room for a
power of two of channels. All sums are float32, in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def norm_kernel(
    x,
    added,
    kept,
    out,
    rate,
    network,
    before,
    tokens,
    eps,
    width: tl.constexpr,
    tile: tl.constexpr,
    padded: tl.constexpr,
    adds: tl.constexpr,
    norms: tl.constexpr,
):
    """x + added goes to `kept`, its norm to `out`."""
    n = tl.program_id(0)
    t, c = tl.program_id(1) * tile + tl.arange(0, tile), tl.arange(0, padded)
    inside = (t < tokens)[:, None] & (c < width)[None, :]
    at, each = t[:, None] * width + c[None, :], tokens.to(tl.int64) * width
    here = tl.load(network + n) * each
    value = tl.load(x + here + at, mask=inside, other=0.0)
    if adds:
        value += tl.load(added + tl.load(before + n) * each + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(kept + here + at, value, mask=inside)
    if norms:
        value = tl.where(inside, value - (tl.sum(value, 1) / width)[:, None], 0.0)
        r = 1.0 / tl.sqrt(tl.sum(value * value, 1) / width + eps)
        tl.store(out + n * each + at, (value * r[:, None]).to(out.dtype.element_ty), mask=inside)
        tl.store(rate + n * tokens.to(tl.int64) + t, r, mask=t < tokens)


@triton.jit(do_not_specialize=["tokens", "each"])
def norm_back_kernel(
    y,
    rate,
    dy,
    dx,
    passed,
    sums,
    network,
    before,
    tokens,
    each,
    width: tl.constexpr,
    tile: tl.constexpr,
    padded: tl.constexpr,
    passes: tl.constexpr,
):
    """The gradient of the stream, in its place, and as the half before wants it; sums of y dy, of dy and of that."""
    n, c = tl.program_id(0), tl.arange(0, padded)
    size = tokens.to(tl.int64) * width
    here, there = tl.load(network + n) * size, tl.load(before + n) * size
    of_weight, of_bias = tl.zeros([tile, padded], tl.float32), tl.zeros([tile, padded], tl.float32)
    of_stream = tl.zeros([tile, padded], tl.float32)
    for number in range(each):
        t = (tl.program_id(1) * each + number) * tile + tl.arange(0, tile)
        inside = (t < tokens)[:, None] & (c < width)[None, :]
        at = t[:, None] * width + c[None, :]
        value = tl.load(y + n * size + at, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(dy + n * size + at, mask=inside, other=0.0).to(tl.float32)
        r = tl.load(rate + n * tokens.to(tl.int64) + t, mask=t < tokens, other=0.0)
        product = gradient * value
        of_weight += product
        of_bias += gradient
        back = gradient - (tl.sum(gradient, 1) / width)[:, None] - value * (tl.sum(product, 1) / width)[:, None]
        whole = tl.load(dx + here + at, mask=inside, other=0.0) + back * r[:, None]
        whole = tl.where(inside, whole, 0.0)
        of_stream += whole
        tl.store(dx + here + at, whole, mask=inside)
        if passes:
            tl.store(passed + there + at, whole.to(passed.dtype.element_ty), mask=inside)
    place = (n * tl.num_programs(1) + tl.program_id(1)) * (3 * width) + c
    tl.store(sums + place, tl.sum(of_weight, 0), mask=c < width)
    tl.store(sums + place + width, tl.sum(of_bias, 0), mask=c < width)
    tl.store(sums + place + 2 * width, tl.sum(of_stream, 0), mask=c < width)


@triton.jit(do_not_specialize=["each"])
def magnitudes_kernel(gradient, value, out, size, each, tile: tl.constexpr):
    """A part of the sum of |gradient x value|; the gradient is [networks, size], the value that of all networks."""
    n, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    total = tl.zeros([tile], tl.float32)
    for number in range(each):
        at = (part * each + number) * tile + tl.arange(0, tile)
        inside = at < size
        g = tl.load(gradient + n * size + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.abs(g * tl.load(value + at, mask=inside, other=0.0))
    tl.store(out + n * tl.num_programs(1) + part, tl.sum(total, 0))
