"""Auto-Prox's discovery on a small table: statistics, values, sketches, searches, folds, resuming, the command."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from vitsearch.benchmark import Column as TableColumn
from vitsearch.benchmark import Entry, Table, write_table
from vitsearch.correlation import Conditions, Network
from vitsearch.cost import Geometry
from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.methods.comparison import Comparison, Folds, sizes_of
from vitsearch.methods.discovery import DiscoveryPlan, run_discovery, supervised, warnings_of
from vitsearch.methods.enumeration import Pairings, enumerate_pairs
from vitsearch.methods.evidence import Column, Evidence, columns_of
from vitsearch.methods.formula_draws import Grammar
from vitsearch.methods.numbers import NUMBERS, Numbers
from vitsearch.methods.proxy_discovery import Evolution, Judge, Judged, Member, choose, search
from vitsearch.methods.sketch import Sketches
from vitsearch.methods.statistics import StatisticsCache, block_of
from vitsearch.proxies.expression import UNARY, Binary, Formula, Input, Node, Unary, parse_formula
from vitsearch.proxies.operations import UNARY as OPERATIONS
from vitsearch.ranking import kendall
from vitsearch.records import Journal
from vitsearch.scoring import score
from vitsearch.spaces import SPACES, canonical, cost_of, sample

SMALL = Geometry(image_size=32, classes=10)
FEWER = Geometry(image_size=32, classes=4)
CONDITIONS = Conditions(batch_size=2, device="cpu")


def small_table() -> Table:
    """PiT networks whose accuracy grows with size, with noise; one is not measured in one column."""
    random, entries = Random(0), []
    choices = itertools.product((2,), ([1, 4, 2], [2, 6, 2]), ([2, 2, 2], [2, 2, 4], [2, 4, 4]))
    for number, (ratio, depth, heads) in enumerate(choices):
        arch = canonical({"space": "pit", "base_dim": 16, "mlp_ratio": ratio, "depth": depth, "num_heads": heads})
        size = math.log(cost_of(arch, SMALL).params)
        accuracy = {"one_kd": 5 * size + random.gauss(0, 1), "two_kd": 5 * size + random.gauss(0, 2), "one": 50.0}
        if number == 3:
            accuracy["two_kd"] = None  # type: ignore[assignment]
        entries.append(Entry(arch, None, accuracy))  # type: ignore[arg-type]
    geometries = {"one_kd": SMALL, "two_kd": FEWER, "one": SMALL}
    columns = {name: TableColumn(name, None, geometry) for name, geometry in geometries.items()}
    return Table(name="small", space="pit", geometry=SMALL, columns=columns, entries=tuple(entries))


@pytest.fixture(scope="module")
def table() -> Table:
    return small_table()


@pytest.fixture(scope="module")
def evidence(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    cache = StatisticsCache(tmp_path_factory.mktemp("statistics") / "seed0", CONDITIONS)
    found = Evidence(columns_of([table], ()), [cache], {})
    cache.fill(found.networks)
    return found


def everything(evidence: Evidence) -> Any:
    return evidence.part([np.arange(len(column.networks)) for column in evidence.columns])


def test_distilled_columns_unless_named_and_missing_accuracies_skipped(table: Table) -> None:
    assert [(column.name, len(column.networks)) for column in columns_of([table], ())] == [("one_kd", 6), ("two_kd", 5)]
    assert [column.name for column in columns_of([table], ["one"])] == ["one"]
    entries = tuple(dataclasses.replace(e, accuracy={"two_kd": e.accuracy["two_kd"]}) for e in table.entries)
    lacking = dataclasses.replace(table, columns={"two_kd": table.columns["two_kd"]}, entries=entries)
    assert [column.label for column in columns_of([table, lacking], ["one"])] == ["pit#0/one"]


TABLED = (
    "abs(qkv.grad) + normalized_sum(sigmoid(mlp.grad))",
    "sum: frobenius(sigmoid(qkv.weight)) - logsoftmax(mlp.weight)",
    "max: log(frobenius(mlp.act)) * std(proj.grad)",
    "last scalar: abs(mlp.act_grad) * abs(mlp.act) - max(mlp.grad)",
    "sum: qkv.weight * mlp.act + mean(exp(proj.weight))",
)
MATRICES = (
    "abs(qkv.weight * qkv.grad)",
    "sum: frobenius(mlp.act + mlp.act_grad)",
    "abs(sqrt(square(exp(mlp.weight))))",
)


def test_the_cache_says_what_the_networks_say(evidence: Evidence) -> None:
    """Exactly from the tables; from blocks of the matrices nearly."""
    column = evidence.columns[1]
    names = [f"expr:{text}" for text in (*TABLED, *MATRICES)]
    networks = [network.settings for network in column.networks[:4]]
    found = score(networks, names, geometry=FEWER, batch_size=2, device="cpu")
    for text in (*TABLED, *MATRICES):
        formula = parse_formula(text)
        assert (evidence.numbers.of_networks(formula) is None) == (text in MATRICES), text
        ours = evidence.scores(formula)[1][:4]
        theirs = [one.scores[f"expr:{text}"] for one in found]
        assert ours == pytest.approx(theirs, rel=0.2 if text in MATRICES else 1e-5), text


def test_whole_blocks_are_exact(evidence: Evidence, tmp_path: Path) -> None:
    column = evidence.columns[1]
    cache = StatisticsCache(tmp_path, CONDITIONS, keep=1 << 20)
    cache.fill(column.networks[:1])
    formulas = [parse_formula(text) for text in MATRICES]
    names = [f"expr:{text}" for text in MATRICES]
    (found,) = score(column.networks[0].settings, names, geometry=FEWER, batch_size=2, device="cpu")
    sketches, numbers = (kind([cache.read(column.networks[0])]) for kind in (Sketches, Numbers))
    for formula, theirs in zip(formulas, found.scores.values(), strict=True):
        ours = numbers.put_together(formula.aggregate, sketches.of_layers(formula))
        assert ours == pytest.approx([theirs], rel=2e-3), str(formula)


def test_numbers_follow_the_operations_on_tensors() -> None:
    for name in UNARY:
        for value in (-1.5, 0.0, 0.25, 3.0):
            theirs = float(OPERATIONS[name](torch.tensor(value, dtype=torch.float64)))
            assert float(NUMBERS[name](np.array(value))) == pytest.approx(theirs, rel=1e-12, abs=1e-15), name


def test_sketches_rank_nearly_as_the_whole(evidence: Evidence) -> None:
    formula = parse_formula("sum: abs(qkv.weight * qkv.grad)")
    (whole, _), (sketch, _) = (evidence.scores(formula, stride) for stride in (1, 2))
    assert scipy.stats.kendalltau(whole, sketch)[0] > 0.6 and not np.array_equal(whole, sketch)


def test_blocks_are_bounded_and_even() -> None:
    matrix = torch.arange(300.0 * 200).reshape(300, 200)
    block = block_of(matrix, 1024)
    assert block.shape == (32, 32) and block[0, 0] == 0 and block.numel() <= 1024
    assert (block[:, 1:] > block[:, :-1]).all() and (block[1:] > block[:-1]).all()
    assert block_of(matrix[:20, :30], 1024).shape == (20, 30)
    assert block_of(matrix[:, :2], 1024).shape == (300, 2)


def test_the_cache_is_kept_checked_and_of_one_making(evidence: Evidence, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(evidence.caches[0].folder, folder)
    again = StatisticsCache(folder, CONDITIONS)
    network = evidence.networks[0]
    assert (again.read(network).table == evidence.caches[0].read(network).table).all()
    with pytest.raises(BadStudy, match="was made with batch_size 2, not with 4: give another --cache"):
        StatisticsCache(folder, Conditions(batch_size=4, device="cpu"))
    name, _ = again.files[network]
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(bytes(content))
    with pytest.raises(BadStudy, match="remove it, and it is captured again"):
        again.read(network)
    index = folder / "index.jsonl"
    index.write_bytes(index.read_bytes()[:-20])  # cut off in the last line: that network is captured again
    cut = StatisticsCache(folder, CONDITIONS)
    assert len(cut.files) == len(evidence.caches[0].files) - 1
    cut.fill(evidence.networks)
    assert len(StatisticsCache(folder, CONDITIONS).files) == len(evidence.caches[0].files)
    (folder / name).unlink()
    again.fill([network])
    assert (again.read(network).table == evidence.caches[0].read(network).table).all()


def test_the_joint_correlation_is_the_mean_of_tau_b(evidence: Evidence) -> None:
    part = evidence.part([np.array([0, 2, 3, 5]), np.arange(4)])
    formula = parse_formula("sum: frobenius(sign(qkv.weight))")  # many ties
    found, error = evidence.judge(formula, part)
    taus = []
    for column, pairs, values in zip(evidence.columns, part.pairs, evidence.scores(formula), strict=True):
        taus.append(scipy.stats.kendalltau(values[pairs.chosen], column.accuracies[pairs.chosen])[0])
    assert error is None and found == pytest.approx(np.mean(taus), abs=1e-6)
    weighed = Evidence(evidence.columns, evidence.caches, {"one_kd": 3.0})
    joint = weighed.judge(formula, weighed.part([pairs.chosen for pairs in part.pairs]))[0]
    assert joint == pytest.approx((3 * taus[0] + taus[1]) / 2, abs=1e-6)
    assert evidence.judge(parse_formula("exp(exp(sum(square(qkv.weight))))"), part) == (-1.0, "not finite")
    assert evidence.judge(parse_formula("sign(std(qkv.weight))"), part) == (-1.0, "the same for all networks")


def run_search(evidence: Evidence, path: Path, seed: int = 0, **options: Any) -> tuple[list[Judged], Judge]:
    with Journal(path) as journal:
        judge = Judge(evidence, everything(evidence), journal, options.get("evaluations", 2020))
        found = search(Evolution(**options), Grammar(branches="scalar"), judge, seed)
    return found, judge


def test_budget_counts_different_formulas_and_resuming_gives_the_same(evidence: Evidence, tmp_path: Path) -> None:
    whole, judge = run_search(evidence, tmp_path / "whole.jsonl", evaluations=600)
    lines = (tmp_path / "whole.jsonl").read_text().splitlines()
    texts = [json.loads(line)["settings"]["formula"] for line in lines]
    assert len(lines) == 600 == len(set(texts)) and judge.best is not None
    assert judge.best.joint == max(one.joint for one in whole)
    (tmp_path / "cut.jsonl").write_text("\n".join(lines[:400]) + "\n" + lines[400][:30])
    again, _ = run_search(evidence, tmp_path / "cut.jsonl", evaluations=600)
    assert again == whole
    resumed = (tmp_path / "cut.jsonl").read_text().splitlines()
    assert [json.loads(a)["measured"] for a in resumed] == [json.loads(b)["measured"] for b in lines]
    other = [lines[1].replace('"number":1', '"number":0'), lines[0].replace('"number":0', '"number":1')]
    (tmp_path / "other.jsonl").write_text("\n".join(other) + "\n")
    with pytest.raises(BadStudy, match="is not the formula"):
        run_search(evidence, tmp_path / "other.jsonl", evaluations=600)


def test_evolution_improves_on_chance_and_a_wide_margin_ends(evidence: Evidence, tmp_path: Path) -> None:
    best = {}
    for strategy in ("elitism", "naive", "random"):
        found, _ = run_search(evidence, tmp_path / f"{strategy}.jsonl", evaluations=500, strategy=strategy)
        best[strategy] = max(one.joint for one in found)
    assert best["elitism"] >= best["random"] - 0.02 and min(best.values()) > 0.5
    _, judge = run_search(evidence, tmp_path / "wide.jsonl", evaluations=200, margin=0.1, crossover=0.5, pareto=True)
    assert len(judge.journal.trials) == 200


def test_children_must_beat_their_parents(evidence: Evidence, tmp_path: Path) -> None:
    """The worst of the population never gets worse, and members come in by the margin."""
    import vitsearch.methods.proxy_discovery as module

    accepted: list[tuple[float, float]] = []
    original = module._child

    def watched(evolution: Any, grammar: Any, judge: Any, population: list[Member], random: Any) -> Member | None:
        child = original(evolution, grammar, judge, population, random)
        if child is not None:
            accepted.append((child.judged.joint, min(one.judged.joint for one in population)))
        return child

    module._child = watched  # type: ignore[assignment]
    try:
        run_search(evidence, tmp_path / "t.jsonl", evaluations=300, margin=0.01)
    finally:
        module._child = original
    assert accepted and all(child >= worst + 0.01 for child, worst in accepted)


def two_branches(tree: Node) -> bool:
    return isinstance(tree, Binary) and all(
        isinstance(branch, Unary) and isinstance(branch.of, Unary) and isinstance(branch.of.of, Input)
        for branch in (tree.left, tree.right)
    )


@pytest.mark.parametrize("strategy", ["elitism", "naive"])
def test_every_generation_has_two_whole_branches(
    evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Canonical forms are shorter: children of those would shrink from generation to generation."""
    asked: list[Formula] = []
    original = Judge.__call__
    monkeypatch.setattr(Judge, "__call__", lambda self, formula: (asked.append(formula), original(self, formula))[1])
    run_search(evidence, tmp_path / "t.jsonl", evaluations=300, strategy=strategy, crossover=0.3)
    assert len(asked) >= 300 and all(two_branches(formula.tree) for formula in asked)


def test_the_smallest_of_nearly_equal_formulas_is_chosen() -> None:
    texts = {"log(frobenius(qkv.weight)) + mlp.act": 0.81, "frobenius(qkv.weight)": 0.805, "mlp.act": 0.7}
    judged = [Judged(parse_formula(text), joint, at) for at, (text, joint) in enumerate(texts.items())]
    assert str(choose(judged, 0.01).formula) == "frobenius(qkv.weight)"
    assert choose(judged, 0.0).joint == 0.81
    with pytest.raises(VitsearchError, match="no formula had a value"):
        choose([], 0.0)


def test_all_pairs_hold_what_single_formulas_say(evidence: Evidence) -> None:
    pairings = Pairings(evidence, "sum")
    pairings.nodes, pairings.layers = pairings.nodes[::60], pairings.layers[::60]
    pairings.weighted, pairings.singles = pairings.weighted[::60], pairings.singles[::60]
    checked = 0
    for sign, start, scores in pairings.blocks():
        for first, second in ((0, 3), (1, 2)):
            if start + first >= len(pairings):
                continue
            theirs = np.concatenate(evidence.scores(pairings.formula(sign, start + first, second)))
            ours = scores[first, second]
            if np.isfinite(theirs).all():
                assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-9 * np.abs(ours).max() + 1e-12)
                checked += 1
    assert checked > 20


def test_pairs_find_at_least_what_chance_finds(
    evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vitsearch.methods.enumeration as module

    some = dict(list(module.branches().items())[::30])  # a search over all takes minutes
    monkeypatch.setattr(module, "branches", lambda: some)
    places = {text: place for place, text in enumerate(some)}
    known = evidence.numbers.table
    monkeypatch.setattr(evidence.numbers, "table", known[:, [evidence.numbers._places[text] for text in places]])
    monkeypatch.setattr(evidence.numbers, "_places", places)
    monkeypatch.setattr(evidence.numbers, "_known", {})
    part = everything(evidence)
    found, count = enumerate_pairs(evidence, part, "mean", keep=5)
    assert [one.joint for one in found] == sorted((one.joint for one in found), reverse=True) and count > 30
    random, best = Random(0), -1.0
    nodes = Pairings(evidence, "mean").nodes
    for _ in range(300):
        first, second = random.choice(nodes), random.choice(nodes)
        formula = Formula(tree=Binary(random.choice("+-*"), first, second), scalar=True)
        best = max(best, evidence.judge(formula, part)[0])
    assert found[0].joint >= best


def test_folds_are_disjoint_and_of_whole_networks(evidence: Evidence) -> None:
    folds = Folds(evidence, 3, 0)
    for column, places in zip(evidence.columns, folds.of_columns, strict=True):
        assert len(places) == len(column.networks) and set(places) == set(range(3))
    first, second = (
        dict(zip(column.entries, places.tolist(), strict=True))
        for column, places in zip(evidence.columns, folds.of_columns, strict=True)
    )
    assert all(first[entry] == fold for entry, fold in second.items())
    for fold in range(3):
        for outside, places in zip(folds.outside(fold), folds.of_columns, strict=True):
            assert set(outside) == set(np.flatnonzero(places != fold))
    seen: list[tuple[str, int]] = []

    def rival(column: Any, places: Any) -> Any:
        seen.append((column.name, len(places)))
        return np.full(len(column.networks), float(len(seen)))

    doubled = [*evidence.columns, *(dataclasses.replace(c, table="again") for c in evidence.columns)]
    twice = Folds(Evidence(doubled, (), {}), 3, 0).of_columns
    assert all(np.array_equal(one, two) for one, two in zip(twice[:2], twice[2:], strict=True))
    assert all(np.array_equal(one, two) for one, two in zip(twice[:2], folds.of_columns, strict=True))
    few = dataclasses.replace(evidence.columns[0], accuracies=np.array([1.0] * 5 + [2.0]))
    with pytest.raises(VitsearchError, match="must be two different accuracies"):
        Folds(Evidence([few], (), {}), 6, 0).check()
    with pytest.raises(VitsearchError, match="`folds` must have two networks"):
        Folds(evidence, 6, 0).check()
    learned = folds.learned(rival)
    assert len(seen) == 6
    assert all(len(set(learned[0][folds.of_columns[0] == fold])) == 1 for fold in range(3))


def test_a_formula_must_do_well_with_every_seed(evidence: Evidence) -> None:
    """Twice the same cache changes nothing; scores come by seed, then column."""
    twice = Evidence(evidence.columns, [*evidence.caches, *evidence.caches], {})
    formula = parse_formula("abs(qkv.grad) + mlp.act")
    ours, theirs = (one.judge(formula, everything(one))[0] for one in (evidence, twice))
    assert ours == pytest.approx(theirs) and len(twice.scores(formula)) == 4 and len(twice.shown(formula)) == 2


def test_cross_validated_tau_is_over_pairs_of_one_fold(evidence: Evidence) -> None:
    folds = Folds(evidence, 3, 1)
    comparison = Comparison(folds, resamples=200)
    values = [sizes_of(column)["macs"] for column in evidence.columns]
    draws = comparison.taus(values)
    for number, column in enumerate(evidence.columns):
        places = folds.of_columns[number]
        above, ours, theirs = 0.0, 0.0, 0.0
        for i, j in itertools.combinations(range(len(places)), 2):
            if places[i] == places[j]:
                x, y = (
                    np.sign(values[number][i] - values[number][j]),
                    np.sign(column.accuracies[i] - column.accuracies[j]),
                )
                above, ours, theirs = above + x * y, ours + abs(x), theirs + abs(y)
        assert draws[number, 0] == pytest.approx(above / math.sqrt(ours * theirs))
    rows = comparison.rows({"discovered": values})
    joint = {row["score"]: row for row in rows if row["dataset"] == "joint"}
    assert joint["discovered"]["kendall"] == joint["macs"]["kendall"]
    assert joint["discovered"]["above_best_size"] <= 0 <= joint[joint["macs"]["best_size"]]["above_best_size"]
    assert joint["macs"]["kendall_low"] <= joint["macs"]["kendall"] <= joint["macs"]["kendall_high"]
    warnings = warnings_of(rows, comparison.nearness(values))
    assert any("no better than the size baseline" in text for text in warnings)
    assert any("its tau with `macs` is 1.000" in text for text in warnings)
    turned = warnings_of(rows, comparison.nearness([-one for one in values]), exact=False)
    assert any("its tau with `macs` is -1.000" in text for text in turned) and "on blocks" in turned[-1]


def test_a_discovery_is_a_study(table: Table, evidence: Evidence, tmp_path: Path) -> None:
    plan = DiscoveryPlan(
        tables=("small.json",), evolution=Evolution(evaluations=120), folds=3, seeds=1, batch_size=2, networks=5
    )
    given: dict[str, Any] = {"cache": evidence.caches[0].folder.parent, "device": "cpu"}
    rivals = {"supervised": lambda column, places: sizes_of(column)["params"]}
    found = run_discovery([table], plan, out=tmp_path / "found", rivals=rivals, **given)
    data = json.loads((tmp_path / "found" / "found.json").read_text())
    assert parse_formula(data["formula"]) == found.formula and len(found.fold_formulas) == 3
    assert [row["score"] for row in found.rows][-1] == "supervised"
    assert {row["score"] for row in found.rows} >= {"params", "depth", "autoproxa", "autoproxp", "discovered"}
    with pytest.raises(BadStudy, match="must not exist yet"):
        run_discovery([table], plan, out=tmp_path / "found", **given)
    joints = [one["joint"] for one in data["front"]]
    assert joints == sorted(set(joints)) and max(one.joint for one in found.front) >= found.joint
    changed = dataclasses.replace(table, entries=table.entries[:-1])
    with pytest.raises(BadStudy, match="was made with accuracies="):
        run_discovery([changed], plan, out=tmp_path / "found", resume=True, **given)
    (tmp_path / "found" / "found.json").unlink()
    journal = tmp_path / "found" / "fold1.jsonl"
    journal.write_bytes(journal.read_bytes()[:500])
    again = run_discovery([table], plan, out=tmp_path / "found", resume=True, rivals=rivals, **given)
    assert again.to_json() == found.to_json()
    with pytest.raises(BadStudy, match="was made with seed=0, but got seed=1"):
        run_discovery([table], dataclasses.replace(plan, seed=1), out=tmp_path / "found", resume=True, **given)


def test_the_command(table: Table, evidence: Evidence, tmp_path: Path, cli: Callable[..., Any]) -> None:
    write_table(table, tmp_path / "small.json")
    line = ["discover", "--bench", str(tmp_path / "small.json"), "--cache", str(evidence.caches[0].folder.parent)]
    line += ["--batch-size", "2", "--device", "cpu", "--evaluations", "60", "--folds", "2", "--seeds", "1", "--json"]
    line += ["--beside", "synflow,params"]
    found = cli(*line, "--out", str(tmp_path / "found")).json()
    assert {"study", "formula", "joint", "rows", "warnings"} <= set(found)
    column = columns_of([table], ())[0]
    (row,) = [r for r in found["rows"] if (r["score"], r["dataset"]) == ("synflow", "pit/one_kd")]
    settings = [network.settings for network in column.networks]
    theirs = score(settings, ["synflow"], geometry=SMALL, batch_size=2, device="cpu")
    values = [np.array([one.scores["synflow"] for one in theirs]) for _ in range(2)]
    folds = Folds(Evidence([column], (), {}), 2, 0)
    assert row["kendall"] == pytest.approx(Comparison(folds, 1).taus(values[:1])[0, 0])
    path = tmp_path / "found" / "found.json"
    arch = tmp_path / "arch.json"
    arch.write_text(json.dumps(table.entries[0].arch))
    proxies = f"file:{path},expr:{found['formula']}"
    scored = cli("score", str(arch), "--proxy", proxies, "--image-size", "32", "--classes", "10", "--json").json()
    assert len(set(scored[0]["scores"].values())) == 1
    bad = cli(*line, "--out", str(tmp_path / "other"), "--alpha", "one_kd").error()
    assert "`alpha` must be COLUMN=NUMBER" in bad
    assert "`branches` must be matrix or scalar" in cli(*line, "--out", "x", "--branches", "both").error()
    assert "pairs needs branches=scalar" in cli(*line, "--out", "x", "--strategy", "pairs").error()
    assert "`strategy` must be one of" in cli(*line, "--out", "x", "--strategy", "best").error()
    other = tmp_path / "other"
    assert (
        "not with ['qkv.weight', 'proj.weight', 'mlp.weight']: give another --cache"
        in cli(*line, "--out", str(other), "--inputs", "weights").error()
    )
    assert "`weights` must be one of" in cli(*line, "--out", str(other), "--weights", "old").error()
    assert f"`cache` must be a folder that can be written, but got '{arch}'" in (
        cli(*line, "--out", str(other), "--cache", str(arch)).error()
    )
    assert "old" in cli(*line, "--out", str(other), "--data", "old").error()
    assert not other.exists()


def test_weights_that_leave_no_column_are_refused(table: Table, tmp_path: Path, cli: Callable[..., Any]) -> None:
    write_table(table, tmp_path / "small.json")
    zeros = [word for column in columns_of([table], ()) for word in ("--alpha", f"{column.name}=0")]
    said = cli("discover", "--bench", tmp_path / "small.json", *zeros, "--out", tmp_path / "new").error()
    assert "`alpha` must be above 0 for a column that judges, but got {" in said and not (tmp_path / "new").exists()


def test_supervision_sees_its_part_alone() -> None:
    space, geometry = SPACES["autoformer-micro"], Geometry(image_size=32, classes=10)
    networks = [Network.of(settings, geometry) for settings in sample(space, 40, seed=0)]
    values = np.array([cost_of(network.settings, geometry).params / 1e3 for network in networks])
    column = Column("small", "accuracy", tuple(networks), tuple(range(40)), values)
    places = np.arange(0, 40, 2)
    scores = supervised(column, places)
    assert kendall(scores[1::2], values[1::2]) > 0.8  # parameters are a smooth function of the settings
    changed = values.copy()
    changed[1::2] = 0.0
    assert np.array_equal(supervised(dataclasses.replace(column, accuracies=changed), places), scores)
