"""Whatever is registered keeps its contract: a new space, proxy, strategy or block kind is tested by being there."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vitsearch import architecture, cost
from vitsearch.cost import Geometry, Limits
from vitsearch.export import FORMATS, single_file, untrained
from vitsearch.models import build, builders
from vitsearch.predictor import fit
from vitsearch.proxies import PROXIES
from vitsearch.ranking import kendall
from vitsearch.records import Objective, Trial
from vitsearch.scoring import ProxyEvaluator
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


@pytest.mark.parametrize("name", SPACES)
@torch.no_grad()
def test_exports_of_every_space(name: str, tmp_path: Path) -> None:
    """ONNX, which takes a second for each block, on the shallow one; experiments/export_agreement.py has all."""
    handover = untrained(SPACES[name].region(geometry=GEOMETRY).smallest(), GEOMETRY)
    for parameter in handover.network.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(0))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = handover.network(images)
    for format in FORMATS if name == "autoformer-micro" else ("timm", "torch"):
        FORMATS[format].write(handover, tmp_path)
        difference = (FORMATS[format].run(tmp_path, images) - expected).abs().max()
        assert difference <= FORMATS[format].tolerance * expected.abs().max(), format


@pytest.mark.parametrize("space", SPACES)
def test_every_proxy_on_every_space(space: str) -> None:
    evaluator = ProxyEvaluator(list(PROXIES), geometry=GEOMETRY, seed=0, device="cpu", batch_size=4)
    smallest = SPACES[space].region(geometry=GEOMETRY).smallest()
    found = evaluator.one(smallest if decode(smallest).depth else sample(space, seed=0, geometry=GEOMETRY)[0])
    assert set(found.scores) | set(found.errors) == set(PROXIES)
    assert all(math.isfinite(value) for value in found.scores.values())
    assert all("is not defined for" in error for error in found.errors.values()), found.errors
    convolutional = not decode(smallest).final_norm  # as networks of timm, below
    assert ("zen" in found.scores) == convolutional and ("dss" in found.scores) != convolutional
    assert convolutional or set(found.errors) == {"zen"}
    assert {"snip", "synflow", "grasp", "naswot", "fisher", "ntk", "zico", "depth"} <= set(found.scores)


@pytest.mark.parametrize("space", SPACES)
def test_a_predictor_of_every_space(space: str) -> None:
    networks = sample(space, 30, seed=3, geometry=GEOMETRY)
    accuracies = [4 * math.log(cost_of(settings, GEOMETRY).params) for settings in networks]
    mean, std = fit(networks[:20], accuracies[:20], geometry=GEOMETRY).predict(networks[20:])
    tau = kendall(mean, accuracies[20:])
    assert tau is not None and tau > 0.8 and (std > 0).all()


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


def test_every_kind_has_a_cost_a_builder_and_a_text() -> None:
    blocks, entries = set(architecture.BLOCK_KINDS.values()), set(architecture.ENTRY_KINDS.values())
    assert set(cost.BLOCK_COSTS) == blocks == set(builders.BLOCK_BUILDERS) == set(single_file.BLOCK_TEXTS)
    assert set(cost.ENTRY_COSTS) == entries == set(builders.ENTRY_BUILDERS) == set(single_file.ENTRY_TEXTS)
    assert set(architecture.Block.__args__) == blocks and set(architecture.Entry.__args__) == entries
