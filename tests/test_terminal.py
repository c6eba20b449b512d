"""What a terminal shows: numbers, and progress as plain lines where stderr is a file or a pipe, none with --quiet."""

from __future__ import annotations

import logging

import pytest
from rich.table import Table

from vitsearch import terminal
from vitsearch.terminal import in_words, progress_bar, show


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vitsearch")
    with progress_bar("searching", 60) as tick:
        tick(20, 60)  # there before: a resumed search
        clock[0] += 5
        tick(30, 60)
        clock[0] += 5
        tick(40, 60)
        clock[0] += 1
        tick(50, 60, note="in time")
        clock[0] += 9
        tick(55, 60, note="in time")
    assert caplog.messages == ["searching 40/60, 2.00/s, 10 s left", "searching in time 55/60, 1.75/s, 3 s left"]


def test_what_was_done_before_the_first_line_does_not_count(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither its number nor its time."""
    caplog.set_level(logging.INFO, "vitsearch")
    with progress_bar("scoring", 120) as tick:
        clock[0] += 80
        tick(48)
        clock[0] += 20
        tick(60)
    assert caplog.messages == ["scoring 60/120, 0.60/s, 100 s left"]


def test_each_part_of_the_work_has_its_own_pace(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vitsearch")
    with progress_bar("evolving", 1) as tick:
        for note, seconds in (("supernet", 1), ("space", 5)):
            for done in range(4):
                tick(10 * done, 30, note)
                clock[0] += seconds
            clock[0] += 10
    lines = ["evolving space 10/30, 2.00/s, 10 s left", "evolving space 30/30, 2.00/s, 0 s left"]
    assert caplog.messages == lines


def test_quiet(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "vitsearch")
    with progress_bar("searching", 10) as tick:
        tick(0)
        clock[0] += 60
        tick(5)
    assert not caplog.messages


def test_counts_are_shown_whole_and_scores_to_six_digits() -> None:
    assert [in_words(value) for value in (6_643_530, 68241.6491, 1e-9, 0)] == ["6,643,530", "68241.6", "1e-09", "0"]


def test_lists_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("architecture")
    table.add_row("mlp_ratio=[null, 0.5] num_heads=[0, 2]")
    show(table)
    assert "mlp_ratio=[null, 0.5] num_heads=[0, 2]" in capsys.readouterr().out


def test_a_closed_stdout_takes_a_table_as_it_takes_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    show(Table("a"))
    monkeypatch.undo()
    assert capsys.readouterr() == ("", "")
