"""Forward and backward of a fixed network as one launch.

A small network's step is a thousand kernels of a few microseconds: launching them takes longer than running them. A
CUDA graph launches them all at once. What is launched is what was recorded, on the same memory: images and targets are
copied in, gradients are found where they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

WARM = 3
"""Steps before recording: what is compiled or chosen by trial is so by then."""
Gradients = Callable[[Tensor, Tensor], Tensor]


class Graphed:
    def __init__(self, gradients: Gradients, parameters: Sequence[nn.Parameter], module: nn.Module) -> None:
        """`gradients` adds those of a batch to the parameters of `module` and returns the loss."""
        self.gradients, self.parameters, self.module = gradients, parameters, module
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, images: Tensor, targets: Tensor) -> Tensor:
        if self.graph is None or (self.images.shape, self.targets.shape) != (images.shape, targets.shape):
            self._record(images, targets)
        assert self.graph is not None
        self.images.copy_(images)
        self.targets.copy_(targets)
        self.graph.replay()
        for parameter, gradient in zip(self.parameters, self.found, strict=True):
            parameter.grad = gradient
        return self.loss

    def _record(self, images: Tensor, targets: Tensor) -> None:
        """Leaves no trace: random numbers and buffers are as they were."""
        self.graph = None
        self.images, self.targets = images.clone(), targets.clone()
        device = images.device
        random = torch.cuda.get_rng_state(device)
        buffers = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM):
                self._clear()
                self.gradients(self.images, self.targets)
        torch.cuda.current_stream(device).wait_stream(side)
        self._clear()
        graph = torch.cuda.CUDAGraph()
        # other threads prepare the next batches meanwhile, and may
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.loss = self.gradients(self.images, self.targets)
        self.found = [parameter.grad for parameter in self.parameters]
        for buffer, before in buffers:
            buffer.copy_(before)
        torch.cuda.set_rng_state(random, device)
        self.graph = graph

    def _clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
