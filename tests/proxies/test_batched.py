"""Many networks at once against the one-at-a-time definitions, on the same weights."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import kendalltau

from vitsearch import scoring
from vitsearch.architecture import Attention, Settings
from vitsearch.cost import Geometry
from vitsearch.data import Batch, open_data
from vitsearch.models import build
from vitsearch.models.initialise import draw_seed
from vitsearch.models.weights import WeightBank, cut
from vitsearch.proxies import PROXIES, Subject, batched, group_pass, parse_proxy
from vitsearch.proxies.batched import BATCHED, score_group
from vitsearch.proxies.diversity import Summed, nuclear_norms, nuclear_norms_of
from vitsearch.proxies.routing import can_batch, group_by_skeleton
from vitsearch.proxies.takers import GradientNorm
from vitsearch.scoring import CPU_MOST, ProxyEvaluator
from vitsearch.spaces import SPACES, decode, sample

GEOMETRY = Geometry(image_size=64, classes=10)


def evaluator(names: list[str], **options: Any) -> ProxyEvaluator:
    return ProxyEvaluator(names, **({"geometry": GEOMETRY, "seed": 1, "device": "cpu", "batch_size": 3} | options))


VARIANTS = [
    *BATCHED,
    *(f"{name}:params=linear" for name in ("snip", "plain", "grad_norm")),
    *("synflow:sign=absolute", "autoproxa:norm=sum", "autoproxp:softmax=sum", "autoproxp:softmax=layers"),
]


BATCHED_SPACES = [n for n in SPACES if n.startswith(("autoformer", "pit")) and "base" not in n] + ["vitas-micro"]
"""Windows are scored one by one."""


@pytest.mark.parametrize("weights", ["fresh", "shared"])
@pytest.mark.parametrize("space", BATCHED_SPACES)
def test_batched_scores_equal_one_at_a_time(space: str, weights: str) -> None:
    """Every batched proxy, networks of several widths, depths and blocks in one batch."""
    networks = sample(space, 2, seed=2)
    all_of_them = weights == "fresh" and not space.endswith("-small")  # which differ in widths alone
    names = VARIANTS if all_of_them else ["dss", "snip", "grasp", "autoproxp"]
    scorer = evaluator(names, weights=weights, batch_size=4)
    for ours, settings in zip(scorer(networks), networks, strict=True):
        theirs = scorer.one(settings)
        assert set(ours.scores) == set(names) and ours.errors == {} and ours.arch == settings
        for name in names:
            # `plain` is a sum of both signs that nearly cancels: it is held to the size of its terms
            scale = abs(theirs.scores["snip" if name.startswith("plain") else name])
            # where two batches give a weight nearly the same gradient, float32 says nothing of its ratio
            bound = 2e-2 if name == "zico" else 2e-5
            assert abs(ours.scores[name] - theirs.scores[name]) <= bound * scale, name


@pytest.mark.parametrize("space", ["autoformer-micro", "autoformer-tiny-plain", "pit"])
def test_in_float64_they_are_the_definitions(space: str) -> None:
    """Both in float64: no rounding to hide behind, for GraSP's and ZiCo's differences least of all."""
    names = ["grasp", "ntk", "zico", "zico:spread=signed", "zico:batches=4", "fisher", "snip", "plain", "grad_norm"]
    names += ["autoproxa", "naswot", "linear_regions", "entropy"]
    (settings,) = sample(space, 1, seed=3)
    plan, weights = decode(settings), bank(space, "fresh")
    drawn = open_data("noise").draw(8, GEOMETRY, 1)
    batch = Batch(drawn.images.double(), drawn.labels)
    ours = score_group([plan], names, geometry=GEOMETRY, bank=weights, batch=lambda: batch, exact=True)
    subject = Subject(
        name=space,
        network=lambda: weights.network(plan, GEOMETRY).double(),
        batch=lambda: batch,
        geometry=GEOMETRY,
        traces=frozenset({"curvature", "fisher", "signs", "parts=2"}),
    )
    for name in names:
        proxy, options = parse_proxy(name)
        assert float(ours[name][0]) == pytest.approx(proxy.score(subject, **options), rel=1e-6), name


@pytest.mark.parametrize("names", [list(PROXIES), ["naswot", "entropy"], ["ntk", "snip"], ["autoproxp", "zen"]])
def test_no_network_is_built(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("a network was built")

    monkeypatch.setattr(WeightBank, "network", never)
    for found in evaluator(names, batch_size=4)(sample("autoformer-micro", 2, seed=1) + sample("pit", 1, seed=1)):
        assert set(found.scores) == set(names) - {"zen"}
        assert all("is not defined" in error for error in found.errors.values())


def test_company_of_other_proxies_changes_nothing_but_rounding() -> None:
    """GraSP takes derivatives along, NTK goes back from the logits; alone, each has a pass of its own kind."""
    networks = sample("autoformer-micro", 3, seed=6)
    names = ["grasp", "ntk", "snip", "fisher", "naswot", "linear_regions", "autoproxa"]
    together = evaluator(names, batch_size=4)(networks)
    for name in names:
        alone = [score.scores[name] for score in evaluator([name], batch_size=4)(networks)]
        assert alone == pytest.approx([score.scores[name] for score in together], rel=1e-5), name


def test_what_the_batch_leaves_open_the_definition_says() -> None:
    (found,) = evaluator(["zico", "snip"], batch_size=3)(sample("autoformer-micro", 1, seed=1))
    assert "3 images are not 2 batches" in found.errors["zico"] and "snip" in found.scores
    scorer = evaluator(["linear_regions", "naswot"], batch_size=4)
    scorer.batch().images[2] = scorer.batch().images[0]
    (found,) = scorer(sample("autoformer-micro", 1, seed=1))
    assert found.scores == {"linear_regions": 3} and "not finite" in found.errors["naswot"]


@pytest.mark.parametrize("space", ["autoformer-base"])
def test_large_networks_too(space: str) -> None:
    networks = sample(space, 1, seed=2)
    scorer = evaluator(["dss"])
    for ours, settings in zip(scorer(networks), networks, strict=True):
        assert ours.scores["dss"] == pytest.approx(scorer.one(settings).scores["dss"], rel=1e-4)


@pytest.mark.parametrize("space", ["autoformer-tiny", "pit"])
def test_ranking_at_full_size(space: str) -> None:
    """At 224 px the two agree in rank; the benchmark does the same with 200 networks."""
    networks = sample(space, 8, seed=3)
    scorer = evaluator(["dss"], geometry=Geometry())
    ours = [score.scores["dss"] for score in scorer(networks)]
    theirs = [scorer.one(settings).scores["dss"] for settings in networks]
    assert kendalltau(ours, theirs).statistic > 0.999
    assert max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)) < 1e-4


def test_half_precision_where_rounding_averages_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does for sums of magnitudes; where float16 is too small, the definition has the last word."""
    networks = sample("autoformer-tiny", 2, seed=1)
    scorer = evaluator(["snip", "grad_norm"], batch_size=8)
    theirs = [scorer.one(settings).scores for settings in networks]
    assert scorer(networks)[0].scores == pytest.approx(theirs[0], rel=1e-6)
    monkeypatch.setattr(batched, "ROUGH_ON", ("cpu",))
    seen = set()
    whole = group_pass.GroupPass.attention

    def watched(self: Any, q: torch.Tensor, *arguments: Any) -> Any:
        seen.add((q.dtype, self.last_blocks))
        return whole(self, q, *arguments)

    monkeypatch.setattr(group_pass.GroupPass, "attention", watched)
    ours = [score.scores for score in scorer(networks)]
    assert seen == {(torch.float16, False), (torch.float32, True)}
    for one, other in zip(ours, theirs, strict=True):
        assert one != other and one == pytest.approx(other, rel=1e-4)
    seen.clear()
    with_another = evaluator(["snip", "fisher"], batch_size=8)(networks[:1])
    assert with_another[0].scores["snip"] == pytest.approx(theirs[0]["snip"], rel=1e-6)
    assert seen == {(torch.float32, False), (torch.float32, True)}
    monkeypatch.setattr(group_pass.GroupPass, "scale", lambda *_: 2.0**60)
    assert scorer(networks[:1])[0].scores == theirs[0]


def test_norms_of_half_precision_are_not_rounded_to_it() -> None:
    """A sum of norms rounded to float16 is none to 1e-4."""
    gradient = torch.randn(3, 40, 50, generator=torch.Generator().manual_seed(0)).half()
    bank = WeightBank("fresh", 0, torch.device("cpu"), nuclear_norms, 1 << 20)
    norms = GradientNorm(3, bank).term(gradient, gradient)
    assert norms.tolist() == pytest.approx([float(one.double().norm()) for one in gradient], rel=1e-6)


def test_batch_size_and_company_do_not_matter() -> None:
    networks = sample("autoformer-micro", 12, seed=4)
    scorer = evaluator(["dss", "snip"])
    together = scorer(networks)
    alone = [scorer([settings])[0] for settings in networks]
    for one, other in zip(together, alone, strict=True):
        assert one.scores == pytest.approx(other.scores, rel=1e-5)
    assert [score.scores for score in scorer(networks)] == [score.scores for score in together]


def test_an_image_of_one_patch() -> None:
    networks = sample("autoformer-micro", 2, seed=4)
    scorer = evaluator(["ntk", "snip", "dss", "synflow"], geometry=Geometry(image_size=16, classes=10))
    for found, settings in zip(scorer(networks), networks, strict=True):
        assert found.scores == pytest.approx(scorer.one(settings).scores, rel=1e-4) and found.errors == {}


def test_other_proxies_come_along() -> None:
    (found,) = evaluator(["params", "dss", "depth"])(sample("pit", 1, seed=0))
    assert list(found.scores) == ["params", "dss", "depth"] and isinstance(found.scores["params"], int)


def test_out_of_memory_halves_the_batch(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A device that takes three networks at most: eight become four, then two, and the scores are the same."""
    networks = [dict(s) for s in sample("autoformer-micro", 8, seed=5)]
    whole = scoring.score_group

    def small_device(plans: list[Any], *arguments: Any, **options: Any) -> Any:
        if len(plans) > 3:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return whole(plans, *arguments, **options)

    monkeypatch.setattr(scoring, "score_group", small_device)
    scorer = evaluator(["dss"])
    scorer.at_once = 8
    same_width = [settings | {"embed_dim": 32} for settings in networks]
    with caplog.at_level(logging.WARNING, "vitsearch"):
        found = scorer(same_width)
    assert scorer.at_once == 2 and "2 networks at once from here on" in caplog.text
    plain = evaluator(["dss"])(same_width)
    assert [s.scores["dss"] for s in found] == pytest.approx([s.scores["dss"] for s in plain], rel=1e-5)


class NoRoom(Exception):
    """Of a kernel in a GPU."""

    __module__ = "triton.runtime.errors"


@pytest.mark.parametrize("error", [RuntimeError("Triton Error [CUDA]: out of memory"), MemoryError(), NoRoom("shared")])
def test_whatever_fails_together_is_scored_all_the_same(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What has no class of torch's for it, too: memory that others than torch ask for, and kernels that do not fit."""

    def failing(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(scoring, "score_group", failing)
    scorer = evaluator(["dss"])
    scorer.at_once = 4
    with caplog.at_level(logging.WARNING, "vitsearch"):
        (found,) = scorer(sample("autoformer-micro", 1, seed=5))
    assert "dss" in found.scores and "could not be scored together" in caplog.text
    assert scorer.at_once == (4 if isinstance(error, NoRoom) else 1)


def test_there_is_no_float64_on_apples_gpus() -> None:
    assert evaluator(["dss"], device=torch.device("mps")).device == torch.device("cpu")


def test_memory_bounds_the_batch(caplog: pytest.LogCaptureFixture) -> None:
    networks = sample("autoformer-tiny", 4, seed=6)
    scorer = evaluator(["dss"], memory=1)
    with caplog.at_level("INFO", logger="vitsearch"):
        assert len(scorer(networks)) == len(scorer(networks)) == 4 and scorer.at_once == 1
    (said,) = caplog.messages
    assert said.startswith("one network at a time: it takes about ") and said.endswith(" MB, of 0 that are given")
    roomy = evaluator(["dss"], memory=64 << 30)
    roomy(networks)
    assert roomy.at_once == CPU_MOST > 1


def test_larger_networks_later_on_go_fewer_at_a_time() -> None:
    """Networks that come in the order of their size: the bound is one on memory, not on those that came first."""
    small, large = ([decode(sample(name, 1, seed=6)[0])] for name in ("autoformer-micro", "autoformer-base"))
    scorer = evaluator(["dss"], memory=400_000_000)
    alone = scorer._how_many(large, ["dss"])
    scorer.at_once = scorer._how_many(small, ["dss"])
    assert scorer.at_once == CPU_MOST > alone
    scorer.at_once = scorer._how_many(large, ["dss"])
    assert scorer.at_once == alone == scorer._how_many(small, ["dss"])  # as a study has written it down


def test_gradients_count_where_tokens_are_few() -> None:
    """At 32 px the activations of a wide network are a few megabytes, and what is made of its gradients is not."""
    (settings,) = sample("autoformer-base", 1, seed=6)
    sizes = {}
    for names in (["snip"], ["ntk"], ["zico:batches=4"]):
        scorer = evaluator(names, geometry=Geometry(image_size=32), batch_size=8)
        plan = decode(settings)
        weight = max(640 * block.hidden for block in plan.stages[0].blocks if isinstance(block, Attention))
        sizes[names[0]] = scorer._bytes_at_once(plan, batched.routes(names, plan, scorer.device)) / (4 * weight)
    assert sizes["snip"] > 4 and sizes["ntk"] > 32 and sizes["zico:batches=4"] > 16


def test_groups_share_a_skeleton_and_keep_their_order() -> None:
    plans = {number: decode(settings) for number, settings in enumerate(sample("autoformer-tiny", 30, seed=7))}
    groups = group_by_skeleton(plans)
    assert sorted(number for group in groups for number in group) == list(range(30))
    for group in groups:
        assert group == sorted(group, key=lambda number: (len(plans[number].stages[0].blocks), number))
        assert len({plans[number].stages[0].width for number in group}) == 1


def test_what_cannot_be_batched_is_scored_alone() -> None:
    from vitsearch.architecture import Absent, Architecture, Patch, Stage

    blocks = (Attention(heads=2, head_dim=8, hidden=32), Absent())
    plan = Architecture(stages=(Stage(entry=Patch(size=16, stride=16), width=16, blocks=blocks),))
    assert not can_batch(plan) and can_batch(decode(sample("pit", 1)[0]))
    there = replace(plan, stages=(replace(plan.stages[0], blocks=blocks[:1]),))
    assert can_batch(there) and not can_batch(replace(there, resolution=32))  # images are as they come
    assert not can_batch(replace(there, stages=(replace(there.stages[0], entry=Patch(size=16, stride=16, norm=True)),)))


@pytest.mark.parametrize("spectrum", ["rank one", "decaying", "flat", "zero"])
def test_nuclear_norms_are_right_whatever_the_spectrum(spectrum: str) -> None:
    """Where the few vectors do not suffice, the bound notices and the exact norm is taken."""
    generator = torch.Generator().manual_seed(0)
    dy = torch.randn(3, 80, 96, generator=generator)
    x = torch.randn(3, 80, 64, generator=generator)
    if spectrum == "rank one":
        x = x[:, :1] + 1e-6 * x
        dy = dy[:, :1] + 1e-6 * dy
    elif spectrum == "decaying":
        x = x * torch.logspace(0, -6, 64)
    elif spectrum == "zero":
        dy = torch.zeros_like(dy)
    expected = torch.linalg.svdvals((dy.transpose(1, 2) @ x).double()).sum(-1)
    torch.testing.assert_close(nuclear_norms_of(Summed(dy, x)), expected, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("tokens", [1, 5, 17, 50])
@pytest.mark.parametrize("spectrum", ["alike", "random", "two of them equal", "zero"])
def test_of_few_tokens_nothing_larger_than_they_is_taken_apart(
    tokens: int, spectrum: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact, whatever the spectrum: roots of an eigenvalue that is nothing are 1e-8 of the largest at most."""
    sizes: list[int] = []
    for name in ("eigh", "eigvalsh"):
        real = getattr(torch.linalg, name)
        monkeypatch.setattr(torch.linalg, name, lambda x, real=real: sizes.append(x.shape[-1]) or real(x))
    generator = torch.Generator().manual_seed(0)
    dy = torch.randn(3, tokens, 300, generator=generator)
    x = torch.randn(3, tokens, 100, generator=generator)
    if spectrum == "alike":
        x, dy = x[:, :1] + 1e-3 * x, dy[:, :1] + 1e-3 * dy
    elif spectrum == "two of them equal":
        x[:, 0] = x[:, -1]
    elif spectrum == "zero":
        x = torch.zeros_like(x)
    found = nuclear_norms_of(Summed(dy, x))
    assert set(sizes) == {tokens}
    expected = torch.linalg.svdvals(dy.double().mT @ x.double()).sum(-1)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


def bank(space: str, weights: str, seed: int = 1) -> WeightBank:
    found = SPACES[space]
    envelope = found.envelope() if weights == "shared" else None
    scheme = found.envelope().initialisation
    return WeightBank(scheme, seed, torch.device("cpu"), nuclear_norms, 1 << 40, envelope, GEOMETRY)


@pytest.mark.parametrize("space", ["autoformer-micro", "pit", "pit-xs"])
def test_fresh_weights_are_those_of_build(space: str) -> None:
    settings = sample(space, 1, seed=8)[0]
    filled = bank(space, "fresh").network(decode(settings), GEOMETRY)
    expected = build(settings, GEOMETRY, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(filled.parameters(), expected.parameters(), strict=True))


@pytest.mark.parametrize("space", SPACES)
def test_shared_weights_are_slices_of_one_supernet(space: str) -> None:
    """Row r of the supernet's qkv belongs to q, k or v by r mod 3; a kernel is the middle; all else a leading slice."""
    settings = sample(space, 1, seed=9)[0]
    supernet = dict(build(SPACES[space].envelope(), GEOMETRY, seed=1).named_parameters())
    assert draw_seed(torch.Generator().manual_seed(1)) == bank(space, "shared").seed
    network = bank(space, "shared").network(decode(settings), GEOMETRY)
    for name, parameter in network.named_parameters():
        whole = supernet[name].detach()
        if ".qkv." in name:
            rows = [3 * row + turn for turn in range(3) for row in range(parameter.shape[0] // 3)]
            whole = whole[rows]
        if ".norm_corners." in name or name.endswith("reduction.weight"):  # four corners side by side
            whole = torch.cat([corner[..., : parameter.shape[-1] // 4] for corner in whole.chunk(4, -1)], -1)
        if name.endswith("bias_table") and whole.shape[0] != parameter.shape[0]:
            continue  # interpolated: tests/models/test_supernet.py
        if name.endswith("depthwise.weight") and (rim := (whole.shape[-1] - parameter.shape[-1]) // 2):
            whole = whole[..., rim:-rim, rim:-rim]
        expected = whole[tuple(slice(size) for size in parameter.shape)]
        assert torch.equal(parameter, expected), name
        assert torch.equal(cut(name, supernet[name].detach(), tuple(parameter.shape)), expected)


def test_a_full_bank_forgets_and_makes_again() -> None:
    small = WeightBank("autoformer", 0, torch.device("cpu"), nuclear_norms, most_bytes=1000)
    first = small.get("a.weight", (10, 10), 10, absolute=True, dtype=torch.float32).clone()
    for index in range(20):
        small.get(f"b{index}.weight", (10, 10), 10, absolute=True, dtype=torch.float32)
    assert small._bytes <= 1000
    assert torch.equal(small.get("a.weight", (10, 10), 10, absolute=True, dtype=torch.float32), first)
    expected = torch.linalg.svdvals(first.double()).sum()
    assert small.nuclear_norm("a.weight", (10, 10), absolute=True) == pytest.approx(float(expected), rel=1e-6)


def test_weights_must_be_known() -> None:
    from vitsearch.errors import VitsearchError

    settings: Settings = sample("pit", 1)[0]
    with pytest.raises(VitsearchError, match="`weights` must be one of fresh, shared, but got 'old'"):
        evaluator(["dss"], weights="old")([settings])
