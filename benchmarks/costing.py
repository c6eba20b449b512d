"""How long do exact costs take? One core, against counting the built network.

    python benchmarks/costing.py --quick --json
    python benchmarks/costing.py --out benchmarks/results/costing-cpu.json

In one run: settings to parameters and MACs in closed form, and the reference, which builds the network on the `meta`
device and counts its parameters (its MACs would need a forward pass on top).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from scoring import circumstances, write

import vitsearch
from vitsearch.models import build


def measure(space: str, count: int, built: int) -> list[dict[str, Any]]:
    networks = vitsearch.sample(space, count, seed=0)
    start = time.perf_counter()
    costs = [vitsearch.cost_of(settings) for settings in networks]
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    with torch.device("meta"):
        counted = [sum(p.numel() for p in build(settings).parameters()) for settings in networks[:built]]
    reference = time.perf_counter() - start
    rows = [
        {"name": f"cost/{space}", "seconds": seconds, "networks": count},
        {"name": f"reference/cost/{space}", "seconds": reference, "networks": built, "speedup": None},
    ]
    rows[0]["speedup"] = (reference / built) / (seconds / count)
    rows[0]["differences"] = sum(cost.params != params for cost, params in zip(costs, counted, strict=False))
    return [row | {"architectures_per_second": row["networks"] / row["seconds"]} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,000 networks in place of 100,000")
    parser.add_argument("--json", action="store_true", help="rows on stdout")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit")
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = 2_000 if options.quick else 100_000
    about = circumstances(torch.device("cpu"), options.commit)
    rows = [row | about for space in ("autoformer-tiny", "autoformer-base", "pit") for row in measure(space, count, 20)]
    if options.out:
        write(options.out, rows)
    for row in [] if options.json else rows:
        print(f"{row['name']:34s} {row['networks']:7d} in {row['seconds']:7.2f} s")
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
