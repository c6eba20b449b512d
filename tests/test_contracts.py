"""Whatever is registered keeps its contract: a new space, proxy or block kind is tested by being there."""

from __future__ import annotations

import math

import pytest
import torch

from vitsearch import architecture, cost
from vitsearch.cost import Geometry
from vitsearch.evaluate import ProxyEvaluator
from vitsearch.models import build, vit
from vitsearch.proxies import PROXIES
from vitsearch.spaces import SPACES, cost_of, decode

GEOMETRY = Geometry(image_size=32, classes=10)


@pytest.mark.parametrize("name", SPACES)
def test_space(name: str) -> None:
    space = SPACES[name]
    assert space.name == name and space.description and space.paper
    smallest = space.region(geometry=GEOMETRY).smallest()
    assert smallest in space and space.encode(space.decode(smallest)) == smallest
    network = build(smallest, GEOMETRY, seed=0)
    assert sum(p.numel() for p in network.parameters()) == cost_of(smallest, GEOMETRY).params
    outputs = network(torch.zeros(2, 3, 32, 32))
    assert outputs.shape == (2, 10) and outputs.isfinite().all()
    assert decode(smallest).initialisation in architecture.INITIALISATIONS


@pytest.mark.parametrize("space", SPACES)
def test_every_proxy_on_every_space(space: str) -> None:
    evaluator = ProxyEvaluator(list(PROXIES), geometry=GEOMETRY, seed=0, device="cpu", batch_size=4)
    found = evaluator.one(SPACES[space].region(geometry=GEOMETRY).smallest())
    assert set(found.scores) | set(found.errors) == set(PROXIES)
    assert all(math.isfinite(value) for value in found.scores.values())
    assert set(found.errors) == {"zen"} and "is not defined for" in found.errors["zen"]


TIMM = ["vit_tiny_patch16_224", "deit3_small_patch16_224", "xcit_nano_12_p16_224", "resnet10t", "mobilenetv3_small_050"]


@pytest.mark.parametrize("model", [*TIMM, "convnext_atto"])
def test_every_proxy_on_networks_of_timm(model: str) -> None:
    """A number, or that it is not defined; nothing else."""
    evaluator = ProxyEvaluator(list(PROXIES), geometry=GEOMETRY, seed=0, device="cpu", batch_size=4)
    found = evaluator.timm(model, 64)
    assert set(found.scores) | set(found.errors) == set(PROXIES)
    assert all(math.isfinite(value) for value in found.scores.values())
    assert all("is not defined for" in error for error in found.errors.values()), found.errors
    assert {"snip", "synflow", "naswot", "fisher", "ntk", "zico", "params", "macs"} <= set(found.scores)
    assert ("zen" in found.scores) == (model in TIMM[2:])  # those with BatchNorm
    assert ("dss" in found.scores) == (model in TIMM[:3])


@pytest.mark.parametrize("name", PROXIES)
def test_proxy_describes_itself(name: str) -> None:
    entry = PROXIES[name]
    assert entry.name == name and entry.paper and entry.description.endswith(".")
    assert entry.direction in ("max", "min")
    assert entry.needs_data or not entry.needs_labels


def test_every_kind_has_a_cost_and_a_builder() -> None:
    blocks, entries = set(architecture.BLOCK_KINDS.values()), set(architecture.ENTRY_KINDS.values())
    assert set(cost.BLOCK_COSTS) == blocks == set(vit.BLOCK_BUILDERS)
    assert set(cost.ENTRY_COSTS) == entries == set(vit.ENTRY_BUILDERS)
    assert set(architecture.Block.__args__) == blocks and set(architecture.Entry.__args__) == entries
