"""Seeded outcomes that must not move: a study made today must resume with the code of tomorrow."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from vitsearch.cost import Geometry, Limits
from vitsearch.records import Objective, Trial
from vitsearch.search import STRATEGIES, Domain, History
from vitsearch.spaces import SPACES, cost_of, decode, sample

GOLDEN = Path(__file__).with_name("golden.json")


def outcome() -> dict[str, Any]:
    """Proposals of every strategy on every space, as digests, and keys of blueprints."""
    found: dict[str, Any] = {}
    for space in SPACES:
        region = SPACES[space].region()
        largest = region.largest()
        found[space] = {
            "key": decode(largest).key(),
            "sample": digest(sample(space, 10, seed=0)),
            "limited": digest(sample(space, 10, seed=0, geometry=Geometry(image_size=64, classes=10))),
        }
        for strategy in STRATEGIES:
            domain = Domain(space=SPACES[space], limits=Limits())
            found[space][strategy] = digest(list(STRATEGIES[strategy].ask(domain, History([], 0), 0, 10)))
            found[space][f"{strategy}, three generations"] = digest(three_generations(space, strategy))
    return found


def three_generations(space: str, strategy: str) -> list[Any]:
    """130 trials: more parameters are better, fewer MACs are."""
    objectives = Objective(name="params", direction="max"), Objective(name="macs", direction="min")
    domain = Domain(space=SPACES[space], limits=Limits(), objectives=objectives)
    trials: list[Trial] = []
    while len(trials) < 130:
        for settings in STRATEGIES[strategy].ask(domain, History(tuple(trials), len(trials)), 0, 130 - len(trials)):
            cost = cost_of(settings)
            measured = {"params": cost.params, "macs": cost.macs}
            trials.append(Trial(number=len(trials), settings=settings, measured=measured, seconds=0.0))
    return [trial.settings for trial in trials]


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def test_seeded_outcomes_have_not_moved() -> None:
    assert outcome() == json.loads(GOLDEN.read_text())


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(outcome(), indent=2) + "\n")
    pytest.main([__file__])
