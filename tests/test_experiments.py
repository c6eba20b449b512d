"""Experiments that need a GPU and hours run here on a CPU for seconds, on embedded data."""

from __future__ import annotations

import importlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitsearch.cost import Geometry
from vitsearch.data import open_training_data
from vitsearch.errors import VitsearchError
from vitsearch.methods.space_study import read_evolution
from vitsearch.spaces import SPACES
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import RECIPES, change
from vitsearch.training.run import Machine, train_network

EXPERIMENTS = Path(__file__).parent.parent / "experiments"


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    return importlib.import_module


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small one in the place of ResNet-56."""
    folder = tmp_path_factory.mktemp("taught") / "teacher"
    recipe = change(RECIPES["quick"], {"epochs": "1", "image_size": "16"})
    plan = TrainingPlan(timm="test_resnet", geometry=Geometry(image_size=16, classes=10), data="digits", recipe=recipe)
    train_network(plan, folder, machine=Machine(device="cpu"))
    return str(folder)


def test_the_analysis_of_prenas(tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    shown = experiments("result_tables").prenas_analysis(found)
    assert "digits, 1 epochs" in shown[0] and shown[4].startswith("| ratios |") and "C): A " in shown[-1]
    assert found["command"].startswith("python experiments/prenas_analysis.py --supernet supernet --name smoke")


def test_a_device_beside_the_definitions(tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script = experiments("device_agreement")
    monkeypatch.setattr(script, "SCORED", {"pit": 32})
    monkeypatch.setattr(script, "TRAINED", {"autoformer-micro": (16, 8)})
    options = ["--device", "cpu", "--networks", "2", "--commit", "none", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["device_agreement.py", *options])
    for bound, code in ((1e-4, 0), (1e-17, 1)):
        monkeypatch.setattr(script, "CLOSE", bound)
        with pytest.raises(SystemExit) as ended:
            script.main()
        assert ended.value.code == code
    scored, trained = json.loads((tmp_path / "device_agreement-cpu.json").read_text())["rows"]
    assert not scored["close"] and 0 < max(scored["errors"].values()) < 1e-4
    assert trained["close"] and 1e-3 < trained["errors"]["definition"] < 0.1  # what bfloat16 costs


def test_supernets_beside_networks_by_themselves(
    tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = experiments("supernet_agreement")
    options = ["--spaces", "autoformer-micro", "--networks", "3", "--commit", "none", "--device", "cpu"]
    monkeypatch.setattr("sys.argv", ["supernet_agreement.py", *options, "--out", str(tmp_path)])
    for close, code in ((1e-5, 0), (-1.0, 1)):
        monkeypatch.setattr(script, "CLOSE", close)
        with pytest.raises(SystemExit) as ended:
            script.main()
        assert ended.value.code == code
    (row,) = json.loads((tmp_path / "supernet_agreement.json").read_text())["rows"]
    assert (row["space"], row["networks"]) == ("autoformer-micro", 3)


def test_picks_compared_with_published_ones(experiments: Any) -> None:
    script = experiments("prenas_published")
    one = {"embed_dim": 8, "depth": 4, "num_heads": [3, 3, 4, 4], "mlp_ratio": [4.0] * 4}
    swapped, other = one | {"num_heads": [4, 4, 3, 3]}, one | {"depth": 3, "num_heads": [3] * 3, "mlp_ratio": [4.0] * 3}
    row = {"budget": 5, "picks": [one, one, swapped, other], "together": one, "published": one}
    found = script.finish(row | {"halves_heads": 0.5, "halves_ratios": None})
    assert (found["same_size"], found["identical"], found["most_seeds_count"]) == (3, 2, 3)
    assert found["agreement_heads"] == pytest.approx((1 + 1 - 1) / 3) and found["agreement_ratios"] is None
    assert found["between_seeds_heads"] == pytest.approx((1 - 1 - 1) / 3)


def draws(experiments: Any, results: Path, name: str) -> None:
    (drawn,) = experiments("result_figures").draw(results, results)
    assert drawn.name == name and drawn.stat().st_size > 10_000


def run_script(experiments: Any, monkeypatch: pytest.MonkeyPatch, name: str, work: Path, *options: str) -> Any:
    common = ["--data", "digits", "--space", "autoformer-micro", "--image-size", "16", "--patch-size", "8"]
    common += ["--recipe", "quick", "--set", "epochs=1", "--draws", "2", "--device", "cpu", "--commit", "none"]
    common += [] if "--teacher" in options else ["--guidance", "none"]
    monkeypatch.setattr("sys.argv", [name, *common, "--work", str(work), "--out", str(work / "results"), *options])
    experiments(name).main()
    return json.loads((work / "results" / f"{name}.json").read_text())


def test_preferred_against_redundant_training(
    tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch, teacher: str
) -> None:
    options = ["--budgets", "35k,55k", "--seeds", "2", "--teacher", teacher]
    found = run_script(experiments, monkeypatch, "prenas_training", tmp_path, *options)
    assert [row["budget"] for row in found["rows"]] == [35_000, 55_000]
    for row in found["rows"]:
        balanced, redundant = row["top1"]["balanced"], row["top1"]["redundant"]
        expected = sum(one - other for one, other in zip(balanced, redundant, strict=True)) / 2
        assert row["balanced_minus_redundant"]["mean"] == pytest.approx(expected) and row["counts"] is False
    draws(experiments, tmp_path / "results", "prenas_training.svg")
    means = [sum(row["top1"]["balanced"][seed] for row in found["rows"]) / 2 for seed in (0, 1)]
    assert found["mean"]["top1"]["balanced"] == pytest.approx(means)
    lines = experiments("result_tables").prenas_training(found)
    first = f"{found['rows'][0]['top1']['balanced'][0]:.2f} / {found['rows'][0]['top1']['balanced'][1]:.2f}"
    assert len(lines) == 5 and first in lines[2] and lines[2].endswith("| no |")
    again = run_script(experiments, monkeypatch, "prenas_training", tmp_path, *options)  # finished runs are read
    assert again["rows"] == found["rows"]


def test_networks_of_one_size_from_scratch(tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--budget", "55k", "--seeds", "1", "--random", "1", "--trials", "3"]
    found = run_script(experiments, monkeypatch, "prenas_from_scratch", tmp_path, *options)
    assert [row["name"] for row in found["rows"]] == ["prenas", "snip", "dss", "random-0"]
    assert all(0 <= row["mean"] <= 100 and row["params"] < 55_000 for row in found["rows"])
    shown = experiments("result_tables").prenas_from_scratch(found)
    assert len(shown) == 6 and "one seed: no statement" in shown[-1]
    sizes = [row["params"] for row in found["rows"] if row["name"] != "snip"]
    assert max(sizes) <= 1.02 * min(sizes)


def test_the_supernet_experiment_goes_on_where_it_stopped(
    tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--data", "digits", "--space", "autoformer-micro", "--image-size", "16", "--patch-size", "8"]
    options += ["--supernet-epochs", "1", "--supernet-batch", "128", "--trials", "4", "--budget", "0.06"]
    options += ["--range", "0.05", "0.06", "--random", "1", "--spread", "3", "--seeds", "2", "--at-once", "1"]
    options += ["--set", "epochs=1", "--set", "batch_size=128", "--device", "cpu", "--commit", "none"]
    options += ["--work", str(tmp_path / "work"), "--out", str(tmp_path), "--guidance", "none"]
    module = experiments("cifar10_supernet")
    for minutes in ("0", "10"):
        monkeypatch.setattr("sys.argv", ["cifar10_supernet.py", *options, "--minutes", minutes])
        module.main()
        found = json.loads((tmp_path / "cifar10_supernet.json").read_text())
        assert found["complete"] == (minutes == "10")
    monkeypatch.setattr("sys.argv", ["cifar10_supernet.py", *options, "--set", "learning_rate=1"])
    with pytest.raises(VitsearchError, match="was made with another recipe: give another --out"):
        module.main()  # rows of two recipes are no comparison
    names = ["winner", "largest", "random-0", "spread-0", "spread-1", "spread-2"]
    assert sorted(found["networks"]) == sorted(names) == sorted(found["inherited_validation_top1"])
    expected = {(name, seed) for name in names for seed in (0, 1)} - {("random-0", 1)}  # their mean is over many
    assert {(row["name"], row["seed"]) for row in found["retrained"]} == expected
    reached = {name: [row["test_top1"] for row in found["retrained"] if row["name"] == name] for name in names}
    means = {name: sum(values) / len(values) for name, values in reached.items()}
    squares = [(value - means[name]) ** 2 for name, values in reached.items() for value in values]
    assert found["reading"]["seed_spread"] == pytest.approx((sum(squares) / 5) ** 0.5)  # five have two seeds
    apart = found["reading"]["winner"]["minus_random"]
    assert apart["mean"] == pytest.approx(means["winner"] - means["random-0"])
    assert not found["reading"]["trained_enough"]
    text = "\n".join(experiments("result_tables").cifar10_supernet(found))
    assert f"of 1 random networks of its size; less their mean {apart['mean']:+.2f} (" in text
    assert all(f"| {name} |" in text for name in names)
    draws(experiments, tmp_path, "cifar10_supernet.svg")


@given(
    ours=st.lists(st.floats(80, 90), min_size=1, max_size=4),
    others=st.lists(st.floats(80, 90), min_size=1, max_size=4),
)
def test_a_difference_is_student_s(ours: list[float], others: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXPERIMENTS))
        readings = importlib.import_module("readings")
    noise = readings.between_seeds([ours, others])
    found, swapped = readings.difference(ours, others, noise), readings.difference(others, ours, noise)
    assert found["mean"] == pytest.approx(sum(ours) / len(ours) - sum(others) / len(others), abs=1e-9)
    if len(ours) == len(others) == 1:
        assert found["reading"] == "one seed: no statement"
        return
    low, high = found["interval"]
    assert [-high, -low] == pytest.approx(swapped["interval"])
    if found["deviation"] > 1e-6:
        probability = stats.ttest_ind(ours, others).pvalue
        assert (low > 0 or high < 0) == (probability < 0.05) or probability == pytest.approx(0.05, abs=1e-6)
    clear = (low > 0 or high < 0) and abs(found["mean"]) > found["deviation"]
    assert (found["reading"] != "not distinguishable") == clear
    if clear:
        assert {found["reading"], swapped["reading"]} == {"better", "worse"}
        assert readings.difference(ours, others, noise, higher_is_better=False)["reading"] == swapped["reading"]


def run_vitas(experiments: Any, monkeypatch: pytest.MonkeyPatch, name: str, work: Path, *options: str) -> Any:
    common = ["--data", "digits", "--space", "vitas-micro", "--image-size", "16", "--patch-sizes", "4", "8"]
    common += ["--recipe", "quick", "--set", "epochs=1", "--retrain", "quick", "--set-retrain", "epochs=1"]
    common += ["--population", "3", "--generations", "2", "--images", "50", "--device", "cpu", "--commit", "none"]
    monkeypatch.setattr("sys.argv", [name, *common, "--work", str(work), "--out", str(work / "results"), *options])
    experiments(name).main()
    return json.loads((work / "results" / f"{name}.json").read_text())


def test_what_a_super_transformer_shares(
    tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch, teacher: str
) -> None:
    options = ["--baseline", "16", "2", "3", "--seeds", "1", "--scales", "1.0", "1.25", "--rows", "0", "1", "7"]
    options += ["--teacher", teacher]
    found = run_vitas(experiments, monkeypatch, "vitas_table2", tmp_path, *options)
    assert [(row["row"], row["budget"]) for row in found["rows"]] == [
        (row, budget) for budget in found["budgets"] for row in (0, 1, 7)
    ]
    assert len(found["cells"]) == 2 + 1 + 2  # the second row has one supernet for both budgets
    for row in found["rows"]:
        assert len(row["runs"]) == 1 and row["runs"][0]["macs"] <= row["budget"]
        assert row["row"] == 0 or row["runs"][0]["macs"] >= 0.9 * row["budget"]
    rows = {row["row"]: row for row in found["rows"]}
    assert "inherited_top1" not in rows[0]
    expected = rows[7]["runs"][0]["retrained_top1"] - rows[1]["runs"][0]["retrained_top1"]
    difference = rows[1]["retrained_top1_of_row_7_minus_this"]
    assert difference["mean"] == pytest.approx(expected) and difference["reading"] == "one seed: no statement"
    assert rows[1]["runs"][0]["settings"]["num_heads"] == [2, 2, 2]
    shown = experiments("result_tables").vitas_table2(found)
    assert "6 networks" in shown[0] and len(shown) == 2 + 2 + len(found["rows"])


def test_strong_and_weak_augmentation(tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--budget", "150k", "--seeds", "1", "--rows", "6", "0", "--guidance", "none"]
    found = run_vitas(experiments, monkeypatch, "vitas_table3", tmp_path, *options)
    assert [row["row"] for row in found["rows"]] == [6, 0]
    strong = found["rows"][1]["recipe"]
    plain = experiments("vitas_table3").recipes(RECIPES["vitas-weak"])[8].to_json()
    assert strong["augmentation"]["rand_augment"] and strong["drop_path"] == 0.1 and strong["mixup"] == 0.8
    assert plain["augmentation"]["erase"] == plain["cutmix"] == plain["mixup"] == 0
    assert found["rows"][1]["inherited_top1_minus_row_6"]["deviation"] is None
    assert len(experiments("result_tables").vitas_table3(found)) == 4
    studies = [str(folder) for folder in sorted(tmp_path.glob("search-*"))]
    monkeypatch.setattr(
        "sys.argv", ["search_speed.py", *studies, "--beside", "2", "--commit", "x", "--out", str(tmp_path)]
    )
    experiments("search_speed").main()
    speed = json.loads((tmp_path / "search_speed.json").read_text())
    assert [(row["networks"], row["images"]) for row in speed["searches"]] == [(6, 50), (6, 50)]
    shown = experiments("result_tables").search_speed(speed)
    fastest = max(row["images_per_second"] for row in speed["searches"])
    assert shown[0].startswith("2 searches, 2 at the same time") and f"{fastest:,} images/s" in shown[0]


def test_figures_of_vitas(tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    space = SPACES["vitas-micro"].with_patch_size((4, 8))
    plan = TrainingPlan(
        space={"name": space.name, "fixed": space.fixed()},
        subnets="identity",
        geometry=Geometry(image_size=16, classes=10),
        data="digits",
        recipe=change(RECIPES["quick"], {"epochs": "1", "image_size": "16"}),
    )
    train_network(plan, tmp_path / "supernet", machine=Machine(device="cpu"))
    network = {"space": "vitas-micro", "patch_size": 4, "embed_dim": 16, "num_heads": [0, 2, 0, 4]}
    network |= {"attention_ratio": [None, 0.5, None, 1.0], "mlp_ratio": [None, 1.0, None, 0.5]}
    (tmp_path / "network.json").write_text(json.dumps(network))
    options = ["--networks", str(tmp_path / "network.json"), "--supernet", *2 * [str(tmp_path / "supernet")]]
    options += ["--images", "2", "--measured", "8", "--device", "cpu", "--commit", "none", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["vitas_figures.py", *options])
    experiments("vitas_figures").main()
    found = json.loads((tmp_path / "vitas_figures.json").read_text())
    assert found["images"] == 8
    assert found["figure3"] == [{"heads": [2, 4], "ratios": [0.5, 0.5, 1.0, 1.0, 0.5]}]
    other, *alike = found["figure4"]
    assert other["heads"] == [2, 4] and all(0 < distance < 1 for apart in other["apart"] for distance in apart)
    assert alike == [{"heads": [heads, heads], "apart": [[0.0, 0.0]]} for heads in (2, 4)]  # the same supernet twice
    shown = experiments("result_tables").vitas_figures(found)
    assert "2 and 4 heads" in shown[-3] and f"{other['apart'][0][1]:.3f}" in shown[-3]
    assert all((tmp_path / f"vitas_figure{number}.svg").stat().st_size > 1000 for number in (3, 4))


def test_the_error_of_predicted_latency(tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--spaces", "autoformer-micro", "--image-size", "32", "--repeats", "3", "--networks", "3"]
    options += ["--held-out", "3", "--commit", "none", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["latency_error.py", *options])
    experiments("latency_error").main()
    found = json.loads((tmp_path / "latency-cpu-eager-threads1-batch1.json").read_text())
    (row,) = found["rows"]
    assert row["space"] == "autoformer-micro" and row["networks"] == len(row["held_out"]) == 3
    errors = sorted(abs(one["predicted_ms"] / one["measured_ms"] - 1) for one in row["held_out"])
    assert row["median"] == pytest.approx(errors[1]) and row["blocks"] == 8


def test_spaces_a_b_and_c_of_s3(tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    space = "s3-initial:depth=1+2/1/1/1,embed_dim=16+24/16/16/16,num_heads=1,mlp_ratio=1,window_size=2/2/2/1"
    options = ["--data", "digits", "--space", space, "--step", "embed_dim=8", "--most-steps", "1", "--image-size", "8"]
    options += ["--samples", "2", "--recipe", "quick", "--set", "epochs=1", "--set", "batch_size=256"]
    options += ["--retrain", "quick", "--set-retrain", "epochs=1", "--set-retrain", "batch_size=256", "--trials", "3"]
    options += ["--seeds", "1", "--guidance", "none", "--images", "50"]
    options += ["--max-macs", "10M", "--device", "cpu", "--commit", "none", "--iterations", "1"]
    monkeypatch.setattr("sys.argv", ["s3", *options, "--work", str(tmp_path), "--out", str(tmp_path / "results")])
    experiments("s3_cifar10").main()
    found = json.loads((tmp_path / "results" / "s3_cifar10.json").read_text())
    assert [row["space"] for row in found["summary"]] == ["A", "B"] and len(found["cells"][0]["moves"]) == 20
    first, second = found["cells"][0]["spaces"]
    assert found["summary"][1]["et_error_minus_before"]["mean"] == pytest.approx(second["error"] - first["error"])
    assert 0 <= first["best"]["retrained_top1"] <= 100 and len(first["errors"]) == 2
    drawn = read_evolution(tmp_path / "evolution-0").trials[: first["drawn"]]
    assert first["mean_macs"] == pytest.approx(fmean(trial.measured["macs"] for trial in drawn))
    for one in (first["supernet"], first["best"]):
        assert len(one["curve"]) == 1 and one["images_seen"] > 0 and one["seconds"] > 0
    shown = experiments("result_tables").s3_cifar10(found)
    assert f"{first['error']:.2f} (one seed)" in shown[2]
    moves = [move for move in found["cells"][0]["moves"] if move["choices"] != move["new_choices"]]
    assert sum(line.startswith("| A -> B") for line in shown) == len(moves)
    (drawn_there,) = experiments("result_figures").draw(tmp_path / "results", tmp_path)
    assert drawn_there.stat().st_size > 1000
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
    found = json.loads((tmp_path / "s3_inherited.json").read_text())
    rows, cells = found["rows"], found["cells"]
    assert len(rows) == 2 and all(0 <= row[name]["mean"] <= 100 for row in rows for name in ("tuned", "scratch"))
    looks = [sum(look["network"] == cell["network"] for look in found["attention"]) for cell in cells]
    assert looks == [sum(cell["settings"]["depth"]) for cell in cells]
    assert all(len(cell[f"{name}_run"]["curve"]) == 1 for cell in cells for name in ("tuned", "scratch"))
    shown = experiments("result_tables").s3_inherited(found)
    best = max(rows, key=lambda row: row["scratch"]["mean"])
    assert f"{best['inherited']:.2f}" in shown[2] and "Kendall" in shown[5]
    first = [look for look in found["attention"] if look["stage"] == 1]
    mean = sum(look["mean_distance"] for look in first) / len(first)
    assert shown[9] == f"| 1 | 2 | {len(first)} | {mean:.2f} | {fmean([look['similarity'] for look in first]):.2f} |"
    (drawn,) = experiments("result_figures").draw(tmp_path, tmp_path)
    assert drawn.stat().st_size > 1000
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*-0/*")}
    experiments("s3_inherited").main()  # asked again, without training
    assert json.loads((tmp_path / "s3_inherited.json").read_text())["attention"] == found["attention"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*-0/*")} == before


def test_one_bias_table_or_one_for_each_window(
    tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = "s3:depth=1,embed_dim=16/16/16/16,num_heads=1,mlp_ratio=1,window_size=2+4/2/2/1"
    options = ["--data", "digits", "--space", space, "--image-size", "8", "--recipe", "quick", "--set", "epochs=1"]
    options += ["--set", "batch_size=256", "--networks", "2", "--images", "50", "--seeds", "1", "--guidance", "none"]
    options += ["--device", "cpu", "--commit", "none", "--work", str(tmp_path), "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["s3_bias_tables.py", *options])
    experiments("s3_bias_tables").main()
    found = json.loads((tmp_path / "s3_bias_tables.json").read_text())
    top1 = {cell["tables"]: cell["top1"] for cell in found["cells"]}
    for row in found["summary"]:
        ours, theirs = (top1[tables][row["networks"]] for tables in ("interpolated", "separate"))
        assert row["interpolated_minus_separate"]["mean"] == pytest.approx(ours - theirs)
    assert len(experiments("result_tables").s3_bias_tables(found)) == 2 + 2 + 3


def test_a_cell_that_fails_loses_no_row_of_another(experiments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sittings = experiments("sittings")
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # as given, and as it was afterwards
    monkeypatch.setattr(sittings, "ProcessPoolExecutor", lambda count, mp_context: ThreadPoolExecutor(count))

    def work(cell: int) -> dict[str, int]:
        if cell == 1:
            raise ValueError("this one")
        return {"twice": 2 * cell}

    rows = {}
    with pytest.raises(ValueError, match="this one"):
        for name, row in sittings.in_time(work, {str(n): n for n in range(4)}, at_once=2, until=float("inf")):
            rows[name] = row
    assert rows == {str(n): {"twice": 2 * n} for n in (0, 2, 3)}


def test_a_page_without_a_place_for_its_table_is_an_error(
    tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = experiments("pages")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["some_tables.py"])
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "page.md"
    page.write_text("text\n<!-- made by experiments/some_tables.py -->\nold\n<!-- end -->\n")
    pages.put("page.md", "experiments/some_tables.py", "new")
    assert page.read_text() == "text\n<!-- made by experiments/some_tables.py -->\nnew\n<!-- end -->\n"
    monkeypatch.setattr("sys.argv", ["some_tables.py", "--check"])
    pages.put("page.md", "experiments/some_tables.py", "new")
    with pytest.raises(SystemExit, match="is not what the results say"):
        pages.put("page.md", "experiments/some_tables.py", "newer")
    with pytest.raises(SystemExit, match="has no place for what"):
        pages.put("page.md", "experiments/other_tables.py", "new")


def test_winners_are_read_beside_random_networks_and_the_most_parameters(
    tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accuracies that are made up: the same network has one row of them under all its names."""
    options = [
        "--data",
        "digits",
        "--image-size",
        "32",
        "--networks",
        "3",
        "--more",
        "4",
        "--random",
        "2",
        "--epochs",
        "1",
    ]
    options += [
        "--spaces",
        "pit",
        "--device",
        "cpu",
        "--commit",
        "now",
        "--work",
        str(tmp_path),
        "--out",
        str(tmp_path),
    ]
    monkeypatch.setattr("sys.argv", ["proxy_winners.py", *options, "--read-only"])
    script, path = experiments("proxy_winners"), tmp_path / "proxy_winners.json"
    script.main()
    first = json.loads(path.read_text())
    chosen = first["chosen"]["pit"]
    assert first["commit"] == "now"
    assert {row["name"] for row in first["rows"]} == set(chosen) >= {"params", "discovered-pit", "random-1"}
    assert not any(row["test_top1"] for row in first["rows"])
    params = {row["name"]: row["params"] for row in first["rows"]}
    assert params["params"] == max(params[name] for name in (*script.OTHERS, "discovered-pit"))  # of the same networks
    values = {"params": [70.0, 71.0], "random-0": [60.0, 62.0], "random-1": [64.0]}
    cells = [
        {"cell": f"{name} {seed}", "settings": chosen[name], "seed": seed, "test_top1": one}
        for name, each in values.items()
        for seed, one in enumerate(each)
    ]
    path.write_text(json.dumps(first | {"commit": "before", "cells": cells}))
    script.main()
    found = json.loads(path.read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert found["commit"] == "before"  # nothing ran
    assert rows["params"]["minus_random"]["mean"] == pytest.approx(70.5 - (61 + 64) / 2)
    assert rows["params"]["minus_random"]["deviation"] == pytest.approx(((0.5 + 2) / 2) ** 0.5)
    assert rows["random-1"]["minus_params"]["mean"] == pytest.approx(64 - 70.5)
    same = [name for name in chosen if chosen[name] == chosen["params"]]
    assert all("minus_params" not in rows[name] and rows[name]["test_top1"]["values"] == [70, 71] for name in same)
    assert "| params | " in "\n".join(experiments("result_tables").proxy_winners(found))
    draws(experiments, tmp_path, "proxy_winners.svg")


def test_a_command_names_spaces_whole_and_no_path_of_the_machine(
    experiments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = "s3-initial:depth=1+2,window_size=2+4/2+4/2/1"
    given = ["--data", "parquet:/srv/data/cifar10", "--space", space, "--work", "../runs/s3", "--commit", "abc"]
    monkeypatch.setattr("sys.argv", ["/home/somebody/experiments/s3_bias_tables.py", *given])
    expected = f"python experiments/s3_bias_tables.py --data parquet:cifar10 --space {space} --work s3"
    assert experiments("common").command_line() == expected


def test_images_stay_decoded(experiments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of a part are the very ones that the dataset gives."""
    decoded = experiments("decoded")
    dataset, plain = decoded.decoded("digits"), open_training_data("digits")
    assert decoded.decoded("digits") is dataset and dataset.part("test") is dataset.part("test")
    for name in ("name", "classes", "channels", "class_names", "mean", "std"):
        assert getattr(dataset, name) == getattr(plain, name)
    ours, theirs = dataset.part("validation"), plain.part("validation")
    first = [ours.read(index) for index in range(len(ours))]
    monkeypatch.setattr(ours.images, "read", None)
    assert len(ours) == len(theirs) and torch.equal(ours.labels, theirs.labels)
    assert all(torch.equal(ours.read(index), theirs.read(index)) for index in range(len(first)))
