"""Closed-form costs against published counts, against built networks, and against torch's own counter."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vitsearch.architecture import Absent, Architecture, Attention, Merge, Patch, Stage, WindowAttention
from vitsearch.cost import Cost, Geometry, Limits, architecture_cost
from vitsearch.errors import VitsearchError
from vitsearch.models import build
from vitsearch.spaces import SPACES, cost_of, decode, sample, space_of


def s3_blueprint(arch: dict[str, Any]) -> Architecture:
    """S3's published networks: patch 4 with a norm, 32 channels a head, odd blocks shifted."""
    stages = []
    for index, width in enumerate(arch["embed_dim"]):
        blocks = tuple(
            WindowAttention(heads=h, head_dim=32, hidden=int(width * r), window=w, shifted=bool(j % 2))
            for j, (h, r, w) in enumerate(
                zip(arch["num_heads"][index], arch["mlp_ratio"][index], arch["window_size"][index], strict=True)
            )
        )
        stages.append(Stage(entry=Merge() if index else Patch(size=4, stride=4, norm=True), width=width, blocks=blocks))
    return Architecture(stages=tuple(stages), class_token=False, position="none", norm_eps=1e-5)


def vitas_blueprint(arch: dict[str, Any]) -> Architecture:
    """ViTAS's networks: q, k, v have 480 (large: 960) times the ratio, MLPs 1440 (2880); 0 heads: absent."""
    unit = 2880 if arch["space"] == "vitas-large" else 1440
    blocks = tuple(
        Attention(heads=h, head_dim=round(unit * a) // 3 // h, hidden=round(unit * m)) if h else Absent()
        for h, a, m in zip(arch["num_heads"], arch["attention_ratio"], arch["mlp_ratio"], strict=True)
    )
    patch = Patch(size=arch["patch_size"], stride=arch["patch_size"])
    return Architecture(stages=(Stage(entry=patch, width=arch["embed_dim"], blocks=blocks),), readout="class")


def test_every_published_network_to_the_last_digit(published: list[dict[str, Any]]) -> None:
    assert len(published) == 46
    for network in published:
        arch, geometry = network["arch"], Geometry(image_size=network["image_size"], classes=network["classes"])
        cost = cost_of(arch, geometry)
        if arch["space"] == "s3":
            assert architecture_cost(s3_blueprint(arch), geometry) == cost
        assert not arch["space"].startswith("vitas") or decode(arch) == vitas_blueprint(arch)
        assert cost == (network["params"], network["macs"]), network["name"]


def counted(architecture: Architecture, geometry: Geometry) -> Cost:
    """What the built network holds and what torch counts in a forward pass of explicit matrix products."""
    with torch.device("meta"):
        network = build(architecture, geometry).set_fused_attention(False)
        image = torch.zeros(1, geometry.channels, geometry.image_size, geometry.image_size)
        with FlopCounterMode(display=False) as counter:
            network(image)
    params = sum(parameter.numel() for parameter in network.parameters())
    return Cost(params, counter.get_total_flops() // 2)


@pytest.mark.parametrize("space", SPACES)
def test_parameters_equal_built_networks(space: str) -> None:
    """Fewer where spaces differ from others in widths alone, or are slow to build."""
    random = Random(space)
    few = {"vitas": 20, "s3": 8, "mobilenetv2": 12, "autoformer-base": 40, "autoformer-small": 40, "pit-": 60}
    for settings in sample(space, next((few[kind] for kind in few if space.startswith(kind)), 200), seed=1):
        geometry = Geometry(image_size=random.choice([32, 96, 224, 250]), classes=random.choice([2, 10, 1000]))
        with torch.device("meta"):
            network = build(settings, geometry)
        assert cost_of(settings, geometry).params == sum(p.numel() for p in network.parameters()), settings


@pytest.mark.parametrize("space", SPACES)
def test_macs_equal_what_torch_counts(space: str) -> None:
    random = Random(space)
    few = {"vitas-": 3, "s3": 2, "mobilenetv2": 4, "autoformer-base": 4, "autoformer-small": 4, "pit-": 6}
    for settings in sample(space, next((few[kind] for kind in few if space.startswith(kind)), 12), seed=2):
        geometry = Geometry(
            image_size=random.choice([32, 61, 96, 224]),
            classes=random.choice([2, 1000]),
            channels=random.choice([1, 3]),
        )
        patched = geometry.image_size < 100 and SPACES[space].fixed()
        plan = SPACES[space].with_patch_size(random.choice([4, 7, 16])) if patched else SPACES[space]
        own = {"patch_size": plan.fixed()["patch_sizes"][0]} if "patch_sizes" in plan.fixed() else plan.fixed()
        blueprint = plan.decode(settings | own)
        assert architecture_cost(blueprint, geometry) == counted(blueprint, geometry), (settings, geometry)


@pytest.mark.parametrize("image_size", [224, 200, 64])
def test_windowed_networks_and_absent_blocks_are_counted(image_size: int) -> None:
    """Also where the window does not divide the map and merging meets an odd side."""
    arch = {
        "embed_dim": [32, 48, 64],
        "num_heads": [[1, 2], [3, 1], [2, 2]],
        "mlp_ratio": [[2.0, 3.0], [1.0, 2.0], [4.0, 2.0]],
        "window_size": [[7, 7], [14, 5], [7, 3]],
    }
    geometry = Geometry(image_size=image_size, classes=5)
    assert architecture_cost(s3_blueprint(arch), geometry) == counted(s3_blueprint(arch), geometry)
    sparse = vitas_blueprint(
        {
            "space": "vitas",
            "patch_size": 14,
            "embed_dim": 77,
            "num_heads": [0, 12, 0, 3],
            "attention_ratio": [None, 0.3, None, 1.0],
            "mlp_ratio": [None, 0.1, None, 0.7],
        }
    )
    assert architecture_cost(sparse, geometry) == counted(sparse, geometry)


def test_limits_are_inclusive_and_say_how_far_off() -> None:
    limits = Limits(min_params=10, max_params=20, max_macs=100)
    assert limits.allow(Cost(10, 100)) and limits.allow(Cost(20, 1))
    assert not limits.allow(Cost(9, 1)) and not limits.allow(Cost(21, 1)) and not limits.allow(Cost(15, 101))
    assert math.isclose(limits.excess(Cost(40, 150)), 20 / 20 + 50 / 100)
    assert str(limits) == "min_params=10, max_params=20, max_macs=100"


@pytest.mark.parametrize("bad", [{"max_params": 0}, {"min_macs": -1}, {"max_params": 1.5}, {"max_macs": True}])
def test_limits_must_be_positive_whole_numbers(bad: dict[str, Any]) -> None:
    with pytest.raises(VitsearchError, match=next(iter(bad))):
        Limits(**bad)


def test_limits_must_not_cross() -> None:
    with pytest.raises(VitsearchError, match="min_params=7, max_params=6"):
        Limits(min_params=7, max_params=6)


@pytest.mark.parametrize("field", ["image_size", "classes", "channels"])
def test_geometry_must_be_positive(field: str) -> None:
    with pytest.raises(VitsearchError, match=f"`{field}`"):
        Geometry(**{field: 0})


def test_published_counters_to_the_last_digit(published: list[dict[str, Any]]) -> None:
    """AutoFormer's, also of TF-TAS and PreNAS, and ViTAS's."""
    counted = [network for network in published if "macs_published_counter" in network]
    assert len(counted) == 26
    for network in counted:
        geometry = Geometry(image_size=network["image_size"], classes=network["classes"])
        space, plan = space_of(network["arch"]), decode(network["arch"])
        assert space.published_macs(plan, geometry) == network["macs_published_counter"], network["name"]


def test_autoformers_counter_is_the_sum_of_its_terms() -> None:
    """facts of the public code, term by term in fractions, for other inputs than the published ones."""
    space, geometry = SPACES["autoformer-micro"].with_patch_size(4), Geometry(image_size=24, classes=7)
    for settings in sample(space, 5, seed=0):
        width, patches, tokens = settings["embed_dim"], 36, 38
        total = Fraction(48 * patches * width + width) + Fraction((patches + 1) * width, 2) + 37 * width * 7
        plan = space.decode(settings)
        for block in plan.stages[0].blocks:
            assert isinstance(block, Attention)
            inner, hidden = block.heads * block.head_dim, block.hidden
            total += 2 * tokens * width + 4 * tokens * width * inner + 2 * tokens**2 * inner
            total += 2 * block.relative_distance * tokens**2 + Fraction(tokens**2 + tokens * inner, 2)
            total += 2 * tokens * width * hidden
        assert space.published_macs(plan, geometry) == math.floor(total)
    assert SPACES["autoformer-tiny-plain"].published_macs(plan, geometry) is None
