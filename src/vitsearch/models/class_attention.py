"""CaiT's end: blocks in which the class token alone looks at all tokens, and changes (Touvron et al., ICCV 2021)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from vitsearch import architecture as blueprint
from vitsearch.models.layers import TransformerBlock, attend, blank


class ClassAttention(nn.Module):
    """One query, the class token's, over all tokens."""

    def __init__(self, width: int, block: blueprint.ClassAttention) -> None:
        super().__init__()
        inner = block.heads * block.head_dim
        self.heads, self.scale, self.fused = block.heads, block.head_dim**-0.5, True
        self.q = blank(nn.Linear, width, inner)
        self.k = blank(nn.Linear, width, inner)
        self.v = blank(nn.Linear, width, inner)
        self.proj = blank(nn.Linear, inner, width)

    def forward(self, x: Tensor) -> Tensor:
        given = self.q(x[:, :1]), self.k(x), self.v(x)
        q, k, v = (one.reshape(*one.shape[:2], self.heads, -1).transpose(1, 2) for one in given)
        out = attend(q, k, v, self.scale) if self.fused else (q @ k.transpose(-2, -1) * self.scale).softmax(-1) @ v
        return cast(Tensor, self.proj(out.transpose(1, 2).flatten(2)))


class ClassBlock(TransformerBlock):
    """The class token, first of all tokens, is the only one that changes."""

    def forward(self, x: Tensor) -> Tensor:
        token = x[:, :1] + self.drop_path1(self.scale1(self.attn(self.norm1(x))))
        token = token + self.drop_path2(self.scale2(self.mlp(self.norm2(token))))
        return torch.cat([token, x[:, 1:]], 1)
