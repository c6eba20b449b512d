"""Write the tables of docs/ from the committed results: python benchmarks/render.py [--check] [--plot]

`--plot` also draws docs/figures/scoring.svg (needs the extra `plots`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
MARKS = re.compile(r"(<!-- made by benchmarks/render.py [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
Row = dict[str, Any]


def machine(row: Row) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    return f"**{row['machine']}** ({row['device']}, {row['threads']} threads; {versions})"


def speeds(rows: list[Row]) -> list[str]:
    speed = {row["name"]: row["architectures_per_second"] for row in rows}
    lines = [
        f"\n{machine(rows[0])}\n",
        "| proxy / space / weights | networks/s | reference/s | plain loop/s | speed-up | error | tau | of | commit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "kendall_tau" in row:
            name = row["name"]
            lines.append(
                f"| {name} | {row['architectures_per_second']:.1f} | {speed[f'reference/{name}']:.2f} "
                f"| {speed[f'baseline/plain-loop/{name}']:.2f} | {row['speedup']:.1f} x "
                f"| {row['max_relative_error']:.0e} | {row['kendall_tau']:.4f} | {row['compared']} | {row['commit']} |"
            )
    return lines


def searches(rows: list[Row]) -> list[str]:
    lines = [
        f"\nWhole `vitsearch search` processes, from their start to the closed journal. {machine(rows[0])}\n",
        "| proxy / space / weights / trials | seconds | commit |",
        "|---|---|---|",
    ]
    return lines + [f"| {r['name'].removeprefix('search/')} | {r['seconds']:.1f} | {r['commit']} |" for r in rows]


def sweeps(rows: list[Row]) -> list[str]:
    lines = [
        f"\nAgainst the number of networks, and the number that go through together. {machine(rows[0])}\n",
        "| what / proxy / space / weights / number | seconds | networks/s | peak memory |",
        "|---|---|---|---|",
    ]
    return lines + [
        f"| {row['name']} | {row['seconds']:.1f} | {row['architectures_per_second']:.1f} "
        f"| {row['peak_memory_bytes'] / 2**30:.1f} GiB |"
        for row in rows
    ]


def trainings(rows: list[Row]) -> list[str]:
    lines = [
        f"\n{machine(rows[0])}\n",
        "| what | images/s | of the bare loop, or of the decoder alone | batch | commit |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        share = "" if row["speedup"] is None else f"{row['speedup']:.3f}"
        lines.append(
            f"| {row['name']} | {row['images_per_second']:,.0f} | {share} | {row['batch']} | {row['commit']} |"
        )
    return lines


def supernets(rows: list[Row]) -> list[str]:
    lines = [
        f"\n{machine(rows[0])}\n",
        "| what | images/s | against the reference | batch | networks | compute only | peak memory | commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = "" if row["speedup"] is None else f"{row['speedup']:.2f} x"
        alone = row.get("compute_only_images_per_second")
        memory = row.get("peak_memory_bytes")
        shown = [f"{row['images_per_second']:,.0f}", ratio, str(row["batch"]), str(row.get("architectures", 1))]
        shown += ["" if alone is None else f"{alone:,.0f}", "" if memory is None else f"{memory / 2**30:.1f} GiB"]
        lines.append(f"| {row['name']} | {' | '.join(shown)} | {row['commit']} |")
    return lines


def selections(rows: list[Row]) -> list[str]:
    lines = [
        f"\n{machine(rows[0])}\n",
        "| what / space / draws | seconds | against a pass for every kind | commit |",
        "|---|---|---|---|",
    ]
    for row in rows:
        ratio = "" if row["speedup"] is None else f"{row['speedup']:,.0f} x"
        lines.append(f"| {row['name']} | {row['seconds']:,.1f} | {ratio} | {row['commit']} |")
    return lines


def discoveries(rows: list[Row]) -> list[str]:
    lines = [
        f"\n{machine(rows[-1])}\n",
        "| what / tables / evaluations | seconds | formulas/s | tau with whole matrices | against networks | commit |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        speed = f"{row['formulas'] / row['seconds']:,.1f}" if "formulas" in row else ""
        tau = f"{row['kendall_tau']:.3f}" if "kendall_tau" in row else ""
        ratio = "" if row["speedup"] is None else f"{row['speedup']:,.0f} x"
        lines.append(f"| {row['name']} | {row['seconds']:,.1f} | {speed} | {tau} | {ratio} | {row['commit']} |")
    return lines


PAGES: dict[str, dict[str, Callable[[list[Row]], list[str]]]] = {
    "scoring.md": {"scoring": speeds, "search": searches, "sweeps": sweeps},
    "training.md": {"training": trainings},
    "supernet.md": {"supernet": supernets},
    "prenas.md": {"selection": selections},
    "autoprox.md": {"discovery": discoveries},
}


def rendered(page: str) -> str:
    lines: list[str] = []
    for kind, make in PAGES[page].items():
        for file in sorted(RESULTS.glob(f"{kind}-*.json"), reverse=True):
            lines += make(json.loads(file.read_text()))
    tables = "\n".join(lines) + "\n"
    return MARKS.sub(lambda found: f"{found.group(1)}{tables}\n{found.group(2)}", (DOCS / page).read_text())


def plot() -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for file in sorted(RESULTS.glob("sweeps-*.json"), reverse=True):
        rows = json.loads(file.read_text())
        for proxy in ("dss", "snip"):
            batches = [row for row in rows if row["name"].startswith(f"batch/{proxy}/")]
            label = f"{proxy}, {rows[0]['machine']}"
            at_once = [row["at_once"] for row in batches]
            left.loglog(at_once, [row["architectures_per_second"] for row in batches], "o-", label=label)
        counts = [row for row in rows if row["name"].startswith("networks/")]
        if counts:
            seconds = [row["seconds"] for row in counts]
            right.loglog([row["networks"] for row in counts], seconds, "o-", label=f"dss, {rows[0]['machine']}")
    for file in sorted(RESULTS.glob("search-*.json")):
        rows = [row for row in json.loads(file.read_text()) if "/dss/" in row["name"]]
        points = [row["networks"] for row in rows], [row["seconds"] for row in rows]
        right.loglog(*points, "x", label=f"whole searches, dss, {rows[0]['machine']}")
    left.set(xlabel="networks that go through together", ylabel="networks in a second")
    right.set(xlabel="networks", ylabel="seconds")
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.tight_layout()
    (DOCS / "figures").mkdir(exist_ok=True)
    figure.savefig(DOCS / "figures" / "scoring.svg")


if __name__ == "__main__":
    for name in PAGES:
        if "--check" not in sys.argv:
            (DOCS / name).write_text(rendered(name))
        elif rendered(name) != (DOCS / name).read_text():
            sys.exit(f"docs/{name} is not what the results say")
    if "--plot" in sys.argv:
        plot()
