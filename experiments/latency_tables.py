"""Write the table of docs/latency.md from experiments/results/latency-*.json.

python experiments/latency_tables.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "latency.md"
RESULTS = ROOT / "experiments" / "results"
MARKS = re.compile(r"(<!-- made by experiments/latency_tables.py [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


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
    text = "\n".join(lines) + "\n"
    return MARKS.sub(lambda match: f"{match.group(1)}{text}\n{match.group(2)}", PAGE.read_text())


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if rendered() == PAGE.read_text() else "docs/latency.md is not what the results say")
    PAGE.write_text(rendered())
