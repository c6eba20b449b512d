"""PreNAS's scores as tables: one forward and backward pass of the largest network gives those of the whole space.

A network is a part of the largest one and inherits its weights and gradients, so its score is a sum over parts:

    score = frame[width] + sum over blocks l of  block[width, l] + heads[width, l, heads_l] + ratios[width, l, ratio_l]

where a head brings its rows of q, k and v, their biases and its columns of the projection, and an MLP step its rows and
biases of fc1 and its columns of fc2. W widths, L blocks, H and R choices of heads and MLP ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from vitsearch.architecture import Architecture, Attention
from vitsearch.data import Batch
from vitsearch.models.supernet import Supernet
from vitsearch.proxies.base import full_precision
from vitsearch.spaces.isotropic import Isotropic

Variant: TypeAlias = Literal["paper", "code", "snip"]
Array: TypeAlias = NDArray[np.float64]
CODE_DROP_PATH = 0.1
VECTORS = ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "attn.proj.bias", "mlp.fc2.bias")
"""What a block has for every channel, whatever its heads and ratio."""
Products: TypeAlias = Mapping[str, Tensor]
"""|weight * gradient| by the supernet's names, float64 on the CPU."""


@dataclass(frozen=True, kw_only=True)
class Tables:
    frame: Array
    """[W]: patch embedding, tokens, position, final norm, classifier."""
    block: Array
    """[W, L]: what a block has whatever its heads and ratio: norms, output biases, relative tables."""
    heads: Array
    """[W, L, H]"""
    ratios: Array
    """[W, L, R]"""

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name).tolist() for field in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tables:
        return cls(**{field.name: np.array(data[field.name], dtype=np.float64) for field in fields(cls)})

    @classmethod
    def mean(cls, tables: Sequence[Tables]) -> Tables:
        return cls(**{f.name: np.mean([getattr(one, f.name) for one in tables], axis=0) for f in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class ScoreTables:
    """What both steps of the choice need: `normalised` compares isomers, `snip` the best of each kind."""

    snip: Tables
    normalised: Tables

    def to_json(self) -> dict[str, Any]:
        return {"snip": self.snip.to_json(), "normalised": self.normalised.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ScoreTables:
        return cls(snip=Tables.from_json(data["snip"]), normalised=Tables.from_json(data["normalised"]))

    @classmethod
    def mean(cls, draws: Sequence[ScoreTables]) -> ScoreTables:
        """The scores of networks are sums of entries, so the mean table gives every network its mean score."""
        snip, normalised = [one.snip for one in draws], [one.normalised for one in draws]
        return cls(snip=Tables.mean(snip), normalised=Tables.mean(normalised))


def score_tables(supernet: Supernet, batch: Batch, variant: Variant = "paper") -> ScoreTables:
    """The tables of one draw. `code` is the public code's (`code_tables`), `snip` does not normalise (Table 4)."""
    weights, gradients = differentiate(supernet, batch, supernet.envelope, variant)
    products = {name: (weight.double() * gradients[name].double()).abs() for name, weight in weights.items()}
    space = cast(Isotropic, supernet.space)
    if variant == "code":
        snip = plain_tables(space, products, tables=False)
        return ScoreTables(snip=snip, normalised=code_tables(space, weights, gradients))
    snip = plain_tables(space, products)
    if variant == "snip":
        return ScoreTables(snip=snip, normalised=snip)
    return ScoreTables(snip=snip, normalised=normalised_tables(snip, block_totals(space, products)))


def differentiate(
    supernet: Supernet, batch: Batch, largest: Architecture, variant: Variant = "paper"
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and gradients of the largest network, on the CPU.

    The paper's loss is the mean cross-entropy, in evaluation mode. The public code sums the logits, in training mode.
    """
    parameters = dict(supernet.named_parameters())
    device, dtype = supernet.head.weight.device, supernet.head.weight.dtype
    images, labels = batch.images.to(device, dtype), batch.labels.to(device)
    supernet.train(variant == "code")
    with full_precision(), torch.enable_grad():
        logits = supernet(images, largest)
        loss = logits.sum() if variant == "code" else F.cross_entropy(logits, labels)
        found = torch.autograd.grad(loss, list(parameters.values()))
    weights = {name: parameter.detach().cpu() for name, parameter in parameters.items()}
    return weights, {name: gradient.cpu() for name, gradient in zip(parameters, found, strict=True)}


def plain_tables(space: Isotropic, products: Products, tables: bool = True) -> Tables:
    """SNIP (Eq. 4) of every network with the weights and gradients it inherits; `tables` counts tokens and tables."""
    frame = [name for name in products if ".blocks." not in name and (tables or name not in ("cls_token", "pos_embed"))]
    parts = [_block_parts(space, products, number, tables) for number in range(max(space.depth))]
    return Tables(
        frame=np.array([sum(_leading(products[n], n, width) for n in frame) for width in space.embed_dim]),
        block=np.stack([fixed for fixed, _, _ in parts], 1),
        heads=np.stack([heads for _, heads, _ in parts], 1),
        ratios=np.stack([ratios for _, _, ratios in parts], 1),
    )


def _leading(product: Tensor, name: str, width: int) -> float:
    """The part of a tensor outside the blocks that a network of this width has."""
    if name == "head.bias":
        return float(product.sum())
    of_outputs = ".entry.proj." in name
    return float((product[:width] if of_outputs else product[..., :width]).sum())


def _block_parts(space: Isotropic, products: Products, number: int, tables: bool) -> tuple[Array, Array, Array]:
    """[W], [W, H], [W, R] of one block."""
    own = {name.rpartition(f".blocks.{number}.")[2]: p for name, p in products.items() if f".blocks.{number}." in name}
    vectors = [own[name] for name in VECTORS]
    relative = sum(float(p.sum()) for name, p in own.items() if tables and ".relative." in name)
    fixed, heads, ratios = [], [], []
    for width in space.embed_dim:
        fixed.append(relative + sum(float(vector[:width].sum()) for vector in vectors))
        rows = (own["attn.qkv.weight"][:, :width].sum(1) + own["attn.qkv.bias"]).cumsum(0)  # q, k and v take turns
        columns = own["attn.proj.weight"][:width].sum(0).cumsum(0)
        inner = [block.heads * block.head_dim for block in blocks_by_heads(space, width)]
        heads.append([float(rows[3 * size - 1] + columns[size - 1]) for size in inner])
        units = own["mlp.fc1.weight"][:, :width].sum(1) + own["mlp.fc1.bias"] + own["mlp.fc2.weight"][:width].sum(0)
        units = units.cumsum(0)
        ratios.append([float(units[block.hidden - 1]) for block in blocks_by_ratio(space, width)])
    return np.array(fixed), np.array(heads), np.array(ratios)


def block_totals(space: Isotropic, products: Products) -> Array:
    """Z of every block: the sum over all of its parameters in the pass."""
    totals = [
        sum(float(product.sum()) for name, product in products.items() if f".blocks.{number}." in name)
        for number in range(max(space.depth))
    ]
    return np.array(totals)


def normalised_tables(snip: Tables, totals: Array) -> Tables:
    """Normalised SNIP (Eq. 13): each block's share of what the whole block has; nothing but blocks counts."""
    return Tables(
        frame=np.zeros_like(snip.frame),
        block=snip.block / totals,
        heads=snip.heads / totals[:, None],
        ratios=snip.ratios / totals[:, None],
    )


def code_tables(space: Isotropic, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> Tables:
    """The public code's scores in place of Eq. 13.

    |w g| over sum |w| times sum |g| of its own matrix; of heads the q, k and v weights alone, of MLP steps the two
    weights alone; always at the largest width, so that blocks rank the same at every width.
    """
    width, depth = max(space.embed_dim), max(space.depth)
    inner = [block.heads * block.head_dim for block in blocks_by_heads(space, width)]
    hidden = [block.hidden for block in blocks_by_ratio(space, width)]
    heads, ratios = np.zeros((depth, len(inner))), np.zeros((depth, len(hidden)))
    for number in range(depth):
        rows = _balanced(f"stages.0.blocks.{number}.attn.qkv.weight", weights, gradients).sum(1).cumsum(0)
        heads[number] = [float(rows[3 * size - 1]) for size in inner]
        units = _balanced(f"stages.0.blocks.{number}.mlp.fc1.weight", weights, gradients).sum(1)
        units = (units + _balanced(f"stages.0.blocks.{number}.mlp.fc2.weight", weights, gradients).sum(0)).cumsum(0)
        ratios[number] = [float(units[size - 1]) for size in hidden]
    count = len(space.embed_dim)
    return Tables(
        frame=np.zeros(count),
        block=np.zeros((count, depth)),
        heads=np.stack([heads - heads[:, :1]] * count),  # steps above the lowest choice
        ratios=np.stack([ratios - ratios[:, :1]] * count),
    )


def _balanced(name: str, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> Tensor:
    weight, gradient = weights[name].double(), gradients[name].double()
    return (weight * gradient).abs() / (weight.abs().sum() * gradient.abs().sum())


def code_images(batch: Batch) -> Batch:
    """The public code's noise: normal with ImageNet's mean and deviation of each channel."""
    mean, deviation = torch.tensor(IMAGENET_DEFAULT_MEAN), torch.tensor(IMAGENET_DEFAULT_STD)
    return Batch(batch.images * deviation.view(3, 1, 1) + mean.view(3, 1, 1), batch.labels)


def blocks_by_heads(space: Isotropic, width: int) -> list[Attention]:
    return [_block(space, width, heads, space.mlp_ratio[0]) for heads in sorted(space.num_heads)]


def blocks_by_ratio(space: Isotropic, width: int) -> list[Attention]:
    return [_block(space, width, space.num_heads[0], ratio) for ratio in sorted(space.mlp_ratio)]


def _block(space: Isotropic, width: int, heads: int, ratio: float) -> Attention:
    return cast(Attention, one_block(space, width, heads, ratio).stages[0].blocks[0])


def one_block(space: Isotropic, width: int, heads: int, ratio: float) -> Architecture:
    """The blueprint of a network with a single block, inside the space or not."""
    return space.decode(space.settings(embed_dim=width, depth=1, num_heads=[heads], mlp_ratio=[ratio]))
