"""Spaces: exact sizes, members by index, uniform sampling under limits, membership with a reason."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from vitsearch.architecture import Settings
from vitsearch.cost import Cost, Geometry, Limits
from vitsearch.errors import BadSettings, NothingFits, UnknownName
from vitsearch.spaces import SPACES, Space, canonical, cost_of, decode, outside, sample
from vitsearch.spaces.region import permute


def key(member: Settings) -> str:
    return json.dumps(member)


def brute_force(space: Space) -> list[Settings]:
    """Every member, from the knobs alone."""
    network = [knob for knob in space.knobs if knob.per == "network"]
    block = [knob for knob in space.knobs if knob.per == "block"]
    found = []
    for values in itertools.product(*(knob.choices for knob in network)):
        chosen = dict(zip((knob.name for knob in network), values, strict=True))
        lists = [itertools.product(knob.choices, repeat=chosen["depth"]) for knob in block]
        for entries in itertools.product(*lists):
            found.append(space.settings(**chosen, **dict(zip((knob.name for knob in block), entries, strict=True))))
    return found


SIZES = {
    "autoformer-tiny": 3 * sum(4**depth for depth in (12, 13, 14)),
    "autoformer-tiny-plain": 3 * sum(4**depth for depth in (12, 13, 14)),
    "autoformer-small": 3 * sum(9**depth for depth in (12, 13, 14)),
    "autoformer-base": 3 * sum(6**depth for depth in (14, 15, 16)),
    "autoformer-base-wide": 3 * sum(9**depth for depth in (14, 15, 16)),
    "autoformer-micro": 2 * sum(4**depth for depth in (2, 3)),
    "pit": 1600,
    "pit-tiny": 4320,
    "pit-xs": 4320,
    "pit-small": 4320,
    "vitas": 3 * 10 * 401**16,
    "vitas-large": 3 * 10 * 401**16,
    "vitas-micro": 2 * 3 * 9**4,
    "vitas-block": 4000,
    "vitas-block-large": 4000,
    "s3-initial": (3 * sum(18**depth for depth in (2, 3, 4))) ** 4,
    "s3": (3 * sum(18**depth for depth in (1, 2, 3))) ** 3 * 3 * sum(18**depth for depth in (6, 18, 30)),
    "mobilenetv2": 5 * 2 * 3 * math.prod([2 * 2, 2 * 2, 2 * 2 * 2, 2 * 3 * 2, 3 * 5 * 2, 4 * 5 * 2, 5 * 2 * 2]),
}


@pytest.mark.parametrize("name", SPACES)
def test_size_is_exact(name: str) -> None:
    assert SPACES[name].size == SIZES[name]


@pytest.mark.parametrize("name", ["autoformer-micro", "pit", "pit-small"])
def test_indices_visit_every_member_once(name: str) -> None:
    space = SPACES[name]
    assert sorted(map(key, space.region())) == sorted(map(key, brute_force(space)))


@pytest.mark.parametrize("name", ["autoformer-micro", "pit-tiny"])
@pytest.mark.parametrize("image_size", [32, 224])
def test_region_under_limits_equals_filtering(name: str, image_size: int) -> None:
    space, geometry = SPACES[name], Geometry(image_size=image_size, classes=10)
    members = brute_force(space)
    costs = [cost_of(member, geometry) for member in members]
    middle = Cost(sorted(c.params for c in costs)[len(costs) // 2], sorted(c.macs for c in costs)[len(costs) // 2])
    for limits in (
        Limits(max_params=middle.params),
        Limits(min_params=middle.params, max_macs=middle.macs),
        Limits(min_macs=middle.macs + 1),
    ):
        expected = [key(m) for m, c in zip(members, costs, strict=True) if limits.allow(c)]
        region = space.region(limits, geometry)
        assert region.size == len(expected) > 0
        assert sorted(map(key, region)) == sorted(expected)


def test_nothing_fits_says_the_nearest() -> None:
    with pytest.raises(NothingFits, match=r"max_params=5000000; the nearest has params=5366056, macs=1345368576"):
        SPACES["autoformer-tiny"].region(Limits(max_params=5_000_000))
    with pytest.raises(NothingFits, match=r"the nearest has params=10517272"):
        SPACES["autoformer-tiny"].region(Limits(min_params=20_000_000))


@pytest.mark.parametrize(
    ("name", "smallest", "largest"),
    [
        ("autoformer-tiny", 5366056, 10517272),
        ("autoformer-small", 13057320, 34790440),
        ("autoformer-base", 41687896, 76882264),
    ],
)
def test_smallest_and_largest(name: str, smallest: int, largest: int) -> None:
    region = SPACES[name].region()
    assert cost_of(region.smallest()).params == smallest
    assert cost_of(region.largest()).params == largest


@pytest.mark.parametrize("limits", [None, Limits(max_params=140_000)])
def test_sampling_is_uniform(limits: Limits | None) -> None:
    """A chi-square test over every member; a sampler that draws the depth first fails it."""
    region = SPACES["autoformer-micro"].region(limits)
    draws = Counter(map(key, sample("autoformer-micro", 40 * region.size, seed=3, limits=limits)))
    assert len(draws) == region.size
    assert chisquare(list(draws.values())).pvalue > 1e-4


def test_samples_satisfy_their_limits_and_repeat_with_the_seed() -> None:
    limits = Limits(min_params=50_000_000, max_params=50_500_000, max_macs=11_000_000_000)
    drawn = sample("autoformer-base", 200, seed=5, limits=limits)
    assert all(limits.allow(cost_of(member)) for member in drawn)
    assert drawn == sample("autoformer-base", 200, seed=5, limits=limits)
    assert drawn != sample("autoformer-base", 200, seed=6, limits=limits)


@pytest.mark.parametrize("name", SPACES)
def test_settings_blueprint_json_round_trips(name: str) -> None:
    space = SPACES[name]
    for member in sample(name, 100, seed=7):
        blueprint = space.decode(json.loads(json.dumps(member)))
        assert space.encode(blueprint) == member
        assert type(blueprint).from_json(json.loads(json.dumps(blueprint.to_json()))) == blueprint
        assert member in space and outside(member) is None


@pytest.mark.parametrize("name", [name for name in SPACES if SPACES[name].fixed()])
def test_other_patches_are_the_same_space_elsewhere(name: str) -> None:
    space = SPACES[name].with_patch_size(2)
    searched = len(SPACES[name].fixed().get("patch_sizes", [2]))
    assert space.size * searched == SPACES[name].size
    member = sample(space, 1, seed=1, geometry=Geometry(image_size=32))[0]
    assert member["patch_size"] == 2
    assert member in space and member not in SPACES[name] and outside(member) is None
    assert decode(member).sides(32)[0] == (31 if name.startswith("pit") else 16)


@given(st.integers(1, 3000), st.integers(0, 2**63 - 1))
@settings(max_examples=60)
def test_permutation_is_one(size: int, seed: int) -> None:
    assert sorted(permute(number, size, seed) for number in range(size)) == list(range(size))


def test_permutation_reaches_large_spaces_evenly() -> None:
    size = 10**16 + 3
    values = [permute(number, size, 0) for number in range(4000)]
    assert len(set(values)) == 4000
    assert chisquare(list(Counter(value * 20 // size for value in values).values())).pvalue > 1e-4


TINY: dict[str, Any] = SPACES["autoformer-tiny"].region().smallest()
PIT: dict[str, Any] = SPACES["pit"].region().smallest()


@pytest.mark.parametrize(
    ("member", "change", "reason"),
    [
        (TINY, {"embed_dim": 200}, "`embed_dim` is 200, and autoformer-tiny has 192, 216, 240"),
        (TINY, {"mlp_ratio": [3.5] * 11 + [3.0]}, r"`mlp_ratio\[11\]` is 3.0"),
        (TINY, {"num_heads": [3] * 11 + [5]}, r"`num_heads\[11\]` is 5"),
        (PIT, {"depth": [3, 8, 6]}, r"`depth` is \[3, 8, 6\], and pit has \[1, 6, 6\]"),
        (PIT, {"num_heads": [2, 2, 16]}, r"`num_heads` is \[2, 2, 16\]"),
        (PIT, {"base_dim": 24, "mlp_ratio": 2.3, "num_heads": [2, 4, 8]}, r"`mlp_ratio` is 2\.29"),
    ],
)
def test_outside_but_buildable(member: Settings, change: dict[str, Any], reason: str) -> None:
    moved = member | change
    assert cost_of(moved).params > 0
    why = outside(moved)
    assert why is not None and re.search(reason, why), why
    assert moved not in SPACES[moved["space"]]


@pytest.mark.parametrize(
    ("member", "change", "message"),
    [
        (TINY, {"embed_dim": "192"}, "`embed_dim` must be a whole number"),
        (TINY, {"embed_dim": True}, "`embed_dim` must be a whole number"),
        (TINY, {"embed_dim": 10**9}, "`embed_dim` must be a whole number from 1 to"),
        (TINY, {"depth": 13}, "`num_heads` must have `depth` = 13 entries, but got 12"),
        (TINY, {"num_heads": [3.0] * 12}, "`num_heads` must be a list of numbers"),
        (TINY, {"num_heads": [0] * 12}, "`num_heads` must be a whole number"),
        (TINY, {"mlp_ratio": [-1.0] * 12}, "`mlp_ratio` must be a positive number"),
        (TINY, {"mlp_ratio": [1e-9] * 12}, "must be a whole number from 1"),
        (TINY, {"mlp_ratio": [1e308] * 12}, "`mlp_ratio` must be a positive number up to"),
        (TINY, {"mlp_ratio": [10**400] * 12}, "`mlp_ratio` must be a positive number up to"),
        (TINY, {"mlp_ratio": 4}, "`mlp_ratio` must be a list"),
        (TINY, {"kernel": 3}, "has no setting 'kernel'; it has embed_dim, depth"),
        (TINY, {"patch_size": 0}, "`patch_size` must be a whole number"),
        (TINY | {"space": "autoformer-tiny-plain"}, {"num_heads": [5] * 12}, "must be a multiple of `num_heads`"),
        (PIT, {"num_heads": [4, 2, 2]}, "multiple of the width before it, but got 32 after 64"),
        (PIT, {"num_heads": [2, 2]}, "one entry for each stage"),
        (PIT, {"depth": []}, "`depth` must be a list of numbers"),
        (PIT, {"mlp_ratio": "4"}, "`mlp_ratio` must be a positive number"),
    ],
)
def test_what_cannot_be_built(member: Settings, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        decode(member | change)


def test_missing_and_unknown_spaces() -> None:
    with pytest.raises(BadSettings, match="settings need `space`"):
        decode({"embed_dim": 192})
    with pytest.raises(BadSettings, match="need `mlp_ratio`; it is missing"):
        decode({k: v for k, v in TINY.items() if k != "mlp_ratio"})
    with pytest.raises(UnknownName, match="no space named 'nowhere'"):
        decode({"space": "nowhere"})


def test_number_types_are_spelled_one_way() -> None:
    assert canonical(TINY | {"mlp_ratio": [4] * 12})["mlp_ratio"] == [4.0] * 12
    assert repr(canonical(PIT | {"mlp_ratio": 4.0})["mlp_ratio"]) == "4"


def test_random_is_not_shared() -> None:
    region = SPACES["pit"].region()
    assert region.sample(Random(1)) == region.sample(Random(1))
