"""The page itself: one file that needs nothing, small enough, and no way for what users write to become markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from vitsearch.records import Trial
from vitsearch.report.columns import Columns
from vitsearch.report.page import as_json, static_page
from vitsearch.spaces import sample

Cli = Callable[..., Any]
WriteStudy = Callable[..., Path]
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u2028&amp;"


class Elements(HTMLParser):
    """Tags with their attributes, and the text of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data


def parse(page: str) -> Elements:
    parser = Elements()
    parser.feed(page)
    return parser


def test_json_in_a_page_reads_back_and_holds_no_tag() -> None:
    value = {EVIL: [EVIL, 1.5, None, "\ud800"]}
    text = as_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == json.loads(json.dumps(value).replace("\\ud800", "?"))


def test_a_page_needs_nothing_and_runs_nothing_else() -> None:
    page = static_page(EVIL, {"title": EVIL, "studies": [], "figures": []})
    found = parse(page)
    assert [tag for tag, _ in found.tags].count("script") == len(found.scripts)
    assert not any("src" in attributes for _, attributes in found.tags)
    assert all(attributes["href"] == "data:," for tag, attributes in found.tags if tag == "link")
    (policy,) = [attributes["content"] for _, attributes in found.tags if "http-equiv" in attributes]
    allowed = re.findall(r"'sha256-([^']+)'", policy or "")
    runs = [
        script for script, (_, attributes) in zip(found.scripts, _script_tags(found), strict=True) if not attributes
    ]
    assert allowed == [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in runs]
    assert "'unsafe-eval'" not in str(policy) and "'unsafe-inline'" not in str(policy).split("script-src")[1]
    assert json.loads(found.scripts[0])["title"] == EVIL.replace("\ud800", "?")


def _script_tags(found: Elements) -> list[tuple[str, dict[str, str | None]]]:
    return [one for one in found.tags if one[0] == "script"]


def test_the_command(cli: Cli, write_study: WriteStudy, tmp_path: Path) -> None:
    first, second = write_study(tmp_path / "a" / "run"), write_study(tmp_path / "b" / "run", 12, wanted=40)
    page = tmp_path / "page.html"
    shown = cli("report", first, second, "--out", page, "--json").json()
    assert [one["name"] for one in shown["studies"]] == [str(first), str(second)]  # two of one name
    assert [one["state"] for one in shown["studies"]] == ["finished", "stopped"]
    assert page.stat().st_size == shown["bytes"]
    ran = cli("report", first, "--out", page)
    assert ran.out == f"report: {page}\n"
    data = json.loads(parse(page.read_text()).scripts[0])
    assert data["title"] == "run" and data["studies"][0]["trials"]["count"] == 30


def test_correlations_go_along(cli: Cli, write_study: WriteStudy, tmp_path: Path) -> None:
    folder, page, rows = write_study(tmp_path / "run"), tmp_path / "page.html", tmp_path / "rows.json"
    row = {"benchmark": "b", "proxy": "dss", "dataset": "d", "source": None, "kendall": 0.5, "kendall_low": 0.4}
    row |= {"kendall_high": 0.7, "kendall_near_size": None}
    rows.write_text(json.dumps([row]))
    assert cli("report", folder, "--out", page, "--correlations", rows).code == 0
    (section,) = json.loads(parse(page.read_text()).scripts[0])["figures"]
    assert section["figures"][0]["data"][0]["error_x"]["array"] == [pytest.approx(0.2)]
    rows.write_text("[{}]")
    assert "`correlations` must be what" in cli("report", folder, "--out", page, "--correlations", rows).error()


def test_bad_input(cli: Cli, write_study: WriteStudy, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "run")
    assert "is not a study" in cli("report", tmp_path, "--out", tmp_path / "page.html").error()
    assert not (tmp_path / "page.html").exists()
    assert "`out` must be a file in a folder" in cli("report", folder, "--out", tmp_path / "no" / "page.html").error()
    assert "`out` must be a file" in cli("report", folder, "--out", tmp_path).error()
    journal = (folder / "trials.jsonl").read_text()
    assert "`out` must be a new file, or a page" in cli("report", folder, "--out", folder / "trials.jsonl").error()
    assert (folder / "trials.jsonl").read_text() == journal
    page = tmp_path / "page.html"
    assert cli("report", folder, "--out", page).code == 0
    page.unlink()
    page.mkdir()  # what was good once need not be so for ever
    assert "`out` must be a file" in cli("report", folder, "--out", page).error()


def test_a_damaged_study_is_shown_as_failed(cli: Cli, write_study: WriteStudy, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "run")
    with open(folder / "trials.jsonl", "a") as file:
        file.write("{}\n")
    ran = cli("report", folder, "--out", tmp_path / "page.html")
    assert ran.code == 0 and "is shown as failed" in ran.err


def test_ten_thousand_trials_fit() -> None:
    """Plotly's scripts are most of a page; what is left for the trials, against the columns of the deepest space."""
    columns = Columns()
    settings = [dict(one) for one in sample("autoformer-base", 200, seed=1)]
    numbers = {"dss": 12345.678901, "snip": 0.00012345678, "params": 77_123_456, "macs": 16_123_456_789}
    columns.extend([Trial(number=n, settings=one, measured=numbers, seconds=0.25) for n, one in enumerate(settings)])
    page = len(static_page("", {"title": "", "studies": [], "figures": []}))
    fixed = len(as_json(Columns().to_json())) + len(as_json(columns.parts.values))
    assert page + 10_000 / 200 * (len(as_json(columns.to_json())) - fixed) < 6_400_000


def test_the_demo_ends_by_naming_the_page() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    recipe = makefile.split("\ndemo:")[1].split("\n\n")[0]
    assert recipe.splitlines()[-1] == "\t$(BIN)/vitsearch report demo/run --out demo/report.html"


def test_a_search_is_shown_without_torch(write_study: WriteStudy, tmp_path: Path) -> None:
    script = (
        "import sys; from vitsearch.cli import main; code = main(sys.argv[1:]); print(code, 'torch' in sys.modules)"
    )
    arguments = ["report", str(write_study(tmp_path / "run")), "--out", str(tmp_path / "page.html")]
    ran = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "0 False"
