"""Write the table of docs/latency.md from experiments/results/latency-*.json.

python experiments/latency_tables.py [--check]
"""

from __future__ import annotations

import json
from pathlib import Path

from pages import RESULTS, put


def table(file: Path) -> list[str]:
    found = json.loads(file.read_text())
    _, device, engine, threads, batch = file.stem.split("-")
    about = f"{device}, {engine}, {threads}, {batch}".replace("threads", "threads ").replace("batch", "batch ")
    lines = [
        f"\n{found['machine']}, torch {found['versions']['torch']}, commit {found['commit']}; {about}.\n",
        "| space | networks | from, to | median error | 95th percentile | median error of a line over MACs |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        errors = f"{row['median']:.1%} | {row['p95']:.1%} | {row['macs_median']:.1%}".replace("%", " %")
        times = f"{row['fastest_ms']:.1f} to {row['slowest_ms']:.1f} ms"
        lines.append(f"| {row['space']}, {row['image_size']} px | {row['networks']} | {times} | {errors} |")
    return lines


def rendered() -> str:
    lines = [line for file in sorted(RESULTS.glob("latency-*.json")) for line in table(file)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    put("latency.md", __file__, rendered())
