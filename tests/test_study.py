"""Studies: the same trials however often they are cut off, and a clear answer to everything that can go wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitsearch.cost import Geometry, Limits
from vitsearch.environment import describe_environment
from vitsearch.errors import BadStudy, NothingFits, UnknownName, VitsearchError
from vitsearch.records import Trial
from vitsearch.scoring import ProxyEvaluator
from vitsearch.spaces import SPACES, cost_of
from vitsearch.study import SearchResult, Study, run_search

GEOMETRY = Geometry(image_size=32, classes=10)


def search(out: Path, trials: int = 10, **options: Any) -> SearchResult:
    defaults: dict[str, Any] = {"geometry": GEOMETRY, "seed": 3, "device": "cpu", "objective": "dss"}
    return run_search("autoformer-micro", out=out, trials=trials, **(defaults | options))


def without_times(path: Path) -> list[dict[str, Any]]:
    lines = (path / "trials.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted study of ten trials."""
    out = tmp_path_factory.mktemp("studies") / "whole"
    search(out)
    return out


def test_trials_are_what_the_evaluator_says(whole: Path) -> None:
    evaluator = ProxyEvaluator(["dss"], geometry=GEOMETRY, seed=3, device="cpu")
    trials = Study.open(whole).trials
    assert [trial.number for trial in trials] == list(range(10))
    for trial in trials:
        assert trial.settings in SPACES["autoformer-micro"]
        cost = cost_of(trial.settings, GEOMETRY)
        expected = evaluator.one(trial.settings).scores | {"params": cost.params, "macs": cost.macs}
        assert trial.measured == pytest.approx(expected, rel=1e-5) and trial.error is None
    best = max(trials, key=lambda trial: trial.measured["dss"])
    assert Study.open(whole).best == best and Study.open(whole).front == [best]
    assert Study.open(whole).trial("best") == best and Study.open(whole).trial("4") == trials[4]


def test_same_seed_same_trials_other_seed_others(whole: Path, tmp_path: Path) -> None:
    search(tmp_path / "again")
    assert without_times(tmp_path / "again") == without_times(whole)
    search(tmp_path / "other", trials=4, seed=4)
    assert without_times(tmp_path / "other") != without_times(whole)[:4]


@given(st.floats(0, 1))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_anywhere_and_resumed_is_the_same(whole: Path, tmp_path: Path, part: float) -> None:
    """Whatever a crash leaves of the journal, resuming ends with the trials of the uninterrupted study."""
    out = tmp_path / "cut"
    out.mkdir(exist_ok=True)
    (out / "study.json").write_bytes((whole / "study.json").read_bytes())
    content = (whole / "trials.jsonl").read_bytes()
    (out / "trials.jsonl").write_bytes(content[: int(part * len(content))])
    search(out, resume=True)
    assert without_times(out) == without_times(whole)


GENERATIONS = ["evolution:population=11,parents=4", "nsga2:population=11"]


@pytest.fixture(scope="module", params=[(text, chunk) for text in GENERATIONS for chunk in (4, 16)], ids=str)
def evolved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An uninterrupted study of two generations and a bit, in chunks that no generation is a multiple of."""
    strategy, chunk = request.param
    out = tmp_path_factory.mktemp("studies") / "evolved"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitsearch.scoring.CHUNK_ON_CPU", chunk)
        search(out, trials=26, strategy=strategy, objective="dss,min:params")
    assert Study.open(out).chunk == chunk and Study.open(out).plan.strategy == strategy
    return out, strategy


def resume_from(part: bytes, evolved: tuple[Path, str], out: Path) -> None:
    whole, strategy = evolved
    out.mkdir(exist_ok=True)
    (out / "study.json").write_bytes((whole / "study.json").read_bytes())
    (out / "trials.jsonl").write_bytes(part)
    search(out, trials=26, strategy=strategy, objective="dss,min:params", resume=True)
    assert without_times(out) == without_times(whole)


def test_generations_cut_at_every_trial_are_the_same(evolved: tuple[Path, str], tmp_path: Path) -> None:
    lines = (evolved[0] / "trials.jsonl").read_bytes().splitlines(keepends=True)
    for kept in range(len(lines) + 1):
        resume_from(b"".join(lines[:kept]), evolved, tmp_path / "cut")


@given(st.floats(0, 1))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_generations_cut_anywhere_are_the_same(evolved: tuple[Path, str], tmp_path: Path, part: float) -> None:
    content = (evolved[0] / "trials.jsonl").read_bytes()
    resume_from(content[: int(part * len(content))], evolved, tmp_path / "cut")


def test_generations_end_when_all_is_tried_and_nothing_more_may_be_written(tmp_path: Path) -> None:
    smallest = cost_of(SPACES["autoformer-micro"].region().smallest(), GEOMETRY).params
    options: dict[str, Any] = {"limits": Limits(max_params=smallest + 6000), "objective": "params"}
    result = search(tmp_path / "few", trials=100, strategy="evolution:population=3", **options)
    size = result.study.plan.domain().region.size
    assert 3 < size < 30 and size % 3 and len(result.study.trials) == size
    assert result.stopped == f"tried all {size} architectures within the limits"
    again = search(tmp_path / "few", trials=100, strategy="evolution:population=3", resume=True, **options)
    assert again.stopped == result.stopped
    journal = tmp_path / "few" / "trials.jsonl"
    extra = json.loads(journal.read_text().splitlines()[0]) | {"number": size}
    journal.write_text(journal.read_text() + json.dumps(extra) + "\n")
    with pytest.raises(BadStudy, match=f"line {size + 1} is not the trial this study proposes there"):
        search(tmp_path / "few", trials=100, strategy="evolution:population=3", resume=True, **options)


def test_more_trials_extend_a_study(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "short"
    assert search(out, trials=3).stopped == "reached 3 trials"
    assert len(search(out, trials=10, resume=True).study.trials) == 10
    for ours, theirs in zip(without_times(out), without_times(whole), strict=True):
        scores = ours.pop("measured"), theirs.pop("measured")
        assert ours == theirs
        assert scores[0] == pytest.approx(scores[1], rel=1e-5)  # three at once, or ten: not to the last digit
    again = search(out, trials=5, resume=True)
    assert again.stopped == "had 10 trials already, 5 were asked for" and len(again.study.trials) == 10


COMMAND = [sys.executable, "-m", "vitsearch", "search", "autoformer-micro", "--image-size", "32", "--classes", "10"]
COMMAND += ["--seed", "3", "--device", "cpu", "--objective", "dss", "--trials", "160", "--json"]


def start(out: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "--out", str(out), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_lines(out: Path, count: int) -> None:
    journal = out / "trials.jsonl"
    for _ in range(3000):
        if journal.exists() and journal.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.01)
    raise AssertionError("no trials came")


def test_kill_and_interrupt_then_resume(tmp_path: Path) -> None:
    """A real kill -9, then a real Ctrl-C, then the rest: the whole space, each architecture once, as in one go."""
    out = tmp_path / "killed"
    process = start(out)
    wait_for_lines(out, 8)
    process.kill()
    process.wait()
    written = len((out / "trials.jsonl").read_bytes().splitlines())
    process = start(out, "--resume")
    wait_for_lines(out, written + 1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and stdout == "", stderr
    assert stderr.splitlines()[-1].startswith("vitsearch: interrupted"), stderr
    assert (out / "trials.jsonl").read_bytes().endswith(b"\n")
    search(out, trials=160, resume=True)
    search(tmp_path / "straight", trials=160)
    assert without_times(out) == without_times(tmp_path / "straight")
    assert len({json.dumps(trial["settings"]) for trial in without_times(out)}) == 160


def test_exhausted_limits_stop_the_search(tmp_path: Path) -> None:
    limits = Limits(max_params=cost_of(SPACES["autoformer-micro"].region().smallest(), GEOMETRY).params)
    result = search(tmp_path / "one", limits=limits, objective="params")
    assert result.stopped == "tried all 1 architectures within the limits"
    assert search(tmp_path / "one", limits=limits, objective="params", resume=True).stopped == result.stopped


def test_several_objectives_give_a_front(tmp_path: Path) -> None:
    result = search(tmp_path / "two", trials=30, objective="dss,min:params")
    trials = result.study.trials
    for candidate in trials:
        beaten = any(
            other.measured["dss"] >= candidate.measured["dss"]
            and other.measured["params"] <= candidate.measured["params"]
            and (other.measured["dss"], other.measured["params"])
            != (candidate.measured["dss"], candidate.measured["params"])
            for other in trials
        )
        assert beaten != (candidate in result.study.front)


def test_failed_trials_are_kept_with_their_reason(tmp_path: Path) -> None:
    from vitsearch.proxies import Subject, proxy

    @proxy("test-odd", paper="none")
    def odd(subject: Subject) -> float:
        assert subject.architecture is not None
        return float("nan") if subject.architecture.depth == 3 else 1.0

    result = search(tmp_path / "odd", trials=20, objective="test-odd")
    failed = [trial for trial in result.study.trials if trial.error]
    assert failed and all(trial.settings["depth"] == 3 and trial.measured == {} for trial in failed)
    assert failed[0].error == "ArithmeticError: the score is not finite: nan"
    assert result.study.best is not None and result.study.best.settings["depth"] == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"objective": "dsss"}, UnknownName, "no proxy named 'dsss'. Did you mean 'dss'"),
        ({"strategy": "genetic"}, UnknownName, "no strategy named 'genetic'"),
        ({"strategy": "evolution:parents=0"}, VitsearchError, "`parents` must be a whole number from 1"),
        ({"data": "imagenet"}, UnknownName, "no dataset named 'imagenet'"),
        ({"limits": Limits(max_params=5)}, NothingFits, "the nearest has params"),
        ({"trials": 0}, VitsearchError, "`trials` must be a whole number from 1"),
        ({"seed": -1}, VitsearchError, "`seed` must be a whole number from 0"),
        ({"device": "tpu"}, VitsearchError, "`device` must be one of auto, cpu, cuda, mps, but got 'tpu'"),
        ({"batch_size": 0}, VitsearchError, "`batch_size` must be a whole number from 1"),
        ({"geometry": Geometry(image_size=8)}, VitsearchError, "`image_size` must be at least the patch size 16"),
    ],
)
def test_bad_input_leaves_no_folder(tmp_path: Path, options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        search(tmp_path / "none", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_needs_resume(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(BadStudy, match="`out` must not exist yet"):
        search(whole)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("mine")
    with pytest.raises(BadStudy, match="has files and no study"):
        search(tmp_path / "notes", resume=True)
    assert (tmp_path / "notes" / "diary.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 9}, "was made with seed=3, but got seed=9"),
        ({"objective": "params"}, "was made with objectives="),
        ({"strategy": "nsga2:population=9"}, "was made with strategy='random', but got strategy='nsga2:population=9'"),
        ({"limits": Limits(max_params=10**6)}, "was made with limits="),
        ({"geometry": Geometry(image_size=48, classes=10)}, "was made with geometry="),
    ],
)
def test_another_study_is_not_continued(whole: Path, options: dict[str, Any], message: str) -> None:
    before = (whole / "trials.jsonl").read_bytes()
    with pytest.raises(BadStudy, match=message):
        search(whole, trials=20, resume=True, **options)
    with pytest.raises(BadStudy, match="was made with space='autoformer-micro', but got space='pit'"):
        run_search("pit", out=whole, geometry=GEOMETRY, seed=3, device="cpu", resume=True)
    assert (whole / "trials.jsonl").read_bytes() == before


def change_study(path: Path, change: Any) -> None:
    data = json.loads((path / "study.json").read_text())
    change(data)
    (path / "study.json").write_text(json.dumps(data))


def test_how_many_at_once_is_kept_for_resuming(tmp_path: Path) -> None:
    search(tmp_path / "small", trials=3, memory=1)
    assert Study.open(tmp_path / "small").at_once == 1
    search(tmp_path / "small", trials=6, resume=True)
    assert Study.open(tmp_path / "small").at_once == 1


def test_the_bound_on_memory_is_kept_for_resuming(tmp_path: Path) -> None:
    """What is free when a study goes on must not change how many go at once; another --memory may."""
    search(tmp_path / "run", trials=3, memory=1 << 30)
    assert (study := Study.open(tmp_path / "run")).memory == 1 << 30 and study.at_once not in (None, 1)
    search(tmp_path / "run", trials=4, resume=True)
    assert (again := Study.open(tmp_path / "run")).memory == 1 << 30 and again.at_once == study.at_once
    search(tmp_path / "run", trials=6, resume=True, memory=1)
    assert (less := Study.open(tmp_path / "run")).memory == 1 and less.at_once == 1
    change_study(tmp_path / "run", lambda data: data.pop("memory"))
    search(tmp_path / "run", trials=7, resume=True)
    assert (older := Study.open(tmp_path / "run")).at_once == 1 and older.memory not in (None, 1)


def test_weights_are_part_of_the_plan(whole: Path, tmp_path: Path) -> None:
    search(tmp_path / "shared", trials=3, weights="shared")
    assert without_times(tmp_path / "shared") != without_times(whole)[:3]
    with pytest.raises(BadStudy, match="was made with weights='shared', but got weights='fresh'"):
        search(tmp_path / "shared", trials=6, resume=True)


def test_processors_with_other_products_are_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that have AVX-512 had the same name, and scores that differ in their fifth digit."""
    names = set()
    for bfloat16, amd in ((True, True), (True, False), (False, False)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda found=bfloat16: found)
        monkeypatch.setattr("vitsearch.environment.made_by_amd", lambda found=amd: found)
        names.add(describe_environment(torch.device("cpu"))["device_name"])
    assert len(names) == 3


def test_another_machine_needs_allow_changed_and_is_recorded(tmp_path: Path) -> None:
    out = tmp_path / "moved"
    search(out, trials=3)
    change_study(out, lambda data: data["environments"][0].update(torch="1.0", threads=64))
    with pytest.raises(BadStudy, match=r"was made elsewhere .*torch '1\.0' -> .*--allow-changed"):
        search(out, trials=6, resume=True)
    search(out, trials=6, resume=True, allow_changed=True)
    environments = Study.open(out).environments
    assert len(environments) == 2 and environments[1]["from_trial"] == 3
    search(out, trials=8, resume=True)


def test_a_changed_plugin_is_a_change(tmp_path: Path) -> None:
    plugin, out = tmp_path / "plugin.py", tmp_path / "study"
    code = (
        "from vitsearch.proxies import proxy\n@proxy('test-plugin', paper='none')\ndef score(subject):\n    return {}\n"
    )
    for value in (1, 2):
        plugin.write_text(code.format(value))
        command = [*COMMAND, "--objective", "test-plugin", "--plugin", str(plugin), "--out", str(out), "--resume"]
        ran = subprocess.run([*command, "--trials", str(4 * value)], capture_output=True, text=True)
        assert ran.returncode == (0 if value == 1 else 2), ran.stderr
    assert "was made elsewhere (plugins" in ran.stderr
    assert Study.open(out).environments[0]["plugins"][0]["file"] == "plugin.py"


def test_a_space_must_be_the_registered_one(tmp_path: Path) -> None:
    import dataclasses

    other = dataclasses.replace(SPACES["autoformer-micro"], embed_dim=(8,))
    with pytest.raises(VitsearchError, match="`space` must be registered as it is"):
        run_search(other, out=tmp_path / "out", geometry=GEOMETRY)
    finer = dataclasses.replace(SPACES["pit"], patch_stride=4)
    run_search(finer, out=tmp_path / "finer", geometry=GEOMETRY, objective="params", trials=2, device="cpu")
    assert Study.open(tmp_path / "finer").trials[0].settings["patch_stride"] == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("seed"),
        lambda data: data.update(seed=True),
        lambda data: data.update(seed=1.5),
        lambda data: data.update(objectives=[]),
        lambda data: data.update(objectives=[{"name": 3, "direction": "max"}]),
        lambda data: data.update(objectives=[{"name": "dss", "direction": "up"}]),
        lambda data: data.update(objectives=[{"name": "snip", "direction": "max"}]),
        lambda data: data.update(environments=[None]),
        lambda data: data.update(chunk=True),
        lambda data: data.update(fixed=[]),
        lambda data: data.update(format=99),
        lambda data: data.update(kind="dream"),
        lambda data: data.update(limits={"max_cats": 3}),
        lambda data: data.update(geometry=[1, 2]),
        lambda data: data.update(objectives=3),
        lambda data: data.update(chunk=0),
        lambda data: data.update(environments=[]),
    ],
)
def test_a_broken_study_file_is_one_error(whole: Path, tmp_path: Path, change: Any) -> None:
    for name in ("study.json", "trials.jsonl"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    change_study(tmp_path, change)
    with pytest.raises(BadStudy, match=r"(study\.json|trials\.jsonl)"):
        Study.open(tmp_path)


def test_trials_of_another_space_or_order_are_refused(whole: Path, tmp_path: Path) -> None:
    lines = (whole / "trials.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "study.json").write_bytes((whole / "study.json").read_bytes())
    (tmp_path / "trials.jsonl").write_text(lines[0] + lines[1].replace("autoformer-micro", "pit"))
    with pytest.raises(BadStudy, match="line 2 is of space 'pit', and the study is of 'autoformer-micro'"):
        Study.open(tmp_path)
    swapped = json.loads(lines[1]) | {"number": 0}
    for rest in ([], lines[1:8]):  # in the chunk that was cut off, and in one long finished
        (tmp_path / "trials.jsonl").write_text(json.dumps(swapped) + "\n" + "".join(rest))
        with pytest.raises(BadStudy, match="line 1 is not the trial this study proposes there"):
            search(tmp_path, resume=True)


@pytest.mark.parametrize("name", ["10", "-1", "worst", "", "1.5"])
def test_unknown_trials_are_named(whole: Path, name: str) -> None:
    with pytest.raises(BadStudy, match=r"must be 'best' or a number \(0 to 9\)"):
        Study.open(whole).trial(name)


def test_a_study_without_success_has_no_best(whole: Path) -> None:
    failed = Trial(number=0, settings={"space": "autoformer-micro"}, measured={}, error="out of memory", seconds=1.0)
    study = Study.open(whole)
    empty = Study(**{**{f: getattr(study, f) for f in study.__dataclass_fields__}, "trials": [failed]})
    assert empty.best is None and empty.front == []
    with pytest.raises(BadStudy, match="none of its 1 trials succeeded"):
        empty.trial("best")


def test_one_objective_of_several_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for strategy, expected in (("evolution:population=4", 1), ("nsga2:population=4", 0)):
        caplog.clear()
        with caplog.at_level("INFO", logger="vitsearch"):
            search(tmp_path / strategy[:5], trials=4, objective="params,min:macs", strategy=strategy)
        assert (
            len([line for line in caplog.messages if "goes by params alone; nsga2 searches by several" in line])
            == expected
        )


def test_progress_is_told(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    search(tmp_path / "seen", trials=60, objective="params", progress=lambda done, wanted: seen.append((done, wanted)))
    assert seen == [(0, 60), (48, 60), (60, 60)]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        search(tmp_path / "file" / "study")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_study_says_how_many_trials_it_wants(tmp_path: Path) -> None:
    def wanted() -> Any:
        return json.loads((tmp_path / "run" / "study.json").read_text())["wanted"]

    options: dict[str, Any] = {"objective": "params", "strategy": "exhaustive", "limits": Limits(max_params=82_000)}
    seen: list[int] = []
    search(tmp_path / "run", trials=5, **options, progress=lambda done, _: seen.append(wanted()))
    assert wanted() == 5 and set(seen) == {5}  # from the start on
    search(tmp_path / "run", trials=10_000, resume=True, **options)
    study = Study.open(tmp_path / "run")
    assert wanted() == study.wanted == len(study.trials) < 160  # the space has no more


def test_of_equals_in_the_first_objective_the_others_decide(tmp_path: Path) -> None:
    """Accuracies of a few hundred images are often equal: what no other beats must be the best."""
    study = search(tmp_path / "run", trials=160, objective="depth,min:params", strategy="exhaustive").study
    best = study.best
    assert best is not None and best in study.front
    deepest = [trial for trial in study.trials if trial.measured["depth"] == best.measured["depth"]]
    assert len(deepest) > 1 and best.measured["params"] == min(trial.measured["params"] for trial in deepest)
