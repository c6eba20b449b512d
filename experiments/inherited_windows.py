"""TF-TAS Table 5: proxies against the accuracies that networks inherit from a trained supernet.

    python experiments/inherited_windows.py --bench tiny.json small.json base.json [--device auto] [--commit HASH]

Takes benchmark tables of networks evaluated with a supernet's weights, and compares the paper's five proxies and the
size baselines inside its three windows of parameters: 5 to 7 M, 15 to 19 M, 23 to 25 M.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from common import circumstances, write

from vitsearch.benchmark import Table, read_table
from vitsearch.correlation import Conditions, ScoreBook, choose_proxies, correlate, measured
from vitsearch.environment import pick_device
from vitsearch.spaces import cost_of

WINDOWS = {"5-7M": (5e6, 7e6), "15-19M": (15e6, 19e6), "23-25M": (23e6, 25e6)}
PAPER = {
    "snip": (0.481, 0.028, -0.282),
    "grasp": (0.053, -0.022, -0.029),
    "te-score": (-0.039, -0.248, -0.075),
    "naswot": (0.378, 0.171, 0.208),
    "dss": (0.697, 0.615, 0.306),
}


def inside(table: Table, low: float, high: float) -> Table | None:
    entries = tuple(entry for entry in table.entries if low <= cost_of(entry.arch, table.geometry).params <= high)
    return dataclasses.replace(table, entries=entries) if len(entries) > 1 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=Path, nargs="+", required=True)
    parser.add_argument("--scores", type=Path, help="kept here; what it has is not made again")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    options = parser.parse_args()
    names, rows = choose_proxies(",".join(PAPER)), []
    book = ScoreBook(Conditions(device=options.device), options.scores)
    for path in options.bench:
        for number, (window, (low, high)) in enumerate(WINDOWS.items()):
            table = inside(read_table(path), low, high)
            if table is None:
                continue
            book.fill([network for column in table.columns for network, _ in measured(table, column)], names, [0])
            found = [row for row in correlate([table], book, names, [0]) if row["source"] is None]
            for row in found:
                tau = "none" if row["kendall"] is None else f"{row['kendall']:.3f}"
                paper = PAPER.get(row["proxy"], (None,) * 3)[number]
                print(f"{window:7s} {row['dataset']:20s} {row['proxy']:10s} {row['networks']:5d} networks  ", end="")
                print(f"tau {tau}  paper {paper}", flush=True)
            rows += [row | {"window": window, "file": path.name} for row in found]
    about = circumstances(pick_device(options.device), options.commit)
    write("inherited_windows.json", about | {"rows": rows, "paper": PAPER})


if __name__ == "__main__":
    main()
