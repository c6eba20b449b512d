"""Auto-Prox's discovery on ViT-Bench-101: nested five-fold tau, and the comparison of its Figure 5.

    python experiments/proxy_discovery.py --data ../shared/data --cache statistics [--inputs weights]

Writes experiments/results/autoprox-all.json (of weights: autoprox.json, with the formulas of the package and all pairs
of branches), which `autoprox_tables.py` puts into docs/autoprox.md. A discovery that is in the folder `--studies`
already is not done again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import circumstances, write

from vitsearch.benchmark import read_table
from vitsearch.correlation import Conditions
from vitsearch.methods.comparison import Comparison, Folds
from vitsearch.methods.discovery import DiscoveryPlan, run_discovery
from vitsearch.methods.enumeration import enumerate_pairs
from vitsearch.methods.evidence import Evidence, columns_of
from vitsearch.methods.formula_draws import Grammar
from vitsearch.methods.proxy_discovery import Evolution
from vitsearch.methods.statistics import StatisticsCache
from vitsearch.proxies import PROXIES
from vitsearch.proxies.expression import INPUTS, Formula

FILES = {"all": "autoprox-all.json", "weights": "autoprox.json"}
WEIGHTS = tuple(name for name in INPUTS if name.endswith(".weight"))
RUNS: dict[str, dict[str, Any]] = {
    "elitism, mean": {"aggregates": ("mean",), "strategy": "elitism", "evaluations": 2020},
    "naive, mean": {"aggregates": ("mean",), "strategy": "naive", "evaluations": 2020},
    "random, mean": {"aggregates": ("mean",), "strategy": "random", "evaluations": 2020},
    "elitism, any": {"aggregates": ("mean", "sum", "max", "last"), "strategy": "elitism", "evaluations": 2020},
    "elitism, any, 10 x": {"aggregates": ("mean", "sum", "max", "last"), "strategy": "elitism", "evaluations": 20200},
}


PAIRS = {"autoformer": (("sum", 1), ("mean", 1)), "pit": (("mean", 2), ("sum", 2))}
"""Aggregate and number of seeds."""


def plan_of(space: str, run: dict[str, Any], options: argparse.Namespace) -> DiscoveryPlan:
    inputs = WEIGHTS if options.inputs == "weights" else INPUTS
    return DiscoveryPlan(
        tables=(f"{space}-search.json",),
        evolution=Evolution(strategy=run["strategy"], evaluations=run["evaluations"]),
        grammar=Grammar(branches="scalar", aggregates=run["aggregates"], inputs=inputs),
        networks=200,
        seeds=options.seeds,
        tolerance=options.tolerance,
        batch_size=options.batch_size,
    )


def shipped(space: str, tables: list[Any], plan: DiscoveryPlan, cache: Path) -> dict[str, Any]:
    """The formula in the package, on all networks, with every seed there is."""
    formula = PROXIES[f"discovered-{space}"].formula
    assert isinstance(formula, Formula)
    conditions = Conditions(batch_size=plan.batch_size, device="cpu")
    caches = [StatisticsCache(cache / f"seed{s}", conditions, s, inputs=plan.grammar.inputs) for s in range(plan.seeds)]
    evidence = Evidence(columns_of(tables, ()), caches, {})
    comparison = Comparison(Folds(evidence, 1, 0))
    part = evidence.part([np.arange(len(column.networks)) for column in evidence.columns])
    by_seed = part.taus(evidence.scores(formula)).reshape(len(caches), -1).tolist()
    rows = comparison.rows({"shipped": evidence.shown(formula)})
    found = {"formula": str(formula), "nearness": comparison.nearness(evidence.shown(formula))}
    return found | {"kendall_by_seed": by_seed, "rows": rows}


def all_pairs(
    space: str, tables: list[Any], plan: DiscoveryPlan, cache: Path, aggregate: str, seeds: int
) -> dict[str, Any]:
    """The best of all pairs of branches over weights on all networks, and what it is worth with one more seed."""
    conditions = Conditions(batch_size=plan.batch_size, device="cpu")
    inputs = plan.grammar.inputs
    caches = [StatisticsCache(cache / f"seed{s}", conditions, s, inputs=inputs) for s in range(seeds + 1)]
    evidence, later = (Evidence(columns_of(tables, ()), some, {}) for some in (caches[:seeds], caches[seeds:]))
    everything = [np.arange(len(column.networks)) for column in evidence.columns]
    best, branches = enumerate_pairs(evidence, evidence.part(everything), aggregate, keep=1)
    formula = best[0].formula
    next_seed = float(np.mean(later.part(everything).taus(later.scores(formula))))
    print(space, "all pairs", aggregate, seeds, formula, best[0].joint, next_seed, flush=True)
    found = {"space": space, "aggregate": aggregate, "seeds": seeds, "branches": branches, "formula": str(formula)}
    return found | {"joint": best[0].joint, "with_next_seed": next_seed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--studies", type=Path, default=Path("studies"))
    parser.add_argument("--inputs", choices=("all", "weights"), default="all")
    parser.add_argument("--spaces", nargs="+", choices=list(PAIRS), default=list(PAIRS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--tolerance", type=float, default=0.002)
    options = parser.parse_args()
    found: dict[str, Any] = {"inputs": options.inputs, "seeds": options.seeds, "batch_size": options.batch_size}
    found |= {"tolerance": options.tolerance, **circumstances(torch.device("cpu")), "runs": []}
    found |= {"shipped": {}, "pairs": []} if options.inputs == "weights" else {}
    for space in options.spaces:
        tables = [read_table(options.data / "vitbench101" / f"{space}-search.json")]
        for label, run in RUNS.items():
            plan = plan_of(space, run, options)
            out = options.studies / f"{space}-{label}".replace(", ", "-").replace(" ", "")
            began = time.perf_counter()
            result = run_discovery(tables, plan, out=out, cache=options.cache, device="cpu", resume=True)
            seconds = time.perf_counter() - began
            row = {"space": space, "label": label, "seconds": seconds, **run, **result.to_json()}
            found["runs"].append(row)
            best = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
            row["curve"] = curve([trial["measured"].get("joint", -1.0) for trial in best])
            print(space, label, f"{seconds:.0f} s", result.formula, result.warnings, flush=True)
        if options.inputs == "weights":
            found["shipped"][space] = shipped(space, tables, plan, options.cache)
            found["pairs"] += [all_pairs(space, tables, plan, options.cache, *one) for one in PAIRS[space]]
        write(FILES[options.inputs], found)


def curve(joints: list[float]) -> dict[str, float]:
    """The best so far after some numbers of evaluations."""
    best = np.maximum.accumulate(joints)
    return {str(at): float(best[at - 1]) for at in (20, 100, 500, 1000, 2020, 5000, 10000, 20200) if at <= len(best)}


if __name__ == "__main__":
    main()
