"""What can be recorded while a batch goes through a network, with hooks that are gone afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
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

    Kept are the sums that proxies need, not the signs: `agreement` [B, B] counts, for each pair of images, the units
    that are on for both or off for both; `units` is their number for one image.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.agreement: Tensor | None = None
        self.units = 0
        self.entropies: list[Tensor] = []
        for module in network.modules():
            if not list(module.children()) and any(part in type(module).__name__.lower() for part in ACTIVATIONS):
                self._handles.append(module.register_forward_pre_hook(self._record))

    @torch.no_grad()
    def _record(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        on = (inputs[0].detach() > 0).float()
        codes = on.flatten(1)
        same = codes @ codes.T + (1 - codes) @ (1 - codes).T  # exact: counts below 2^24
        self.agreement = same.double() if self.agreement is None else self.agreement + same.double()
        self.units += codes.shape[1]
        channels_second = on.dim() == 4 and not (on.shape[1] == on.shape[2] != on.shape[3])
        often = on.mean([dim for dim in range(on.dim()) if dim != (1 if channels_second else on.dim() - 1)])
        self.entropies.append(_binary_entropy(often.double()))


def _binary_entropy(often: Tensor) -> Tensor:
    """In bits, for each unit."""
    return -(torch.xlogy(often, often) + torch.xlogy(1 - often, 1 - often)) / torch.log(torch.tensor(2.0))


class Fisher(Recorder):
    """Sum over the channels of all linear and convolution outputs of 1/2 mean over images of (sum of a dL_n/da)^2.

    L_n is the loss of image n alone, and a the channel's values at all places of that image.
    """

    def __init__(self, network: nn.Module, images: int) -> None:
        super().__init__()
        self.images = images
        self.terms: list[Tensor] = []
        for module in network.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                self._handles.append(module.register_forward_hook(self._record))

    @property
    def total(self) -> float:
        return float(torch.stack(self.terms).sum())

    def _record(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if not output.requires_grad or output.shape[0] % self.images:  # tables that no image takes part in
            return
        values = output.detach()

        @torch.no_grad()
        def receive(gradient: Tensor) -> None:
            product = values * gradient * self.images  # the loss is the mean over images
            if isinstance(module, nn.Linear):  # windows of one image are neighbours in the first dimension
                sums = product.reshape(self.images, -1, product.shape[-1]).sum(1)
            else:
                sums = product.flatten(2).sum(2)
            self.terms.append(sums.double().pow(2).mean(0).sum() / 2)

        self._handles.append(output.register_hook(receive))  # type: ignore[no-untyped-call]


class Scales(Recorder):
    """A factor 1 on the product with the weight of every linear and convolution layer.

    The derivative with respect to the factor is the sum of weight x derivative, without the derivative itself: that
    saves a quarter of the work of a second derivative.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.factors: dict[str, Tensor] = {}
        for name, module in network.named_modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                self._handles.append(module.register_forward_hook(partial(self._scale, name=f"{name}.weight")))

    def _scale(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor, *, name: str) -> Tensor:
        if name not in self.factors:
            self.factors[name] = torch.ones((), device=output.device, dtype=output.dtype, requires_grad=True)
        bias = cast(Tensor | None, module.bias)
        if bias is None or not bias.any():  # a bias of 0 adds 0 to the sum of weight x derivative
            return output * self.factors[name]
        shift = bias if isinstance(module, nn.Linear) else bias[:, None, None]
        return (output - shift) * self.factors[name] + shift

    def weighted_curvature(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> float:
        """theta^T H g, with g the gradient of the loss, which must have a graph."""
        inner = torch.stack([(gradient * gradient.detach()).sum() for gradient in gradients.values()]).sum()
        others = [parameters[name] for name in gradients if name not in self.factors]
        found = torch.autograd.grad(inner, [*self.factors.values(), *others], allow_unused=True)
        values = [torch.ones_like(factor) for factor in self.factors.values()] + [other.detach() for other in others]
        terms = [(v * d).sum(dtype=torch.float64) for v, d in zip(values, found, strict=True) if d is not None]
        return float(torch.stack(terms).sum())
