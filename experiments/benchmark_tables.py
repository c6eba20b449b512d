"""Write the tables of speeds in docs/ from benchmarks/results/*.json.

python experiments/benchmark_tables.py [--check] [--plot]

`--plot` also draws docs/figures/scoring.svg (needs the extra `plots`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
MARKS = re.compile(r"(<!-- made by experiments/benchmark_tables.py [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
Row = dict[str, Any]


def machine(row: Row) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    return f"**{row['machine']}** ({row['device']}, {row['threads']} threads; {versions})"


def commit(row: Row) -> str:
    return str(row["commit"])[:7]


def table(intro: str, head: str, lines: Iterable[Sequence[str]]) -> list[str]:
    """`head` as in Markdown, without the bars at its ends."""
    rule = "---|" * (head.count("|") + 1)
    return [f"\n{intro}\n", f"| {head} |", f"|{rule}", *(f"| {' | '.join(line)} |" for line in lines)]


def ratio(row: Row, digits: int) -> str:
    return "" if row["speedup"] is None else f"{row['speedup']:,.{digits}f} x"


def gibibytes(row: Row) -> str:
    return f"{row['peak_memory_bytes'] / 2**30:.1f} GiB" if "peak_memory_bytes" in row else ""


def speeds(rows: list[Row]) -> list[str]:
    speed = {row["name"]: row["architectures_per_second"] for row in rows}

    def cells(row: Row) -> list[str]:
        name = row["name"]
        others = [f"{speed[f'{kind}/{name}']:.2f}" for kind in ("reference", "baseline/plain-loop")]
        found = [name, f"{row['architectures_per_second']:.1f}", *others, ratio(row, 1)]
        found += [f"{row['max_relative_error']:.0e}", f"{row['kendall_tau']:.4f}", f"{row['compared']}"]
        return [*found, commit(row)]

    head = "proxy / space / weights | networks/s | reference/s | plain loop/s | speed-up | error | tau | of | commit"
    return table(machine(rows[0]), head, [cells(row) for row in rows if "kendall_tau" in row])


def searches(rows: list[Row]) -> list[str]:
    intro = f"Whole `vitsearch search` processes, from their start to the closed journal. {machine(rows[0])}"
    lines = [[row["name"].removeprefix("search/"), f"{row['seconds']:.1f}", commit(row)] for row in rows]
    return table(intro, "proxy / space / weights / trials | seconds | commit", lines)


def sweeps(rows: list[Row]) -> list[str]:
    intro = f"Against the number of networks, and the number that go through together. {machine(rows[0])}"
    lines = [
        [row["name"], f"{row['seconds']:.1f}", f"{row['architectures_per_second']:.1f}", gibibytes(row), commit(row)]
        for row in rows
    ]
    return table(intro, "what / proxy / space / weights / number | seconds | networks/s | peak memory | commit", lines)


def trainings(rows: list[Row]) -> list[str]:
    def cells(row: Row) -> list[str]:
        share = "" if row["speedup"] is None else f"{row['speedup']:.3f}"
        return [row["name"], f"{row['images_per_second']:,.0f}", share, str(row["batch"]), commit(row)]

    head = "what | images/s | of the bare loop, or of the decoder alone | batch | commit"
    return table(machine(rows[0]), head, map(cells, rows))


def supernets(rows: list[Row]) -> list[str]:
    def cells(row: Row) -> list[str]:
        alone = row.get("compute_only_images_per_second")
        found = [row["name"], f"{row['images_per_second']:,.0f}", ratio(row, 2), str(row["batch"])]
        found += [str(row.get("architectures", 1)), "" if alone is None else f"{alone:,.0f}"]
        return [*found, gibibytes(row), commit(row)]

    head = "what | images/s | against the reference | batch | networks | compute only | peak memory | commit"
    return table(machine(rows[0]), head, map(cells, rows))


def attentions(rows: list[Row]) -> list[str]:
    seconds = {row["name"]: row["seconds"] for row in rows}

    def cells(row: Row) -> list[str]:
        times = [seconds[f"{before}{row['name']}"] for before in ("", "baseline/torch/", "reference/")]
        found = [
            row["name"],
            str(row["images"]),
            *(f"{1000 * one:.2f}" for one in times),
            f"{row['times_torch']:.2f} x",
        ]
        return [*found, ratio(row, 2), f"{row['max_relative_error']:.0e}", commit(row)]

    intro = f"Attention there and back, with its projections, in milliseconds. {machine(rows[0])}"
    head = "what / side / heads / window | images | ours | torch's fused | definition | against torch's | against the "
    head += "definition | error | commit"
    return table(intro, head, [cells(row) for row in rows if "max_relative_error" in row])


def norms(rows: list[Row]) -> list[str]:
    seconds = {row["name"]: row["seconds"] for row in rows}

    def cells(row: Row) -> list[str]:
        times = [seconds[f"{before}{row['name']}"] for before in ("", "reference/")]
        found = [row["name"].removeprefix("norm/"), *(f"{1000 * one:.2f}" for one in times), ratio(row, 2)]
        return [*found, commit(row)]

    intro = f"Layer norms there and back, launches included, in milliseconds. {machine(rows[0])}"
    lines = [cells(row) for row in rows if row["speedup"] is not None]
    return table(intro, "tokens / channels | ours | torch's | speed-up | commit", lines)


def products(rows: list[Row]) -> list[str]:
    speed = {row["name"]: row["gigaflops"] for row in rows}

    def cells(row: Row) -> list[str]:
        found = [f"{one:.0f}" for one in (row["gigaflops"], speed[f"reference/{row['name']}"])]
        return [row["name"], *found, ratio(row, 2), f"{row['max_relative_error']:.0e}", commit(row)]

    lines = [cells(row) for row in rows if row["speedup"] is not None]
    intro = f"Products of float32, in 10^9 operations a second. {machine(rows[0])}"
    return table(intro, "what / rows / inputs / outputs | chosen here | torch's | speed-up | error | commit", lines)


def selections(rows: list[Row]) -> list[str]:
    lines = [[row["name"], f"{row['seconds']:,.1f}", ratio(row, 0), commit(row)] for row in rows]
    return table(machine(rows[0]), "what / space / draws | seconds | against a pass for every kind | commit", lines)


def discoveries(rows: list[Row]) -> list[str]:
    def cells(row: Row) -> list[str]:
        speed = f"{row['formulas'] / row['seconds']:,.1f}" if "formulas" in row else ""
        tau = f"{row['kendall_tau']:.3f}" if "kendall_tau" in row else ""
        return [row["name"], f"{row['seconds']:,.1f}", speed, tau, ratio(row, 0), commit(row)]

    head = "what / tables / evaluations | seconds | formulas/s | tau with whole matrices | against networks | commit"
    return table(machine(rows[-1]), head, map(cells, rows))


PAGES: dict[str, dict[str, Callable[[list[Row]], list[str]]]] = {
    "scoring.md": {"scoring": speeds, "search": searches, "sweeps": sweeps, "products": products},
    "training.md": {"training": trainings},
    "supernet.md": {"supernet": supernets, "attention": attentions, "norms": norms},
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
