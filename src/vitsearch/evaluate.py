"""Evaluators: functions from architectures to named numbers. Strategies get one of these and never see a network."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import timm
import torch
from torch import nn

from vitsearch.architecture import Settings, check_seed, check_whole
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.data import Batch, ImageSource, open_data
from vitsearch.errors import VitsearchError
from vitsearch.models import build
from vitsearch.proxies import Proxy, Subject, parse_proxy
from vitsearch.registry import did_you_mean
from vitsearch.spaces import canonical, decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What proxies said of one network, and why some said nothing."""

    arch: Settings
    scores: dict[str, float]
    errors: dict[str, str]
    seconds: float


Evaluator: TypeAlias = Callable[[Sequence[Settings]], list[Score]]


def pick_device(name: str = "auto") -> torch.device:
    """`auto` takes CUDA, then MPS, then the CPU."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    if name not in available:
        raise VitsearchError(f"`device` must be one of auto, cpu, cuda, mps, but got {name!r}")
    if not available[name]:
        raise VitsearchError(f"`device` must be available here, but got {name!r} and torch sees none")
    return torch.device(name)


class ProxyEvaluator:
    """Scores networks with proxies, each network built once with its own seeded initial weights (`fresh`)."""

    def __init__(
        self,
        proxies: Sequence[str],
        *,
        geometry: Geometry = IMAGENET,
        seed: int = 0,
        device: str | torch.device = "auto",
        data: str = "noise",
        batch_size: int = 8,
    ) -> None:
        self.proxies: dict[str, tuple[Proxy, dict[str, str]]] = {text: parse_proxy(text) for text in proxies}
        self.geometry = geometry
        self.seed = check_seed(seed)
        self.device = device if isinstance(device, torch.device) else pick_device(device)
        self.batch_size = check_whole("batch_size", batch_size)
        self.source: ImageSource = open_data(data)
        self._batch: Batch | None = None
        if any(proxy.needs_data for proxy, _ in self.proxies.values()):
            self.batch()  # bad data stops here, not in every trial

    def batch(self) -> Batch:
        """The same images and labels for every network."""
        if self._batch is None:
            try:
                self._batch = self.source.draw(self.batch_size, self.geometry, self.seed)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise VitsearchError(
                    f"`batch_size` must fit into memory, but got {self.batch_size} at {self.geometry.image_size} px"
                ) from None
        return self._batch

    def __call__(self, architectures: Sequence[Settings]) -> list[Score]:
        return [self.one(settings) for settings in architectures]

    def one(self, settings: Settings) -> Score:
        plan = decode(settings)
        subject = Subject(
            name=f"{settings['space']} {plan.key()}",
            network=lambda: build(plan, self.geometry, seed=self.seed),
            batch=self.batch,
            geometry=self.geometry,
            architecture=plan,
            device=self.device,
        )
        return self.examine(subject, settings)

    def timm(self, model: str, image_size: int | None = None) -> Score:
        """Any classifier of timm, with untrained weights, at its own input size unless another is given."""
        return self.examine(timm_subject(model, self, image_size), {"timm": model})

    def examine(self, subject: Subject, arch: Settings) -> Score:
        start = time.perf_counter()
        scores: dict[str, float] = {}
        errors: dict[str, str] = {}
        for text, (proxy, options) in self.proxies.items():
            try:
                value = proxy.score(subject, **options)
                plain = value if type(value) is int else float(value)  # tensors and numpy's numbers too
                if not math.isfinite(plain):
                    raise ArithmeticError(f"the score is not finite: {plain}")
                scores[text] = plain
            except Exception as error:  # a bad candidate is a failed score with its reason, never a stopped search
                errors[text] = describe_failure(error)
        return Score(arch=arch, scores=scores, errors=errors, seconds=time.perf_counter() - start)


def describe_failure(error: Exception) -> str:
    """One line that says what went wrong."""
    if is_out_of_memory(error):
        return "out of memory"
    text = " ".join(str(error).split())
    return text[:300] if isinstance(error, VitsearchError) else f"{type(error).__name__}: {text[:300]}"


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch or Python ran out of memory; on the CPU torch says so in a plain RuntimeError."""
    known = isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError))
    return known or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def timm_subject(model: str, evaluator: ProxyEvaluator, image_size: int | None) -> Subject:
    names = [name for name in timm.list_models() if not name.startswith("vitsearch_")]
    if model.partition(".")[0] not in names:
        raise VitsearchError(f"no timm model named {model!r}.{did_you_mean(model, names)}")
    wanted, seed = evaluator.geometry, evaluator.seed

    def network() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            options = {"img_size": image_size} if image_size and own.fixed_input_size else {}
            made: nn.Module = timm.create_model(model, num_classes=wanted.classes, in_chans=wanted.channels, **options)
        return made

    try:
        own = timm.get_pretrained_cfg(model)
    except RuntimeError as error:
        raise VitsearchError(f"no timm model named {model!r}: {error}") from None
    size = image_size or own.input_size[-1]
    geometry = Geometry(image_size=size, classes=wanted.classes, channels=wanted.channels)
    return Subject(
        name=model,
        network=network,
        batch=lambda: evaluator.source.draw(evaluator.batch_size, geometry, seed),
        geometry=geometry,
        device=evaluator.device,
    )


def score(
    architectures: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    proxies: str | Sequence[str],
    *,
    geometry: Geometry = IMAGENET,
    seed: int = 0,
    device: str = "auto",
    data: str = "noise",
    batch_size: int = 8,
) -> list[Score]:
    """Proxy scores of settings, in their order. `proxies` is a list, or a text with commas."""
    names = proxies.split(",") if isinstance(proxies, str) else proxies
    evaluator = ProxyEvaluator(names, geometry=geometry, seed=seed, device=device, data=data, batch_size=batch_size)
    listed = [architectures] if isinstance(architectures, Mapping) else architectures
    return evaluator([canonical(settings) for settings in listed])
