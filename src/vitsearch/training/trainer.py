"""The training loop.

    step:   mix, forward, backward (in micro-batches), clip, optimise, average
    epoch:  mean loss, accuracy on the validation part, one line in `epochs.jsonl`
    save:   every `save_every` steps, one checkpoint that resumes to the same weights; None: nothing is saved

A loss, or a weight, that is not finite takes the training back to its last checkpoint and halves the rate, `RETRIES`
times. Memory that runs out halves the micro-batch.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from timm.data import Mixup
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitsearch.data import Batch, Loader
from vitsearch.environment import is_out_of_memory, products_in, usable_precision
from vitsearch.errors import BadStudy, TrainingFailed, VitsearchError
from vitsearch.models import VisionNetwork
from vitsearch.tasks import Task, accuracy
from vitsearch.training.checkpoint import (
    Position,
    named_state,
    optimizer_state,
    part_of,
    read_checkpoint,
    restore_optimizer,
    write_checkpoint,
)
from vitsearch.training.distributed import World
from vitsearch.training.optimize import make_optimizer, make_schedule
from vitsearch.training.plan import EpochLog
from vitsearch.training.randomness import seed_generators, seed_of
from vitsearch.training.recipe import Recipe

CHECK_EVERY = 50
"""Steps between two looks at the loss: each look waits for the GPU."""
RETRIES = 3
log = logging.getLogger("vitsearch")
Progress = Callable[[int, int, str], None]


class NotFinite(Exception):
    """The loss of the steps since the last look, or on the validation part, or a weight is not finite."""


class Step(nn.Module):
    """Network and task as one module, so that compiling and distributing see whole steps."""

    def __init__(self, network: nn.Module, task: Task, device: torch.device, precision: str) -> None:
        super().__init__()
        self.network = network
        self.task = task
        self.kind = device.type
        self.dtype = getattr(torch, usable_precision(device, precision))

    def forward(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and the logits without gradient."""
        with torch.autocast(self.kind, self.dtype, enabled=self.dtype != torch.float32):
            outcome = self.task.losses(self.network, images, targets)
        return outcome.loss.float(), outcome.logits.detach()


class Trainer:
    """One network, one task, one recipe. `run` goes from the last checkpoint to the end."""

    step_kind: type[Step] = Step
    leaves_some_out = False
    """Whether a step may leave parameters out."""

    def __init__(
        self,
        network: nn.Module,
        task: Task,
        recipe: Recipe,
        loader: Loader,
        validation: Iterable[Batch] | None,
        *,
        classes: int,
        seed: int,
        world: World,
        checkpoint: Path,
        journal: EpochLog | None,
        compiled: bool = False,
        save_every: int | None = 500,
        evaluate_every: int | None = None,
        progress: Progress | None = None,
        on_epoch: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.network, self.task, self.recipe, self.loader = network, task, recipe, loader
        self.validation, self.seed, self.world = validation, seed, world
        self.checkpoint, self.journal, self.progress, self.on_epoch = checkpoint, journal, progress, on_epoch
        self.save_every = save_every
        self.evaluate_every = evaluate_every or max(1, recipe.epochs // 20)
        self.total = recipe.epochs * loader.steps_per_epoch
        self.position = Position()
        self.parameters = named_state(network, task)
        self.optimizer = make_optimizer(recipe, network, task)
        scaled = usable_precision(world.device, recipe.precision) == "float16"
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=scaled)
        self.average = ModelEmaV3(network, decay=recipe.average, use_warmup=True) if recipe.average else None
        self.mix = _mixer(recipe, classes)
        self.meter = torch.zeros(2, dtype=torch.float64, device=_float64_device(world.device))
        self.step_module: nn.Module = self.step_kind(network, task, world.device, recipe.precision)
        if world.size > 1:
            ids = [world.device.index] if world.device.type == "cuda" else None
            self.step_module = DistributedDataParallel(
                self.step_module, device_ids=ids, find_unused_parameters=self.leaves_some_out
            )
        if compiled:
            self.compile()
        self.speed, self.started, self.earlier = 0.0, time.perf_counter(), 0.0
        self.validated: tuple[int, dict[str, float]] | None = None
        """The last step after which the validation part was looked at, and what was seen."""

    def compile(self) -> None:
        if isinstance(self.network, VisionNetwork):
            self.network.compile_layers()
        else:
            self.step_module.compile(dynamic=False)

    @property
    def seconds(self) -> float:
        """Of this sitting and of those before it."""
        return self.earlier + time.perf_counter() - self.started

    # --- the loop

    def run(self) -> None:
        self.started, begun = time.perf_counter(), self.checkpoint.exists()
        self.world.wait()  # all have looked before one of them writes
        if begun:
            self.restore()
            self.earlier = self.position.seconds
        else:
            if self.journal is not None:
                self.journal.cut(0)
            self.save()
        while self.position.step < self.total:
            try:
                self.train_on()
            except NotFinite:
                self.roll_back()

    def begin(self) -> None:
        """Rates, modes and clock for the steps from here on."""
        self.set_rate = make_schedule(
            self.recipe, self.optimizer, self.loader.steps_per_epoch, self.position.rate_factor
        )
        self.network.train()
        self.task.train()
        self.clock, self.clocked = time.perf_counter(), self.position.step

    def train_on(self) -> None:
        """From the present step to the last, or until the loss is not finite."""
        self.begin()
        for batch in self.loader.batches(self.position.step):
            self.train_step(batch)
            step = self.position.step
            ends_epoch = step % self.loader.steps_per_epoch == 0
            saves = self.save_every is not None and step % self.save_every == 0
            if ends_epoch or step % CHECK_EVERY == 0 or saves:
                self.look()
            if ends_epoch:
                self.end_epoch(step // self.loader.steps_per_epoch)
            if saves or step == self.total:
                self.save()
            if step == self.total:
                return

    def train_step(self, batch: Batch) -> None:
        step = self.position.step
        seed_generators(seed_of(self.seed, "step", step, self.world.rank))
        self.set_rate(step)
        images, targets = self.mix(*batch) if self.mix else batch
        loss = self.accumulate(images, targets)
        if self.recipe.clip is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.recipe.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.network, step + 1)
        self.meter += torch.stack([loss, torch.ones_like(loss)]).to(self.meter)
        self.position = replace(self.position, step=step + 1)

    def accumulate(self, images: Tensor, targets: Tensor) -> Tensor:
        """Gradients of the mean loss over a batch, in as many pieces as fit into memory."""
        while True:
            try:
                return self._gradients(images, targets, self.position.micro_batches)
            except RuntimeError as error:
                if not is_out_of_memory(error) or self.world.size > 1 or not self.can_spare(len(images)):
                    raise
                self.optimizer.zero_grad(set_to_none=True)
            self.spare(len(images))  # out here the error does not hold the step's memory any more

    def can_spare(self, images: int) -> bool:
        """Whether a step of so many images can be tried again with less memory."""
        return 2 * self.position.micro_batches <= images

    def spare(self, images: int) -> None:
        pieces = 2 * self.position.micro_batches
        log.warning("out of memory: batches of %d in %d pieces from here on", images, pieces)
        self.position = replace(self.position, micro_batches=pieces)
        self.make_room()

    def make_room(self) -> None:
        """Give back what is not needed for smaller batches."""
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()

    def _gradients(self, images: Tensor, targets: Tensor, pieces: int) -> Tensor:
        return self.add_gradients(images, targets, pieces)

    def add_gradients(
        self, images: Tensor, targets: Tensor, pieces: int, *more: object, seen: list[Tensor] | None = None
    ) -> Tensor:
        """Forward and backward of a batch; `more` is what the step module needs beside images and targets.

        `seen` is given the logits of each piece.
        """
        total = torch.zeros((), device=images.device)
        parts = list(zip(images.chunk(pieces), targets.chunk(pieces), strict=True))
        for number, (some, their_targets) in enumerate(parts):
            alone = number + 1 < len(parts) and isinstance(self.step_module, DistributedDataParallel)
            with self.step_module.no_sync() if alone else nullcontext():  # type: ignore[operator]
                loss, logits = self.step_module(some, their_targets, *more)
                share = loss * (len(some) / len(images))
                self.scaler.scale(share).backward()
            total += share.detach()
            if seen is not None:
                seen.append(logits)
        return total

    # --- between steps

    def look(self) -> None:
        """Wait for the device, see whether loss and weights are finite, and tell how fast it goes.

        The weights too, because the loss knows nothing of the last step: they go into checkpoints.
        """
        seen = self.world.total(self.meter.clone())
        if not math.isfinite(float(seen[0])) or not are_finite(self.parameters.values()):
            raise NotFinite
        now, step = time.perf_counter(), self.position.step
        if now > self.clock and step > self.clocked:
            self.speed = (step - self.clocked) * self.recipe.batch_size / (now - self.clock)
        self.clock, self.clocked = now, step
        if self.progress:
            mean = float(seen[0] / seen[1]) if seen[1] else math.nan
            self.progress(step, self.total, f"loss {mean:.3f}, {self.speed:,.0f} images/s")

    def end_epoch(self, epoch: int) -> None:
        loss, steps = self.world.total(self.meter.clone()).tolist()
        row: dict[str, Any] = {"epoch": epoch, "step": self.position.step, "loss": loss / steps}
        row |= {"learning_rate": self.optimizer.param_groups[0]["lr"], "rate_factor": self.position.rate_factor}
        row |= {"micro_batches": self.position.micro_batches, "images_per_second": round(self.speed, 1)}
        if self.validation is not None and (epoch % self.evaluate_every == 0 or epoch == self.recipe.epochs):
            self.validated = self.position.step, self.evaluate(self.validation)
            row |= {f"validation_{name}": value for name, value in self.validated[1].items()}
            if not all(map(math.isfinite, row.values())):
                raise NotFinite
        if self.journal is not None:
            self.journal.append(row)
        if self.on_epoch is not None:
            self.on_epoch(row)
        self.meter.zero_()
        self.clock, self.clocked = time.perf_counter(), self.position.step

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Accuracy in percent and mean loss of the averaged weights, where there are any, else of the trained ones."""
        return evaluate(self.best_network(), batches, self.world, self.recipe.precision)

    def best_network(self) -> nn.Module:
        return cast(nn.Module, self.average.module) if self.average is not None else self.network

    # --- checkpoints

    def save(self) -> None:
        if self.scaler.is_enabled():
            state = self.scaler.state_dict()
            scale, past = float(state["scale"]), int(state["_growth_tracker"])
            self.position = replace(self.position, loss_scale=scale, scaled_steps=past)
        if not self.world.writes or self.save_every is None:
            return
        self.position = replace(self.position, seconds=round(self.seconds, 2))
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {f"task.{name}": value for name, value in self.task.state_dict().items()}
        tensors["meter"] = self.meter
        if self.average is not None:
            tensors |= {f"average.{name}": value for name, value in self.average.module.state_dict().items()}
        write_checkpoint(self.checkpoint, tensors, self.position, optimizer_state(self.optimizer, self.parameters))

    def restore(self) -> None:
        """Everything as it was at the checkpoint, and the journal cut back to it."""
        self.world.wait()
        tensors, self.position, numbers = read_checkpoint(self.checkpoint)
        try:
            self.network.load_state_dict(part_of(tensors, "network"))
            self.task.load_state_dict(part_of(tensors, "task"))
            if self.average is not None:
                self.average.module.load_state_dict(part_of(tensors, "average"))
            restore_optimizer(self.optimizer, self.parameters, {**tensors, **numbers})
        except (RuntimeError, BadStudy) as error:
            raise BadStudy(f"{self.checkpoint} is not of this network: {' '.join(str(error).split())}") from None
        self.optimizer.zero_grad(set_to_none=True)
        self.meter.copy_(tensors["meter"])
        if self.position.loss_scale is not None:
            kept = {"scale": self.position.loss_scale, "_growth_tracker": self.position.scaled_steps}
            self.scaler.load_state_dict(self.scaler.state_dict() | kept)
        if self.journal is not None:
            self.journal.cut(self.position.step)

    def roll_back(self) -> None:
        failed, before = self.position.step, self.position
        if self.save_every is None:
            raise TrainingFailed(f"the loss is not finite near step {failed}, and there is no checkpoint to go back to")
        if before.retries == RETRIES:
            raise TrainingFailed(
                f"the loss is not finite near step {failed}, with {RETRIES} lower rates too (the last was "
                f"{self.optimizer.param_groups[0]['lr']:.3g}): try a lower learning_rate, a longer warm-up or float32"
            )
        self.restore()
        self.position = replace(self.position, retries=before.retries + 1, rate_factor=before.rate_factor / 2)
        log.warning(
            "the loss is not finite near step %d: back to step %d with %g of the rate (retry %d of %d)",
            *(failed, self.position.step, self.position.rate_factor, self.position.retries, RETRIES),
        )
        self.world.wait()  # all have read before one of them writes
        self.save()  # a resumed training goes on with the lower rate


@torch.no_grad()
def evaluate(network: nn.Module, batches: Iterable[Batch], world: World, precision: str) -> dict[str, float]:
    """Percent right and mean cross-entropy over all images of all processes, in evaluation mode.

    Where memory runs out, batches go through in pieces, as in training.
    """
    training = network.training
    network.eval()
    counts = torch.zeros(4, dtype=torch.float64, device=_float64_device(world.device))
    full, pieces = 0, 1
    try:
        for images, labels in batches:
            full = max(full, len(images))
            if images.is_cuda and len(images) < full:  # filled up, since what is compiled is compiled for one shape
                images = nn.functional.pad(images, (0, 0, 0, 0, 0, 0, 0, full - len(images)))
            with products_in(world.device, precision):
                logits, pieces = look_in_pieces(network, images, pieces)
            logits = logits[: len(labels)]
            right = accuracy(logits, labels)
            loss = nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
            sums = [right.top1, right.top5, loss, torch.tensor(float(len(labels)), device=loss.device)]
            counts += torch.stack([value.to(counts) for value in sums])
    finally:
        network.train(training)
    top1, top5, loss, images_seen = world.total(counts).tolist()
    if not images_seen:
        raise VitsearchError("there are no images to evaluate on")
    return {
        "top1": 100 * top1 / images_seen,
        "top5": 100 * top5 / images_seen,
        "loss": loss / images_seen,
        "images": int(images_seen),
    }


def look_in_pieces(network: nn.Module, images: Tensor, pieces: int) -> tuple[Tensor, int]:
    """Logits, and into how many pieces the batch had to be cut: `pieces`, or more where memory ran out."""
    while True:
        try:
            return torch.cat([network(some) for some in images.chunk(pieces)]), pieces
        except RuntimeError as error:
            if not is_out_of_memory(error) or 2 * pieces > len(images):
                raise
        pieces *= 2  # out here the error does not hold the batch's memory any more
        log.warning("out of memory: batches of %d are evaluated in %d pieces", len(images), pieces)
        if images.is_cuda:
            torch.cuda.empty_cache()


def are_finite(parameters: Iterable[Tensor]) -> bool:
    largest = torch._foreach_norm([one.detach() for one in parameters], float("inf"))
    return bool(torch.stack(largest).isfinite().all())


def _mixer(recipe: Recipe, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    if not recipe.mixing:
        return None
    mix = Mixup(
        mixup_alpha=recipe.mixup,
        cutmix_alpha=recipe.cutmix,
        switch_prob=recipe.mix_switch,
        mode=recipe.mix_mode,
        label_smoothing=recipe.label_smoothing,
        num_classes=classes,
    )
    return cast(Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], mix)


def _float64_device(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type == "mps" else device
