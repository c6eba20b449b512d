"""Whatever is registered keeps its contract: a new space, proxy, strategy or block kind is tested by being there."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable

import pytest
import torch

from vitsearch import architecture, cost
from vitsearch.cost import Geometry, Limits
from vitsearch.evaluate import ProxyEvaluator
from vitsearch.models import build, builders
from vitsearch.proxies import PROXIES
from vitsearch.records import Objective, Trial
from vitsearch.search import STRATEGIES, Domain
from vitsearch.spaces import SPACES, cost_of, decode, sample

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


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("space", SPACES)
def test_every_strategy_on_every_space(imagine: Callable[..., list[Trial]], space: str, strategy: str) -> None:
    """Allowed, nothing twice, the same in any chunks, and no more than there are."""
    objectives = Objective(name="macs", direction="max"), Objective(name="params", direction="min")
    middle = cost_of(sample(space, seed=1, geometry=GEOMETRY)[0], GEOMETRY).params
    domain = Domain(space=SPACES[space], limits=Limits(max_params=middle), geometry=GEOMETRY, objectives=objectives)

    def measure(settings: architecture.Settings) -> dict[str, float] | None:
        found = cost_of(settings, GEOMETRY)
        return {"params": found.params, "macs": found.macs} if found.params % 3 else None

    trials = imagine(strategy, domain, measure, trials=110, chunk=64)
    found = [trial.settings for trial in trials]
    assert len(found) == len(list(itertools.islice(domain.region, 110)))  # there may be more than can be counted
    assert all(domain.allows(settings) for settings in found)
    assert len({json.dumps(settings) for settings in found}) == len(found)
    assert found == [trial.settings for trial in imagine(strategy, domain, measure, trials=110, chunk=37)]


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
    assert set(cost.BLOCK_COSTS) == blocks == set(builders.BLOCK_BUILDERS)
    assert set(cost.ENTRY_COSTS) == entries == set(builders.ENTRY_BUILDERS)
    assert set(architecture.Block.__args__) == blocks and set(architecture.Entry.__args__) == entries
