"""Draw docs/figures/ from experiments/results/*.json, whatever of them is there: what was trained, beside its seeds.

python experiments/result_figures.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pages import RESULTS, ROOT
from result_tables import two_digits

Row = dict[str, Any]
KINDS = {"spread": ("spread over all sizes", "tab:blue"), "random": ("random, of the winner's size", "tab:orange")}
ONES = {"winner": "tab:red", "largest": "tab:green"}


def cifar10_supernet(found: Row) -> Figure:
    """From scratch against inherited accuracy, and against parameters; bars reach from seed to seed."""
    reached: dict[str, list[Row]] = {}
    for row in found["retrained"]:
        reached.setdefault(row["name"], []).append(row)
    inherited = found["inherited_validation_top1"]
    tau = found["reading"]["correlation"]
    over = f"the {tau['networks']} of all sizes"
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    for kind, (label, colour) in KINDS.items():
        names = [name for name in reached if name.startswith(kind)]
        scatter(left, [inherited[name] for name in names], [reached[name] for name in names], label, colour)
        scatter(right, [millions(reached[name]) for name in names], [reached[name] for name in names], label, colour)
    for name, colour in ONES.items():
        scatter(left, [inherited[name]], [reached[name]], name, colour)
        scatter(right, [millions(reached[name])], [reached[name]], name, colour)
    left.set(xlabel="inherited from the supernet, validation (%)", ylabel="from scratch, test (%)")
    left.set_title(f"tau = {two_digits(tau['kendall'])} over {over}", fontsize=10)
    right.set_xlabel("parameters (millions)")
    right.set_title(f"tau = {two_digits(tau['params_kendall'])} over {over}", fontsize=10)
    right.legend(frameon=False, fontsize=8)
    return figure


def millions(rows: list[Row]) -> float:
    return float(rows[0]["params"]) / 1e6


def scatter(axes: Axes, x: list[float], rows: list[list[Row]], label: str, colour: str) -> None:
    values = [[row["test_top1"] for row in own] for own in rows]
    axes.vlines(x, [min(own) for own in values], [max(own) for own in values], color=colour, alpha=0.5)
    axes.scatter(x, [fmean(own) for own in values], s=16, color=colour, label=label)


def prenas_training(found: Row) -> Figure:
    """The chosen networks out of both kinds of supernet: seeds as dots, their mean as a line."""
    figure, axes = plt.subplots(figsize=(6.5, 3.6))
    names = {"balanced": "trained on the chosen alone", "redundant": "trained on the whole space"}
    for number, scheme in enumerate(found["mean"]["top1"]):
        sizes = [row["params"] / 1e6 for row in found["rows"]]
        axes.plot(sizes, [fmean(row["top1"][scheme]) for row in found["rows"]], color=f"C{number}")
        for size, row in zip(sizes, found["rows"], strict=True):
            axes.scatter([size] * len(row["top1"][scheme]), row["top1"][scheme], s=16, color=f"C{number}", alpha=0.7)
        axes.plot([], [], "o-", color=f"C{number}", label=f"{scheme}: {names.get(scheme, scheme)}")
    axes.set(xlabel="parameters (millions)", ylabel="inherited, validation (%)")
    axes.legend(frameon=False, fontsize=8)
    return figure


def s3_cifar10(found: Row) -> Figure:
    """Errors of drawn networks of every space, a line for each seed; and the best networks against their MACs."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    for number, summary in enumerate(found["summary"]):
        colour, label = f"C{number}", f"space {summary['space']}"
        own = [row["spaces"][number] for row in found["cells"]]
        for place, one in enumerate(own):
            shares = [(rank + 1) / len(one["errors"]) for rank in range(len(one["errors"]))]
            left.step(one["errors"], shares, where="post", color=colour, label=None if place else label, linewidth=1)
        best = [one["best"] for one in own if one["best"] is not None]
        right.scatter([one["macs"] / 1e6 for one in best], [one["retrained_top1"] for one in best], color=colour, s=24)
    left.set(xlabel="error in the supernet, validation (%)", ylabel="share of networks")
    left.legend(frameon=False, fontsize=8)
    right.set(xlabel=f"MACs (millions) of the best below {found['max_macs']}", ylabel="from scratch, test (%)")
    return figure


def s3_inherited(found: Row) -> Figure:
    """Networks in the order of their accuracy from scratch, bars from seed to seed; beside them where blocks look."""
    rows = sorted(found["rows"], key=lambda row: row["scratch"]["mean"])
    looks = found.get("attention", [])
    count = 3 if looks else 1
    figure, places = plt.subplots(1, count, figsize=(3 + 3.5 * count, 3.6), squeeze=False)
    axes, *others = places[0]
    axes.plot(range(len(rows)), [row["inherited"] for row in rows], "o-", color="C0", label="inherited")
    for number, (name, label) in enumerate({"tuned": "after fine-tuning", "scratch": "from scratch"}.items(), 1):
        own = [[{"test_top1": value} for value in row[name]["values"]] for row in rows]
        scatter(axes, list(range(len(rows))), own, label, f"C{number}")
    axes.set(xlabel="network", ylabel="test (%)")
    axes.legend(frameon=False, fontsize=8)
    names = {"mean_distance": "distance of attention (tokens)", "similarity": "likeness of heads (cosine)"}
    for axes, (name, label) in zip(others, names.items(), strict=False):
        looking(axes, looks, name, label)
    return figure


def looking(axes: Axes, looks: list[Row], name: str, label: str) -> None:
    """A dot for each block of each network, by stage, place and window, and the mean of each place."""
    windows = sorted({look["window"] for look in looks})
    deepest = max(look["block"] for look in looks)
    for number, window in enumerate(windows):
        by_place: dict[float, list[float]] = {}
        for look in looks:
            if look["window"] == window and look[name] is not None:
                by_place.setdefault(look["stage"] + 0.6 * (look["block"] - 1) / deepest, []).append(look[name])
        if not by_place:  # one head alone is like no other
            continue
        dots = [(place, value) for place, values in by_place.items() for value in values]
        axes.scatter(*zip(*dots, strict=True), s=10, alpha=0.4, color=f"C{number}")
        means = sorted((place, fmean(values)) for place, values in by_place.items())
        axes.plot(*zip(*means, strict=True), "_", markersize=14, color=f"C{number}", label=f"window {window}")
    axes.set(xlabel="stage, and block in it", ylabel=label, xticks=sorted({look["stage"] for look in looks}))
    axes.legend(frameon=False, fontsize=8)


def proxy_winners(found: Row) -> Figure:
    """What was chosen, by whom, beside its size; bars reach from seed to seed."""
    spaces = list(dict.fromkeys(row["space"] for row in found["rows"]))
    figure, places = plt.subplots(1, len(spaces), figsize=(9.5, 4), squeeze=False)
    for axes, space in zip(places[0], spaces, strict=True):
        names: dict[str, list[str]] = {}
        rows = [row for row in found["rows"] if row["space"] == space and row["test_top1"]]
        for row in rows:
            if not row["name"].startswith("random"):
                names.setdefault(str(row["settings"]), []).append(row["name"])
        for row in rows:
            chosen_by = names.pop(str(row["settings"]), None)
            random = row["name"].startswith("random")
            if chosen_by or random:
                own = [{"test_top1": value} for value in row["test_top1"]["values"]]
                label = "random" if row["name"] == "random-0" else ", ".join(chosen_by or [])
                scatter(axes, [row["params"] / 1e6], [own], label, "0.6" if random else f"C{len(names)}")
        axes.set(xlabel="parameters (millions)", title=space)
        axes.legend(frameon=False, fontsize=7, loc="lower right")
    places[0][0].set_ylabel("Flowers-102, test (%)")
    return figure


FIGURES: dict[str, Callable[[Row], Figure]] = {
    "cifar10_supernet": cifar10_supernet,
    "prenas_training": prenas_training,
    "s3_cifar10": s3_cifar10,
    "s3_inherited": s3_inherited,
    "proxy_winners": proxy_winners,
}


def draw(results: Path, folder: Path) -> list[Path]:
    plt.rcParams["svg.hashsalt"] = "vitsearch"
    written = []
    for name, figure_of in FIGURES.items():
        if (results / f"{name}.json").exists():
            figure = figure_of(json.loads((results / f"{name}.json").read_text()))
            for axes in figure.axes:
                axes.spines[["top", "right"]].set_visible(False)
            figure.tight_layout()
            written.append(folder / f"{name}.svg")
            figure.savefig(written[-1], metadata={"Date": None})
            plt.close(figure)
    return written


if __name__ == "__main__":
    for path in draw(RESULTS, ROOT / "docs" / "figures"):
        print(path.relative_to(ROOT))
