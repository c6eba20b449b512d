"""Triton kernels of attention with relative position, for networks on a small grid: see grid_attention.py.

A program is one head of one image. The tokens of patches are the rows of a tile [patches, width]; the class token,
token 0 in memory, is a vector beside it, here with a 0 in its name. Products of tiles take the tensors' own precision
and add up in float32; what has to do with the class token is float32.

`where` is, for each token and each grid row and grid column, the place of its vector; `cell` says with ones and zeros
in which grid row and grid column a key is. `u` is the attention of the class token, `p` that of the others.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile(start, row, tokens, channels):
    return tl.load(start + (1 + tokens)[:, None] * row + channels[None, :])


@triton.jit
def forward_kernel(
    qkv,
    products,
    cells,
    of_cell,
    out,
    mass,
    lse,
    scale,
    images,
    heads,
    patches: tl.constexpr,
    width: tl.constexpr,
    vectors: tl.constexpr,
    places: tl.constexpr,
    stride: tl.constexpr,
    class_cell: tl.constexpr,
    precision: tl.constexpr,
):
    image, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    first, row = image * (patches + 1), 3 * heads * width
    n, d, c = tl.arange(0, patches), tl.arange(0, width), tl.arange(0, places)
    start = qkv + first * row + head * width
    q, q0 = tile(start, row, n, d), tl.load(start + d).to(tl.float32)
    start += heads * width
    k, k0 = tile(start, row, n, d), tl.load(start + d).to(tl.float32)
    start += heads * width
    v, v0 = tile(start, row, n, d), tl.load(start + d).to(tl.float32)
    place = (1 + n)[:, None] * stride + c[None, :]
    inside = (c[None, :] < class_cell) & (n[:, None] >= 0)
    own = (head * images + image) * (patches + 1) * vectors + (1 + n) * vectors
    cell = tl.load(cells + place, mask=inside, other=0.0)
    where = own[:, None] + tl.load(of_cell + place, mask=inside, other=vectors - 1)
    where0 = own + tl.load(of_cell + (1 + n) * stride + class_cell)
    e, e0 = tl.load(products + where), tl.load(products + where0).to(tl.float32)

    s = tl.dot(q, tl.trans(k), input_precision=precision) + tl.dot(e, tl.trans(cell), input_precision=precision)
    s, s0 = s * scale, (tl.sum(q.to(tl.float32) * k0[None, :], 1) + e0) * scale
    most = tl.maximum(tl.max(s, 1), s0)
    p, p0 = tl.exp(s - most[:, None]), tl.exp(s0 - most)
    total = tl.sum(p, 1) + p0
    rounded = p.to(q.dtype)
    o = tl.dot(rounded, v, input_precision=precision) + p0[:, None] * v0[None, :]
    m = tl.dot(rounded, cell, input_precision=precision)

    t, t0 = tl.sum(k.to(tl.float32) * q0[None, :], 1) * scale, tl.sum(q0 * k0, 0) * scale
    top = tl.maximum(tl.max(t, 0), t0)
    u, u0 = tl.exp(t - top), tl.exp(t0 - top)
    whole = tl.sum(u, 0) + u0
    o0 = (tl.sum(u[:, None] * v.to(tl.float32), 0) + u0 * v0) / whole

    there = out + (first * heads + head) * width
    tl.store(there + (1 + n)[:, None] * (heads * width) + d[None, :], (o / total[:, None]).to(out.dtype.element_ty))
    tl.store(there + d, o0.to(out.dtype.element_ty))
    tl.store(mass + where, (m / total[:, None]).to(mass.dtype.element_ty), mask=inside)
    tl.store(mass + where0, (p0 / total).to(mass.dtype.element_ty))
    at = lse + (image * heads + head) * (patches + 1)
    tl.store(at + 1 + n, most + tl.log(total))
    tl.store(at, top + tl.log(whole))


@triton.jit
def backward_kernel(
    qkv,
    products,
    cells,
    of_cell,
    lse,
    dout,
    dmass,
    dqkv,
    dproducts,
    scale,
    images,
    heads,
    patches: tl.constexpr,
    width: tl.constexpr,
    vectors: tl.constexpr,
    places: tl.constexpr,
    stride: tl.constexpr,
    class_cell: tl.constexpr,
    precision: tl.constexpr,
):
    image, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    first, row = image * (patches + 1), 3 * heads * width
    n, d, c = tl.arange(0, patches), tl.arange(0, width), tl.arange(0, places)
    start, here = qkv + first * row + head * width, dqkv + first * row + head * width
    sums, there = lse + (image * heads + head) * (patches + 1), dout + (first * heads + head) * width
    at_grid = (1 + n)[:, None] * row + d[None, :]
    kind = dqkv.dtype.element_ty

    q0, k0 = tl.load(start + d).to(tl.float32), tl.load(start + heads * width + d).to(tl.float32)
    v0, do0 = tl.load(start + 2 * heads * width + d).to(tl.float32), tl.load(there + d).to(tl.float32)
    k, v = tl.load(start + heads * width + at_grid), tl.load(start + 2 * heads * width + at_grid)
    sum0 = tl.load(sums)
    u = tl.exp(tl.sum(k.to(tl.float32) * q0[None, :], 1) * scale - sum0)
    u0 = tl.exp(tl.sum(q0 * k0, 0) * scale - sum0)
    du, du0 = tl.sum(v.to(tl.float32) * do0[None, :], 1), tl.sum(do0 * v0, 0)
    delta0 = tl.sum(u * du, 0) + u0 * du0
    dt, dt0 = u * (du - delta0) * scale, u0 * (du0 - delta0) * scale
    tl.store(here + d, (tl.sum(dt[:, None] * k.to(tl.float32), 0) + dt0 * k0).to(kind))

    place = (1 + n)[:, None] * stride + c[None, :]
    inside = (c[None, :] < class_cell) & (n[:, None] >= 0)
    own = (head * images + image) * (patches + 1) * vectors + (1 + n) * vectors
    cell = tl.load(cells + place, mask=inside, other=0.0)
    where = own[:, None] + tl.load(of_cell + place, mask=inside, other=vectors - 1)
    where0 = own + tl.load(of_cell + (1 + n) * stride + class_cell)
    q, do = tl.load(start + at_grid), tile(there, heads * width, n, d)
    most = tl.load(sums + 1 + n)
    s0 = tl.sum(q.to(tl.float32) * k0[None, :], 1) + tl.load(products + where0).to(tl.float32)
    p0 = tl.exp(s0 * scale - most)
    dp0 = tl.sum(do.to(tl.float32) * v0[None, :], 1) + tl.load(dmass + where0).to(tl.float32)
    e, dm = tl.load(products + where), tl.load(dmass + where, mask=inside, other=0.0)
    s = tl.dot(q, tl.trans(k), input_precision=precision) + tl.dot(e, tl.trans(cell), input_precision=precision)
    p = tl.exp(s * scale - most[:, None])
    dp = tl.dot(do, tl.trans(v), input_precision=precision) + tl.dot(dm, tl.trans(cell), input_precision=precision)
    delta = tl.sum(p * dp, 1) + p0 * dp0
    ds, ds0 = (p * (dp - delta[:, None]) * scale).to(q.dtype), p0 * (dp0 - delta) * scale
    dv = tl.dot(tl.trans(p.to(q.dtype)), do, input_precision=precision) + u[:, None] * do0[None, :]
    tl.store(here + 2 * heads * width + at_grid, dv.to(kind))
    tl.store(here + 2 * heads * width + d, (tl.sum(p0[:, None] * do.to(tl.float32), 0) + u0 * do0).to(kind))
    tl.store(dproducts + where, tl.dot(ds, cell, input_precision=precision).to(dproducts.dtype.element_ty), mask=inside)
    tl.store(dproducts + where0, ds0.to(dproducts.dtype.element_ty))
    dq = tl.dot(ds, k, input_precision=precision) + ds0[:, None] * k0[None, :]
    tl.store(here + at_grid, dq.to(kind))
    dk = tl.dot(tl.trans(ds), q, input_precision=precision) + dt[:, None] * q0[None, :]
    tl.store(here + heads * width + at_grid, dk.to(kind))
    tl.store(here + heads * width + d, (tl.sum(ds0[:, None] * q.to(tl.float32), 0) + dt0 * q0).to(kind))
