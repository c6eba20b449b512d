"""Triton kernels of attention with relative position, for networks on a small grid: see grid_attention.py.

A program is one head of one image. The tokens of patches are the rows of a tile [patches, width]; the class token,
token 0 in memory, is a vector beside it, here with a 0 in its name. Products of tiles take the tensors' own precision
and add up in float32.

Vectors of the relative position: one for each offset of rows, `offsets` of them, one for each of columns, the class
token's, and a spare one, which is zero. The spare one makes room for the class token itself: with its key in the last
row of `a`, the last two columns of q a^T sum up to the logit of the class token, and so with its value in `b`.

Cells of keys: one for each row of the grid, one for each column. `u` is the attention of the class token, `p` that of
the others.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
"""Powers of 2 are what a GPU has: logits are in units of its logarithm, and so are the logarithms of sums."""


@triton.jit
def tile(start, row, tokens, channels):
    return tl.load(start + (1 + tokens)[:, None] * row + channels[None, :])


@triton.jit
def key_cells(n, c, side: tl.constexpr):
    """[patches, cells]: whether a key is in this row, or column, of the grid."""
    return (c[None, :] == (n // side)[:, None]) | (c[None, :] == (side + n % side)[:, None])


@triton.jit
def vectors_of_cells(n, c, side: tl.constexpr):
    """[patches, cells]: the vector that a query needs for a cell."""
    of_row = c[None, :] - (n // side)[:, None] + (side - 1)
    of_column = c[None, :] - (n % side)[:, None] + (2 * side - 2)
    found = tl.where(c[None, :] < side, of_row, of_column)
    return tl.where(c[None, :] < 2 * side, found, 0)


@triton.jit
def cells_of_vectors(n, v, side: tl.constexpr):
    """[patches, vectors]: the cell for which a query needs a vector, or -1."""
    of_row = v[None, :] + (n // side)[:, None] - (side - 1)
    of_column = v[None, :] + (n % side)[:, None] - (2 * side - 2)
    row = tl.where((v[None, :] < 2 * side - 1) & (of_row >= 0) & (of_row < side), of_row, -1)
    column = (v[None, :] >= 2 * side - 1) & (v[None, :] < 4 * side - 2) & (of_column >= side) & (of_column < 2 * side)
    return tl.where(column, of_column, row)


@triton.jit
def on_vectors(of_cell, of_class, cells, is_class):
    """What belongs to cells [patches, cells], and to the class token [patches], where the vectors are."""
    patches: tl.constexpr = cells.shape[0]
    vectors: tl.constexpr = cells.shape[1]
    found = tl.where(cells >= 0, tl.gather(of_cell, tl.where(cells >= 0, cells, 0), 1), 0.0)
    return tl.where(is_class[None, :], tl.broadcast_to(of_class[:, None], (patches, vectors)), found)


@triton.jit
def forward_kernel(
    qkv,
    keys,
    values,
    out,
    lse,
    scale,
    heads,
    side: tl.constexpr,
    width: tl.constexpr,
    places: tl.constexpr,
    precision: tl.constexpr,
):
    patches: tl.constexpr = side * side
    vectors: tl.constexpr = 4 * side
    image, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    first, row = image * (patches + 1), 3 * heads * width
    n, d = tl.arange(0, patches), tl.arange(0, width)
    c, g = tl.arange(0, places), tl.arange(0, vectors)
    start = qkv + first * row + head * width
    q, q0 = tile(start, row, n, d), tl.load(start + d).to(tl.float32)
    start += heads * width
    k, k0 = tile(start, row, n, d), tl.load(start + d)
    start += heads * width
    v, v0 = tile(start, row, n, d), tl.load(start + d)
    kind = q.dtype
    unit = scale * LOG2_E
    is_last, is_class = (g == vectors - 1)[:, None], g >= vectors - 2
    of_vector = g[:, None] * width + d[None, :]
    b = tl.load(values + of_vector).to(kind)
    own = tl.sum(tl.where((g == vectors - 2)[:, None], b.to(tl.float32), 0.0), 0)
    a = tl.where(is_last, k0[None, :], tl.load(keys + of_vector).to(kind))
    b = tl.where(is_last, v0[None, :], b)
    cell = key_cells(n, c, side).to(kind)

    e = tl.dot(q, tl.trans(a), input_precision=precision)
    s0 = tl.sum(tl.where(is_class[None, :], e, 0.0), 1) * unit
    e = tl.gather(e, vectors_of_cells(n, c, side), 1).to(kind)
    s = tl.dot(q, tl.trans(k), input_precision=precision)
    s = tl.dot(e, tl.trans(cell), s, input_precision=precision) * unit
    most = tl.maximum(tl.max(s, 1), s0)
    p, p0 = tl.exp2(s - most[:, None]), tl.exp2(s0 - most)
    total = tl.sum(p, 1) + p0
    rounded = p.to(kind)
    m = tl.dot(rounded, cell, input_precision=precision)
    m = on_vectors(m, p0, cells_of_vectors(n, g, side), is_class).to(kind)
    o = tl.dot(rounded, v, input_precision=precision)
    o = tl.dot(m, b, o, input_precision=precision)

    k0, v0 = k0.to(tl.float32), v0.to(tl.float32)
    t, t0 = tl.sum(k.to(tl.float32) * q0[None, :], 1) * unit, tl.sum(q0 * k0, 0) * unit
    top = tl.maximum(tl.max(t, 0), t0)
    u, u0 = tl.exp2(t - top), tl.exp2(t0 - top)
    whole = tl.sum(u, 0) + u0
    o0 = (tl.sum(u[:, None] * v.to(tl.float32), 0) + u0 * v0) / whole + own

    there = out + (first * heads + head) * width
    o *= (1.0 / total)[:, None]
    tl.store(there + (1 + n)[:, None] * (heads * width) + d[None, :], o.to(out.dtype.element_ty))
    tl.store(there + d, o0.to(out.dtype.element_ty))
    at = lse + (image * heads + head) * (patches + 1)
    tl.store(at + 1 + n, most + tl.log2(total))
    tl.store(at, top + tl.log2(whole))


@triton.jit
def of_class_token(q0, do0, k, k0, v, v0, sum0, scale):
    """Its attention to the patches and to itself, and the gradients of both logits."""
    u = tl.exp2(tl.sum(k.to(tl.float32) * q0[None, :], 1) * (scale * LOG2_E) - sum0)
    u0 = tl.exp2(tl.sum(q0 * k0, 0) * (scale * LOG2_E) - sum0)
    du, du0 = tl.sum(v.to(tl.float32) * do0[None, :], 1), tl.sum(do0 * v0, 0)
    delta0 = tl.sum(u * du, 0) + u0 * du0
    return u, u0, u * (du - delta0) * scale, u0 * (du0 - delta0) * scale


@triton.jit
def backward_kernel(
    qkv,
    keys,
    values,
    lse,
    dout,
    dqkv,
    dkeys,
    dvalues,
    scale,
    heads,
    side: tl.constexpr,
    width: tl.constexpr,
    places: tl.constexpr,
    precision: tl.constexpr,
):
    patches: tl.constexpr = side * side
    vectors: tl.constexpr = 4 * side
    image, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    first, row = image * (patches + 1), 3 * heads * width
    n, d = tl.arange(0, patches), tl.arange(0, width)
    c, g = tl.arange(0, places), tl.arange(0, vectors)
    of_vector = g[:, None] * width + d[None, :]
    start, here = qkv + first * row + head * width, dqkv + first * row + head * width
    sums, there = lse + (image * heads + head) * (patches + 1), dout + (first * heads + head) * width
    at_grid = (1 + n)[:, None] * row + d[None, :]
    kind = dqkv.dtype.element_ty
    unit = scale * LOG2_E
    is_last, is_class = (g == vectors - 1)[:, None], g >= vectors - 2

    q0, do0 = tl.load(start + d).to(tl.float32), tl.load(there + d).to(tl.float32)
    k0, v0 = tl.load(start + heads * width + d), tl.load(start + 2 * heads * width + d)
    a = tl.where(is_last, k0[None, :], tl.load(keys + of_vector).to(kind))
    b = tl.where(is_last, v0[None, :], tl.load(values + of_vector).to(kind))
    k0, v0 = k0.to(tl.float32), v0.to(tl.float32)
    k, v = tl.load(start + heads * width + at_grid), tl.load(start + 2 * heads * width + at_grid)
    u, u0, dt, dt0 = of_class_token(q0, do0, k, k0, v, v0, tl.load(sums), scale)
    tl.store(here + d, (tl.sum(dt[:, None] * k.to(tl.float32), 0) + dt0 * k0).to(kind))

    cell = key_cells(n, c, side).to(kind)
    needed = vectors_of_cells(n, c, side)
    q, do = tl.load(start + at_grid), tile(there, heads * width, n, d)
    most = tl.load(sums + 1 + n)
    e = tl.dot(q, tl.trans(a), input_precision=precision)
    p0 = tl.exp2(tl.sum(tl.where(is_class[None, :], e, 0.0), 1) * unit - most)
    s = tl.dot(q, tl.trans(k), input_precision=precision)
    s = tl.dot(tl.gather(e, needed, 1).to(kind), tl.trans(cell), s, input_precision=precision)
    p = tl.exp2(s * unit - most[:, None])
    dm = tl.dot(do, tl.trans(b), input_precision=precision)
    dp0 = tl.sum(tl.where(is_class[None, :], dm, 0.0), 1)
    dp = tl.dot(do, tl.trans(v), input_precision=precision)
    dp = tl.dot(tl.gather(dm, needed, 1).to(kind), tl.trans(cell), dp, input_precision=precision)
    delta = tl.sum(p * dp, 1) + p0 * dp0
    ds, ds0 = (p * (dp * scale - (delta * scale)[:, None])).to(kind), p0 * (dp0 - delta) * scale
    rounded = p.to(kind)

    cells = cells_of_vectors(n, g, side)
    m = on_vectors(tl.dot(rounded, cell, input_precision=precision), p0, cells, is_class).to(kind)
    at_vectors = ((first + 1 + n)[:, None] * heads + head) * vectors + g[None, :]
    at_vectors0 = (first * heads + head) * vectors + g
    tl.store(dvalues + at_vectors, m)
    tl.store(dvalues + at_vectors0, tl.where(g == vectors - 2, 1.0, 0.0).to(kind))
    tl.store(dkeys + at_vectors0, tl.zeros((vectors,), kind))
    dv = tl.dot(tl.trans(rounded), do, input_precision=precision) + u[:, None] * do0[None, :]
    tl.store(here + 2 * heads * width + at_grid, dv.to(kind))
    dv0 = tl.sum(p0[:, None] * do.to(tl.float32), 0) + u0 * do0
    tl.store(here + 2 * heads * width + d, dv0.to(kind))
    de = on_vectors(tl.dot(ds, cell, input_precision=precision), ds0, cells, is_class).to(kind)
    tl.store(dkeys + at_vectors, de)
    dq = tl.dot(ds, k, input_precision=precision)
    dq = tl.dot(de, a, dq, input_precision=precision)
    tl.store(here + at_grid, dq.to(kind))
    dk = tl.dot(tl.trans(ds), q, input_precision=precision) + dt[:, None] * q0[None, :]
    tl.store(here + heads * width + at_grid, dk.to(kind))
    dk0 = tl.sum(ds0[:, None] * q.to(tl.float32), 0) + dt0 * q0
    tl.store(here + heads * width + d, dk0.to(kind))
