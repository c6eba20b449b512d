"""Write the tables of docs/proxies.md from experiments/results/.

python experiments/proxy_tables.py [--check]
"""

from __future__ import annotations

import json
from typing import Any

from pages import RESULTS, put

BASELINES = ("params", "macs", "depth", "width")
Row = dict[str, Any]


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f}"


def with_interval(row: Row, measure: str) -> str:
    low, high = row.get(f"{measure}_low"), row.get(f"{measure}_high")
    ends = f" ({percent(low)}..{percent(high)})" if low is not None and high is not None else ""
    return f"{percent(row[measure])}{ends}"


def table(rows: list[Row], measure: str) -> list[str]:
    """Proxies down, in the order of their joint tau; distilled accuracies and the inherited one across."""
    of = {(row["proxy"], row["dataset"]): row for row in rows}
    datasets = [name for name in dict.fromkeys(row["dataset"] for row in rows) if name.endswith(("_kd", "_inherited"))]
    joint = {name: row["kendall"] for (name, dataset), row in of.items() if dataset == "joint"}
    names = sorted(dict.fromkeys(row["proxy"] for row in rows), key=lambda name: -(joint.get(name) or -2))
    lines = [f"| proxy | {' | '.join(datasets)} | joint |", "|---" * (len(datasets) + 2) + "|"]
    for name in names:
        if of[name, datasets[0]]["failure"] and not of[name, datasets[0]]["networks"]:
            lines.append(f"| {name} |" + " not defined |" * len(datasets) + " |")
            continue
        cells = [with_interval(of[name, dataset], measure) or "constant" for dataset in datasets]
        shown = f"**{name}** (size)" if name in BASELINES else name
        lines.append(f"| {shown} | {' | '.join(cells)} | {percent(of[name, 'joint'][measure])} |")
    return lines


def beside_the_paper(found: dict[str, Any]) -> list[str]:
    lines = ["| table | space | column | proxy | paper | here |", "|---|---|---|---|---|---|"]
    for row in found["paper"]:
        ours = "constant" if row["ours"] is None else f"{row['ours']:.1f}"
        name = (
            row["paper_name"] if row["paper_name"].lower() == row["proxy"] else f"{row['paper_name']} ({row['proxy']})"
        )
        where = f"{row['table']} | {row['space']} | {row['dataset']}, {row['measure']}"
        lines.append(f"| {where} | {name} | {row['paper']:.1f} | {ours} |")
    return lines


def over_seeds() -> list[str]:
    """Kendall's tau with four seeds of weights and images, beside the paper's four."""
    found = json.loads((RESULTS / "seed_spread-cifar100_kd.json").read_text())
    where = f"{found['machine']}, torch {found['versions']['torch']}, commit {found['commit']}"
    seeds = ", ".join(map(str, found["seeds"]))
    lines = [
        f"{where}: {found['rows'][0]['networks']} networks, CIFAR-100 distilled; tau x 100 with seeds {seeds}.\n",
        "| proxy | here | deviation | paper |",
        "|---|---|---|---|",
    ]
    for row in found["rows"]:
        if all(tau is not None for tau in row["kendall_by_seed"]):
            here = ", ".join(percent(tau) for tau in row["kendall_by_seed"])
            paper = ", ".join(percent(tau) for tau in found["paper"].get(row["proxy"], []))
            shown = f"**{row['proxy']}** (size)" if row["proxy"] in BASELINES else row["proxy"]
            lines.append(f"| {shown} | {here} | {100 * row['kendall_deviation']:.1f} | {paper} |")
    return lines


def pruned() -> list[str]:
    """Mean accuracy over networks against the share of pruned weights."""
    found = json.loads((RESULTS / "pruning_sensitivity.json").read_text())
    ratios = found["ratios"]
    lines = [
        f"{found['machine']}, torch {found['versions']['torch']}, commit {found['commit']}: {found['data']}, "
        f"{found['epochs']} epochs; accuracy in percent, mean over networks, by the share of weights set to zero.\n",
        f"| space | pruned | {' | '.join(f'{100 * ratio:.0f} %' for ratio in ratios)} |",
        "|---" * (len(ratios) + 2) + "|",
    ]
    for space in dict.fromkeys(row["space"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["space"] == space]
        for role in ("attention", "mlp"):
            means = [sum(row[role][at] for row in rows) / len(rows) for at in range(len(ratios))]
            lines.append(f"| {space} ({len(rows)}) | {role} | {' | '.join(f'{mean:.1f}' for mean in means)} |")
    return lines


def rendered() -> str:
    found = json.loads((RESULTS / "vitbench101.json").read_text())
    about = f"{found['machine']}, torch {found['versions']['torch']}, commit {found['commit']}"
    lines = [f"\n{about}; seed 0, a batch of 8 noise images.\n"]
    for space, title in (("autoformer", "AutoFormer-like networks"), ("pit", "PiT networks")):
        rows = [row for row in found["rows"] if row["benchmark"] == space and row["source"] is None]
        most = max(row["networks"] for row in rows)
        pairs = {
            row["dataset"]: (row.get("pairs"), row.get("near_size_pairs")) for row in rows if row["networks"] == most
        }
        equal, near = pairs["cifar100_kd"]
        lines += [f"### {title}\n", f"Kendall's tau x 100 over {most} networks, with 95 % bootstrap intervals:\n"]
        lines += table(rows, "kendall")
        lines += [f"\nThe same among pairs within 5 % of parameters ({near} pairs; {equal} of exactly equal size):\n"]
        lines += table(rows, "kendall_near_size")
        if equal:
            lines += ["\nAmong pairs of exactly equal size:\n", *table(rows, "kendall_equal_size")]
        lines += [f"\n![Kendall's tau](figures/taus-{space}.svg)", f"\n![Scores](figures/scores-{space}.png)"]
        lines += [f"\n![Between proxies](figures/agreement-{space}.svg)\n"]
    lines += ["### Beside the paper\n", *beside_the_paper(found)]
    lines += ["\n### Over seeds (TF-TAS, Table 6)\n", *over_seeds()]
    lines += ["\n### Pruning (TF-TAS, Figure 2)\n", *pruned()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    put("proxies.md", __file__, rendered())
