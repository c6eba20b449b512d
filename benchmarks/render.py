"""Write the table of docs/scoring.md from the committed results: python benchmarks/render.py [--check]"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "scoring.md"
MARKS = re.compile(r"(<!-- made by .*? -->\n).*?(<!-- end -->)", re.DOTALL)


def table(rows: list[dict[str, Any]]) -> str:
    speed = {row["name"]: row["architectures_per_second"] for row in rows}
    first = rows[0]
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    lines = [
        f"\n**{first['machine']}** ({first['device']}, {first['threads']} threads; {versions}; {first['commit']})\n",
        "| proxy / space / weights | networks/s | reference/s | plain loop/s | speed-up | largest error | tau | of |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "kendall_tau" in row:
            name = row["name"]
            lines.append(
                f"| {name} | {row['architectures_per_second']:.1f} | {speed[f'reference/{name}']:.2f} "
                f"| {speed[f'baseline/plain-loop/{name}']:.2f} | {row['speedup']:.1f} x "
                f"| {row['max_relative_error']:.0e} | {row['kendall_tau']:.4f} | {row['compared']} |"
            )
    swept = [row for row in rows if row["name"].startswith("sweep/")]
    if swept:
        lines.append("\n| networks | seconds | networks/s | peak memory so far |\n|---|---|---|---|")
    for row in swept:
        memory = row["peak_memory_bytes"] / 2**30
        lines.append(
            f"| {row['networks']} | {row['seconds']:.1f} | {row['architectures_per_second']:.1f} | {memory:.1f} GiB |"
        )
    return "\n".join(lines) + "\n"


def rendered() -> str:
    files = sorted((ROOT / "benchmarks" / "results").glob("scoring-*.json"), reverse=True)
    tables = "".join(table(json.loads(file.read_text())) for file in files)
    return MARKS.sub(lambda found: f"{found.group(1)}{tables}\n{found.group(2)}", PAGE.read_text())


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if rendered() == PAGE.read_text() else "docs/scoring.md is not what the results say")
    PAGE.write_text(rendered())
