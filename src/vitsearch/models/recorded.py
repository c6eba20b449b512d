"""Each layer of a supernet, in each of its shapes, as two launches: one forward, one backward. Looking takes one.

A supernet trains another network at every step, so that no whole step can be recorded as a CUDA graph; but its layers
have few shapes. Launching their kernels one by one takes the CPU as long as the GPU needs to run them, and the thread
that prepares batches has to wait for its turn.

    layer:       [input] -> forward -> [output]        recorded on fixed memory, which all shapes of a layer share
                 [input_gradient] <- backward <- [gradient]
    next layer:  its input is this layer's output, and its input_gradient this layer's gradient: nothing is copied
                 between layers, and a block's last sum is written where its output is to be

Where layers have hundreds of shapes, a training records those that come at every step, as in the largest and the
smallest network of a sandwich: `only`.

What the forward keeps for the backward is in memory of the layer too. So a layer must have gone backward before
another network goes forward through it; where it has not, the backward says so. Looking, without gradients, has memory
of its own: an output is there until the next network is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitsearch.models.kernels import half_on_gpu

MOST, LOOKS = 2048, 4096
"""Layers that are recorded for training, and for looking; what comes after is launched kernel by kernel."""
WARM = 2
Work = Callable[[], None]


class Shape(Protocol):
    """A layer of one shape: whole, or the two parts whose sum is its output. It tells the shapes of a layer apart."""

    apply: Callable[..., Tensor]
    parts: Callable[..., tuple[Tensor, Tensor]]


class Recorder(Protocol):
    """Makes of work on fixed memory something that does it again. What is made with one `pool` shares memory."""

    def pool(self) -> Any: ...
    def warm(self, work: Work) -> None: ...
    def record(self, work: Work, pool: Any) -> Work: ...


class GraphRecorder:
    """As CUDA graphs. Other threads prepare batches meanwhile, and may."""

    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def warm(self, work: Work) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):  # what is compiled or chosen by trial is so by then
                work()
        torch.cuda.current_stream().wait_stream(side)

    def record(self, work: Work, pool: Any) -> Work:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                work()
        except RuntimeError as error:  # what ends a failed recording hides why it failed
            raise error.__context__ if isinstance(error.__context__, torch.cuda.OutOfMemoryError) else error from None
        return graph.replay


class LayerMemory:
    """Fixed memory of one layer for batches of one size, wide enough for its largest shape."""

    def __init__(self, x: Tensor, width: int, pool: Any, before: LayerMemory | None, trains: bool) -> None:
        size = x.numel() // x.shape[-1] * width
        self.pool, self.uses = pool, 0
        self.output = torch.zeros(size, dtype=x.dtype, device=x.device)
        self.gradient = torch.zeros_like(self.output) if trains else self.output
        if before is not None and before.output.numel() >= size:
            self.input, self.input_gradient = before.output, before.gradient
        else:
            self.input = torch.zeros_like(self.output)
            self.input_gradient = torch.zeros_like(self.output) if trains else self.input


class Memories:
    """Those of all layers. What is trained has a pool for each layer; of a look nothing is kept: one pool is enough."""

    def __init__(self, recorder: Recorder, trains: bool) -> None:
        self.recorder, self.trains = recorder, trains
        self._pool: Any = None
        self._of: WeakKeyDictionary[nn.Module, dict[Any, LayerMemory]] = WeakKeyDictionary()
        self._outputs: dict[int, LayerMemory] = {}

    def get(self, source: nn.Module, x: Tensor) -> LayerMemory:
        memories = self._of.setdefault(source, {})
        key = (x.shape[:-1], x.dtype)
        if key not in memories:
            if self.trains or self._pool is None:
                self._pool = self.recorder.pool()
            width = cast(nn.LayerNorm, source.norm1).normalized_shape[0]
            memory = LayerMemory(x, width, self._pool, self._outputs.get(x.data_ptr()), self.trains)
            memories[key] = self._outputs[memory.output.data_ptr()] = memory
        return memories[key]


def filled(memory: Tensor, value: Tensor) -> Tensor:
    """The beginning of `memory` with this value in it, which may be there already."""
    place = memory[: value.numel()].view(value.shape)
    if value.data_ptr() != place.data_ptr() or not value.is_contiguous():
        place.copy_(value)
    return place


def add_into(out: Tensor, x: Tensor, more: Tensor) -> None:
    """out = x + more."""
    if x.dtype != more.dtype and half_on_gpu(more):
        from vitsearch.models.sums import add_rounded  # which needs Triton

        add_rounded(out, x, more)
    else:
        torch.add(x, more, out=out)


def rounding_anew(x: Tensor) -> AbstractContextManager[Any]:
    """Autocast as it is, but weights are rounded inside: a recording that found them rounded would keep to those."""
    kind = x.device.type
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    return torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False)


class RecordedLayer:
    def __init__(
        self,
        shape: Shape,
        parameters: dict[str, Tensor],
        constants: dict[str, Tensor],
        x: Tensor,
        factors: Sequence[Tensor],
        memory: LayerMemory,
        recorder: Recorder,
    ) -> None:
        self.memory = memory
        self.factors = [factor.clone() for factor in factors]
        self.weights = list(parameters.values())
        inputs = filled(memory.input, x.detach()).detach().requires_grad_()
        self.output, self.gradient, self.input_gradient = (
            flat[: x.numel()].view(x.shape) for flat in (memory.output, memory.gradient, memory.input_gradient)
        )
        made: list[Tensor] = []
        found: list[Tensor | None] = []

        def forward() -> None:
            with torch.enable_grad(), rounding_anew(x):
                made[:] = shape.parts(parameters, constants, inputs, self.factors)
            with torch.no_grad():
                add_into(self.output, *made)

        def backward() -> None:
            gradients = [self.gradient.to(part.dtype) for part in made]
            own, *others = torch.autograd.grad(made, [inputs, *self.weights], gradients, allow_unused=True)
            self.input_gradient.copy_(own)
            found[:] = others

        def both() -> None:
            forward()
            backward()

        recorder.warm(both)
        self._forward, self._backward = recorder.record(forward, memory.pool), recorder.record(backward, memory.pool)
        made.clear()  # its memory is free for the other shapes of this layer
        self._found = found

    def forward(self, x: Tensor, factors: Sequence[Tensor]) -> int:
        """Which use of the layer's memory this is."""
        filled(self.memory.input, x)
        for own, factor in zip(self.factors, factors, strict=True):
            own.copy_(factor)
        self._forward()
        self.memory.uses += 1
        return self.memory.uses

    def backward(self, gradient: Tensor, use: int) -> tuple[Tensor | None, ...]:
        if use != self.memory.uses:
            raise RuntimeError("another network went forward through this layer before this one went backward")
        filled(self.memory.gradient, gradient)
        self._backward()
        there = [one for one in self._found if one is not None]
        copies = iter(torch._foreach_add(there, 0))  # the next backward writes where they are
        return self.input_gradient.detach(), *(None if one is None else next(copies) for one in self._found)


class Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: RecordedLayer, factors: Sequence[Tensor], x: Tensor, *weights: Tensor) -> Tensor:
        ctx.layer, ctx.use = layer, layer.forward(x, factors)
        return layer.output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layer = cast(RecordedLayer, ctx.layer)
        return None, None, *layer.backward(gradients[0], ctx.use)


class RecordedLook:
    def __init__(self, run: Callable[[Tensor], Tensor], x: Tensor, memory: LayerMemory, recorder: Recorder) -> None:
        self.memory = memory
        inputs, self.output = filled(memory.input, x), memory.output[: x.numel()].view(x.shape)

        def forward() -> None:
            with rounding_anew(x):
                self.output.copy_(run(inputs))

        recorder.warm(forward)
        self._forward = recorder.record(forward, memory.pool)

    def __call__(self, x: Tensor) -> Tensor:
        filled(self.memory.input, x)
        self._forward()
        return self.output


class RecordedLayers:
    """Recorded when they are first needed, in all shapes or in `only` some.

    Which ones must not depend on what came before: what is recorded gives other last digits, and a training that is
    resumed is to give the same as one that was not interrupted.
    """

    def __init__(self, recorder: Recorder, only: Collection[object] | None = None) -> None:
        self.recorder, self.only = recorder, only
        self._training, self._looking = Memories(recorder, trains=True), Memories(recorder, trains=False)
        self._made: WeakKeyDictionary[nn.Module, dict[Any, RecordedLayer]] = WeakKeyDictionary()
        self._looks: WeakKeyDictionary[nn.Module, dict[Any, RecordedLook]] = WeakKeyDictionary()

    def __deepcopy__(self, memo: Mapping[int, Any]) -> RecordedLayers:
        return RecordedLayers(self.recorder, self.only)  # the copy has weights of its own

    def run(
        self,
        shape: Shape,
        source: nn.Module,
        parameters: dict[str, Tensor],
        constants: dict[str, Tensor],
        x: Tensor,
        factors: Sequence[Tensor],
    ) -> Tensor:
        """The layer on the weights of `source`."""
        if self.only is not None and shape not in self.only:
            return shape.apply(parameters, constants, x, factors)
        precision = torch.is_autocast_enabled(x.device.type), torch.get_autocast_dtype(x.device.type)
        key = (shape, x.shape, x.dtype, len(factors), precision)
        if torch.is_grad_enabled() and x.requires_grad:
            made = self._made.setdefault(source, {})
            if key not in made and not has_room(self._made, MOST):
                return shape.apply(parameters, constants, x, factors)
            if key not in made:
                memory = self._training.get(source, x)
                made[key] = RecordedLayer(shape, parameters, constants, x, factors, memory, self.recorder)
            return cast(Tensor, Replay.apply(made[key], factors, x, *parameters.values()))
        looks = self._looks.setdefault(source, {})
        if torch.is_grad_enabled() or factors or (key not in looks and not has_room(self._looks, LOOKS)):
            return shape.apply(parameters, constants, x, factors)
        if key not in looks:
            once = partial(shape.apply, parameters, constants, factors=())
            looks[key] = RecordedLook(once, x, self._looking.get(source, x), self.recorder)
        return looks[key](x)


def has_room(recorded: Mapping[nn.Module, Mapping[Any, Any]], most: int) -> bool:
    return sum(map(len, recorded.values())) < most
