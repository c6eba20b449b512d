"""Looking on while a study is written: only what is new is read, and the state is what it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vitsearch.ranking import dominates
from vitsearch.records import Journal, Trial, read_trials
from vitsearch.report import reading
from vitsearch.report.reading import Reader
from vitsearch.spaces import sample
from vitsearch.training.plan import EpochLog

WriteStudy = Callable[..., Path]


def refreshed(folder: Path) -> Reader:
    reader = Reader(folder)
    reader.refresh()
    return reader


def test_best_and_front_as_slow_definitions_say(write_study: WriteStudy, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "run", 60)
    lines = (folder / "trials.jsonl").read_text().splitlines(keepends=True)
    (folder / "trials.jsonl").write_text("".join(lines[:25]))
    reader = refreshed(folder)
    with open(folder / "trials.jsonl", "a") as file:
        file.write("".join(lines[25:]))
    reader.refresh()
    trials = [trial for trial in read_trials(folder / "trials.jsonl")[0] if trial.error is None]
    gains = {trial.number: (trial.measured["dss"], -trial.measured["macs"]) for trial in trials}
    front = [n for n, own in gains.items() if not any(dominates(other, own) for other in gains.values())]
    assert reader.front == front and len(front) > 2
    assert reader.best == max(gains, key=lambda number: gains[number][0])
    assert len(reader.columns) == 60 and reader.columns.errors.keys() == {9, 19, 29, 39, 49, 59}


def test_only_what_is_new_is_read(write_study: WriteStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_study(tmp_path / "run", 20)
    starts: list[int] = []

    def counted(path: Path, start: int, first: int) -> tuple[list[Trial], int]:
        starts.append(start)
        return read_trials(path, start, first)

    monkeypatch.setattr(reading, "read_trials", counted)
    reader = refreshed(folder)
    size = (folder / "trials.jsonl").stat().st_size
    reader.refresh()
    assert starts == [0] and reader.version == 1
    settings = sample("autoformer-micro", 1)[0]
    line = Trial(number=20, settings=settings, measured={"dss": 1e12, "macs": 1.0}, seconds=0.1).to_line()
    with open(folder / "trials.jsonl", "a") as file:
        file.write(line[:10])  # half a line is not there yet
        file.flush()
        reader.refresh()
        assert len(reader.columns) == 20
        file.write(line[10:])
    reader.refresh()
    assert starts == [0, size, size] and reader.best == 20 and reader.front == [20]


def test_a_journal_that_shrinks_is_read_anew(write_study: WriteStudy, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "run", 20)
    reader = refreshed(folder)
    generation, lines = reader.generation, (folder / "trials.jsonl").read_text().splitlines(keepends=True)
    (folder / "trials.jsonl").write_text("".join(lines[:5]))
    reader.refresh()
    assert len(reader.columns) == 5 and reader.generation > generation


def test_states(write_study: WriteStudy, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "run", 20)
    assert refreshed(folder).state == "finished"
    study = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(study | {"wanted": 50}))
    assert refreshed(folder).state == "stopped" and refreshed(folder).seconds_left is None
    with Journal(folder / "trials.jsonl"):
        running = refreshed(folder)
        assert running.state == "running" and running.seconds_left == pytest.approx(30 * 0.1)
    (folder / "trials.jsonl").write_text("{}\n")
    assert refreshed(folder).state == "failed" and "line 1" in str(refreshed(folder).problem)
    trial = Trial(number=0, settings={"space": "x"}, measured={}, error="no memory", seconds=0.0)
    (folder / "trials.jsonl").write_text(trial.to_line())
    (folder / "study.json").write_text(json.dumps(study | {"wanted": 1}))
    assert refreshed(folder).state == "failed" and refreshed(folder).problem is None


def test_looking_does_not_keep_a_writer_out(write_study: WriteStudy, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "run", 3)
    refreshed(folder)
    with Journal(folder / "trials.jsonl") as journal:
        refreshed(folder)
        assert len(journal.trials) == 3


def test_trainings(tmp_path: Path) -> None:
    recipe = {"epochs": 4, "batch_size": 10}
    (tmp_path / "study.json").write_text(json.dumps({"format": 1, "kind": "train", "recipe": recipe}))
    row = {"epoch": 2, "step": 20, "loss": 0.5, "images_per_second": 50.0, "validation_top1": 61.5}
    (tmp_path / "epochs.jsonl").write_text(json.dumps(row) + "\n")
    assert (refreshed(tmp_path).state, refreshed(tmp_path).progress[:2]) == ("stopped", (2, 4))
    log = EpochLog(tmp_path / "epochs.jsonl")
    assert refreshed(tmp_path).state == "running" and refreshed(tmp_path).seconds_left == pytest.approx(2 * 100 / 50)
    log.close()
    (tmp_path / "result.json").write_text('{"test_top1": 62.0}')
    assert refreshed(tmp_path).state == "finished"


def test_files_elsewhere_do_not_count(write_study: WriteStudy, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "inside" / "run", 5)
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"password": 1}\n')
    (folder / "more.jsonl").symlink_to(secret)
    everywhere, inside = Reader(folder), Reader(folder, inside=(tmp_path / "inside").resolve())
    everywhere.refresh()
    inside.refresh()
    assert list(everywhere.rows) == ["more.jsonl"] and not inside.rows and not inside.problem


def test_a_study_that_goes_away(write_study: WriteStudy, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "run", 5)
    reader = refreshed(folder)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    reader.refresh()
    assert reader.state == "failed" and "has no study.json" in str(reader.problem) and not len(reader.columns)


def test_journals_of_other_kinds_grow_too(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"format": 1, "kind": "discover"}')
    (tmp_path / "formulas.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    reader = refreshed(tmp_path)
    with open(tmp_path / "formulas.jsonl", "a") as file:
        file.write('{"a": 3}\n')
    reader.refresh()
    assert reader.rows == {"formulas.jsonl": [{"a": 1}, {"a": 2}, {"a": 3}]}
    with open(tmp_path / "formulas.jsonl", "a") as file:
        file.write("7\n")
    reader.refresh()
    assert "broken at line 4" in str(reader.problem)
