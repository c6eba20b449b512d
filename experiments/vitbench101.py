"""Auto-Prox's Tables 2, 5 and 6, and more: every proxy on the networks of ViT-Bench-101, beside the size baselines.

    VITSEARCH_DATA=... python experiments/vitbench101.py --scores autoformer.jsonl pit.jsonl [--commit HASH]

Scores come from `vitsearch bench correlate --proxy all --scores FILE`, or are made here (about half an hour on two
cores). Writes experiments/results/vitbench101.json, the tables of docs/proxies.md and its pictures (extra `plots`).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import matplotlib
from common import circumstances, write

from vitsearch.benchmark import Table, read_table
from vitsearch.correlation import Conditions, ScoreBook, between_proxies, choose_proxies, correlate, measured
from vitsearch.environment import pick_device
from vitsearch.proxies.size import BASELINES

matplotlib.use("agg")
import matplotlib.pyplot as plt

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
OURS = {"GraSP": "grasp", "TENAS": "te-score", "NWOT": "naswot", "TF-TAS": "dss", "SNIP": "snip"}
OURS["SynFlow"] = "synflow:sign=absolute"  # as the public codes have it
PAPER: dict[str, dict[tuple[str, str], tuple[float, ...]]] = {  # Kendall x 100: CIFAR-100, Flowers, Chaoyang (Table 2)
    "kendall": {
        ("autoformer", "GraSP"): (0.84, 0.82, -4.42),
        ("autoformer", "SynFlow"): (37.66, 62.59, 27.87),
        ("autoformer", "TENAS"): (-30.03, -53.55, -27.81),
        ("autoformer", "NWOT"): (54.65, 68.16, 27.29),
        ("autoformer", "TF-TAS"): (35.89, 63.90, 27.14),
        ("autoformer", "Auto-Prox"): (55.67, 69.19, 33.76),
        ("pit", "GraSP"): (-42.02, -50.66, -16.00),
        ("pit", "SynFlow"): (69.79, 62.22, 30.96),
        ("pit", "TENAS"): (-2.13, -2.86, -3.34),
        ("pit", "NWOT"): (-2.61, 2.67, 4.73),
        ("pit", "TF-TAS"): (63.83, 64.48, 37.99),
        ("pit", "Auto-Prox"): (82.07, 79.25, 41.67),
    },
    "spearman": {  # Table 6, accuracies without distillation
        ("pit", "SynFlow"): (86.88, 86.57, 64.51),
        ("pit", "NWOT"): (-0.45, 1.98, -2.26),
        ("pit", "TF-TAS"): (84.79, 86.51, 69.09),
        ("pit", "Auto-Prox"): (91.01, 90.70, 76.95),
    },
}
IMAGENET = {"SNIP": 14.61, "SynFlow": 14.81, "NWOT": 13.34, "TF-TAS": 14.52, "Auto-Prox": 25.44}  # Table 5, Kendall
SHORT = {"autoformer-tiny-plain": "autoformer", "pit": "pit"}


def beside_the_paper(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our figure and the paper's, in percent."""
    ours = {(row["benchmark"], row["dataset"], row["proxy"]): row for row in rows if row["source"] is None}
    found = []
    for measure, table in PAPER.items():
        suffix = "_kd" if measure == "kendall" else ""
        for (space, name), values in table.items():
            proxy = OURS.get(name) or {"autoformer": "autoproxa", "pit": "autoproxp"}[space]
            for dataset, value in zip(("cifar100", "flowers", "chaoyang"), values, strict=True):
                mine = ours.get((space, f"{dataset}{suffix}", proxy))
                table_number = 2 if measure == "kendall" else 6
                found.append(compared(table_number, space, f"{dataset}{suffix}", name, proxy, measure, value, mine))
    for name, value in IMAGENET.items():
        proxy = OURS.get(name) or "autoproxa"
        mine = ours.get(("autoformer", "imagenet_inherited", proxy))
        found.append(compared(5, "autoformer", "imagenet_inherited", name, proxy, "kendall", value, mine))
    return found


def compared(
    table: int, space: str, dataset: str, name: str, proxy: str, measure: str, paper: float, row: dict[str, Any] | None
) -> dict[str, Any]:
    ours = None if row is None or row[measure] is None else round(100 * row[measure], 1)
    return {"table": table, "space": space, "dataset": dataset, "paper_name": name, "proxy": proxy} | {
        "measure": measure,
        "paper": paper,
        "ours": ours,
    }


def picture_of_taus(space: str, rows: list[dict[str, Any]]) -> None:
    """Kendall over all networks against Kendall among networks of nearly the same size, by dataset."""
    datasets = [name for name in dict.fromkeys(row["dataset"] for row in rows) if name.endswith("_kd")]
    datasets += ["imagenet_inherited"] if any(row["dataset"] == "imagenet_inherited" for row in rows) else []
    figure, axes = plt.subplots(1, len(datasets), figsize=(4 * len(datasets), 7), sharey=True)
    own = [row for row in rows if row["source"] is None]
    joint = {row["proxy"]: row["kendall"] for row in own if row["dataset"] == "joint" and row["kendall"] is not None}
    order = sorted(joint, key=joint.__getitem__)
    for axis, dataset in zip(axes, datasets, strict=True):
        of = {row["proxy"]: row for row in own if row["dataset"] == dataset}
        for measure, colour, label in (
            ("kendall", "C0", "all"),
            ("kendall_near_size", "C1", "within 5 % of parameters"),
        ):
            known = [(place, of[name]) for place, name in enumerate(order) if of[name][measure] is not None]
            values = [row[measure] for _, row in known]
            ends = [[row[f"{measure}_low"] for _, row in known], [row[f"{measure}_high"] for _, row in known]]
            spread = [[abs(v - e) for v, e in zip(values, end, strict=True)] for end in ends]
            axis.errorbar(values, [p for p, _ in known], xerr=spread, fmt="o", ms=4, lw=1, c=colour, label=label)
        axis.axvline(0, c="grey", lw=0.5)
        axis.set_title(dataset)
    axes[0].set_yticks(range(len(order)), [f"{name} *" if name in BASELINES else name for name in order])
    axes[0].legend(loc="lower right", fontsize=7)
    figure.suptitle(f"{space}: Kendall's tau with 95 % intervals (* size baseline)")
    figure.tight_layout()
    figure.savefig(FIGURES / f"taus-{space}.svg")
    plt.close(figure)


def picture_of_scores(space: str, table: Table, book: ScoreBook, column: str, proxies: list[str]) -> None:
    pairs = measured(table, column)
    networks = [network for network, _ in pairs]
    figure, axes = plt.subplots(2, 4, figsize=(14, 6.5), sharey=True)
    for axis, proxy in zip(axes.flat, proxies, strict=False):
        axis.scatter(book.column(networks, 0, proxy), [accuracy for _, accuracy in pairs], s=8, alpha=0.7)
        axis.set_title(proxy)
    figure.suptitle(f"{space}, {column}: accuracy against score")
    figure.tight_layout()
    figure.savefig(FIGURES / f"scores-{space}.png", dpi=70)
    plt.close(figure)


def picture_of_agreement(space: str, table: Table, book: ScoreBook, column: str, proxies: list[str]) -> None:
    matrix = between_proxies(table, column, book, proxies, 0)
    shown = [index for index in range(len(proxies)) if matrix[index][0] is not None]
    figure, axis = plt.subplots(figsize=(8.5, 8))
    values = [[matrix[a][b] if matrix[a][b] is not None else 0.0 for b in shown] for a in shown]
    image = axis.imshow(values, vmin=-1, vmax=1, cmap="RdBu_r")
    axis.set_xticks(range(len(shown)), [proxies[index] for index in shown], rotation=90)
    axis.set_yticks(range(len(shown)), [proxies[index] for index in shown])
    figure.colorbar(image, shrink=0.7)
    axis.set_title(f"{space}, networks of {column}: Kendall's tau between proxies")
    figure.tight_layout()
    figure.savefig(FIGURES / f"agreement-{space}.svg")
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, nargs=2, required=True, help="for the AutoFormer and the PiT table")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    options = parser.parse_args()
    FIGURES.mkdir(exist_ok=True)
    names, rows = choose_proxies("all,synflow:sign=absolute"), []
    folder = Path(os.environ["VITSEARCH_DATA"]) / "vitbench101"
    for file, scores in zip(("autoformer-search.json", "pit-search.json"), options.scores, strict=True):
        table = read_table(folder / file)
        book = ScoreBook(Conditions(device=options.device), scores)
        book.fill([n for column in table.columns for n, _ in measured(table, column)], names, [0])
        here = [row | {"benchmark": SHORT[table.space]} for row in correlate([table], book, names, [0])]
        rows += here
        picture_of_taus(SHORT[table.space], here)
        chosen = ["params", "depth", "naswot", "snip", "dss", "synflow:sign=absolute", "grasp", "autoproxp"]
        picture_of_scores(SHORT[table.space], table, book, "cifar100_kd", chosen)
        picture_of_agreement(SHORT[table.space], table, book, "cifar100_kd", names)
    paper = beside_the_paper(rows)
    for line in paper:
        print(f"Table {line['table']} {line['space']:10s} {line['dataset']:20s} {line['paper_name']:9s}", end=" ")
        print(f"{line['measure']:8s} paper {line['paper']:6.1f}  ours ({line['proxy']}) {line['ours']}")
    about = circumstances(pick_device(options.device), options.commit)
    print(write("vitbench101.json", about | {"seeds": [0], "batch_size": 8, "rows": rows, "paper": paper}))


if __name__ == "__main__":
    main()
