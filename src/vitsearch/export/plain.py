"""The layers of blueprints once more, in plain torch and by their definitions: what single-file exports are made of.

Parameters have the names that `vitsearch.models.layers` gives them. Every export compares the two.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PatchEmbed(nn.Module):
    """Image [B, channels, side, side] to tokens [B, N, width]."""

    def __init__(self, channels: int, width: int, size: int, stride: int, norm_eps: float | None = None) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, size, stride=stride)
        self.norm = nn.Identity() if norm_eps is None else nn.LayerNorm(width, eps=norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.proj(x).flatten(2).transpose(1, 2))
        return x


class Pooling(nn.Module):
    """PiT: a strided depth-wise convolution over the map, a linear layer for the class token."""

    def __init__(self, before: int, width: int, side: int, class_token: bool) -> None:
        super().__init__()
        self.side, self.prefix = side, int(class_token)
        self.conv = nn.Conv2d(before, width, 3, stride=2, padding=1, groups=before)
        if class_token:
            self.fc = nn.Linear(before, width)

    def forward(self, x: Tensor) -> Tensor:
        patches = x[:, self.prefix :].transpose(1, 2).reshape(x.shape[0], -1, self.side, self.side)
        pooled: Tensor = self.conv(patches).flatten(2).transpose(1, 2)
        return torch.cat([self.fc(x[:, :1]), pooled], 1) if self.prefix else pooled


class Merging(nn.Module):
    """Swin: the four neighbours of a 2x2 square side by side, norm, linear without bias. An odd side is padded."""

    def __init__(self, before: int, width: int, side: int, norm_eps: float) -> None:
        super().__init__()
        self.side = side
        self.norm_corners = nn.LayerNorm(4 * before, eps=norm_eps)
        self.reduction = nn.Linear(4 * before, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], self.side, self.side, -1)
        x = F.pad(x, (0, 0, 0, self.side % 2, 0, self.side % 2))
        corners = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        x = self.reduction(self.norm_corners(torch.cat(corners, -1).flatten(1, 2)))
        return x


class Convolution(nn.Module):
    """MobileNetV2's first and last layer, of an image or of tokens, with BatchNorm and ReLU6; to tokens."""

    def __init__(self, before: int, width: int, side: int, kernel: int, stride: int, norm_eps: float) -> None:
        super().__init__()
        self.side = side
        self.proj = nn.Conv2d(before, width, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(width, eps=norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:
            x = x.transpose(1, 2).reshape(x.shape[0], -1, self.side, self.side)
        return F.relu6(self.norm(self.proj(x))).flatten(2).transpose(1, 2)


class Inverted(nn.Module):
    """MobileNetV2: wider, each channel alone, back, with BatchNorm after each; `residual` adds what came in."""

    def __init__(
        self,
        before: int,
        width: int,
        side: int,
        expansion: int,
        kernel: int,
        stride: int,
        norm_eps: float,
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.side, self.wider, self.residual = side, expansion > 1, residual
        hidden = before * expansion
        if self.wider:
            self.expand = nn.Conv2d(before, hidden, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(hidden, eps=norm_eps)
        self.depthwise = nn.Conv2d(hidden, hidden, kernel, stride, kernel // 2, groups=hidden, bias=False)
        self.norm2 = nn.BatchNorm2d(hidden, eps=norm_eps)
        self.project = nn.Conv2d(hidden, width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(width, eps=norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        came = x
        x = x.transpose(1, 2).reshape(x.shape[0], -1, self.side, self.side)
        if self.wider:
            x = F.relu6(self.norm1(self.expand(x)))
        x = F.relu6(self.norm2(self.depthwise(x)))
        x = self.norm3(self.project(x)).flatten(2).transpose(1, 2)
        return came + x if self.residual else x


class RelativePosition(nn.Module):
    """AutoFormer's vectors for the row and the column offset of every (query, key) pair; row 0: the class token."""

    def __init__(self, head_dim: int, distance: int, side: int) -> None:
        super().__init__()
        for name in ("key_rows", "key_columns", "value_rows", "value_columns"):
            self.register_parameter(name, nn.Parameter(torch.zeros(2 * distance + 2, head_dim)))
        patch = torch.arange(side * side)
        for name, place in (("row", patch // side), ("column", patch % side)):
            offsets = (place[None, :] - place[:, None]).clamp(-distance, distance) + distance + 1  # [query, key]
            self.register_buffer(name, F.pad(offsets, (1, 0, 1, 0)), persistent=False)

    def forward(self, rows: Tensor, columns: Tensor) -> Tensor:
        """[S, S, head_dim]."""
        return rows[self.get_buffer("row")] + columns[self.get_buffer("column")]


class Attention(nn.Module):
    """Multi-head self-attention over all tokens; `distance` > 0 adds relative position to keys and values.

    Products are multiplied by `scale_width` ** -0.5, the width of a head unless given.
    """

    def __init__(
        self, width: int, heads: int, head_dim: int, side: int, distance: int = 0, scale_width: int | None = None
    ) -> None:
        super().__init__()
        self.heads, self.scale = heads, (scale_width or head_dim) ** -0.5
        self.qkv = nn.Linear(width, 3 * heads * head_dim)
        self.proj = nn.Linear(heads * head_dim, width)
        self.relative = RelativePosition(head_dim, distance, side) if distance else None

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # each [B, H, S, D]
        logits = q @ k.transpose(-2, -1)
        if self.relative is not None:
            vectors = self.relative(self.relative.key_rows, self.relative.key_columns)
            logits = logits + torch.einsum("bhid,ijd->bhij", q, vectors)
        weights = (logits * self.scale).softmax(-1)
        out = weights @ v
        if self.relative is not None:
            vectors = self.relative(self.relative.value_rows, self.relative.value_columns)
            out = out + torch.einsum("bhij,ijd->bhid", weights, vectors)
        x = self.proj(out.transpose(1, 2).reshape(batch, tokens, -1))
        return x


class WindowAttention(nn.Module):
    """Attention inside square windows, shifted or not, with a bias for each head and offset (Swin)."""

    def __init__(self, width: int, heads: int, head_dim: int, side: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, head_dim**-0.5
        self.side, self.window, self.shift = side, window, shift
        self.count = -(-side // window)  # windows down and across, over a padded map
        self.qkv = nn.Linear(width, 3 * heads * head_dim)
        self.proj = nn.Linear(heads * head_dim, width)
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        row, column = torch.arange(window**2) // window, torch.arange(window**2) % window
        down, across = (place[:, None] - place[None, :] + window - 1 for place in (row, column))
        self.register_buffer("index", down * (2 * window - 1) + across, persistent=False)  # [query, key]
        self.register_buffer("mask", self.shift_mask(), persistent=False)

    def shift_mask(self) -> Tensor:
        """[windows, 1, tokens, tokens]: -100 between tokens that only the cyclic shift brought together."""
        padded = self.count * self.window
        along = torch.arange(padded)
        band = (along >= padded - self.window).long() + (along >= padded - self.shift).long()
        if not self.shift:
            band = torch.zeros_like(along)
        region = self.cut((band[:, None] * 3 + band[None, :])[None, :, :, None])[..., 0]
        return -100.0 * (region[:, None, :, None] != region[:, None, None, :]).float()

    def cut(self, x: Tensor) -> Tensor:
        """[B, padded, padded, C] -> [B windows, tokens, C]."""
        shape = (x.shape[0], self.count, self.window, self.count, self.window, x.shape[-1])
        return x.reshape(shape).transpose(2, 3).reshape(-1, self.window**2, x.shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        batch, _, width = x.shape
        padded = self.count * self.window
        x = x.reshape(batch, self.side, self.side, width)
        x = F.pad(x, (0, 0, 0, padded - self.side, 0, padded - self.side))
        x = self.cut(torch.roll(x, (-self.shift, -self.shift), (1, 2)))
        windows, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(windows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.relative_position_bias_table[self.get_buffer("index")].permute(2, 0, 1)
        logits = (q @ k.transpose(-2, -1)) * self.scale + bias + self.get_buffer("mask").repeat(batch, 1, 1, 1)
        x = self.proj((logits.softmax(-1) @ v).transpose(1, 2).reshape(windows, tokens, -1))
        x = x.reshape(batch, self.count, self.count, self.window, self.window, width).transpose(2, 3)
        x = torch.roll(x.reshape(batch, padded, padded, width), (self.shift, self.shift), (1, 2))
        return x[:, : self.side, : self.side].reshape(batch, -1, width)


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc2(F.gelu(self.fc1(x)))
        return x


class ClassAttention(nn.Module):
    """One query, the class token's, over all tokens (CaiT)."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, head_dim**-0.5
        self.q = nn.Linear(width, heads * head_dim)
        self.k = nn.Linear(width, heads * head_dim)
        self.v = nn.Linear(width, heads * head_dim)
        self.proj = nn.Linear(heads * head_dim, width)

    def forward(self, x: Tensor) -> Tensor:
        given = self.q(x[:, :1]), self.k(x), self.v(x)
        q, k, v = (one.reshape(x.shape[0], -1, self.heads, self.q.out_features // self.heads) for one in given)
        weights = (torch.einsum("bihd,bjhd->bhij", q, k) * self.scale).softmax(-1)
        x = self.proj(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))
        return x


class LayerScale(nn.Module):
    """A factor for each channel (CaiT)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """Pre-norm: x + attention(norm(x)), then x + mlp(norm(x)); `late_token` leaves the class token as it is."""

    def __init__(
        self,
        attention: nn.Module,
        width: int,
        hidden: int,
        norm_eps: float,
        layer_scale: bool = False,
        late_token: bool = False,
    ) -> None:
        super().__init__()
        self.late_token = late_token
        self.norm1 = nn.LayerNorm(width, eps=norm_eps)
        self.attn = attention
        self.scale1 = LayerScale(width) if layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = Mlp(width, hidden)
        self.scale2 = LayerScale(width) if layer_scale else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        token, x = x[:, : int(self.late_token)], x[:, int(self.late_token) :]
        x = x + self.scale1(self.attn(self.norm1(x)))
        x = x + self.scale2(self.mlp(self.norm2(x)))
        return torch.cat([token, x], 1)


class ClassBlock(nn.Module):
    """The class token, first of all tokens, is the only one that changes (CaiT)."""

    def __init__(self, attention: nn.Module, width: int, hidden: int, norm_eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=norm_eps)
        self.attn = attention
        self.scale1 = LayerScale(width)
        self.norm2 = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = Mlp(width, hidden)
        self.scale2 = LayerScale(width)

    def forward(self, x: Tensor) -> Tensor:
        token = x[:, :1] + self.scale1(self.attn(self.norm1(x)))
        token = token + self.scale2(self.mlp(self.norm2(token)))
        return torch.cat([token, x[:, 1:]], 1)


class Stage(nn.Module):
    """How its map of tokens is made, then its blocks."""

    def __init__(self, entry: nn.Module, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.entry = entry
        self.blocks = nn.ModuleList(blocks)
