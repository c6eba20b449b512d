"""AutoFormer on CIFAR-10: is what a supernet says about networks true, and is its winner any better?

    python experiments/cifar10_supernet.py --data parquet:cifar10 --work runs/cifar10 --device cuda --commit HASH

32 px, patch 4, space `autoformer-tiny`; every training is guided by the same small convolutional teacher:
1. one supernet, `vitsearch supernet train`, each step one network drawn knob by knob;
2. `vitsearch search --strategy evolution --objective supernet:...` under 6 M parameters, on the validation part;
3. from scratch, with the same recipe and each seed: the winner, the largest network of the space, and 24 networks
   spread evenly over 5 to 10 M; and with one seed 8 random networks of 5.8 to 6.0 M, whose mean is over as many
   trainings. Each is measured on the test part once. All but the winner are trained beside the supernet, `--at-once`
   of them; on a GPU they get on best under NVIDIA's MPS (`nvidia-cuda-mps-control -d`).
The result holds every curve, seed, number of images seen and wall time; differences stand beside their interval,
by the spread between seeds (readings.py). After `--minutes` no training of step 3 is begun; a later run with
the same `--out` does what is missing.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean
from threading import Lock
from typing import Any

import torch
from common import RESULTS, circumstances, command_line, write
from readings import between_seeds, difference
from teachers import about_teacher, add_teacher_options, guided
from trainings import by_name, from_scratch, train_all

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry, Limits
from vitsearch.data import open_training_data
from vitsearch.environment import pick_device
from vitsearch.errors import VitsearchError
from vitsearch.evaluate import SupernetEvaluator
from vitsearch.ranking import bootstrap_agreement, kendall
from vitsearch.spaces import SPACES, Space
from vitsearch.study import run_search
from vitsearch.training.distill import Distillation
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import RECIPES, Recipe, change
from vitsearch.training.run import Machine, train_network

Row = dict[str, Any]
FILE = "cifar10_supernet.json"


def main() -> None:
    options = read_options()
    device = pick_device(options.device)
    space = SPACES[options.space].with_patch_size(options.patch_size)
    data = open_training_data(options.data)
    geometry = Geometry(image_size=options.image_size, classes=data.classes, channels=3)
    recipe = change(RECIPES["small-images-guided"], {"image_size": str(options.image_size)} | dict(options.set))
    path = options.out / FILE
    found: Row = json.loads(path.read_text()) if path.exists() else {}
    taught = guided(options, geometry)
    asked = {"data": Path(options.data).name, "space": space.name, "recipe": recipe.to_json()}
    asked = json.loads(json.dumps(asked | {"teacher": about_teacher(taught)}))
    differ = [name for name, value in asked.items() if found and found.get(name) != value]
    if differ:
        raise VitsearchError(f"{path} was made with another {differ[0]}: give another --out")
    found |= {"command": command_line()} | asked | about(device, options)
    found.setdefault("networks", others(options, space, geometry))
    until = time.monotonic() + 60 * options.minutes
    with ThreadPoolExecutor(1) as beside:
        retrained = beside.submit(retrain, options, found, geometry, recipe, taught, until)
        if options.at_once == 1:  # in this very process: one after the other
            retrained.result()
        if "supernet" not in found:
            supernet_recipe = replace(recipe, epochs=options.supernet_epochs, batch_size=options.supernet_batch)
            found |= train_supernet(options, space, geometry, supernet_recipe, taught, device, found["networks"])
            keep(options, found)
        retrained.result()
    found["complete"] = retrain(options, found, geometry, recipe, taught, until)  # the winner too
    found["reading"] = read(found)
    keep(options, found)
    print(json.dumps(found["reading"], indent=1))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, required=True, help="a folder for checkpoints and studies")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--space", default="autoformer-tiny")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--patch-size", type=int, default=4)
    parser.add_argument("--supernet-epochs", type=int, default=24)
    parser.add_argument("--supernet-batch", type=int, default=512)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--budget", type=float, default=6.0, help="millions of parameters")
    parser.add_argument("--range", type=float, nargs=2, default=(5.0, 10.0), help="of the networks that are correlated")
    parser.add_argument("--random", type=int, default=8)
    parser.add_argument("--spread", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--random-seeds", type=int, default=1, help="of the random networks")
    parser.add_argument("--set", type=lambda text: tuple(text.split("=", 1)), action="append", default=[])
    add_teacher_options(parser)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    return parser.parse_args()


def about(device: torch.device, options: argparse.Namespace) -> Row:
    found = circumstances(device, options.commit)
    return {"machine": found["machine"], "versions": found["versions"], "commit": found["commit"]}


WRITING = Lock()


def keep(options: argparse.Namespace, found: Row) -> None:
    with WRITING:
        write(FILE, dict(found), options.out)


def train_supernet(
    options: argparse.Namespace,
    space: Space,
    geometry: Geometry,
    recipe: Recipe,
    taught: Distillation | None,
    device: torch.device,
    others: dict[str, Settings],
) -> Row:
    """Steps 1 and 2, and what every network of step 3 inherits."""
    plan = TrainingPlan(
        space={"name": space.name, "fixed": space.fixed()},
        subnets="uniform",
        geometry=geometry,
        data=options.data,
        recipe=recipe,
        distillation=taught,
    )
    folder = options.work / "supernet"
    machine = Machine(device=options.device, evaluate_every=max(1, recipe.epochs // 10))
    done = train_network(plan, folder, machine=machine, resume=True)
    curve = [{k: v for k, v in row.items() if "top1" in k or k in ("epoch", "loss")} for row in done.epochs]
    limits = Limits(max_params=round(options.budget * 1e6))
    start = time.perf_counter()
    search = run_search(
        space,
        out=options.work / "search",
        objective=f"supernet:{folder}",
        strategy="evolution",
        trials=options.trials,
        limits=limits,
        geometry=geometry,
        device=options.device,
        resume=True,
    )
    seconds = time.perf_counter() - start
    best = search.study.best
    assert best is not None
    networks = {"winner": best.settings} | others
    evaluator = SupernetEvaluator(folder, device=device)
    scores = {name: evaluator.one(settings).scores[evaluator.name] for name, settings in networks.items()}
    return {
        "supernet": {"recipe": recipe.to_json(), "curve": curve, "result": done.result, "seed": plan.seed},
        "search": {"trials": len(search.study.trials), "seconds": seconds, "limits_params": limits.max_params},
        "networks": networks,
        "inherited_validation_top1": scores,
    }


def others(options: argparse.Namespace, space: Space, geometry: Geometry) -> dict[str, Settings]:
    """All networks but the winner."""
    networks = {"largest": space.region(None, geometry).largest()}
    near = Limits(min_params=round(5.8 / 6 * options.budget * 1e6), max_params=round(options.budget * 1e6))
    networks |= draw(space, geometry, near, "random", options.random)
    low, high = options.range
    width = (high - low) / options.spread
    for number in range(options.spread):
        bounds = [round((low + width * place) * 1e6) for place in (number, number + 1)]
        part = Limits(min_params=bounds[0], max_params=bounds[1])
        networks |= {f"spread-{number}": next(iter(draw(space, geometry, part, str(number), 1).values()))}
    return networks


def draw(space: Space, geometry: Geometry, limits: Limits, name: str, count: int) -> dict[str, Settings]:
    region, random = space.region(limits, geometry), Random(f"cifar10/{name}")
    return {f"{name}-{number}": region.sample(random) for number in range(count)}


def retrain(
    options: argparse.Namespace,
    found: Row,
    geometry: Geometry,
    recipe: Recipe,
    taught: Distillation | None,
    until: float,
) -> bool:
    """What is known of the networks and not trained yet; whether all of it is done."""
    rows: list[Row] = found.setdefault("retrained", [])
    near, spread = ("winner", "largest", "random"), ("spread",)
    wanted = [
        (name, settings, seed)
        for seed in range(options.seeds)
        for group in ((spread, near) if seed else (near, spread))  # second seeds of many say how far seeds differ
        for name, settings in found["networks"].items()
        if name.startswith(group) and not (name.startswith("random") and seed >= options.random_seeds)
    ]
    trainings = from_scratch(wanted, geometry=geometry, data=options.data, recipe=recipe, taught=taught)

    def done(row: Row) -> None:
        rows.append(row | {"commit": found["commit"]})
        keep(options, found)
        print(f"{row['name']}/{row['seed']}: {row['test_top1']:.2f} % in {row['seconds']:.0f} s", flush=True)

    machine = Machine(device=options.device, evaluate_every=max(1, recipe.epochs // 6), save_every=10**6)
    folder = options.work / "retrained"
    return train_all(
        trainings, folder, machine=machine, at_once=options.at_once, until=until, known=list(rows), keep=done
    )


def read(found: Row) -> Row:
    """What can be said: the winner among random networks, against the largest, and inherited against retrained."""
    rows, inherited = found["retrained"], found["inherited_validation_top1"]
    if not rows:
        return {}
    reached = by_name(rows)
    noise = between_seeds(reached.values())
    reading: Row = {"seed_spread": noise and noise.deviation, "lowest_top1": min(row["test_top1"] for row in rows)}
    reading["trained_enough"] = reading["lowest_top1"] >= 85
    random = {name: values for name, values in reached.items() if name.startswith("random")}
    if "winner" in reached and random:
        winner = reached["winner"]
        pooled = [value for values in random.values() for value in values]
        below = sum(fmean(values) < fmean(winner) for values in random.values())
        apart = difference(winner, pooled, noise)
        reading["winner"] = {"top1": winner, "above": below, "of": len(random), "minus_random": apart}
        if "largest" in reached:
            reading["winner_minus_largest"] = difference(winner, reached["largest"], noise)
    reading["correlation"] = correlation({n: v for n, v in reached.items() if n.startswith("spread")}, inherited, found)
    return reading


def correlation(reached: dict[str, list[float]], inherited: dict[str, float], found: Row) -> Row | None:
    """Kendall's tau over networks between inherited and retrained accuracy, with its interval; sizes beside it."""
    if len(reached) < 3:
        return None
    names = sorted(reached)
    truth = [fmean(reached[name]) for name in names]
    params = {row["name"]: row["params"] for row in found["retrained"]}
    sizes = [params[name] for name in names]
    scores = [inherited[name] for name in names]
    interval = bootstrap_agreement(scores, truth, sizes)["kendall"]
    seeds = range(min(map(len, reached.values())))
    by_seed = [kendall(scores, [reached[name][seed] for name in names]) for seed in seeds]
    between = None
    if all(len(values) > 1 for values in reached.values()):
        between = kendall([reached[name][0] for name in names], [reached[name][1] for name in names])
    return {
        "networks": len(names),
        "kendall": kendall(scores, truth),
        "interval": interval,
        "by_seed": by_seed,
        "params_kendall": kendall(sizes, truth),
        "between_seeds": between,
    }


if __name__ == "__main__":
    main()
