from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.records import (
    Journal,
    Trial,
    parse_json,
    read_trials,
    remove_temporaries,
    uninterrupted,
    write_atomically,
    write_bytes_atomically,
)


def trial(number: int, **changes: object) -> Trial:
    fields: dict[str, object] = {"settings": {"space": "s"}, "measured": {"dss": 0.1 * number}, "seconds": 0.5}
    return Trial(**({"number": number} | fields | changes))  # type: ignore[arg-type]


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.text(), finite), st.one_of(st.none(), st.text()), finite)
def test_a_line_reads_back_as_it_was(measured: dict[str, float], error: str | None, seconds: float) -> None:
    written = trial(3, measured=measured, error=error, seconds=seconds)
    line = written.to_line()
    assert line.count("\n") == 1
    assert Trial.from_json(json.loads(line)) == written


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_never_written(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        trial(0, measured={"dss": value}).to_line()


def test_journal_appends_and_reopens(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    with Journal(path) as journal:
        journal.append([trial(0), trial(1)])
        journal.append([])
    with Journal(path) as journal:
        assert journal.trials == [trial(0), trial(1)]
        journal.append([trial(2)])
    assert read_trials(path)[0] == [trial(0), trial(1), trial(2)]


@given(st.integers(0, 400))
def test_a_torn_end_is_cut_off_at_the_last_complete_line(cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trials.jsonl"
        lines = [trial(number).to_line() for number in range(4)]
        content = "".join(lines)[:cut]
        path.write_text(content)
        with Journal(path) as journal:
            complete = content.count("\n")
            assert len(journal.trials) == complete
            journal.append([trial(number) for number in range(complete, 4)])
        assert path.read_text() == "".join(lines)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", "a trial must be an object with number"),
        ("[1]", "a trial must be an object"),
        ("{nonsense", "not valid JSON"),
        (trial(7).to_line().strip(), "its number must be 1, but got 7"),
        (trial(1).to_line().strip().replace("0.1", "NaN"), "NaN is not a number"),
        (trial(1).to_line().strip().replace('"seconds":0.5', '"seconds":"x"'), "`seconds` a number"),
        (trial(1).to_line().strip().replace('"measured":{', '"measured":{"a":null,'), "`measured` must be an object"),
    ],
)
def test_a_bad_line_before_the_end_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trials.jsonl"
    content = trial(0).to_line() + line + "\n" + trial(2).to_line()
    path.write_text(content)
    with pytest.raises(BadStudy, match=f"broken at line 2: .*{message}"):
        Journal(path)
    assert path.read_text() == content


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "trials.jsonl"), pytest.raises(BadStudy, match="is being written by another process"):
        Journal(tmp_path / "trials.jsonl")


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    """A real limit on file size: the kernel takes part of the write and refuses the rest."""
    import resource

    path = tmp_path / "trials.jsonl"
    with Journal(path) as journal:
        journal.append([trial(0)])
        before = path.read_bytes()
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, hard))
        try:
            with pytest.raises(BadStudy, match=r"cannot write .*: File too large; its 1 trials are safe"):
                journal.append([trial(1)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, ignored)
        assert path.read_bytes() == before
        journal.append([trial(1)])
    assert len(read_trials(path)[0]) == 2


def test_atomic_write_replaces_or_leaves(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    write_atomically(path, "old")
    with pytest.raises(TypeError):
        write_bytes_atomically(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_text() == "old"
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["study.json"]


def test_ctrl_c_waits_for_the_end_of_a_write() -> None:
    done = False
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGINT)
        done = True
    assert done


@pytest.mark.parametrize("text", [b"\xff\xfe{", "[" * 100_000, "NaN", '{"a": Infinity}', "1e999", "9" * 5000, "", "{"])
def test_broken_json_is_one_line(text: str | bytes) -> None:
    with pytest.raises(VitsearchError, match=r"^source is (not valid JSON|nested)[^\n]*$"):
        parse_json(text, "source")


def test_only_what_killed_writes_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path, missing_ok: bool) -> None:
        raise SystemExit

    with monkeypatch.context() as dying, pytest.raises(SystemExit):
        dying.setattr(Path, "unlink", killed)
        dying.setattr(os, "replace", killed)
        write_atomically(tmp_path / "study.json", "{}")
    others = [".study.json", "study.json.abcdefgh", ".study.json.bak", ".other.json.abcdefgh", ".study.json.abcdefgh.x"]
    for name in others:
        (tmp_path / name).write_text("")
    assert len(list(tmp_path.iterdir())) == len(others) + 1
    remove_temporaries(tmp_path, ("study.json", "model.safetensors"))
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(others)
