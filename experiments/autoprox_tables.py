"""Write the tables of docs/autoprox.md from experiments/results/.

python experiments/autoprox_tables.py [--check]
"""

from __future__ import annotations

import json
from typing import Any

from pages import RESULTS, put

TITLES = {"autoformer": "AutoFormer-like networks", "pit": "PiT networks"}
SIZES = ("params", "macs", "depth", "width")
PAPER = {  # Auto-Prox, Table 2: Kendall's tau of CIFAR-100, Flowers, Chaoyang
    "autoformer": (0.557, 0.692, 0.338),
    "pit": (0.821, 0.793, 0.417),
}
Row = dict[str, Any]


def number(row: Row, measure: str) -> str:
    if row[measure] is None:
        return "-"
    low, high = row[f"{measure}_low"], row[f"{measure}_high"]
    return f"{row[measure]:.3f}" + (f" ({low:.3f}..{high:.3f})" if low is not None else "")


def line(name: str, rows: list[Row]) -> str:
    *columns, joint = rows
    cells = [f"{row['kendall']:.3f}" if row["kendall"] is not None else "-" for row in columns]
    near = " / ".join("-" if r["kendall_near_size"] is None else f"{r['kendall_near_size']:.2f}" for r in columns)
    return (
        f"| {name} | {' | '.join(cells)} | {number(joint, 'kendall')} | {number(joint, 'above_best_size')} | {near} |"
    )


def nested(runs: list[Row], space: str) -> list[str]:
    """Every row over pairs of networks of one fold; `discovered` by searches that did not see the fold."""
    datasets = [row["dataset"] for row in runs[0]["rows"] if row["score"] == "params"][:-1]
    heads = " | ".join(name.partition("/")[2] for name in datasets)
    lines = [
        f"| score | {heads} | mean (95 %) | above the best size (95 %) | at near size |",
        "|---" * (len(datasets) + 4) + "|",
    ]
    before: dict[str, str] = {}
    learned: dict[str, str] = {}  # what supervision gives stands last
    for name in dict.fromkeys(row["score"] for row in runs[0]["rows"]):
        rows = [row for row in runs[0]["rows"] if row["score"] == name]
        place = before if name in (*SIZES, "autoproxa", "autoproxp") else learned
        place[name] = line(f"**{name}** (size)" if name in SIZES else name, rows)
    del learned["discovered"]
    lines += before.values()
    for run in runs:
        rows = [row for row in run["rows"] if row["score"] == "discovered"]
        lines.append(line(f"discovered: {run['label']}", rows))
    lines += learned.values()
    paper = " | ".join(f"*{value:.3f}*" for value in PAPER[space])
    mean = sum(PAPER[space]) / 3
    return [*lines, f"| *Auto-Prox, as published* | {paper} | *{mean:.3f}* | | |"]


def formulas(runs: list[Row]) -> list[str]:
    lines = ["| search | evaluations | tau on all | seconds | formula |", "|---|---|---|---|---|"]
    for run in runs:
        facts = f"{run['evaluations']} | {run['joint']:.3f} | {run['seconds']:.0f}"
        lines.append(f"| {run['label']} | {facts} | `{run['formula']}` |")
    return lines


def curves(runs: list[Row]) -> list[str]:
    steps = list(dict.fromkeys(step for run in runs for step in run["curve"]))
    lines = [f"| search | {' | '.join(steps)} |", "|---" * (len(steps) + 1) + "|"]
    for run in runs:
        cells = [f"{run['curve'][step]:.3f}" if step in run["curve"] else "" for step in steps]
        lines.append(f"| {run['label']} | {' | '.join(cells)} |")
    return lines


def shipped(found: Row, space: str) -> list[str]:
    one = found["shipped"][space]
    rows = [row for row in one["rows"] if row["score"] == "shipped"]
    near = ", ".join(f"{name} {tau:.2f}" for name, tau in one["nearness"].items())
    seeds = "; ".join(" / ".join(f"{tau:.3f}" for tau in taus) for taus in one["kendall_by_seed"])
    best = rows[-1]["best_size"]
    return [
        f"`discovered-{space}`: `{one['formula']}`. On all networks, which chose it, mean tau "
        f"{number(rows[-1], 'kendall')}, {number(rows[-1], 'above_best_size')} above `{best}`. By seed of the weights: "
        f"{seeds}. Largest tau with sizes: {near}."
    ]


def pairs(found: Row) -> list[str]:
    lines = [
        "| table | layers | seeds | branches | mean tau | with a seed it did not see | best pair |",
        "|---" * 7 + "|",
    ]
    for one in found["pairs"]:
        other = "" if one["with_next_seed"] is None else f"{one['with_next_seed']:.3f}"
        facts = (
            f"{one['space']} | {one['aggregate']} | {one['seeds']} | {one['branches']} | {one['joint']:.3f} | {other}"
        )
        lines.append(f"| {facts} | `{one['formula']}` |")
    return lines


def runs_of(found: Row, space: str) -> list[Row]:
    """Those of weights as they are called, those of all inputs with that before it."""
    runs = [run for run in found["runs"] if run["space"] == space]
    return [run | {"label": f"all inputs, {run['label']}"} if found["inputs"] == "all" else run for run in runs]


def circumstances(found: Row) -> str:
    return (
        f"Inputs: {found['inputs']}, {found['seeds']} seeds, batch {found['batch_size']}, tolerance "
        f"{found['tolerance']}; {found['machine']}, torch {found['versions']['torch']}, commit {found['commit']}.\n"
    )


def rendered() -> str:
    weights, every = (json.loads((RESULTS / name).read_text()) for name in ("autoprox.json", "autoprox-all.json"))
    lines = ["", circumstances(weights), circumstances(every)]
    for space, title in TITLES.items():
        runs = runs_of(weights, space) + runs_of(every, space)
        lines += [f"### {title}\n", *nested(runs, space), "", *shipped(weights, space), ""]
        lines += ["What the searches on all networks found:\n", *formulas(runs)]
        lines += ["\nBest mean tau so far, by evaluations (Figure 5):\n", *curves(runs), ""]
    lines += ["### All pairs of branches over weights\n", *pairs(weights)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    put("autoprox.md", __file__, rendered())
