"""TF-TAS Table 6: how far does Kendall's tau of a proxy depend on the seed?

    VITSEARCH_DATA=... python experiments/seed_spread.py --scores seeds.jsonl [--device auto] [--commit HASH]

Four seeds of weights and data, the paper's five proxies and the size baselines, on a column of ViT-Bench-101 (the
paper's own 1,000 networks, with weights from a trained supernet, are not public). The paper's DSS does not change with
the seed because its code scores one fixed network; here the seed draws the initial weights too.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from common import circumstances, write

from vitsearch.benchmark import read_table
from vitsearch.correlation import Conditions, ScoreBook, choose_proxies, correlate, measured
from vitsearch.environment import pick_device

SEEDS = (0, 1, 2, 3)
PAPER = {
    "snip": (0.481, 0.530, 0.486, 0.507),
    "grasp": (0.053, 0.126, 0.138, 0.152),
    "te-score": (-0.039, -0.003, -0.040, 0.013),
    "naswot": (0.378, 0.332, 0.394, 0.421),
    "dss": (0.697, 0.697, 0.697, 0.697),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, required=True, help="kept here; what it has is not made again")
    parser.add_argument("--table", default="autoformer-search.json")
    parser.add_argument("--column", default="cifar100_kd")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    options = parser.parse_args()
    table = read_table(Path(os.environ["VITSEARCH_DATA"]) / "vitbench101" / options.table)
    names = choose_proxies(",".join(PAPER))
    book = ScoreBook(Conditions(device=options.device), options.scores)
    book.fill([network for network, _ in measured(table, options.column)], names, SEEDS)
    rows = [row for row in correlate([table], book, names, SEEDS, [options.column]) if row["source"] is None]
    for row in rows:
        taus = " ".join("  none" if tau is None else f"{tau:6.3f}" for tau in row["kendall_by_seed"])
        deviation = row["kendall_deviation"]
        print(f"{row['proxy']:10s} {taus}  deviation {deviation if deviation is None else round(deviation, 3)}", end="")
        print(f"   paper {PAPER[row['proxy']]}" if row["proxy"] in PAPER else "   size baseline")
    about = circumstances(pick_device(options.device), options.commit)
    write(f"seed_spread-{options.column}.json", about | {"seeds": SEEDS, "rows": rows, "paper": PAPER})


if __name__ == "__main__":
    main()
