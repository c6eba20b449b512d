"""Seeded outcomes that must not move: a study made today must resume with the code of tomorrow."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from vitsearch.cost import Geometry, Limits
from vitsearch.search import STRATEGIES, Domain, History
from vitsearch.spaces import SPACES, decode, sample

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
    return found


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def test_seeded_outcomes_have_not_moved() -> None:
    assert outcome() == json.loads(GOLDEN.read_text())


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(outcome(), indent=2) + "\n")
    pytest.main([__file__])
