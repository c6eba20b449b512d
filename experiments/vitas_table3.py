"""ViTAS, Table 3, rows 0, 6 and 8: does strong augmentation collapse the super-transformer?

    python experiments/vitas_table3.py --data parquet:cifar10 --work runs/vitas [--rows 6 0 8] [--seeds 3]
        --set epochs=16 --set batch_size=256 --set optimizer=nadamuon --set learning_rate=0.002 --set warmup_epochs=1
        --set clip=1 --set augmentation.crop=padded --set precision=bfloat16 --set crop_percent=1   # small images
        --space vitas:embed_dim=48+96+144+192,num_heads=3+6+12,attention_dim=720,mlp_dim=720,slot_count=8
        --budget 104789088 --images 500 --at-once 9                                          # on one GPU, in minutes

The super-transformer of Table 2's row 7 at one budget (DeiT-Ti's MACs unless given) with DeiT's recipe (RandAugment,
Mixup, CutMix, erasing, stochastic depth, repeated augmentation), with CutMix and erasing, and with neither, at equal
steps and without a teacher. Reports the accuracy that the winner inherits (validation), the mean over the first
generation, and the winner's from scratch (test), with the spread over seeds. Writes results/vitas_table3.json, which a
later run goes on with.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from readings import between_seeds, difference, spread
from sittings import Sittings
from vitas_common import Bench, Run, add_options

from vitsearch.arguments import read_quantity
from vitsearch.models.super_transformer import Sharing
from vitsearch.study import Study
from vitsearch.training.recipe import Recipe

RAND_AUGMENT = "rand-m9-mstd0.5-inc1"


def recipes(weak: Recipe) -> dict[int, Recipe]:
    """Row 6 is the recipe that was given; the others add to it or take away. Smoothing is the same in all."""
    plain = replace(weak.augmentation, erase=0.0)
    strong = replace(weak.augmentation, rand_augment=RAND_AUGMENT, repeats=3)
    return {
        0: replace(weak, augmentation=strong, mixup=0.8, cutmix=1.0, drop_path=0.1),
        6: weak,
        8: replace(weak, augmentation=plain, mixup=0.0, cutmix=0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--rows", type=int, nargs="+", default=[6, 0, 8], choices=[0, 6, 8])
    parser.add_argument("--budget", default="365107584", help="largest MACs")
    options = parser.parse_args()
    bench, budget = Bench(options, guided_supernets=False), read_quantity("--budget", options.budget) or 1
    sittings = Sittings("vitas_table3.json", options, bench.about() | {"budget": budget})
    cells = {f"{row}-{seed}": (row, seed) for seed in range(options.seeds) for row in options.rows}
    complete = sittings.run(partial(cell_of, bench, budget), cells)
    rows = [summary(row, recipes(bench.recipe)[row], sittings.rows) for row in options.rows]
    identity = bench.identity(budget)
    sittings.write({"complete": complete, "seeds": options.seeds, "identity": identity, "rows": rows})
    for found in rows:
        print({key: value for key, value in found.items() if key not in ("runs", "recipe")})


def cell_of(bench: Bench, budget: int, cell: tuple[int, int]) -> dict[str, Any]:
    row, seed = cell
    name = f"augmented-{row}"
    identity, recipe = bench.identity(budget), recipes(bench.recipe)[row]
    run = Run(name=name, space=bench.space, sharing=Sharing(), identity=identity, recipe=recipe, budget=budget)
    return {"row": row} | with_first(bench, run, seed)


def with_first(bench: Bench, run: Run, seed: int) -> dict[str, Any]:
    """Also how the networks of the first generation do: a collapsed supernet has them all at chance."""
    found = bench.whole(run, seed)
    study = Study.open(Path(bench.options.work) / f"search-{run.name}-{run.budget}-{seed}")
    name = study.plan.objectives[0].name
    first = [trial.measured[name] for trial in study.trials[: bench.options.population] if trial.error is None]
    return found | {"first_generation_top1": mean(first)}


def summary(row: int, recipe: Recipe, cells: list[dict[str, Any]]) -> dict[str, Any]:
    def of(number: int, what: str) -> list[float]:
        ordered = sorted((cell for cell in cells if cell["row"] == number), key=lambda cell: cell["seed"])
        return [cell[what] for cell in ordered]

    found: dict[str, Any] = {"row": row}
    for what in ("inherited_top1", "first_generation_top1", "retrained_top1"):
        found[what] = spread(of(row, what))
        if row != 6:
            pair = of(row, what), of(6, what)
            found[f"{what}_minus_row_6"] = difference(*pair, between_seeds(pair))
    return found | {"recipe": recipe.to_json(), "runs": [cell for cell in cells if cell["row"] == row]}


if __name__ == "__main__":
    main()
