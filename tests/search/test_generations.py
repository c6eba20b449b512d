"""Evolution and NSGA-II: functions of the journal, nothing twice, and better than chance where there is structure."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry, Limits
from vitsearch.errors import UnknownName, VitsearchError
from vitsearch.records import Objective, Trial
from vitsearch.search import STRATEGIES, Domain, History, TriedIndex, parse_strategy
from vitsearch.search.evolution import Evolution
from vitsearch.search.generations import Brood
from vitsearch.search.nsga2 import Survivor, survive, tournament
from vitsearch.search.operators import crossover
from vitsearch.spaces import SPACES, cost_of

GEOMETRY = Geometry(image_size=32, classes=10)
QUALITY, SIZE = Objective(name="quality", direction="max"), Objective(name="params", direction="min")
BOTH = ["evolution", "nsga2"]
Imagine = Callable[..., list[Trial]]


def domain_of(space: str = "autoformer-micro", limits: Limits | None = None, *objectives: Objective) -> Domain:
    return Domain(
        space=SPACES[space], limits=limits or Limits(), geometry=GEOMETRY, objectives=objectives or (QUALITY, SIZE)
    )


def quality(settings: Settings) -> dict[str, float]:
    """One optimum, reached entry by entry: wide, deep, heads early, MLP late."""
    wanted = [3, 2, 3, 2, 3, 2, 3]
    heads = sum(head == want for head, want in zip(settings["num_heads"], wanted, strict=False))
    ratios = sum(ratio == want for ratio, want in zip(settings["mlp_ratio"], wanted[1:], strict=False))
    params = cost_of(settings, GEOMETRY).params
    return {"quality": heads + 0.7 * ratios + settings["embed_dim"] / 48 - settings["depth"] / 2, "params": params}


def sometimes(settings: Settings) -> dict[str, float] | None:
    return None if settings["num_heads"][0] == settings["mlp_ratio"][1] == 3 else quality(settings)


def keys(trials: Sequence[Trial]) -> list[str]:
    return [json.dumps(trial.settings) for trial in trials]


@pytest.mark.parametrize("strategy", ["evolution", "nsga2", "evolution:population=23", "nsga2:population=9"])
def test_the_trials_do_not_depend_on_the_chunks_and_exhaust_the_region(imagine: Imagine, strategy: str) -> None:
    trials = imagine(strategy, domain_of(), sometimes, trials=200, chunk=33, seed=5)
    assert len(trials) == len(set(keys(trials))) == 160
    for chunk in (7, 16, 50, 2048):
        assert keys(trials) == keys(imagine(strategy, domain_of(), sometimes, trials=200, chunk=chunk, seed=5))
    assert keys(trials)[:60] == keys(imagine(strategy, domain_of(), sometimes, trials=60, chunk=1, seed=5))
    assert keys(trials) != keys(imagine(strategy, domain_of(), sometimes, trials=200, chunk=33, seed=6))


@pytest.mark.parametrize("strategy", BOTH)
def test_a_generation_depends_on_those_before_it_alone(imagine: Imagine, strategy: str) -> None:
    trials = imagine(strategy, domain_of("pit"), in_pit, trials=150)
    ask = STRATEGIES[strategy].ask
    for length in (100, 101, 117, 149):  # a part of a generation is asked again, whatever that part measured
        lost = [dataclasses.replace(trial, measured={}, error="lost") for trial in trials[100:length]]
        found = ask(domain_of("pit"), History(trials[:100] + lost, length), 0, 2048)
        assert [json.dumps(settings) for settings in found] == keys(trials[length:])
    better = dataclasses.replace(trials[0], measured={"quality": 1e9, "params": 1})
    changed = ask(domain_of("pit"), History([better, *trials[1:100]], 100), 0, 50)
    assert [json.dumps(settings) for settings in changed] != keys(trials[100:])


@pytest.mark.parametrize("strategy", BOTH)
def test_a_generation_that_is_asked_for_in_parts_is_bred_once(
    imagine: Imagine, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    trials, index, bred = imagine(strategy, domain_of("pit"), in_pit, trials=108), TriedIndex(), []
    fill = Brood.fill

    def counted(brood: Brood, size: int, random: Random) -> None:
        bred.append(size)
        fill(brood, size, random)

    monkeypatch.setattr(Brood, "fill", counted)
    ask, starts = STRATEGIES[strategy].ask, (*range(50, 99, 8), 100)
    parts = [ask(domain_of("pit"), History(trials, start, index), 0, 8) for start in starts]
    assert [json.dumps(settings) for part in parts for settings in part] == keys(trials[50:])
    assert len(bred) == 2


def in_pit(settings: Settings) -> dict[str, float]:
    cost = cost_of(settings, GEOMETRY)
    return {"quality": math.sqrt(cost.macs) * math.cos(cost.params / 3e6), "params": cost.params}


@pytest.mark.parametrize("strategy", BOTH)
def test_limits_hold(imagine: Imagine, strategy: str) -> None:
    sizes = sorted(cost_of(settings, GEOMETRY).params for settings in SPACES["pit"].region())
    domain = domain_of("pit", Limits(min_params=sizes[600], max_params=sizes[800]))
    trials = imagine(strategy, domain, in_pit, trials=120)
    assert all(domain.allows(trial.settings) for trial in trials) and len(set(keys(trials))) == 120


def test_parents_are_the_best_of_all_generations_that_did_not_fail(imagine: Imagine) -> None:
    trials = imagine("random", domain_of(), sometimes, trials=100)
    assert any(trial.error for trial in trials)
    ranked = sorted((t for t in trials if not t.error), key=lambda t: (-t.measured["quality"], t.number))
    assert Evolution().best(domain_of(), History(trials, 100)) == ranked[:10]
    least = sorted((t for t in trials[:60] if not t.error), key=lambda t: (t.measured["params"], t.number))
    assert Evolution(parents=4).best(domain_of("autoformer-micro", None, SIZE), History(trials, 60)) == least[:4]


@pytest.mark.parametrize("strategy", BOTH)
def test_without_parents_the_search_is_random(imagine: Imagine, strategy: str) -> None:
    trials = imagine(strategy, domain_of(), lambda settings: None, trials=160)
    assert len(set(keys(trials))) == 160


@pytest.mark.parametrize("strategy", BOTH)
def test_later_generations_need_objectives(strategy: str) -> None:
    domain = Domain(space=SPACES["autoformer-micro"], limits=Limits())
    settings = STRATEGIES[strategy].ask(domain, History([], 0), 0, 50)
    trials = [Trial(number=i, settings=s, measured={"dss": 1.0}, seconds=0.0) for i, s in enumerate(settings)]
    with pytest.raises(VitsearchError, match=f"`objectives` of the domain must not be empty: strategy '{strategy}'"):
        STRATEGIES[strategy].ask(domain, History(trials, 50), 0, 1)


def test_shares_of_a_generation() -> None:
    """Mutants first, then crossed ones, then random ones, as many as asked for."""
    domain = domain_of("autoformer-small", None, QUALITY)
    shallow, deep = domain.region.smallest(), domain.region.largest()
    parents = [Trial(number=i, settings=s, measured={"quality": 1}, seconds=0) for i, s in enumerate((shallow, deep))]
    rest = [domain.region.shuffled(7, number) for number in range(38)]
    failed = [Trial(number=2 + i, settings=s, measured={}, error="x", seconds=0.0) for i, s in enumerate(rest)]
    strategy = parse_strategy(
        "evolution:population=40,parents=2,mutated=0.25,crossed=0.5,network_rate=0,block_rate=0.1"
    )
    found = strategy.ask(domain, History([*parents, *failed], 40), 0, 40)
    ends = {(s["embed_dim"], s["depth"]) for s in (shallow, deep)}
    mutants, crossed, random = found[:10], found[10:30], found[30:]
    assert all((s["embed_dim"], s["depth"]) in ends for s in mutants)
    assert all(set(s["num_heads"]) <= {5, 7} and set(s["mlp_ratio"]) <= {3.0, 4.0} for s in crossed)
    assert all({5, 6, 7} == set(s["num_heads"]) for s in random)


@pytest.mark.parametrize("strategy", ["evolution:crossed=0,network_rate=0,block_rate=0,tries=3", "nsga2:tries=2"])
def test_draws_are_limited(imagine: Imagine, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every child was tried before, chance fills the generation after the stated number of draws."""
    drawn = 0

    def same(space: Any, settings: Settings, *_: Any, **__: Any) -> Settings:
        nonlocal drawn
        drawn += 1
        return settings

    monkeypatch.setattr("vitsearch.search.evolution.mutate", same)
    monkeypatch.setattr("vitsearch.search.nsga2.mutate", same)
    monkeypatch.setattr("vitsearch.search.nsga2.crossover", lambda space, first, second, random: first)
    trials = imagine(strategy, domain_of(), quality, trials=100, chunk=50)
    assert len(set(keys(trials))) == 100
    assert drawn == (3 * 25 if strategy.startswith("evolution") else 2 * 50)


def test_crossover_takes_from_both_alike() -> None:
    space, random = SPACES["autoformer-small"], Random(0)
    first, second = space.region().smallest(), space.region().largest()
    children = [crossover(space, first, second, random) for _ in range(2000)]
    shared = [child["num_heads"][index] == 5 for child in children for index in range(12)]
    assert sum(shared) / len(shared) == pytest.approx(0.5, abs=0.012)
    assert sum(child["embed_dim"] == 320 for child in children) / 2000 == pytest.approx(0.5, abs=0.04)


# The optimum is one network of 160; in a random order it comes after 80.5 trials on average.


def test_evolution_finds_the_optimum_sooner_than_chance(imagine: Imagine) -> None:
    best = max(SPACES["autoformer-micro"].region(), key=lambda settings: quality(settings)["quality"])

    def needed(strategy: str) -> float:
        counts = [
            keys(imagine(strategy, domain_of(), quality, trials=160, chunk=160, seed=seed)).index(json.dumps(best))
            for seed in range(20)
        ]
        return sum(counts) / len(counts) + 1

    assert needed("evolution:population=10,parents=3") < 50 < 65 < needed("random")


def slow_ranks(points: Sequence[Sequence[float]]) -> list[int]:
    """Take the front away, again and again."""
    ranks: dict[int, int] = {}
    while len(ranks) < len(points):
        left = [index for index in range(len(points)) if index not in ranks]
        front = []
        for index in left:
            beaten = False
            for other in left:
                no_worse = all(a >= b for a, b in zip(points[other], points[index], strict=True))
                better = any(a > b for a, b in zip(points[other], points[index], strict=True))
                beaten = beaten or (no_worse and better)
            if not beaten:
                front.append(index)
        rank = max(ranks.values(), default=-1) + 1
        ranks.update(dict.fromkeys(front, rank))
    return [ranks[index] for index in range(len(points))]


def slow_crowding(points: Sequence[Sequence[float]]) -> list[float]:
    """Deb's: the sum over objectives of the gap between the two neighbours, over the range (here the mean)."""
    if len(points) <= 2:
        return [math.inf] * len(points)
    total = [0.0] * len(points)
    for objective in range(len(points[0])):
        column = [-point[objective] for point in points]
        order = sorted(range(len(points)), key=lambda index: column[index])
        span = column[order[-1]] - column[order[0]]
        if span == 0:
            continue
        for place, index in enumerate(order):
            inner = 0 < place < len(points) - 1
            total[index] += (column[order[place + 1]] - column[order[place - 1]]) / span if inner else math.inf
    return [value / len(points[0]) for value in total]


@given(
    st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[st.integers(0, 8)] * width), min_size=1, max_size=40)),
    st.integers(1, 45),
)
def test_survivors_are_those_of_a_slow_sort(points: list[tuple[int, ...]], count: int) -> None:
    ranks = slow_ranks(points)
    crowding = [math.nan] * len(points)
    for rank in set(ranks):
        front = [index for index in range(len(points)) if ranks[index] == rank]
        for index, value in zip(front, slow_crowding([points[index] for index in front]), strict=True):
            crowding[index] = value
    found = survive(points, count)
    expected = sorted(range(len(points)), key=lambda index: (ranks[index], -round(crowding[index], 9), index))[:count]
    assert [(s.rank, pytest.approx(s.crowding)) for s in found] == [(ranks[i], crowding[i]) for i in expected]
    assert all((s.rank, pytest.approx(s.crowding)) == (ranks[s.point], crowding[s.point]) for s in found)
    assert len({s.point for s in found}) == len(found)


def test_survivors_are_those_of_pymoo() -> None:
    """Its own survival; which of several at the ends of a front it keeps is chance there."""
    import numpy as np
    from pymoo.core.population import Population
    from pymoo.core.problem import Problem
    from pymoo.operators.survival.rank_and_crowding import RankAndCrowding

    for seed in range(5):
        gains = np.random.default_rng(seed).random((120, 3))
        population = Population.new("X", np.arange(120)[:, None], "F", -gains)
        generator = np.random.default_rng(0)
        kept = RankAndCrowding().do(Problem(n_var=1, n_obj=3), population, n_survive=50, random_state=generator)
        theirs = sorted((one.get("rank"), -one.get("crowding")) for one in kept)
        ours = survive(gains.tolist(), 50)
        assert sorted((one.rank, -one.crowding) for one in ours) == theirs
        inner = {int(one.X[0]) for one in kept if math.isfinite(one.get("crowding"))}
        assert {one.point for one in ours if math.isfinite(one.crowding)} == inner


def test_tournament_prefers_rank_then_room() -> None:
    survivors = [Survivor(0, 0, 0.2), Survivor(1, 0, math.inf), Survivor(2, 1, math.inf), Survivor(3, 1, 0.1)]
    random = Random(0)
    wins = [0] * 4
    for _ in range(8000):
        wins[tournament(survivors, random).point] += 1
    # the best of four wins unless it is not drawn: 7/16, and so on down
    assert [win / 8000 for win in wins] == pytest.approx([5 / 16, 7 / 16, 3 / 16, 1 / 16], abs=0.02)
    even = [tournament([Survivor(0, 0, 1.0), Survivor(1, 0, 1.0)], random).point for _ in range(4000)]
    assert sum(even) / 4000 == pytest.approx(0.5, abs=0.03)


def hypervolume(points: Sequence[tuple[float, float]], corner: tuple[float, float]) -> float:
    """The area that two numbers, higher is better, hold beyond the corner."""
    area, height = 0.0, corner[1]
    for first, second in sorted(points, reverse=True):
        if first > corner[0] and second > height:
            area += (first - corner[0]) * (second - height)
            height = second
    return area


def test_nsga2_finds_a_better_front_than_chance(imagine: Imagine) -> None:
    """Early heads and late MLPs pay, size costs. On average: chance wins one seed in six."""
    domain = domain_of("autoformer-tiny")

    def paying(settings: Settings) -> dict[str, float]:
        pairs = enumerate(zip(settings["num_heads"], settings["mlp_ratio"], strict=True))
        value = sum(head * (12 - index) + ratio * index for index, (head, ratio) in pairs)
        return {"quality": value, "params": cost_of(settings, GEOMETRY).params}

    ends = [paying(domain.region.smallest()), paying(domain.region.largest())]
    corner = ends[0]["quality"], -ends[1]["params"]

    def areas(strategy: str) -> list[float]:
        runs = [imagine(strategy, domain, paying, trials=200, chunk=200, seed=seed) for seed in range(8)]
        return [hypervolume([(t.measured["quality"], -t.measured["params"]) for t in run], corner) for run in runs]

    assert sum(areas("nsga2:population=20")) > 1.02 * sum(areas("random"))  # over 30 seeds 1.05


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("genetic", UnknownName, "no strategy named 'genetic'"),
        ("evolution:", UnknownName, "strategy 'evolution' has no option ''"),
        (
            "evolution:popluation=3",
            UnknownName,
            r"Did you mean 'population'\? Its options: population=50, parents=10",
        ),
        ("evolution:population", UnknownName, "has no option 'population'"),
        ("random:population=3", UnknownName, "strategy 'random' has no option 'population=3'. Its options: none"),
        ("nsga2:mutated=3", UnknownName, "strategy 'nsga2' has no option 'mutated=3'"),
        (
            "evolution:population=many",
            VitsearchError,
            "`population` of strategy 'evolution' must be a whole number",
        ),
        ("evolution:population=2.5", VitsearchError, "must be a whole number, but got '2.5'"),
        ("evolution:population=0", VitsearchError, "`population` must be a whole number from 1 to .* got 0"),
        (
            "evolution:parents=5,parents=6",
            VitsearchError,
            "`parents` of strategy 'evolution' must be given once",
        ),
        ("nsga2:block_rate=1.5", VitsearchError, "`block_rate` must be a number from 0 to 1, but got 1.5"),
        ("nsga2:block_rate=nan", VitsearchError, "`block_rate` must be a number from 0 to 1, but got nan"),
        (
            "evolution:mutated=0.6",
            VitsearchError,
            "`mutated` and `crossed` must not be more than 1 together",
        ),
    ],
)
def test_bad_options_are_named(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_strategy(text)


def test_options_are_fields() -> None:
    assert parse_strategy("evolution:population=20,parents=5,block_rate=0.3") == Evolution(
        population=20, parents=5, block_rate=0.3
    )
    assert parse_strategy("evolution") is STRATEGIES["evolution"]
