"""A discovery as a study: one search on all networks, and one without each fold to know what the first is worth.

The folder has `study.json` (kind `discover`), `trials.jsonl` with every formula that was judged, `fold0.jsonl`, ... for
the searches that did not see a fold, and in the end `found.json`: the formula, its table, and warnings.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from vitsearch.architecture import brief, check_seed, check_whole
from vitsearch.benchmark import Table
from vitsearch.correlation import Conditions, ScoreBook
from vitsearch.data import open_data
from vitsearch.environment import describe_changes, describe_environment, pick_device
from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.methods.comparison import JUDGES_OF_SIZE, TOO_NEAR, Comparison, Folds, Places, Rival
from vitsearch.methods.enumeration import LINEAR, enumerate_pairs
from vitsearch.methods.evidence import Column, Evidence, columns_of
from vitsearch.methods.formula_draws import Grammar
from vitsearch.methods.numbers import Array
from vitsearch.methods.proxy_discovery import Evolution, Judge, Judged, choose, front_of, search
from vitsearch.methods.statistics import KEEP, StatisticsCache
from vitsearch.models.weights import check_weights
from vitsearch.predictor import FEWEST, fit
from vitsearch.proxies.expression import Formula, parse_formula
from vitsearch.records import Journal, Trial, parse_json, write_atomically
from vitsearch.study import study_folder

FORMAT, KIND = 1, "discover"
PUBLISHED = {
    "autoproxa": "abs(qkv.grad) + normalized_sum(sigmoid(mlp.grad))",
    "autoproxp": "frobenius(sigmoid(qkv.weight)) - logsoftmax(mlp.weight)",
}
"""The proxies of the paper as formulas, in their default readings."""
log = logging.getLogger("vitsearch")
Progress = Callable[[str, int, int, str], None]
"""Told what is being done, how far it is, of how much, and the best formula so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryPlan:
    """What a discovery is, apart from the machine it runs on."""

    tables: tuple[str, ...]
    columns: tuple[str, ...] = ()
    """Columns of accuracies; none: the distilled ones."""
    weights: dict[str, float] = dataclasses.field(default_factory=dict)
    """Alpha of columns in the joint correlation, where it is not 1."""
    evolution: Evolution = dataclasses.field(default_factory=Evolution)
    grammar: Grammar = dataclasses.field(default_factory=Grammar)
    pairs: bool = False
    """Every pair of branches in the place of an evolution."""
    networks: int = 100
    """At most so many networks of a column judge formulas."""
    folds: int = 5
    tolerance: float = 0.002
    """The smallest formula at most this far below the best is the one that was found."""
    seed: int = 0
    seeds: int = 2
    """Of weights and batch, from `seed` on: a formula must do well with all of them."""
    data: str = "noise"
    batch_size: int = 8
    weights_scheme: str = "fresh"

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_weights(self.weights_scheme)
        check_whole("batch_size", self.batch_size)
        check_whole("seeds", self.seeds, most=100)
        check_whole("networks", self.networks, least=2)
        check_whole("folds", self.folds, least=2, most=20)
        if not 0 <= self.tolerance <= 2:
            raise VitsearchError(f"`tolerance` must be from 0 to 2, but got {brief(self.tolerance)}")
        if self.pairs and (self.grammar.branches != "scalar" or not set(self.grammar.aggregates) <= set(LINEAR)):
            raise VitsearchError(
                f"`strategy` pairs needs branches=scalar and aggregates among {', '.join(LINEAR)}, but got "
                f"branches={self.grammar.branches}, {', '.join(self.grammar.aggregates)}"
            )

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What was found; `rows` are of `Comparison.rows`, `front` has the best formula of every size."""

    path: Path
    formula: Formula
    joint: float
    front: tuple[Judged, ...]
    fold_formulas: tuple[Formula, ...]
    rows: list[dict[str, Any]]
    warnings: list[str]
    evaluations: int

    def to_json(self) -> dict[str, Any]:
        return {
            "formula": str(self.formula),
            "joint": self.joint,
            "front": [{"formula": str(o.formula), "size": o.formula.size, "joint": o.joint} for o in self.front],
            "fold_formulas": [str(formula) for formula in self.fold_formulas],
            "evaluations": self.evaluations,
            "warnings": self.warnings,
            "rows": self.rows,
        }


def run_discovery(
    tables: Sequence[Table],
    plan: DiscoveryPlan,
    *,
    out: str | Path,
    cache: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    allow_changed: bool = False,
    beside: Sequence[str] = (),
    rivals: Mapping[str, Rival] | None = None,
    progress: Progress | None = None,
) -> Discovery:
    """Capture what is missing, search, search again without each fold, and compare.

    `cache` is the folder of the statistics, in `out` unless given. `beside` names proxies that score the networks
    themselves, for the table. `rivals` learn from the same networks and stand last; unless given, `supervised` does.
    """
    columns = columns_of(tables, plan.columns)
    if not any(plan.weights.get(column.name, 1.0) for column in columns):
        raise VitsearchError(f"`alpha` must be above 0 for a column that judges, but got {brief(plan.weights)}")
    path, environment = Path(out), describe_environment(pick_device(device))
    folds = Folds(Evidence(columns, (), plan.weights), plan.folds, plan.seed)
    folds.check()  # what is wrong must leave no folder behind
    open_data(plan.data)
    with study_folder(path, resume, KIND):
        study = _study(path, plan, folds.evidence.digest, environment, allow_changed)
        conditions = Conditions(data=plan.data, batch_size=plan.batch_size, weights=plan.weights_scheme, device=device)
        folder = Path(cache) if cache is not None else path / "statistics"
        caches = [
            StatisticsCache(folder / f"seed{seed}", conditions, seed, inputs=plan.grammar.inputs)
            for seed in range(plan.seed, plan.seed + plan.seeds)
        ]
        if cache is not None:  # before anything is written
            for one in caches:
                one.make_folder()
        write_atomically(path / "study.json", json.dumps(study, indent=2, allow_nan=False) + "\n")
        evidence = Evidence(columns, caches, plan.weights)
        folds = dataclasses.replace(folds, evidence=evidence)
        with Journal(path / "trials.jsonl"):  # locked from the start, so that those who look on see that it runs
            for one in caches:
                one.fill(evidence.networks, _telling(progress, f"statistics, seed {one.seed}"))
        found = [_search(path, plan, evidence, folds, fold, progress) for fold in (None, *range(plan.folds))]
        whole, parts = found[0], found[1:]
        enough = min(len(places) for fold in range(plan.folds) for places in folds.outside(fold)) >= FEWEST
        usual = {"supervised": supervised} if enough else {}
        used = usual if rivals is None else rivals
        others = _beside(path, plan, conditions, columns, beside, progress)
        discovery = _compare(path, whole, [part.chosen for part in parts], evidence, folds, others, used)
        write_atomically(path / "found.json", json.dumps(discovery.to_json(), indent=1, allow_nan=False) + "\n")
    return discovery


def supervised(column: Column, places: Places) -> Array:
    """What plain supervision gives: a Gaussian process on the settings, trained on the networks at these places."""
    settings = [network.settings for network in column.networks]
    known = [settings[place] for place in places]
    geometry = column.networks[0].geometry
    return fit(known, column.accuracies[places].tolist(), geometry=geometry, dataset=column.name).predict(settings).mean


def _telling(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    return (lambda done, total: progress(what, done, total, "")) if progress else None


def _study(path: Path, plan: DiscoveryPlan, digest: str, environment: dict[str, Any], allow: bool) -> dict[str, Any]:
    """What `study.json` is to say; a study that is there must be the same but for the environment."""
    file, given = path / "study.json", {**plan.to_json(), "accuracies": digest}
    environments = [environment]
    if file.exists():
        before = parse_json(file.read_bytes(), str(file))
        if not isinstance(before, dict) or before.get("kind") != KIND or before.get("format") != FORMAT:
            raise BadStudy(f"{file} must have format {FORMAT} and kind {KIND!r}")
        for name, value in given.items():
            if before.get(name) != value:
                raise BadStudy(f"{path} was made with {name}={brief(before.get(name))}, but got {name}={brief(value)}")
        environments = before["environments"]
        changed = describe_changes(environments[-1], environment)
        if changed and not allow:
            raise BadStudy(
                f"{path} was made elsewhere ({changed}); give --allow-changed to continue, which is recorded"
            )
        environments = [*environments, environment] if changed else environments
    return {"format": FORMAT, "kind": KIND, **given, "environments": environments}


@dataclass(frozen=True, slots=True)
class Searched:
    """The formula a search chose, the best of every size, and how many were judged."""

    chosen: Judged
    front: tuple[Judged, ...]
    evaluations: int


def _search(
    path: Path, plan: DiscoveryPlan, evidence: Evidence, folds: Folds, fold: int | None, progress: Progress | None
) -> Searched:
    """On all networks, or without a fold."""
    part = evidence.part([_some(places, plan, number) for number, places in enumerate(folds.outside(fold))])
    name, what = ("trials", "searching") if fold is None else (f"fold{fold}", f"without fold {fold}")
    budget = plan.evolution.evaluations

    def tell(done: int, best: Judged | None) -> None:
        if progress:
            progress(what, done, budget, f"{best.joint:.3f} {best.formula}" if best else "")

    with Journal(path / f"{name}.jsonl") as journal:
        if plan.pairs:
            judged = _all_pairs(plan, evidence, part, journal, _telling(progress, what))
        else:
            judge = Judge(evidence, part, journal, budget, tell)
            judged = search(plan.evolution, plan.grammar, judge, plan.seed)
        return Searched(choose(judged, plan.tolerance), tuple(front_of(judged)), len(journal.trials))


def _some(places: Places, plan: DiscoveryPlan, number: int) -> Places:
    """At most `networks` of them, the same for all formulas of a search."""
    if len(places) <= plan.networks:
        return places
    return np.array(sorted(Random(f"{plan.seed}/networks/{number}").sample(places.tolist(), plan.networks)))


def _all_pairs(
    plan: DiscoveryPlan, evidence: Evidence, part: Any, journal: Journal, tell: Callable[[int, int], None] | None
) -> list[Judged]:
    """The best pairs; a search that is written down is not done again."""
    if not journal.trials:
        trials: list[Trial] = []
        for aggregate in plan.grammar.aggregates:
            for one in enumerate_pairs(evidence, part, aggregate, keep=200, progress=tell)[0]:
                measured = {"joint": one.joint, "size": one.formula.size}
                settings = {"formula": str(one.formula)}
                trials.append(Trial(number=len(trials), settings=settings, measured=measured, seconds=0.0))
        journal.append(trials)
    return [
        Judged(parse_formula(str(trial.settings["formula"])), trial.measured["joint"], trial.number)
        for trial in journal.trials
    ]


def _beside(
    path: Path,
    plan: DiscoveryPlan,
    conditions: Conditions,
    columns: Sequence[Column],
    names: Sequence[str],
    progress: Progress | None,
) -> dict[str, Sequence[Array]]:
    """Scores of other proxies, NaN where there is none."""
    if not names:
        return {}
    book = ScoreBook(conditions, path / "beside.jsonl")
    networks = [network for column in columns for network in column.networks]
    book.fill(networks, names, [plan.seed], _telling(progress, "other proxies"))
    return {
        name: [np.array(book.column(column.networks, plan.seed, name), dtype=np.float64) for column in columns]
        for name in names
    }


def _compare(
    path: Path,
    whole: Searched,
    parts: Sequence[Judged],
    evidence: Evidence,
    folds: Folds,
    others: Mapping[str, Sequence[Array]],
    rivals: Mapping[str, Rival],
) -> Discovery:
    found = whole.chosen
    comparison = Comparison(folds)
    scores: dict[str, Sequence[Array]] = {
        name: evidence.shown(parse_formula(text).simplified())
        for name, text in PUBLISHED.items()
        if parse_formula(text).inputs <= set(evidence.caches[0].inputs)
    }
    scores |= others
    scores["discovered"] = folds.joined([evidence.shown(part.formula) for part in parts])
    scores |= {name: folds.learned(rival) for name, rival in rivals.items()}
    rows = comparison.rows(scores)
    return Discovery(
        path=path,
        formula=found.formula,
        joint=found.joint,
        fold_formulas=tuple(part.formula for part in parts),
        front=whole.front,
        rows=rows,
        warnings=warnings_of(
            rows, comparison.nearness(evidence.shown(found.formula)), exact=evidence.exact(found.formula)
        ),
        evaluations=whole.evaluations,
    )


def warnings_of(rows: Sequence[Mapping[str, Any]], nearness: Mapping[str, float], exact: bool = True) -> list[str]:
    """What a user must know before using the formula."""
    found = []
    row = next(row for row in rows if row["score"] == "discovered" and row["dataset"] == "joint")
    low = row["above_best_size_low"]
    if low is None or low <= 0:
        found.append(
            f"the formula is no better than the size baseline `{row['best_size']}`: on networks it never saw its joint "
            f"tau is {row['above_best_size'] or 0:+.3f} above, with the lower end of the interval at {low or 0:+.3f}"
        )
    for name in JUDGES_OF_SIZE:
        if abs(nearness[name]) > TOO_NEAR:
            found.append(f"a size baseline, not a discovery: its tau with `{name}` is {nearness[name]:.3f}")
    if not exact:
        found.append(
            f"the formula was judged on blocks of at most {KEEP:,} elements of each matrix; `vitsearch bench "
            "correlate` scores the whole ones"
        )
    return found
