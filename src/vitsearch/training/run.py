"""Train a network from a plan to a folder that timm loads.

train_network(plan, "run")               # study.json, epochs.jsonl, checkpoint.safetensors
                                         # at the end model.safetensors, config.json and result.json
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import timm
import torch
from torch import Tensor, nn

from vitsearch.architecture import check_whole
from vitsearch.cost import Geometry
from vitsearch.data import (
    Batch,
    Dataset,
    Images,
    JoinedImages,
    Loader,
    Split,
    evaluation_batches,
    open_training_data,
    train_loader,
)
from vitsearch.environment import announce_precision, describe_environment, usable_precision
from vitsearch.errors import BadStudy, TrainingFailed, VitsearchError
from vitsearch.models import build
from vitsearch.models.folder import CONFIG, WEIGHTS, foreign_config, timm_config, write_network
from vitsearch.models.super_transformer import supernet_for
from vitsearch.models.supernet import Supernet
from vitsearch.records import remove_temporaries, write_atomically
from vitsearch.registry import did_you_mean
from vitsearch.spaces import decode
from vitsearch.tasks import Classification, Task
from vitsearch.training.calibration import calibration_batches
from vitsearch.training.curves import Curves, require_tensorboard
from vitsearch.training.distributed import World, join_world
from vitsearch.training.optimize import check_optimizer
from vitsearch.training.plan import (
    CHECKPOINT,
    EPOCHS,
    RESULT,
    STUDY,
    EpochLog,
    TrainingPlan,
    enter_folder,
    read_epochs,
    read_result,
    refuse_existing,
)
from vitsearch.training.preferred import scheme_of
from vitsearch.training.randomness import borrowed_generators, seed_generators, seed_of
from vitsearch.training.supernet import SupernetTrainer, read_supernet, supernet_folder, supernet_space
from vitsearch.training.teacher import on_device, weights_of_teacher
from vitsearch.training.trainer import Progress, Trainer
from vitsearch.training.transfer import fit_weights, load_weights

log = logging.getLogger("vitsearch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How a training runs, which changes its speed and at most its last digits."""

    device: str = "auto"
    compiled: bool | None = None
    """None: on a GPU, where a supernet does not have too many shapes. With False, nothing is recorded either."""
    resident: bool | None = None
    """Whether decoded images stay in the device's memory; None: when they fit."""
    workers: int = 2
    save_every: int | None = 500
    """None: no checkpoints, for trainings that take no longer than writing some; what is cut off begins anew."""
    evaluate_every: int | None = None
    tensorboard: bool = False

    def __post_init__(self) -> None:
        check_whole("workers", self.workers, least=0, most=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    out: Path
    result: dict[str, Any]
    """Accuracy on the test part, images seen, seconds of all sittings."""
    epochs: list[dict[str, Any]]
    writes: bool = True
    """False in all processes but one."""


def train_network(
    plan: TrainingPlan,
    out: str | Path,
    *,
    machine: Machine | None = None,
    resume: bool = False,
    allow_changed: bool = False,
    progress: Progress | None = None,
    dataset: Dataset | None = None,
) -> Trained:
    """Train, or go on training, and look at the test part once, at the end.

    `dataset`: what `plan.data` opens, where it is open already.
    """
    how, folder = machine or Machine(), Path(out)
    refuse_existing(folder, resume)
    if how.tensorboard:
        require_tensorboard()  # not after hours
    with join_world(how.device) as world, borrowed_generators(world.device):
        dataset = dataset or open_training_data(plan.data)
        check_plan(plan, dataset)
        check_optimizer(plan.recipe, world.device)
        made = make_network(plan)
        network = made.to(world.device) if plan.timm is None else on_device(made, world.device)
        task = make_task(plan, network, world.device)
        plan = with_teacher_digest(plan)
        environment = describe_environment(world.device) | {
            "processes": world.size,
            "compiled": _compiled(how, world, network),
            "precision": usable_precision(world.device, plan.recipe.precision),
        }
        enter = partial(enter_together, world, folder, plan, environment, resume, allow_changed)
        begun = world.any(world.writes and resume and (folder / STUDY).exists())
        journal = enter() if begun else None  # another plan is refused before images are decoded
        if begun and (folder / RESULT).exists():
            return dataclasses.replace(read_training(folder), writes=world.writes)
        try:
            loader = make_loader(plan, dataset, world, how)  # what is wrong with the data leaves no new folder behind
            journal = journal if begun else enter()
            if world.writes:
                remove_temporaries(folder, (STUDY, CHECKPOINT, RESULT, CONFIG, WEIGHTS))
            trainer = make_trainer(plan, dataset, network, task, loader, world, how, folder, journal, progress)
            return _train(trainer, plan, dataset, world, how, folder)
        finally:
            if journal is not None:
                journal.close()


def enter_together(
    world: World, folder: Path, plan: TrainingPlan, environment: dict[str, Any], resume: bool, allow_changed: bool
) -> EpochLog | None:
    """The journal of this very training, for the process that writes; None of a finished one, which nobody writes."""
    journal, refused = None, None
    if world.writes:
        try:
            enter_folder(folder, plan, environment, resume, allow_changed)
            journal = None if (folder / RESULT).exists() else EpochLog(folder / EPOCHS)
        except (VitsearchError, OSError) as error:
            refused = error
    world.agree(refused)
    return journal


def _train(trainer: Trainer, plan: TrainingPlan, dataset: Dataset, world: World, how: Machine, folder: Path) -> Trained:
    precision = usable_precision(world.device, plan.recipe.precision)
    if world.writes:
        announce_precision(world.device, plan.recipe.precision, "training")
    trainer.run()
    result = measured_at_the_end(trainer, plan, dataset, world, how)
    result |= {"steps": trainer.total, "images_seen": trainer.total * plan.recipe.batch_size}
    result |= {"retries": trainer.position.retries, "seconds": round(trainer.seconds, 2)}
    result["precision"] = precision
    rows = trainer.journal.rows if trainer.journal is not None else []
    if world.writes:
        write_result(plan, dataset, trainer.best_network(), result, folder)
    return Trained(out=folder, result=result, epochs=list(rows), writes=world.writes)


def measured_at_the_end(
    trainer: Trainer, plan: TrainingPlan, dataset: Dataset, world: World, how: Machine
) -> dict[str, Any]:
    """The test part, once. A supernet is there to search with, so it sees the validation part alone."""
    split: Split = "test" if plan.space is None else "validation"
    step, found = trainer.validated or (0, {})
    if split == "test" or step != trainer.position.step:  # else it was looked at right now
        found = trainer.evaluate(_evaluation(plan, dataset, split, world, how))
    if not all(map(math.isfinite, found.values())):
        raise TrainingFailed(f"the loss on the {split} part is not finite: try a lower learning_rate or float32")
    return {f"{split}_{name}": value for name, value in found.items()}


def _compiled(how: Machine, world: World, network: nn.Module) -> bool:
    usual = world.device.type == "cuda" and getattr(network, "few_shapes", True)
    return usual if how.compiled is None else how.compiled


def check_plan(plan: TrainingPlan, dataset: Dataset) -> None:
    if plan.geometry.classes != dataset.classes:
        raise VitsearchError(f"`classes` must be {dataset.classes} for {plan.data}, but got {plan.geometry.classes}")
    if plan.space is not None and plan.subnets is not None:
        scheme_of(plan.subnets, supernet_space(plan.space), plan.candidates)
    if plan.start is not None and plan.start_digest != digest_of(plan.start):
        raise BadStudy(f"{plan.start} is not the file that this training started from: its content has changed")


def with_teacher_digest(plan: TrainingPlan) -> TrainingPlan:
    """The plan with its teacher's weights known, so that a training goes on with no other ones."""
    if plan.distillation is None:
        return plan
    found = digest_of(weights_of_teacher(plan.distillation.teacher))
    if plan.teacher_digest not in (None, found):
        raise BadStudy(f"{plan.distillation.teacher} is not the teacher of this training: its content has changed")
    return dataclasses.replace(plan, teacher_digest=found)


def digest_of(path: str) -> str:
    """Of the weights file, or of a folder's."""
    file = Path(path)
    file = file / "model.safetensors" if file.is_dir() else file
    try:
        with open(file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise VitsearchError(f"`from` must be weights that can be read, but got {path!r}: {error.strerror}") from None


def make_network(plan: TrainingPlan) -> nn.Module:
    """With its initial weights, or those it starts from."""
    geometry, rate = plan.geometry, plan.recipe.drop_path
    network: nn.Module
    if plan.space is not None:
        space, options = supernet_space(plan.space), {"seed": plan.seed, "drop_path_rate": rate}
        network = supernet_for(space, geometry, sharing=plan.sharing, **options)
    elif plan.settings is not None:
        network = build(plan.settings, geometry, seed=plan.seed, drop_path_rate=rate)
    else:
        seed_generators(seed_of(plan.seed, "weights"))
        network = timm_network(cast(str, plan.timm), geometry, rate)
    if plan.start is not None:
        report = fit_weights(start_weights(plan), network)
        log.info("starting from %s; of tensors: %s", plan.start, report)
    return network


def start_weights(plan: TrainingPlan) -> dict[str, Tensor]:
    """What `start` holds; of a supernet, the network that is trained, cut out: q, k and v lie otherwise in it."""
    start = cast(str, plan.start)
    folder = supernet_folder(start)
    if folder is None or plan.space is not None:
        return load_weights(start).state
    if plan.settings is None:
        raise VitsearchError(f"`from` must be weights of timm's {plan.timm!r}, but {start!r} is a supernet")
    return read_supernet(folder).supernet.extract(decode(plan.settings)).state_dict()


def timm_network(model: str, geometry: Geometry, drop_path: float) -> nn.Module:
    """Any classifier of timm; sizes and stochastic depth where the model has them."""
    if not timm.is_model(model):
        raise VitsearchError(f"no timm model named {model!r}.{did_you_mean(model, timm.list_models())}")
    options: dict[str, Any] = {"num_classes": geometry.classes, "in_chans": geometry.channels}
    for more in ({"img_size": geometry.image_size, "drop_path_rate": drop_path}, {"drop_path_rate": drop_path}, {}):
        try:
            return cast(nn.Module, timm.create_model(model, pretrained=False, **options, **more))
        except TypeError:
            continue
    raise VitsearchError(f"timm's {model!r} does not take a class count and channels")


def make_task(plan: TrainingPlan, network: nn.Module, device: torch.device) -> Task:
    task = Classification(label_smoothing=plan.recipe.label_smoothing)
    if plan.distillation is None:
        return task.to(device)
    seed_generators(seed_of(plan.seed, "task"))
    return plan.distillation.build(task, network, plan.geometry, device).to(device)


def make_loader(plan: TrainingPlan, dataset: Dataset, world: World, how: Machine) -> Loader:
    images: Images = dataset.part("train")
    if plan.parts == "train+validation":
        images = JoinedImages([images, dataset.part("validation")])
    return train_loader(
        images,
        dataset=dataset,
        geometry=plan.geometry,
        augmentation=plan.recipe.augmentation,
        batch_size=plan.recipe.batch_size,
        seed=seed_of(plan.seed, "data"),
        device=world.device,
        rank=world.rank,
        world=world.size,
        resident=how.resident,
        workers=how.workers,
    )


def make_trainer(
    plan: TrainingPlan,
    dataset: Dataset,
    network: nn.Module,
    task: Task,
    loader: Loader,
    world: World,
    how: Machine,
    folder: Path,
    journal: EpochLog | None,
    progress: Progress | None,
) -> Trainer:
    validation = _evaluation(plan, dataset, "validation", world, how) if plan.parts == "train" else None
    options: dict[str, Any] = {
        "classes": plan.geometry.classes,
        "seed": plan.seed,
        "world": world,
        "checkpoint": folder / CHECKPOINT,
        "journal": journal,
        "save_every": how.save_every,
        "evaluate_every": how.evaluate_every,
        "progress": progress,
        "on_epoch": Curves(folder / "tensorboard") if how.tensorboard and world.writes else None,
        "compiled": _compiled(how, world, network),
    }
    if isinstance(network, Supernet):
        assert plan.subnets is not None
        options |= {"scheme": plan.subnets, "candidates": plan.candidates, "in_place": plan.in_place_distillation}
        options["recorded"] = how.compiled is not False
        options["calibration"] = calibration_batches(network, plan, dataset, world.device, how.workers)
        return SupernetTrainer(network, task, plan.recipe, loader, validation, **options)
    return Trainer(network, task, plan.recipe, loader, validation, **options)


def _evaluation(plan: TrainingPlan, dataset: Dataset, split: Split, world: World, how: Machine) -> Iterable[Batch]:
    return evaluation_batches(
        dataset.part(split),
        dataset=dataset,
        geometry=plan.geometry,
        batch_size=plan.recipe.batch_size,
        device=world.device,
        rank=world.rank,
        world=world.size,
        crop_pct=plan.recipe.crop_percent,
        workers=how.workers,
    )


def write_result(
    plan: TrainingPlan, dataset: Dataset, network: nn.Module, result: dict[str, Any], folder: Path
) -> None:
    """The network, then the figures: a folder with `result.json` is finished."""
    about = {"weights": "trained", "data": plan.data, "seed": plan.seed, "recipe": plan.recipe.source}
    about |= {name: value for name, value in result.items() if name.endswith("top1")}
    shown: dict[str, Any] = {"mean": dataset.mean, "std": dataset.std, "crop_percent": plan.recipe.crop_percent}
    shown["class_names"] = dataset.class_names
    if plan.space is not None:
        config: dict[str, Any] = {"space": plan.space, "vitsearch": about | {"weights": "supernet"}}
    elif plan.settings is not None:
        config = timm_config(plan.settings, plan.geometry, about, **shown)
    else:
        config = foreign_config(cast(str, plan.timm), network, plan.geometry, about, **shown)
    write_network(folder, network.state_dict(), config)
    write_atomically(folder / RESULT, json.dumps(result, indent=2, allow_nan=False) + "\n")


def read_training(folder: str | Path) -> Trained:
    """A finished training."""
    path = Path(folder)
    return Trained(out=path, result=read_result(path), epochs=read_epochs(path / EPOCHS))
