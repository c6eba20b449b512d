"""The supervised predictor, against a Gaussian process that is written out here, and in a search."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau, norm

from vitsearch.architecture import Settings
from vitsearch.benchmark import Column, Entry, Table, write_table
from vitsearch.cost import Geometry
from vitsearch.cross_validation import Measured, compare, fit_measured, held_out, read_measured
from vitsearch.errors import BadSettings, BadStudy, UnknownName, VitsearchError
from vitsearch.predictor import Predictor, Scaling, Warp, features, fit, read_predictor
from vitsearch.spaces import SPACES, cost_of, sample
from vitsearch.study import run_search

Cli = Callable[..., Any]
GEOMETRY = Geometry(image_size=32, classes=10)


def accuracy(settings: Settings) -> float:
    """Something smooth with a ceiling, as accuracies are."""
    size = cost_of(settings, GEOMETRY).params
    heads = settings["num_heads"]
    return 90 - 3e6 / size - 0.2 * sum(heads) / len(heads)


def networks_of(space: str, count: int, seed: int = 0) -> list[Settings]:
    drawn = {json.dumps(settings): settings for settings in sample(space, 3 * count, seed=seed, geometry=GEOMETRY)}
    return list(drawn.values())[:count]


def measured_of(networks: list[Settings], accuracies: list[float]) -> Measured:
    return Measured(
        dataset="made",
        geometry=GEOMETRY,
        networks=tuple(networks),
        accuracies=tuple(accuracies),
        sources=(None,) * len(networks),
        benchmarks=(),
    )


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    networks = networks_of("pit", 40)
    return fit(networks, [accuracy(one) for one in networks], geometry=GEOMETRY, dataset="made")


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    entries = [Entry(one, None, {"made": accuracy(one), "other": 50.0}) for one in networks_of("pit", 30)]
    columns = {name: Column(name, None, GEOMETRY) for name in ("made", "other")}
    write_table(Table("made", "pit", GEOMETRY, columns, tuple(entries)), tmp_path / "table.json")
    return tmp_path / "table.json"


def reference(predictor: Predictor, new: list[Settings]) -> tuple[np.ndarray, np.ndarray]:
    """k K^-1 y and k** - k K^-1 k, entry by entry, then the mean and deviation in percent by summing over a grid."""
    known = features(predictor.space, predictor.networks, GEOMETRY)
    scaling, warp = Scaling.of(*known), Warp.of(np.array(predictor.accuracies))
    old_x, new_x = scaling(*known), scaling(*features(predictor.space, new, GEOMETRY))
    values = predictor.hyperparameters

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        squared = sum((u - v) ** 2 for u, v in zip(a, b, strict=True))
        trend = values.trend * (1 + sum(u * v for u, v in zip(a, b, strict=True)))
        return float(trend + values.smooth * math.exp(-squared / (2 * values.length**2)))

    among = np.array([[kernel(a, b) for b in old_x] for a in old_x]) + values.noise * np.eye(len(old_x))
    scores = warp.forward(np.array(predictor.accuracies))
    means, deviations = [], []
    for x in new_x:
        across = np.array([kernel(x, b) for b in old_x])
        mean = across @ np.linalg.inv(among) @ scores
        variance = kernel(x, x) + values.noise - across @ np.linalg.inv(among) @ across
        grid = np.linspace(-8, 8, 20001)
        weights = norm.pdf(grid) / norm.pdf(grid).sum()
        percent = warp.back(mean + math.sqrt(variance) * grid)
        means.append(percent @ weights)
        deviations.append(math.sqrt((percent - means[-1]) ** 2 @ weights))
    return np.array(means), np.array(deviations)


def test_mean_and_deviation_are_those_of_the_process(predictor: Predictor) -> None:
    new = [*networks_of("pit", 12, seed=9), predictor.networks[0]]
    mean, std = predictor.predict(new)
    expected_mean, expected_std = reference(predictor, new)
    scale = np.std(predictor.accuracies)
    assert np.allclose(mean, expected_mean, atol=0.02 * scale)
    assert np.allclose(std, expected_std, atol=0.02 * scale, rtol=0.05)
    assert (std > 0).all() and std.max() > 1.5 * std.min()


def test_features_are_what_they_say() -> None:
    space, (one,) = SPACES["autoformer-micro"], sample("autoformer-micro", 1, seed=2)
    short = SPACES["autoformer-micro"].region(geometry=GEOMETRY).smallest()
    summaries, layers = features(space, [one, short], GEOMETRY)
    cost, depth, blocks = cost_of(one, GEOMETRY), one["depth"], max(space.depth)  # type: ignore[attr-defined]
    heads, ratios = one["num_heads"], one["mlp_ratio"]
    means = [sum(heads) / depth, sum(ratios) / depth]
    expected = [cost.params, cost.macs, depth, one["embed_dim"], one["embed_dim"], depth, *means]
    assert summaries[0].tolist() == pytest.approx([math.log(1 + value) for value in expected])
    assert layers.shape == (2, 2 * blocks)
    assert layers[0, :depth].tolist() == heads and layers[0, blocks : blocks + depth].tolist() == ratios
    assert np.isnan(layers[1]).sum() == 2 * (blocks - short["depth"])
    scaled = Scaling.of(summaries, layers)(summaries, layers)
    assert np.isfinite(scaled).all() and np.allclose(scaled[:, : summaries.shape[1]].mean(0), 0)


def test_the_way_to_scores_and_back() -> None:
    percent = np.random.default_rng(0).normal(80, 3, 200)
    warp = Warp.of(percent)
    inside = np.sort(percent)[1:-1]
    assert np.allclose(warp.back(warp.forward(inside)), inside)
    assert (np.diff(warp.back(np.linspace(-5, 5, 50))) > 0).all() and warp.back(np.array([99.0])) <= 100
    # of normal accuracies, scores are the accuracies less mean over deviation
    assert np.corrcoef(warp.forward(inside), inside)[0, 1] > 0.99
    with pytest.raises(VitsearchError, match="accuracies must differ"):
        Warp.of(np.full(20, 50.0))


def test_a_file_gives_the_same_predictor(tmp_path: Path, predictor: Predictor) -> None:
    predictor.save(tmp_path / "predictor.json")
    again = read_predictor(tmp_path / "predictor.json")
    assert again == predictor
    new = networks_of("pit", 8, seed=5)
    assert all(np.array_equal(a, b) for a, b in zip(again.predict(new), predictor.predict(new), strict=True))
    data = json.loads((tmp_path / "predictor.json").read_text())
    for broken in (
        {**data, "format": 2},
        {**data, "hyperparameters": {**data["hyperparameters"], "noise": -1}},
        {**data, "space": "pit-tiny"},
        {**data, "accuracies": data["accuracies"][1:]},
        {key: value for key, value in data.items() if key != "fixed"},
        [],
    ):
        (tmp_path / "broken.json").write_text(json.dumps(broken))
        with pytest.raises(VitsearchError, match=r"broken\.json"):
            read_predictor(tmp_path / "broken.json")
    with pytest.raises(VitsearchError, match="`predictor` must be a file that can be read"):
        read_predictor(tmp_path / "none.json")


def test_a_space_with_several_patch_sizes(tmp_path: Path) -> None:
    space = SPACES["vitas-micro"]
    networks = sample(space, 12, seed=0)
    found = fit(networks, [50.0 + n for n in range(12)], geometry=GEOMETRY)
    found.save(tmp_path / "predictor.json")
    again = read_predictor(tmp_path / "predictor.json")
    assert again.space == found.space and again.predict(networks)[0] == pytest.approx(found.predict(networks)[0])


def test_what_cannot_be_fitted_or_predicted(predictor: Predictor) -> None:
    networks = networks_of("pit", 12)
    with pytest.raises(VitsearchError, match="at least 10 networks"):
        fit(networks[:9], [50.0] * 9, geometry=GEOMETRY)
    with pytest.raises(BadSettings, match="must be of one space"):
        fit([*networks, *networks_of("pit-tiny", 1)], list(range(13)), geometry=GEOMETRY)
    with pytest.raises(BadSettings, match="a predictor of pit needs networks of it"):
        predictor.predict(networks_of("pit-tiny", 1))


@pytest.mark.parametrize("space", ["autoformer-tiny", "pit"])
def test_held_out_predictions_rank_what_can_be_ranked(space: str) -> None:
    networks = networks_of(space, 50)
    accuracies = [accuracy(one) for one in networks]
    predicted = held_out(measured_of(networks, accuracies))
    assert kendalltau(predicted.mean, accuracies)[0] > 0.85
    rows = compare(measured_of(networks, accuracies), predicted, resamples=50)
    assert [row["proxy"] for row in rows] == ["params", "macs", "depth", "width", "predictor"]
    assert rows[-1]["kendall"] == pytest.approx(kendalltau(predicted.mean, accuracies)[0])
    assert rows[-1]["kendall_low"] <= rows[-1]["kendall"] <= rows[-1]["kendall_high"]


def test_too_few_for_five_folds() -> None:
    networks = networks_of("pit", 12)
    with pytest.raises(VitsearchError, match="but got 12 networks with an accuracy in 'made'"):
        held_out(measured_of(networks, [accuracy(one) for one in networks]))
    networks = networks_of("pit", 13)
    assert len(held_out(measured_of(networks, [accuracy(one) for one in networks])).mean) == 13


def test_held_out_predictions_know_nothing_of_the_network() -> None:
    """Each network is there twice with the same noise: one that leaked into training would be ranked perfectly."""
    networks = networks_of("pit", 40)
    noise = np.random.default_rng(1).normal(60, 5, len(networks)).tolist()
    predicted = held_out(measured_of([*networks, *networks], [*noise, *noise]))
    assert abs(kendalltau(predicted.mean, [*noise, *noise])[0]) < 0.25
    assert np.array_equal(predicted.mean[:40], predicted.mean[40:])


def test_tables_of_several_files(tmp_path: Path, table_file: Path) -> None:
    found = read_measured([table_file])
    assert found.dataset == "made" and len(found.networks) == 30 and len(found.benchmarks[0]["sha256"]) == 64
    twice = read_measured([table_file, table_file], "made")
    assert len(twice.networks) == 60 and fit_measured(twice).networks == twice.networks
    with pytest.raises(UnknownName, match=r"no dataset named 'mad'. Did you mean 'made'?"):
        read_measured([table_file], "mad")
    data = json.loads(table_file.read_text())
    (tmp_path / "large.json").write_text(json.dumps({**data, "datasets": {"made": {"image_size": 64}}}))
    with pytest.raises(VitsearchError, match="one input size and class count"):
        read_measured([table_file, tmp_path / "large.json"], "made")


def test_the_first_column_is_noted_only_where_it_is_fitted(tmp_path: Path, cli: Cli) -> None:
    entries = tuple(Entry(one, None, {"equal": 50.0}) for one in networks_of("pit", 30))
    table = Table("made", "pit", GEOMETRY, {"equal": Column("equal", None, GEOMETRY)}, entries)
    write_table(table, tmp_path / "equal.json")
    said = cli("bench", "fit", "--bench", tmp_path / "equal.json", "--out", tmp_path / "new").error()
    assert "all are equal" in said


def test_from_a_table_to_a_search(tmp_path: Path, table_file: Path, cli: Cli) -> None:
    file = tmp_path / "predictor.json"
    fitted = cli("bench", "fit", "--bench", table_file, "--dataset", "made", "--out", file, "--json").json()
    assert fitted["networks"] == 30 and fitted["folds"] == 5 and fitted["rows"][-1]["kendall"] > 0.7
    assert "must be a new file" in cli("bench", "fit", "--bench", table_file, "--out", file).error()
    assert "all are equal" in cli("bench", "fit", "--bench", table_file, "--dataset", "other", "--out", "new").error()
    objective = f"predictor:{file}"
    command = ["search", "pit", "--objective", f"{objective},min:params", "--device", "cpu", "--json"]
    command += ["--strategy", "nsga2:population=10"]
    whole = cli(*command, "--trials", 30, "--out", tmp_path / "whole").json()
    cli(*command, "--trials", 13, "--out", tmp_path / "cut")
    cut = cli(*command, "--trials", 30, "--out", tmp_path / "cut", "--resume").json()
    assert whole["best"] == cut["best"] and whole["front"] == cut["front"]
    best = whole["best"]
    (mean,), (std,) = read_predictor(file).predict([best["settings"]])
    assert best["measured"][objective] == pytest.approx(mean)
    assert best["measured"][f"{objective}_std"] == pytest.approx(std)
    study = json.loads((tmp_path / "whole" / "study.json").read_text())
    assert study["geometry"] == {"image_size": 32, "classes": 10, "channels": 3}
    assert list(study["environments"][0]["predictors"]) == [objective]
    file.write_text(file.read_text() + "\n")
    assert "was made elsewhere (predictors" in cli(*command, "--out", tmp_path / "cut", "--resume").error()
    wrong = ["search", "pit-tiny", "--objective", objective, "--trials", 1, "--out", tmp_path / "wrong"]
    assert "`objective` must be of the space that is searched, pit-tiny" in cli(*wrong).error()
    assert not (tmp_path / "wrong").exists()


def test_another_predictor_is_not_resumed_with(tmp_path: Path, predictor: Predictor) -> None:
    predictor.save(tmp_path / "one.json")
    objective = f"predictor:{tmp_path / 'one.json'}"
    run_search("pit", out=tmp_path / "run", objective=objective, trials=3, geometry=GEOMETRY, device="cpu")
    fit(predictor.networks[:20], predictor.accuracies[:20], geometry=GEOMETRY).save(tmp_path / "one.json")
    with pytest.raises(BadStudy, match="made elsewhere"):
        run_search(
            "pit", out=tmp_path / "run", objective=objective, trials=6, geometry=GEOMETRY, device="cpu", resume=True
        )


@pytest.mark.parametrize(("table", "least"), [("autoformer-search.json", 0.7), ("pit-search.json", 0.8)])
def test_on_the_published_benchmark(datasets: Path, table: str, least: float) -> None:
    measured = read_measured([datasets / "vitbench101" / table], "cifar100_kd")
    predicted = held_out(measured)
    tau = kendalltau(predicted.mean, measured.accuracies)[0]
    assert tau > least
    within = abs(predicted.mean - np.array(measured.accuracies)) <= 2 * predicted.std
    assert 0.85 < within.mean() <= 1
