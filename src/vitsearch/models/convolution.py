"""The layers of convolutional networks. Between layers, maps are tokens [B, N, C], as everywhere else."""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from vitsearch import architecture as blueprint
from vitsearch.models.layers import blank


def as_map(tokens: Tensor, side: int) -> Tensor:
    """[B, N, C] to [B, C, side, side]: a view."""
    return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, side, side)


def as_tokens(x: Tensor) -> Tensor:
    """[B, C, side, side] to [B, N, C]: a view of what `as_map` gave."""
    return x.flatten(2).transpose(1, 2)


class Convolution(nn.Module):
    """MobileNetV2's first and last layer. Of an image, [B, channels, side, side], or of tokens; to tokens."""

    def __init__(self, entry: blueprint.Convolution, before: int, width: int, side: int, norm_eps: float) -> None:
        super().__init__()
        self.side = side  # of the map that comes in
        kernel = entry.kernel
        self.proj = blank(nn.Conv2d, before, width, kernel, stride=entry.stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(width, eps=norm_eps)
        self.act = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.ndim == 4 else as_map(x, self.side)
        # from here on maps lie in memory as tokens do, channels last: twice as fast on a CPU
        return as_tokens(self.act(self.norm(self.proj(x)))).contiguous()


class Inverted(nn.Module):
    """MobileNetV2: to a wider map, a convolution of each channel alone, back; a norm after each. Tokens to tokens."""

    def __init__(
        self, before: int, width: int, expansion: int, kernel: int, stride: int, side: int, norm_eps: float
    ) -> None:
        super().__init__()
        self.side = side  # of the map that comes in
        hidden = before * expansion
        self.expand: nn.Module = nn.Identity()
        self.norm1: nn.Module = nn.Identity()
        self.act1: nn.Module = nn.Identity()
        if expansion > 1:
            self.expand = blank(nn.Conv2d, before, hidden, 1, bias=False)
            self.norm1, self.act1 = nn.BatchNorm2d(hidden, eps=norm_eps), nn.ReLU6()
        self.depthwise = blank(
            nn.Conv2d, hidden, hidden, kernel, stride=stride, padding=kernel // 2, groups=hidden, bias=False
        )
        self.norm2, self.act2 = nn.BatchNorm2d(hidden, eps=norm_eps), nn.ReLU6()
        self.project = blank(nn.Conv2d, hidden, width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(width, eps=norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.norm1(self.expand(as_map(x, self.side))))
        x = self.act2(self.norm2(self.depthwise(x)))
        return as_tokens(self.norm3(self.project(x)))


class InvertedResidual(Inverted):
    """The same with what came in added."""

    def __init__(
        self, block: blueprint.InvertedResidual, width: int, side: int, norm_eps: float, drop_path: float
    ) -> None:
        super().__init__(width, width, block.expansion, block.kernel, 1, side, norm_eps)
        self.drop_path1: nn.Module = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return x + cast(Tensor, self.drop_path1(super().forward(x)))


def resized(images: Tensor, side: int | None) -> Tensor:
    """To a network's own resolution, where it has one: bilinear, smoothed where it shrinks."""
    if side is None or images.shape[-1] == side:
        return images
    smaller = images.shape[-1] > side
    return F.interpolate(images, size=(side, side), mode="bilinear", align_corners=False, antialias=smaller)
