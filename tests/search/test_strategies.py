from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitsearch.cost import Geometry, Limits
from vitsearch.search import STRATEGIES, Domain, History
from vitsearch.search.operators import crossover, mutate
from vitsearch.spaces import SPACES, sample

DOMAIN = Domain(space=SPACES["pit"], limits=Limits(max_params=5_000_000), geometry=Geometry())
EMPTY = History([], 0)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_a_function_of_history_and_seed(name: str) -> None:
    first = STRATEGIES[name].ask(DOMAIN, EMPTY, 1, 20)
    assert first == STRATEGIES[name].ask(DOMAIN, EMPTY, 1, 20)
    assert len({json.dumps(settings) for settings in first}) == 20
    assert all(DOMAIN.allows(settings) for settings in first)


def test_random_search_depends_on_the_seed_and_covers_the_region() -> None:
    ask = STRATEGIES["random"].ask
    assert ask(DOMAIN, EMPTY, 1, 5) != ask(DOMAIN, EMPTY, 2, 5)
    assert list(ask(DOMAIN, EMPTY, 1, 9))[4:] == list(ask(DOMAIN, History([None] * 4, 4), 1, 5))  # type: ignore[list-item]
    everything = ask(DOMAIN, EMPTY, 1, 10**6)
    assert len(everything) == DOMAIN.region.size
    assert {json.dumps(s) for s in everything} == {json.dumps(s) for s in DOMAIN.region}


def test_history_shows_only_its_own_part() -> None:
    with pytest.raises(IndexError, match="trial 0 is not in a history of 0"):
        EMPTY[0]


def test_domain_refuses_what_is_outside_or_too_large() -> None:
    large = DOMAIN.space.region(Limits(min_params=20_000_000)).smallest()
    assert large in DOMAIN.space and not DOMAIN.allows(large)
    assert not DOMAIN.allows(large | {"base_dim": 17})


@pytest.mark.parametrize("name", SPACES)
@given(seed=st.integers(0, 10**6))
def test_children_are_members(name: str, seed: int) -> None:
    space, random = SPACES[name], Random(seed)
    first, second = sample(space, 2, seed=seed)
    assert mutate(space, first, random) in space
    child = crossover(space, first, second, random)
    assert child in space
    for knob in space.knobs:
        if knob.per == "network":
            assert child[knob.name] in (first[knob.name], second[knob.name])
        elif knob.per != "stage block":  # those are in test_windowed.py
            for index, entry in enumerate(child[knob.name]):
                assert entry in {
                    parent[knob.name][index] for parent in (first, second) if index < len(parent[knob.name])
                }


def test_mutation_follows_its_probabilities() -> None:
    space, random = SPACES["autoformer-small"], Random(0)
    parent = space.region().largest()
    assert mutate(space, parent, random, network=0, block=0) == parent
    children = [mutate(space, parent, random, network=0, block=0.3) for _ in range(2000)]
    changed = sum(entry != 7 for child in children for entry in child["num_heads"]) / (2000 * 14)
    assert changed == pytest.approx(0.3 * 2 / 3, abs=0.01)  # a redrawn entry keeps its value one time in three
    widths = [mutate(space, parent, random, network=0.4, block=0)["embed_dim"] for _ in range(4000)]
    assert sum(width != 448 for width in widths) / 4000 == pytest.approx(0.4 * 2 / 3, abs=0.03)
