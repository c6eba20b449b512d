"""Distances and similarities against loops, and attention that is known."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.methods.attention_maps import attention_facts, head_similarity, top_distances
from vitsearch.models import build
from vitsearch.models.layers import WindowAttention
from vitsearch.spaces import SPACES

SPACE = SPACES["s3:depth=2,embed_dim=16,num_heads=2,mlp_ratio=1,window_size=3/2/2/1"].with_patch_size(2)
GEOMETRY = Geometry(image_size=16, classes=10)


def test_distances_and_similarity_are_those_of_loops() -> None:
    weights = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(0)).softmax(-1)
    real = torch.ones(2, 9, dtype=torch.bool)
    found, similarity = top_distances(weights, real, 3, 4).unflatten(0, (2, 9)), head_similarity(weights, real)
    for one, head, query in itertools.product(range(2), range(3), range(9)):
        best = sorted(range(9), key=lambda key: -float(weights[one, head, query, key]))[:4]
        expected = sum(math.dist(divmod(query, 3), divmod(key, 3)) for key in best) / 4
        assert float(found[one, query, head]) == pytest.approx(expected, rel=1e-5)
    pairs = [(one, a, b, q) for one, a, b, q in itertools.product(range(2), range(3), range(3), range(9)) if a != b]
    alike = [float(torch.cosine_similarity(weights[one, a, q], weights[one, b, q], dim=0)) for one, a, b, q in pairs]
    assert similarity == pytest.approx(sum(alike) / len(alike), rel=1e-5)
    assert head_similarity(weights[:, :1], real) is None


@torch.no_grad()
def test_the_weights_are_those_that_attention_uses() -> None:
    network = build(SPACE.region().largest(), GEOMETRY, seed=0)
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    rows = attention_facts(network, images)
    assert [(row.stage, row.block, row.window) for row in rows[:3]] == [(1, 1, 3), (1, 2, 3), (2, 1, 2)]
    assert rows[-1].mean_distance == 0.0 and all(0 < row.pixels < 16 for row in rows[:4])
    attention = network.stages[0].blocks[1].attn  # type: ignore[union-attr, index]
    assert isinstance(attention, WindowAttention)
    x = torch.randn(2, 64, 16)
    weights = attention.weights(x)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    v = attention._project(attention._shifted_windows(x))[2]
    expected = attention.proj((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention._attend(attention._shifted_windows(x)), expected)


def attended(attention: WindowAttention, x: torch.Tensor) -> dict[tuple[int, int], list[list[float]]]:
    """Of one map, for each query on it the weights in each head of all keys on it, by loops."""
    side, padded, window, shift = attention.side, attention.padded, attention.window, attention.shift
    along = list(itertools.product(range(padded), range(padded)))
    tokens = {(r, c): x[r * side + c] if max(r, c) < side else torch.zeros(x.shape[-1]) for r, c in along}
    qkv = {place: attention.qkv(token).reshape(3, attention.heads, -1) for place, token in tokens.items()}
    group = {place: [((at - shift) % padded // window, at < shift) for at in place] for place in along}
    found = {}
    for query in itertools.product(range(side), range(side)):
        keys = [key for key in along if group[key] == group[query]]
        offsets = [(query[0] - r + window - 1) * (2 * window - 1) + query[1] - c + window - 1 for r, c in keys]
        bias = attention.relative_position_bias_table[offsets].T
        logits = torch.stack([(qkv[query][0] * qkv[key][1]).sum(-1) for key in keys], 1) * attention.scale + bias
        by_key = dict(zip(keys, logits.softmax(-1).T.tolist(), strict=True))
        real = itertools.product(range(side), range(side))
        found[query] = [list(heads) for heads in zip(*(by_key.get(key, [0.0, 0.0]) for key in real), strict=True)]
    return found


@torch.no_grad()
def test_neither_what_is_masked_nor_what_pads_the_map_is_counted() -> None:
    network = build(SPACE.region().largest(), GEOMETRY, seed=0)
    for values in network.parameters():
        values += torch.randn(values.shape, generator=torch.Generator().manual_seed(1)) / 10
    images = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    row = attention_facts(network, images)[1]
    stage: Any = network.stages[0]
    layer = stage.blocks[1].attn
    assert (layer.side, layer.padded, layer.shift) == (8, 9, 1)
    weights = attended(layer, stage.blocks[1].norm1(stage.blocks[0](stage.entry(images)))[0])
    distances, alike = [], []
    for query, heads in weights.items():
        for own in heads:
            best = [key for key in sorted(range(64), key=lambda key: -own[key])[:5] if own[key] > 0]
            distances.append(sum(math.dist(query, divmod(key, 8)) for key in best) / len(best))
        alike.append(float(torch.cosine_similarity(torch.tensor(heads[0]), torch.tensor(heads[1]), dim=0)))
    assert row.mean_distance == pytest.approx(sum(distances) / len(distances), rel=1e-5)
    assert row.median_distance == pytest.approx(sorted(distances)[(len(distances) - 1) // 2], rel=1e-5)
    assert row.similarity == pytest.approx(sum(alike) / len(alike), rel=1e-5)


def test_sharp_attention_to_itself_has_no_distance() -> None:
    assert top_distances(torch.eye(16)[None, None] + 1e-6, torch.ones(1, 16, dtype=torch.bool), 4, 1).max() == 0
    with pytest.raises(VitsearchError, match="`top` must be at least 1, but got 0"):
        attention_facts(build(SPACE.region().largest(), GEOMETRY), torch.zeros(1, 3, 16, 16), top=0)
    plain = build(SPACES["autoformer-micro"].region().smallest(), GEOMETRY)
    with pytest.raises(VitsearchError, match="must have blocks of window attention alone"):
        attention_facts(plain, torch.zeros(1, 3, 16, 16))
