"""A small convolutional network that guides the trainings of an experiment, trained once for all of them.

With locality guidance (`training/distill.py`) transformers learn small images in a fraction of the epochs, so that many
of them can be trained really. The teacher learns from the training part alone; its accuracy on the test part is looked
at once.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from vitsearch.cost import Geometry
from vitsearch.training.distill import Distillation, distillation
from vitsearch.training.plan import Parts, TrainingPlan
from vitsearch.training.recipe import RECIPES, Recipe, change
from vitsearch.training.run import Machine, train_network

NETWORK = "vitsearch_resnet56"
SGD = {"optimizer": "sgd", "learning_rate": "0.4", "weight_decay": "5e-4", "clip": "5"}
SGD |= {"cutmix": "0", "label_smoothing": "0"}


def add_teacher_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--guidance", default="locality+soft", help="as --distill-kind of `vitsearch train`, or none")
    parser.add_argument("--teacher", type=Path, help="a trained one; else ResNet-56 is trained, in --work")
    parser.add_argument("--teacher-epochs", type=int, default=20)


def guided(options: argparse.Namespace, geometry: Geometry) -> Distillation | None:
    """What `add_teacher_options` asks for."""
    if options.guidance == "none":
        return None
    folder = options.teacher
    if folder is None:
        recipe = change(RECIPES["small-images"], SGD | {"epochs": str(options.teacher_epochs)})
        folder = train_teacher(
            options.work / "teacher", recipe, data=options.data, geometry=geometry, device=options.device
        )
    return distillation(str(folder), options.guidance)


def train_teacher(
    folder: Path, recipe: Recipe, *, data: str, geometry: Geometry, device: str, parts: Parts = "train"
) -> Path:
    """In `folder`, unless it is there already."""
    geometry = replace(geometry, image_size=recipe.image_size)
    plan = TrainingPlan(timm=NETWORK, geometry=geometry, data=data, parts=parts, recipe=recipe)
    machine = Machine(device=device, compiled=False)  # short, and long to compile
    found = train_network(plan, folder, machine=machine, resume=True)
    print(f"teacher: {found.result['test_top1']:.2f} %", flush=True)
    return folder


def about_teacher(taught: Distillation | None) -> dict[str, Any] | None:
    """For the result: rows of trainings with another teacher are not to be put together."""
    if taught is None:
        return None
    folder = Path(taught.teacher)
    result = json.loads((folder / "result.json").read_text())
    digest = sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]
    network = json.loads((folder / "config.json").read_text())["architecture"]
    about = {"kind": "+".join(taught.kind), "network": network, "sha256": digest, "weight": taught.weight}
    return about | {name: result[name] for name in ("test_top1", "images_seen", "seconds")}
