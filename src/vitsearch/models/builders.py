"""From the blueprint of a block or an entry to its layer: a new kind is one function and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from vitsearch import architecture as blueprint
from vitsearch.models import class_attention, convolution, layers

BlockBuilder = Callable[..., nn.Module]


def attention_block(block: blueprint.Attention, width: int, side: int, eps: float, drop_path: float) -> nn.Module:
    attention = layers.Attention(width, block, side)
    return layers.TransformerBlock(attention, width, block.hidden, eps, drop_path, block.layer_scale)


def class_block(block: blueprint.ClassAttention, width: int, side: int, eps: float, drop_path: float) -> nn.Module:
    return class_attention.ClassBlock(
        class_attention.ClassAttention(width, block), width, block.hidden, eps, drop_path, True
    )


def window_block(block: blueprint.WindowAttention, width: int, side: int, eps: float, drop_path: float) -> nn.Module:
    return layers.TransformerBlock(layers.WindowAttention(width, block, side), width, block.hidden, eps, drop_path)


def inverted_block(block: blueprint.InvertedResidual, width: int, side: int, eps: float, drop_path: float) -> nn.Module:
    return convolution.InvertedResidual(block, width, side, eps, drop_path)


def absent_block(block: blueprint.Absent, width: int, side: int, eps: float, drop_path: float) -> nn.Module:
    return nn.Identity()


BLOCK_BUILDERS: dict[type[Any], BlockBuilder] = {
    blueprint.Attention: attention_block,
    blueprint.ClassAttention: class_block,
    blueprint.WindowAttention: window_block,
    blueprint.InvertedResidual: inverted_block,
    blueprint.Absent: absent_block,
}


def convolution_entry(
    entry: blueprint.Convolution, before: int, width: int, side: int, eps: float, token: bool
) -> nn.Module:
    return convolution.Convolution(entry, before, width, side, eps)


def bottleneck_entry(
    entry: blueprint.Bottleneck, before: int, width: int, side: int, eps: float, token: bool
) -> nn.Module:
    return convolution.Inverted(before, width, entry.expansion, entry.kernel, entry.stride, side, eps)


ENTRY_BUILDERS: dict[type[Any], Callable[..., nn.Module]] = {
    blueprint.Patch: lambda entry, before, width, side, eps, token: layers.PatchEmbed(entry, before, width, eps),
    blueprint.Pool: lambda entry, before, width, side, eps, token: layers.Pooling(before, width, side, token),
    blueprint.Merge: lambda entry, before, width, side, eps, token: layers.Merging(before, width, side, eps),
    blueprint.Convolution: convolution_entry,
    blueprint.Bottleneck: bottleneck_entry,
}
