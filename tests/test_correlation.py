"""Correlation with benchmark tables, on a small table that the test makes itself."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import kendalltau, rankdata, spearmanr

from vitsearch.benchmark import Column, Entry, Table, write_table
from vitsearch.correlation import (
    FAST,
    Conditions,
    ScoreBook,
    choose_proxies,
    correlate,
    measured,
)
from vitsearch.cost import Geometry
from vitsearch.errors import BadStudy, UnknownName, VitsearchError
from vitsearch.proxies import PROXIES
from vitsearch.proxies.size import BASELINES
from vitsearch.ranking import MEASURES
from vitsearch.scoring import score
from vitsearch.spaces import cost_of, sample

Cli = Callable[..., Any]
TEN, FOUR = Geometry(image_size=32, classes=10), Geometry(image_size=32, classes=4)
CONDITIONS = Conditions(device="cpu", batch_size=4)


@pytest.fixture
def table() -> Table:
    networks = sample("autoformer-micro", 9, seed=3)
    columns = {"ten": Column("ten", None, TEN), "four": Column("four", None, FOUR)}
    entries = [
        Entry(settings, "first" if number < 5 else "second", {"ten": 50.0 + 7 * number % 11, "four": 40.0 + number})
        for number, settings in enumerate(networks)
    ]
    entries[4] = Entry(networks[4], "first", {"ten": None, "four": 44.0})
    return Table("made", "autoformer-micro", TEN, columns, tuple(entries))


def test_rows_are_the_correlations_of_the_right_networks(table: Table) -> None:
    book = ScoreBook(CONDITIONS)
    names = choose_proxies("dss,snip")
    book.fill([network for column in table.columns for network, _ in measured(table, column)], names, [0])
    rows = {(row["dataset"], row["source"], row["proxy"]): row for row in correlate([table], book, names, [0])}
    for column, geometry in (("ten", TEN), ("four", FOUR)):
        for source in (None, "first", "second"):
            chosen = [
                entry
                for entry in table.entries
                if source in (None, entry.source) and entry.accuracy[column] is not None
            ]
            accuracies = [entry.accuracy[column] for entry in chosen]
            sizes = [cost_of(entry.arch, geometry).params for entry in chosen]
            options: dict[str, Any] = {"geometry": geometry, "device": "cpu", "batch_size": 4}
            found = score([entry.arch for entry in chosen], "dss,snip", **options)
            for proxy in ("dss", "snip"):
                ours = [one.scores[proxy] for one in found]
                row = rows[column, source, proxy]
                assert row["networks"] == len(chosen) and row["failed"] == 0
                assert row["kendall"] == pytest.approx(kendalltau(ours, accuracies).statistic)
                assert row["spearman"] == pytest.approx(spearmanr(ours, accuracies).statistic)
            assert rows[column, source, "params"]["kendall"] == pytest.approx(kendalltau(sizes, accuracies).statistic)
            same = sum(a == b for i, a in enumerate(sizes) for b in sizes[:i])
            assert rows[column, source, "dss"]["pairs"] == same
    joint = rows["joint", None, "dss"]
    assert joint["columns"] == ["ten", "four"]
    assert joint["kendall"] == pytest.approx(
        (rows["ten", None, "dss"]["kendall"] + rows["four", None, "dss"]["kendall"]) / 2
    )


def test_joint_takes_the_distilled_column_of_two(table: Table) -> None:
    columns = {"a": table.columns["ten"], "a_kd": table.columns["ten"], "b": table.columns["four"]}
    named = {name: Column(name, column.space, column.geometry) for name, column in columns.items()}
    entries = tuple(
        Entry(entry.arch, None, {"a": float(n), "a_kd": float(n % 4), "b": float(-n % 7)})
        for n, entry in enumerate(table.entries)
    )
    book = ScoreBook(CONDITIONS)
    made = Table("made", table.space, TEN, named, entries)
    book.fill([network for column in named for network, _ in measured(made, column)], ["params"], [0])
    (joint,) = [row for row in correlate([made], book, ["params"], [0]) if row["dataset"] == "joint"]
    assert joint["columns"] == ["a_kd", "b"]
    assert all(joint[f"{measure}_{end}"] is None for measure in MEASURES for end in ("low", "high"))


def test_te_score_is_the_sum_of_ranks_and_ntk_is_better_when_lower(table: Table) -> None:
    book = ScoreBook(CONDITIONS)
    networks = [network for network, _ in measured(table, "four")]
    book.fill(networks, ["te-score"], [0])
    ntk = [book.scores[network, 0]["ntk"] for network in networks]
    regions = [book.scores[network, 0]["linear_regions"] for network in networks]
    expected = rankdata([-value for value in ntk]) + rankdata(regions)
    assert book.column(networks, 0, "te-score") == list(expected)
    assert book.column(networks, 0, "ntk") == [-value for value in ntk]


def test_seeds_are_kept_apart(table: Table) -> None:
    book = ScoreBook(CONDITIONS)
    networks = [network for network, _ in measured(table, "four")]
    book.fill(networks, ["snip"], [5, 6])
    (row,) = [row for row in correlate([table], book, ["snip"], [5, 6], ["four"]) if row["source"] is None]
    accuracies = [accuracy for _, accuracy in measured(table, "four")]
    taus = [kendalltau(book.column(networks, seed, "snip"), accuracies).statistic for seed in (5, 6)]
    assert row["kendall_by_seed"] == pytest.approx(taus) and row["kendall"] == pytest.approx(sum(taus) / 2)
    assert row["kendall_deviation"] == pytest.approx(abs(taus[0] - taus[1]) / 2**0.5)
    assert row["kendall_low"] <= row["kendall"] <= row["kendall_high"]


def test_a_proxy_that_is_not_defined_says_so_in_its_row(table: Table) -> None:
    book = ScoreBook(CONDITIONS)
    book.fill([network for network, _ in measured(table, "four")], ["zen"], [0])
    row = correlate([table], book, ["zen"], [0], ["four"])[0]
    assert row["networks"] == 0 and row["failed"] == 9 and row["kendall"] is None and "BatchNorm" in row["failure"]


def test_scores_are_kept_and_continued(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scores.jsonl"
    networks = [network for network, _ in measured(table, "four")]
    whole = ScoreBook(CONDITIONS, path)
    whole.fill(networks, ["dss", "depth"], [0], chunk=4)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 10
    path.write_bytes(b"".join(lines[:6]) + lines[6][:20])  # killed while it wrote
    book = ScoreBook(CONDITIONS, path)
    assert len(book.scores) == 5
    told: list[tuple[int, int]] = []
    book.fill(networks, ["dss", "depth"], [0], lambda done, total: told.append((done, total)))
    assert told[-1] == (4, 4) and book.scores.keys() == whole.scores.keys()
    assert ScoreBook(CONDITIONS, path).scores == book.scores
    monkeypatch.setattr("vitsearch.correlation.ProxyEvaluator", None)  # nothing is scored again
    ScoreBook(CONDITIONS, path).fill(networks, ["dss"], [0])


def test_a_file_of_other_conditions_is_refused(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    ScoreBook(CONDITIONS, path)
    with pytest.raises(BadStudy, match=r"scores.jsonl was made with batch_size \d+, not with 8: give another file"):
        ScoreBook(Conditions(device="cpu", batch_size=8), path)
    path.write_text(path.read_text() + '{"arch": 3}\n')
    with pytest.raises(BadStudy, match="line 2 is not a scored network"):
        ScoreBook(CONDITIONS, path)


def test_no_page_is_written_over_anything_else(cli: Cli, table: Table, tmp_path: Path) -> None:
    path, scores = tmp_path / "table.json", tmp_path / "scores.jsonl"
    write_table(table, path)
    ScoreBook(CONDITIONS, scores)
    before = {file: file.read_bytes() for file in (path, scores)}
    for file in before:
        ran = cli("bench", "correlate", "--bench", path, "--batch-size", 4, "--scores", scores, "--page", file)
        assert "`page` must be a new file, or a page that ends in .html" in ran.error()
    assert {file: file.read_bytes() for file in before} == before


def test_a_file_that_was_cut_off_in_its_first_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    ScoreBook(CONDITIONS, path)
    whole = path.read_bytes()
    for length in (0, 1, len(whole) - 1):
        path.write_bytes(whole[:length])
        ScoreBook(CONDITIONS, path)
        assert path.read_bytes() == whole
    path.write_text("my notes")
    with pytest.raises(VitsearchError, match=r"scores.jsonl"):
        ScoreBook(CONDITIONS, path)
    assert path.read_text() == "my notes"


def test_scores_on_a_full_disk(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scores.jsonl"
    book = ScoreBook(CONDITIONS, path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadStudy, match=r"cannot write .*scores.jsonl: No space left on device"):
        book.fill([network for network, _ in measured(table, "four")], ["depth"], [0])
    assert path.read_bytes() == before


def test_names_of_proxies() -> None:
    assert choose_proxies("all") == [*BASELINES, *(name for name in PROXIES if name not in BASELINES), "te-score"]
    assert choose_proxies("fast") == [*BASELINES, *FAST]
    assert choose_proxies("fast,snip:params=linear") == [*BASELINES, *FAST, "snip:params=linear"]
    with pytest.raises(UnknownName, match=r"no proxy named 'te-scor'.*te-score"):
        choose_proxies("te-scor")


def test_command_line(cli: Cli, table: Table, tmp_path: Path) -> None:
    path, page, scores = tmp_path / "table.json", tmp_path / "page.html", tmp_path / "scores.jsonl"
    write_table(table, path)
    arguments = ("--bench", path, "--proxy", "dss,te-score", "--batch-size", "4", "--device", "cpu", "--scores", scores)
    rows = cli("bench", "correlate", *arguments, "--page", page, "--json").json()
    assert {row["proxy"] for row in rows} == {*BASELINES, "dss", "te-score"}
    assert {row["dataset"] for row in rows} == {"ten", "four", "joint"}
    keys = {"kendall", "spearman", "pearson", "kendall_low", "kendall_high", "kendall_equal_size", "mean_best_rank"}
    assert keys | {"pairs", "kendall_near_size", "partial_kendall", "regret_1"} <= set(rows[0])
    text = page.read_text()
    assert "four: accuracy against score" in text and "<script src=" not in text
    again = cli("bench", "correlate", *arguments, "--column", "four", "--json").json()
    assert {row["dataset"] for row in again} == {"four"}
    assert "Kendall" in cli("bench", "correlate", *arguments).out
    (shown,) = cli("bench", "show", "--bench", path, "--json").json()
    assert shown["entries"] == 9 and [column["measured"] for column in shown["columns"]] == [8, 9]
    assert "made" in cli("bench", "show", "--bench", path).out


@pytest.mark.parametrize(
    "arguments, text",
    [
        (("--proxy", "dsss"), "no proxy named 'dsss'"),
        (("--column", "three"), "`column` must be one of ten, four, but got 'three'"),
        (("--seeds", "0"), "--seeds"),
        (("--column", "ten", "--column", "ten"), "`column` must name each column once, but got 'ten'"),
        (("--page", "nowhere/page.html"), "`page` must be a file in a folder that exists"),
        (("--page", "."), "`page` must be a file in a folder that exists"),
        (("--scores", "nowhere/scores.jsonl"), "nowhere/scores.jsonl"),
        (("--data", "nothing"), "nothing"),
        (("--batch-size", "0"), "batch_size"),
    ],
)
def test_bad_input(cli: Cli, table: Table, tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    path = tmp_path / "table.json"
    write_table(table, path)
    assert text in cli("bench", "correlate", "--bench", path, "--device", "cpu", *arguments).error()
    assert json.loads(path.read_text())["benchmark"] == "made"


def test_missing_and_broken_tables(cli: Cli, tmp_path: Path) -> None:
    assert "nothing.json" in cli("bench", "show", "--bench", tmp_path / "nothing.json").error()
    (tmp_path / "broken.json").write_text("{")
    assert "broken.json" in cli("bench", "correlate", "--bench", tmp_path / "broken.json").error()
