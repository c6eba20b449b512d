"""What is drawn, how often, and that nothing but (seed, step) decides it."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter

import pytest
from scipy import stats

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry
from vitsearch.errors import BadSettings, UnknownName, VitsearchError
from vitsearch.models.super_transformer import supernet_for
from vitsearch.spaces import SPACES, cost_of, sample
from vitsearch.training.preferred import scheme_of
from vitsearch.training.subnets import SUBNET_SCHEMES, draw, generator_of

MICRO = SPACES["autoformer-micro"]


def test_uniform_is_uniform_over_depth_then_over_blocks() -> None:
    """All 160 networks: half of the draws fall on the 32 shallow ones, half on the 128 deep ones."""
    expected: dict[str, float] = {}
    for width, depth in itertools.product((32, 48), (2, 3)):
        for heads in itertools.product((2, 3), repeat=depth):
            for ratios in itertools.product((2.0, 3.0), repeat=depth):
                settings = MICRO.settings(embed_dim=width, depth=depth, num_heads=heads, mlp_ratio=ratios)
                expected[json.dumps(settings)] = 1 / 4 / 4**depth
    assert len(expected) == 160 and math.isclose(sum(expected.values()), 1)
    draws = 16_000
    found = Counter(json.dumps(SUBNET_SCHEMES["uniform"].choose(MICRO, 0, step)[0]) for step in range(draws))
    assert set(found) <= set(expected)
    observed = [found[key] for key in expected]
    assert stats.chisquare(observed, [draws * share for share in expected.values()]).pvalue > 0.01
    assert stats.chisquare(observed).pvalue < 1e-9  # the test tells it from uniform over architectures


def test_uniform_over_the_knobs_of_pit() -> None:
    space = SPACES["pit"]
    drawn = [SUBNET_SCHEMES["uniform"].choose(space, 1, step)[0] for step in range(4000)]
    assert all(settings in space for settings in drawn[:200])
    for knob in space.knobs:
        found = Counter(json.dumps(settings[knob.name]) for settings in drawn)
        assert len(found) == len(knob.choices)
        assert stats.chisquare(list(found.values())).pvalue > 0.01, knob.name


def test_sandwich_has_the_ends_and_two_drawn_ones() -> None:
    for name in ("autoformer-micro", "pit"):
        space = SPACES[name]
        largest, smallest, *drawn = SUBNET_SCHEMES["sandwich"].choose(space, 0, 3)
        sizes = [cost_of(settings).params for settings in space.region()]
        assert (cost_of(largest).params, cost_of(smallest).params) == (max(sizes), min(sizes))
        assert len(drawn) == 2 and all(settings in space for settings in drawn)
        ends = [SUBNET_SCHEMES["sandwich"].choose(space, 1, step) for step in range(20)]
        assert all(chosen[:2] == [largest, smallest] for chosen in ends)
        assert len({json.dumps(settings) for chosen in ends for settings in chosen[2:]}) > 20


@pytest.mark.parametrize("scheme", SUBNET_SCHEMES)
def test_seed_and_step_decide_and_nothing_else(scheme: str) -> None:
    slotted = scheme == "identity"
    space, micro = (
        SPACES[name] for name in (("vitas", "vitas-micro") if slotted else ("autoformer-small", MICRO.name))
    )
    candidates = [draw(space, generator_of(9, step)) for step in range(1000)]
    own = scheme_of(scheme, space, candidates)

    def run(seed: int, steps: range) -> list[list[Settings]]:
        return [own.choose(space, seed, step) for step in steps]

    whole = run(5, range(20))
    assert run(5, range(12, 20)) == whole[12:]  # as after a resume, in whatever order
    assert run(5, range(19, -1, -1)) == whole[::-1]
    assert run(6, range(20)) != whole
    assert len({json.dumps(chosen) for chosen in whole}) > 17
    supernet = supernet_for(micro, Geometry(image_size=32, classes=10))
    for settings in scheme_of(scheme, micro, sample(micro, 3, seed=0)).choose(micro, 0, 0):
        supernet.check(micro.decode(settings))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UnknownName, match=r"no subnet scheme named 'unifrom'\. Did you mean 'uniform'\?"):
        SUBNET_SCHEMES["unifrom"]
    with pytest.raises(BadSettings, match="`step` must be a whole number from 0"):
        SUBNET_SCHEMES["uniform"].choose(MICRO, 0, -1)


def test_a_space_that_has_none_of_the_combinations_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(MICRO), "__contains__", lambda self, settings: False)
    with pytest.raises(VitsearchError, match="no member of autoformer-micro came out of 1000 draws"):
        draw(MICRO, generator_of(0, 0))
