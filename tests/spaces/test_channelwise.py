"""ViTAS's spaces: members counted one by one in a small one, published networks, empty slots, other patches."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from timm.models.cait import ClassAttn
from torch.utils.flop_counter import FlopCounterMode

from vitsearch.architecture import Absent, Architecture, Attention, Settings
from vitsearch.architecture import ClassAttention as ClassAttentionPlan
from vitsearch.cost import IMAGENET, Cost, Geometry, Limits
from vitsearch.errors import BadSettings, NothingFits, VitsearchError
from vitsearch.models import build
from vitsearch.models.class_attention import ClassAttention
from vitsearch.search.operators import crossover, mutate
from vitsearch.spaces import SPACES, canonical, cost_of, decode, outside, sample, space_of
from vitsearch.spaces.channelwise import Channelwise

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
TINY = Geometry(image_size=8, classes=3)
VITAS = SPACES["vitas"]


def cost(settings: Settings) -> Cost:
    return cost_of(SMALL.decode(settings), TINY)


def every_member(space: Channelwise) -> list[Settings]:
    blocks = [(0, None, None), *itertools.product(space.num_heads, space.ratios, space.ratios)]
    found = []
    for size, width in itertools.product(space.patch_sizes, space.embed_dim):
        for slots in itertools.product(blocks, repeat=space.slot_count):
            heads, attention, mlp = (list(values) for values in zip(*slots, strict=True))
            settings = {"space": space.name, "patch_size": size, "embed_dim": width, "num_heads": heads}
            found.append(settings | {"attention_ratio": attention, "mlp_ratio": mlp})
    return found


MEMBERS = every_member(SMALL)
COSTS = [cost(member) for member in MEMBERS]
MIDDLE = Cost(sorted(c.params for c in COSTS)[len(COSTS) // 2], sorted(c.macs for c in COSTS)[len(COSTS) // 2])


@pytest.mark.parametrize(
    "limits",
    [
        Limits(),
        Limits(max_params=MIDDLE.params),
        Limits(min_macs=MIDDLE.macs),
        Limits(min_params=MIDDLE.params - 200, max_params=MIDDLE.params + 100, max_macs=MIDDLE.macs),
        Limits(min_macs=COSTS[1].macs, max_macs=COSTS[1].macs),
    ],
)
def test_a_region_holds_what_filtering_leaves(limits: Limits) -> None:
    expected = [json.dumps(m) for m, c in zip(MEMBERS, COSTS, strict=True) if limits.allow(c)]
    region = SMALL.region(limits, TINY)
    assert region.size == len(expected) > 0
    found = [json.dumps(member) for member in region]
    assert sorted(found) == sorted(expected)
    costs = [cost(json.loads(member)) for member in found]
    assert cost(region.smallest()) == min(costs) and cost(region.largest()) == max(costs)
    assert all(json.loads(member) in SMALL for member in found)


@pytest.mark.parametrize("limits", [{"max_params": 10}, {"min_macs": 10**9}, {"min_params": 700, "max_macs": 1000}])
def test_the_nearest_is_named(limits: dict[str, int]) -> None:
    bounds = Limits(**limits)
    nearest = min(COSTS, key=bounds.excess)
    with pytest.raises(NothingFits) as raised:
        SMALL.region(bounds, TINY)
    numbers = [int(part.split("=")[1]) for part in str(raised.value).split("nearest has ")[1].split(", ")]
    assert bounds.excess(Cost(*numbers)) == pytest.approx(bounds.excess(nearest))


@pytest.mark.parametrize("identity", [0.0, 0.3, 0.9])
def test_leaning_is_drawing_slot_by_slot_given_the_limits(identity: float) -> None:
    """Against the probability of every single member; uniform sampling fails it."""
    limits, present = Limits(max_macs=MIDDLE.macs), (1 - identity) / 8
    weights = {
        json.dumps(m): math.prod(present if heads else identity for heads in m["num_heads"])
        for m, c in zip(MEMBERS, COSTS, strict=True)
        if limits.allow(c)
    }
    total, draws, random = sum(weights.values()), 6000, Random(0)
    region = SMALL.region(limits, TINY)
    found = Counter(json.dumps(region.lean(random, identity)) for _ in range(draws))
    assert all(weights[key] > 0 for key in found)
    by_blocks: dict[tuple[Any, ...], list[float]] = {}
    for key, weight in weights.items():
        member = json.loads(key)
        cell = by_blocks.setdefault((member["patch_size"], member["embed_dim"], tuple(member["num_heads"])), [0.0, 0.0])
        cell[0] += found[key]
        cell[1] += weight / total * draws
    observed, expected = zip(*(cell for cell in by_blocks.values() if cell[1]), strict=True)
    assert chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("name", ["vitas", "vitas:slot_count=3,identity=no,steps=5,embed_dim=16+24"])
def test_rows_are_counted_before_they_are_listed(name: str) -> None:
    space = SPACES[name]
    assert isinstance(space, Channelwise)
    rows = space.slot_choices.rows * len(space.patch_sizes) * len(space.embed_dim)
    assert rows == len(space.region().cells)


def test_leaning_needs_slots_that_may_be_empty_and_a_network_that_is_possible() -> None:
    with pytest.raises(VitsearchError, match="`identity` must be from 0 to 1"):
        SMALL.region(geometry=TINY).lean(Random(0), 1.5)
    with pytest.raises(NothingFits, match="has probability at identity 1"):
        SMALL.region(Limits(min_params=MIDDLE.params), TINY).lean(Random(0), 1.0)


def test_published_networks_are_members_and_count_as_published(
    published: list[dict[str, Any]], cli: Callable[..., Any], tmp_path: Path
) -> None:
    networks = [network for network in published if network["arch"]["space"].startswith("vitas")]
    assert len(networks) == 4
    for network in networks:
        arch = network["arch"]
        assert outside(arch) is None and canonical(arch) == arch and arch in SPACES[arch["space"]]
        file = tmp_path / "arch.json"
        file.write_text(json.dumps(arch))
        found = cli("cost", file, "--json").json()
        for name in ("params", "macs", "macs_published_counter"):
            assert found[name] == network[name], network["name"]
    file.write_text(json.dumps(SPACES["pit"].region().smallest()))
    assert "macs_published_counter" not in cli("cost", file, "--json").json()


def test_block_spaces_hold_the_published_blocks(published: list[dict[str, Any]]) -> None:
    block = {"space": "vitas-block", "embed_dim": 230, "num_heads": 3, "attention_ratio": 0.3, "mlp_ratio": 0.5}
    whole = next(network for network in published if network["name"] == "ViTAS-1.3G")
    assert block in SPACES["vitas-block"] and cost_of(block) == (whole["params"], whole["macs"])
    large = {"space": "vitas-block-large", "embed_dim": 384, "num_heads": 6, "attention_ratio": 0.4, "mlp_ratio": 0.6}
    assert large in SPACES["vitas-block-large"]
    first = decode(large).stages[0].blocks[0]
    assert (first.heads * first.head_dim * 3, first.hidden) == (1152, 1728)  # type: ignore[union-attr]


def test_ratios_of_empty_slots_say_nothing() -> None:
    member = sample("vitas", 1, seed=4)[0] | {"num_heads": [0, 3] * 8}
    filled = member | {"attention_ratio": [0.5] * 16, "mlp_ratio": [1] * 16}
    spelled = canonical(filled)
    assert spelled["attention_ratio"] == [None, 0.5] * 8 and spelled["mlp_ratio"] == [None, 1.0] * 8
    assert decode(spelled) == decode(filled) and spelled in VITAS
    plan = decode(spelled)
    assert plan.depth == 8 and isinstance(plan.stages[0].blocks[0], Absent)
    assert len(plan.present().stages[0].blocks) == 8 and cost_of(plan.present()) == cost_of(plan)
    assert plan.present().present() == plan.present()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": [3] * 15}, "must be lists with one entry for each slot"),
        ({"num_heads": [-1] * 16}, "`num_heads` must be a whole number"),
        ({"num_heads": [3] * 16, "attention_ratio": [None] * 16}, "`attention_ratio` must be a positive number"),
        ({"num_heads": [0] * 16, "mlp_ratio": ["x"] * 16}, "`mlp_ratio` must be a positive number"),
        ({"num_heads": [7] * 16, "attention_ratio": [0.1] * 16, "mlp_ratio": [0.1] * 16}, "3 x 7 heads"),
        ({"num_heads": [3] * 16, "attention_ratio": [1e-9] * 16, "mlp_ratio": [1] * 16}, "`attention_ratio` .* 1e-09"),
        ({"scale": "width"}, "`scale` must be one of head, embed"),
        ({"patch_sizes": [4]}, "has no setting 'patch_sizes'"),
        ({"patch_size": 0}, "`patch_size` must be a whole number"),
    ],
)
def test_what_cannot_be_built(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        decode(sample("vitas", 1, seed=0)[0] | change)


def test_outside_but_buildable() -> None:
    member = sample("vitas", 1, seed=0)[0]
    thirteen = {name: member[name][:13] for name in ("num_heads", "attention_ratio", "mlp_ratio")}
    assert "13 entries, and vitas has 16 slots" in str(outside(member | thirteen))
    wide = member | {"num_heads": [3] * 16, "attention_ratio": [0.25] * 16, "mlp_ratio": [0.3] * 16}
    assert "`attention_ratio[0]` is 0.25" in str(outside(wide)) and cost_of(wide).params > 0


ODD = [True, 1, 1.0, 0, None, 3, 0.25, 0.3, "x", [0.3], 7, 14, 38]


@pytest.mark.parametrize("space", [VITAS, SPACES["vitas:identity=no"]])
def test_what_is_known_at_once_is_what_is_read(space: Channelwise) -> None:
    random, found = Random(0), Counter[bool]()
    for member in [settings for one in sample(space, 12, seed=2) for settings in (one, dict(reversed(one.items())))]:
        assert member in space and space.why_not(member) is None
        for name in member:
            for value in ODD:
                changed = json.loads(json.dumps(member)) | {name: value}
                if isinstance(member[name], list) and random.random() < 0.9:
                    changed[name] = [value, *member[name][1:]]
                found[changed in space] += 1
                assert (changed in space) == (space.why_not(changed) is None), changed
    assert found[True] > 100 and found[False] > 1000
    assert not any(odd in space for odd in (5, None, [member], "vitas"))


def test_other_patches_are_searched_too() -> None:
    space = VITAS.with_patch_size((2, 4, 8))
    assert space.size == VITAS.size and space.fixed() == {"patch_sizes": [2, 4, 8]}
    drawn = sample(space, 60, seed=0, geometry=Geometry(image_size=32, classes=10))
    assert {settings["patch_size"] for settings in drawn} == {2, 4, 8}
    assert all(one in space and one not in VITAS and outside(one) is None for one in drawn)
    assert VITAS.with_fixed(space.fixed()) == space and space_of(drawn[0]) == VITAS
    for bad in ([], [4, 4], "4"):
        with pytest.raises(BadSettings, match="`patch_sizes` must be a list"):
            VITAS.with_fixed({"patch_sizes": bad})
    with pytest.raises(VitsearchError, match="`patch_size` must be one number for pit"):
        SPACES["pit"].with_patch_size((2, 4))


def test_command_line_takes_several_patches(cli: Callable[..., Any]) -> None:
    drawn = cli("sample", "vitas", "-n", 20, "--patch-size", "2,4,8", "--image-size", 32, "--json").json()
    assert {settings["patch_size"] for settings in drawn} == {2, 4, 8}
    assert "must be one number for autoformer-tiny" in cli("sample", "autoformer-tiny", "--patch-size", "2,4").error()
    assert "must be a whole number, but got 'x'" in cli("sample", "vitas", "--patch-size", "2,x").error()


def test_the_scale_of_released_networks() -> None:
    """(embed // heads)^-0.5 in place of (head width)^-0.5 and nothing else; blueprints without it keep their keys."""
    member = {"space": "vitas", "patch_size": 16, "embed_dim": 154, "num_heads": [12], "attention_ratio": [0.2]}
    member |= {"mlp_ratio": [0.1]}
    plain, released = decode(member), decode(member | {"scale": "embed"})
    assert canonical(member | {"scale": "embed"})["scale"] == "embed" and "scale" not in canonical(member)
    geometry = Geometry(image_size=32, classes=2)
    scales = [build(plan, geometry).stages[0].blocks[0].attn.scale for plan in (plain, released)]  # type: ignore[union-attr]
    assert scales == [8**-0.5, 12**-0.5]
    assert cost_of(plain) == cost_of(released) and plain.key() != released.key()
    assert "scale" not in json.dumps(plain.to_json()) and Architecture.from_json(released.to_json()) == released


def test_children_have_ratios_where_they_have_blocks() -> None:
    random, parents = Random(0), [SMALL.draw(Random(number), 0.5) for number in range(20)]
    for _ in range(100):
        first, second = random.sample(parents, 2)
        child = crossover(SMALL, first, second, random)
        for slot, heads in enumerate(child["num_heads"]):
            assert heads in (first["num_heads"][slot], second["num_heads"][slot])
            given = {first["mlp_ratio"][slot], second["mlp_ratio"][slot]}
            assert (child["mlp_ratio"][slot] in given) if heads else child["mlp_ratio"][slot] is None
        assert mutate(SMALL, child, random, block=0.5) in SMALL


def test_the_counter_of_the_public_code_ignores_the_class_token() -> None:
    """DeiT-Ti and DeiT-S as the public code's own comments have them."""
    for width, heads, expected in ((192, 3, 1_284_003_840), (384, 6, 4_648_906_752)):
        plan = VITAS.blueprint(16, width, [Attention(heads=heads, head_dim=64, hidden=4 * width)] * 12)  # type: ignore[attr-defined]
        assert VITAS.published_macs(plan, IMAGENET) == expected


BLOCK = {"space": "vitas-block", "embed_dim": 77, "num_heads": 3, "attention_ratio": 0.1, "mlp_ratio": 0.1}


@pytest.mark.parametrize("cait", [1, 2])
def test_networks_as_cait_has_them(cait: int) -> None:
    """Class attention and LayerScale: costs as built and counted, settings that come back, outside the space."""
    geometry = Geometry(image_size=32, classes=4)
    drawn = VITAS.draw(Random(1), 0.8)  # type: ignore[attr-defined]
    for settings in (BLOCK | {"cait": cait}, drawn | {"patch_size": 8, "cait": cait}):
        plan = decode(settings)
        assert canonical(settings) == settings and plan.late_token
        assert plan.depth == decode(settings | {"cait": 0}).depth + cait
        assert Architecture.from_json(json.loads(json.dumps(plan.to_json()))) == plan
        assert f"`cait` is {cait}" in str(outside(settings))
        network = build(plan, geometry, seed=0).set_fused_attention(False)
        assert cost_of(plan, geometry).params == sum(parameter.numel() for parameter in network.parameters())
        with FlopCounterMode(display=False) as counter:
            outputs = network(torch.randn(1, 3, 32, 32))
        assert counter.get_total_flops() // 2 == cost_of(plan, geometry).macs and outputs.shape == (1, 4)
        ones = torch.ones(1, 3, 32, 32)
        torch.testing.assert_close(network(ones), network.set_fused_attention(True)(ones))
        gammas = [p for name, p in network.named_parameters() if name.endswith("gamma")]
        assert len(gammas) == 2 * plan.depth and all(gamma.eq(0.1).all() for gamma in gammas)
    with pytest.raises(BadSettings, match="`cait` must be 0 in a network without blocks"):
        decode(drawn | {"num_heads": [0] * 16, "cait": 1})


@torch.no_grad()
def test_the_class_token_enters_with_class_attention() -> None:
    """Patches are blind to it before, and change no more once it is there."""
    network = build(BLOCK | {"cait": 2}, Geometry(image_size=32, classes=4), seed=0)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    first = network.forward_intermediates(images, norm=False, output_fmt="NLC", return_prefix_tokens=True)[1]
    network.cls_token.add_(1.0)  # type: ignore[union-attr]
    second = network.forward_intermediates(images, norm=False, output_fmt="NLC", return_prefix_tokens=True)[1]
    assert len(first) == 14 and all(torch.equal(a, b) for (a, _), (b, _) in zip(first, second, strict=True))
    assert all(torch.equal(patches, first[11][0]) for patches, _ in first[12:])
    assert all(torch.equal(token, first[0][1]) for _, token in first[:12])
    assert not torch.equal(first[12][1], first[11][1]) and not torch.equal(first[13][1], first[12][1])
    narrow = ClassAttention(77, ClassAttentionPlan(heads=7, head_dim=11, hidden=4))
    by_timm = ClassAttn(77, num_heads=7, qkv_bias=True)
    narrow.load_state_dict(by_timm.state_dict())
    tokens = torch.randn(2, 5, 77, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(narrow(tokens), by_timm(tokens))


def test_a_variant_is_its_name() -> None:
    """It has the members of a space made with the same fields, and is found again by what its members say."""
    space = SPACES["vitas:embed_dim=8+11,num_heads=1+2,attention_dim=12,mlp_dim=10,steps=2,slot_count=2"]
    over = space.with_patch_size([2, 4])
    named = {json.dumps(member | {"space": space.name}) for member in MEMBERS}
    assert {json.dumps(member) for member in over.region(geometry=TINY)} == named
    member = json.loads(sorted(named)[0])
    assert space_of(member) == space and member in over and member not in VITAS
    full = SPACES["vitas:slot_count=2,identity=no"]
    assert full.size == 3 * 10 * 400**2 and 0 not in full.knobs[2].choices
    block = SPACES["vitas-block:depth=3,embed_dim=64"]
    assert block.size == 4 * 10 * 10 and len(block.envelope().stages[0].blocks) == 3


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vitas:heads=3", "must name its choices once each, such as embed_dim=.*Did you mean 'num_heads'"),
        ("vitas:num_heads=5", "`attention_dim` must divide by 3 x `steps` x heads, 3 x 10 x 5, but got 1440"),
        ("vitas:mlp_dim=1445", "`mlp_dim` must divide by `steps`, 10, but got 1445"),
        ("vitas:num_heads=3+3", "`num_heads` must have different choices"),
        ("vitas:embed_dim=", "`embed_dim` must be a whole number, but got ''"),
        ("vitas:embed_dim=64+-3", "`embed_dim` must be a whole number, but got '-3'"),
        ("vitas:slot_count=0", "`slot_count` must be a whole number from 1 to 1024, but got 0"),
        ("vitas:slot_count=1024", "must make at most 1000000 rows to count, but got 141726750: 1024 slots of 10 steps"),
        ("vitas:embed_dim=" + "9" * 5000, r"`embed_dim` must be a whole number, but got '9{70,80}\.\.\.$"),
        ("vitas:embed_dim=\u0663", "`embed_dim` must be a whole number"),
        ("vitas:identity=maybe", "`identity` must be yes or no, but got 'maybe'"),
        ("vitas:depth=3", "must name its choices once each"),
        ("vitas-block:slot_count=3", "must name its choices once each"),
        (
            "vitas-block:embed_dim=64,num_heads=1,attention_dim=3000,mlp_dim=1000,steps=1000",
            "must make at most 200000 networks to list, but got 1000000: 1 widths, 1 head counts, 1000 steps",
        ),
    ],
)
def test_names_that_describe_nothing(name: str, reason: str) -> None:
    with pytest.raises(VitsearchError, match=reason):
        SPACES[name]
