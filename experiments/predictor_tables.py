"""How well the supervised predictor ranks networks it never saw, on ViT-Bench-101, and the table of docs/predictor.md.

    python experiments/predictor_tables.py --measure DATA/vitbench101 [--commit HASH]
    python experiments/predictor_tables.py [--check]

Five folds, drawn with five seeds; the tables show the mean tau over the seeds and the bootstrap interval of seed 0.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pages import RESULTS, put

RESULT = RESULTS / "predictor.json"
TABLES = {"autoformer": "AutoFormer-like", "pit": "PiT"}
SEEDS = range(5)
BASELINES = ("params", "macs", "depth", "width")


def measure(folder: Path, commit: str | None) -> None:
    import torch
    from common import circumstances, write

    from vitsearch.benchmark import read_table
    from vitsearch.cross_validation import compare, held_out, read_measured

    rows = []
    for table in TABLES:
        path = folder / f"{table}-search.json"
        for column in read_table(path).columns:
            measured = read_measured([path], column)
            for seed in SEEDS:
                found = compare(measured, held_out(measured, seed=seed), resamples=500 if seed == 0 else 1)
                rows += [
                    {"table": table, "seed": seed, **row} for row in found if seed == 0 or row["proxy"] == "predictor"
                ]
            print(table, column, flush=True)
    write(RESULT.name, circumstances(torch.device("cpu"), commit) | {"rows": rows})


def cell(rows: list[dict[str, Any]]) -> str:
    """Mean tau over seeds, interval of the first."""
    tau = sum(row["kendall"] for row in rows) / len(rows)
    return f"{100 * tau:.0f} ({100 * rows[0]['kendall_low']:.0f}..{100 * rows[0]['kendall_high']:.0f})"


def rendered() -> str:
    found = json.loads(RESULT.read_text())
    lines = [f"\n{found['machine']}, scikit-learn's process, commit {found['commit']}.\n"]
    lines += [f"| networks | dataset | {' | '.join(BASELINES)} | predictor | in each file | within 1, 2 deviations |"]
    lines += ["|---" * 9 + "|"]
    for table, title in TABLES.items():
        own = [row for row in found["rows"] if row["table"] == table]
        for column in dict.fromkeys(row["dataset"] for row in own):
            here = [row for row in own if row["dataset"] == column]
            whole = {
                name: [r for r in here if (r["proxy"], r["source"]) == (name, None)]
                for name in (*BASELINES, "predictor")
            }
            sources = [name for name in dict.fromkeys(row["source"] for row in here) if name is not None]
            each = [cell([r for r in here if (r["proxy"], r["source"]) == ("predictor", name)]) for name in sources]
            last = whole["predictor"]
            shares = [sum(row[name] for row in last) / len(last) for name in ("within_one_std", "within_two_std")]
            cells = [f"{title}, {last[0]['networks']}", column, *(cell(whole[name]) for name in whole)]
            cells += ["; ".join(each), ", ".join(f"{share:.0%}" for share in shares)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--commit")
    options = parser.parse_args()
    if options.measure is not None:
        measure(options.measure, options.commit)
    put("predictor.md", __file__, rendered())


if __name__ == "__main__":
    main()
