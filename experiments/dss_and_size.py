"""How much does DSS say beyond the size of a network?

    python experiments/dss_and_size.py --device auto --out experiments/results [--commit HASH]

Draws networks of `autoformer-tiny` evenly over its parameter range, scores each with several seeds, and writes the
correlations and a picture. Needs the extra `plots`.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from itertools import combinations
from pathlib import Path
from statistics import mean

import matplotlib
import torch
from scipy.stats import kendalltau

import vitsearch
from vitsearch.environment import pick_device
from vitsearch.scoring import ProxyEvaluator

matplotlib.use("svg")
import matplotlib.pyplot as plt

SPACE, BINS, SEEDS, CHUNK = "autoformer-tiny", 15, (0, 1, 2), 20


def draw_evenly(per_bin: int) -> tuple[list[dict], list[int]]:
    """The same number of networks from each of 15 equal intervals of the parameter range."""
    region = vitsearch.SPACES[SPACE].region()
    low, high = (vitsearch.cost_of(end).params for end in (region.smallest(), region.largest()))
    networks, bins = [], []
    for index in range(BINS):
        edges = [low + (high - low) * step // BINS for step in (index, index + 1)]
        limits = vitsearch.Limits(min_params=edges[0], max_params=edges[1])
        networks += vitsearch.sample(SPACE, per_bin, seed=index, limits=limits)
        bins += [index] * per_bin
    return networks, bins


def tau(first: list[float], second: list[float]) -> float:
    return float(kendalltau(first, second).statistic)


def tau_inside_bins(first: list[float], second: list[float], bins: list[int]) -> float:
    """Mean over the bins: how far the two agree among networks of nearly the same size."""
    inside = [[i for i, b in enumerate(bins) if b == index] for index in range(BINS)]
    return mean(tau([first[i] for i in group], [second[i] for i in group]) for group in inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--per-bin", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", default=None)
    options = parser.parse_args()

    networks, bins = draw_evenly(options.per_bin)
    params = [vitsearch.cost_of(network).params for network in networks]
    scores, start = {}, time.perf_counter()
    for seed in SEEDS:
        evaluator = ProxyEvaluator(["dss"], seed=seed, device=options.device)
        scores[seed] = [
            score.scores["dss"]
            for first in range(0, len(networks), CHUNK)
            for score in evaluator(networks[first : first + CHUNK])
        ]
        print(f"seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
    seconds = time.perf_counter() - start

    device = pick_device(options.device)
    commit = (
        options.commit
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
    )
    pairs = list(combinations(SEEDS, 2))
    result = {
        "space": SPACE,
        "networks": len(networks),
        "seeds": SEEDS,
        "kendall_dss_params": {seed: tau(scores[seed], params) for seed in SEEDS},
        "kendall_dss_params_inside_bins": {seed: tau_inside_bins(scores[seed], params, bins) for seed in SEEDS},
        "kendall_between_seeds": {f"{a},{b}": tau(scores[a], scores[b]) for a, b in pairs},
        "kendall_between_seeds_inside_bins": {
            f"{a},{b}": tau_inside_bins(scores[a], scores[b], bins) for a, b in pairs
        },
        "bin_width_params": (max(params) - min(params)) // BINS,
        "seconds": round(seconds, 1),
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "versions": {"vitsearch": vitsearch.__version__, "torch": torch.__version__},
        "commit": commit,
        "command": "python experiments/dss_and_size.py",
        "points": [{"params": p, "dss": [scores[seed][i] for seed in SEEDS]} for i, p in enumerate(params)],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "dss_and_size.json").write_text(json.dumps(result, indent=1) + "\n")
    picture(result, options.out / "dss_and_size.svg")
    print(json.dumps({key: value for key, value in result.items() if key != "points"}, indent=2))


def picture(result: dict, path: Path) -> None:
    plt.rcParams["svg.hashsalt"] = "vitsearch"
    figure, axes = plt.subplots(figsize=(7, 4))
    params = [point["params"] / 1e6 for point in result["points"]]
    for index, seed in enumerate(result["seeds"]):
        axes.scatter(params, [point["dss"][index] for point in result["points"]], s=7, alpha=0.6, label=f"seed {seed}")
    overall = mean(result["kendall_dss_params"].values())
    inside = mean(result["kendall_between_seeds_inside_bins"].values())
    axes.set_title(
        f"{result['networks']} networks of {result['space']}: tau(DSS, parameters) = {overall:.2f};\n"
        f"between seeds, at nearly equal size: tau = {inside:.2f}",
        fontsize=10,
    )
    axes.set_xlabel("parameters (millions)")
    axes.set_ylabel("DSS, initial weights")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
