"""The identity probability against means over every network, and over draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from random import Random
from statistics import fmean
from typing import Any

import pytest

from vitsearch.cost import IMAGENET, Geometry, Limits
from vitsearch.errors import VitsearchError
from vitsearch.spaces import SPACES, cost_of
from vitsearch.spaces.channelwise import Channelwise
from vitsearch.spaces.identity import identity_probability, reach

TINY = Geometry(image_size=8, classes=3)
SMALL = Channelwise(
    name="small",
    patch_sizes=(2, 4),
    embed_dim=(8, 11),
    num_heads=(1, 2),
    attention_dim=12,
    mlp_dim=10,
    steps=2,
    slot_count=2,
)
VITAS = SPACES["vitas"]


def mean_over_all(probability: Fraction) -> tuple[Fraction, Fraction]:
    """The definition: every network of the space times its probability."""
    totals = [Fraction(0), Fraction(0)]
    for settings in SMALL.region(geometry=TINY):
        weight = Fraction(1, 4)
        for heads in settings["num_heads"]:
            weight *= (1 - probability) / 8 if heads else probability
        for kind, value in enumerate(cost_of(SMALL.decode(settings), TINY)):
            totals[kind] += weight * value
    return totals[0], totals[1]


@pytest.mark.parametrize("probability", [Fraction(0), Fraction(1), Fraction(3, 7)])
def test_the_mean_is_exact(probability: Fraction) -> None:
    ends = reach(SMALL, TINY)
    share = 1 - probability
    expected = mean_over_all(probability)
    found = [low + share * (high - low) for low, high in zip(ends.least, ends.most, strict=True)]
    assert tuple(found) == expected
    for kind, bound in zip(("max_params", "max_macs"), expected, strict=True):
        whole = math.ceil(bound) if probability == 1 else math.floor(bound)
        solved = identity_probability(SMALL, Limits(**{kind: whole}), TINY)
        assert mean_over_all(solved)[kind == "max_macs"] == whole


def test_draws_have_the_mean_that_was_asked_for() -> None:
    """1,000 networks; as the public counter has it, the means are the ones its authors' code gives."""
    probability = float(identity_probability(VITAS, Limits(max_macs=10**9)))
    drawn = [VITAS.draw(Random(number), probability) for number in range(1000)]  # type: ignore[attr-defined]
    found = fmean(cost_of(settings).macs for settings in drawn)
    assert found == pytest.approx(1e9, rel=0.06)
    assert all(settings in VITAS for settings in drawn[:50])
    published = [VITAS.published_macs(VITAS.decode(settings), IMAGENET) or 0 for settings in drawn]
    assert fmean(published) == pytest.approx(1.03e9, rel=0.06)


def test_a_higher_probability_empties_slots_and_changes_nothing_else() -> None:
    for number in range(20):
        low, high = (VITAS.draw(Random(number), p) for p in (0.2, 0.6))  # type: ignore[attr-defined]
        assert (low["patch_size"], low["embed_dim"]) == (high["patch_size"], high["embed_dim"])
        pairs = list(zip(low["num_heads"], high["num_heads"], strict=True))
        assert all(after in (before, 0) for before, after in pairs)


@pytest.mark.parametrize(
    ("space", "limits", "message"),
    [
        ("vitas", {"max_macs": 2 * 10**9}, "`max_macs` must be from 32,002,714 to 1,833,065,625, .* 2,000,000,000"),
        ("vitas", {"max_params": 100}, "`max_params` must be from 560,258 to 9,526,964"),
        ("vitas", {"min_macs": 10**8}, "either `max_params` or `max_macs`"),
        ("vitas", {"max_macs": 10**8, "max_params": 10**6}, "either `max_params` or `max_macs`"),
        ("vitas-block", {"max_macs": 10**8}, "of a space whose slots may be empty, such as vitas, but got vitas-block"),
    ],
)
def test_what_cannot_be_reached_is_named(space: str, limits: dict[str, int], message: str) -> None:
    with pytest.raises(VitsearchError, match=message):
        identity_probability(SPACES[space], Limits(**limits))


def test_command_line(cli: Callable[..., Any]) -> None:
    found = cli("identity", "vitas", "--max-macs", "1G", "--json").json()
    assert found["probability"] == pytest.approx(0.46254, abs=1e-5) and found["mean_macs"] == pytest.approx(1e9)
    assert found["reachable_macs"] == pytest.approx([32_002_713.6, 1_833_065_625.6])
    assert "identity:probability=0.462541" in cli("identity", "vitas", "--max-macs", "1G").out
    assert "exactly one of" in cli("identity", "vitas").error()
    assert "1,833,065,625" in cli("identity", "vitas", "--max-macs", "3G").error()
    for unused, value in (("--samples", 5), ("--batch-size", 0)):  # nothing is measured
        rule = f"`{unused}` must not be given with a budget that is solved for, but got {value}"
        assert rule in cli("identity", "vitas", "--max-macs", "1G", unused, value).error()
