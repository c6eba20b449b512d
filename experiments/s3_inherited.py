"""S3, Figure 5: networks with the weights they inherit from a supernet, after fine-tuning, and trained from scratch.

    python experiments/s3_inherited.py --supernet runs/s3/evolution-0/supernet-2 --work runs/inherited [--networks 10]

Draws networks of a supernet's space and measures each three times on the test part, for each seed; trained with the
teacher of the supernet, where it had one. How well do inherited weights rank them? Writes results/s3_inherited.json.
Runs that are finished are not run again. With --attention also where the blocks of each network look after training
from scratch with the first seed (Figures 4 and 8): it is asked anew each time, of what is in --work.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from readings import spread
from sittings import Sittings, add_sitting_options
from teachers import about_teacher
from trainings import how_it_went

from vitsearch.architecture import Settings
from vitsearch.data import evaluation_batches, open_training_data
from vitsearch.environment import pick_device
from vitsearch.export import export_subnet
from vitsearch.methods.attention_maps import attention_facts
from vitsearch.models import build
from vitsearch.ranking import bootstrap_agreement, kendall
from vitsearch.spaces import cost_of, sample
from vitsearch.training.distributed import World
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import change
from vitsearch.training.run import Machine, Trained, digest_of, train_network
from vitsearch.training.supernet import TrainedSupernet, read_supernet
from vitsearch.training.trainer import evaluate
from vitsearch.training.transfer import load_weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--supernet", type=Path, required=True)
    parser.add_argument("--networks", type=int, default=10)
    parser.add_argument(
        "--tune-set", action="append", default=["learning_rate=1e-4"], help="the supernet's recipe, for fine-tuning"
    )
    parser.add_argument("--train-set", action="append", default=[], help="the same from scratch")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attention", action="store_true")
    add_sitting_options(parser)
    options = parser.parse_args()
    trained = read_supernet(options.supernet)
    drawn = sample(trained.supernet.space, options.networks, seed=0, geometry=trained.plan.geometry)
    about = {"data": Path(trained.plan.data).name, "space": trained.supernet.space.name, "networks": drawn}
    about |= {"teacher": about_teacher(trained.plan.distillation)}
    sittings = Sittings("s3_inherited.json", options, about)
    cells = {f"{n}-{seed}": (n, one, seed) for seed in range(options.seeds) for n, one in enumerate(drawn)}
    complete = sittings.run(partial(one_network, options), cells)
    rows = [
        by_network(own) for n in range(len(drawn)) if (own := [row for row in sittings.rows if row["network"] == n])
    ]
    ranked = {
        name: kendall([row["inherited"] for row in rows], [row[name]["mean"] for row in rows])
        for name in ("tuned", "scratch")
        if len(rows) > 1
    }
    summary = {"complete": complete, "kendall": ranked, "kendall_interval": intervals(rows), "rows": rows}
    looks = {"attention": attention(options, trained, sittings)} if options.attention else {}
    sittings.write(summary | looks)
    print(ranked)


def intervals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """95 % of the taus that resampled networks give: ten networks say little."""
    inherited, sizes = ([row[key] for row in rows] for key in ("inherited", "params"))
    return {
        name: bootstrap_agreement(inherited, [row[name]["mean"] for row in rows], sizes)["kendall"]
        for name in ("tuned", "scratch")
        if len(rows) > 1
    }


def one_network(options: argparse.Namespace, cell: tuple[int, Settings, int]) -> dict[str, Any]:
    """With one seed. What it inherits is the same with all."""
    number, settings, seed = cell
    trained = read_supernet(options.supernet)
    folder = options.work / f"inherited-{number}-{seed}"
    if not folder.exists():
        export_subnet(options.supernet, settings, folder)
    cost = cost_of(settings, trained.plan.geometry)
    row: dict[str, Any] = {"network": number, "seed": seed, "inherited": inherited(options, trained, settings)}
    for name, start, changes in (("tuned", folder, options.tune_set), ("scratch", None, options.train_set)):
        run = train(options, trained, settings, f"{name}-{number}", seed, start, changes)
        row |= {name: run.result["test_top1"], f"{name}_run": how_it_went(run)}
    print(f"network {number} seed {seed}:", {name: row[name] for name in ("inherited", "tuned", "scratch")}, flush=True)
    return row | {"settings": settings, "params": cost.params, "macs": cost.macs}


def by_network(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The seeds of one network together."""
    ordered = sorted(runs, key=lambda run: int(run["seed"]))
    same = {key: ordered[0][key] for key in ("network", "settings", "params", "macs", "inherited")}
    return same | {name: spread([run[name] for run in ordered]) for name in ("tuned", "scratch")}


def test_batches(options: argparse.Namespace, trained: TrainedSupernet) -> Any:
    data, recipe = open_training_data(trained.plan.data), trained.plan.recipe
    return evaluation_batches(
        data.part("test"),
        dataset=data,
        geometry=trained.plan.geometry,
        batch_size=recipe.batch_size,
        device=pick_device(options.device),
        crop_pct=recipe.crop_percent,
    )


def inherited(options: argparse.Namespace, trained: TrainedSupernet, settings: Settings) -> float:
    """On the test part, as the others are."""
    device = pick_device(options.device)
    network = trained.supernet.extract(trained.supernet.space.decode(settings)).to(device)
    batches = test_batches(options, trained)
    return evaluate(network, batches, World(device=device), trained.plan.recipe.precision)["top1"]


def train(
    options: argparse.Namespace,
    trained: TrainedSupernet,
    settings: Settings,
    name: str,
    seed: int,
    start: Path | None,
    changes: list[str],
) -> Trained:
    recipe = change(trained.plan.recipe, dict(each.split("=", 1) for each in changes))
    plan = TrainingPlan(
        settings=settings,
        geometry=trained.plan.geometry,
        data=trained.plan.data,
        recipe=replace(recipe, image_size=trained.plan.geometry.image_size),
        seed=seed,
        start=None if start is None else str(start),
        start_digest=None if start is None else digest_of(str(start)),
        distillation=trained.plan.distillation,
    )
    machine = Machine(device=options.device, compiled=False)  # another network to compile for a minute of training
    return train_network(plan, options.work / f"{name}-{seed}", machine=machine, resume=True)


def attention(options: argparse.Namespace, trained: TrainedSupernet, sittings: Sittings) -> list[dict[str, Any]]:
    """A row for each block of each network that is trained from scratch with the first seed."""
    images = next(iter(test_batches(options, trained)))[0]
    rows = []
    for cell in sorted((cell for cell in sittings.rows if cell["seed"] == 0), key=lambda cell: int(cell["network"])):
        network = build(cell["settings"], trained.plan.geometry, draw_weights=False)
        network.load_state_dict(load_weights(options.work / f"scratch-{cell['network']}-0").state)
        about = {"network": cell["network"], "commit": sittings.now["commit"]}
        rows += [about | row.to_json() for row in attention_facts(network.to(images.device), images)]
    return rows


if __name__ == "__main__":
    main()
