"""Columns hold what the journal holds: settings, numbers and networks come back as they were."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from vitsearch.architecture import (
    Absent,
    Architecture,
    Attention,
    Bottleneck,
    Convolution,
    InvertedResidual,
    Merge,
    Patch,
    Stage,
    WindowAttention,
)
from vitsearch.cost import Geometry, architecture_cost, fixed_cost
from vitsearch.records import Trial
from vitsearch.report.columns import ALPHABET, Coded, Columns, choices_of, entries_of, parts_of
from vitsearch.spaces import SPACES, decode, sample

GEOMETRY = Geometry(image_size=64, classes=10)


def trials_of(space: str, count: int) -> list[Trial]:
    return [
        Trial(number=number, settings=settings, measured={"dss": number / 7, "params": number}, seconds=0.5)
        for number, settings in enumerate(sample(space, count, seed=4))
    ]


def indices(code: str, width: int) -> list[int]:
    """What trials.js does."""
    parts = [code[at : at + width] for at in range(0, len(code), width)]
    return [sum(ALPHABET.index(sign) * 64**place for place, sign in enumerate(reversed(part))) for part in parts]


@pytest.mark.parametrize("space", sorted(SPACES))
def test_settings_and_networks_come_back(space: str) -> None:
    trials, columns = trials_of(space, 40), Columns(GEOMETRY, SPACES[space])
    columns.extend(trials[:15])
    columns.extend(trials[15:])
    shown = json.loads(json.dumps(columns.to_json()))
    for number, trial in enumerate(trials):
        found: dict[str, Any] = {}
        for name, column in shown["settings"].items():
            codes = column["codes"][number].split(".")
            parts = [[column["values"][index] for index in indices(code, column["width"])] for code in codes]
            found[name] = {"network": parts[0][0], "stage block": parts}.get(column["per"], parts[0])
        assert found == trial.settings == columns.settings_at(number)
        tokens = indices(shown["parts"]["codes"][number], shown["parts"]["width"])
        network = decode(trial.settings)
        expected = [value for _, value in parts_of(network, GEOMETRY)]
        assert [shown["parts"]["values"][token] for token in tokens] == json.loads(json.dumps(expected))


@pytest.mark.parametrize("space", sorted(SPACES))
def test_costs_of_the_parts_add_up(space: str) -> None:
    for settings in sample(space, 5, seed=2):
        network = decode(settings)
        parts = [value for _, value in parts_of(network, GEOMETRY)]
        blocks = sum(part["params"] for part in parts if part["part"] == "block")
        entries = sum(part["params"] for part in parts if part["part"] == "stage")
        sides, extra = network.sides(64), int(network.class_token)
        empty = replace(network, stages=tuple(replace(stage, blocks=()) for stage in network.stages))
        assert blocks + fixed_cost(empty, GEOMETRY, sides, extra).params == architecture_cost(network, GEOMETRY).params
        assert 0 < entries < fixed_cost(empty, GEOMETRY, sides, extra).params


def test_every_kind_of_part_is_named() -> None:
    window = WindowAttention(heads=2, head_dim=8, hidden=32, window=4, shifted=True)
    plain = Attention(heads=2, head_dim=8, hidden=32)
    stages = (
        Stage(entry=Patch(size=4, stride=4), width=16, blocks=(window, Absent())),
        Stage(entry=Merge(), width=32, blocks=(plain,)),
    )
    network = Architecture(stages=stages, class_token=False, position="none")
    parts = [value for _, value in parts_of(network, GEOMETRY)]
    kinds = ["patch", "window_attention", "absent", "merge", "attention", None]
    assert [part.get("kind") for part in parts] == kinds
    assert [part["side"] for part in parts if part["part"] == "stage"] == [16, 8]
    assert parts[1]["window"] == 4 and parts[1]["shifted"] is True and parts[2]["params"] == 0


def test_convolutions_say_how_wide_they_are_inside() -> None:
    stages = (
        Stage(entry=Convolution(kernel=3, stride=2), width=16, blocks=()),
        Stage(entry=Bottleneck(expansion=6, kernel=5), width=24, blocks=(InvertedResidual(expansion=6, kernel=5),)),
    )
    network = Architecture(stages=stages, class_token=False, position="none", resolution=32)
    parts = [value for _, value in parts_of(network, GEOMETRY)][:-1]
    shown = [(part["kind"], part["kernel"], part["hidden"]) for part in parts]
    assert shown == [("convolution", 3, 16), ("bottleneck", 5, 6 * 16), ("inverted_residual", 5, 6 * 24)]


def test_parts_since_a_number_continue_those_before() -> None:
    trials, columns = trials_of("autoformer-micro", 30), Columns(GEOMETRY)
    columns.extend(trials[:20])
    before = columns.to_json()
    columns.extend(trials[20:])
    after, whole = columns.to_json(20), columns.to_json()
    assert (after["start"], after["count"]) == (20, 30)
    assert before["parts"]["codes"] + after["parts"]["codes"] == whole["parts"]["codes"]
    assert before["measured"]["dss"] + after["measured"]["dss"] == whole["measured"]["dss"]
    for name, column in whole["settings"].items():
        assert before["settings"][name]["codes"] + after["settings"][name]["codes"] == column["codes"]


def test_failures_gaps_and_unknown_spaces() -> None:
    columns = Columns()
    columns.extend(
        [
            Trial(number=0, settings={"space": "elsewhere", "a": [1, 2]}, measured={"x": 1.23456789}, seconds=1.0),
            Trial(number=1, settings={"space": "elsewhere", "b": {"c": 1}}, measured={}, error="why", seconds=0.0),
            Trial(number=2, settings={"space": "elsewhere", "a": 4.0}, measured={"y": 7}, seconds=0.0),
        ]
    )
    shown = columns.to_json()
    assert shown["measured"] == {"x": [1.23457, None, None], "y": [None, None, 7]} and shown["errors"] == {1: "why"}
    assert shown["parts"]["codes"] == [None, None, None]
    assert columns.settings_at(0) == {"space": "elsewhere", "a": [1, 2]}
    assert columns.settings_at(1) == {"space": "elsewhere", "b": {"c": 1}}
    assert "b" not in columns.settings_at(2)


@pytest.mark.parametrize("space", ["s3-initial", "s3", "vitas", "vitas-micro", "pit", "autoformer-tiny"])
def test_settings_are_few_values(space: str) -> None:
    """Each a choice of the space, so that a study of thousands stays small."""
    columns = Columns(GEOMETRY, SPACES[space])
    columns.extend(trials_of(space, 60))
    for knob in SPACES[space].knobs:
        choices = choices_of(SPACES[space], knob)
        assert columns.settings[knob.name].values == choices and len(choices) == len(set(map(str, choices))) < 50
        entries = {str(one) for settings in sample(space, 300) for one in entries_of(knob, settings[knob.name])}
        assert entries <= set(map(str, choices)), knob.name


def test_more_values_take_more_digits() -> None:
    coded = Coded()
    for number in range(70):
        coded.append(number)
    shown = coded.to_json()
    assert shown["width"] == 2 and [indices(code, 2) for code in shown["codes"]] == [[number] for number in range(70)]
