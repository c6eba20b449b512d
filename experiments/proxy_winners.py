"""Auto-Prox's main claim: are the winners of a found formula better when they are trained than those of other proxies?

    python experiments/proxy_winners.py --data parquet:flowers102-96px --work runs/winners --device cuda --at-once 4

1. 400 networks are drawn of `autoformer-tiny-plain` (4-9 M parameters) and of `pit` (2-25 M), and scored without
   training: by parameters, depth, DSS, NASWOT, SynFlow and the formula found for the space, which also chooses among
   8,000 drawn networks.
2. The winners and five random networks are trained with locality guidance from a ResNet-56 (`autoprox-small`, train and
   validation together, as the paper has it), with every seed; the test part is looked at once.
Differences are to the mean of the random networks, and to the winner of the parameter count, beside the deviation
between seeds of one network, pooled over all networks of both spaces. Writes results/proxy_winners.json, which a later
run goes on with; `--read-only` trains nothing and reads again what is there.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from readings import Noise, between_seeds, difference, spread
from sittings import Sittings, add_sitting_options, kept
from teachers import train_teacher
from trainings import Training, train_one

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry, Limits
from vitsearch.data import open_training_data
from vitsearch.scoring import score
from vitsearch.spaces import SPACES, cost_of, sample
from vitsearch.training.distill import distillation
from vitsearch.training.plan import Parts, TrainingPlan
from vitsearch.training.recipe import RECIPES, Recipe, change
from vitsearch.training.run import Machine

FILE = "proxy_winners.json"
SEARCHED: dict[str, dict[str, Any]] = {
    "autoformer-tiny-plain": {"params": (4_000_000, 9_000_000), "patch_size": 8, "ours": "discovered-autoformer"},
    "pit": {"params": (2_000_000, 25_000_000), "patch_size": None, "ours": "discovered-pit"},
}
OTHERS = ("params", "depth", "dss", "naswot", "synflow")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--spaces", nargs="+", default=list(SEARCHED), choices=list(SEARCHED))
    parser.add_argument("--networks", type=int, default=400, help="drawn, for every proxy")
    parser.add_argument("--more", type=int, default=8000, help="drawn, for the found formula")
    parser.add_argument("--random", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--teacher-epochs", type=int, default=300)
    parser.add_argument("--set", action="append", default=[], help="a field of the students' recipe")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--read-only", action="store_true", help="stop before anything is trained")
    add_sitting_options(parser)
    options = parser.parse_args()
    geometry = Geometry(image_size=options.image_size, classes=open_training_data(options.data).classes)
    chosen = kept(FILE, options).get("chosen") or {space: choose(options, space, geometry) for space in options.spaces}
    edits = {"epochs": str(options.epochs), "image_size": str(options.image_size)}
    recipe = change(RECIPES["autoprox-small"], edits | dict(each.split("=", 1) for each in options.set))
    about = {"recipe": recipe.to_json(), "teacher_epochs": options.teacher_epochs, "chosen": chosen}
    sittings = Sittings(FILE, options, about)
    complete = not options.read_only and train_all(options, sittings, geometry, recipe, chosen)
    top1 = {space: accuracies(networks, sittings.rows) for space, networks in chosen.items()}
    noise = between_seeds(values for space, networks in chosen.items() for values in once(networks, top1[space]))
    rows = [
        {"space": space, "name": name, "settings": settings, "params": cost_of(settings, geometry).params}
        | row_of(name, top1[space], noise, largest=settings == networks["params"])
        for space, networks in chosen.items()
        for name, settings in networks.items()
    ]
    sittings.write({"complete": complete, "data": Path(options.data).name, "seeds": options.seeds, "rows": rows})
    for row in rows:
        print({key: value for key, value in row.items() if key != "settings"})


def choose(options: argparse.Namespace, name: str, geometry: Geometry) -> dict[str, Settings]:
    """For each proxy its best network, and random ones."""
    asked = SEARCHED[name]
    space = SPACES[name] if asked["patch_size"] is None else SPACES[name].with_patch_size(asked["patch_size"])
    limits = Limits(min_params=asked["params"][0], max_params=asked["params"][1])
    drawn = sample(space, options.networks, seed=0, limits=limits, geometry=geometry)
    found = {proxy: best(drawn, proxy, geometry, options.device) for proxy in (*OTHERS, asked["ours"])}
    most = min(options.more, space.region(limits, geometry).size)
    more = sample(space, most, seed=1, limits=limits, geometry=geometry)
    found[f"{asked['ours']}, {most}"] = best(more, asked["ours"], geometry, options.device)
    random = sample(space, options.random, seed=2, limits=limits, geometry=geometry)
    return found | {f"random-{number}": settings for number, settings in enumerate(random)}


def best(networks: list[Settings], proxy: str, geometry: Geometry, device: str) -> Settings:
    scores = [found.scores.get(proxy) for found in score(networks, [proxy], geometry=geometry, device=device)]
    return max(one for one in zip(scores, range(len(networks)), networks, strict=True) if one[0] is not None)[2]


def train_all(
    options: argparse.Namespace,
    sittings: Sittings,
    geometry: Geometry,
    recipe: Recipe,
    chosen: dict[str, dict[str, Settings]],
) -> bool:
    """Every different network once for each seed, under the first name it has."""
    machine = Machine(device=options.device, save_every=10**6)
    taught = distillation(str(teacher(options, geometry)), "locality")
    cells: dict[str, Training] = {}
    for seed in range(options.seeds):
        for space, networks in chosen.items():
            for name, settings in networks.items():
                plan = TrainingPlan(
                    settings=settings,
                    geometry=geometry,
                    data=options.data,
                    parts="train+validation",
                    recipe=recipe,
                    seed=seed,
                    distillation=taught,
                )
                training = Training(name=f"{space} {name}".replace(",", ""), plan=plan)
                if not any(one.plan == plan for one in cells.values()):
                    cells[f"{space} {name} {seed}"] = training
    return sittings.run(partial(train_one, folder=options.work, machine=machine), cells)


def teacher(options: argparse.Namespace, geometry: Geometry) -> Path:
    recipe = replace(RECIPES["autoprox-teacher"], epochs=options.teacher_epochs)
    whole: Parts = "train+validation"
    return train_teacher(
        options.work / "teacher", recipe, data=options.data, geometry=geometry, device=options.device, parts=whole
    )


def accuracies(networks: dict[str, Settings], cells: list[dict[str, Any]]) -> dict[str, list[float]]:
    """For each name the test accuracies of its network, by seed."""

    def of(settings: Settings) -> list[float]:
        found = {cell["seed"]: cell["test_top1"] for cell in cells if cell["settings"] == settings}
        return [found[seed] for seed in sorted(found)]

    return {name: of(settings) for name, settings in networks.items()}


def once(networks: dict[str, Settings], top1: dict[str, list[float]]) -> list[list[float]]:
    """The accuracies of every different network, which may have several names."""
    first = {str(settings): name for name, settings in reversed(networks.items())}
    return [top1[name] for name in first.values()]


def row_of(name: str, top1: dict[str, list[float]], noise: Noise | None, *, largest: bool) -> dict[str, Any]:
    random = [fmean(values) for other, values in top1.items() if other.startswith("random") and values]
    row: dict[str, Any] = {"test_top1": spread(top1[name])}
    if not name.startswith("random"):
        row["minus_random"] = difference(top1[name], random, noise)
    if not largest:
        row["minus_params"] = difference(top1[name], top1["params"], noise)
    return row


if __name__ == "__main__":
    main()
