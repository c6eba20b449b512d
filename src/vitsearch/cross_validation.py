"""Fit a predictor to benchmark tables, and say how well it ranks networks that it never saw."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitsearch.architecture import Settings, brief, check_seed
from vitsearch.benchmark import read_table
from vitsearch.correlation import Row
from vitsearch.cost import Geometry
from vitsearch.errors import UnknownName, VitsearchError
from vitsearch.predictor import FEWEST, Prediction, Predictor, digest_of_file, fit
from vitsearch.proxies.size import BASELINES
from vitsearch.ranking import MEASURES, agreement, bootstrap_agreement
from vitsearch.registry import did_you_mean
from vitsearch.scoring import score
from vitsearch.spaces import cost_of

FOLDS = 5
SUPERVISED = "predictor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The networks of one column, of one or more tables."""

    dataset: str
    geometry: Geometry
    networks: tuple[Settings, ...]
    accuracies: tuple[float, ...]
    sources: tuple[str | None, ...]
    benchmarks: tuple[dict[str, str], ...]


def read_measured(paths: Sequence[str | Path], dataset: str | None = None) -> Measured:
    """A column of these files, the first one's first where none is named; each network once for each source."""
    tables = [read_table(path) for path in paths]
    name = dataset if dataset is not None else next(iter(tables[0].columns))
    known = list(dict.fromkeys(column for table in tables for column in table.columns))
    if name not in known:
        raise UnknownName(f"no dataset named {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}")
    rows: list[tuple[Settings, float, str | None]] = []
    geometries: set[Geometry] = set()
    for table in tables:
        for number, accuracy in table.accuracies(name) if name in table.columns else []:
            entry = table.entries[number]
            rows.append((table.settings(entry, name), accuracy, entry.source))
            geometries.add(table.columns[name].geometry)
    if len(geometries) != 1:
        found = "; ".join(map(str, geometries)) or "none"
        raise VitsearchError(f"{brief(name)} must be measured with one input size and class count, but got {found}")
    benchmarks = [{"name": t.name, "sha256": digest_of_file(p)} for t, p in zip(tables, paths, strict=True)]
    return Measured(
        dataset=name,
        geometry=geometries.pop(),
        networks=tuple(settings for settings, _, _ in rows),
        accuracies=tuple(accuracy for _, accuracy, _ in rows),
        sources=tuple(source for _, _, source in rows),
        benchmarks=tuple(benchmarks),
    )


def fit_measured(measured: Measured) -> Predictor:
    return fit(
        measured.networks,
        measured.accuracies,
        geometry=measured.geometry,
        dataset=measured.dataset,
        benchmarks=measured.benchmarks,
    )


def held_out(
    measured: Measured, *, folds: int = FOLDS, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Prediction:
    """For each network, what a predictor says that was trained on the other folds.

    A network that was measured twice is in one fold, hyperparameters are found anew for each.
    """
    keys = [json.dumps(settings, sort_keys=True) for settings in measured.networks]
    distinct = list(dict.fromkeys(keys))
    if len(distinct) - -(-len(distinct) // folds) < FEWEST:
        rule = f"with {folds} folds there must be {FEWEST} networks in all but one of them"
        raise VitsearchError(f"{rule}, but got {len(distinct)} networks with an accuracy in {brief(measured.dataset)}")
    order = np.random.default_rng(check_seed(seed)).permutation(len(distinct))
    fold_of = dict(zip(distinct, (order % folds).tolist(), strict=True))
    numbers = np.array([fold_of[key] for key in keys])
    mean, std = np.zeros(len(keys)), np.zeros(len(keys))
    for fold in range(folds):
        if progress:
            progress(fold, folds)
        train, test = np.flatnonzero(numbers != fold), np.flatnonzero(numbers == fold)
        mean[test], std[test] = fit_measured(_part(measured, train)).predict([measured.networks[i] for i in test])
    return Prediction(mean, std)


def _part(measured: Measured, numbers: NDArray[np.int64]) -> Measured:
    chosen: dict[str, Any] = {
        name: tuple(getattr(measured, name)[i] for i in numbers) for name in ("networks", "accuracies", "sources")
    }
    return dataclasses.replace(measured, **chosen)


def compare(measured: Measured, predicted: Prediction, resamples: int = 500) -> list[Row]:
    """How the size baselines and, last, the held-out predictions rank the networks: all, and those of each source."""
    found = score(measured.networks, BASELINES, geometry=measured.geometry, device="cpu")
    columns = {name: np.array([one.scores[name] for one in found], dtype=np.float64) for name in BASELINES}
    columns[SUPERVISED] = predicted.mean
    sizes = np.array([cost_of(settings, measured.geometry).params for settings in measured.networks], dtype=np.float64)
    accuracies = np.array(measured.accuracies)
    sources = list(dict.fromkeys(source for source in measured.sources if source is not None))
    rows: list[Row] = []
    for source in [None, *(sources if len(sources) > 1 else [])]:
        part = np.array([source in (None, own) for own in measured.sources])
        for name, scores in columns.items():
            row: Row = {"proxy": name, "dataset": measured.dataset, "source": source, "networks": int(part.sum())}
            row |= _agreement(scores[part], accuracies[part], sizes[part], resamples)
            if name == SUPERVISED:
                row |= _calibration(accuracies[part] - predicted.mean[part], predicted.std[part])
            rows.append(row)
    return rows


def _agreement(scores: NDArray[Any], accuracies: NDArray[Any], sizes: NDArray[Any], resamples: int) -> Row:
    found = agreement(scores, accuracies, sizes)
    intervals = bootstrap_agreement(scores, accuracies, sizes, resamples=resamples)
    row: Row = {"pairs": found.equal_size_pairs, "near_size_pairs": found.near_size_pairs}
    for measure in MEASURES:
        low, high = intervals[measure] or (None, None)
        row |= {measure: getattr(found, measure), f"{measure}_low": low, f"{measure}_high": high}
    return row


def _calibration(errors: NDArray[Any], std: NDArray[Any]) -> Row:
    """A normal error is within one and two deviations in 68 and 95 of 100 cases."""
    return {
        "mean_error": float(abs(errors).mean()),
        "within_one_std": float((abs(errors) <= std).mean()),
        "within_two_std": float((abs(errors) <= 2 * std).mean()),
    }
