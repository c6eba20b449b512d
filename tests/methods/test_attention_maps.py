"""Distances and similarities against loops, and attention that is known."""

from __future__ import annotations

import itertools
import math

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
    found, similarity = top_distances(weights, 3, 4), head_similarity(weights)
    for one, head, query in itertools.product(range(2), range(3), range(9)):
        best = sorted(range(9), key=lambda key: -float(weights[one, head, query, key]))[:4]
        expected = sum(math.dist(divmod(query, 3), divmod(key, 3)) for key in best) / 4
        assert float(found[one, head, query]) == pytest.approx(expected, rel=1e-5)
    pairs = [(one, a, b, q) for one, a, b, q in itertools.product(range(2), range(3), range(3), range(9)) if a != b]
    alike = [float(torch.cosine_similarity(weights[one, a, q], weights[one, b, q], dim=0)) for one, a, b, q in pairs]
    assert similarity == pytest.approx(sum(alike) / len(alike), rel=1e-5)
    assert head_similarity(weights[:, :1]) is None


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


def test_sharp_attention_to_itself_has_no_distance() -> None:
    assert top_distances(torch.eye(16)[None, None] + 1e-6, 4, 1).max() == 0
    with pytest.raises(VitsearchError, match="`top` must be at least 1, but got 0"):
        attention_facts(build(SPACE.region().largest(), GEOMETRY), torch.zeros(1, 3, 16, 16), top=0)
    plain = build(SPACES["autoformer-micro"].region().smallest(), GEOMETRY)
    with pytest.raises(VitsearchError, match="must have blocks of window attention alone"):
        attention_facts(plain, torch.zeros(1, 3, 16, 16))
