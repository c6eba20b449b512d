"""Absolute networks in float32, without the value that all channels share, against the definitions in float64."""

from __future__ import annotations

import pytest
import torch

from vitsearch.cost import Geometry
from vitsearch.models.weights import Form, formed
from vitsearch.proxies import takers
from vitsearch.proxies.batched import recipe_of
from vitsearch.scoring import ProxyEvaluator
from vitsearch.spaces import sample

GEOMETRY = Geometry(image_size=64, classes=10)


def errors(space: str, proxy: str, count: int = 3) -> list[float]:
    networks = sample(space, count, seed=5)
    scorer = ProxyEvaluator([proxy], geometry=GEOMETRY, seed=1, device="cpu")
    pairs = zip(scorer(networks), map(scorer.one, networks), strict=True)
    return [abs(ours.scores[proxy] / theirs.scores[proxy] - 1) for ours, theirs in pairs]


CASES = [("pit", "dss"), ("pit", "dss-signed"), ("pit", "synflow"), ("autoformer-tiny", "synflow")]


@pytest.mark.parametrize(("space", "proxy"), CASES)
def test_float32_has_the_digits_of_float64(space: str, proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(proxy)[0]
    assert recipe is not None and recipe.dtype == torch.float32
    settled = max(errors(space, proxy))
    assert settled < 2e-5
    monkeypatch.setattr(takers.Taker, "sees_elements", True)
    monkeypatch.setattr(takers.SynapticFlow, "TOLERANCE", 1e9)
    assert max(errors(space, proxy)) > 10 * settled  # the weights as they are


@pytest.mark.parametrize("form", ["plain", "inputs", "outputs", "apart"])
def test_a_form_takes_away_what_a_norm_does_not_see(form: Form) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.rand(6, 8, generator=generator), torch.rand(6, generator=generator)
    x = torch.randn(5, 8, generator=generator, dtype=torch.float64)
    if form == "inputs":
        x -= x.mean(-1, keepdim=True)  # as behind a norm
    y = x @ weight.double().T + bias.double()
    ours = x @ formed(weight, form).double().T + formed(bias, form).double()
    if form in ("outputs", "apart"):
        mean = y.mean(-1, keepdim=True)
        y = torch.cat([y - mean, mean], -1) if form == "apart" else y - mean
    torch.testing.assert_close(ours, y, rtol=1e-12, atol=1e-12)
