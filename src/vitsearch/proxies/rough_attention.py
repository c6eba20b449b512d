"""Attention with relative position in float16, without a matrix of tokens by tokens in memory: see the kernels.

Torch's fused kernels do not give the same gradients twice, and know the relative position as channels more of queries,
keys and values alone, which must be written first. Here a head of an image is one program, or a few with a tile of
queries each, and nothing is added up in an order that could change.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from vitsearch.models.layers import fused_maps, relative_maps
from vitsearch.proxies.rough_attention_kernels import forward_kernel, keys_kernel, queries_kernel, tables_kernel

HOW: dict[str, dict[str, int]] = {
    "forward": {"queries": 64, "keys": 64, "num_warps": 4, "num_stages": 2},
    "queries": {"queries": 64, "keys": 64, "num_warps": 4, "num_stages": 2},
    "keys": {"queries": 64, "keys": 64, "num_warps": 4, "num_stages": 2},
    "tables": {"queries": 64, "num_warps": 8, "num_stages": 2},
}
"""Tiles of each kernel."""


class Grid(NamedTuple):
    """Constants of the relative position on a grid."""

    side: int
    offsets: int
    slots: int
    places: int
    cells: Tensor
    """[S, places]: which grid row, grid column or the class token a key is, and two ones: see `beside`."""
    folded: Tensor
    """[2 R, slots]: with tables one below the other, their transpose times this has the vectors of all slots."""


@lru_cache(maxsize=32)
def grid(side: int, distance: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> Grid:
    offsets, rows = 2 * side - 1, 2 * distance + 2
    slots, places = (max(16, triton.next_power_of_2(count)) for count in (2 * offsets + 1, 2 * side + 3))
    known = relative_maps(side, distance).key_cells
    cells = torch.zeros(len(known), places)
    cells[:, : known.shape[1]], cells[:, known.shape[1] : known.shape[1] + 2] = known, 1
    folded = torch.zeros(2 * rows, slots)
    choice = fused_maps(side, distance, head_dim).offset_choice.T
    folded[:rows, :offsets] = folded[rows:, offsets : 2 * offsets] = choice
    folded[0, 2 * offsets] = folded[rows, 2 * offsets] = 1
    return Grid(side, offsets, slots, places, cells.to(device, dtype), folded.to(device))


class Attended:
    """What comes of queries, keys and values [n, B, S, 3, H, D] and vectors for keys and for values [2, slots, D]."""

    def __init__(self, qkv: Tensor, vectors: Tensor, grid: Grid) -> None:
        networks, rows, tokens, _, heads, width = qkv.shape
        self.qkv, self.vectors, self.grid, self.heads = qkv, vectors, grid, heads
        self.images, self.root = networks * rows, 1 / math.sqrt(width)
        self.tile = {"heads": heads, "tokens": tokens, "width": width, "places": grid.places}
        self.relative = {"side": grid.side, "offsets": grid.offsets, "slots": grid.slots}
        self.out = qkv.new_empty(networks, rows, tokens, heads * width)
        self.extra, self.mass = qkv.new_empty(2, self.images * heads, tokens, grid.places)
        tensors = (qkv, vectors, grid.cells, self.out, self.extra, self.mass)
        forward_kernel[self.programs](*tensors, self.scale, **self.tile, **self.relative, **HOW["forward"])

    @property
    def scale(self) -> float:
        """Of logits, for powers of two."""
        return self.root * math.log2(math.e)

    def programs(self, how: dict[str, Any]) -> tuple[int, int]:
        return self.images * self.heads, triton.cdiv(how["tokens"], how["queries"])

    def back(self, dout: Tensor) -> tuple[Tensor, Tensor]:
        """From the gradient of the outputs that of queries, keys and values, and of the vectors for each network."""
        dqkv, (dextra, back) = torch.empty_like(self.qkv), self.extra.new_empty(2, *self.extra.shape)
        shared = (self.qkv, self.grid.cells, self.extra, dout, dqkv, dextra)
        tensors = (self.qkv, self.vectors, self.grid.cells, self.out, self.extra, dout, dqkv, dextra, back)
        both = (self.scale, self.root)
        queries_kernel[self.programs](*tensors, *both, **self.tile, **self.relative, **HOW["queries"])
        keys_kernel[(self.images * self.heads,)](*shared, *both, **self.tile, **HOW["keys"])
        found = dout.new_empty(self.images, *self.vectors.shape, dtype=torch.float32)
        given = (self.qkv, dout, self.mass, back, found)
        tables_kernel[(self.images,)](*given, **self.tile, **self.relative, **HOW["tables"])
        return dqkv, found.view(len(dout), -1, *self.vectors.shape).sum(1)
