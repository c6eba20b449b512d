"""S3, Figures 2, 3 and 6 and Table 5: three spaces A -> B -> C, their errors, and the best network of each, retrained.

    python experiments/s3_cifar10.py --data parquet:cifar10 --work runs/s3 [--seeds 3] [--device auto]
        --images 500 --at-once 3   # on one GPU, where a step waits for the processor

64 px with patches of 2 have maps of 32, 16, 8 and 4: with windows {4, 8} the geometry of 224 px with {7, 14}. Every
seed evolves the space anew; in each of its spaces the best network below a budget is searched with the supernet of that
space, and trained from scratch. All trainings are guided by one convolutional teacher. Writes results/s3_cifar10.json,
which a later run goes on with, and, of the first seed, s3_cifar10-{evolution,depths,spaces}.svg.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from readings import between_seeds, difference, spread
from sittings import Sittings, add_sitting_options
from teachers import about_teacher, add_teacher_options, guided
from trainings import how_it_went

from vitsearch.arguments import read_quantity
from vitsearch.cost import Geometry, Limits
from vitsearch.data import open_training_data
from vitsearch.errors import NothingFits
from vitsearch.methods.space_evolution import evolve_space
from vitsearch.methods.space_figures import draw_depths, draw_evolution, draw_spaces, errors_by_space
from vitsearch.methods.space_guidelines import guidelines
from vitsearch.methods.space_moves import Rules, check_steps
from vitsearch.methods.space_study import Evolved, Training
from vitsearch.spaces import cost_of
from vitsearch.study import run_search
from vitsearch.training.distill import Distillation
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import RECIPES, Recipe, change
from vitsearch.training.run import Machine, read_training, train_network

SPACE = "s3-initial:embed_dim=64+96+128,num_heads=2+3+4,window_size=4+8"
STEPS = ["embed_dim=32", "num_heads=1", "window_size=4"]
STRATEGY = "evolution:population=50,parents=10,network_rate=0.2,block_rate=0.4"  # Algorithm 3
NAMES = "ABCDEFGH"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--space", default=SPACE)
    parser.add_argument("--step", nargs="+", default=STEPS)
    parser.add_argument("--most-steps", type=int)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--patch-size", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--images", type=int, default=1000, help="of the validation part, that judge")
    parser.add_argument("--recipe", default="small-images-guided", help="of the supernets")
    parser.add_argument("--set", action="append", default=[], help="a field of that recipe: epochs=100")
    parser.add_argument("--retrain", default="small-images-guided", help="recipe of the networks that are found")
    parser.add_argument("--set-retrain", action="append", default=[], help="a field of that recipe")
    parser.add_argument("--max-macs", default="400M", help="of the network that is searched in each space")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    add_teacher_options(parser)
    add_sitting_options(parser)
    options = parser.parse_args()
    taught = guided(options, geometry_of(options))
    about = {
        "data": Path(options.data).name,
        "space": options.space,
        "steps": options.step,
        "supernet_recipe": recipe_of(options, options.recipe, options.set).to_json(),
        "network_recipe": recipe_of(options, options.retrain, options.set_retrain).to_json(),
        "teacher": about_teacher(taught),
        "max_macs": options.max_macs,
        "samples": options.samples,
        "images": options.images,
    }
    sittings = Sittings("s3_cifar10.json", options, about)
    complete = sittings.run(partial(one_seed, options, taught), {f"seed-{seed}": seed for seed in range(options.seeds)})
    rows = summary(sorted(sittings.rows, key=lambda row: row["seed"]))
    sittings.write({"complete": complete, "summary": rows})
    for row in rows:
        print(row)


def recipe_of(options: argparse.Namespace, name: str, changes: list[str]) -> Recipe:
    edits = dict(each.split("=", 1) for each in changes)
    return replace(change(RECIPES[name], edits), image_size=options.image_size)


def geometry_of(options: argparse.Namespace) -> Geometry:
    return Geometry(image_size=options.image_size, classes=open_training_data(options.data).classes)


def one_seed(options: argparse.Namespace, taught: Distillation | None, seed: int) -> dict[str, Any]:
    geometry = geometry_of(options)
    machine = Machine(device=options.device)
    evolved = evolve_space(
        options.space,
        out=options.work / f"evolution-{seed}",
        training=Training(
            data=options.data,
            recipe=recipe_of(options, options.recipe, options.set),
            distillation=taught,
            images=options.images,
        ),
        iterations=options.iterations,
        samples=options.samples,
        rules=Rules(steps=check_steps(options.step), most_steps=options.most_steps),
        geometry=geometry,
        patch_size=options.patch_size,
        seed=seed,
        machine=machine,
        resume=True,
    )
    errors = errors_by_space(evolved)
    spaces = []
    for number, space in enumerate(evolved.spaces):
        row = space | {"space": NAMES[number], "errors": errors[number]} | sizes(evolved, number)
        row["supernet"] = how_it_went(read_training(evolved.path / f"supernet-{number}"))
        row["best"] = best_network(options, evolved, number, geometry, taught, seed)
        spaces.append(row)
        print(f"seed {seed} space {NAMES[number]}: E-T {space['error']:.2f}, best {row['best']}", flush=True)
    if seed == 0:
        for name, draw in (("evolution", draw_evolution), ("depths", draw_depths), ("spaces", draw_spaces)):
            draw(evolved.path, options.out / f"s3_cifar10-{name}.svg")
    shown = [row.to_json() for row in guidelines(evolved)]
    return {"seed": seed, "spaces": spaces, "moves": evolved.moves, "guidelines": shown}


def sizes(evolved: Evolved, number: int) -> dict[str, float]:
    """Of the drawn networks: a space can have smaller errors because its networks are larger."""
    drawn = evolved.trials_of(number)[: evolved.spaces[number]["drawn"]]
    return {f"mean_{name}": fmean(one.measured[name] for one in drawn if one.measured) for name in ("params", "macs")}


def best_network(
    options: argparse.Namespace,
    evolved: Evolved,
    number: int,
    geometry: Geometry,
    taught: Distillation | None,
    seed: int,
) -> dict[str, Any] | None:
    """The most accurate in its supernet below the budget, and its accuracy from scratch; None where nothing fits."""
    folder = evolved.path / f"supernet-{number}"
    objective = f"supernet:{folder}:images={options.images}"
    try:
        search = run_search(
            evolved.spaces[number]["name"],
            out=options.work / f"search-{seed}-{number}",
            objective=objective,
            strategy=STRATEGY,
            trials=options.trials,
            limits=Limits(max_macs=read_quantity("--max-macs", options.max_macs)),
            geometry=geometry,
            patch_size=options.patch_size,
            seed=seed,
            device=options.device,
            resume=True,
        )
    except NothingFits as error:
        print(error)
        return None
    best = search.study.best
    assert best is not None
    cost = cost_of(best.settings, geometry)
    recipe = recipe_of(options, options.retrain, options.set_retrain)
    plan = TrainingPlan(
        settings=best.settings, geometry=geometry, data=options.data, recipe=recipe, seed=seed, distillation=taught
    )
    machine = Machine(device=options.device, compiled=False)  # another network to compile for a minute of training
    retrained = train_network(plan, options.work / f"retrained-{seed}-{number}", machine=machine, resume=True)
    shown = {"settings": best.settings, "params": cost.params, "macs": cost.macs}
    shown |= {"inherited_top1": best.measured[objective], "retrained_top1": retrained.result["test_top1"]}
    return shown | how_it_went(retrained)


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every space mean and deviation over the seeds, and of the difference to the space before."""
    rows = []
    for number in range(min((len(one["spaces"]) for one in found), default=0)):
        own = [one["spaces"][number] for one in found]
        before = [one["spaces"][number - 1] for one in found] if number else []
        row: dict[str, Any] = {"space": NAMES[number], "et_error": spread([one["error"] for one in own])}
        errors = [[one["error"] for one in of] for of in (own, before)]
        row["et_error_minus_before"] = difference(*errors, between_seeds(errors), higher_is_better=False)
        row |= {name: spread([one[name] for one in own]) for name in ("mean_params", "mean_macs")}
        for name in ("params", "macs", "inherited_top1", "retrained_top1"):
            row[name] = spread([one["best"][name] for one in own if one["best"] is not None])
        pairs = [(a["best"], b["best"]) for a, b in zip(own, before, strict=False) if a["best"] and b["best"]]
        top1 = [[pair[place]["retrained_top1"] for pair in pairs] for place in (0, 1)]
        row["retrained_minus_before"] = difference(*top1, between_seeds(top1))
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
