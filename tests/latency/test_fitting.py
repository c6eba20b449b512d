"""The predictor against a machine whose times are known: a clock that adds up blocks."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitsearch.architecture import BLOCK_KINDS, Absent, Architecture, Attention, Stage, WindowAttention
from vitsearch.cost import Geometry, architecture_cost
from vitsearch.errors import VitsearchError
from vitsearch.latency import LatencyModel, fit_latency, read_latency
from vitsearch.latency.fitting import Timed, non_negative, undisturbed
from vitsearch.latency.machine import processor
from vitsearch.latency.parts import FEATURES, Place, chain, places_of, spread
from vitsearch.models import build
from vitsearch.spaces import SPACES, decode, sample

GEOMETRY = Geometry(image_size=64, classes=10)


def chance(text: str) -> float:
    """A number from 0 to 1 that the text alone decides."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big") / 2**48


def any_block(block: Attention, width: int, tokens: int) -> float:
    """Milliseconds that follow no formula."""
    return 1 + chance(f"{block}/{width}/{tokens}")


def formula(block: Attention, width: int, tokens: int) -> float:
    """Milliseconds as a sum over the work that a block does, product by product."""
    inner = block.heads * block.head_dim
    products = sum(tokens * rows * columns for rows, columns in ((width, 3 * inner), (inner, width)))
    products += sum(tokens * rows * columns for rows, columns in ((width, block.hidden), (block.hidden, width)))
    return 2e-7 * products + 5e-7 * block.heads * 2 * tokens * tokens * block.head_dim + 0.05


class Clock:
    """Times of networks, as a slow loop over their stages tells them."""

    def __init__(self, block_ms: Callable[[Attention, int, int], float], noise: float = 0.0) -> None:
        self.block_ms, self.noise = block_ms, noise
        self.networks: list[Architecture] = []

    def milliseconds(self, plan: Architecture, image_size: int) -> float:
        total, side, before = 0.4, image_size, 3
        for stage in plan.stages:
            stride = getattr(stage.entry, "stride", 2)
            side = (side - getattr(stage.entry, "size", 1)) // stride + 1
            if type(stage.entry).__name__ == "Patch":
                total += 3e-7 * side**2 * stage.width * stage.entry.size**2 * before
            else:
                total += 3e-7 * (9 * side**2 * stage.width + before * stage.width)
            for block in stage.blocks:
                total += self.block_ms(block, stage.width, side**2 + 1)
            before = stage.width
        return total + 3e-7 * before * 10

    def __call__(self, networks: Sequence[Timed]) -> Any:
        self.networks = [timed.architecture for timed in networks]
        exact = np.array([[self.milliseconds(plan, geometry.image_size) / 1000] for plan, geometry in networks])
        random = np.random.default_rng(0)
        seconds = np.repeat(exact, 30, axis=1)
        if self.noise:
            seconds = seconds * random.lognormal(0, self.noise, seconds.shape)
            seconds *= np.where(random.random(seconds.shape) < 0.1, 3.0, 1.0)  # something else ran
            seconds[:, 10:20] *= 1.7  # a slow third of the rounds
        return seconds


def worst(model: LatencyModel, clock: Clock, count: int = 200) -> float:
    errors = []
    for settings in sample(model.space, count, seed=9, geometry=GEOMETRY):
        plan = decode(settings)
        errors.append(abs(model.latency_ms(plan) / clock.milliseconds(plan, GEOMETRY.image_size) - 1))
    return max(errors)


def test_few_blocks_are_each_measured_and_found_exactly() -> None:
    clock = Clock(any_block)
    model = fit_latency("autoformer-tiny", geometry=GEOMETRY, stopwatch=clock)
    assert (len(model.blocks), len(model.frames)) == (12, 3)
    for place, ms in model.blocks.items():
        assert isinstance(place.block, Attention)
        assert ms == pytest.approx(any_block(place.block, place.width, place.side**2 + 1), rel=1e-6)
    assert worst(model, clock) < 1e-6
    assert model.errors["median"] < 1e-6 and model.errors["p95"] < 1e-6 and model.errors["networks"] == 20


def test_many_blocks_follow_from_the_features_of_some() -> None:
    clock = Clock(formula)
    model = fit_latency("pit", geometry=GEOMETRY, stopwatch=clock, blocks=24)
    assert len(model.blocks) == 24 and len(model.frames) == 16
    seen = {place for one in sample("pit", 300, geometry=GEOMETRY) for place in places_of(decode(one), 64)}
    assert len(seen) > 100
    assert worst(model, clock) < 1e-6
    assert all(number >= 0 for numbers in model.coefficients.values() for number in numbers)


@pytest.mark.parametrize(("space", "block_ms"), [("autoformer-tiny", any_block), ("pit", formula)])
def test_noise_leaves_the_prediction_within_five_percent(space: str, block_ms: Any) -> None:
    clock = Clock(block_ms, noise=0.1)
    model = fit_latency(space, geometry=GEOMETRY, stopwatch=clock)
    assert 0 < model.errors["median"] < 0.05
    medians = np.median(clock([Timed(decode(one.settings), GEOMETRY) for one in model.held_out]), axis=1)
    assert len(medians) == 20  # and against the truth, times what the machine was slower in the median
    true = [clock.milliseconds(decode(one.settings), 64) for one in model.held_out]
    ratios = np.array([one.predicted_ms for one in model.held_out]) / true
    assert np.median(abs(ratios / np.median(ratios) - 1)) < 0.05


def test_held_out_networks_are_no_fitted_ones() -> None:
    clock = Clock(formula)
    model = fit_latency("autoformer-micro", geometry=GEOMETRY, stopwatch=clock, networks=10, held_out=30)
    whole = [plan for plan in clock.networks if plan.depth and plan.stages[0].entry.size != 1]  # type: ignore[union-attr]
    held_out = [decode(one.settings) for one in model.held_out]
    assert len(whole) == 40 and whole[10:] == held_out and not set(whole[:10]) & set(held_out)


def test_the_file_holds_all_that_the_prediction_needs(tmp_path: Path) -> None:
    model = fit_latency("pit", geometry=GEOMETRY, stopwatch=Clock(formula, noise=0.05), blocks=10)
    model.save(tmp_path / "latency.json")
    read = read_latency(tmp_path / "latency.json")
    for settings in sample("pit", 50, seed=3):
        assert read.latency_ms(decode(settings)) == model.latency_ms(decode(settings))
    assert read.to_json() == model.to_json()
    assert {"torch", "device", "device_name", "threads", "vitsearch"} <= set(read.environment)


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "latency.json"
    with pytest.raises(VitsearchError, match="must be a file that can be read"):
        read_latency(file)
    file.write_text('{"format": 1, "kind": "predictor"}')
    with pytest.raises(VitsearchError, match="kind 'latency'"):
        read_latency(file)
    data = fit_latency("autoformer-micro", geometry=GEOMETRY, stopwatch=Clock(formula)).to_json()
    for name, value in (("scale", -1.0), ("blocks", [{"ms": 1}]), ("space", "nothing"), ("coefficients", 3)):
        file.write_text(json.dumps(data | {name: value}))
        with pytest.raises(VitsearchError, match="is broken"):
            read_latency(file)


def test_another_space_or_image_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    model = fit_latency("autoformer-micro", geometry=GEOMETRY, stopwatch=Clock(formula))
    space = SPACES["autoformer-micro"]
    model.check(space, GEOMETRY)
    assert not caplog.records
    for other, geometry in (
        (SPACES["pit"], GEOMETRY),
        (space.with_patch_size(8), GEOMETRY),
        (space, Geometry(image_size=32, classes=10)),
    ):
        with pytest.raises(VitsearchError, match="must be fitted on the space that is searched"):
            model.check(other, geometry)
    model.check(space, Geometry(image_size=64, classes=100))
    assert "10 classes, not 100" in caplog.text


def test_what_cannot_be_fitted_says_why() -> None:
    with pytest.raises(VitsearchError, match="at most the 160"):
        fit_latency("autoformer-micro", networks=100, held_out=100, stopwatch=Clock(formula))
    with pytest.raises(VitsearchError, match="`engine` must be one of"):
        fit_latency("autoformer-micro", engine="onx", stopwatch=Clock(formula))
    with pytest.raises(VitsearchError, match="`blocks`"):
        fit_latency("autoformer-micro", blocks=1, stopwatch=Clock(formula))


@pytest.mark.parametrize("name", list(SPACES))
def test_every_space_can_be_fitted(name: str) -> None:
    """Chains and frames are networks that can be built, and the sum of parts is the whole."""
    built: list[Timed] = []

    def by_parameters(networks: Sequence[Timed]) -> Any:
        built.extend(networks)
        sizes = [architecture_cost(plan, Geometry(image_size=224)).params for plan, _ in networks]
        return np.repeat(np.array(sizes)[:, None] / 1e9, 3, axis=1)  # blocks cost parameters on every map alike

    model = fit_latency(name, stopwatch=by_parameters, networks=4, held_out=4)
    assert model.errors["median"] < 0.05
    for plan, geometry in built[:: max(1, len(built) // 6)]:
        build(plan, geometry, draw_weights=False)


def test_every_kind_of_block_has_features_but_the_absent_one() -> None:
    assert set(FEATURES) == set(BLOCK_KINDS.values()) - {Absent}
    windowed = WindowAttention(heads=2, head_dim=8, hidden=32, window=4)
    place = Place(windowed, 16, 6, 0)
    linear, products, _, scores, _, one = FEATURES[WindowAttention](place)
    padded, window = 8, 4  # 6 x 6 tokens in windows of 4 are padded to 8 x 8
    assert scores == 2 * padded**2 * window**2 and one == 1
    assert products == 2 * padded**2 * window**2 * 16
    assert linear == padded**2 * 4 * 16 * 16 + 36 * 2 * 16 * 32
    like = Architecture(stages=(Stage(entry=decode(sample("pit")[0]).stages[0].entry, width=16, blocks=()),))
    with_absent = chain(like, Place(Absent(), 16, 6, 1), 3)
    assert places_of(with_absent, 6) == []


def test_coefficients_are_not_negative_and_minimise_relative_errors() -> None:
    random = np.random.default_rng(1)
    features = random.random((40, 3)) * [1e9, 1e3, 1]
    times = features @ [2e-9, 0, 0.5]
    assert non_negative(features.tolist(), times.tolist()) == pytest.approx([2e-9, 0, 0.5], abs=1e-9)
    falling = non_negative([[1.0, 1.0], [2.0, 1.0]], [2.0, 1.0])  # a line would fall
    assert falling[0] == 0 and falling[1] == pytest.approx((1 / 2 + 1) / (1 / 4 + 1))


def test_slow_rounds_and_single_slow_runs_do_not_count() -> None:
    seconds = np.full((5, 12), 2.0) * np.arange(1, 6)[:, None]
    disturbed = seconds.copy()
    disturbed[:, 3:8] *= 2.5
    disturbed[1, 9] *= 10
    assert undisturbed(disturbed) == pytest.approx(undisturbed(seconds))


def test_spread_keeps_both_ends() -> None:
    assert spread(list(range(100)), 4) == [0, 33, 66, 99]
    assert spread([1, 2], 4) == [1, 2]


def test_processors_of_one_name_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    texts = [f"cpu family\t: {family}\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\n" for family in (25, 26)]
    names = [processor(file) for text in texts if file.write_text(2 * text)]
    assert names == ["AMD EPYC family 25 model 17", "AMD EPYC family 26 model 17"]
    assert processor(tmp_path / "not-there") in (platform.processor(), platform.machine())
