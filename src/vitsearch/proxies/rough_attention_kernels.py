"""Triton kernels of attention with relative position for a rough pass: see rough_attention.py.

A program is one head of one image, or a tile of its queries or keys. Products of tiles take float16 and add up in
float32. `i` are queries, `j` keys, `s` slots: rows of both tables, one below the other, and after them one for pairs
with the class token. A key is in a grid row, a grid column or is the class token: these are the `places`, and `cells`
says with ones and zeros in which a key is. A query's product with a slot is one with a place, and each place has
another slot, so that what comes back is sorted and not added up.

    e_ip = q_i . T_s(i,p),   l_ij = scale (q_i k_j + sum_p e_ip cells_jp),   o_i = sum_j p_ij v_j + sum_s m_is T'_s
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def slot_of(i, p, side: tl.constexpr, offsets: tl.constexpr):
    """[i, 1] and [1, p]: the slot that a query has for a place, and whether there is one."""
    r, c = (i - 1) // side, (i - 1) % side
    middle: tl.constexpr = offsets // 2
    slot = tl.where(p < side, p - r + middle, p - side - c + middle + offsets)
    return tl.where(p == 2 * side, 2 * offsets, slot), (p <= 2 * side) & (i > 0) & (i <= side * side)


@triton.jit
def place_of(i, s, side: tl.constexpr, offsets: tl.constexpr):
    """[i, 1] and [1, s]: the place for which a query has a slot, and whether there is one."""
    r, c = (i - 1) // side, (i - 1) % side
    middle: tl.constexpr = offsets // 2
    of_row, of_column = s - middle + r, s - offsets - middle + c
    in_rows = (s < offsets) & (of_row >= 0) & (of_row < side)
    in_columns = (s >= offsets) & (s < 2 * offsets) & (of_column >= 0) & (of_column < side)
    place = tl.where(s < offsets, of_row, tl.where(s == 2 * offsets, 2 * side, of_column + side))
    there = in_rows | in_columns | (s == 2 * offsets)
    return tl.where(there, place, 0), there & (i > 0)


@triton.jit
def by_place(x, i, side: tl.constexpr, offsets: tl.constexpr, places: tl.constexpr):
    """[i, s] to [i, p], zero where there is no slot."""
    slot, there = slot_of(i[:, None], tl.arange(0, places)[None, :], side, offsets)
    return tl.where(there, tl.gather(x, tl.where(there, slot, 0), 1), 0.0)


@triton.jit
def by_slot(x, i, side: tl.constexpr, offsets: tl.constexpr, slots: tl.constexpr):
    """[i, p] to [i, s], zero where there is no place."""
    place, there = place_of(i[:, None], tl.arange(0, slots)[None, :], side, offsets)
    return tl.where(there, tl.gather(x, place, 1), 0.0)


@triton.jit
def beside(x, value, p, side: tl.constexpr):
    """A float32 for each query, in the two places after the others: what float16 has of it, and the rest."""
    first = value.to(x.dtype)
    rest = (value - first.to(tl.float32)).to(x.dtype)
    x = tl.where((p == 2 * side + 1)[None, :], first[:, None], x)
    return tl.where((p == 2 * side + 2)[None, :], rest[:, None], x)


@triton.jit
def forward_kernel(
    qkv,
    tables,
    cells,
    out,
    extra,
    mass,
    scale,
    heads: tl.constexpr,
    tokens: tl.constexpr,
    width: tl.constexpr,
    side: tl.constexpr,
    offsets: tl.constexpr,
    slots: tl.constexpr,
    places: tl.constexpr,
    queries: tl.constexpr,
    keys: tl.constexpr,
):
    """A tile of queries. `extra` is e for each place, and beside it what takes a logit to that of a probability."""
    number = tl.program_id(0)
    image, head = (number // heads).to(tl.int64), number % heads
    row: tl.constexpr = 3 * heads * width
    inner: tl.constexpr = heads * width
    each = image * heads + head
    i, d = tl.program_id(1) * queries + tl.arange(0, queries), tl.arange(0, width)
    p, s = tl.arange(0, places), tl.arange(0, slots)
    start = qkv + image * (tokens * row) + head * width
    here = (i < tokens)[:, None]
    q = tl.load(start + i[:, None] * row + d[None, :], mask=here, other=0.0)
    key_table = tl.load(tables + s[:, None] * width + d[None, :])
    e = by_place(tl.dot(q, tl.trans(key_table)), i, side, offsets, places).to(q.dtype)
    at_places = i[:, None] * places + p[None, :]

    most = tl.full([queries], float("-inf"), tl.float32)
    total = tl.zeros([queries], tl.float32)
    o, m = tl.zeros([queries, width], tl.float32), tl.zeros([queries, places], tl.float32)
    for first in range(0, tokens, keys):
        j = first + tl.arange(0, keys)
        there = (j < tokens)[:, None]
        at = start + inner + j[:, None] * row + d[None, :]
        k = tl.load(at, mask=there, other=0.0)
        v = tl.load(at + inner, mask=there, other=0.0)
        cell = tl.load(cells + j[:, None] * places + p[None, :], mask=there, other=0.0)
        logit = (tl.dot(q, tl.trans(k)) + tl.dot(e, tl.trans(cell))) * scale
        logit = tl.where((j < tokens)[None, :], logit, float("-inf"))
        top = tl.maximum(most, tl.max(logit, 1))
        weight, less = tl.exp2(logit - top[:, None]), tl.exp2(most - top)
        total = total * less + tl.sum(weight, 1)
        rounded = weight.to(q.dtype)
        o = tl.dot(rounded, v, o * less[:, None])
        m = tl.dot(rounded, cell, m * less[:, None])
        most = top
    o, m = o / total[:, None], m / total[:, None]
    value_table = tl.load(tables + (slots + s)[:, None] * width + d[None, :])
    tl.store(mass + each * (tokens * places) + at_places, m.to(q.dtype), mask=here)
    by_value = by_slot(m, i, side, offsets, slots)
    by_value = tl.where((i == 0)[:, None] & (s == 2 * offsets)[None, :], 1.0, by_value)
    o = tl.dot(by_value.to(q.dtype), value_table, o)
    at_out = i[:, None] * inner + d[None, :]
    tl.store(out + image * (tokens * inner) + head * width + at_out, o.to(out.dtype.element_ty), mask=here)
    e = beside(e, -(most + tl.log2(total)) / scale, p, side)
    tl.store(extra + each * (tokens * places) + at_places, e, mask=here)


@triton.jit
def queries_kernel(
    qkv,
    tables,
    cells,
    out,
    extra,
    dout,
    dqkv,
    dextra,
    back,
    scale,
    root,
    heads: tl.constexpr,
    tokens: tl.constexpr,
    width: tl.constexpr,
    side: tl.constexpr,
    offsets: tl.constexpr,
    slots: tl.constexpr,
    places: tl.constexpr,
    queries: tl.constexpr,
    keys: tl.constexpr,
):
    """The gradients of a tile of queries. `back` is that of e, `dextra` to dout what `extra` is to queries."""
    number = tl.program_id(0)
    image, head = (number // heads).to(tl.int64), number % heads
    row: tl.constexpr = 3 * heads * width
    inner: tl.constexpr = heads * width
    i, d = tl.program_id(1) * queries + tl.arange(0, queries), tl.arange(0, width)
    p, s = tl.arange(0, places), tl.arange(0, slots)
    here = (i < tokens)[:, None]
    start = qkv + image * (tokens * row) + head * width
    at_out = image * (tokens * inner) + head * width
    at_places = (image * heads + head) * (tokens * places)
    q = tl.load(start + i[:, None] * row + d[None, :], mask=here, other=0.0)
    do = tl.load(dout + at_out + i[:, None] * inner + d[None, :], mask=here, other=0.0)
    o = tl.load(out + at_out + i[:, None] * inner + d[None, :], mask=here, other=0.0)
    e = tl.load(extra + at_places + i[:, None] * places + p[None, :], mask=here, other=0.0)
    value_table = tl.load(tables + (slots + s)[:, None] * width + d[None, :])
    products = tl.dot(do, tl.trans(value_table))
    own = tl.sum(tl.where((i == 0)[:, None] & (s == 2 * offsets)[None, :], products, 0.0), 1)
    less = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1) - own
    de = beside(by_place(products, i, side, offsets, places).to(q.dtype), -less, p, side)
    tl.store(dextra + at_places + i[:, None] * places + p[None, :], de, mask=here)

    dq, found = tl.zeros([queries, width], tl.float32), tl.zeros([queries, places], tl.float32)
    for first in range(0, tokens, keys):
        j = first + tl.arange(0, keys)
        there = (j < tokens)[:, None]
        at = start + inner + j[:, None] * row + d[None, :]
        k = tl.load(at, mask=there, other=0.0)
        v = tl.load(at + inner, mask=there, other=0.0)
        cell = tl.load(cells + j[:, None] * places + p[None, :], mask=there, other=0.0)
        logit = (tl.dot(q, tl.trans(k)) + tl.dot(e, tl.trans(cell))) * scale
        dweight = tl.dot(do, tl.trans(v)) + tl.dot(de, tl.trans(cell))
        dlogit = (tl.exp2(logit) * dweight).to(q.dtype)
        dq = tl.dot(dlogit, k, dq)
        found = tl.dot(dlogit, cell, found)
    found *= root
    tl.store(back + at_places + i[:, None] * places + p[None, :], found.to(back.dtype.element_ty), mask=here)
    key_table = tl.load(tables + s[:, None] * width + d[None, :])
    dq = tl.dot(by_slot(found, i, side, offsets, slots).to(q.dtype), key_table, dq * root)
    at_query = dqkv + image * (tokens * row) + head * width + i[:, None] * row + d[None, :]
    tl.store(at_query, dq.to(dqkv.dtype.element_ty), mask=here)


@triton.jit
def tables_kernel(
    qkv,
    dout,
    mass,
    back,
    dtables,
    heads: tl.constexpr,
    tokens: tl.constexpr,
    width: tl.constexpr,
    side: tl.constexpr,
    offsets: tl.constexpr,
    slots: tl.constexpr,
    places: tl.constexpr,
    queries: tl.constexpr,
):
    """The gradients of both tables from an image."""
    image = tl.program_id(0).to(tl.int64)
    row: tl.constexpr = 3 * heads * width
    inner: tl.constexpr = heads * width
    d, p, s = tl.arange(0, width), tl.arange(0, places), tl.arange(0, slots)
    of_keys, of_values = tl.zeros([slots, width], tl.float32), tl.zeros([slots, width], tl.float32)
    for head in range(heads):
        for begin in range(0, tokens, queries):
            i = begin + tl.arange(0, queries)
            here = (i < tokens)[:, None]
            q = tl.load(qkv + image * (tokens * row) + head * width + i[:, None] * row + d[None, :], mask=here, other=0)
            at_out = image * (tokens * inner) + head * width + i[:, None] * inner + d[None, :]
            do = tl.load(dout + at_out, mask=here, other=0.0)
            at_places = (image * heads + head) * (tokens * places) + i[:, None] * places + p[None, :]
            m = tl.load(mass + at_places, mask=here, other=0.0)
            of_query = tl.load(back + at_places, mask=here, other=0.0)
            by_value = by_slot(m, i, side, offsets, slots)
            own = (i == 0)[:, None] & (s == 2 * offsets)[None, :]
            of_values = tl.dot(tl.trans(tl.where(own, 1.0, by_value).to(do.dtype)), do, of_values)
            of_keys = tl.dot(tl.trans(by_slot(of_query, i, side, offsets, slots).to(q.dtype)), q, of_keys)
    at_table = dtables + image * (2 * slots * width) + s[:, None] * width + d[None, :]
    tl.store(at_table, of_keys)
    tl.store(at_table + slots * width, of_values)


@triton.jit
def keys_kernel(
    qkv,
    cells,
    extra,
    dout,
    dqkv,
    dextra,
    scale,
    root,
    heads: tl.constexpr,
    tokens: tl.constexpr,
    width: tl.constexpr,
    places: tl.constexpr,
    queries: tl.constexpr,
    keys: tl.constexpr,
):
    """All keys of a head, and their values. Tiles are [keys, queries]."""
    number = tl.program_id(0)
    image, head = (number // heads).to(tl.int64), number % heads
    row: tl.constexpr = 3 * heads * width
    inner: tl.constexpr = heads * width
    each = image * heads + head
    d, p = tl.arange(0, width), tl.arange(0, places)
    start = qkv + image * (tokens * row) + head * width
    for first in range(0, tokens, keys):
        j = first + tl.arange(0, keys)
        there = (j < tokens)[:, None]
        at = inner + j[:, None] * row + d[None, :]
        k = tl.load(start + at, mask=there, other=0.0)
        v = tl.load(start + at + inner, mask=there, other=0.0)
        cell = tl.load(cells + j[:, None] * places + p[None, :], mask=there, other=0.0)
        dk, dv = tl.zeros([keys, width], tl.float32), tl.zeros([keys, width], tl.float32)
        for begin in range(0, tokens, queries):
            i = begin + tl.arange(0, queries)
            here = (i < tokens)[:, None]
            q = tl.load(start + i[:, None] * row + d[None, :], mask=here, other=0.0)
            at_out = i[:, None] * inner + d[None, :]
            do = tl.load(dout + image * (tokens * inner) + head * width + at_out, mask=here, other=0.0)
            at_places = i[:, None] * places + p[None, :]
            e = tl.load(extra + each * (tokens * places) + at_places, mask=here, other=0.0)
            de = tl.load(dextra + each * (tokens * places) + at_places, mask=here, other=0.0)
            logit = (tl.dot(k, tl.trans(q)) + tl.dot(cell, tl.trans(e))) * scale
            weight = tl.exp2(logit)
            dv = tl.dot(weight.to(q.dtype), do, dv)
            dweight = tl.dot(v, tl.trans(do)) + tl.dot(cell, tl.trans(de))
            dlogit = (weight * dweight).to(q.dtype)
            dk = tl.dot(dlogit, q, dk)
        found = dqkv + image * (tokens * row) + head * width + at
        tl.store(found, (dk * root).to(dqkv.dtype.element_ty), mask=there)
        tl.store(found + inner, dv.to(dqkv.dtype.element_ty), mask=there)
