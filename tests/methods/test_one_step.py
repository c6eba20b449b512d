"""PreNAS's choice among convolutional networks against going through all of them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F

from vitsearch.cost import Geometry, Limits
from vitsearch.data import open_data
from vitsearch.errors import NothingFits, VitsearchError
from vitsearch.methods.one_step import ChainSelector, ChainTables, chain_tables
from vitsearch.methods.preselection import Budgets, preselect
from vitsearch.methods.two_steps import Window
from vitsearch.models import Supernet
from vitsearch.spaces import SPACES, cost_of, sample
from vitsearch.spaces.mobile import Mobile
from vitsearch.training.preferred import by_size

WIDTHS = "8+16/8/8/8+16/8/16+24/8/8/32+64"
NAME = f"mobilenetv2:resolution=32+64,depth=1+2/1/1/1/1+3/1/1,width={WIDTHS},kernel=3/3/3/3+5/3/3+7/3"
SPACE = cast(Mobile, SPACES[NAME])
GEOMETRY = Geometry(image_size=32, classes=10)


def draw(seed: int) -> tuple[Supernet, Any]:
    return Supernet(SPACE, GEOMETRY, seed=seed), open_data("noise").draw(4, GEOMETRY, seed)


@pytest.fixture(scope="module")
def tables() -> list[ChainTables]:
    return [chain_tables(*draw(seed)) for seed in range(4)]


def snip(supernet: Supernet, batch: Any, settings: dict[str, Any]) -> float:
    """Eq. 4 of a network: the part it has of the products in the pass of the largest at its resolution."""
    plan = SPACE.decode(settings)
    parameters = list(supernet.parameters())
    loss = F.cross_entropy(supernet(batch.images, replace(supernet.envelope, resolution=plan.resolution)), batch.labels)
    gradients = torch.autograd.grad(loss, parameters)
    products = Supernet(SPACE, GEOMETRY, seed=0)
    with torch.no_grad():
        for place, weight, gradient in zip(products.parameters(), parameters, gradients, strict=True):
            place.copy_((weight * gradient).abs())
        return float(sum(part.double().sum() for part in products.slices(plan).values()))


def score(tables: ChainTables, settings: dict[str, Any]) -> float:
    of_resolution = tables.scores[SPACE.resolution.index(settings["resolution"])]
    inner = zip(settings["width"][1:-1], settings["depth"], settings["kernel"], strict=True)
    steps = [(settings["width"][0],), *inner, (settings["width"][-1],)]
    before = [0, *(choices.index(width) for choices, width in zip(SPACE.width, settings["width"], strict=True))]
    found = zip(of_resolution, before[:-1], steps, SPACE.steps, strict=True)
    return sum(float(table[row, choices.index(step)]) for table, row, step, choices in found)


def test_tables_give_every_network_its_snip() -> None:
    supernet, batch = draw(0)
    found = chain_tables(supernet, batch)
    assert ChainTables.from_json(found.to_json()).to_json() == found.to_json()
    for settings in (SPACE.region().largest(), SPACE.region().smallest(), *sample(SPACE, 4, seed=1)):
        assert score(found, settings) == pytest.approx(snip(supernet, batch, settings), rel=1e-5)


@pytest.mark.parametrize("resource", ["macs", "params"])
@pytest.mark.parametrize("limits", [{}, {"min_params": 18_000, "max_params": 21_000, "max_macs": 3_000_000}])
def test_picks_are_the_best_of_all(tables: list[ChainTables], resource: Any, limits: dict[str, int]) -> None:
    mean, bounds = ChainTables.mean(tables), Limits(**limits)
    members = list(SPACE.region(None, GEOMETRY))
    costs = [cost_of(member, GEOMETRY) for member in members]
    scores = [score(mean, member) for member in members]
    windows = [Window(0, 700_000), Window(0, 1_500_000), Window(1_500_000, 2_500_000)]
    if resource == "params":
        windows = [Window(0, 17_500), Window(0, 19_000), Window(18_500, 20_500)]
    picks = ChainSelector(SPACE, tables, geometry=GEOMETRY).picks(windows, top=3, resource=resource, limits=bounds)
    expected = []
    for (low, high), resolution in itertools.product(windows, SPACE.resolution):
        fit = [
            (-score, number)
            for number, score in enumerate(scores)
            if low <= getattr(costs[number], resource) < high
            and bounds.allow(costs[number])
            and members[number]["resolution"] == resolution
        ]
        expected += [(high, resolution, pytest.approx(-score)) for score, _ in sorted(fit)[:3]]
    assert [(pick.budget, pick.settings["resolution"], pick.snip) for pick in picks] == expected
    assert len(expected) > 6
    for pick in picks:
        assert pick.snip == pick.score == pytest.approx(score(mean, pick.settings))
        assert pick.agreement is not None and 0 <= pick.agreement <= 1 and not pick.noisy


def test_the_way_from_choice_to_study(tmp_path: Path) -> None:
    budgets = Budgets(bounds=(700_000, 2_500_000))
    options: dict[str, Any] = {"budgets": budgets, "resource": "macs", "geometry": GEOMETRY, "device": "cpu"}
    done = preselect(NAME, out=tmp_path / "chosen", draws=2, batch_size=4, **options)
    assert [pick.cost.macs < pick.budget for pick in done.picks] == [True] * len(done.picks)
    assert {pick.settings["resolution"] for pick in done.picks if pick.budget == 2_500_000} == {32, 64}
    again = preselect(NAME, out=tmp_path / "chosen", draws=2, batch_size=4, resume=True, **options)
    assert again.picks == done.picks
    with pytest.raises(VitsearchError, match="`variant` must be paper"):
        preselect(NAME, out=tmp_path / "code", variant="code", **options)
    with pytest.raises(NothingFits, match="there is 303568 to"):
        preselect(NAME, out=tmp_path / "none", **(options | {"budgets": Budgets(bounds=(1000,))}))
    assert not (tmp_path / "none").exists()


def test_balanced_groups_have_equal_resolution_and_depth() -> None:
    drawn = sample(NAME, 60, seed=0)
    groups = by_size(SPACE, drawn)
    assert 2 < len(groups) <= 2 * 4 and sum(map(len, groups.values())) == 60
    for group in groups.values():
        assert len({(one["resolution"], sum(one["depth"])) for one in group}) == 1
