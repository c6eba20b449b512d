"""Learning from a teacher as well: locality guidance (Auto-Prox, after Li et al. 2022) and logit distillation.

Locality guidance. Feature maps of a CNN's last three stages guide three blocks of the student: the first, the middle
one (depth // 2) and the last, which are blocks 0, 6 and 11 of 12. A trainable 1x1 convolution brings the student's map
to the teacher's width, both are resized bilinearly to the larger side, and
    loss = task + weight * sum over pairs of the mean squared error,    weight = 2.5.
Auto-Prox's public code guides blocks 0, 6 and 11 at every depth (`blocks`), and never puts its teacher in evaluation
mode (`teacher_mode="train"`): batch norms use the statistics of the batch and go on updating their running ones.

Logit distillation, on the network's only head:
    soft: (1 - alpha) * task + alpha * T^2 * KL(teacher at T || student at T), mean over images (Hinton et al. 2015);
    hard: (1 - alpha) * task + alpha * cross-entropy with the teacher's most likely class (DeiT).
DeiT's public code divides the soft term by the number of classes as well.

The teacher sees the student's batch as it is, augmented and normalised for the student, resized bilinearly to the
teacher's own image size. It should have been trained with the same normalisation.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.models.supernet import Supernet
from vitsearch.tasks import LogitTask, Outcome, Task
from vitsearch.training.subnet import Subnet
from vitsearch.training.teacher import MODES, STAGES, Seen, Teacher, features, open_teacher

KINDS = ("locality", "soft", "hard")


class Distilling(Task):
    """A task with a teacher around another task. Nested ones share the teacher, its one forward, and the student's."""

    def __init__(self, task: LogitTask | Distilling, teacher: Teacher) -> None:
        super().__init__()
        if isinstance(task, Distilling) and task.teacher is not teacher:
            raise ValueError("`teacher` must be the one of the task inside")
        self.task = task
        if not isinstance(task, Distilling):  # registered once, so that a checkpoint holds it once
            self.own_teacher = teacher

    @property
    def teacher(self) -> Teacher:
        return self.task.teacher if isinstance(self.task, Distilling) else self.own_teacher

    def taps(self, network: nn.Module) -> tuple[int, ...]:
        """Blocks of the student whose maps are needed."""
        return self.task.taps(network) if isinstance(self.task, Distilling) else ()

    def losses(self, network: nn.Module, images: Tensor, targets: Tensor) -> Outcome:
        return self.guide(see_student(network, images, self.taps(network)), self.teacher(images), targets)

    @abstractmethod
    def guide(self, student: Seen, teacher: Seen, targets: Tensor) -> Outcome: ...

    def inner(self, student: Seen, teacher: Seen, targets: Tensor) -> Outcome:
        if isinstance(self.task, Distilling):
            return self.task.guide(student, teacher, targets)
        return self.task.score(student.logits, targets)


def see_student(network: Any, images: Tensor, taps: tuple[int, ...]) -> Seen:
    """Maps are numbered as the taps, of which some may be the same block."""
    if not taps:
        return Seen(network(images), {})
    blocks = sorted(set(taps))
    final, maps = network.forward_intermediates(images, indices=blocks, output_fmt="NCHW", norm=False)
    return Seen(network.forward_head(final), {place: maps[blocks.index(tap)] for place, tap in enumerate(taps)})


class LocalityGuidance(Distilling):
    """Auto-Prox's; see the module's text. `network` is the student that it will be used with.

    For a supernet each of its networks has its own first, middle and last block, and the first columns of the
    convolutions, which are as wide as its widest.
    """

    def __init__(
        self,
        task: LogitTask | Distilling,
        teacher: Teacher,
        network: nn.Module,
        *,
        weight: float = 2.5,
        blocks: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(task, teacher)
        entangled = isinstance(network, Supernet)
        if isinstance(network, Supernet) and len(network.sides) > 1:  # before there is a folder
            raise VitsearchError("`distill_kind` must not be locality with `widths` two-sided: features have two sides")
        largest = Subnet(network, network.envelope) if isinstance(network, Supernet) else network
        student = features(largest)
        if not student or len(teacher.widths) < STAGES:
            one, kind = ("teacher", teacher.network) if student else ("network", network)
            rule = f"`{one}` must give maps through timm's `forward_intermediates`"
            raise VitsearchError(f"{rule}, {STAGES} or more of a teacher, but got {type(kind).__name__}")
        self.weight, self.blocks = weight, blocks
        widths = [int(map["num_chs"]) for map in student]
        own = [max(widths) if entangled else widths[block] for block in self._blocks(len(student))]
        self.projections = nn.ModuleList(nn.Conv2d(*pair, 1) for pair in zip(own, teacher.widths, strict=True))

    def _blocks(self, depth: int) -> tuple[int, ...]:
        blocks = guided_blocks(depth) if self.blocks is None else self.blocks
        if len(blocks) != STAGES or not all(0 <= block < depth for block in blocks):
            raise VitsearchError(f"`blocks` must be {STAGES} of 0 to {depth - 1}, but got {blocks}")
        return blocks

    def taps(self, network: nn.Module) -> tuple[int, ...]:
        return self._blocks(len(features(network)))

    def guide(self, student: Seen, teacher: Seen, targets: Tensor) -> Outcome:
        outcome = self.inner(student, teacher, targets)
        pairs = zip(self.projections, student.maps.values(), teacher.maps.values(), strict=True)
        distances = [map_distance(project_map(cast(nn.Conv2d, to), map), goal) for to, map, goal in pairs]
        guidance = torch.stack(distances).sum()
        parts = outcome.parts | {"guidance": guidance.detach()}
        return Outcome(outcome.loss + self.weight * guidance, outcome.logits, parts)


def project_map(convolution: nn.Conv2d, map: Tensor) -> Tensor:
    if map.shape[1] == convolution.in_channels:
        return cast(Tensor, convolution(map))
    return F.conv2d(map, convolution.weight[:, : map.shape[1]], convolution.bias)


def guided_blocks(depth: int) -> tuple[int, int, int]:
    """First, middle, last: 0, 6, 11 of 12."""
    return 0, depth // 2, depth - 1


def map_distance(ours: Tensor, theirs: Tensor) -> Tensor:
    """Mean squared error of two maps [B, C, h, w], both resized bilinearly to the larger side."""
    height, width = (max(ours.shape[axis], theirs.shape[axis]) for axis in (2, 3))
    with torch.autocast(ours.device.type, enabled=False):
        ours, theirs = (
            resized_map(x if x.dtype == torch.float64 else x.float(), height, width) for x in (ours, theirs)
        )
        return F.mse_loss(ours, theirs)


def resized_map(x: Tensor, height: int, width: int) -> Tensor:
    """Bilinearly, as two products: torch's own gradient of it adds up in no fixed order on a GPU."""
    x = x if x.shape[3] == width else x @ bilinear(x, x.shape[3], width).T
    return x if x.shape[2] == height else bilinear(x, x.shape[2], height) @ x


def bilinear(like: Tensor, before: int, after: int) -> Tensor:
    """[after, before]: how much of each old place a new one has along an axis; middles of pixels are their places."""
    old, new = (torch.arange(count, device=like.device, dtype=like.dtype) for count in (before, after))
    places = ((new + 0.5) * (before / after) - 0.5).clamp(0, before - 1)
    return (1 - (places[:, None] - old).abs()).clamp(min=0)


class LogitDistillation(Distilling):
    def __init__(
        self,
        task: LogitTask | Distilling,
        teacher: Teacher,
        *,
        hard: bool = False,
        temperature: float = 1.0,
        alpha: float = 0.5,
    ) -> None:
        super().__init__(task, teacher)
        self.hard, self.temperature, self.alpha = hard, temperature, alpha

    def guide(self, student: Seen, teacher: Seen, targets: Tensor) -> Outcome:
        outcome = self.inner(student, teacher, targets)
        if self.hard:
            term = F.cross_entropy(student.logits, teacher.logits.argmax(1))
        else:
            term = softened_divergence(student.logits, teacher.logits, self.temperature)
        parts = outcome.parts | {"distillation": term.detach()}
        return Outcome((1 - self.alpha) * outcome.loss + self.alpha * term, outcome.logits, parts)


def softened_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher at T || student at T). T^2 keeps the size of the gradient whatever the temperature."""
    ours, theirs = (F.log_softmax(logits / temperature, dim=1) for logits in (student, teacher))
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True) * temperature**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """What is asked of a teacher; `build` makes the task. `teacher` is text that `open_teacher` understands."""

    teacher: str
    kind: tuple[str, ...] = ("locality",)
    weight: float = 2.5
    temperature: float = 1.0
    alpha: float = 0.5
    teacher_mode: str = "eval"
    blocks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.kind or len(set(self.kind)) < len(self.kind) or not set(self.kind) <= set(KINDS):
            raise VitsearchError(f"`kind` must be some of {', '.join(KINDS)}, each once, but got {self.kind}")
        if {"soft", "hard"} <= set(self.kind):
            raise VitsearchError(f"`kind` must not be soft and hard at once, but got {self.kind}")
        if not 0 < self.weight < float("inf"):
            raise VitsearchError(f"`weight` must be a positive number, but got {self.weight}")
        if not 0 < self.temperature < float("inf"):
            raise VitsearchError(f"`temperature` must be a positive number, but got {self.temperature}")
        if not 0 < self.alpha <= 1:
            raise VitsearchError(f"`alpha` must be above 0 and at most 1, but got {self.alpha}")
        if self.teacher_mode not in MODES:
            raise VitsearchError(f"`teacher_mode` must be one of {', '.join(MODES)}, but got {self.teacher_mode!r}")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Distillation:
        fields: dict[str, Any] = dict(data)
        return cls(**fields | {name: tuple(value) for name, value in fields.items() if isinstance(value, list)})

    @property
    def logits(self) -> bool:
        return "soft" in self.kind or "hard" in self.kind

    def open(self, geometry: Geometry, device: torch.device) -> Teacher:
        classes = geometry.classes if self.logits else None
        return open_teacher(self.teacher, classes=classes, channels=geometry.channels, device=device)

    def build(self, task: LogitTask, network: nn.Module, geometry: Geometry, device: torch.device) -> Task:
        """The task with the teacher around it, on the device. `network` is the student, which gives the widths."""
        teacher = self.open(geometry, device)
        teacher.mode = self.teacher_mode
        made: LogitTask | Distilling = task
        if self.logits:
            hard = "hard" in self.kind
            made = LogitDistillation(made, teacher, hard=hard, temperature=self.temperature, alpha=self.alpha)
        if "locality" in self.kind:
            made = LocalityGuidance(made, teacher, network, weight=self.weight, blocks=self.blocks)
        return made.to(device).train()


def distillation(teacher: str, kind: str = "locality", **options: Any) -> Distillation:
    """From text: kinds are joined by a plus, as in `locality+soft`."""
    return Distillation(teacher=teacher, kind=tuple(kind.split("+")), **options)
