"""Crop, flip and resize of a whole batch as two batched matrix products, with Pillow's antialiased weights.

Resizing an axis-aligned box is separable: out = D in A^T with D [side, height] and A [side, width], where most weights
are zero. The weights depend on the length of the box alone, so they are computed once for every length; a box is a
shifted row of that table, a flip reads it backwards.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitsearch.data.augment import Crops


def resize_weights(length: int, side: int, interpolation: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
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


def cubic(
    distance: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Keys' cubic with a = -1/2."""
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return np.where(distance < 1, near, np.where(distance < 2, far, 0.0))


class BatchResampler:
    """From stored uint8 images [B, stored, C, stored] to uint8 [B, C, side, side].

    The channels lie inside the rows, so that both products see one matrix for each image.
    """

    def __init__(self, stored: int, side: int, interpolation: str, device: torch.device, every_length: bool) -> None:
        self.dtype = torch.float16 if device.type == "cuda" else torch.float32  # bytes are exact in both
        self.least = 1 if every_length else stored
        self.stored, self.side = stored, side
        table = torch.zeros(stored - self.least + 1, side, stored + 1, dtype=self.dtype)  # the last pixel: no weight
        for length in range(self.least, stored + 1):
            table[length - self.least, :, :length] = torch.from_numpy(resize_weights(length, side, interpolation))
        self.table = table.to(device)
        self.pixels = torch.arange(stored, device=device)
        self.rows = torch.arange(side, device=device)

    def weights(self, start: Tensor, length: Tensor, flipped: Tensor | None) -> Tensor:
        """[B, side, stored]"""
        pixels = self.pixels - start[:, None]
        pixels = torch.where((pixels >= 0) & (pixels < length[:, None]), pixels, self.stored)
        rows = self.rows.expand(len(start), -1)
        if flipped is not None:
            rows = torch.where(flipped[:, None], self.side - 1 - rows, rows)
        return self.table[(length - self.least)[:, None, None], rows[:, :, None], pixels[:, None, :]]

    def __call__(self, images: Tensor, crops: Crops) -> Tensor:
        count, stored, channels, _ = images.shape
        across = self.weights(crops.left, crops.width, crops.flipped)
        down = self.weights(crops.top, crops.height, None)
        rows = images.to(self.dtype).view(count, stored * channels, stored) @ across.transpose(1, 2)
        # Pillow rounds between its two passes as well
        rows = rows.round_().clamp_(0, 255).view(count, stored, channels * self.side)
        found = (down @ rows).round_().clamp_(0, 255).view(count, self.side, channels, self.side)
        return found.transpose(1, 2).to(torch.uint8, memory_format=torch.contiguous_format)
