"""Crop, flip and resize of a whole batch as two batched matrix products, with Pillow's antialiased weights.

Resizing an axis-aligned box is separable: out = D in A^T with D [side, height] and A [side, width], where most weights
are zero. The weights depend on the length of the box alone, so they are computed once for every length; a box is a
shifted row of that table, a flip reads it backwards.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitsearch.data.augment import Crops, levels
from vitsearch.data.fusing import Fused

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def resize_weights(length: int, side: int, interpolation: str) -> Floats:
    """[side, length]: what Pillow gives each of `length` pixels in each of `side`."""
    scale = length / side
    stretch = max(scale, 1.0)  # shrinking widens the filter
    centres = (np.arange(side) + 0.5) * scale
    reach = (2.0 if interpolation == "bicubic" else 1.0) * stretch
    pixels = np.arange(length)
    first, last = np.floor(centres - reach + 0.5), np.floor(centres + reach + 0.5)  # as Pillow rounds its support
    distance = np.abs((pixels + 0.5 - centres[:, None]) / stretch)
    weights = cubic(distance) if interpolation == "bicubic" else np.maximum(1 - distance, 0)
    weights = weights * ((pixels >= first[:, None]) & (pixels < last[:, None]))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def cubic(distance: Floats) -> Floats:
    """Keys' cubic with a = -1/2."""
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return np.where(distance < 1, near, np.where(distance < 2, far, 0.0))


def shifted(table: Tensor, start: Tensor, length: Tensor, flipped: Tensor, least: int) -> Tensor:
    """Weights [B, side, stored] of boxes; a pixel outside its box has none. The filters are symmetric, so that a
    flipped box is one whose pixels are counted from its other end."""
    _, side, beyond = table.shape
    places = torch.arange(beyond - 1, device=table.device) - start[:, None]  # [B, stored]
    inside = (places >= 0) & (places < length[:, None])
    places = torch.where(flipped[:, None], length[:, None] - 1 - places, places)
    places = torch.where(inside, places, beyond - 1)
    rows = torch.arange(side, device=table.device)
    return table[(length - least)[:, None, None], rows[None, :, None], places[:, None, :]]


def chosen(stored: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    return stored[index].to(dtype)


class BatchResampler:
    """From stored uint8 images [N, stored, C, stored] to [B, C, side, side] that is still to be rounded.

    The channels lie inside the rows, so that both products see one matrix for each image.
    """

    def __init__(self, stored: int, side: int, interpolation: str, device: torch.device, every_length: bool) -> None:
        self.dtype = torch.float16 if device.type == "cuda" else torch.float32  # bytes are exact in both
        self.least = 1 if every_length else stored
        self.side = side
        table = torch.zeros(stored - self.least + 1, side, stored + 1, dtype=self.dtype)  # the last pixel: no weight
        for length in range(self.least, stored + 1):
            table[length - self.least, :, :length] = torch.from_numpy(resize_weights(length, side, interpolation))
        self.table = table.to(device)
        self.chosen, self.shifted, self.levels = (Fused(each, device) for each in (chosen, shifted, levels))

    def __call__(self, stored: Tensor, index: Tensor, crops: Crops) -> Tensor:
        count, side, channels = len(index), stored.shape[1], stored.shape[2]
        across = self.shifted(self.table, crops.left, crops.width, crops.flipped, self.least)
        down = self.shifted(self.table, crops.top, crops.height, torch.zeros_like(crops.flipped), self.least)
        pixels = self.chosen(stored, index, self.dtype).view(count, side * channels, side)
        rows = self.levels(pixels @ across.transpose(1, 2))  # Pillow rounds between its two passes as well
        found = down @ rows.view(count, side, channels * self.side)
        return found.view(count, self.side, channels, self.side).transpose(1, 2)
