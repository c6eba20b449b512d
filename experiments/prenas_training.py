"""PreNAS, Figures 4 and 5: the same chosen networks out of supernets that were trained on them alone, and on the space.

    python experiments/prenas_training.py --data parquet:cifar10 --work runs/prenas [--seeds 3] [--device auto]

Chooses networks for five budgets, trains a supernet for each scheme and seed at equal steps, and evaluates the chosen
networks in each, on the validation part (nothing is chosen by it). Writes results/prenas_training.json, which a later
run goes on with.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from readings import between_seeds, difference
from sittings import Sittings, add_sitting_options, kept
from teachers import about_teacher, add_teacher_options, guided

from vitsearch.architecture import Settings
from vitsearch.arguments import read_budgets
from vitsearch.cost import Geometry, Limits
from vitsearch.data import open_training_data
from vitsearch.evaluate import SupernetEvaluator
from vitsearch.methods.preselection import Budgets, Preselected, preselect
from vitsearch.spaces import SPACES
from vitsearch.training.distill import Distillation
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import RECIPES, Recipe, change
from vitsearch.training.run import Machine, train_network

FILE = "prenas_training.json"
REACHED = 85.0
"""Percent: below it, networks are too little trained for a difference to count."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True)
    parser.add_argument("--space", default="autoformer-tiny")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--patch-size", type=int, default=4)
    parser.add_argument("--recipe", default="small-images-guided")
    parser.add_argument("--set", action="append", default=[], help="a field of the recipe: epochs=100")
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    add_teacher_options(parser)
    add_sitting_options(parser)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--budgets", default="5.5M:9.5M:1M")
    parser.add_argument("--schemes", nargs="+", default=["balanced", "redundant"])
    options = parser.parse_args()
    geometry, recipe = inputs(options)
    picks = kept(FILE, options).get("picks") or [
        {"budget": pick.budget, "settings": pick.settings, "params": pick.cost.params}
        for pick in choose(options, geometry, options.budgets, "chosen").picks
    ]
    taught = guided(options, geometry)
    about = {"data": Path(options.data).name, "space": options.space, "recipe": recipe.to_json(), "picks": picks}
    about |= {"teacher": about_teacher(taught)}
    sittings = Sittings(FILE, options, about)
    names = {(scheme, seed): f"{scheme}-{seed}" for seed in range(options.seeds) for scheme in options.schemes}
    work = partial(train, options, [pick["settings"] for pick in picks], geometry, recipe, taught)
    complete = sittings.run(work, {name: cell for cell, name in names.items()})
    accuracies = {
        scheme: [row["top1"] for seed in range(options.seeds) if (row := sittings.row(names[scheme, seed]))]
        for scheme in options.schemes
    }
    found = {"rows": rows(picks, accuracies), "mean": row_of(means(accuracies))}
    sittings.write({"complete": complete, "seeds": options.seeds} | found)
    print("all", found["mean"])
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
    options: argparse.Namespace,
    settings: list[Settings],
    geometry: Geometry,
    recipe: Recipe,
    taught: Distillation | None,
    cell: tuple[str, int],
) -> dict[str, Any]:
    """Accuracy of every chosen network in the supernet of this scheme and seed."""
    scheme, seed = cell
    space = SPACES[options.space].with_patch_size(options.patch_size)
    folder = options.work / f"{scheme}-{seed}"
    plan = TrainingPlan(
        space={"name": space.name, "fixed": space.fixed()},
        subnets=scheme,
        candidates=settings,
        geometry=geometry,
        data=options.data,
        recipe=recipe,
        seed=seed,
        distillation=taught,
    )
    machine = Machine(device=options.device, evaluate_every=max(1, recipe.epochs // 4))
    done = train_network(plan, folder, machine=machine, resume=True)
    evaluator = SupernetEvaluator(folder, device=options.device)
    scores = [evaluator.one(one).scores[evaluator.name] for one in settings]
    print(f"{scheme} seed {seed}:", " ".join(f"{score:.2f}" for score in scores), flush=True)
    curve = [{key: row[key] for key in row if key in ("epoch", "loss") or "top1" in key} for row in done.epochs]
    about = {key: done.result[key] for key in ("images_seen", "seconds")}
    return {"scheme": scheme, "seed": seed, "top1": scores, "curve": curve} | about


def rows(picks: list[dict[str, Any]], accuracies: dict[str, list[list[float]]]) -> list[dict[str, Any]]:
    """For each network its accuracies by scheme and seed, and each scheme's difference to the last."""
    return [
        pick | row_of({scheme: [networks[number] for networks in seeds] for scheme, seeds in accuracies.items()})
        for number, pick in enumerate(picks)
    ]


def means(accuracies: dict[str, list[list[float]]]) -> dict[str, list[float]]:
    """Over the networks of each supernet, which share its luck."""
    return {scheme: [fmean(networks) for networks in seeds] for scheme, seeds in accuracies.items()}


def row_of(top1: dict[str, list[float]]) -> dict[str, Any]:
    *others, reference = top1
    every = [value for values in top1.values() for value in values]
    row: dict[str, Any] = {"top1": top1, "counts": bool(every) and min(every) >= REACHED}
    for scheme in others:
        pair = top1[scheme], top1[reference]
        row[f"{scheme}_minus_{reference}"] = difference(*pair, between_seeds(pair))
    return row


if __name__ == "__main__":
    main()
