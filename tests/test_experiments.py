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
