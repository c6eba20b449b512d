"""Triton kernels of GELU with a bias: see gelu.py. A program has `each` rows, `high` of them at a time."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def forward_kernel(x, bias, out, slope, rows, columns: tl.constexpr, wide: tl.constexpr, high: tl.constexpr):
    c, r = tl.program_id(1) * wide + tl.arange(0, wide), tl.program_id(0) * high + tl.arange(0, high)
    at, inside = r[:, None].to(tl.int64) * columns + c[None, :], (r < rows)[:, None] & (c < columns)[None, :]
    u = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    u += tl.load(bias + c, mask=c < columns, other=0.0).to(tl.float32)[None, :]
    bell = tl.exp2(-0.7213475204444817 * u * u)  # exp(-u u / 2)
    t = 1.0 / (1.0 + 0.3275911 * 0.7071067811865476 * tl.abs(u))
    series = 1.421413741 + t * (-1.453152027 + t * 1.061405429)
    beyond = 0.5 * t * (0.254829592 + t * (-0.284496736 + t * series)) * bell
    below = tl.where(u >= 0, 1.0 - beyond, beyond)
    tl.store(out + at, (u * below).to(out.dtype.element_ty), mask=inside)
    tl.store(slope + at, (below + u * bell * 0.3989422804014327).to(slope.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def backward_kernel(
    dout,
    slope,
    dx,
    dbias,
    rows,
    columns: tl.constexpr,
    wide: tl.constexpr,
    high: tl.constexpr,
    each: tl.constexpr,
):
    c = tl.program_id(1) * wide + tl.arange(0, wide)
    total = tl.zeros((high, wide), tl.float32)
    for step in range(0, each, high):
        r = tl.program_id(0) * each + step + tl.arange(0, high)
        at, inside = r[:, None].to(tl.int64) * columns + c[None, :], (r < rows)[:, None] & (c < columns)[None, :]
        given = tl.load(dout + at, mask=inside, other=0.0).to(tl.float32)
        own = given * tl.load(slope + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + at, own.to(dx.dtype.element_ty), mask=inside)
        total += own
    tl.store(dbias + tl.program_id(0) * columns + c, tl.sum(total, 0), mask=c < columns)
