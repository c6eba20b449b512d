"""Moves of a space against slow references and a synthetic objective; whole evolutions, stopped and resumed."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from scipy.stats import linregress

from vitsearch import environment
from vitsearch.cost import Geometry, Limits
from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.methods import space_evolution
from vitsearch.methods.space_evolution import evolve_space
from vitsearch.methods.space_figures import choices_by_step, errors_by_depth, errors_by_space
from vitsearch.methods.space_guidelines import guidelines
from vitsearch.methods.space_moves import (
    STEPS,
    Move,
    Rules,
    bounded,
    choices_of,
    decide,
    et_error,
    fit_slope,
    free_elsewhere,
    moved_space,
    ranked_errors,
    repair,
    steps_of,
    with_choice,
)
from vitsearch.methods.space_study import Evolved, Training, read_evolution
from vitsearch.scoring import Score
from vitsearch.spaces import SPACES, cost_of
from vitsearch.spaces.windowed import DIMENSIONS, Windowed
from vitsearch.training.distill import Distillation, distillation
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import RECIPES, change
from vitsearch.training.run import Machine, train_network
from vitsearch.training.subnets import draw

INITIAL = cast(Windowed, SPACES["s3-initial"])
TWO = "s3-initial:depth=1+2/1/1/1,embed_dim=16+24/16/16/16,num_heads=1,mlp_ratio=1/1+2/1/1,window_size=2/2/2/1"
CPU = Machine(device="cpu")
DIGITS = Geometry(image_size=8, classes=10)
QUICK = change(RECIPES["quick"], {"epochs": "1", "batch_size": "256"})
SETTINGS: dict[str, Any] = {
    "training": Training(data="digits", recipe=QUICK),
    "geometry": DIGITS,
    "patch_size": 2,
    "samples": 2,
    "rules": Rules(most_steps=1, steps=STEPS | {"embed_dim": 8, "num_heads": 1, "window_size": 1}),
    "machine": Machine(device="cpu", save_every=2),
}


@given(st.lists(st.floats(0, 100), min_size=1, max_size=120))
def test_the_error_of_a_space_is_its_definition(errors: list[float]) -> None:
    best = sorted(errors)[: max(5, round(len(errors) / 10))]
    expected = (statistics.fmean(errors) + statistics.fmean(best)) / 2
    assert et_error(errors, Rules()) == pytest.approx(expected, abs=1e-9)


@given(
    st.lists(st.tuples(st.integers(1, 400), st.floats(0, 100)), min_size=2, max_size=5, unique_by=lambda pair: pair[0])
)
def test_the_slope_is_that_of_the_least_squares_line(points: list[tuple[int, float]]) -> None:
    choices, values = zip(*points, strict=True)
    expected = linregress(np.array(choices) / 64, values).slope
    assert fit_slope(choices, values, 64) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_steps_round_toward_zero_or_down() -> None:
    slopes = [-1.0, -0.8, -0.3, 0.0, 0.3, 0.8, 1.0]
    assert [steps_of(slope, Rules()) for slope in slopes] == [2, 2, 0, 0, 0, -2, -2]
    assert [steps_of(slope, Rules(rounding="floor")) for slope in slopes] == [3, 2, 1, 0, 0, -2, -2]
    assert [bounded(steps, Rules(most_steps=1)) for steps in (2, 1, 0, -1, -2)] == [1, 1, 0, -1, -1]


def test_a_move_is_bounded_and_says_so() -> None:
    steep = [[90.0] * 20, [10.0] * 20]
    move = repair(decide(1, "embed_dim", (16, 32), steep, Rules()), 56, 64)
    assert (move.move, move.new_choices, move.note) == (512, (528, 544), "8 steps, and not 800")
    down = repair(decide(1, "depth", (2, 3, 12), [[10.0] * 20, [50.0] * 20, [90.0] * 20], Rules()), 56, 1)
    assert (down.move, down.new_choices) == (-8, (4,)) and re.fullmatch(
        r"8 steps, and not \d+; without -6, -5", down.note
    )
    free = decide(1, "embed_dim", (16, 32), steep, Rules(most_steps=None))
    assert (free.move, free.note) == (51200, "")


def test_resampling_tells_signal_from_noise() -> None:
    random = Random(0)
    noise = [[50 + random.gauss(0, 5) for _ in range(100)] for _ in range(3)]
    signal_ = [[value + 3 * place for value in own] for place, own in enumerate(noise)]
    still, moving = (decide(1, "depth", (2, 3, 4), errors, Rules()) for errors in (noise, signal_))
    assert moving.confidence == 1.0 and moving.slope_low > 0 and moving.move < 0  # type: ignore[operator]
    assert still.slope_low < 0 < still.slope_high  # type: ignore[operator]
    assert moving.slope == pytest.approx(cast(float, still.slope) + 3)
    width = cast(float, still.slope_high) - cast(float, still.slope_low)
    independent = 3.92 * 5 * math.sqrt(2 / 4 / 100 * (1 / 4 + 1 / 4 / 0.1 * 0.17 + 0.18))  # about: mean and best tenth
    assert 0.4 * independent < width < 2.5 * independent


@settings(max_examples=4)
@given(data=st.data())
def test_true_slopes_move_the_right_way_and_flat_ones_stay(data: st.DataObject) -> None:
    """A whole evolution by a synthetic objective: a slope for every dimension of every stage, per step, plus noise."""
    places = [(stage, name) for stage in range(1, 5) for name in DIMENSIONS]
    some = st.sampled_from([0.0, 0.0, 0.85, -0.85, 2.0, -2.0])
    slopes = {place: data.draw(some, label=str(place)) for place in places}
    random = Random(data.draw(st.integers(0, 1000)))

    def measure(self: Any, space: Windowed, iteration: int) -> Any:
        def error(own: dict[str, Any]) -> float:
            total = 50.0 + random.gauss(0, 0.1)
            for (stage, name), slope in slopes.items():
                value = own[name][stage - 1]
                mean = statistics.fmean(value) if isinstance(value, list) else value
                total += slope * mean / STEPS[name]
            return total

        name = f"{space.name}"
        return lambda chunk: [Score(arch=one, scores={name: 100 - error(one)}, errors={}, seconds=0.0) for one in chunk]

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(space_evolution.Evolution, "measurement", measure)
        options = SETTINGS | {"geometry": Geometry(classes=10), "patch_size": 4, "samples": 20, "rules": Rules()}
        found = evolve_space(INITIAL, out=Path(folder) / "a", iterations=1, **options)
    for move in found.moves:
        true = slopes[move["stage"], move["dimension"]]
        if true == 0 or (move["stage"], move["dimension"]) == (4, "window_size"):
            assert move["move"] == 0 and move["new_choices"] == move["choices"]
        else:
            assert move["slope"] == pytest.approx(true, abs=0.3)
            assert move["move"] * true < 0
    last = cast(Windowed, SPACES[found.spaces[-1]["name"]])
    for name in DIMENSIONS:
        for stage, choices in enumerate(getattr(last, name)):
            assert choices and all(choice > 0 for choice in choices) and len(set(choices)) == len(choices)
            if name == "window_size" and choices != getattr(INITIAL, name)[stage]:
                assert sum(choice >= (56, 28, 14, 7)[stage] for choice in choices) <= 1
    assert cost_of(last.end(max)).params > 0


def made_move(dimension: str, choices: tuple[float, ...], move: float, slope: float = 1.0, stage: int = 1) -> Move:
    unknown: dict[str, Any] = {"errors": (), "samples": (), "slope_low": None, "slope_high": None, "confidence": None}
    new = tuple(choice + move for choice in choices)
    return Move(stage=stage, dimension=dimension, choices=choices, slope=slope, move=move, new_choices=new, **unknown)


def test_repair_leaves_networks_and_the_bound_on_size_holds() -> None:
    assert repair(made_move("depth", (2, 3, 4), -2), 56, 1).new_choices == (1, 2)
    assert repair(made_move("window_size", (7, 14), 7), 14, 7).new_choices == (14,)
    assert repair(made_move("window_size", (7, 14), 7), 56, 7).new_choices == (14, 21)
    gone = repair(made_move("num_heads", (1, 2), -4), 56, 2)
    assert (gone.move, gone.new_choices, gone.note) == (0, (1, 2), "nothing would be left, so it stays")
    moves = [made_move("depth", (2, 3, 4), 2, -0.9, 1), made_move("depth", (2, 3, 4), 2, -2.0, 3)]
    grown, _ = moved_space(INITIAL, moves, Rules(), Geometry())
    assert grown.depth == ((4, 5, 6), (2, 3, 4), (4, 5, 6), (2, 3, 4))
    bounded, made = moved_space(INITIAL, moves, Rules(most_size=grown.count - 1), Geometry())
    assert bounded.depth == ((2, 3, 4), (2, 3, 4), (4, 5, 6), (2, 3, 4)) and bounded.count < grown.count
    with pytest.raises(VitsearchError, match=r"`most_size` must be a whole number from 1 to 2\^1000, but got 0"):
        Rules(most_size=0)
    assert "taken back" in made[0].note and made[1].note == ""


def test_a_move_that_leaves_nothing_goes_as_far_as_it_can() -> None:
    """A steep slope must not move less than a gentle one."""
    down = repair(made_move("depth", (2, 3, 4), -7), 56, 1)
    assert (down.move, down.new_choices) == (
        -3,
        (1,),
    ) and down.note == "not by -7, which would leave nothing; without -1, 0"
    ratio = repair(made_move("mlp_ratio", (3.0, 3.5), -4.0), 56, 0.5)
    assert (ratio.move, ratio.new_choices) == (-3.0, (0.5,))
    wide = repair(made_move("embed_dim", (224, 256, 288), 64 * 5000), 56, 64)
    assert wide.move == 64 * 1020 and wide.new_choices == (65504, 65536)
    slopes = {
        "depth": -2000,
        "embed_dim": 64 * 10**6,
        "num_heads": 10**6,
        "mlp_ratio": 10.0**5,
        "window_size": 7 * 10**6,
    }
    moves = [
        made_move(name, getattr(INITIAL, name)[0], sign * move, 1.0, stage)
        for name, move in slopes.items()
        for stage in (1, 2, 3, 4)
        for sign in (1, -1)
    ]
    for sign in (0, 1):
        moved, _ = moved_space(INITIAL, moves[sign::2], Rules(), Geometry())
        assert all(choice > 0 for name in DIMENSIONS for stage in getattr(moved, name) for choice in stage)
        assert SPACES[moved.name] == moved


def test_too_few_networks_or_windows_that_are_the_same_do_not_move() -> None:
    few = decide(1, "depth", (1, 2), [[1.0] * 20, [50.0] * 19], Rules())
    assert (few.move, few.slope, few.note) == (0, None, "fewer than 20 networks with a choice")
    same = decide(4, "window_size", (7, 14), [[1.0] * 20, [50.0] * 20], Rules(), side=7)
    assert (same.move, same.note) == (0, "every window covers the map")


def test_ranks_in_place_of_errors() -> None:
    gains = [3.0, 1.0, 2.0, 2.0]
    expected = [100 * (sum(o > g for o in gains) + sum(o == g for o in gains) / 2) / 4 for g in gains]
    assert ranked_errors(gains) == expected


def test_a_choice_is_in_all_blocks_and_the_rest_stays() -> None:
    assert len(choices_of(INITIAL, Geometry())) == 4 * (3 + 3 + 3 + 3 + 2) - 2  # windows of stage 4 cover its map
    for stage, name, choice in choices_of(INITIAL, Geometry()):
        before = draw(free_elsewhere(INITIAL, stage, name), Random(f"{stage}{name}"))
        kept = json.dumps(before)
        after = with_choice(before, stage, name, choice)
        assert after in INITIAL and json.dumps(before) == kept
        own = after[name][stage - 1]
        assert set(own) == {choice} if isinstance(own, list) else own == choice
        changed = {key for key in DIMENSIONS if before[key] != after[key]}
        assert changed <= ({name, *DIMENSIONS[2:]} if name == "depth" else {name})
        for key in changed:
            others = [place for place in range(4) if before[key][place] != after[key][place]]
            assert others == [stage - 1]


def test_pairs_take_the_chance_out_of_a_slope() -> None:
    random = Random(0)
    rest = [random.gauss(0, 5) for _ in range(60)]
    errors = [[50 + one + 0.5 * place + random.gauss(0, 0.1) for one in rest] for place in range(3)]
    paired, apart = (decide(1, "depth", (2, 3, 4), errors, Rules(), paired=flag) for flag in (True, False))
    widths = [cast(float, one.slope_high) - cast(float, one.slope_low) for one in (paired, apart)]
    assert paired.slope == apart.slope and widths[0] < 0.2 * widths[1]


def shown(found: Evolved) -> list[Any]:
    trials = [(trial.settings, trial.measured) for trial in found.trials]
    return [found.spaces, found.moves, trials]


def test_the_cheap_mode_follows_the_objective(tmp_path: Path) -> None:
    """Fewer MACs are better: what costs most shrinks, nothing grows that has a sure slope."""
    found = evolve_space(INITIAL, out=tmp_path / "a", objective="min:macs", samples=20, machine=CPU)
    assert [len(found.spaces), len(found.moves)] == [3, 40]
    first = [move for move in found.moves if move["iteration"] == 0]
    moved = {(move["stage"], move["dimension"]): move["move"] for move in first}
    assert moved[1, "depth"] < 0 and moved[1, "embed_dim"] < 0
    assert all(move["move"] <= 0 for move in first if move["confidence"] == 1.0)
    spaces = [cast(Windowed, SPACES[space["name"]]) for space in found.spaces]
    assert spaces[1].depth[0] == tuple(first[0]["new_choices"])
    largest = [cost_of(space.end(max)).macs for space in spaces]
    assert largest[0] > largest[1] > largest[2]
    assert [row.verdict for row in guidelines(found)][3] in ("holds", "does not hold")


def test_limits_bind_only_where_enough_networks_satisfy_them(tmp_path: Path) -> None:
    options: dict[str, Any] = {"objective": "params", "samples": 2, "iterations": 1, "machine": CPU}
    free = evolve_space(INITIAL, out=tmp_path / "a", limits=Limits(max_macs=4_700_000_000), **options)
    assert free.spaces[0]["constrained"] is False and free.spaces[0]["share_within_limits"] < 0.05
    assert "too few networks satisfy the limits" in free.spaces[0]["note"]
    limits = Limits(max_macs=10_000_000_000)
    bound = evolve_space(INITIAL, out=tmp_path / "b", limits=limits, **options)
    assert bound.spaces[0]["constrained"] is True and bound.spaces[0]["share_within_limits"] > 0.05
    assert all(limits.allow(cost_of(trial.settings)) for trial in bound.trials_of(0))
    assert not all(limits.allow(cost_of(trial.settings)) for trial in free.trials_of(0))


def test_two_iterations_on_digits_stopped_anywhere_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evolve_space(TWO, out=tmp_path / "whole", **SETTINGS)
    assert [space["iteration"] for space in whole.spaces] == [0, 1, 2] and len(whole.moves) == 40
    assert all((tmp_path / "whole" / f"supernet-{number}" / "result.json").exists() for number in range(3))
    assert all(0 <= space["error"] <= 100 for space in whole.spaces)
    for name in ("append", "train_network"):  # it fails at the second chunk, then in the second training
        owner: Any = space_evolution.Journal if name == "append" else space_evolution
        real, calls = getattr(owner, name), iter(range(1000))

        def failing(*arguments: Any, real: Any = real, calls: Any = calls, **options: Any) -> Any:
            if next(calls) == 1:
                raise KeyboardInterrupt
            return real(*arguments, **options)

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(owner, name, failing)
            evolve_space(TWO, out=tmp_path / "stopped", resume=True, **SETTINGS)
    with open(tmp_path / "stopped" / "moves.jsonl", "a") as file:
        file.write('{"step": 99, "ki')  # a line that was cut off
    with pytest.raises(BadStudy, match=r"was made with samples=2, but got samples=4"):
        evolve_space(TWO, out=tmp_path / "stopped", resume=True, **SETTINGS | {"samples": 4})
    again = evolve_space(TWO, out=tmp_path / "stopped", resume=True, **SETTINGS)
    assert shown(again) == shown(whole)


def test_the_supernet_of_every_space_has_the_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[TrainingPlan] = []

    def stop(plan: TrainingPlan, *_: Any, **__: Any) -> None:
        plans.append(plan)
        raise KeyboardInterrupt

    monkeypatch.setattr(space_evolution, "train_network", stop)
    monkeypatch.setattr(Distillation, "open", lambda *_: None)
    taught = distillation("some/teacher", "locality+soft")
    training = Training(data="digits", recipe=QUICK, distillation=taught)
    with pytest.raises(KeyboardInterrupt):
        evolve_space(TWO, out=tmp_path / "guided", **SETTINGS | {"training": training})
    assert [plan.distillation for plan in plans] == [taught]
    with pytest.raises(BadStudy, match="was made with training="):
        evolve_space(TWO, out=tmp_path / "guided", resume=True, **SETTINGS)


@pytest.mark.parametrize("older", [False, True], ids=["says so", "of before it was written down"])
def test_supernets_of_another_precision_are_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(space_evolution, "train_network", stop)
    training = Training(data="digits", recipe=replace(QUICK, precision="bfloat16"))
    options = SETTINGS | {"training": training, "out": tmp_path / "run", "resume": True}
    file = tmp_path / "run" / "study.json"
    for units in (True, True, False):
        monkeypatch.setattr(environment, "processor_facts", lambda units=units: {"avx512_bf16": units})
        refused = pytest.raises(BadStudy, match="precision 'bfloat16' -> 'float32'")
        with pytest.raises(KeyboardInterrupt) if units else refused:
            evolve_space(TWO, **options)
        if older:
            written = json.loads(file.read_text())
            written["environments"][0].pop("precision", None)
            file.write_text(json.dumps(written))


def test_a_space_that_has_not_moved_keeps_its_supernet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[bool] = []

    def watched(plan: TrainingPlan, out: Path, **options: Any) -> Any:
        trained.append(not (out / "result.json").exists())
        return train_network(plan, out, **options)

    monkeypatch.setattr(space_evolution, "train_network", watched)
    still = SETTINGS | {"rules": replace(SETTINGS["rules"], tau=1e6)}
    found = evolve_space(TWO, out=tmp_path / "still", iterations=1, **still)
    assert trained == [True, False] and len({space["name"] for space in found.spaces}) == 1
    first, second = (tmp_path / "still" / f"supernet-{number}" for number in (0, 1))
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    shutil.rmtree(second)
    (tmp_path / "still" / ".supernet-1.copy").mkdir()  # killed while it was copied
    journal = tmp_path / "still" / "trials.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-1]))
    again = evolve_space(TWO, out=tmp_path / "still", iterations=1, resume=True, **still)
    assert shown(again) == shown(found) and second.is_dir()
    copied = load_file(second / "model.safetensors")
    for folder in (first, second):
        shutil.rmtree(folder)
    journal.write_text("".join(lines[:-1]))
    again = evolve_space(TWO, out=tmp_path / "still", iterations=1, resume=True, **still)
    assert shown(again) == shown(found) and trained[-1] and not first.exists()  # nothing to copy: trained, and the same
    assert all(torch.equal(weights, copied[name]) for name, weights in load_file(second / "model.safetensors").items())


def test_a_space_that_has_not_moved_keeps_its_name(tmp_path: Path) -> None:
    """Under another name it would be trained again."""
    options: dict[str, Any] = {"objective": "params", "samples": 2, "iterations": 1, "rules": Rules(tau=1e9)}
    found = evolve_space("s3:window_size=7,depth=1/1/1/1", out=tmp_path / "a", machine=CPU, **options)
    assert [space["name"] for space in found.spaces] == ["s3:depth=1,window_size=7"] * 2


def test_limits_that_no_draw_satisfies_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_evolution.Evolution, "constraint", lambda *_: (True, 0.05))
    with pytest.raises(VitsearchError, match="none of the networks drawn from s3-initial satisfies max_macs=1"):
        evolve_space(INITIAL, out=tmp_path / "a", objective="params", limits=Limits(max_macs=1), samples=2, machine=CPU)


def test_killed_and_resumed_on_the_command_line(tmp_path: Path, cli: Callable[..., Any]) -> None:
    options = ["--data", "digits", "--recipe", "quick", "--epochs", "1", "--batch-size", "256", "--image-size", "8"]
    options += ["--patch-size", "2", "--samples", "2", "--iterations", "2", "--step", "embed_dim=8"]
    options += ["--most-steps", "1", "--device", "cpu", "--save-every", "2", "--resume", "--json"]
    command = [sys.executable, "-m", "vitsearch", "evolve-space", TWO, *options, "--out", str(tmp_path / "killed")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "killed" / "supernet-0" / "checkpoint.safetensors").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    found = cli("evolve-space", TWO, *options, "--out", tmp_path / "killed").json()
    expected = cli("evolve-space", TWO, *options, "--out", tmp_path / "whole").json()
    assert found["moves"] == expected["moves"] and found["spaces"] == expected["spaces"]
    assert {"stage", "dimension", "slope", "move", "confidence"} <= set(found["moves"][0])
    assert json.loads((tmp_path / "killed" / "study.json").read_text())["kind"] == "evolve-space"
    rows = cli("guidelines", tmp_path / "killed", "--json").json()
    assert len(rows) == 4 and {row["verdict"] for row in rows} <= {"holds", "does not hold", "undecided"}
    assert "E-T errors" in cli("evolve-space", TWO, *options[:-1], "--out", tmp_path / "killed").out


def test_the_next_line_searches_with_the_same_images(tmp_path: Path, cli: Callable[..., Any]) -> None:
    small = "s3:depth=1,embed_dim=16,num_heads=1,mlp_ratio=1,window_size=2+4/2/2/1"
    options = ["--samples", 2, "--iterations", 1, "--image-size", 8, "--patch-size", 2, "--device", "cpu"]
    objective = ["--objective", "synflow", "--data", "digits", "--batch-size", 4]
    out = cli("evolve-space", small, *options, *objective, "--out", tmp_path / "a").out
    following = shlex.split(out[out.index("next: ") + 6 :])
    assert {"--data", "digits", "--batch-size", "4"} <= set(following)
    assert following[following.index("--data") + 1] == "digits"
    training = ["--recipe", "quick", "--epochs", 1, "--batch-size", 512, "--images", 20]
    out = cli("evolve-space", small, *options, *training, "--out", tmp_path / "with a space").out
    following = shlex.split(out[out.index("next: ") + 6 :])
    assert following[following.index("--objective") + 1] == f"supernet:{tmp_path}/with a space/supernet-1"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["s3-initial", "--rounding", "up"], "`rounding` must be trunc or floor, but got 'up'"),
        (["s3-initial", "--tau", "0"], "`tau` must be above 0, but got 0"),
        (["s3-initial", "--step", "width=3"], "`steps` must be positive for depth, .* but got width=3"),
        (["s3-initial", "--step", "depth=half"], "`steps` must be as embed_dim=32, but got 'depth=half'"),
        (["s3-initial", "--most-steps", "0"], "`most_steps` must be a whole number from 1 to 65536, but got 0$"),
        (["s3-initial", "--max-size", "1e22"], r"must hold for the first space, 12354965581365184409856, but got 1"),
        (["s3-initial", "--max-size", "1e999"], "`--max-size` must be a positive whole number"),
        (["s3-initial", "--max-size", "1000"], r"`most_size` \(--max-size\) must hold for the first space"),
        (["s3-initial", "--objective", "supernet:x"], "`objective` must be a proxy or a cost"),
        (["autoformer-tiny", "--objective", "params"], "`space` must have stages of window attention"),
        (["s3-initial", "--subnets", "chosen"], "`candidates` must be given for subnets chosen"),
        (["s3-initial", "--set", "optimizer=nope"], "`optimizer` must be one of timm's, but got 'nope'"),
        (["s3-initial", "--batch-size", "60000"], "`batch_size` must be a whole number from 1 to 1257, but got 60000"),
        (["s3-initial", "--workers", "-1"], "`workers` must be a whole number from 0 to 1024, but got -1$"),
        (["s3-initial", "--images", "100000"], "`images` must be a whole number from 1 to"),
        (["s3-initial", "--image-size", "2"], "`image_size` must be at least the patch size 4, but got 2"),
        (
            ["s3-initial", "--objective", "params", "--image-size", "8", "--patch-size", "16"],
            "the patch size 16, but got 8",
        ),
        (["s3-initial", "--distill", "nope"], "`teacher` must be a folder or timm:NAME@FILE, but got 'nope'"),
        (
            ["s3-initial:embed_dim=64/2/2/2,mlp_ratio=0.3", "--objective", "params"],
            r"`width \* mlp_ratio` must be a whole number",
        ),
        (["s3-initial", "--objective", "params", "--data", ""], "no dataset named ''"),
        (["s3-initial", "--data", ""], "no dataset named ''"),
        (["s3-initial", "--objective", "params", "--images", "9"], "`--images` must not be given with --objective"),
        *(
            (
                ["s3-initial", "--objective", "params", *words.split()],
                f"`{words.split()[0]}` must not be given with --objective, where nothing is trained",
            )
            for words in (
                *("--epochs 3", "--set drop_path=0.2", "--subnets uniform", "--recipe quick", "--distill x"),
                *("--distill-kind soft", "--compile", "--resident"),
            )
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, cli: Callable[..., Any], options: list[str], reason: str
) -> None:
    assert re.search(reason, cli("evolve-space", *options, "--out", tmp_path / "out").error())
    assert not (tmp_path / "out").exists()


def test_what_is_no_evolution_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadStudy, match=r"is not a study: it has no study\.json"):
        read_evolution(tmp_path)
    with pytest.raises(VitsearchError, match="either `training` or `objective` must be given"):
        evolve_space(INITIAL, out=tmp_path / "a")


def test_figures_show_what_was_measured(tmp_path: Path, cli: Callable[..., Any]) -> None:
    pytest.importorskip("matplotlib")
    found = evolve_space(INITIAL, out=tmp_path / "a", objective="params", samples=4, iterations=1, machine=CPU)
    moved = choices_by_step(found)
    assert moved["depth"][0] == [(2, 3, 4), tuple(found.moves[0]["new_choices"])]
    by_space, by_depth = errors_by_space(found), errors_by_depth(found, 0)
    assert [len(errors) for errors in by_space] == [4, 4]
    for own in by_depth:
        assert sorted(error for errors in own.values() for error in errors) == by_space[0]
        assert all(errors == sorted(errors) for errors in own.values())
    drawn = found.errors_of(0)
    gains = [trial.measured["params"] for trial in found.trials_of(0)]
    assert drawn[3][1] == pytest.approx(100 * (sum(g > gains[3] for g in gains) + 0.5) / len(gains), abs=0.1)
    assert cli("guidelines", tmp_path / "a", "--figures", tmp_path / "figures").code == 0
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {"evolution.svg", "depths.svg", "spaces.svg"}
