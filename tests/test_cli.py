"""The command line: the JSON of the contract, and one clear line for whatever is wrong."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch

import vitsearch
from vitsearch.cost import Geometry
from vitsearch.models import build
from vitsearch.proxies import PROXIES
from vitsearch.spaces import SPACES, cost_of, decode

Cli = Callable[..., Any]
SMALL = ("--image-size", "32", "--classes", "10")
MICRO = SPACES["autoformer-micro"].region().smallest()


@pytest.fixture
def arch(tmp_path: Path) -> Path:
    path = tmp_path / "arch.json"
    path.write_text(json.dumps(MICRO))
    return path


@pytest.fixture
def study(cli: Cli, tmp_path: Path) -> Path:
    out = tmp_path / "run"
    arguments = ("--objective", "dss,min:params", "--trials", "6", "--seed", "2", "--out", out, *SMALL)
    assert cli("search", "autoformer-micro", *arguments).code == 0
    return out


def test_spaces(cli: Cli) -> None:
    rows = cli("spaces", "--json").json()
    assert {row["name"]: row["size"] for row in rows} == {name: SPACES[name].size for name in SPACES}
    one = cli("spaces", "autoformer-tiny", "--json").json()
    assert one["knobs"]["embed_dim"] == {"choices": [192, 216, 240], "per": "network"}
    assert one["knobs"]["num_heads"] == {"choices": [3, 4], "per": "block"} and one["size"] == 1056964608
    assert "autoformer-micro" in cli("spaces").out


def test_proxies(cli: Cli) -> None:
    rows = {row["name"]: row for row in cli("proxies", "--json").json()}
    assert set(rows) == set(PROXIES)
    assert {"params", "macs", "depth", "width", "snip", "synflow", "plain", "grad_norm", "dss"} <= set(rows)
    assert rows["snip"]["needs_data"] and rows["snip"]["needs_labels"] and rows["snip"]["needs_gradient"]
    assert not rows["dss"]["needs_data"] and rows["dss"]["needs_gradient"] and rows["dss"]["direction"] == "max"
    assert "TF-TAS" in rows["dss"]["paper"] and "dss" in cli("proxies").out


def test_sample_and_cost(cli: Cli, tmp_path: Path) -> None:
    drawn = cli(
        "sample", "autoformer-tiny", "-n", 5, "--seed", 1, "--max-params", "6M", "--min-params", "5.5M", "--json"
    )
    settings = drawn.json()
    assert len(settings) == 5 and settings == vitsearch.sample(
        "autoformer-tiny", 5, seed=1, limits=vitsearch.Limits(max_params=6_000_000, min_params=5_500_000)
    )
    (tmp_path / "many.json").write_text(drawn.out)
    rows = cli("cost", tmp_path / "many.json", "--classes", 10, "--json").json()
    assert [(row["params"], row["macs"]) for row in rows] == [cost_of(s, Geometry(classes=10)) for s in settings]
    assert len(cli("cost", tmp_path / "many.json", tmp_path / "many.json", "--json").json()) == 10
    assert "parameters" in cli("cost", tmp_path / "many.json").out
    assert json.loads(cli("sample", "pit").out)["space"] == "pit"


def test_one_architecture_gives_one_object(cli: Cli, arch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = cost_of(MICRO)
    assert cli("cost", arch, "--json").json()["params"] == expected.params
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(json.dumps([MICRO]).encode())))
    assert cli("cost", "-", "--json").json()[0]["macs"] == expected.macs


def test_published_networks_outside_their_space_are_taken(cli: Cli, tmp_path: Path) -> None:
    """AutoFormer-T has MLP ratios of 3.0, which its own space lacks."""
    outside = MICRO | {"mlp_ratio": [3.0, 1.0]}
    (tmp_path / "outside.json").write_text(json.dumps([outside] * 5))
    ran = cli("cost", tmp_path / "outside.json", "--json")
    assert len(ran.json()) == 5
    assert "note: outside its space: `mlp_ratio[1]` is 1.0, and autoformer-micro has 2.0, 3.0" in ran.err
    assert "2 more lie outside" in ran.err
    assert cli("cost", tmp_path / "outside.json", "--quiet", "--json").err == ""


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("cost ARCH --image-size 3", "`image_size` must be at least the patch size"),
        ("score ARCH --proxy dsss", "no proxy named 'dsss'"),
        ("latency ARCH --image-size 3", "`image_size` must be at least the patch size"),
        ("export ARCH --image-size 3 --out new", "`image_size` must be at least the patch size"),
        ("supernet eval nowhere ARCH", "nowhere"),
        ("train ARCH --batch-size 60000 --image-size 32 --device cpu --out new", "`batch_size` must be from 1 to"),
    ],
)
def test_what_is_refused_is_not_noted_to_lie_outside(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outside.json").write_text(json.dumps(MICRO | {"mlp_ratio": [3.0, 1.0]}))
    assert message in cli(*command.replace("ARCH", "outside.json").split()).error()


def test_score(cli: Cli, arch: Path) -> None:
    (row,) = cli("score", arch, "--proxy", "dss,params,snip:params=linear", "--seed", 3, *SMALL, "--json").json()
    assert row["arch"] == MICRO and row["errors"] == {} and row["seed"] == 3 and row["weights"] == "fresh"
    expected = vitsearch.score(MICRO, "dss", geometry=Geometry(image_size=32, classes=10), seed=3)[0].scores["dss"]
    assert row["scores"]["dss"] == expected
    assert set(row["scores"]) == {"dss", "params", "snip:params=linear"}
    assert "dss" in cli("score", arch, *SMALL).out


def test_score_of_timm_models(cli: Cli, arch: Path) -> None:
    names = ("--timm", "vit_tiny_patch16_224", "--timm", "resnet18", "--proxy", "dss,params,macs", "--classes", "10")
    ours, transformer, network = cli("score", arch, *names, "--image-size", "64", "--json").json()
    assert ours["arch"] == MICRO
    assert transformer["arch"] == {"timm": "vit_tiny_patch16_224"} and set(transformer["scores"]) == {
        "dss",
        "params",
        "macs",
    }
    assert transformer["scores"]["params"] == sum(
        p.numel() for p in timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=64).parameters()
    )
    assert "not defined for resnet18" in network["errors"]["dss"] and network["scores"]["params"] > 1e7


def test_score_on_digits_has_their_classes(cli: Cli, arch: Path) -> None:
    (row,) = cli("score", arch, "--proxy", "snip,params", "--data", "digits", "--image-size", 32, "--json").json()
    assert row["scores"]["params"] == cost_of(MICRO, Geometry(image_size=32, classes=10)).params


def test_search(cli: Cli, tmp_path: Path) -> None:
    options = ("--strategy", "random", "--objective", "dss", "--trials", 5, "--seed", 1, *SMALL, "--json")
    found = cli("search", "autoformer-micro", *options, "--out", tmp_path / "run").json()
    lines = [json.loads(line) for line in (tmp_path / "run" / "trials.jsonl").read_text().splitlines()]
    assert [list(line) for line in lines] == [["number", "settings", "measured", "error", "seconds"]] * 5
    best = max(lines, key=lambda line: line["measured"]["dss"])
    shown = {key: best[key] for key in ("number", "settings", "measured")}
    assert found == {
        "study": str(tmp_path / "run"),
        "trials": 5,
        "stopped": "reached 5 trials",
        "best": shown,
        "front": [shown],
    }
    again = cli("search", "autoformer-micro", *options, "--out", tmp_path / "run", "--resume").json()
    assert again == found
    assert "must not exist yet" in cli("search", "autoformer-micro", *options, "--out", tmp_path / "run").error()


def test_search_prints_what_it_found_and_where(cli: Cli, tmp_path: Path) -> None:
    ran = cli("search", "autoformer-micro", "--objective", "params", "--trials", 3, *SMALL, "--out", tmp_path / "run")
    assert f"the study is in {tmp_path / 'run'}" in ran.out and "#best --format timm" in ran.out


def test_trials_of_a_study_bring_their_input_size_and_seed(cli: Cli, study: Path, tmp_path: Path) -> None:
    trial = json.loads((study / "trials.jsonl").read_text().splitlines()[3])
    assert cli("cost", f"{study}#3", "--json").json()["params"] == trial["measured"]["params"]
    (row,) = cli("score", f"{study}#3", "--proxy", "dss", "--json").json()
    assert row["scores"]["dss"] == trial["measured"]["dss"] and row["seed"] == 2
    done = cli("export", f"{study}#best", "--format", "timm", "--out", tmp_path / "best", "--json").json()
    assert done["seed"] == 2 and (done["image_size"], done["classes"]) == (32, 10) and done["max_difference"] == 0
    again = cli("export", tmp_path / "best", "--out", tmp_path / "again")
    assert "untrained (seed 2)" in again.out  # as its folder says
    network = timm.create_model(f"local-dir:{tmp_path / 'best'}", pretrained=True).eval()
    expected = build(decode(done["settings"]), Geometry(image_size=32, classes=10), seed=2)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(network(x), expected(x))
    other = cli("export", f"{study}#2", "--out", tmp_path / "other", "--image-size", 48, "--classes", 4)
    assert other.code == 0 and "untrained" in other.out
    assert timm.create_model(f"local-dir:{tmp_path / 'other'}", pretrained=True)(torch.zeros(1, 3, 48, 48)).shape == (
        1,
        4,
    )


def test_trials_that_are_not_there_are_named(cli: Cli, study: Path) -> None:
    for name in ("6", "-1", "", "best ", "\u00b2", "\u0663", "9" * 200):
        message = cli("cost", f"{study}#{name}").error()
        assert "must be 'best' or a number (0 to 5), but got" in message and "9" * 99 not in message


def test_a_study_on_shared_weights_is_scored_on_them_again(cli: Cli, tmp_path: Path) -> None:
    options = (
        "--objective",
        "dss",
        "--weights",
        "shared",
        "--memory",
        "1G",
        "--trials",
        3,
        "--out",
        tmp_path / "run",
        *SMALL,
    )
    assert cli("search", "autoformer-micro", *options).code == 0
    trial = json.loads((tmp_path / "run" / "trials.jsonl").read_text().splitlines()[1])
    (again,) = cli("score", f"{tmp_path / 'run'}#1", "--json").json()
    assert again["weights"] == "shared" and again["scores"]["dss"] == pytest.approx(trial["measured"]["dss"], rel=1e-5)
    exported = cli("export", f"{tmp_path / 'run'}#best", "--out", tmp_path / "best", "--json")
    assert exported.code == 0 and "fresh initial weights" in exported.err
    (fresh,) = cli("score", f"{tmp_path / 'run'}#1", "--weights", "fresh", "--json").json()
    assert fresh["scores"]["dss"] != pytest.approx(again["scores"]["dss"], rel=1e-3)


def test_all_trials_failing_is_said(cli: Cli, tmp_path: Path) -> None:
    plugin = tmp_path / "hopeless.py"
    plugin.write_text(
        "from vitsearch.proxies import proxy\n"
        "@proxy('hopeless', paper='none')\n"
        "def hopeless(subject):\n    raise RuntimeError('no luck')\n"
    )
    options = ("--objective", "hopeless", "--trials", 2, *SMALL, "--json", "--plugin", plugin)
    ran = cli("search", "autoformer-micro", *options, "--out", tmp_path / "run")
    assert ran.code == 1 and json.loads(ran.out)["best"] is None
    assert "all 2 trials failed; the first: RuntimeError: no luck" in ran.err
    recorded = json.loads((tmp_path / "run" / "study.json").read_text())["environments"][0]["plugins"]
    assert [entry["file"] for entry in recorded if "file" in entry].count("hopeless.py") == 1
    assert "has no best trial" in cli("cost", f"{tmp_path / 'run'}#best").error()


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown command": (("serch",), "No such command 'serch'. Did you mean 'search'"),
    "unknown option": (("sample", "pit", "--mx-params", "6M"), "--max-params"),
    "unknown space": (("spaces", "pitt"), "no space named 'pitt'. Did you mean 'pit'?"),
    "unknown space of sample": (("sample", "autoformer-tinny"), "Did you mean 'autoformer-tiny'?"),
    "missing argument": (("sample",), "SPACE"),
    "missing out": (("search", "pit"), "--out"),
    "bad number": (("sample", "pit", "-n", "many"), "many"),
    "negative count": (("sample", "pit", "-n", "-3"), "`count` must be a whole number from 0 to 16777216, but got -3"),
    "huge count": (
        ("sample", "pit", "-n", "9" * 20),
        "`count` must be a whole number from 0 to 16777216, but got 9999",
    ),
    "bad quantity": (("sample", "pit", "--max-params", "6X"), "`--max-params` must be a positive whole number such as"),
    "fraction of a parameter": (("sample", "pit", "--max-params", "0.5"), "but got '0.5'"),
    "not a number": (("sample", "pit", "--max-macs", "nan"), "`--max-macs` must be"),
    "infinite": (("sample", "pit", "--max-macs", "inf"), "`--max-macs` must be"),
    "negative limit": (("sample", "pit", "--min-params", "-5M"), "`--min-params` must be"),
    "crossed limits": (("sample", "pit", "--min-params", "6M", "--max-params", "5M"), "`min_params` <= `max_params`"),
    "nothing fits": (("sample", "autoformer-tiny", "--max-params", "1M"), "the nearest has params=5366056"),
    "zero image": (("sample", "pit", "--image-size", "0"), "`image_size` must be a whole number"),
    "small image": (
        ("sample", "pit", "--image-size", "9"),
        "`image_size` must be at least the patch size 16, but got 9",
    ),
    "zero patch": (("sample", "pit", "--patch-size", "0"), "`patch_size` must be a whole number"),
    "missing file": (("cost", "nowhere.json"), "nowhere.json"),
    "folder": (("cost", "."), "trained or exported network, but got the folder '.'"),
    "no study": (("cost", "nowhere#best"), "nowhere is not a study"),
    "no networks": (("score",), "`score` needs an ARCH or --timm MODEL"),
    "unknown proxy": (("score", "--timm", "resnet18", "--proxy", "dsss"), "no proxy named 'dsss'. Did you mean 'dss'?"),
    "empty proxy": (("score", "--timm", "resnet18", "--proxy", ""), "no proxy named ''"),
    "unknown timm model": (("score", "--timm", "resnet19"), "no timm model named 'resnet19'. Did you mean"),
    "unknown data": (("score", "--timm", "resnet18", "--data", "mnist"), "no dataset named 'mnist'"),
    "unknown device": (
        ("score", "--timm", "resnet18", "--device", "tpu"),
        "`device` must be one of auto, cpu, cuda, mps",
    ),
    "unknown strategy": (("search", "pit", "--strategy", "magic", "--out", "x"), "no strategy named 'magic'"),
    "option of another space": (
        ("search", "vitas-block", "--strategy", "nsga2:identity=0.3", "--objective", "params", "--out", "x"),
        "option `identity` of strategy 'nsga2' must be of a space whose slots may be empty",
    ),
    "unknown objective": (("search", "pit", "--objective", "min:dsss", "--out", "x"), "no proxy named 'dsss'"),
    "the same objective twice": (
        ("search", "pit", "--objective", "dss,min:dss", "--out", "x"),
        "`objectives` must be different, but got 'dss,dss'",
    ),
    "no trials": (
        ("search", "pit", "--trials", "0", "--out", "x"),
        "`trials` must be a whole number from 1 to 1099511627776, but got 0",
    ),
    "bad seed": (("search", "pit", "--seed", "-1", "--out", "x"), "`seed` must be a whole number from 0 to"),
    "out in a file": (("search", "pit", "--out", "/dev/null/run", "--objective", "params"), "/dev/null"),
    "unknown weights": (("search", "pit", "--weights", "old", "--out", "x"), "`weights` must be one of fresh, shared"),
    "no memory": (("search", "pit", "--memory", "0", "--out", "x"), "`--memory` must be a positive whole number"),
    "bad format": (
        ("export", "x.json", "--format", "onx", "--out", "y"),
        "`--format` must be one of timm, onnx, torch, but got 'onx'",
    ),
    "no patch": (("search", "pit", "--patch-size", "0", "--out", "x"), "`patch_size` must be a whole number from 1"),
    "huge quantity": (("sample", "pit", "--max-params", "1e999999M"), "`--max-params` must be"),
    "bad sample seed": (("sample", "pit", "--seed", "-1"), "`seed` must be a whole number from 0"),
    "empty space": (("spaces", ""), "no space named ''"),
    "bad timm tag": (
        ("score", "--timm", "vit_tiny_patch16_224.nope"),
        "no timm model named 'vit_tiny_patch16_224.nope'",
    ),
    "our own name": (("score", "--timm", "vitsearch_net"), "no timm model named 'vitsearch_net'"),
    "huge batch": (
        ("score", "--timm", "resnet18", "--batch-size", "99999999999"),
        "`batch_size` must be a whole number",
    ),
    "memory": (("sample", "/proc/self/mem"), "no space named '/proc/self/mem'"),
    "unreadable": (("cost", "/proc/self/mem"), "`ARCH` must be a file that can be read, but got '/proc/self/mem'"),
    "bad plugin": (("--plugin", "nowhere.py", "spaces"), "`--plugin` must be an existing .py file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    cli: Cli, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = BAD[case]
    assert message in cli(*arguments).error()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "entry 0: an architecture must be a JSON object of settings, but got 1"),
        ("null", "an architecture must be a JSON object"),
        ('{"space": "pit"}', "settings of pit need `base_dim`; it is missing"),
        ('{"space": 3}', "settings need `space`, the name of a space, but got 3"),
        ('{"space": "\\ud800"}', "no space named"),
        (json.dumps(MICRO | {"depth": 10**400}), "`depth` must be a whole number"),
        (json.dumps([MICRO, MICRO | {"num_heads": [2]}]), "entry 1: `num_heads` must have `depth` = 2 entries"),
    ],
)
def test_bad_architectures_are_named(cli: Cli, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "arch.json"
    path.write_text(content)
    for command in (("cost", path), ("score", path), ("export", path, "--out", tmp_path / "out")):
        error = cli(*command).error()
        assert message in error or "must hold one architecture" in error
        assert "arch.json" in error
    assert not (tmp_path / "out").exists()


def test_export_takes_exactly_one(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text(json.dumps([MICRO, MICRO]))
    assert "must hold one architecture here, but got 2" in cli("export", tmp_path / "two.json", "--out", "x").error()


def test_a_study_in_use_is_refused(cli: Cli, study: Path) -> None:
    from vitsearch.records import Journal

    arguments = ("--objective", "dss,min:params", "--trials", 9, "--seed", 2, "--out", study, *SMALL, "--resume")
    with Journal(study / "trials.jsonl"):
        assert "is being written by another process" in cli("search", "autoformer-micro", *arguments).error()
    assert cli("search", "autoformer-micro", *arguments).code == 0


@pytest.mark.parametrize(
    "command",
    [
        ("search", "autoformer-micro", "--objective", "params"),
        ("search", "autoformer-micro", "--strategy", "prenas", "--budgets", "1M", "--device", "cpu", *SMALL),
        ("evolve-space", "s3-initial", "--objective", "params"),
    ],
    ids=["search", "prenas", "evolve-space"],
)
def test_resuming_a_study_of_another_kind_leaves_it_as_it_was(cli: Cli, tmp_path: Path, command: Any) -> None:
    (tmp_path / "study.json").write_text('{"format": 1, "kind": "train"}')
    error = cli(*command, "--out", tmp_path, "--resume").error()
    kind = command[0]
    assert f"study.json must have kind '{kind}', but got 'train'" in error
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]


@pytest.mark.parametrize("command", [("train", "--timm", "test_vit"), ("supernet", "train", "autoformer-micro")])
def test_a_training_of_another_plan_is_refused_in_one_line(cli: Cli, tmp_path: Path, command: Any) -> None:
    """Before images are decoded, which is said in a line of its own."""
    (tmp_path / "study.json").write_text('{"format": 1, "kind": "search"}')
    error = cli(*command, "--recipe", "quick", "--image-size", 160, "--out", tmp_path, "--resume").error()
    assert "study.json must have format 1 and kind 'train' or 'supernet'" in error
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]


def test_global_options_stand_anywhere(cli: Cli, tmp_path: Path) -> None:
    plugin = tmp_path / "extra.py"
    plugin.write_text(
        "from vitsearch.spaces import SPACES\n"
        "from vitsearch.spaces.isotropic import Isotropic\n"
        "SPACES.add('extra', Isotropic(name='extra', description='d', paper='p', embed_dim=(16,), depth=(1,),\n"
        "    num_heads=(1,), mlp_ratio=(1.0,), head_dim=8))\n"
    )
    assert cli("spaces", "extra", "--json", "--plugin", plugin).json()["size"] == 1
    assert cli("--plugin", plugin, "sample", "extra", "--json", "-q").json()[0]["embed_dim"] == 16
    assert cli("spaces", "pit", "--json", "-vvv").json() == cli("spaces", "pit", "-qv", "--json").json()


def test_interrupted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """--resume is named where there is one."""

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.Typer.__call__", interrupt)
    for words in (("search", "pit", "--out", "x"), ("supernet", "train", "pit", "--out", "x")):
        assert cli(*words).err.endswith("whatever was written is safe, and --resume goes on from it\n")
    for words in (("serve", "x"), ("supernet", "eval", "x"), ("bench", "fit"), ()):
        ran = cli(*words)
        assert ran.code == 130 and ran.err == "vitsearch: interrupted; whatever was written is safe\n"


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version").out.startswith(f"vitsearch {vitsearch.__version__}, torch {torch.__version__}, timm ")
    for command in ("spaces", "proxies", "sample", "cost", "score", "search", "export"):
        assert command in cli("--help").out
        assert "--json" in cli(command, "--help").out


def test_without_a_command_there_is_help(cli: Cli) -> None:
    ran = cli()
    assert ran.code == 0 and ran.err == "" and ran.out.startswith("Usage: vitsearch")


def run_process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "vitsearch", *arguments], capture_output=True, text=True, **options)


def test_as_a_process() -> None:
    assert run_process("spaces", "pit", "--json").returncode == 0
    failed = run_process("spaces", "pot")
    assert failed.returncode == 2 and failed.stdout == "" and failed.stderr.count("\n") == 1
    environment = os.environ | {"_VITSEARCH_COMPLETE": "complete_bash", "COMP_WORDS": "vitsearch spaces autoformer-mi"}
    completed = run_process(
        env=environment | {"COMP_CWORD": "2", "_TYPER_COMPLETE_ARGS": "vitsearch spaces autoformer-mi"}
    )
    assert "autoformer-micro" in completed.stdout
    reader = subprocess.run(
        f"{sys.executable} -m vitsearch sample pit -n 3000 | head -n 1", shell=True, capture_output=True, text=True
    )
    assert reader.stderr == "" and reader.stdout.count("\n") == 1


def test_a_full_disk_and_closed_streams_are_one_line(arch: Path, tmp_path: Path) -> None:
    """Real limits: a file size the kernel refuses, streams that are not there."""
    ours = f"{sys.executable} -m vitsearch"
    cases = {
        f"ulimit -f 100; {ours} export {arch} --image-size 32 --out {tmp_path}/new/best": "model.safetensors",
        f"ulimit -f 0; {ours} search pit --objective params --out {tmp_path}/new/run": "study.json",
        f"{ours} cost - <&-": "standard input is closed",
    }
    for command, message in cases.items():
        ran = subprocess.run(command, shell=True, capture_output=True, text=True)
        assert ran.returncode == 2 and ran.stderr.count("\n") == 1 and message in ran.stderr, ran.stderr
        assert ran.stderr.startswith("vitsearch: error: ")
        assert [path.name for path in tmp_path.iterdir()] == ["arch.json"]
    assert subprocess.run(f"{ours} spaces --json >&-", shell=True).returncode == 0
    for unheard in ("2>&-", "2>/dev/full"):  # the code still says it, and stdout stays clean
        ran = subprocess.run(f"{ours} spaces pot {unheard}", shell=True, capture_output=True, text=True)
        assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", "")
    read = f"{ours} sample autoformer-tiny -n 2000 --json | head -c 1; exit ${{PIPESTATUS[0]}}"  # who reads has left
    ran = subprocess.run(["bash", "-c", read], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[", "")


def test_ctrl_c_while_modules_load_is_one_line() -> None:
    """The import of `bench_command` is one that no command has begun before."""
    code = """
import os, runpy, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "vitsearch.bench_command":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
runpy.run_module("vitsearch", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "") and done.stderr == "vitsearch: interrupted before it began\n"
