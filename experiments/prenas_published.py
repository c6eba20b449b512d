"""PreNAS's published candidates: how far does its public code's choice agree with them, over seeds?

    python experiments/prenas_published.py --published FILE [--seeds 20] [--batch-size 64] [--device auto] [--commit C]

The code's variant with its settings: 64 noise images, bins of 1, 5 and 12 M, depths 13 and 14 for the small space. The
published file came from seed 0 of another program, whose random numbers are not ours: every seed here is another draw.
Beside it the paper's own scores (batch 8). docs/prenas.md shows the result (`experiments/prenas_tables.py`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from common import RESULTS, circumstances, write

from vitsearch.architecture import Settings
from vitsearch.cost import IMAGENET, Limits
from vitsearch.data import open_data
from vitsearch.environment import pick_device
from vitsearch.methods.allocation import agreement
from vitsearch.methods.preselection import BATCH_SIZES, Budgets, Pass
from vitsearch.methods.score_tables import ScoreTables, Variant
from vitsearch.methods.two_steps import Pick, Selector
from vitsearch.spaces import SPACES
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
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZES["code"], help="of the code's variant")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = pick_device(options.device)
    published = {entry["name"]: entry["arch"] for entry in json.loads(options.published.read_text())}
    file = options.out / "prenas_published.json"
    done = json.loads(file.read_text()) if file.exists() else {}
    for name in options.spaces:
        found = examine(name, published, options.seeds, options.batch_size, device)
        done[name] = circumstances(device, options.commit) | found
        write(file.name, done, options.out)


def examine(
    name: str, published: dict[str, Settings], seeds: int, batch_size: int, device: torch.device
) -> dict[str, Any]:
    (low, high, step), changes = SPACES_OF_THE_CODE[name]
    space = replace(cast(Isotropic, SPACES[name]), **cast(Any, changes))
    bounds = tuple(bound * MILLION for bound in range(low + step, high + 1, step))
    budgets = Budgets(bounds=bounds, below=low * MILLION)
    found: dict[str, Any] = {"seeds": seeds}
    for variant in cast(tuple[Variant, ...], ("code", "paper")):
        images = batch_size if variant == "code" else BATCH_SIZES[variant]
        began, tables = time.perf_counter(), []
        for seed in range(seeds):
            tables.append(one_pass(space, variant, seed, images, device).tables(0))
            print(f"{name} {variant} seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)
        seconds = round((time.perf_counter() - began) / seeds, 2)
        chosen = rows(space, variant, tables, budgets)
        for row in chosen:
            row["published"] = published.get(f"PreNAS-{name.removeprefix('autoformer-')}-{row['budget'] / MILLION:.1f}")
        found[variant] = {"batch_size": images, "seconds_per_seed": seconds, "rows": [finish(row) for row in chosen]}
    return found


def one_pass(space: Isotropic, variant: Variant, seed: int, batch_size: int, device: torch.device) -> Pass:
    return Pass(
        space=space,
        geometry=IMAGENET,
        variant=variant,
        source=open_data("noise"),
        batch_size=batch_size,
        seed=seed,
        device=device,
    )


def rows(space: Isotropic, variant: Variant, tables: list[ScoreTables], budgets: Budgets) -> list[dict[str, Any]]:
    """One for each budget: what every seed picks, and what all of them together pick."""

    def choose(draws: list[ScoreTables]) -> list[Pick]:
        selector = Selector(space, draws, geometry=IMAGENET, variant=variant)
        return selector.picks(budgets.windows(variant), top=1, resource="params", limits=Limits())

    by_seed, together = [choose([one]) for one in tables], choose(tables)
    return [
        {
            "budget": pick.budget,
            "picks": [picks[number].settings for picks in by_seed],
            "together": pick.settings,
            "halves_heads": pick.agreement_heads,
            "halves_ratios": pick.agreement_ratios,
        }
        for number, pick in enumerate(together)
    ]


def finish(row: dict[str, Any]) -> dict[str, Any]:
    """How far the picks agree with what was published, and with one another; `None` where nothing was published."""
    picks, theirs = row["picks"], row["published"]
    compared = [compare(one, theirs) for one in picks] if theirs else []
    pairs = [compare(one, other) for one, other in itertools.combinations(picks, 2)]
    sizes = [(one["embed_dim"], one["depth"]) for one in picks]
    found = {name: row[name] for name in ("budget", "halves_heads", "halves_ratios")}
    found |= {"most_seeds": max(set(sizes), key=sizes.count), "most_seeds_count": max(map(sizes.count, sizes))}
    found |= {f"between_seeds_{name}": mean([one[name] for one in pairs]) for name in ("heads", "ratios")}
    found |= {"published": short(theirs) if theirs else None, "together": short(row["together"])}
    if theirs:
        found["same_size"] = sum(one["same_size"] for one in compared)
        found["identical"] = sum(one["identical"] for one in compared)
        found |= {f"agreement_{name}": mean([one[name] for one in compared]) for name in ("heads", "ratios")}
        found["together_compared"] = compare(row["together"], theirs)
    return found | {"picks": [short(one) for one in picks]}


def compare(ours: Settings, theirs: Settings) -> dict[str, Any]:
    """Whether width and depth are the same, and then how far the allocations agree (1: all, 0: as by chance)."""
    same = all(ours[name] == theirs[name] for name in ("embed_dim", "depth"))
    found: dict[str, Any] = {"same_size": same, "identical": ours == theirs, "heads": None, "ratios": None}
    if same:
        found["heads"] = agreement(tuple(ours["num_heads"]), tuple(theirs["num_heads"]))
        found["ratios"] = agreement(tuple(ours["mlp_ratio"]), tuple(theirs["mlp_ratio"]))
    return found


def short(settings: Settings) -> str:
    heads, ratios = (" ".join(f"{value:g}" for value in settings[name]) for name in ("num_heads", "mlp_ratio"))
    return f"{settings['embed_dim']} wide, {settings['depth']} deep, heads {heads}, ratios {ratios}"


def mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


if __name__ == "__main__":
    main()
