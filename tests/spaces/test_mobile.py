"""The space of convolutional networks: Table 2's ranges, exact regions against listing, costs against torchvision's."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from random import Random
from typing import Any, cast

import pytest
from scipy.stats import chisquare

from vitsearch.architecture import Architecture, Bottleneck, Convolution, InvertedResidual, Stage
from vitsearch.cost import Cost, Geometry, Limits, architecture_cost
from vitsearch.errors import BadSettings, NothingFits, VitsearchError
from vitsearch.search.operators import crossover, mutate
from vitsearch.spaces import SPACES, canonical, cost_of, decode, outside, sample
from vitsearch.spaces.mobile import Mobile
from vitsearch.training.subnets import draw

SPACE = cast(Mobile, SPACES["mobilenetv2"])
WIDTHS = "8+16/8/8/8+16/8/16+24/8/8/32+64"
SMALL = f"mobilenetv2:resolution=32+64,depth=1+2/1/1/1/1+3/1/1,width={WIDTHS},kernel=3/3/3/3+5/3/3+7/3"
SIZES = Geometry(image_size=40, classes=7, channels=2)


def test_the_ranges_are_the_papers() -> None:
    """Table 2, row by row: channels, layers, kernels; and its resolutions before each operator."""
    ends = [SPACE.region().smallest(), SPACE.region().largest()]
    table = [(32, 40), (16, 24), (24, 32), (40, 48), (80, 88), (112, 128), (192, 216), (320, 352), (1280, 1408)]
    assert list(zip(*(end["width"] for end in ends), strict=True)) == table
    layers = [(1, 2), (2, 3), (2, 3), (2, 4), (2, 6), (2, 6), (1, 2)]
    assert list(zip(*(end["depth"] for end in ends), strict=True)) == layers
    assert SPACE.kernel == ((3,), (3,), (3, 5), (3, 5), (3, 5), (3, 5), (3, 5))
    for end, scale in zip(ends, (6, 10), strict=True):
        before = [scale * times for times in (32, 16, 16, 8, 4, 2, 2, 1, 1)]
        assert [end["resolution"], *decode(end).sides(224)[:-1]] == before
    assert [cost_of(end) for end in ends] == [(3_392_488, 206_390_144), (9_241_632, 1_841_398_400)]


def test_torchvisions_mobilenetv2_is_counted_alike() -> None:
    """Its 3,504,872 parameters and 300,774,272 MACs, of blocks of the same kinds with its widths and strides."""
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    stages = [Stage(entry=Convolution(kernel=3, stride=2), width=32, blocks=())]
    for expansion, width, depth, stride in rows:
        entry = Bottleneck(expansion=expansion, kernel=3, stride=stride)
        blocks = (InvertedResidual(expansion=expansion, kernel=3),) * (depth - 1)
        stages.append(Stage(entry=entry, width=width, blocks=blocks))
    stages.append(Stage(entry=Convolution(kernel=1), width=1280, blocks=()))
    network = Architecture(stages=tuple(stages), class_token=False, position="none", resolution=224)
    assert architecture_cost(network) == (3_504_872, 300_774_272)
    assert Architecture.from_json(json.loads(json.dumps(network.to_json()))) == network


def listed(space: Mobile) -> list[dict[str, Any]]:
    """Every member, by the knobs alone."""
    found = []
    for resolution in space.resolution:
        for depth, width, kernel in itertools.product(
            *(itertools.product(*choices) for choices in (space.depth, space.width, space.kernel))
        ):
            found.append(space.settings(resolution=resolution, depth=depth, width=width, kernel=kernel))
    return found


def text(settings: dict[str, Any]) -> str:
    return json.dumps(settings)


@pytest.mark.parametrize(
    "limits",
    [
        None,
        {"max_macs": 2_000_000},
        {"min_params": 20_000},
        {"min_macs": 1_200_000, "max_macs": 2_400_000, "min_params": 18_500, "max_params": 20_500},
    ],
)
def test_regions_hold_exactly_the_members_that_fit(limits: dict[str, int] | None) -> None:
    space = cast(Mobile, SPACES[SMALL])
    bounds = None if limits is None else Limits(**limits)
    costs = {text(member): cost_of(member, SIZES) for member in listed(space)}
    fitting = {member: cost for member, cost in costs.items() if bounds is None or bounds.allow(cost)}
    region = space.region(bounds, SIZES)
    assert region.size == len(fitting) > 20 and (bounds is None or len(fitting) < len(costs))
    assert {text(member) for member in region} == set(fitting) == {text(member) for member in region.walk(3)}
    assert cost_of(region.smallest(), SIZES) == min(fitting.values())
    assert cost_of(region.largest(), SIZES) == max(fitting.values())
    with pytest.raises(IndexError):
        region[region.size]


def test_draws_under_limits_are_uniform() -> None:
    limits = Limits(min_macs=1_200_000, max_macs=2_400_000, min_params=18_500, max_params=20_500)
    region = SPACES[SMALL].region(limits, SIZES)
    draws = Counter(map(text, sample(SMALL, 20 * region.size, seed=3, limits=limits, geometry=SIZES)))
    assert chisquare([draws[text(member)] for member in region]).pvalue > 1e-3


def test_networks_of_200_to_1050_mmac_are_drawn_in_seconds() -> None:
    began = time.perf_counter()
    for low, high in ((200, 220), (230, 240), (580, 590), (1040, 1050)):
        limits = Limits(min_macs=low * 10**6, max_macs=high * 10**6, max_params=9_000_000)
        for settings in sample(SPACE, 20, seed=low, limits=limits):
            assert limits.allow(cost_of(settings)) and settings in SPACE
    assert time.perf_counter() - began < 15
    with pytest.raises(NothingFits, match="macs=206390144 to 1841398400"):
        SPACE.region(Limits(max_macs=10**8))


def test_settings_come_back_and_operators_stay_inside() -> None:
    random = Random(0)
    drawn = sample(SPACE, 20, seed=5)
    for one, other in itertools.pairwise(drawn):
        for settings in (mutate(SPACE, one, random), crossover(SPACE, one, other, random), draw(SPACE, random)):
            assert settings in SPACE and canonical(settings) == settings
    children = [crossover(SPACE, drawn[0], drawn[1], random) for _ in range(20)]
    for name in ("depth", "width", "kernel"):
        for child in children:
            pairs = zip(child[name], zip(drawn[0][name], drawn[1][name], strict=True), strict=True)
            assert all(value in parents for value, parents in pairs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resolution": 100}, "multiple of 32, but got 100"),
        ({"kernel": [3, 3, 4, 3, 3, 3, 3]}, "`kernel` must be odd"),
        ({"depth": [1, 2, 2]}, "`depth` must be a list of 7"),
        ({"width": 8}, "`width` must be a list of 9"),
        ({"patch_size": 4}, "no setting 'patch_size'"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        decode(SPACE.region().smallest() | change)


def test_members_of_variants_and_other_settings() -> None:
    member = sample(SMALL, 1, seed=0)[0]
    assert member["space"] == SMALL and outside(member) is None and member not in SPACE
    odd = SPACE.region().smallest() | {"width": [32, 16, 24, 40, 80, 112, 192, 320, 1000]}
    assert outside(odd) == "`width[8]` is 1000, and mobilenetv2 has 1280, 1344, 1408"
    assert cost_of(odd) == Cost(*architecture_cost(decode(odd)))
    for name, message in (
        ("resolution=48", "multiple of 32"),
        ("kernels=3", "Did you mean 'kernel'"),
        ("width=8/16", "one or for 9"),
        ("kernel=2", "odd"),
        ("resolution=32+32", "twice"),
        ("depth=0", "`depth`"),
    ):
        with pytest.raises(VitsearchError, match=message):
            SPACES[f"mobilenetv2:{name}"]
    with pytest.raises(VitsearchError, match="less than 2"):
        SPACES["mobilenetv2:width=8/8/8/8/8/8/8/8/8+40000"].region(geometry=Geometry(classes=9000)).largest()
    with pytest.raises(VitsearchError, match="no patches"):
        SPACE.with_patch_size(4)
