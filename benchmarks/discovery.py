"""How fast are formulas judged, and how faithful is the sketch? In one run, against scoring the networks themselves.

    python benchmarks/discovery.py --quick --json
    python benchmarks/discovery.py --out benchmarks/results/discovery-cpu.json
    python benchmarks/discovery.py --bench autoformer-search.json pit-search.json --cache statistics --times 1 100

Networks of PiT at 64 px with their statistics in whole matrices. `formulas/table`: formulas that follow from the
tables, judged on all networks. `formulas/sketch` and `formulas/block`: formulas that need matrices, from every second
row and column of the blocks, and from the blocks; `kendall_tau` is the mean over formulas of their agreement with the
value from whole matrices, over those that a search could care for: with a tau above 0.5 with the accuracies, in size.
The reference runs the networks for each formula. With `--bench`, `discover/TABLE/EVALUATIONS` is the whole process
`vitsearch discover` on a table, and on all of them jointly, folds included, once the statistics are in `--cache`; the
paper's budget is 2,020 evaluations.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from scoring import add_output_options, circumstances, keep_rows

from vitsearch.correlation import Conditions, Network
from vitsearch.cost import Geometry, Limits
from vitsearch.methods.evidence import Column, Evidence
from vitsearch.methods.formula_draws import Grammar
from vitsearch.methods.proxy_discovery import Evolution
from vitsearch.methods.sketch import Sketches
from vitsearch.methods.statistics import KEEP, Statistics, StatisticsCache, block_of
from vitsearch.proxies.expression import Formula, constant
from vitsearch.ranking import kendall
from vitsearch.scoring import ProxyEvaluator
from vitsearch.spaces import SPACES, cost_of, sample

WORTH = 0.5
GEOMETRY = Geometry(image_size=64, classes=100)


def reduced(one: Statistics) -> Statistics:
    """With blocks of the usual size in the place of whole matrices."""
    blocks = {key: block_of(block, KEEP) for key, block in one.blocks.items()}
    return Statistics(one.table, one.shapes, one.scales, blocks)


def draw(grammar: Grammar, evidence: Evidence, count: int, tabled: bool) -> list[Formula]:
    """Different formulas that follow from the tables, or that do not."""
    random, found = Random(0), {}
    while len(found) < count:
        formula = grammar.draw(random).simplified()
        if not constant(formula.tree) and (evidence.numbers.of_networks(formula) is not None) == tabled:
            found[str(formula)] = formula
    return list(found.values())


def agreement(ours: np.ndarray, exact: np.ndarray) -> float | None:
    return kendall(ours, exact) if np.isfinite(ours).all() and np.isfinite(exact).all() else None


def discover(tables: list[Path], cache: Path, evaluations: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "vitsearch", "discover", "--device", "cpu", "--json", "--cache", str(cache)]
        command += [part for table in tables for part in ("--bench", str(table))]
        command += ["--evaluations", str(evaluations), "--out", str(Path(folder) / "found")]
        start = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = {"seconds": time.perf_counter() - start, "speedup": None, "formulas": evaluations}
        return found | {"formula": json.loads(done.stdout)["formula"]}


def discoveries(tables: list[Path], cache: Path, times: list[int]) -> Iterator[dict[str, Any]]:
    """Each table, then all of them; the largest budgets last, and of the first table alone."""
    for many in sorted(times):
        for some in [[table] for table in tables] + [tables] * (len(tables) > 1) if many == 1 else [tables[:1]]:
            discover(some, cache, 20)  # statistics that are missing are captured here
            evaluations = many * Evolution().evaluations
            name = "+".join(table.stem.removesuffix("-search") for table in some)
            yield {"name": f"discover/{name}/{evaluations}"} | discover(some, cache, evaluations)


def measure(count: int, most: int, formulas: int, compared: int, folder: Path) -> list[dict[str, Any]]:
    settings = sample(SPACES["pit"], count, seed=0, limits=Limits(max_params=most), geometry=GEOMETRY)
    networks = tuple(Network.of(one, GEOMETRY) for one in settings)
    cache = StatisticsCache(folder, Conditions(batch_size=2, device="cpu"), keep=1 << 30)
    start = time.perf_counter()
    cache.fill(networks)
    rows: list[dict[str, Any]] = [
        {"name": "statistics/pit", "seconds": time.perf_counter() - start, "networks": count, "speedup": None}
    ]
    random = Random(0)
    accuracies = np.array([math.log(cost_of(one, GEOMETRY).params) + random.gauss(0, 0.2) for one in settings])
    evidence = Evidence([Column("pit", "made up", networks, tuple(range(count)), accuracies)], [cache], {})
    part = evidence.part([np.arange(count)])
    whole = Sketches([cache.read(network) for network in networks])
    usual = Sketches([reduced(cache.read(network)) for network in networks])

    tabled = draw(Grammar(branches="scalar"), evidence, formulas, tabled=True)
    start = time.perf_counter()
    for formula in tabled:
        evidence.judge(formula, part)
    rows.append({"name": "formulas/table", "seconds": time.perf_counter() - start, "formulas": formulas})

    with_matrices = draw(Grammar(depth=5), evidence, compared, tabled=False)
    exact = [evidence.numbers.put_together(one.aggregate, whole.of_layers(one)) for one in with_matrices]
    for name, stride in (("sketch", 2), ("block", 1)):
        usual.of_layers(with_matrices[0], stride)
        start = time.perf_counter()
        found = [evidence.numbers.put_together(one.aggregate, usual.of_layers(one, stride)) for one in with_matrices]
        seconds = time.perf_counter() - start
        taus = [agreement(*pair) for pair in zip(found, exact, strict=True)]
        worth = [abs(agreement(one, accuracies) or 0) > WORTH for one in exact]
        some = [tau for tau, good in zip(taus, worth, strict=True) if good and tau is not None]
        row = {"name": f"formulas/{name}", "seconds": seconds, "formulas": compared, "networks": count}
        row |= {"kendall_tau": float(np.mean(some)), "compared": len(some)}
        rows.append(row | {"kendall_tau_of_all": float(np.mean([tau for tau in taus if tau is not None]))})

    names = [f"expr:{one}" for one in tabled if one.needs_data][:2]
    start = time.perf_counter()
    for name in names:
        ProxyEvaluator([name], geometry=GEOMETRY, batch_size=2, device="cpu")(settings)
    reference = (time.perf_counter() - start) / len(names)
    row = {"name": "reference/formulas", "seconds": reference, "formulas": 1, "networks": count, "speedup": None}
    for one in rows[1:]:
        one["speedup"] = reference / (one["seconds"] / one["formulas"])
    rows.append(row)
    return [
        one | ({"formulas_per_second": one["formulas"] / one["seconds"]} if "formulas" in one else {}) for one in rows
    ]


def show(row: dict[str, Any]) -> None:
    tau = f", tau {row['kendall_tau']:.3f}" if "kendall_tau" in row else ""
    speed = row["formulas"] / row["seconds"] if "formulas" in row else 0
    print(f"{row['name']:32s} {row['seconds']:8.2f} s, {speed:8.1f} formulas/s{tau}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="6 small networks in place of 40, fewer formulas")
    parser.add_argument("--bench", type=Path, nargs="+", default=[], help="tables for whole discoveries, nothing else")
    parser.add_argument("--cache", type=Path, help="of the statistics of those tables")
    parser.add_argument("--times", type=int, nargs="+", default=[1], help="the paper's budget")
    add_output_options(parser)
    options = parser.parse_args()
    if options.bench and options.cache is None:
        parser.error("--bench needs --cache")
    if not options.bench:
        torch.set_num_threads(1)
    about = circumstances(torch.device("cpu"), options.commit)
    sizes = (6, 2_000_000, 400, 60) if options.quick else (40, 25_000_000, 4000, 300)
    with tempfile.TemporaryDirectory() as folder:
        whole = discoveries(options.bench, options.cache, options.times)
        keep_rows(whole if options.bench else measure(*sizes, Path(folder)), about, options, show)


if __name__ == "__main__":
    main()
