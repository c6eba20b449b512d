"""PreNAS's published candidates: how far does its public code's choice agree with them, over seeds?

    python experiments/prenas_published.py [--published FILE] [--seeds 20] [--device auto] [--commit HASH]

The code's variant with its settings: 64 noise images, bins of 1, 5 and 12 M, depths 13 and 14 for the small space. The
published file came from seed 0 of another program, whose random numbers are not ours: every seed here is another draw.
Beside it the paper's own scores (batch 8), whose draws are averaged.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from common import RESULTS, circumstances, write

from vitsearch.cost import IMAGENET, Limits
from vitsearch.data import open_data
from vitsearch.environment import pick_device
from vitsearch.methods.allocation import agreement
from vitsearch.methods.preselection import BATCH_SIZES, Budgets, Pass
from vitsearch.methods.score_tables import ScoreTables, Variant
from vitsearch.methods.two_steps import Pick, Selector
from vitsearch.spaces import SPACES, cost_of
from vitsearch.spaces.isotropic import Isotropic

MILLION = 10**6
SPACES_OF_THE_CODE = {  # lowest, highest bound and step of its commands, and what its files change in the space
    "autoformer-tiny": ((5, 11, 1), {}),
    "autoformer-small": ((13, 33, 5), {"depth": (13, 14)}),
    "autoformer-base": ((30, 66, 12), {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, required=True, help="published.json: networks with their costs")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--spaces", nargs="+", default=list(SPACES_OF_THE_CODE))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    options = parser.parse_args()
    device = pick_device(options.device)
    known = [entry["arch"] for entry in json.loads(options.published.read_text()) if entry["name"].startswith("PreNAS")]
    file = RESULTS / "prenas_published.json"
    done = json.loads(file.read_text())["spaces"] if file.exists() else {}
    for name in options.spaces:
        done[name] = examine(name, [arch for arch in known if arch["space"] == name], options.seeds, device)
        write(file.name, circumstances(device, options.commit) | {"spaces": done})


def examine(name: str, published: list[dict[str, Any]], seeds: int, device: torch.device) -> dict[str, Any]:
    (low, high, step), changes = SPACES_OF_THE_CODE[name]
    space = replace(cast(Isotropic, SPACES[name]), **cast(Any, changes))
    budgets = Budgets(bounds=tuple(bound * MILLION for bound in range(low + step, high + 1, step)), below=low * MILLION)
    found: dict[str, Any] = {"seeds": seeds}
    for variant in cast(tuple[Variant, ...], ("code", "paper")):
        began = time.perf_counter()
        passes = [one_pass(space, variant, seed, device) for seed in range(seeds)]
        tables = []
        for seed, source in enumerate(passes):
            tables.append(source.tables(0))
            print(f"{name} {variant} seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)
        found[variant] = {
            "batch_size": BATCH_SIZES[variant],
            "seconds_per_seed": round((time.perf_counter() - began) / seeds, 2),
            "rows": rows(space, variant, tables, budgets, published),
        }
    return found


def one_pass(space: Isotropic, variant: Variant, seed: int, device: torch.device) -> Pass:
    return Pass(
        space=space,
        geometry=IMAGENET,
        variant=variant,
        source=open_data("noise"),
        batch_size=BATCH_SIZES[variant],
        seed=seed,
        device=device,
    )


def rows(
    space: Isotropic, variant: Variant, tables: list[ScoreTables], budgets: Budgets, published: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One for each budget: what was published, what every seed picks, and what all of them together pick."""

    def choose(draws: list[ScoreTables]) -> list[Pick]:
        selector = Selector(space, draws, geometry=IMAGENET, variant=variant)
        return selector.picks(budgets.windows(variant), top=1, resource="params", limits=Limits())

    by_seed = [choose([one]) for one in tables]
    together = choose(tables)
    found = []
    for number, bound in enumerate(pick.budget for pick in together):
        theirs = nearest(published, bound)
        compared = [compare(picks[number].settings, theirs) for picks in by_seed]
        found.append(
            {
                "budget": bound,
                "published": theirs,
                "same_width_and_depth": sum(one["same_width_and_depth"] for one in compared),
                "identical": sum(one["identical"] for one in compared),
                "agreement_heads": mean([one["heads"] for one in compared]),
                "agreement_ratios": mean([one["ratios"] for one in compared]),
                "between_seeds_heads": together[number].agreement_heads,
                "between_seeds_ratios": together[number].agreement_ratios,
                "picks": [picks[number].settings for picks in by_seed],
                "together": together[number].settings,
                "together_compared": compare(together[number].settings, theirs),
            }
        )
    return found


def nearest(published: list[dict[str, Any]], bound: int) -> dict[str, Any]:
    """The published candidate of this bin: the largest below its bound."""
    below = {cost_of(arch).params: arch for arch in published if cost_of(arch).params < bound}
    return below[max(below)]


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    same = all(ours[name] == theirs[name] for name in ("embed_dim", "depth"))
    found: dict[str, Any] = {"same_width_and_depth": same, "identical": ours == theirs, "heads": None, "ratios": None}
    if same:
        found["heads"] = agreement(tuple(ours["num_heads"]), tuple(theirs["num_heads"]))
        found["ratios"] = agreement(tuple(ours["mlp_ratio"]), tuple(theirs["mlp_ratio"]))
    return found


def mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


if __name__ == "__main__":
    main()
