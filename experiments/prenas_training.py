"""PreNAS, Figures 4 and 5: the same chosen networks out of supernets that were trained on them alone, and on the space.

    python experiments/prenas_training.py --data parquet:cifar10 --work runs/prenas [--seeds 3] [--device auto]

Chooses networks for five budgets, trains a supernet for each scheme and seed at equal steps, and evaluates the chosen
networks in each, on the validation part (nothing is chosen by it). Runs that are finished are not run again. Writes
results/prenas_training.json.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from common import RESULTS, circumstances, write

from vitsearch.arguments import read_budgets
from vitsearch.cost import Geometry, Limits
from vitsearch.data import open_training_data
from vitsearch.environment import pick_device
from vitsearch.evaluate import SupernetEvaluator
from vitsearch.methods.preselection import Budgets, Preselected, preselect
from vitsearch.spaces import SPACES
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import RECIPES, Recipe, change
from vitsearch.training.run import Machine, train_network

REACHED = 85.0
"""Percent: below it, networks are too little trained for a difference to count."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, required=True, help="where runs are kept, and resumed")
    parser.add_argument("--space", default="autoformer-tiny")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--patch-size", type=int, default=4)
    parser.add_argument("--recipe", default="autoformer")
    parser.add_argument("--set", action="append", default=[], help="a field of the recipe: epochs=100")
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, default=RESULTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--budgets", default="5.5M:9.5M:1M")
    parser.add_argument("--schemes", nargs="+", default=["balanced", "redundant"])
    options = parser.parse_args()
    geometry, recipe = inputs(options)
    chosen = choose(options, geometry, options.budgets, "chosen")
    accuracies = {
        scheme: [train(options, chosen, geometry, recipe, scheme, seed) for seed in range(options.seeds)]
        for scheme in options.schemes
    }
    found = circumstances(pick_device(options.device), options.commit) | {
        "data": options.data,
        "space": options.space,
        "recipe": recipe.to_json(),
        "seeds": options.seeds,
        "rows": rows(chosen, accuracies),
    }
    write("prenas_training.json", found, options.out)
    for row in found["rows"]:
        print(row["budget"], {name: row[name] for name in row if name not in ("budget", "settings")})


def inputs(options: argparse.Namespace) -> tuple[Geometry, Recipe]:
    classes = open_training_data(options.data).classes
    changes = dict(each.split("=", 1) for each in options.set)
    recipe = replace(change(RECIPES[options.recipe], changes), image_size=options.image_size)
    return Geometry(image_size=options.image_size, classes=classes), recipe


def choose(
    options: argparse.Namespace, geometry: Geometry, budgets: str, name: str, variant: Any = "paper"
) -> Preselected:
    bounds, below = read_budgets(budgets)
    return preselect(
        SPACES[options.space],
        out=options.work / name,
        budgets=Budgets(bounds=bounds, below=below),
        variant=variant,
        draws=options.draws,
        limits=Limits(),
        geometry=geometry,
        data=options.data,
        patch_size=options.patch_size,
        device=options.device,
        resume=True,
    )


def train(
    options: argparse.Namespace, chosen: Preselected, geometry: Geometry, recipe: Recipe, scheme: str, seed: int
) -> list[float]:
    """Accuracy of every chosen network in the supernet of this scheme and seed."""
    space = SPACES[options.space].with_patch_size(options.patch_size)
    folder = options.work / f"{scheme}-{seed}"
    settings = [pick.settings for pick in chosen.picks]
    plan = TrainingPlan(
        space={"name": space.name, "fixed": space.fixed()},
        subnets=scheme,
        candidates=settings,
        geometry=geometry,
        data=options.data,
        recipe=recipe,
        seed=seed,
    )
    train_network(plan, folder, machine=Machine(device=options.device), resume=True)
    evaluator = SupernetEvaluator(folder, device=options.device)
    scores = [evaluator.one(one).scores[evaluator.name] for one in settings]
    print(f"{scheme} seed {seed}:", " ".join(f"{score:.2f}" for score in scores), flush=True)
    return scores


def rows(chosen: Preselected, accuracies: dict[str, list[list[float]]]) -> list[dict[str, Any]]:
    """For each network its accuracies by scheme and seed, and each scheme's difference to the last, seed by seed."""
    found = []
    *others, reference = accuracies
    for number, pick in enumerate(chosen.picks):
        of = {scheme: [by_network[number] for by_network in seeds] for scheme, seeds in accuracies.items()}
        row: dict[str, Any] = {"budget": pick.budget, "settings": pick.settings, "params": pick.cost.params, "top1": of}
        for scheme in others:
            differences = [one - other for one, other in zip(of[scheme], of[reference], strict=True)]
            row[f"{scheme}_minus_{reference}"] = {
                "mean": mean(differences),
                "deviation": stdev(differences) if len(differences) > 1 else None,
            }
        row["counts"] = all(value >= REACHED for values in of.values() for value in values)
        found.append(row)
    return found


if __name__ == "__main__":
    main()
