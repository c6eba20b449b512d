"""What can be recorded while a batch goes through a network, with hooks that are gone afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

ACTIVATIONS = ("relu", "gelu", "silu", "swish", "mish", "elu")
"""Parts of the names of modules whose sign is that of their input: ReLU6, GELUTanh, QuickGELU, HardSwish, ..."""


class Recorder:
    """Hooks as a context."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class Signs(Recorder):
    """Where the inputs of activation functions are positive: in a transformer, every MLP's pre-activation.

    Images may come in several forward passes of equal structure, of which `passes` is the number.
    """

    def __init__(self, network: nn.Module, passes: int = 1) -> None:
        super().__init__()
        self.passes = passes
        self._calls: list[Tensor] = []
        for module in network.modules():
            if not list(module.children()) and any(part in type(module).__name__.lower() for part in ACTIVATIONS):
                self._handles.append(module.register_forward_pre_hook(self._record))

    def _record(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._calls.append(inputs[0].detach() > 0)

    @cached_property
    def layers(self) -> list[Tensor]:
        """For each activation function, [B, ...]."""
        count = len(self._calls) // self.passes
        return [torch.cat(self._calls[layer::count]) for layer in range(count)]

    @cached_property
    def units(self) -> int:
        """For one image."""
        return sum(layer[0].numel() for layer in self.layers)

    @cached_property
    def agreement(self) -> Tensor:
        """[B, B]: for each pair of images, how many units are on for both or off for both."""
        images = len(self.layers[0])
        total = torch.zeros(images, images, dtype=torch.float64)
        for layer in self.layers:
            codes = layer.flatten(1).float()
            both, ones = (codes @ codes.T).double().cpu(), codes.sum(1).double().cpu()  # exact: counts below 2^24
            total += codes.shape[1] - ones[:, None] - ones[None, :] + 2 * both
        return total

    @cached_property
    def entropies(self) -> Tensor:
        """In bits, for each channel of each layer: of being on, over all images and places."""
        found = []
        for on in self.layers:
            channels_second = on.dim() == 4 and not (on.shape[1] == on.shape[2] != on.shape[3])
            places = [dim for dim in range(on.dim()) if dim != (1 if channels_second else on.dim() - 1)]
            often = on.float().mean(places).double()
            found.append(-(torch.xlogy(often, often) + torch.xlogy(1 - often, 1 - often)) / math.log(2.0))
        return torch.cat(found)


class Fisher(Recorder):
    """Sum over the channels of all linear and convolution outputs of 1/2 mean over images of (sum of a dL_n/da)^2.

    L_n is the loss of image n alone, and a the channel's values at all places of that image.
    """

    def __init__(self, network: nn.Module, images: int, passes: int = 1) -> None:
        super().__init__()
        self.images, self.passes = images, passes
        self.terms: list[Tensor] = []
        for module in network.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                self._handles.append(module.register_forward_hook(self._record))

    @property
    def total(self) -> float:
        """The mean over passes that had `images` images each."""
        return float(torch.stack(self.terms).sum()) / self.passes

    def _record(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if not output.requires_grad or output.shape[0] % self.images:  # tables that no image takes part in
            return
        values = output.detach()

        @torch.no_grad()
        def receive(gradient: Tensor) -> None:
            product = values * gradient
            if isinstance(module, nn.Linear):  # windows of one image are neighbours in the first dimension
                sums = product.reshape(self.images, -1, product.shape[-1]).sum(1)
            else:
                sums = product.flatten(2).sum(2)
            per_image = self.images * sums.double()  # the loss is their mean
            self.terms.append(per_image.pow(2).mean(0).sum() / 2)

        self._handles.append(output.register_hook(receive))  # type: ignore[no-untyped-call]


class Scales(Recorder):
    """A factor f = 1 on the product with the weight w of every linear and convolution layer.

    The derivative with respect to f is the sum of w times that with respect to w, without the latter: that saves a
    quarter of the work of a second derivative.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.factors: dict[str, Tensor] = {}
        self.scaled: set[str] = set()
        """Parameters whose gradients have a factor."""
        for name, module in network.named_modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                self._handles.append(module.register_forward_hook(partial(self._scale, name=f"{name}.weight")))

    def _scale(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor, *, name: str) -> Tensor:
        if name not in self.factors:
            self.factors[name] = torch.ones((), device=output.device, dtype=output.dtype, requires_grad=True)
            self.scaled.add(name)
        bias = cast(Tensor | None, module.bias)
        if bias is None or not bias.any():  # a bias of 0 may have the factor too
            self.scaled.add(f"{name.removesuffix('weight')}bias")
            return output * self.factors[name]
        shift = bias if isinstance(module, nn.Linear) else bias[:, None, None]
        return (output - shift) * self.factors[name] + shift

    def weighted_curvature(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> float:
        """theta^T H g, with g the gradient of the loss, which must have a graph.

        For a weight with a factor, g(f) = f L'(f w), so that d/df g(f).g = g.g + w.H g: the first part is taken off.
        """
        inner = torch.stack([(gradient * gradient.detach()).sum() for gradient in gradients.values()]).sum()
        others = [parameters[name] for name in gradients if name not in self.factors]
        found = torch.autograd.grad(inner, [*self.factors.values(), *others], allow_unused=True)
        values = [torch.ones_like(factor) for factor in self.factors.values()] + [other.detach() for other in others]
        terms = [(v * d).sum(dtype=torch.float64) for v, d in zip(values, found, strict=True) if d is not None]
        own = [gradients[name].detach().square().sum(dtype=torch.float64) for name in self.scaled & gradients.keys()]
        return float(torch.stack(terms).sum() - torch.stack(own).sum())
