"""The two steps against trying every network; the study around them; the command line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry, Limits
from vitsearch.data import open_data
from vitsearch.errors import BadStudy, NothingFits, VitsearchError
from vitsearch.latency import LatencyModel, Speed, SpeedLimits, fit_latency
from vitsearch.latency.fitting import Timed
from vitsearch.methods import preselection
from vitsearch.methods.preselection import Budgets, Pass, preselect
from vitsearch.methods.score_tables import ScoreTables, Tables
from vitsearch.methods.two_steps import Pick, Selector, Window, halvings
from vitsearch.spaces import SPACES, cost_of
from vitsearch.spaces.isotropic import Isotropic
from vitsearch.study import Study

MICRO = cast(Isotropic, SPACES["autoformer-micro"].with_patch_size(8))
THREE = replace(MICRO, num_heads=(1, 2, 3), mlp_ratio=(2.0, 2.5, 3.0))  # 1,620 networks
GEOMETRY = Geometry(image_size=16, classes=10)


def imagined(space: Isotropic, seed: int, noise: float = 0.0) -> ScoreTables:
    """Tables of growing random numbers, with noise of another seed on top."""
    widths, depth = len(space.embed_dim), max(space.depth)

    def tables(generator: np.random.Generator) -> Tables:
        heads, ratios = (
            generator.random((widths, depth, len(c))).cumsum(2) for c in (space.num_heads, space.mlp_ratio)
        )
        frame = generator.random(widths).cumsum()
        return Tables(frame=frame, block=generator.random((widths, depth)), heads=heads, ratios=ratios)

    fixed, other = np.random.default_rng(0), np.random.default_rng(seed)
    both = [(tables(fixed), tables(other)) for _ in range(2)]
    mixed = [
        Tables(**{name: (1 - noise) * getattr(one, name) + noise * getattr(two, name) for name in vars(one)})
        for one, two in both
    ]
    return ScoreTables(snip=mixed[0], normalised=mixed[1])


def looked_up(space: Isotropic, tables: Tables, settings: Settings) -> float:
    width = space.embed_dim.index(settings["embed_dim"])
    total = float(tables.frame[width])
    for number, (heads, ratio) in enumerate(zip(settings["num_heads"], settings["mlp_ratio"], strict=True)):
        total += tables.block[width, number] + tables.heads[width, number, space.num_heads.index(heads)]
        total += tables.ratios[width, number, space.mlp_ratio.index(ratio)]
    return total


def by_trying(space: Isotropic, tables: ScoreTables) -> list[tuple[float, float, Settings]]:
    """The best of every isomer group among all networks: plain SNIP, normalised SNIP, settings; best SNIP first."""
    best: dict[tuple[Any, ...], tuple[float, Settings]] = {}
    for settings in space.region(geometry=GEOMETRY):
        group = settings["embed_dim"], settings["depth"], sum(settings["num_heads"]), sum(settings["mlp_ratio"])
        score = looked_up(space, tables.normalised, settings)
        if group not in best or score > best[group][0]:
            best[group] = score, settings
    found = [(looked_up(space, tables.snip, settings), score, settings) for score, settings in best.values()]
    return sorted(found, key=lambda one: -one[0])


@pytest.mark.parametrize("space", [MICRO, THREE], ids=["two choices", "three choices"])
@pytest.mark.parametrize("resource", ["params", "macs"])
def test_picks_are_those_of_trying_every_network(space: Isotropic, resource: Any) -> None:
    tables = imagined(space, 3, noise=0.5)
    representatives = by_trying(space, tables)
    costs = sorted(getattr(cost_of(settings, GEOMETRY), resource) for *_, settings in representatives)
    bounds = [costs[len(costs) // 4], costs[len(costs) // 2] + 1, costs[-1], costs[-1] + 1]
    selector = Selector(space, [tables], geometry=GEOMETRY)
    picks = selector.picks([Window(0, bound) for bound in bounds], top=3, resource=resource, limits=Limits())
    expected: list[tuple[int, float, float, Settings]] = []
    for bound in bounds:
        fitting = [one for one in representatives if getattr(cost_of(one[2], GEOMETRY), resource) < bound]
        expected += [(bound, *one) for one in fitting[:3]]
    assert [(pick.budget, pick.settings) for pick in picks] == [(bound, settings) for bound, *_, settings in expected]
    for pick, (_, snip, score, settings) in zip(picks, expected, strict=True):
        assert (pick.snip, pick.score) == (pytest.approx(snip, rel=1e-12), pytest.approx(score, rel=1e-12))
        assert pick.cost == cost_of(settings, GEOMETRY)
        assert pick.greedy_score is not None and pick.greedy_score <= pick.score
        assert len(space.num_heads) == 3 or pick.greedy_score == pick.score


def clock(networks: Sequence[Timed]) -> Any:
    """Seconds in which many heads beside a wide MLP are slow: isomers differ."""
    blocks = [[(stage.width, one) for stage in timed.architecture.stages for one in stage.blocks] for timed in networks]
    times = [1e-3 + sum(1e-6 * width + 1e-6 * one.heads * one.hidden for width, one in each) for each in blocks]
    return np.array([[time] * 3 for time in times])


@pytest.fixture(scope="module")
def latency() -> LatencyModel:
    return fit_latency(MICRO, geometry=GEOMETRY, stopwatch=clock)


@pytest.fixture
def file(latency: LatencyModel, tmp_path: Path) -> Path:
    latency.save(tmp_path / "latency.json")
    return tmp_path / "latency.json"


@pytest.mark.parametrize("bound", [None, 0.7], ids=["budgets alone", "with a bound for all"])
def test_budgets_of_latency_are_those_of_trying_every_network(latency: LatencyModel, bound: float | None) -> None:
    tables = imagined(MICRO, 5, noise=0.5)
    representatives = [(*one, latency.latency_ms(MICRO.decode(one[2]))) for one in by_trying(MICRO, tables)]
    times = sorted(ms for *_, ms in representatives)
    most = None if bound is None else times[int(bound * len(times))]
    bounds = [times[len(times) // 4], times[len(times) // 2] + 1e-9, times[-1], times[-1] + 1e-9]
    speed = Speed(model=latency, limits=SpeedLimits(max_latency_ms=most, digest="0"))
    picks = Selector(MICRO, [tables], geometry=GEOMETRY).picks(
        [Window(0, one) for one in bounds], top=3, resource="latency", limits=Limits(), speed=speed
    )
    expected = []
    for budget in bounds:
        fitting = [one for one in representatives if one[3] < budget and (most is None or one[3] <= most)]
        expected += [(budget, settings, ms) for _, _, settings, ms in fitting[:3]]
    assert [(pick.budget, pick.settings, pick.latency_ms) for pick in picks] == expected
    assert len(picks) == 12 and len({str(pick.settings) for pick in picks}) > 4


def test_the_ends_of_latency_are_those_of_all_networks(latency: LatencyModel) -> None:
    every = [latency.latency_ms(MICRO.decode(one)) for one in MICRO.region(geometry=GEOMETRY)]
    found = [latency.latency_ms(plan) for plan in preselection.uniform_networks(MICRO)]
    assert (min(found), max(found)) == pytest.approx((min(every), max(every)), rel=1e-12)


def test_every_representative_has_its_exact_cost() -> None:
    selector = Selector(THREE, [imagined(THREE, 0)], geometry=GEOMETRY)
    kinds, _, costs = selector.representatives()
    assert [tuple(cost) for cost in costs.tolist()] == [cost_of(selector.settings(kind), GEOMETRY) for kind in kinds]
    assert len(kinds) == len(by_trying(THREE, imagined(THREE, 0)))


def test_the_bins_of_the_public_code() -> None:
    budgets = Budgets(bounds=(6, 7, 8), below=5)
    assert budgets.windows("paper") == [(0, 6), (0, 7), (0, 8)]
    assert budgets.windows("code") == [(5, 6), (6, 7), (7, 8)]
    selector = Selector(THREE, [imagined(THREE, 0)], geometry=GEOMETRY, variant="code")
    kinds, *_ = selector.representatives()
    assert len(kinds) == 2 * (3**2 + 6**2)  # widths, and for depths 2 and 3 the ways to count heads and ratios
    assert min(kind.heads.count(1) for kind in kinds) == min(kind.ratios.count(1) for kind in kinds) == 1


def picks_of(draws: Sequence[ScoreTables], space: Isotropic = MICRO) -> list[Pick]:
    return Selector(space, draws, geometry=GEOMETRY).picks(
        [Window(0, 10**9), Window(0, 25_000)], top=4, resource="params", limits=Limits()
    )


def test_agreement_tells_signal_from_noise(caplog: pytest.LogCaptureFixture) -> None:
    deep = replace(MICRO, depth=(12,))
    same = picks_of([imagined(deep, 1)] * 8, deep)
    assert {pick.agreement for pick in same} == {1.0, None} or {pick.agreement for pick in same} == {1.0}
    assert not any(pick.noisy for pick in same)
    noise = picks_of([imagined(deep, seed, noise=1.0) for seed in range(8)], deep)
    known = [value for pick in noise for value in (pick.agreement_heads, pick.agreement_ratios) if value is not None]
    assert known and abs(sum(known) / len(known)) < 0.35
    with caplog.at_level(logging.WARNING, "vitsearch"):
        preselection.warn(same, [], 8, "params")
        assert not caplog.records
        preselection.warn(noise, [Window(0, 7)], 8, "params")
    assert "no network has 0 <= params < 7" in caplog.text and "is within its noise: halves of 8 draws" in caplog.text
    caplog.clear()
    twice = [replace(pick, budget=budget) for budget in (10**8, 10**9) for pick in same]
    with caplog.at_level(logging.WARNING, "vitsearch"):
        preselection.warn(twice, [Window(0, 10**8), Window(0, 10**9)], 8, "params")
    assert [record.getMessage() for record in caplog.records] == [
        "note: a budget of 1000000000 params chooses nothing that the one before did not"
    ]


def test_halves_are_halves() -> None:
    assert halvings(1, 0) == [] and len(halvings(2, 0)) == 1
    for half, rest in halvings(9, 0):
        assert sorted(half + rest) == list(range(9)) and len(half) == 4
    assert halvings(9, 0) == halvings(9, 0) != halvings(9, 1)


def run(out: Path, **changes: Any) -> preselection.Preselected:
    given = {"budgets": Budgets(bounds=(35_000, 45_000, 60_000)), "draws": 3, "geometry": GEOMETRY, "device": "cpu"}
    return preselect("autoformer-micro", out=out, **({"patch_size": 8, "batch_size": 4} | given | changes))


def test_a_choice_is_a_study(tmp_path: Path) -> None:
    found = run(tmp_path / "run", top=2)
    study = Study.open(tmp_path / "run")
    assert [trial.settings for trial in study.trials] == [pick.settings for pick in found.picks]
    assert len(study.trials) == 6 and study.best is not None
    assert study.best.measured["snip"] == max(pick.snip for pick in found.picks)
    assert all(pick.cost.params < pick.budget and pick.settings in MICRO for pick in found.picks)
    assert study.plan.strategy.startswith("prenas:budgets=35000+45000+60000,resource=params,top=2")


class Stop(Exception):
    pass


def test_a_stopped_choice_goes_on_with_the_next_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "whole")

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        run(tmp_path / "cut", progress=stop)
    with open(tmp_path / "cut" / "draws.jsonl", "ab") as file:
        file.write(b'{"step": 2, "snip"')  # a write that was cut off
    seen = []
    original = Pass.tables
    monkeypatch.setattr(Pass, "tables", lambda self, draw: seen.append(draw) or original(self, draw))
    run(tmp_path / "cut", resume=True)
    assert seen == [2]
    for name in ("draws.jsonl", "study.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    measured = [[trial.measured for trial in Study.open(tmp_path / name).trials] for name in ("whole", "cut")]
    assert measured[0] == measured[1]
    with pytest.raises(BadStudy, match="was made with strategy="):
        run(tmp_path / "cut", resume=True, draws=4)


def test_seeds_decide(tmp_path: Path) -> None:
    one, again, other = (run(tmp_path / str(n), seed=seed).picks for n, seed in enumerate((0, 0, 1)))
    assert one == again and [pick.snip for pick in one] != [pick.snip for pick in other]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"budgets": Budgets(bounds=(9,))}, NothingFits, "no architecture of autoformer-micro has 0 <= params < 9;"),
        ({"variant": "cod"}, VitsearchError, "`variant` must be one of paper, code, snip, but got 'cod'"),
        ({"resource": "flops"}, VitsearchError, "`resource` must be one of params, macs, latency, but got 'flops'"),
        ({"resource": "latency"}, VitsearchError, "`latency` must be a file of `vitsearch fit-latency`"),
        ({"budgets": Budgets(bounds=(1.5,))}, VitsearchError, "`budgets` must be whole for resource params"),
        ({"top": 0}, VitsearchError, "`top` must be a whole number"),
        ({"variant": "code", "data": "digits"}, VitsearchError, "`data` must be noise for variant code"),
        ({"weights": "nowhere"}, BadStudy, "nowhere is not a training"),
    ],
)
def test_what_is_wrong_is_named_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_heads_that_change_nothing_are_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"budgets": Budgets(bounds=(6_000_000,)), "geometry": GEOMETRY, "batch_size": 1}
    with caplog.at_level(logging.WARNING, "vitsearch"):
        found = preselect("autoformer-tiny-plain", out=tmp_path / "run", patch_size=8, device="cpu", **options)
    assert "heads change no score in autoformer-tiny-plain" in caplog.text and len(found.picks) == 1


def test_budgets_must_grow() -> None:
    with pytest.raises(VitsearchError, match="`budgets` must grow"):
        Budgets(bounds=(7, 6))


def test_on_the_command_line(tmp_path: Path, cli: Callable[..., Any]) -> None:
    options = ["--image-size", 16, "--patch-size", 8, "--classes", 10, "--batch-size", 4, "--device", "cpu"]
    command = ["search", "autoformer-micro", "--strategy", "prenas", *options]
    shown = cli(*command, "--budgets", "30k:60k:15k", "--draws", 2, "--out", tmp_path / "run", "--json").json()
    assert [pick["budget"] for pick in shown["picks"]] == [30_000, 45_000, 60_000] and shown["trials"] == 3
    for number, pick in enumerate(shown["picks"]):
        assert {"settings", "params", "score", "greedy_score", "agreement"} <= set(pick)
        assert pick["score"] >= pick["greedy_score"] and pick["params"] < pick["budget"]
        assert cli("cost", f"{tmp_path / 'run'}#{number}", "--json").json()["params"] == pick["params"]
    assert cli("cost", f"{tmp_path / 'run'}#best", "--json").code == 0
    text = cli(*command, "--budgets", "40k,25k", "--out", tmp_path / "other").error()
    assert "`budgets` must grow" in text
    assert "`--budgets` must be FIRST:LAST:STEP" in cli(*command, "--budgets", "1M:2M", "--out", tmp_path / "o").error()
    assert "`--budgets` must be given" in cli(*command, "--out", tmp_path / "other").error()
    assert "`--trials` must not be given" in cli(*command, "--trials", 5, "--out", tmp_path / "other").error()
    wrong = cli("search", "autoformer-micro", "--strategy", "prenas:top=2", "--out", tmp_path / "other").error()
    assert "`--strategy` prenas has options of its own" in wrong
    wrong = cli("search", "autoformer-micro", "--draws", 5, "--out", tmp_path / "other").error()
    assert "`--draws` must not be given with strategy random" in wrong
    wrong = cli("search", "pit", *command[2:], "--budgets", "6M", "--out", tmp_path / "other").error()
    assert "`space` must have one width" in wrong
    assert not (tmp_path / "other").exists()
    table = cli(*command, "--budgets", "60k", "--variant", "code", "--out", tmp_path / "code")
    assert table.code == 0 and "next: vitsearch supernet train" in table.out and "one draw" in table.err


def test_budgets_of_latency_on_the_command_line(tmp_path: Path, cli: Callable[..., Any], file: Path) -> None:
    command = ["search", "autoformer-micro", "--strategy", "prenas", "--batch-size", 4, "--device", "cpu"]
    command += ["--classes", 10, "--latency", file]
    shown = cli(*command, "--budgets", "1.7ms:2.3ms:0.1ms", "--out", tmp_path / "run", "--json").json()
    assert [pick["budget"] for pick in shown["picks"]] == [1.7, 1.8, 1.9, 2.0, 2.1, 2.2, 2.3]
    assert all(pick["latency_ms"] < pick["budget"] for pick in shown["picks"])
    study = Study.open(tmp_path / "run")
    assert study.plan.geometry == GEOMETRY and study.plan.fixed == MICRO.fixed()  # as the file says
    assert study.plan.speed is not None and "resource=latency" in study.plan.strategy
    assert [one.measured["latency_ms"] for one in study.trials] == [pick["latency_ms"] for pick in shown["picks"]]
    table = cli(*command, "--budgets", "60k", "--max-latency", "1800us", "--out", tmp_path / "bounded")
    assert table.code == 0 and "latency" in table.out
    assert all(trial.measured["latency_ms"] <= 1.8 for trial in Study.open(tmp_path / "bounded").trials)
    other = ["--out", tmp_path / "other"]
    assert "0 <= latency < 0.1; there is 1." in cli(*command, "--budgets", "0.1ms", *other).error()
    assert "`--budgets` must be a time such as 5ms" in cli(*command, "--budgets", "2ms,3", *other).error()
    wrong = cli(*command, "--budgets", "2ms", "--resource", "macs", *other).error()
    assert "`--resource` must be latency for times" in wrong
    wrong = cli(*command, "--budgets", "2M", "--resource", "latency", *other).error()
    assert "`--resource` must be params or macs" in wrong
    assert "`latency` must be a file of" in cli(*command[:-2], "--budgets", "2ms", *other).error()
    assert not (tmp_path / "other").exists()


def test_width_and_depth_of_the_published_candidates(published: list[dict[str, Any]]) -> None:
    """As the public code: they do not depend on the seed; which blocks get more does."""
    theirs = {entry["name"]: entry["arch"] for entry in published if entry["name"].startswith("PreNAS-tiny")}
    given: dict[str, Any] = {"space": SPACES["autoformer-tiny"], "geometry": Geometry(), "variant": "code"}
    passes = Pass(source=open_data("noise"), batch_size=2, seed=0, device=torch.device("cpu"), **given)
    selector = Selector(draws=[passes.tables(0)], **given)
    windows = Budgets(bounds=tuple(range(6_000_000, 12_000_000, 1_000_000)), below=5_000_000).windows("code")
    picks = selector.picks(windows, top=1, resource="params", limits=Limits())
    found = {f"PreNAS-tiny-{pick.budget / 1e6:.1f}": pick.settings for pick in picks}
    assert len(found) == 6 and len(theirs) >= 5
    for name, arch in theirs.items():
        assert (found[name]["embed_dim"], found[name]["depth"]) == (arch["embed_dim"], arch["depth"])
    assert found["PreNAS-tiny-11.0"] == theirs["PreNAS-tiny-11.0"]  # the largest network
