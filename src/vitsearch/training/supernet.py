"""One-shot training: every step trains some networks of a supernet, which share its weights.

Which ones is a function of (seed, step), so that all processes train the same and a resumed training goes on with the
same. Their gradients add up; the loss that is reported is their mean.

In-place distillation (Yu et al., BigNAS, ECCV 2020; Yu and Huang, ICCV 2019): every step trains the largest network
on the labels (the largest candidate, where the scheme draws from candidates), and its others on that one's
probabilities in place of them. In a sandwich the largest is among them anyway; another scheme's steps have it in
addition.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from vitsearch.architecture import Architecture, Settings
from vitsearch.cost import Geometry
from vitsearch.data import Batch
from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.models.folder import CONFIG, WEIGHTS
from vitsearch.models.recorded import GraphRecorder
from vitsearch.models.skeleton import Side
from vitsearch.models.super_transformer import supernet_for
from vitsearch.models.supernet import Supernet
from vitsearch.records import parse_json
from vitsearch.spaces import SPACES, Space, cost_of
from vitsearch.training.calibration import calibrated
from vitsearch.training.distributed import World
from vitsearch.training.plan import TrainingPlan, read_plan
from vitsearch.training.preferred import Preferred, scheme_of
from vitsearch.training.randomness import seed_generators, seed_of
from vitsearch.training.subnet import Subnet
from vitsearch.training.subnets import Identity, Sandwich
from vitsearch.training.trainer import Step, Trainer, evaluate
from vitsearch.training.transfer import load_weights

log = logging.getLogger("vitsearch")


class SupernetStep(Step):
    def forward(
        self, images: Tensor, targets: Tensor, architecture: Architecture | None = None
    ) -> tuple[Tensor, Tensor]:
        assert architecture is not None
        with torch.autocast(self.kind, self.dtype, enabled=self.dtype != torch.float32):
            outcome = self.task.losses(Subnet(cast(Supernet, self.network), architecture), images, targets)
        return outcome.loss.float(), outcome.logits.detach()


DRAWN, NEVER = 4, 1 << 61
"""Networks that are looked at as a step draws them, and the first of the steps that never come."""


class SupernetTrainer(Trainer):
    """The same loop; a step's gradients are those of its networks together."""

    step_kind = SupernetStep
    leaves_some_out = True
    _records = False

    def __init__(
        self,
        supernet: Supernet,
        *arguments: Any,
        scheme: str,
        candidates: Sequence[Settings] | None = None,
        calibration: Iterable[Batch] = (),
        in_place: bool = False,
        recorded: bool = True,
        **options: Any,
    ) -> None:
        """`recorded`: on one GPU, layers that come again and again go as one launch, compiled or not."""
        self.space, self.candidates, self.calibration = supernet.space, candidates, calibration
        self.in_place = in_place
        self.geometry = supernet.geometry
        found = scheme_of(scheme, supernet.space, candidates)
        self.scheme = replace(found, geometry=self.geometry) if isinstance(found, Sandwich) else found
        super().__init__(supernet, *arguments, **options)
        if recorded and not supernet.few_shapes:  # too many to compile
            self.record()

    def compile(self) -> None:
        """Layer by layer, since the network changes at every step and its layers have few shapes."""
        for network in (self.network, self.best_network()):
            cast(Supernet, network).compile()
        self.record()

    def record(self) -> None:
        """On one GPU, the layers that come again and again: of many shapes, those that every step trains."""
        repeats = cast(Supernet, self.network).few_shapes or isinstance(self.scheme, Sandwich)
        self._records = repeats and self.world.device.type == "cuda" and self.world.size == 1
        self._record()

    def _record(self) -> None:
        if not self._records:
            return
        supernet = cast(Supernet, self.network)
        always = self.scheme.always(self.space) if isinstance(self.scheme, Sandwich) else []
        only = None if supernet.few_shapes else [self.space.decode(settings) for settings in always]
        supernet.record_layers(GraphRecorder(), only)

    @property
    def _can_forget(self) -> bool:
        """Of many shapes only some are recorded, and the others have no use for the memory that those hold."""
        return self._records and not cast(Supernet, self.network).few_shapes

    def can_spare(self, images: int) -> bool:
        return self._can_forget or super().can_spare(images)

    def spare(self, images: int) -> None:
        if not self._can_forget:
            super().spare(images)
            return
        log.warning("out of memory: layers are not recorded from here on")
        self._records = False
        cast(Supernet, self.network).forget_recorded()
        self.make_room()

    def make_room(self) -> None:
        self._record()  # anew, for the batches to come
        super().make_room()

    @cached_property
    def largest(self) -> Settings:
        """Of those that steps draw from."""
        return ends_of(self.space, self.geometry, self.candidates if isinstance(self.scheme, Preferred) else None)[1]

    def architectures(self) -> list[Architecture]:
        """Of the present step; where the largest network teaches the others, it comes first."""
        chosen = self.scheme.choose(self.space, self.seed, self.position.step)
        if self.in_place:
            chosen = [self.largest, *(settings for settings in chosen if settings != self.largest)]
        return [self.space.decode(settings) for settings in chosen]

    def _gradients(self, images: Tensor, targets: Tensor, pieces: int) -> Tensor:
        losses = []
        for number, architecture in enumerate(self.architectures()):
            seed_generators(seed_of(self.seed, "step", self.position.step, self.world.rank, number))
            seen: list[Tensor] = []
            losses.append(self.add_gradients(images, targets, pieces, architecture, seen=seen))
            if self.in_place and number == 0:
                targets = torch.cat(seen).float().softmax(1)  # for all that follow
        return torch.stack(losses).mean()

    def looked_at(self) -> dict[str, list[Settings]]:
        """The smallest and the largest network, of the candidates where there are some.

        Where slots may be empty, the largest is far from all that steps draw, and some of steps that never come are
        looked at too.
        """
        ends = ends_of(self.space, self.geometry, self.candidates)
        found = {"smallest": [ends[0]], "largest": [ends[1]]}
        if isinstance(self.scheme, Identity):
            numbers = range(NEVER, NEVER + DRAWN)
            found["drawn"] = [self.scheme.choose(self.space, self.seed, number)[0] for number in numbers]
        return found

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Means over the networks of each kind; `top1` is that of the drawn ones, or that of both ends."""
        found: dict[str, float] = {}
        looked_at = self.looked_at()
        for name, some in looked_at.items():
            supernet, plans = cast(Supernet, self.best_network()), [self.space.decode(settings) for settings in some]
            precision = self.recipe.precision
            measured = [accuracy(supernet, plan, batches, self.world, precision, self.calibration) for plan in plans]
            found |= {f"{name}_{what}": mean(one[what] for one in measured) for what in measured[0] if what != "images"}
        names = ["drawn"] if "drawn" in looked_at else list(looked_at)
        return found | {"top1": mean(found[f"{name}_top1"] for name in names)}


def accuracy(
    supernet: Supernet,
    architecture: Architecture,
    batches: Iterable[Batch],
    world: World,
    precision: str,
    calibration: Iterable[Batch],
) -> dict[str, float]:
    """Of one network with the weights it inherits; the mean where the supernet has two sides.

    Where it has BatchNorm, with statistics from `calibration`, batches of the training part.
    """

    def network(side: Side) -> nn.Module:
        if supernet.batch_norm:
            return calibrated(supernet, architecture, calibration, precision, side)
        return Subnet(supernet, architecture, side)

    found = [evaluate(network(side), batches, world, precision) for side in supernet.sides]
    return {name: sum(one[name] for one in found) / len(found) for name in found[0]}


def ends_of(space: Space, geometry: Geometry, candidates: Sequence[Settings] | None) -> tuple[Settings, Settings]:
    """The networks with the fewest and the most parameters; what a patch size costs is a matter of the image."""
    if candidates is None:
        region = space.region(geometry=geometry)
        return region.smallest(), region.largest()
    ordered = sorted(candidates, key=lambda settings: cost_of(settings, geometry).params)
    return ordered[0], ordered[-1]


class TrainedSupernet(NamedTuple):
    plan: TrainingPlan
    supernet: Supernet


def supernet_space(space: Mapping[str, Any]) -> Space:
    return SPACES[space["name"]].with_fixed(space["fixed"])


def supernet_folder(weights: str | Path) -> Path | None:
    """The folder of a supernet that these weights are of: given itself, or its file; None for all others."""
    place = Path(weights)
    folder = place.parent if place.name == WEIGHTS else place
    if not (folder / CONFIG).is_file():
        return None
    config = parse_json((folder / CONFIG).read_bytes(), str(folder / CONFIG))
    return folder if isinstance(config, dict) and "space" in config else None


def read_supernet(folder: str | Path) -> TrainedSupernet:
    """A finished supernet with its weights, in evaluation mode, on the CPU."""
    path = Path(folder)
    plan, _ = read_plan(path)
    if plan.space is None:
        raise BadStudy(f"{path} is the training of one network, not of a supernet")
    if not (path / WEIGHTS).exists():
        raise BadStudy(f"{path} is not finished: it has no {WEIGHTS}; --resume goes on with it")
    supernet = supernet_for(supernet_space(plan.space), plan.geometry, sharing=plan.sharing)
    state, _ = load_weights(path / WEIGHTS)
    try:
        supernet.load_state_dict(state)
    except RuntimeError as error:
        raise VitsearchError(f"{path / WEIGHTS} is not of this supernet: {' '.join(str(error).split())}") from None
    return TrainedSupernet(plan, supernet.eval())
