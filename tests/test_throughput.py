"""Bisection on a measurement that is known in closed form, and that real networks can be measured at all."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from statistics import fmean, stdev
from typing import Any

import pytest
import torch

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.spaces import SPACES
from vitsearch.study import run_search
from vitsearch.throughput import Stopwatch, identity_for_throughput

MICRO = SPACES["vitas-micro"]
SMALL = Geometry(image_size=32, classes=4)


def imagined(settings: Settings) -> float:
    """Time grows with the blocks, so images per second is convex in their number."""
    return 1000 / (1 + sum(heads > 0 for heads in settings["num_heads"]) + settings["embed_dim"] / 100)


@pytest.mark.parametrize("target", [250.0, 400.0, 700.0])
def test_bisection_brackets_the_probability(target: float) -> None:
    calls: list[Settings] = []
    ticks: list[tuple[int, ...]] = []

    def measure(settings: Settings) -> float:
        calls.append(settings)
        return imagined(settings)

    found = identity_for_throughput(
        MICRO, target, measure, samples=300, seed=1, progress=lambda *tick: ticks.append(tick)
    )

    def mean(probability: float) -> float:
        return fmean(imagined(MICRO.draw(Random(f"1/{n}"), probability)) for n in range(300))  # type: ignore[attr-defined]

    assert mean(found.low) <= target <= mean(found.high) and 0 < found.high - found.low <= 0.01
    assert found.probability == found.high and found.images_per_second == pytest.approx(mean(found.high))
    values = [imagined(MICRO.draw(Random(f"1/{n}"), found.high)) for n in range(300)]  # type: ignore[attr-defined]
    assert found.standard_error == pytest.approx(stdev(values) / 300**0.5) and found.samples == 300
    assert found.low_95 <= found.low and found.high_95 >= found.high
    for end, sign in ((found.low_95, -1), (found.high_95, 1)):
        assert mean(end) == pytest.approx(target + sign * 1.96 * found.standard_error, abs=0.1 * target)
    assert ticks == [(number, 10 * 300) for number in range(1, 3001)]
    assert len(calls) == len({str(settings) for settings in calls})  # nothing is measured twice


def test_what_cannot_be_reached_is_named() -> None:
    for target in (100.0, 5000.0):
        with pytest.raises(VitsearchError, match=r"`min_throughput` must be from 1\d\d to 8\d\d images/s, .* here"):
            identity_for_throughput(MICRO, target, imagined, samples=20)
    with pytest.raises(VitsearchError, match="slots may be empty"):
        identity_for_throughput(SPACES["vitas-block"], 100.0, imagined)


RATE = "`--min-throughput` must be a positive number of images per second, but got"


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        ("0", f"{RATE} '0'"),
        ("-1", f"{RATE} '-1'"),
        ("nan", f"{RATE} 'nan'"),
        ("fast", f"{RATE} 'fast'"),
        ("0.5", "`min_throughput` must be at least 1 image/s, but got 0.5"),
    ],
)
def test_no_throughput_at_all_is_refused_before_measuring(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, target: str, rule: str
) -> None:
    monkeypatch.setattr(Stopwatch, "__call__", lambda *_: pytest.fail("measured"))
    command = ["identity", "vitas-micro", "--min-throughput", target, "--samples", 2, "--device", "cpu"]
    assert rule in cli(*command).error()


def test_real_networks_are_measured(cli: Callable[..., Any]) -> None:
    watch = Stopwatch(geometry=SMALL, batch_size=4, device=torch.device("cpu"), repeats=3)
    one = MICRO.settings(
        patch_size=16, embed_dim=16, num_heads=[0, 2, 0, 4], attention_ratio=[None, 0.5, None, 1.0], mlp_ratio=[1.0] * 4
    )
    assert 1 < watch(one) < 1e7
    options = ["--batch-size", 2, "--samples", 2, "--image-size", 32, "--classes", 4, "--device", "cpu", "--json"]
    said = cli("identity", "vitas-micro", "--min-throughput", "1G", *options).error()
    assert "images/s" in said and "but got 1,000,000,000" in said


def test_throughput_is_an_objective(tmp_path: Any) -> None:
    result = run_search(
        MICRO,
        out=tmp_path / "run",
        objective="throughput,min:macs",
        strategy="random",
        trials=2,
        geometry=SMALL,
        device="cpu",
    )
    assert all(trial.measured["throughput"] > 0 and trial.measured["macs"] > 0 for trial in result.study.trials)
    assert result.study.best is not None and result.study.plan.objectives[0].direction == "max"


def test_throughput_has_a_batch_of_its_own(cli: Callable[..., Any], tmp_path: Any) -> None:
    """What `--batch-size` sets is that of proxies: 64 was taken, and 256 images measured."""
    command = ["search", "vitas-micro", "--objective", "throughput,min:macs", "--batch-size", 64]
    rule = "`--batch-size` must not be given with objective throughput,min:macs, but got 64"
    assert rule in cli(*command, "--out", tmp_path / "x").error() and not (tmp_path / "x").exists()
