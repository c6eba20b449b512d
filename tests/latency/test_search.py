"""Limits on predicted latency: every strategy keeps them, studies store them, the command line names what is wrong."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry, Limits
from vitsearch.errors import BadStudy, NothingFits, VitsearchError
from vitsearch.latency import LatencyModel, Speed, SpeedLimits, fit_latency, read_speed
from vitsearch.latency.fitting import Timed
from vitsearch.records import Objective, Trial
from vitsearch.report.repeat import command_of
from vitsearch.search import STRATEGIES, Domain, sieve
from vitsearch.spaces import SPACES, cost_of, decode
from vitsearch.study import Study, run_search

Cli = Callable[..., Any]
GEOMETRY = Geometry(image_size=32, classes=10)
SPACE = SPACES["autoformer-micro"]
EVERY: list[Settings] = list(SPACE.region(None, GEOMETRY))
DSS = Objective(name="dss", direction="max")


def clock(networks: list[Timed]) -> Any:
    """Seconds that know widths and heads, no MACs: slow heads, fast MLPs."""
    rows = []
    for plan, _ in networks:
        blocks = [(stage.width, block) for stage in plan.stages for block in stage.blocks]
        rows.append([1e-3 + sum(2e-4 * block.heads**2 + 1e-6 * width for width, block in blocks)] * 3)
    return np.array(rows)


@pytest.fixture(scope="module")
def model() -> LatencyModel:
    return fit_latency("autoformer-micro", geometry=GEOMETRY, stopwatch=clock)


@pytest.fixture
def file(model: LatencyModel, tmp_path: Path) -> Path:
    model.save(tmp_path / "latency.json")
    return tmp_path / "latency.json"


def domain_of(model: LatencyModel, bound: float | None, limits: Limits | None = None) -> Domain:
    speed = Speed(model=model, limits=SpeedLimits(max_latency_ms=bound, digest="0"))
    return Domain(space=SPACE, limits=limits or Limits(), geometry=GEOMETRY, objectives=(DSS,), speed=speed)


def allowed_by(model: LatencyModel, bound: float, limits: Limits) -> list[Settings]:
    return [one for one in EVERY if model.latency_ms(decode(one)) <= bound and limits.allow(cost_of(one, GEOMETRY))]


def score(one: Settings) -> dict[str, float]:
    return {"dss": float(sum(one["num_heads"]) + one["embed_dim"])}


@pytest.mark.parametrize("strategy", list(STRATEGIES))
@settings(max_examples=8)
@given(share=st.floats(0.01, 1), cost=st.floats(0.3, 1), seed=st.integers(0, 1000), chunk=st.sampled_from([3, 16]))
def test_every_strategy_keeps_the_bound_and_finds_all_within_it(
    strategy: str, share: float, cost: float, seed: int, chunk: int
) -> None:
    model = fit_latency("autoformer-micro", geometry=GEOMETRY, stopwatch=clock)
    times = sorted(model.latency_ms(decode(one)) for one in EVERY)
    sizes = sorted(cost_of(one, GEOMETRY).params for one in EVERY)
    bound, limits = times[int(share * 159)], Limits(max_params=sizes[int(cost * 159)])
    wanted = allowed_by(model, bound, limits)
    domain = domain_of(model, bound, limits)
    if not wanted:
        with pytest.raises(NothingFits):
            domain.check(seed)
        return
    domain.check(seed)
    found: list[Settings] = []
    while asked := ask(strategy, domain, found, seed, chunk):
        found += asked
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, wanted))
    if strategy == "exhaustive":
        assert found == wanted


def ask(strategy: str, domain: Domain, found: list[Settings], seed: int, chunk: int) -> list[Settings]:
    from vitsearch.search import History

    trials = [Trial(number=number, settings=one, measured=score(one), seconds=0.0) for number, one in enumerate(found)]
    return list(STRATEGIES[strategy].ask(domain, History(trials, len(trials)), seed, chunk))


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_no_bound_changes_nothing(imagine: Callable[..., list[Trial]], model: LatencyModel, strategy: str) -> None:
    plain = replace(domain_of(model, None), speed=None)
    slow = domain_of(model, 1e9)  # a bound that all satisfy
    trials = [imagine(strategy, domain, score, trials=60) for domain in (plain, domain_of(model, None), slow)]
    assert [one.settings for one in trials[0]] == [one.settings for one in trials[1]]
    assert [one.settings for one in trials[0]] == [one.settings for one in trials[2]]


def test_a_bound_that_nothing_satisfies_names_the_fastest(model: LatencyModel) -> None:
    fastest = min(model.latency_ms(decode(one)) for one in EVERY)
    with pytest.raises(NothingFits, match=f"at most 0.5 ms; the fastest has {fastest:.4g} ms"):
        domain_of(model, 0.5).part(0, 1, seed=0)
    assert not domain_of(model, 0.5).allows(EVERY[0])


def test_patience_ends(model: LatencyModel) -> None:
    speed = Speed(model=model, limits=SpeedLimits(max_latency_ms=4.0, digest="0"))
    slow = [one for one in EVERY if not speed.allows(decode(one))]
    quick = [one for one in EVERY if speed.allows(decode(one))]
    members = sieve.fast_enough([quick[0], *slow[:5], quick[1], *slow[:8]], SPACE, speed, 6)
    assert [next(members), next(members)] == quick[:2]
    with pytest.raises(NothingFits, match="6 architectures of autoformer-micro in a row are too slow for at most 4 ms"):
        next(members)


def test_throughput_is_a_bound_on_the_time_of_a_batch(model: LatencyModel) -> None:
    eight = replace(model, batch=8)
    speed = Speed(model=eight, limits=SpeedLimits(min_throughput=4000, max_latency_ms=3, digest="0"))
    assert speed.slowest_ms == 2  # 8 images in 2 ms are 4000 in a second
    assert replace(speed, limits=SpeedLimits(max_latency_ms=3, digest="0")).slowest_ms == 3
    with pytest.raises(VitsearchError, match="`max_latency_ms` must be more than 0"):
        SpeedLimits(max_latency_ms=0, digest="0")
    with pytest.raises(VitsearchError, match="`min_throughput` needs a file"):
        read_speed(None, min_throughput=5)


def search(out: Path, **options: Any) -> Study:
    common: dict[str, Any] = {"geometry": GEOMETRY, "objective": "params", "device": "cpu", "trials": 20, "seed": 1}
    return run_search("autoformer-micro", out=out, **(common | options)).study


def test_trials_have_their_latency_and_resume_is_exact(model: LatencyModel, file: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"latency": file, "max_latency_ms": 4.5, "objective": "params,min:latency"}
    options |= {"strategy": "nsga2:population=8"}
    whole = search(tmp_path / "whole", **options)
    assert any(model.latency_ms(decode(one)) > 4.5 for one in EVERY)
    for trial in whole.trials:
        assert trial.measured["latency_ms"] == model.latency_ms(decode(trial.settings)) <= 4.5
    assert whole.plan.objectives[1] == Objective(name="latency_ms", direction="min")
    search(tmp_path / "cut", **options, resume=True)
    lines = (tmp_path / "cut" / "trials.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut" / "trials.jsonl").write_text("".join(lines[:11]))
    again = search(tmp_path / "cut", **options, resume=True)
    assert [(one.settings, one.measured) for one in again.trials] == [(o.settings, o.measured) for o in whole.trials]


def test_resume_wants_the_same_file_and_bound(model: LatencyModel, file: Path, tmp_path: Path) -> None:
    search(tmp_path / "run", latency=file, max_latency_ms=4.5)
    for other in ({"latency": file, "max_latency_ms": 8.0}, {"latency": file}, {}):
        with pytest.raises(BadStudy, match="was made with speed="):
            search(tmp_path / "run", resume=True, **other)
    replace(model, scale=model.scale * 1.01).save(file)
    with pytest.raises(BadStudy, match="was made with speed="):
        search(tmp_path / "run", resume=True, latency=file, max_latency_ms=4.5)
    search(tmp_path / "plain")
    assert "speed" not in json.loads((tmp_path / "plain" / "study.json").read_text())


def test_the_command_of_a_report_does_it_again(
    cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = search(tmp_path / "run", latency=file, max_latency_ms=4.3, min_throughput=200.5, objective="min:latency")
    command = command_of(json.loads((study.path / "study.json").read_text()), 20)
    assert command is not None and file.name == "latency.json"
    monkeypatch.chdir(tmp_path)
    assert cli(*shlex.split(command)[1:]).code == 0
    again = Study.open(tmp_path / "again")
    assert again.plan == study.plan and [t.settings for t in again.trials] == [t.settings for t in study.trials]


def test_a_search_that_cannot_begin_leaves_no_folder(file: Path, tmp_path: Path) -> None:
    for options, words in (
        ({"latency": file, "max_latency_ms": 0.1}, "the fastest has"),
        ({"latency": file, "geometry": Geometry(image_size=64)}, "must be fitted on the space"),
        ({"max_latency_ms": 5.0}, "`max_latency` needs a file"),
        ({"objective": "min:latency"}, "`objective` latency needs a file"),
        ({"latency": tmp_path / "none.json"}, "must be a file that can be read"),
    ):
        with pytest.raises(VitsearchError, match=words):
            search(tmp_path / "run", **options)  # type: ignore[arg-type]
        assert not (tmp_path / "run").exists()


def test_another_machine_is_said(model: LatencyModel, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    search(tmp_path / "here", latency=save(model, tmp_path / "here.json"), trials=1)
    assert "measured elsewhere" not in caplog.text
    elsewhere = replace(model, environment={**model.environment, "device_name": "another chip"})
    search(tmp_path / "there", latency=save(elsewhere, tmp_path / "there.json"), trials=1)
    assert "latencies were measured elsewhere, and hold there: device_name 'another chip'" in caplog.text


def save(model: LatencyModel, path: Path) -> Path:
    model.save(path)
    return path


def test_the_commands(cli: Cli, tmp_path: Path) -> None:
    sizes = ["--image-size", "32", "--classes", "10"]
    (tmp_path / "two.json").write_text(json.dumps(EVERY[:2]))
    rows = cli(
        "latency", tmp_path / "two.json", "--batch-size", "1,2", "--repeats", "2", "--threads", "1", *sizes, "--json"
    ).json()
    names = {"arch", "engine", "device", "threads", "batch", "latency_ms", "p95_ms", "images_per_second", "repeats"}
    assert [(row["arch"], row["batch"]) for row in rows] == [(one, batch) for one in EVERY[:2] for batch in (1, 2)]
    assert all(set(row) == names and 0 < row["latency_ms"] <= row["p95_ms"] for row in rows)
    assert all(row["images_per_second"] == pytest.approx(row["batch"] * 1000 / row["latency_ms"]) for row in rows)

    out = tmp_path / "latency.json"
    few = ["--networks", "3", "--held-out", "3", "--repeats", "3", "--threads", "1", "--blocks", "4"]
    made = cli("fit-latency", "autoformer-micro", *sizes, *few, "--out", out, "--json").json()
    assert made["errors"]["networks"] == 3 and made["blocks"] == 4 and made["threads"] == 1
    found = cli(
        "search", "autoformer-micro", "--objective", "params", "--latency", out, "--max-latency", "1s", "--trials",
        "3", "--min-throughput", "0.5", "--classes", "10", "--out", tmp_path / "run", "--json",
    ).json()  # fmt: skip
    assert found["best"]["measured"]["latency_ms"] > 0
    assert Study.open(tmp_path / "run").plan.geometry.image_size == 32  # the file's


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("latency", "needs an ARCH or --timm"),
        ("latency --timm deit_tinny", "no timm model named 'deit_tinny'"),
        ("latency --timm deit_tiny_patch16_224 --engine eager,eager", "`--engine` must be a list with commas"),
        ("latency --timm deit_tiny_patch16_224 --engine tvm", "`engine` must be one of eager, compile, onnx"),
        ("latency --timm deit_tiny_patch16_224 --batch-size 1,-2", "`--batch-size` must be whole numbers"),
        ("latency --timm deit_tiny_patch16_224 --repeats 0", "`repeats` must be"),
        ("fit-latency nowhere --out x.json", "nowhere"),
        ("fit-latency autoformer-micro --out no/folder/x.json", "`--out` must be a new file"),
        ("search autoformer-micro --out x --max-latency 5", "`--max-latency` must be a time such as 5ms"),
        ("search autoformer-micro --out x --max-latency -5ms", "`--max-latency` must be a time such as 5ms"),
        ("search autoformer-micro --out x --min-throughput fast", "`--min-throughput` must be a positive number"),
        ("search autoformer-micro --out x --max-latency 5ms", "needs a file"),
        ("search autoformer-micro --out x --strategy prenas --budgets 1M --max-latency 5ms", "needs a file"),
    ],
)
def test_bad_input_is_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in cli(*arguments.split()).error()
    assert list(tmp_path.iterdir()) == []


def test_a_list_of_nothing_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("[]")
    assert (
        "`ARCH` must hold an architecture at least, but got none in" in cli("latency", tmp_path / "none.json").error()
    )


def test_a_link_that_leads_nowhere_is_not_written_over(cli: Cli, tmp_path: Path) -> None:
    link = tmp_path / "latency.json"
    link.symlink_to(tmp_path / "elsewhere")
    assert "`--out` must be a new file" in cli("fit-latency", "autoformer-micro", "--out", link).error()


@pytest.mark.parametrize(("text", "milliseconds"), [("5ms", 5), ("1.2s", 1200), ("800us", 0.8), ("1e1ms", 10)])
def test_times_have_units(text: str, milliseconds: float) -> None:
    from vitsearch.arguments import read_milliseconds

    assert read_milliseconds("--max-latency", text) == pytest.approx(milliseconds)
