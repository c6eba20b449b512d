"""What a proxy is, what it may look at, and the registry of proxies.

A proxy is a function from a `Subject` to a number. The subject builds the network once and shares forward and
backward passes among the proxies that are asked of it. Networks are in evaluation mode, without drop path, with
seeded initial weights. A proxy that has no value for a network raises `ProxyUndefined`; nothing stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitsearch.architecture import Architecture
from vitsearch.cost import Geometry
from vitsearch.data import Batch
from vitsearch.errors import ProxyUndefined, UnknownName
from vitsearch.proxies.expression import Formula
from vitsearch.proxies.traces import Fisher, Recorder, Scales, Signs
from vitsearch.registry import Registry, did_you_mean

Direction = Literal["max", "min"]
Found = TypeVar("Found")
Recording = TypeVar("Recording", bound=Recorder)


class Subject:
    """One network under examination. `architecture` is None for networks that are not ours.

    `traces` says what the pass over the batch records on the way, because a proxy will ask for it: `signs`, `fisher`,
    `curvature`, and gradients in `parts=2`. What was not announced is still found, with a pass of its own.
    """

    def __init__(
        self,
        *,
        name: str | Callable[[], str],
        network: Callable[[], nn.Module],
        batch: Callable[[], Batch],
        geometry: Geometry,
        architecture: Architecture | None = None,
        device: torch.device | None = None,
        traces: frozenset[str] = frozenset(),
    ) -> None:
        self._name = name
        self.architecture = architecture
        self.geometry = geometry
        self.device = device or torch.device("cpu")
        self.traces = traces
        self._make_network = network
        self._make_batch = batch
        self._gradients: dict[str, Tensor] | None = None
        self._parts: list[dict[str, Tensor]] | None = None
        self._found: dict[str, Any] = {}
        self._absolute: dict[torch.dtype, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}

    @property
    def name(self) -> str:
        """For errors: who makes one for thousands of networks leaves it until it is asked for."""
        return self._name if isinstance(self._name, str) else self._name()

    @cached_property
    def network(self) -> nn.Module:
        return self._make_network().eval().to(self.device)

    @cached_property
    def batch(self) -> Batch:
        images, labels = self._make_batch()
        return Batch(images.to(self.device), labels.to(self.device))

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.network.named_parameters()}

    @property
    def loss_gradients(self) -> dict[str, Tensor]:
        """Gradient of the mean cross-entropy on the batch, for every parameter that takes part."""
        if self._gradients is None:
            self._differentiate(self.traces)
        assert self._gradients is not None
        return self._gradients

    def gradients_in_parts(self, count: int) -> list[dict[str, Tensor]]:
        """The same on each of `count` equal parts of the batch."""
        images, _ = self.batch
        if len(images) % count or len(images) < 2 * count:
            raise self.undefined("zico", f"{len(images)} images are not {count} batches of two or more")
        if self._parts is None or len(self._parts) != count:
            self._differentiate(self.traces | {f"parts={count}"})
        assert self._parts is not None
        return self._parts

    def once(self, what: str, find: Callable[[], Found]) -> Found:
        """What several proxies need and one of them has found."""
        if what not in self._found:
            self._found[what] = find()
        return cast(Found, self._found[what])

    def trace(self, name: str) -> Any:
        """What a pass over the batch recorded under this name; `signs` alone needs no backward pass."""
        if name not in self._found:
            if name == "signs" and not (self.traces - {"signs"} or self._gradients):
                signs = Signs(self.network)
                with torch.no_grad(), full_precision(), signs:
                    self.network(self.batch.images)
                self._found["signs"] = signs
            else:
                self._differentiate(self.traces | {name})
        return self._found[name]

    def recorded(self, recorder: Recording) -> Recording:
        """The same recorder after a pass of its own over the batch, forward and back."""
        images, labels = self.batch
        with torch.enable_grad(), full_precision(), recorder:
            loss = F.cross_entropy(self.network(images), labels)
            gradients = _gradients(loss, dict(self.network.named_parameters()))
        if self._gradients is None:
            self._gradients = gradients
        return recorder

    def _differentiate(self, traces: frozenset[str]) -> None:
        try:
            self._one_pass(traces)
        except RuntimeError as error:
            if "curvature" not in traces or "is not implemented" not in str(error):
                raise
            self._found["curvature"] = None  # the others go on without it
            self._one_pass(traces - {"curvature"})

    def _one_pass(self, traces: frozenset[str]) -> None:
        """Forward and backward over the batch, whole or in the equal parts that `parts=2` asks for."""
        images, labels = self.batch
        asked = max((int(trace.removeprefix("parts=")) for trace in traces if trace.startswith("parts=")), default=1)
        passes = asked if len(images) % asked == 0 and len(images) >= 2 * asked else 1
        parameters = dict(self.network.named_parameters())
        makers: dict[str, Callable[[], Recorder]] = {
            "signs": lambda: Signs(self.network, passes),
            "fisher": lambda: Fisher(self.network, len(images) // passes, passes),
            "curvature": lambda: Scales(self.network),
        }
        recorders = {name: makers[name]() for name in makers if name in traces}
        scales = recorders.get("curvature")
        parts: list[dict[str, Tensor]] = []
        with torch.enable_grad(), full_precision(), nullcontext() if scales is None else twice_differentiable():
            with ExitStack() as stack:
                for recorder in recorders.values():
                    stack.enter_context(recorder)
                for some, their_labels in zip(images.chunk(passes), labels.chunk(passes), strict=True):
                    loss = F.cross_entropy(self.network(some), their_labels)
                    parts.append(_gradients(loss, parameters, create_graph=scales is not None))
            whole = parts[0] if passes == 1 else {n: torch.stack([p[n] for p in parts]).mean(0) for n in parts[0]}
            self._found |= recorders
            if isinstance(scales, Scales):
                self._found["curvature"] = scales.weighted_curvature(parameters, whole)
        self._gradients = {name: gradient.detach() for name, gradient in whole.items()}
        self._parts = [{name: gradient.detach() for name, gradient in part.items()} for part in parts]

    def absolute(self, dtype: torch.dtype = torch.float32) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The absolute network: every parameter as |w|, and the gradient of the sum of its logits for an image of ones.

        Norms, softmax and buffers stay as they are. Nothing in the network changes.
        """
        if dtype not in self._absolute:
            device = torch.device("cpu") if dtype == torch.float64 and self.device.type == "mps" else self.device
            weights = {
                name: parameter.abs().to(device, dtype).requires_grad_() for name, parameter in self.parameters.items()
            }
            buffers = {
                name: buffer.to(device, dtype) if buffer.is_floating_point() else buffer.to(device)
                for name, buffer in self.network.named_buffers()
            }
            side = self.geometry.image_size
            ones = torch.ones(1, self.geometry.channels, side, side, device=device, dtype=dtype)
            with torch.enable_grad(), full_precision():
                logits = torch.func.functional_call(self.network, {**weights, **buffers}, (ones,))
                gradients = _gradients(logits.sum(), weights)
            self._absolute[dtype] = ({name: weight.detach() for name, weight in weights.items()}, gradients)
        return self._absolute[dtype]

    @cached_property
    def linears(self) -> dict[str, list[str]]:
        """Names of the weight matrices of linear layers, by role: attention, mlp, other."""
        found: dict[str, list[str]] = {"attention": [], "mlp": [], "other": []}
        for name, role, _ in linear_roles(self.network):
            found[role].append(f"{name}.weight")
        return found

    @cached_property
    def convolutions(self) -> list[str]:
        """Names of the weights of convolutions."""
        modules = self.network.named_modules()
        return [f"{name}.weight" for name, module in modules if isinstance(module, nn.Conv2d)]

    def undefined(self, proxy: str, reason: str) -> ProxyUndefined:
        return ProxyUndefined(f"{proxy} is not defined for {self.name}: {reason}")


def full_precision() -> AbstractContextManager[None]:
    """Convolutions on a GPU in float32 proper, where torch would take a shorter format, and the same every time."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)


def twice_differentiable() -> AbstractContextManager[None]:
    """Attention spelled out: torch's fused kernels have no second derivative."""
    return sdpa_kernel(SDPBackend.MATH)


def _gradients(value: Tensor, parameters: Mapping[str, Tensor], create_graph: bool = False) -> dict[str, Tensor]:
    wanted = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    gradients = torch.autograd.grad(value, list(wanted.values()), allow_unused=True, create_graph=create_graph)
    return {name: g for name, g in zip(wanted, gradients, strict=True) if g is not None}


def linear_roles(network: nn.Module) -> Iterator[tuple[str, str, str]]:
    """Each linear layer, its role, and the innermost module around it that has this role, by the names timm uses."""
    modules = dict(network.named_modules())
    for name, module in modules.items():
        if not isinstance(module, nn.Linear):
            continue
        role, parent = "other", name
        while role == "other" and parent:
            parent = parent.rpartition(".")[0]
            role = _role(type(modules[parent]).__name__.lower())
        yield name, role, parent


def _role(kind: str) -> str:
    if any(part in kind for part in ("mlp", "ffn", "feedforward", "swiglu")):
        return "mlp"
    if "block" in kind or "layer" in kind:  # such as LayerScaleBlockClassAttn: holds both
        return "other"
    return "attention" if any(part in kind for part in ("attn", "attention", "xca")) else "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A registered proxy. `options` lists the variants a user may ask for, as in ``snip:params=linear``."""

    name: str
    score: Callable[..., float]
    paper: str
    description: str
    direction: Direction = "max"
    needs_data: bool = False
    needs_labels: bool = False
    needs_gradient: bool = False
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    traces: tuple[str, ...] = ()
    """What it asks of `Subject.trace`."""
    formula: Formula | None = None
    """What it computes, where it is a formula."""


PROXIES: Registry[Proxy] = Registry("proxy", "vitsearch.proxies")


def proxy(name: str, *, paper: str, **facts: Any) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Register a function from `Subject` to number as a proxy; its docstring's first line describes it."""

    def register(score: Callable[..., float]) -> Callable[..., float]:
        description = (score.__doc__ or "").strip().partition("\n")[0]
        PROXIES.add(name, Proxy(name=name, score=score, paper=paper, description=description, **facts))
        return score

    return register


def parse_proxy(text: str) -> tuple[Proxy, dict[str, str]]:
    """``dss`` or, for a variant, ``snip:params=linear``; a formula as ``expr:TEXT`` or ``file:FOUND.json``."""
    if text.startswith(("expr:", "file:")):
        from vitsearch.proxies import formulas  # which needs this module

        return (formulas.from_text if text.startswith("expr:") else formulas.from_file)(text), {}
    name, *parts = text.split(":")
    found = PROXIES[name]
    options: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or key not in found.options:
            known = ", ".join(f"{k}={'|'.join(v)}" for k, v in found.options.items()) or "none"
            raise UnknownName(f"proxy {name!r} has no option {part!r}. Its options: {known}")
        if value not in found.options[key]:
            choices = list(found.options[key])
            raise UnknownName(
                f"option {key!r} of proxy {name!r} must be one of {', '.join(choices)}, but got {value!r}."
                f"{did_you_mean(value, choices)}"
            )
        options[key] = value
    return found, options
