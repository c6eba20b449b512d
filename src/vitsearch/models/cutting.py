"""The weights of a block cut out of a supernet's, all at once.

torch's own slices cost a fill and a copy of the whole tensor for every axis on the way back, and casts under autocast
one more each way: where layers are not compiled, half of a training step's launches. Here a part is written once, in
the precision that products want, and all gradients are one fill and one copy a tensor. The numbers are the same, but
where half precision uses a weight that is not cut twice (two sides): its gradients are added up in float32 here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """The first (or last) rows and columns of one tensor, or of several, one below the other."""

    shape: tuple[int, ...]
    turns: tuple[int, ...]
    """For each tensor, between how many groups its rows take turns: row t i + k is row i of group k."""
    dtype: torch.dtype | None
    """None: the tensors' own."""


def rows_of(part: Part) -> list[int]:
    """So many of each tensor."""
    each = part.shape[0] // sum(part.turns)
    return [turns * each for turns in part.turns]


def corner(whole: Tensor, shape: Sequence[int], last: bool) -> Tensor:
    for axis, size in enumerate(shape):
        if (spare := whole.shape[axis] - size) != 0:
            whole = whole.narrow(axis, spare if last else 0, size)
    return whole


def grouped(rows: Tensor, turns: int) -> Tensor:
    """Rows that take turns, as [group, row, ...]."""
    return rows.view(-1, turns, *rows.shape[1:]).transpose(0, 1)


def pieces(part: Part, joined: Tensor) -> list[Tensor]:
    """What came of each tensor, or goes there, as [group, row, ...]."""
    found, start = [], 0
    for rows, turns in zip(rows_of(part), part.turns, strict=True):
        found.append(joined.narrow(0, start, rows).view(turns, -1, *joined.shape[1:]))
        start += rows
    return found


def joined(part: Part, wholes: Sequence[Tensor], last: bool) -> Tensor:
    corners = [corner(whole, (rows, *part.shape[1:]), last) for whole, rows in zip(wholes, rows_of(part), strict=True)]
    if part.turns == (1,) and part.dtype in (None, wholes[0].dtype):
        return corners[0]
    out = wholes[0].new_empty(part.shape, dtype=part.dtype or wholes[0].dtype)
    for place, own, turns in zip(pieces(part, out), corners, part.turns, strict=True):
        place.copy_(grouped(own, turns))
    return out


class Cut(torch.autograd.Function):
    """Parts of tensors, which come one after the other in the order of the parts."""

    @staticmethod
    def forward(ctx: Any, parts: Sequence[Part], last: bool, *wholes: Tensor) -> tuple[Tensor, ...]:
        ctx.parts, ctx.last, ctx.wholes = parts, last, [(whole.shape, whole.dtype) for whole in wholes]
        ctx.set_materialize_grads(False)
        coming = iter(wholes)
        return tuple(joined(part, [next(coming) for _ in part.turns], last) for part in parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        found: list[Tensor | None] = []
        filled: list[Tensor] = []
        written: list[tuple[Tensor, Tensor]] = []
        coming = iter(ctx.wholes)
        for part, gradient in zip(ctx.parts, gradients, strict=True):
            own = [None] * len(part.turns) if gradient is None else pieces(part, gradient)
            for piece, rows, turns in zip(own, rows_of(part), part.turns, strict=True):
                shape, dtype = next(coming)
                if piece is None:
                    found.append(None)
                    continue
                whole = piece.new_empty(shape, dtype=dtype)
                place = corner(whole, (rows, *part.shape[1:]), ctx.last)
                if place.numel() < whole.numel():
                    filled.append(whole)
                written.append((grouped(place, turns), piece))
                found.append(whole)
        if filled:
            torch._foreach_zero_(filled)
        for place, piece in written:
            place.copy_(piece)
        return None, None, *found
