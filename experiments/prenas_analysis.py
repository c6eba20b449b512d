"""PreNAS, Figures 3c and 6 and Table 8: does normalised SNIP find the better isomers of a trained supernet?

    vitsearch supernet train autoformer-tiny --data ... --out supernet           # redundant training
    python experiments/prenas_analysis.py --supernet supernet --name tiny-cifar10 [--device auto] [--commit HASH]

Accuracies are those of the validation part with inherited weights. Scores are means over `--draws` batches, with the
weights of the supernet (as the paper's appendix A) and with initial weights (as the choice itself). Writes
results/prenas_analysis-NAME.json and a picture; the picture needs the extra `plots`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from random import Random
from typing import Any, cast

import torch
from common import RESULTS, circumstances, command_line, write

from vitsearch.architecture import Settings
from vitsearch.data import open_data
from vitsearch.environment import pick_device
from vitsearch.evaluate import SupernetEvaluator
from vitsearch.methods.preselection import Pass
from vitsearch.methods.score_tables import ScoreTables, Tables
from vitsearch.methods.two_steps import Selector
from vitsearch.ranking import kendall, mean_best_rank
from vitsearch.spaces import cost_of, sample
from vitsearch.spaces.isotropic import Isotropic

PAPER = {"ratios": {"snip": 0.986, "normalised": 0.099}, "heads": {"snip": 0.825, "normalised": 0.180}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--supernet", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--per-group", type=int, default=924, help="isomers of each size in Table 8's cases, at most")
    parser.add_argument("--networks", type=int, default=500, help="networks of each space in Figure 6")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = pick_device(options.device)
    accuracy = Accuracy(options.supernet, device)
    tables = {kind: draw(accuracy, kind, options.draws, options.batch_size, device) for kind in ("trained", "initial")}
    found: dict[str, Any] = circumstances(device, options.commit) | {
        "command": command_line(),
        "supernet": about_supernet(accuracy, options.supernet),
        "draws": options.draws,
        "batch_size": options.batch_size,
        "growth": {kind: growth(accuracy.space, each) for kind, each in tables.items()},
        "cases": {case: one_case(accuracy, tables, case, options.per_group) for case in ("ratios", "heads")},
        "spaces": spaces(accuracy, tables["initial"], options.networks),
        "paper": PAPER,
    }
    found["evaluated"] = len(accuracy.known)
    write(f"prenas_analysis-{options.name}.json", found, options.out)
    for case, each in found["cases"].items():
        print(case, {name: each[name] for name in each if name.startswith("mean_best_rank")}, "paper", PAPER[case])
    print({name: each["mean_error"] for name, each in found["spaces"].items()})
    picture(found, options.out / f"prenas_analysis-{options.name}.svg")


class Accuracy:
    """Of networks of the supernet, each evaluated once."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.evaluator = SupernetEvaluator(folder, device=device)
        self.space = cast(Isotropic, self.evaluator.space)
        self.known: dict[str, float] = {}
        self.began = time.perf_counter()

    def __call__(self, settings: Settings) -> float:
        key = str(settings)
        if key not in self.known:
            (score,) = self.evaluator([settings])
            self.known[key] = score.scores[self.evaluator.name]
            if len(self.known) % 500 == 0:
                print(f"{len(self.known)} networks, {time.perf_counter() - self.began:.0f} s", flush=True)
        return self.known[key]


def about_supernet(accuracy: Accuracy, folder: Path) -> dict[str, Any]:
    plan = accuracy.evaluator.plan
    about = {"space": accuracy.space.name, "data": Path(plan.data).name, "seed": plan.seed, "subnets": plan.subnets}
    result = json.loads((folder / "result.json").read_text())
    return about | {"recipe": plan.recipe.to_json(), "result": result}


def draw(accuracy: Accuracy, kind: str, draws: int, batch_size: int, device: torch.device) -> list[ScoreTables]:
    passes = Pass(
        space=accuracy.space,
        geometry=accuracy.evaluator.geometry,
        variant="paper",
        source=open_data(accuracy.evaluator.plan.data),
        batch_size=batch_size,
        seed=0,
        device=device,
        trained=accuracy.evaluator.supernet if kind == "trained" else None,
    )
    return [passes.tables(number) for number in range(draws)]


def growth(space: Isotropic, draws: list[ScoreTables]) -> dict[str, list[float]]:
    """Figure 3c: by how much each block's score grows from the lowest to the highest choice, at the largest width."""
    mean, width = ScoreTables.mean(draws), space.embed_dim.index(max(space.embed_dim))
    found = {}
    for name, tables in (("snip", mean.snip), ("normalised", mean.normalised)):
        for part in ("heads", "ratios"):
            values = getattr(tables, part)[width]
            found[f"{name}_{part}"] = (values[:, -1] - values[:, 0]).tolist()
    return found


def one_case(accuracy: Accuracy, tables: dict[str, list[ScoreTables]], case: str, per_group: int) -> dict[str, Any]:
    """Table 8: smallest width and depth, one knob at its highest, the other one lowest or highest in every block."""
    space = accuracy.space
    varied, fixed = (space.mlp_ratio, space.num_heads) if case == "ratios" else (space.num_heads, space.mlp_ratio)
    depth = min(space.depth)
    networks, groups = [], []
    for large in range(1, depth):
        places = list(itertools.combinations(range(depth), large))
        for chosen in Random(f"0/{case}/{large}").sample(places, min(per_group, len(places))):
            values = [max(varied) if number in chosen else min(varied) for number in range(depth)]
            rest = [max(fixed)] * depth
            heads, ratios = (rest, values) if case == "ratios" else (values, rest)
            settings = space.settings(embed_dim=min(space.embed_dim), depth=depth, num_heads=heads, mlp_ratio=ratios)
            networks.append(settings)
            groups.append(large)
    accuracies = [accuracy(settings) for settings in networks]
    found: dict[str, Any] = {"networks": len(networks), "groups": spans(accuracies, groups)}
    for kind, draws in tables.items():
        selector = Selector(space, draws, geometry=accuracy.evaluator.geometry)
        for name, table in (("snip", selector.mean.snip), ("normalised", selector.mean.normalised)):
            scores = [selector.score(table, selector.kind(settings)) for settings in networks]
            found[f"mean_best_rank_{name}_{kind}"] = mean_best_rank(scores, accuracies, groups)
            found[f"kendall_inside_{name}_{kind}"] = inside(scores, accuracies, groups)
    return found


def spans(accuracies: list[float], groups: list[int]) -> list[dict[str, float]]:
    """Table 7: members of each group, and from the worst to the best of them."""
    found = []
    for label in dict.fromkeys(groups):
        own = [value for value, group in zip(accuracies, groups, strict=True) if group == label]
        found.append({"large": label, "networks": len(own), "span": max(own) - min(own)})
    return found


def inside(scores: list[float], accuracies: list[float], groups: list[int]) -> float | None:
    """Mean of Kendall's tau over the groups where it is defined."""
    taus = []
    for label in dict.fromkeys(groups):
        own = [number for number, group in enumerate(groups) if group == label]
        taus.append(kendall([scores[number] for number in own], [accuracies[number] for number in own]))
    known = [tau for tau in taus if tau is not None]
    return sum(known) / len(known) if known else None


def spaces(accuracy: Accuracy, draws: list[ScoreTables], count: int) -> dict[str, Any]:
    """Figure 6: networks of the whole space (A), and of each the best isomer by normalised (B) and plain SNIP (C)."""
    space, geometry = accuracy.space, accuracy.evaluator.geometry
    selector = Selector(space, draws, geometry=geometry)
    drawn = sample(space, count, seed=0, geometry=geometry)
    ways: dict[str, Tables | None] = {"A": None, "B": selector.mean.normalised, "C": selector.mean.snip}
    found = {}
    for name, tables in ways.items():
        networks = [
            one if tables is None else selector.settings(selector.best_isomer(tables, selector.kind(one)))
            for one in drawn
        ]
        assert [cost_of(one, geometry) for one in networks] == [cost_of(one, geometry) for one in drawn]
        errors = [100 - accuracy(one) for one in networks]
        found[name] = {"mean_error": sum(errors) / len(errors), "errors": sorted(errors)}
    return found


def picture(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "vitsearch"
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.6))
    for kind, values in found["growth"].items():
        for axes, name in ((left, "snip_ratios"), (middle, "normalised_ratios")):
            shown = [value / max(values[name]) for value in values[name]]
            axes.plot(range(1, len(shown) + 1), shown, marker="o", markersize=3, label=f"{kind} weights")
    left.set_title("SNIP added by more MLP units (Figure 3c)", fontsize=10)
    middle.set_title("the same, normalised by block", fontsize=10)
    for axes in (left, middle):
        axes.set_xlabel("block")
        axes.set_ylabel("of the most")
        axes.set_ylim(0, 1.05)
        axes.legend(frameon=False, fontsize=8)
    for name, each in found["spaces"].items():
        errors = each["errors"]
        shares = [(number + 1) / len(errors) for number in range(len(errors))]
        right.step(errors, shares, label=f"{name}: {each['mean_error']:.2f} %")
    right.set_title("error of networks of spaces A, B, C (Figure 6)", fontsize=10)
    right.set_xlabel("error (%)")
    right.set_ylabel("share of networks")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
