"""Experiments that need a GPU and hours run here on a CPU for seconds, on embedded data."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from vitsearch.cost import Geometry
from vitsearch.spaces import SPACES
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import RECIPES, change
from vitsearch.training.run import Machine, train_network

EXPERIMENTS = Path(__file__).parent.parent / "experiments"


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    return importlib.import_module


def test_the_analysis_of_prenas(tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    space = SPACES["autoformer-micro"].with_patch_size(8)
    plan = TrainingPlan(
        space={"name": space.name, "fixed": space.fixed()},
        subnets="redundant",
        geometry=Geometry(image_size=16, classes=10),
        data="digits",
        recipe=change(RECIPES["quick"], {"epochs": "1", "image_size": "16"}),
    )
    train_network(plan, tmp_path / "supernet", machine=Machine(device="cpu"))
    options = ["--supernet", str(tmp_path / "supernet"), "--name", "smoke", "--per-group", "2", "--networks", "5"]
    options += ["--draws", "2", "--batch-size", "8", "--device", "cpu", "--commit", "none", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["prenas_analysis.py", *options])
    experiments("prenas_analysis").main()
    found = json.loads((tmp_path / "prenas_analysis-smoke.json").read_text())
    assert set(found["spaces"]) == {"A", "B", "C"} and len(found["spaces"]["A"]["errors"]) == 5
    assert len(found["growth"]["trained"]["snip_ratios"]) == 3
    for case in ("ratios", "heads"):
        assert found["cases"][case]["groups"] == [
            {"large": 1, "networks": 2, "span": pytest.approx(found["cases"][case]["groups"][0]["span"])}
        ]
        assert found["cases"][case]["mean_best_rank_normalised_trained"] in (0, 0.5, 1)
    assert (tmp_path / "prenas_analysis-smoke.svg").stat().st_size > 1000


def test_picks_compared_with_published_ones(experiments: Any) -> None:
    script = experiments("prenas_published")
    one = {"embed_dim": 8, "depth": 4, "num_heads": [3, 3, 4, 4], "mlp_ratio": [4.0] * 4}
    swapped, other = one | {"num_heads": [4, 4, 3, 3]}, one | {"depth": 3, "num_heads": [3] * 3, "mlp_ratio": [4.0] * 3}
    row = {"budget": 5, "picks": [one, one, swapped, other], "together": one, "published": one}
    found = script.finish(row | {"halves_heads": 0.5, "halves_ratios": None})
    assert (found["same_size"], found["identical"], found["most_seeds_count"]) == (3, 2, 3)
    assert found["agreement_heads"] == pytest.approx((1 + 1 - 1) / 3) and found["agreement_ratios"] is None
    assert found["between_seeds_heads"] == pytest.approx((1 - 1 - 1) / 3)


def run_script(experiments: Any, monkeypatch: pytest.MonkeyPatch, name: str, work: Path, *options: str) -> Any:
    common = ["--data", "digits", "--space", "autoformer-micro", "--image-size", "16", "--patch-size", "8"]
    common += ["--recipe", "quick", "--set", "epochs=1", "--draws", "2", "--device", "cpu", "--commit", "none"]
    monkeypatch.setattr("sys.argv", [name, *common, "--work", str(work), "--out", str(work / "results"), *options])
    experiments(name).main()
    return json.loads((work / "results" / f"{name}.json").read_text())


def test_preferred_against_redundant_training(
    tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--budgets", "35k,55k", "--seeds", "2"]
    found = run_script(experiments, monkeypatch, "prenas_training", tmp_path, *options)
    assert [row["budget"] for row in found["rows"]] == [35_000, 55_000]
    for row in found["rows"]:
        balanced, redundant = row["top1"]["balanced"], row["top1"]["redundant"]
        expected = sum(one - other for one, other in zip(balanced, redundant, strict=True)) / 2
        assert row["balanced_minus_redundant"]["mean"] == pytest.approx(expected) and row["counts"] is False
    again = run_script(experiments, monkeypatch, "prenas_training", tmp_path, *options)  # finished runs are read
    assert again["rows"] == found["rows"]


def test_networks_of_one_size_from_scratch(tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--budget", "55k", "--seeds", "1", "--random", "1", "--trials", "3"]
    found = run_script(experiments, monkeypatch, "prenas_from_scratch", tmp_path, *options)
    assert [row["name"] for row in found["rows"]] == ["prenas", "snip", "dss", "random-0"]
    assert all(0 <= row["mean"] <= 100 and row["params"] < 55_000 for row in found["rows"])
    sizes = [row["params"] for row in found["rows"] if row["name"] != "snip"]
    assert max(sizes) <= 1.02 * min(sizes)


def test_spaces_a_b_and_c_of_s3(tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    space = "s3-initial:depth=1+2/1/1/1,embed_dim=16+24/16/16/16,num_heads=1,mlp_ratio=1,window_size=2/2/2/1"
    options = ["--data", "digits", "--space", space, "--step", "embed_dim=8", "--most-steps", "1", "--image-size", "8"]
    options += ["--samples", "2", "--recipe", "quick", "--set", "epochs=1", "--set", "batch_size=256"]
    options += ["--retrain-set", "epochs=1", "--retrain-set", "batch_size=256", "--trials", "3", "--seeds", "1"]
    options += ["--max-macs", "10M", "--device", "cpu", "--commit", "none", "--iterations", "1"]
    monkeypatch.setattr("sys.argv", ["s3", *options, "--work", str(tmp_path), "--out", str(tmp_path / "results")])
    experiments("s3_cifar10").main()
    found = json.loads((tmp_path / "results" / "s3_cifar10.json").read_text())
    assert [row["space"] for row in found["summary"]] == ["A", "B"] and len(found["seeds"][0]["moves"]) == 20
    first, second = found["seeds"][0]["spaces"]
    assert found["summary"][1]["et_error_minus_before"]["mean"] == pytest.approx(second["error"] - first["error"])
    assert 0 <= first["best"]["retrained_top1"] <= 100 and len(first["errors"]) == 2
    assert all((tmp_path / "results" / f"s3_cifar10-{name}.svg").exists() for name in ("evolution", "depths", "spaces"))


def test_inherited_tuned_and_from_scratch(tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    space = SPACES["s3:depth=1+2/1/1/1,embed_dim=16+24,num_heads=2,mlp_ratio=1,window_size=2"]
    plan = TrainingPlan(
        space={"name": space.name, "fixed": {"patch_size": 2}},
        subnets="sandwich",
        geometry=Geometry(image_size=8, classes=10),
        data="digits",
        recipe=change(RECIPES["quick"], {"epochs": "1", "image_size": "8", "batch_size": "256"}),
    )
    train_network(plan, tmp_path / "supernet", machine=Machine(device="cpu"))
    options = ["--supernet", str(tmp_path / "supernet"), "--work", str(tmp_path), "--networks", "2", "--seeds", "1"]
    options += ["--attention", "--device", "cpu", "--commit", "none", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["s3_inherited.py", *options])
    experiments("s3_inherited").main()
    rows = json.loads((tmp_path / "s3_inherited.json").read_text())["rows"]
    assert len(rows) == 2 and all(0 <= row[name]["mean"] <= 100 for row in rows for name in ("tuned", "scratch"))
    assert all(len(row["attention"]) == sum(row["settings"]["depth"]) for row in rows)
