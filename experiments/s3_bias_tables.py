"""S3's supernet: one bias table for all windows, interpolated for the smaller ones, or a table for each window?

    python experiments/s3_bias_tables.py --data parquet:cifar10 --work runs/tables [--seeds 3] [--device auto]

Trains the supernet of `s3_cifar10.py`'s first space both ways, at equal steps, with every seed, and evaluates the same
random networks in each on the validation part, together and by the share of large windows. With `--evolutions` the
supernets with one table are those that `s3_cifar10.py` has trained there already, with the same recipe, teacher and
seeds. Writes results/s3_bias_tables.json, which a later run goes on with.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from readings import between_seeds, difference, spread
from s3_cifar10 import SPACE, geometry_of, recipe_of
from sittings import Sittings, add_sitting_options
from teachers import about_teacher, add_teacher_options, guided

from vitsearch.architecture import Settings
from vitsearch.evaluate import SupernetEvaluator
from vitsearch.spaces import SPACES, sample
from vitsearch.training.distill import Distillation
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.run import Machine, train_network

FILE = "s3_bias_tables.json"
TABLES = ("interpolated", "separate")
DEFAULT = "interpolated"
"""That of the spaces, which do not name it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--space", default=SPACE)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--patch-size", type=int, default=2)
    parser.add_argument("--recipe", default="small-images-guided")
    parser.add_argument("--set", action="append", default=[], help="a field of that recipe: epochs=100")
    parser.add_argument("--networks", type=int, default=60)
    parser.add_argument("--images", type=int, default=1000, help="of the validation part, that judge")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--evolutions", type=Path, help="the --work of s3_cifar10.py: its first supernets are taken")
    add_teacher_options(parser)
    add_sitting_options(parser)
    options = parser.parse_args()
    taught = guided(options, geometry_of(options))
    recipe = recipe_of(options, options.recipe, options.set)
    about = {"data": Path(options.data).name, "space": options.space, "recipe": recipe.to_json()}
    about |= {"images": options.images, "networks": options.networks, "teacher": about_teacher(taught)}
    sittings = Sittings(FILE, options, about)
    cells = {f"{tables}-{seed}": (tables, seed) for seed in range(options.seeds) for tables in TABLES}
    complete = sittings.run(partial(one_supernet, options, taught), cells)
    summary = [compared(kind, sittings.rows) for kind in ("all", "small windows", "large windows")]
    sittings.write({"complete": complete, "summary": summary})
    for row in summary:
        print(row)


def one_supernet(options: argparse.Namespace, taught: Distillation | None, cell: tuple[str, int]) -> dict[str, Any]:
    tables, seed = cell
    named = options.space if tables == DEFAULT else f"{options.space},bias_tables={tables}"
    space = SPACES[named].with_patch_size(options.patch_size)
    plan = TrainingPlan(
        space={"name": space.name, "fixed": space.fixed()},
        subnets="sandwich",
        geometry=geometry_of(options),
        data=options.data,
        recipe=recipe_of(options, options.recipe, options.set),
        seed=seed,
        distillation=taught,
    )
    folder = options.work / f"{tables}-{seed}"
    if tables == DEFAULT and options.evolutions is not None:
        folder = options.evolutions / f"evolution-{seed}" / "supernet-0"
    done = train_network(plan, folder, machine=Machine(device=options.device), resume=True)
    evaluator = SupernetEvaluator(folder, images=options.images, device=options.device)
    networks = sorted(sample(space, options.networks, seed=0, geometry=plan.geometry), key=large_windows)
    top1 = [evaluator.one(settings).scores[evaluator.name] for settings in networks]
    third = max(1, len(networks) // 3)
    parts = {"all": top1, "small windows": top1[:third], "large windows": top1[-third:]}
    row = {"tables": tables, "seed": seed, "top1": {name: fmean(values) for name, values in parts.items()}}
    return row | {key: done.result[key] for key in ("images_seen", "seconds")}


def large_windows(settings: Settings) -> float:
    """The mean window over blocks."""
    windows = [window for stage in settings["window_size"] for window in stage]
    return fmean(windows)


def compared(kind: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean accuracy of the networks, both ways, and the difference."""

    def of(tables: str) -> list[float]:
        own = sorted((cell for cell in cells if cell["tables"] == tables), key=lambda cell: cell["seed"])
        return [cell["top1"][kind] for cell in own]

    pair = of("interpolated"), of("separate")
    found: dict[str, Any] = {"networks": kind} | {tables: spread(of(tables)) for tables in TABLES}
    return found | {"interpolated_minus_separate": difference(*pair, between_seeds(pair))}


if __name__ == "__main__":
    main()
