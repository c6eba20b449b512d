"""Relative position as channels beside queries, keys and values, for networks that go together.

A query's products with the vectors of all offsets go to the places that keys have: grid rows, grid columns, and the
class token's.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch.models.layers import relative_maps

WHOLE = 8
"""Numbers that a GPU loads at once in half precision."""
FAR = -3e4
"""A logit that leaves nothing, which float16 still has."""


@lru_cache(maxsize=32)
def to_places(side: int, distance: int, tokens: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """From offsets to places, for each query: [S, 2 R, 2 side + 1 + padding]; and the place of each key.

    Where there are more tokens than the grid has, these are `FAR` from all queries: a place more, that every query has.
    """
    maps = relative_maps(side, distance)
    known, rows = maps.row_choice.shape[:2]
    choice = torch.zeros(known, 2 * rows, 2 * side + 1)
    choice[:, :rows, :side], choice[:, rows:, side:-1] = maps.row_choice, maps.column_choice
    choice[:, 0, -1] = choice[:, rows, -1] = 1.0
    more, spare = -choice.shape[-1] % WHOLE, tokens - known
    choice, cells = F.pad(choice, (0, more)), F.pad(maps.key_cells, (0, more))  # fused kernels want whole vectors
    if spare:
        choice = F.pad(choice, (0, 0, 0, WHOLE - 2 * rows % WHOLE, 0, spare))
        choice[:, 2 * rows, 2 * side + 1] = 1.0
        cells = F.pad(cells, (0, 0, 0, spare))
        cells[known:, 2 * side + 1] = FAR
    return choice.to(device, dtype), cells.to(device, dtype)


@lru_cache(maxsize=32)
def one_at(place: int, slots: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    return torch.eye(slots, device=device, dtype=dtype)[place] if place < slots else None


def per_token(x: Tensor, choice: Tensor) -> Tensor:
    """[..., S, a] times [S, a, b]: another matrix for each token."""
    lead = x.shape[:-2]
    return (x.flatten(0, -3).transpose(0, 1) @ choice).transpose(0, 1).reshape(*lead, x.shape[-2], choice.shape[-1])
