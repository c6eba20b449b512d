"""Muon on all matrices at once against timm's own, which goes through the matrices one after the other."""

from __future__ import annotations

import pytest
import torch
from timm.optim import create_optimizer_v2, param_groups_weight_decay
from torch import nn

from vitsearch.training.grouped_muon import GroupedMuon
from vitsearch.training.optimize import make_optimizer
from vitsearch.training.recipe import RECIPES, change


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 32, 4), nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 64), nn.LayerNorm(64))


@pytest.mark.parametrize("name", ["muon", "nmuon", "adamuon", "nadamuon"])
def test_equals_timm(name: str) -> None:
    ours, theirs = network(), network()
    recipe = change(RECIPES["small-images"], {"optimizer": name, "learning_rate": "1e-2"})
    options = {"betas": recipe.betas, "eps": recipe.epsilon} if "adam" in name else {}
    grouped = make_optimizer(recipe, ours, nn.Identity())
    reference = create_optimizer_v2(
        param_groups_weight_decay(theirs, recipe.weight_decay),
        opt=name,
        lr=recipe.rate,
        weight_decay=recipe.weight_decay,
        momentum=recipe.momentum,
        **options,
    )
    assert isinstance(grouped, GroupedMuon)
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        grouped.step()
        reference.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
        assert set(grouped.state[mine]) == set(reference.state[other])
        for key, value in reference.state[other].items():
            torch.testing.assert_close(grouped.state[mine][key], value, rtol=1e-5, atol=1e-6)
