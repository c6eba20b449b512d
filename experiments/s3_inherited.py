"""S3, Figure 5: networks with the weights they inherit from a supernet, after fine-tuning, and trained from scratch.

    python experiments/s3_inherited.py --supernet runs/s3/evolution-0/supernet-2 --work runs/inherited [--networks 10]

Draws networks of a supernet's space and measures each three times on the test part, for each seed. How well do
inherited weights rank them? Writes results/s3_inherited.json. Runs that are finished are not run again. With
--attention also where the blocks of each network look after training from scratch (Figures 4 and 8).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from common import RESULTS, circumstances, write

from vitsearch.architecture import Settings
from vitsearch.data import evaluation_batches, open_training_data
from vitsearch.environment import pick_device
from vitsearch.export import export_subnet
from vitsearch.methods.attention_maps import attention_facts
from vitsearch.models import build
from vitsearch.ranking import kendall
from vitsearch.spaces import cost_of, sample
from vitsearch.training.distributed import World
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import change
from vitsearch.training.run import Machine, digest_of, train_network
from vitsearch.training.supernet import TrainedSupernet, read_supernet
from vitsearch.training.trainer import evaluate
from vitsearch.training.transfer import load_weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--supernet", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="where runs are kept, and resumed")
    parser.add_argument("--networks", type=int, default=10)
    parser.add_argument(
        "--tune-set", action="append", default=["learning_rate=1e-4"], help="the supernet's recipe, for fine-tuning"
    )
    parser.add_argument("--train-set", action="append", default=[], help="the same from scratch")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attention", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    trained = read_supernet(options.supernet)
    drawn = sample(trained.supernet.space, options.networks, seed=0, geometry=trained.plan.geometry)
    rows = [one_network(options, trained, settings, number) for number, settings in enumerate(drawn)]
    written = circumstances(pick_device(options.device), options.commit) | {
        "data": trained.plan.data,
        "space": trained.supernet.space.name,
        "rows": rows,
        "kendall": {
            name: kendall([r["inherited"] for r in rows], [r[name]["mean"] for r in rows])
            for name in ("tuned", "scratch")
        },
    }
    write("s3_inherited.json", written, options.out)
    print(written["kendall"])


def one_network(
    options: argparse.Namespace, trained: TrainedSupernet, settings: Settings, number: int
) -> dict[str, Any]:
    folder = options.work / f"inherited-{number}"
    if not folder.exists():
        export_subnet(options.supernet, settings, folder)
    cost = cost_of(settings, trained.plan.geometry)
    row: dict[str, Any] = {"settings": settings, "params": cost.params, "macs": cost.macs}
    row["inherited"] = inherited(options, trained, settings)
    for name, start, changes in (("tuned", folder, options.tune_set), ("scratch", None, options.train_set)):
        row[name] = spread(
            [
                train(options, trained, settings, f"{name}-{number}", seed, start, changes)
                for seed in range(options.seeds)
            ]
        )
    if options.attention:
        row["attention"] = attention(options, trained, settings, options.work / f"scratch-{number}-0")
    print(number, {name: row[name] for name in ("inherited", "tuned", "scratch")}, flush=True)
    return row


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
) -> float:
    recipe = change(trained.plan.recipe, dict(each.split("=", 1) for each in changes))
    plan = TrainingPlan(
        settings=settings,
        geometry=trained.plan.geometry,
        data=trained.plan.data,
        recipe=replace(recipe, image_size=trained.plan.geometry.image_size),
        seed=seed,
        start=None if start is None else str(start),
        start_digest=None if start is None else digest_of(str(start)),
    )
    done = train_network(plan, options.work / f"{name}-{seed}", machine=Machine(device=options.device), resume=True)
    return float(done.result["test_top1"])


def attention(
    options: argparse.Namespace, trained: TrainedSupernet, settings: Settings, folder: Path
) -> list[dict[str, Any]]:
    network = build(settings, trained.plan.geometry, draw_weights=False)
    network.load_state_dict(load_weights(folder).state)
    images = next(iter(test_batches(options, trained)))[0]
    return [row.to_json() for row in attention_facts(network.to(images.device), images)]


def spread(values: list[float]) -> dict[str, Any]:
    return {"mean": mean(values), "deviation": stdev(values) if len(values) > 1 else None, "values": values}


if __name__ == "__main__":
    main()
