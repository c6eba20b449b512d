"""Tables and first convolutions of one input, for a network of another.

| tensor                                       | at another image size                                                |
|----------------------------------------------|----------------------------------------------------------------------|
| `pos_embed` [1, tokens, C]                   | bicubic over the grid; the rows of class and other prefix tokens stay |
| `pos_embed` [1, C, side, side], timm's PiT   | bicubic                                                              |
| `relative.*` [2 distance + 2, D], AutoFormer | stays: offsets are clipped; only another distance changes it         |
| `relative_position_bias_table`, Swin         | stays while the window fits; else timm's interpolation               |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from timm.layers import resample_abs_pos_embed, resize_rel_pos_bias_table
from torch import Tensor, nn

RELATIVE_TABLES = ("key_rows", "key_columns", "value_rows", "value_columns")


def resize_position(table: Tensor, grid: tuple[int, ...], prefix: int) -> Tensor:
    """[1, prefix + old side ** 2, C] -> [1, prefix + rows * columns, C]."""
    resized = resample_abs_pos_embed(table, list(grid), num_prefix_tokens=prefix)
    return cast(Tensor, resized)


def resize_position_map(table: Tensor, grid: tuple[int, ...]) -> Tensor:
    """[1, C, old, old] -> [1, C, rows, columns]."""
    return F.interpolate(table.float(), size=grid, mode="bicubic", antialias=True).to(table.dtype)


def resize_relative(table: Tensor, rows: int) -> Tensor:
    """AutoFormer's table for another distance: [2 distance + 2, D] -> [rows, D], linear between offsets.

    Row 0, of the class token, stays. Offset 0 stays in the middle and the clipped offsets stay at the ends.
    """
    offsets = table[1:].T[None]  # [1, D, 2 distance + 1]
    resized = F.interpolate(offsets, size=rows - 1, mode="linear", align_corners=True)
    return torch.cat([table[:1], resized[0].T])


def resize_window_bias(table: Tensor, window: tuple[int, ...], shape: torch.Size) -> Tensor:
    """Swin's [(2 window - 1) ** 2, heads] for another window."""
    if table.shape[0] == 1:  # a window of one token knows no other offset
        return table.expand(shape).clone()
    resized = resize_rel_pos_bias_table(table, new_window_size=window, new_bias_shape=tuple(shape))
    return cast(Tensor, resized).to(table.dtype)


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """A first convolution [C, before, h, w] for another number of image channels, as timm does it for three.

    One channel gets the sum of all; more get them in turn, scaled so that equal channels give equal outputs.
    """
    before = weight.shape[1]
    if channels == 1:
        return weight.sum(1, keepdim=True)
    turns = math.ceil(channels / before)
    return weight.repeat(1, turns, 1, 1)[:, :channels] * (before / channels)


def resize_tables(state: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """The state with every table in the shape that the network has. What cannot be resized is left as it is."""
    wanted = {name: parameter.shape for name, parameter in network.named_parameters()}
    return {
        name: _resize(name, value, wanted[name], network)
        if name in wanted and value.shape != wanted[name] and value.ndim == len(wanted[name])
        else value
        for name, value in state.items()
    }


def _resize(name: str, value: Tensor, shape: torch.Size, network: nn.Module) -> Tensor:
    module, _, leaf = name.rpartition(".")
    if leaf == "pos_embed" and value.ndim == 4 and value.shape[1] == shape[1]:
        return resize_position_map(value, (shape[2], shape[3]))
    if leaf == "pos_embed" and value.ndim == 3 and value.shape[2] == shape[2]:
        grid = _grid(network)
        prefix = shape[1] - math.prod(grid)
        square = grid and math.isqrt(max(value.shape[1] - prefix, 0)) ** 2 + prefix == value.shape[1] > prefix
        return resize_position(value, grid, prefix) if square else value
    if value.ndim != 2 or value.shape[1] != shape[1]:
        return value
    if leaf in RELATIVE_TABLES and value.shape[0] > 1:
        return resize_relative(value, shape[0])
    if leaf == "relative_position_bias_table":
        window = _window(network.get_submodule(module))
        return resize_window_bias(value, window, shape) if window else value
    return value


def _grid(network: nn.Module) -> tuple[int, ...]:
    """Patches down and across: our networks know it, timm's have it on the patch embedding, some nowhere."""
    owner: Any = network if hasattr(network, "grid_size") else getattr(network, "patch_embed", None)
    return tuple(getattr(owner, "grid_size", ()))


def _window(attention: nn.Module) -> tuple[int, ...]:
    side: Any = getattr(attention, "window", None)
    return tuple(getattr(attention, "window_size", ())) or ((side, side) if side else ())
