"""The code in README and docs runs as it stands: Python blocks, shell blocks, and files that blocks give a name."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    "README.md",
    "docs/extending.md",
    "docs/methods.md",
    "docs/findings.md",
    "docs/supernet.md",
    "docs/scoring.md",
    "docs/proxies.md",
    "docs/predictor.md",
    "docs/autoprox.md",
    "docs/data.md",
    "docs/training.md",
    "docs/prenas.md",
    "docs/report.md",
    "docs/export.md",
    "docs/vitas.md",
    "docs/latency.md",
    "docs/s3.md",
]
TABLES = [
    "experiments/benchmark_tables.py",
    "experiments/proxy_tables.py",
    "experiments/prenas_tables.py",
    "experiments/predictor_tables.py",
    "experiments/autoprox_tables.py",
    "experiments/training_tables.py",
    "experiments/latency_tables.py",
    "experiments/result_tables.py",
    "experiments/findings.py",
]


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / page).read_text())


def run(command: list[str], folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout}\n{ran.stderr}"


def run_shell(text: str, folder: Path, cli: Callable[..., Any]) -> None:
    """Commands of ours in this process, which has torch already; what needs a shell, or a plugin, in a shell."""
    for line in text.replace("\\\n", " ").splitlines():
        command, _, target = line.partition(" > ")
        if not line.startswith("vitsearch ") or "--plugin" in line or set("|&;$`<>*(") & set(command + target):
            run(["bash", "-e", "-u", "-o", "pipefail", "-c", line], folder)
            continue
        ran = cli(*shlex.split(re.sub(r"\s#.*", "", command))[1:])
        assert ran.code == 0, f"{line}\n{ran.out}\n{ran.err}"
        if target:
            (folder / target.strip()).write_text(ran.out)


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page: str, tmp_path: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(page)
    for language, text in found:
        named = re.match(r"# file: (\S+)\n", text)
        if named:
            (tmp_path / named.group(1)).write_text(text)
        elif language == "python":
            run([sys.executable, "-c", text], tmp_path)
        elif language == "sh":
            run_shell(text, tmp_path, cli)
        else:
            assert language in ("text", "toml"), f"a block in {page} would not be checked: {language}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target


def test_every_command_space_proxy_and_strategy_is_in_the_readme() -> None:
    import typer.main

    from vitsearch.cli import app
    from vitsearch.proxies import PROXIES
    from vitsearch.search import STRATEGIES
    from vitsearch.spaces import SPACES

    text = (ROOT / "README.md").read_text()
    shortened = {f"autoformer-{size}": f"-{size}" for size in ("small", "base")}
    commands = []
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        commands += [f"{name} {inner}" for inner in getattr(command, "commands", {})] or [name]
    for name in [*commands, *(shortened.get(space, space) for space in SPACES), *PROXIES, *STRATEGIES]:
        assert f"`{name}`" in text, name


def test_exports_of_every_space_were_compared_in_every_format() -> None:
    rows = json.loads((ROOT / "experiments" / "results" / "export_agreement.json").read_text())["rows"]
    listing = (
        "from vitsearch.export.write import FORMATS; from vitsearch.spaces import SPACES; print(*SPACES, '/', *FORMATS)"
    )
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    spaces, formats = (part.split() for part in done.stdout.split("/"))  # of a fresh process: tests add spaces
    assert {(row["space"], row["format"]) for row in rows} >= {(space, kind) for space in spaces for kind in formats}
    assert all(row["networks"] >= 20 and row["largest_difference"] <= row["tolerance"] for row in rows)


@pytest.mark.parametrize("script", TABLES)
def test_the_tables_of_the_docs_are_what_was_measured(script: str) -> None:
    ran = subprocess.run([sys.executable, ROOT / script, "--check"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_benchmarks_print_rows(tmp_path: Path) -> None:
    """The quick form, on one space and few networks: the contract's keys, nothing else on stdout."""
    options = ["--quick", "--json", "--networks", "2", "--compared", "2"]
    command = [sys.executable, str(ROOT / "benchmarks" / "scoring.py"), *options]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    rows = json.loads(ran.stdout)
    assert {"name", "device", "machine", "commit", "dirty", "seconds", "speedup"} <= set(rows[0])
    assert rows[0]["name"] == "dss/autoformer-tiny/fresh" and rows[0]["max_relative_error"] < 1e-4
    assert all(row["speedup"] is None for row in rows if row["name"].startswith(("reference/", "baseline/")))


def test_fifty_networks_of_a_supernet_are_evaluated_however_few_steps_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    supernet = importlib.import_module("supernet")

    def timed(trainer: object, device: object, steps: int, looks: int, rounds: int) -> dict[str, Any]:
        found = {
            "train": 1.0,
            "evaluate": 1.0,
            "compute_only": 1.0,
            "architectures": {"train": steps, "evaluate": looks},
        }
        found |= {"steps": {"train": steps, "evaluate": looks}, "peak_memory_bytes": 1}
        return found | {"compiling_seconds": 1.0, "precision": "float32"}

    monkeypatch.setattr(supernet, "timed", timed)
    monkeypatch.setattr(supernet, "make_trainer", lambda *given, **options: None)
    monkeypatch.setattr(supernet, "baseline", lambda *given: {"name": "baseline/a", "seconds": 1.0, "speedup": None})
    monkeypatch.setattr("sys.argv", ["supernet.py", "--device", "cpu", "--steps", "40", "--sizes", "32", "--json"])
    supernet.main()
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["supernet-eval/autoformer-tiny/32"]["architectures"] == 50
    assert rows["supernet-eval/autoformer-tiny/32"]["steps"] == 50
    assert rows["supernet-train/autoformer-tiny/32"]["steps"] == 40
