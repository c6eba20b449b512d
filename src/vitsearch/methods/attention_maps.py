"""Where blocks of window attention look (S3, Figures 4 and 8): how far, and whether heads look alike.

rows = attention_facts(network, images)     # one row for each block
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor

from vitsearch.errors import VitsearchError
from vitsearch.models import VisionNetwork
from vitsearch.models.layers import TransformerBlock, WindowAttention
from vitsearch.models.vit import NetworkStage

ATTENDED = 1e-20
"""What is masked has a weight of about e^-100, and is not attended to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFacts:
    """Of one block, over all images, heads and queries; what pads a map is left out.

    Stage and block count from 1, as in the paper.
    """

    stage: int
    block: int
    window: int
    mean_distance: float
    """Between a query and the keys it attends to most, in tokens of its stage."""
    median_distance: float
    pixels: float
    """The mean distance in pixels of the image."""
    similarity: float | None
    """Cosine between the attention of two heads, mean over pairs and queries; None for one head."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def attention_facts(network: VisionNetwork, images: Tensor, top: int = 5) -> list[AttentionFacts]:
    """The network's blocks in order. `top` keys of each query are looked at, fewer where a window has fewer."""
    if top < 1:
        raise VitsearchError(f"`top` must be at least 1, but got {top}")
    rows: list[AttentionFacts] = []
    x = images
    for index, stage in enumerate(cast(list[NetworkStage], list(network.stages)), 1):
        x = stage.entry(x)
        for number, block in enumerate(cast(list[TransformerBlock], list(stage.blocks)), 1):
            attention = block.attn
            if not isinstance(attention, WindowAttention):
                raise VitsearchError("`network` must have blocks of window attention alone, as those of s3")
            real = real_tokens(attention, x)
            weights = attention.weights(block.norm1(x)) * real[:, None, None]
            distances = top_distances(weights, real, attention.window, top)
            each = float(distances.mean())
            row = AttentionFacts(
                stage=index,
                block=number,
                window=attention.window,
                mean_distance=each,
                median_distance=float(distances.median()),
                pixels=each * images.shape[-1] / attention.side,
                similarity=head_similarity(weights, real),
            )
            rows.append(row)
            x = block(x)
    return rows


def real_tokens(attention: WindowAttention, x: Tensor) -> Tensor:
    """[W, S]: the tokens of all windows that are of the map `x`, and not beside it, where it is padded."""
    return attention._shifted_windows(torch.ones_like(x[..., :1]))[..., 0].bool()


def top_distances(weights: Tensor, real: Tensor, window: int, top: int) -> Tensor:
    """Of each real query in each head: the mean distance in tokens to the `top` keys it attends to most.

    In corners of shifted windows fewer than `top` keys may be attended to at all: the mean is over those.
    """
    along = torch.arange(window, device=weights.device)
    places = torch.cartesian_prod(along, along).reshape(-1, 2).to(weights.dtype)
    between = torch.cdist(places[None], places[None])[0]  # [S, S]
    best = weights.topk(min(top, weights.shape[-1]), dim=-1)
    looked = best.values > ATTENDED
    distances = between.expand_as(weights).gather(-1, best.indices) * looked
    return (distances.sum(-1) / looked.sum(-1).clamp(min=1)).transpose(1, 2)[real]  # [W, S, H] -> [queries, H]


def head_similarity(weights: Tensor, real: Tensor) -> float | None:
    heads = weights.shape[1]
    if heads < 2:
        return None
    unit = torch.nn.functional.normalize(weights, dim=-1)
    alike = torch.einsum("whsk,wgsk->wshg", unit, unit)[real]  # [queries, H, H]
    return float((alike.sum((1, 2)) - heads).mean() / (heads * (heads - 1)))
