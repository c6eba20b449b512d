"""How long does PreNAS's choice take, as a whole process, from its start to the written study?

    python benchmarks/selection.py --quick --json
    python benchmarks/selection.py --out benchmarks/results/selection-cpu.json --commit HASH

`selection/SPACE/DRAWS` is `vitsearch search SPACE --strategy prenas` with 8 images a draw; `further-draw/SPACE` is what
each draw after the first adds. The reference is the choice without tables: a pass of its own for one network of every
kind (equal width, depth, heads and MLP units), timed on a few networks and multiplied by the number of kinds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from scoring import add_output_options, circumstances, keep_rows

from vitsearch.cost import Geometry
from vitsearch.data import open_data
from vitsearch.methods.preselection import Pass, check_space
from vitsearch.methods.two_steps import Selector
from vitsearch.scoring import ProxyEvaluator
from vitsearch.spaces import sample
from vitsearch.spaces.isotropic import Isotropic

BUDGETS = {"autoformer-tiny": "6M:11M:1M", "autoformer-base": "45M:75M:5M"}
IMAGES, DRAWS = 8, 5


def seconds_of(space: str, draws: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "vitsearch", "search", space, "--strategy", "prenas", "--device", "cpu"]
        command += ["--budgets", BUDGETS[space], "--batch-size", str(IMAGES), "--draws", str(draws)]
        start = time.perf_counter()
        subprocess.run([*command, "--out", str(Path(folder) / "chosen")], check=True, capture_output=True)
        return time.perf_counter() - start


def kinds_of(space: str) -> int:
    found = check_space(space, None)
    assert isinstance(found, Isotropic)
    geometry, device = Geometry(image_size=32), torch.device("cpu")
    small = Pass(
        space=found, geometry=geometry, variant="paper", source=open_data("noise"), batch_size=1, seed=0, device=device
    )
    return len(Selector(found, [small.tables(0)], geometry=geometry).representatives()[0])


def seconds_of_one(space: str, networks: int) -> float:
    """SNIP of a network by itself, on the weights that the choice has."""
    evaluator = ProxyEvaluator(["snip"], weights="shared", batch_size=IMAGES, device="cpu", seed=0)
    first, *others = sample(space, networks + 1, seed=0)
    evaluator.one(first)
    start = time.perf_counter()
    for settings in others:
        evaluator.one(settings)
    return (time.perf_counter() - start) / networks


def measure(spaces: list[str], networks: int) -> Iterator[dict[str, Any]]:
    for space in spaces:
        kinds, one = kinds_of(space), seconds_of_one(space, networks)
        reference = {"name": f"reference/selection/{space}", "seconds": kinds * one, "speedup": None}
        yield reference | {"kinds": kinds, "seconds_per_network": one, "networks": networks}
        single, several = seconds_of(space, 1), seconds_of(space, DRAWS)
        yield {"name": f"selection/{space}/1", "seconds": single, "speedup": kinds * one / single}
        yield {"name": f"selection/{space}/{DRAWS}", "seconds": several, "speedup": DRAWS * kinds * one / several}
        each = (several - single) / (DRAWS - 1)
        yield {"name": f"further-draw/{space}", "seconds": each, "speedup": kinds * one / each}


def show(row: dict[str, Any]) -> None:
    speedup = f"{row['speedup']:10.0f} x" if row["speedup"] else ""
    print(f"{row['name']:36s} {row['seconds']:10.2f} s {speedup}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the tiny space alone")
    add_output_options(parser)
    options = parser.parse_args()
    spaces, networks = (["autoformer-tiny"], 2) if options.quick else (list(BUDGETS), 10)
    keep_rows(measure(spaces, networks), circumstances(torch.device("cpu"), options.commit), options, show)


if __name__ == "__main__":
    main()
