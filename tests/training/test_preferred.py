"""What the schemes over candidates draw, how often, and the way from a choice to a specialised network."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file
from scipy import stats

from vitsearch.architecture import Settings
from vitsearch.errors import VitsearchError
from vitsearch.latency import fit_latency
from vitsearch.latency.fitting import Timed
from vitsearch.spaces import SPACES
from vitsearch.training.plan import TrainingPlan, read_plan
from vitsearch.training.preferred import scheme_of
from vitsearch.training.recipe import RECIPES

MICRO = SPACES["autoformer-micro"]


def network(width: int, heads: list[int], ratios: list[float]) -> Settings:
    return MICRO.settings(embed_dim=width, depth=len(heads), num_heads=heads, mlp_ratio=ratios)


CANDIDATES = [
    network(32, [2, 2], [2.0, 3.0]),
    network(48, [2, 3], [3.0, 3.0]),
    network(48, [3, 2, 2], [2.0, 2.0, 3.0]),
    network(48, [3, 3, 2], [2.0, 3.0, 3.0]),
    network(48, [3, 3, 3], [3.0, 3.0, 3.0]),
]


def clock(networks: Sequence[Timed]) -> Any:
    """Seconds that grow with the heads."""
    heads = [sum(block.heads for stage in one.architecture.stages for block in stage.blocks) for one in networks]
    return np.array([[1e-3 * (1 + count)] * 3 for count in heads])


PIT = {"base_dim": 16, "mlp_ratio": 2, "depth": [1, 6, 6], "num_heads": [2, 2, 8]}
KEYS = [json.dumps(settings) for settings in CANDIDATES]


def drawn(name: str, steps: int = 6000) -> Counter[str]:
    scheme = scheme_of(name, MICRO, CANDIDATES)
    return Counter(json.dumps(scheme.choose(MICRO, 0, step)[0]) for step in range(steps))


def test_balanced_is_uniform_over_groups_then_inside() -> None:
    found = drawn("balanced")
    assert set(found) == set(KEYS)
    shares = [1 / 3, 1 / 3, 1 / 9, 1 / 9, 1 / 9]  # 32x2, 48x2, and three of 48x3
    assert stats.chisquare([found[key] for key in KEYS], [6000 * share for share in shares]).pvalue > 0.01


def test_uniform_with_candidates_is_uniform_over_them() -> None:
    """Figure 5's name; the whole space is `redundant`."""
    assert drawn("uniform") == drawn("chosen")


def test_chosen_is_uniform_over_the_list() -> None:
    found = drawn("chosen")
    assert set(found) == set(KEYS) and stats.chisquare([found[key] for key in KEYS]).pvalue > 0.01


def test_resampled_puts_fields_together_that_occur_at_that_width_and_block() -> None:
    found = drawn("resampled")
    expected: dict[str, float] = {KEYS[0]: 1 / 2}  # the one network of width 32
    of_blocks = [([2, 3], [2.0, 3.0]), ([2, 3], [2.0, 3.0]), ([2, 3], [3.0])]
    for depth, share in ((2, 1 / 4), (3, 1 / 4)):
        options = [[(h, r) for h in heads for r in ratios] for heads, ratios in of_blocks[:depth]]
        each = share / math.prod(map(len, options))
        for first in options[0]:
            for second in options[1]:
                for rest in (options[2:] and [[third] for third in options[2]]) or [[]]:
                    blocks = [first, second, *rest]
                    settings = network(48, [h for h, _ in blocks], [r for _, r in blocks])
                    expected[json.dumps(settings)] = each
    assert math.isclose(sum(expected.values()), 1) and set(found) <= set(expected)
    assert stats.chisquare([found[key] for key in expected], [6000 * p for p in expected.values()]).pvalue > 0.01


def test_redundant_takes_the_whole_space() -> None:
    assert len(drawn("redundant")) > 120
    scheme = scheme_of("redundant", MICRO, CANDIDATES)
    assert scheme.choose(MICRO, 3, 7) == scheme_of("uniform", MICRO, None).choose(MICRO, 3, 7)


def test_wrong_candidates_are_named() -> None:
    with pytest.raises(VitsearchError, match="`candidates` must be given for subnets balanced"):
        scheme_of("balanced", MICRO, None)
    with pytest.raises(VitsearchError, match="but entry 1 is not: `embed_dim` is 64"):
        scheme_of("chosen", MICRO, [CANDIDATES[0], CANDIDATES[1] | {"embed_dim": 64}])
    staged = SPACES["s3-initial"]
    with pytest.raises(VitsearchError, match="subnets resampled must be of a space without stages"):
        scheme_of("resampled", staged, [staged.region().smallest()])  # a training asks before there is a folder
    space: dict[str, Any] = {"name": "autoformer-micro", "fixed": {"patch_size": 16}}
    given: dict[str, Any] = {"geometry": None, "data": "digits", "recipe": RECIPES["quick"]}
    with pytest.raises(VitsearchError, match="`candidates` must be networks of a supernet"):
        TrainingPlan(space=space, subnets="balanced", candidates=[], **given)
    with pytest.raises(VitsearchError, match="`candidates` must be networks of a supernet"):
        TrainingPlan(settings=CANDIDATES[0], candidates=CANDIDATES, **given)


def test_the_whole_way_on_the_command_line(tmp_path: Path, cli: Callable[..., Any]) -> None:
    """Choose, train what was chosen, specialise, choose again on the trained weights."""
    small = ["--image-size", 16, "--patch-size", 8, "--device", "cpu", "--json"]
    choice = ["search", "autoformer-micro", "--strategy", "prenas", "--top", 2, "--data", "digits", *small]
    picks = cli(*choice, "--budgets", "35k:60k:12k", "--out", tmp_path / "chosen").json()["picks"]
    options = ["--data", "digits", "--recipe", "quick", "--epochs", 1, "--candidates", tmp_path / "chosen", *small]
    train = ["supernet", "train", "autoformer-micro", *options]
    shown = cli(*train, "--out", tmp_path / "run").json()
    plan, _ = read_plan(tmp_path / "run")
    assert plan.subnets == "balanced" and plan.candidates is not None
    assert {json.dumps(one) for one in plan.candidates} == {json.dumps(pick["settings"]) for pick in picks}
    assert shown["validation_largest_top1"] >= 0
    again = ["--out", tmp_path / "chosen", "--resume"]
    said = cli(*choice[:-1], "--budgets", "35k:60k:12k", *again).out
    assert f"--candidates {tmp_path / 'chosen'} --image-size 16 --patch-size 8 --data digits --out preferred" in said
    said = cli(*train[:-1], "--out", tmp_path / "run", "--resume").out
    assert f"specialize {tmp_path / 'run'} --max-params {max(pick['params'] for pick in picks)} --out" in said

    limits = ["--max-params", "50k", "--json"]
    found = cli("specialize", tmp_path / "run", *limits, "--out", tmp_path / "network").json()
    fitting = [pick for pick in picks if pick["params"] <= 50_000]
    assert found["settings"] == max(fitting, key=lambda pick: pick["snip"])["settings"] and found["ranked"] == []
    trained = load_file(tmp_path / "run" / "model.safetensors")["head.bias"]
    loaded = timm.create_model(f"local-dir:{tmp_path / 'network'}", pretrained=True)
    assert torch.equal(loaded.head.bias, trained)
    assert "`out` must not exist yet" in cli("specialize", tmp_path / "nowhere", "--out", tmp_path / "network").error()
    ranked = cli("specialize", tmp_path / "run", *limits, "--rank", "--device", "cpu").json()
    assert len(ranked["ranked"]) == len({json.dumps(pick["settings"]) for pick in fitting})
    accuracies = cli("supernet", "eval", tmp_path / "run", f"{tmp_path / 'chosen'}#0", *limits[2:]).json()
    assert accuracies[0]["top1"] in [one["top1"] for one in ranked["ranked"]]
    assert ranked["top1"] == max(one["top1"] for one in ranked["ranked"])
    text = cli("specialize", tmp_path / "run", "--max-params", "10k").error()
    assert "none of the" in text and "satisfies max_params=10000; the smallest has params=" in text

    other = tmp_path / "other.json"
    other.write_text(json.dumps([*plan.candidates[:1], SPACES["pit"].settings(**PIT)]))
    foreign = cli("specialize", tmp_path / "run", "--candidates", other).error()
    assert f"candidate 1 is no network of {tmp_path / 'run'}: `architecture` must be a part of the supernet" in foreign

    model = fit_latency(MICRO.with_patch_size(8), geometry=plan.geometry, stopwatch=clock)
    model.save(tmp_path / "latency.json")
    times = {json.dumps(one): model.latency_ms(MICRO.decode(one)) for one in plan.candidates}
    bound = sorted(times.values())[len(times) // 2]
    fast = ["specialize", tmp_path / "run", "--latency", tmp_path / "latency.json", "--max-latency"]
    found = cli(*fast, f"{bound!r}ms", "--json").json()["settings"]
    assert found == next(one for one in plan.candidates if times[json.dumps(one)] <= bound)
    assert "the fastest takes" in cli(*fast, "1us").error()

    after = ["search", "autoformer-micro", "--strategy", "prenas", "--weights", tmp_path / "run", "--draws", 2]
    post = cli(*after, "--budgets", "60k", "--out", tmp_path / "post", "--device", "cpu", "--json").json()
    assert post["picks"][0]["params"] < 60_000 and post["picks"][0]["snip"] != picks[-1]["snip"]
    assert json.loads((tmp_path / "post" / "study.json").read_text())["data"] == "digits"
    unnamed = cli("supernet", "train", "autoformer-micro", "--subnets", "", "--out", tmp_path / "other").error()
    assert "no subnet scheme named ''" in unnamed
    wrong = cli("supernet", "train", "autoformer-micro", "--subnets", "chosen", "--out", tmp_path / "other").error()
    assert "`candidates` must be given for subnets chosen" in wrong
    redundant = cli(*train, "--subnets", "redundant", "--out", tmp_path / "redundant").json()
    assert redundant["out"] == str(tmp_path / "redundant")
