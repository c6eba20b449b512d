"""S3's spaces: the published networks, variants by name, and draws under limits against listing."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any, cast

import pytest
from scipy.stats import chisquare

from vitsearch.architecture import Settings
from vitsearch.cost import IMAGENET, Geometry, Limits
from vitsearch.errors import BadSettings, NothingFits, VitsearchError
from vitsearch.search.operators import crossover, mutate
from vitsearch.spaces import SPACES, Region, canonical, cost_of, decode, outside, sample
from vitsearch.spaces.staged import StagedRegion
from vitsearch.spaces.windowed import DIMENSIONS, Windowed, scale_windows
from vitsearch.training.subnets import SUBNET_SCHEMES

INITIAL = cast(Windowed, SPACES["s3-initial"])
SMALL = "s3:depth=1+2/1/1/1,embed_dim=32+64/32/32/32,num_heads=1+2/1/1+2/1,mlp_ratio=2+3/2/2/2,window_size=2+4/2/2/2"
TINY: dict[str, Any] = {
    "space": "s3",
    "depth": [2, 2, 6, 2],
    "embed_dim": [96, 192, 384, 768],
    "num_heads": [[3] * 2, [6] * 2, [12] * 6, [24] * 2],
    "mlp_ratio": [[4.0] * 2, [4.0] * 2, [4.0] * 6, [4.0] * 2],
    "window_size": [[7] * 2, [7] * 2, [14] * 6, [7] * 2],
}


def test_the_published_networks_are_members(published: list[dict[str, Any]]) -> None:
    networks = [entry for entry in published if entry["arch"]["space"] == "s3"]
    assert len(networks) == 3
    for entry in networks:
        assert cost_of(entry["arch"]) == (entry["params"], entry["macs"])
        assert outside(entry["arch"]) is None and canonical(entry["arch"]) == entry["arch"]


def test_windows_grow_with_the_image() -> None:
    """The counts at 384 px that give the paper's 33 and 46 GMAC."""
    for depth, window, expected in ((18, 14, (50_100_898, 32.72)), (30, 7, (71_682_322, 45.72))):
        blocks = [2, 2, depth, 2]
        small = TINY | {"depth": blocks, "window_size": [[window] * 2, [window] * 2, [14] * depth, [window] * 2]}
        small |= {
            name: [[stage[0]] * n for stage, n in zip(TINY[name], blocks, strict=True)]
            for name in ("num_heads", "mlp_ratio")
        }  # type: ignore[call-overload,index]
        large = scale_windows(small, 224, 384)
        assert {size for stage in large["window_size"] for size in stage} <= {12, 24}
        cost = cost_of(large, Geometry(image_size=384))
        assert (cost.params, round(cost.macs / 1e9, 2)) == expected


def test_the_initial_space_is_the_papers() -> None:
    ends = INITIAL.region().smallest(), INITIAL.region().largest()
    assert [cost_of(end) for end in ends] == [(4_889_408, 4_602_987_648), (17_376_472, 18_831_453_696)]
    assert [ends[1][name][2] for name in ("depth", "embed_dim")] == [4, 288]
    assert [ends[1][name][2] for name in DIMENSIONS[2:]] == [[9] * 4, [4.0] * 4, [14] * 4]


def test_a_variant_is_its_name() -> None:
    text = "depth=1+2/1+2/4+6/1+2,mlp_ratio=2.5+3,window_size=4+8"
    space = SPACES[f"s3:{text}"]
    assert isinstance(space, Windowed)
    assert (space.depth[2], space.mlp_ratio, space.embed_dim[0]) == ((4, 6), ((2.5, 3.0),) * 4, (64, 96, 128))
    member = json.loads(json.dumps(sample(space, 1, seed=3)[0]))
    assert member["space"] == space.name and member in space and outside(member) is None
    assert member not in SPACES["s3"]
    back = INITIAL.with_choices(**{name: getattr(space, name) for name in DIMENSIONS})
    assert SPACES[back.name] == back and [getattr(back, n) for n in DIMENSIONS] == [
        getattr(space, n) for n in DIMENSIONS
    ]
    assert INITIAL.with_choices(depth=INITIAL.depth) == INITIAL
    moved = cast(Windowed, INITIAL.with_patch_size(2)).with_choices(window_size=(4, 8))
    assert (moved.patch_size, moved.name) == (2, "s3-initial:window_size=4+8")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("s3:depth", "must name its choices once each, such as depth=.*, but got 'depth'"),
        ("s3:dept=1", "Did you mean 'depth'"),
        ("s3:depth=1,depth=2", "once each"),
        ("s3:depth=1+2+1", "`depth` must have different choices in a stage, but got"),
        ("s3:depth=1/2", "`depth` must have choices for one or for 4 stages, but got '1/2'"),
        ("s3:depth=one", r"`depth` must be numbers, \+ between choices"),
        ("s3:num_heads=0", "`num_heads` must be a whole number from 1"),
        ("s3:bias_tables=none", "`bias_tables` must be one of interpolated, separate, but got 'none'"),
        ("pit:depth=1", "`space` pit has no variants, but got 'pit:depth=1'"),
    ],
)
def test_names_that_describe_nothing(name: str, reason: str) -> None:
    with pytest.raises(VitsearchError, match=reason):
        SPACES[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": [2, 2, 6]}, "`embed_dim` must have one entry for each of 3 stages"),
        ({"depth": 2}, "`depth` must be a list of numbers, one for each stage"),
        ({"num_heads": [3, 6, 12, 24]}, "`num_heads` must be a list for each stage of a number for each block"),
        ({"window_size": [[7]] * 4}, r"`window_size` must have `depth` = \[2, 2, 6, 2\] entries"),
        ({"window_size": [[0] * 2, [7] * 2, [14] * 6, [7] * 2]}, "`window_size` must be a whole number from 1"),
        ({"mlp_ratio": [[4.0] * 2, [4.0] * 2, [-1] * 6, [4.0] * 2]}, "`mlp_ratio` must be a positive number"),
    ],
)
def test_what_cannot_be_built(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        decode(TINY | change)


def test_outside_says_where() -> None:
    why = outside(TINY | {"embed_dim": [96, 192, 384, 700]})
    assert why == "`embed_dim[3]` is 700, and s3 has 736, 768, 800"
    why = outside(TINY | {"num_heads": [[3, 5], [6] * 2, [12] * 6, [24] * 2]})
    assert why == "`num_heads[0][1]` is 5, and s3 has 2, 3, 4"


@pytest.mark.parametrize("limits", [Limits(max_params=102_000), Limits(min_params=90_000, max_macs=110_000_000)])
def test_draws_under_limits_are_uniform_over_what_fits(limits: Limits) -> None:
    space = SPACES[SMALL]
    expected = {json.dumps(settings) for settings in space.region(limits)}
    region = StagedRegion(space, IMAGENET).within(limits, "s3")
    assert type(space.region(limits)) is Region and 20 < len(expected) < space.size // 2
    assert {json.dumps(settings) for settings in region.walk(7)} == expected
    random = Random(1)
    drawn = Counter(json.dumps(region.sample(random)) for _ in range(15 * len(expected)))
    assert set(drawn) <= expected
    assert chisquare([drawn[key] for key in expected]).pvalue > 1e-3


def test_limits_of_the_initial_space() -> None:
    limits = Limits(max_macs=4_700_000_000, max_params=5_000_000)  # one in 10 ** 20
    drawn = sample(INITIAL, 20, seed=0, limits=limits)
    assert all(limits.allow(cost_of(settings)) and settings in INITIAL for settings in drawn)
    assert len({json.dumps(settings) for settings in drawn}) == 20
    region = INITIAL.region(limits)
    assert region.part(3, 4, seed=5) == region.part(0, 7, seed=5)[3:] and region[2] == region.part(2, 1)[0]
    with pytest.raises(NothingFits, match="max_macs=4600000000; the nearest has params=4889408, macs=4602987648"):
        INITIAL.region(Limits(max_macs=4_600_000_000))
    with pytest.raises(VitsearchError, match="`size` of s3-initial is known without limits only"):
        _ = region.size


def test_a_block_is_one_thing_for_mutation_and_crossover() -> None:
    first, second = sample(INITIAL, 2, seed=4)

    def blocks(settings: Settings) -> list[list[tuple[Any, ...]]]:
        return [list(zip(*(settings[name][stage] for name in DIMENSIONS[2:]), strict=True)) for stage in range(4)]

    random = Random(0)
    for _ in range(50):
        child = crossover(INITIAL, first, second, random)
        assert child in INITIAL
        for stage, own in enumerate(blocks(child)):
            for number, block in enumerate(own):
                assert block in [
                    one[stage][number] for one in (blocks(first), blocks(second)) if number < len(one[stage])
                ]
    same = [mutate(INITIAL, first, random, network=0.0, block=0.4) for _ in range(400)]
    assert all(one in INITIAL and one["depth"] == first["depth"] for one in same)
    changed = [
        a != b for one in same for s, own in enumerate(blocks(one)) for a, b in zip(own, blocks(first)[s], strict=True)
    ]
    assert sum(changed) / len(changed) == pytest.approx(0.4 * 17 / 18, abs=0.03)
    deeper = [mutate(INITIAL, first, random, network=1.0, block=0.0) for _ in range(300)]
    counts = Counter(one["depth"][1] for one in deeper)
    assert set(counts) == {2, 3, 4} and chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "embed_dim=64/64/2+64/64,mlp_ratio=0.3",
            r"`width \* mlp_ratio` must be a whole number from 1 to \d+, but got 0",
        ),
        ("embed_dim=64/64/60000/64,mlp_ratio=20", r"`width \* mlp_ratio` must be .*, but got 1200000"),
        ("depth=1/1/1+1025/1", "`depth` must be a whole number from 1 to 1024, but got 1025"),
    ],
)
def test_a_variant_that_cannot_be_built_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadSettings, match=reason):
        SPACES[f"s3:{text}"]


def test_spaces_too_large_for_draws_under_limits_are_refused() -> None:
    space = SPACES["s3:depth=1/1/300/1"]
    with pytest.raises(VitsearchError, match=r"`limits` must be of a space of fewer than 2\^1000 networks"):
        sample(space, 1, limits=Limits(max_macs=200_000_000_000))
    assert sample(space, 1)[0] in space


def test_a_sandwich_of_a_small_space_has_the_ends_of_its_windows() -> None:
    """Those of stage 4 cover its map of 7 at 224 px, and cost the same."""
    space = SPACES["s3:depth=1,embed_dim=32,num_heads=1,mlp_ratio=1,window_size=7/7/7/7+14"]
    largest, smallest, *_ = SUBNET_SCHEMES["sandwich"].choose(space, 0, 0)
    assert (largest["window_size"][3], smallest["window_size"][3]) == ([14], [7])


def test_a_sandwich_has_the_ends_of_every_field() -> None:
    largest, smallest, *drawn = SUBNET_SCHEMES["sandwich"].choose(INITIAL, 0, 0)
    assert (largest, smallest) == (INITIAL.end(max), INITIAL.end(min)) and all(one in INITIAL for one in drawn)
    assert {size for stage in smallest["window_size"] for size in stage} == {7}
