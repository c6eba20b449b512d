"""PreNAS, Table 4: networks of one size from scratch: PreNAS's pick, plain SNIP's, DSS's, and random ones.

    python experiments/prenas_from_scratch.py --data parquet:cifar10 --work runs/scratch [--budget 6M] [--device auto]

All have the parameters of PreNAS's pick, within one percent and below the budget. Each is trained with every seed and
measured on the test part once. Runs that are finished are not run again. Writes results/prenas_from_scratch.json.
"""

from __future__ import annotations

import argparse
from statistics import mean, stdev
from typing import Any

from common import circumstances, write
from prenas_training import add_options, choose, inputs

from vitsearch.architecture import Settings
from vitsearch.arguments import read_quantity
from vitsearch.cost import Geometry, Limits
from vitsearch.environment import pick_device
from vitsearch.spaces import SPACES, cost_of, sample
from vitsearch.study import run_search
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import Recipe
from vitsearch.training.run import Machine, train_network

NEAR = 0.99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--budget", default="6M")
    parser.add_argument("--random", type=int, default=4)
    parser.add_argument("--trials", type=int, default=1000, help="of the search for DSS's pick")
    options = parser.parse_args()
    geometry, recipe = inputs(options)
    rows = []
    for name, settings in networks(options, geometry).items():
        results = [train(options, geometry, recipe, name, settings, seed) for seed in range(options.seeds)]
        spread = stdev(results) if len(results) > 1 else None
        params = cost_of(settings, geometry).params
        rows.append({"name": name, "settings": settings, "params": params, "test_top1": results})
        rows[-1] |= {"mean": mean(results), "deviation": spread}
        shown = " ".join(f"{value:.2f}" for value in results)
        print(f"{name:10s} {params / 1e6:.3f} M  {mean(results):.2f}  ({shown})", flush=True)
    found = circumstances(pick_device(options.device), options.commit)
    found |= {"data": options.data, "space": options.space, "recipe": recipe.to_json(), "seeds": options.seeds}
    write("prenas_from_scratch.json", found | {"rows": rows}, options.out)


def networks(options: argparse.Namespace, geometry: Geometry) -> dict[str, Settings]:
    found = {}
    for name, variant in (("prenas", "paper"), ("snip", "snip")):
        (pick,) = choose(options, geometry, options.budget, name, variant).picks
        found[name] = pick.settings
    params = cost_of(found["prenas"], geometry).params
    limits = Limits(min_params=round(NEAR * params), max_params=(read_quantity("--budget", options.budget) or 1) - 1)
    space = SPACES[options.space].with_patch_size(options.patch_size)
    search = run_search(
        space,
        out=options.work / "dss",
        objective="dss",
        trials=options.trials,
        limits=limits,
        geometry=geometry,
        device=options.device,
        resume=True,
    )
    assert search.study.best is not None
    found["dss"] = search.study.best.settings
    drawn = sample(space, options.random, seed=0, limits=limits, geometry=geometry)
    return found | {f"random-{number}": settings for number, settings in enumerate(drawn)}


def train(
    options: argparse.Namespace, geometry: Geometry, recipe: Recipe, name: str, settings: dict[str, Any], seed: int
) -> float:
    plan = TrainingPlan(settings=settings, geometry=geometry, data=options.data, recipe=recipe, seed=seed)
    folder = options.work / f"{name}-{seed}"
    done = train_network(plan, folder, machine=Machine(device=options.device), resume=True)
    return float(done.result["test_top1"])


if __name__ == "__main__":
    main()
