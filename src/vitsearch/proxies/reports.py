"""What a batched pass tells of each group of parameters, once the gradients of its outputs are known.

Shapes: n networks, B images, S tokens. X and Y are the inputs and outputs of a layer, dY the gradient of the outputs.
`..._along` are derivatives along the scaling of all parameters by 1 + a, at a = 0. With theta the parameters, g their
gradient and H the Hessian, d g / d a = H theta; for a linear layer g = dY^T X, so that

    H theta = dY_along^T X + dY^T X_along.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vitsearch.models.products import over_tokens
from vitsearch.proxies.diversity import Around, Summed, nuclear_norms_of

PIECE = 1 << 16
"""Elements of a gradient that go into one float32 product; the products are added up in float64."""


@dataclass(eq=False, kw_only=True)
class Report:
    """Parameters that belong together, for the networks whose numbers `networks` holds."""

    name: str
    networks: Tensor

    @cached_property
    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        """For each parameter, the gradient [n, ...] and the value [...] or [n, ...]."""
        return []

    @cached_property
    def turns(self) -> list[Tensor]:
        """For each parameter, H theta [n, ...]."""
        return []

    def per_image(self) -> Iterator[Tensor]:
        """For each parameter, the gradient that came by way of each image: [n, B, size]."""
        yield from ()

    @cached_property
    def saliency(self) -> Tensor:
        """The sum of gradient x value, [n] in float64."""
        sums = [(gradient * value).flatten(1).sum(1, dtype=torch.float64) for gradient, value in self.gradients]
        return torch.stack(sums).sum(0)

    def kernel(self) -> Tensor:
        """Products of the gradients of every two images, [n, B, B] in float64."""
        products = [
            (piece @ piece.transpose(1, 2)).double()
            for rows in self.per_image()
            for piece in torch.split(rows, PIECE, dim=2)
        ]
        return torch.stack(products).sum(0)


@dataclass(eq=False, kw_only=True)
class Found(Report):
    """Parameters whose gradients are found already."""

    found: list[tuple[Tensor, Tensor]]

    @cached_property
    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        return self.found


@dataclass(eq=False, kw_only=True)
class Outputs(Report):
    """Outputs of a layer and their gradients, [n, B, S, outputs]; y without n where all networks have the same."""

    y: Tensor | None
    dy: Tensor

    @cached_property
    def flow(self) -> Tensor:
        """The sum of y dY over the tokens of each image, [n, B, outputs]."""
        assert self.y is not None
        return (self.y * self.dy).sum(2)


@dataclass(eq=False, kw_only=True)
class Product(Outputs):
    """Y = X w^T + b; x [n, B, S, inputs], without n where all networks have the same.

    The whole gradient is formed from those of `parts` equal parts of the batch.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    x_along: Tensor | None = None
    dy_along: Tensor | None = None
    parts: int = 1
    of_mean: Tensor | None = None
    """[n]: what the mean over outputs adds to the saliency, where y is without it."""
    bias_sums: Tensor | None = None
    """[n, outputs]: dY over all tokens, where it is known already."""

    def in_parts(self, parts: int) -> Tensor:
        """Gradients of the weight that came by way of equal parts of the batch: [n, parts, outputs, inputs]."""
        if parts == self.parts:
            return self._own_parts
        return over_tokens(_in_parts(self.dy, parts), _in_parts(self.x, parts))

    @cached_property
    def _own_parts(self) -> Tensor:
        return over_tokens(_in_parts(self.dy, self.parts), _in_parts(self.x, self.parts))

    @cached_property
    def weight_gradient(self) -> Tensor:
        return self._own_parts[:, 0] if self.parts == 1 else self._own_parts.sum(1)

    @cached_property
    def bias_gradient(self) -> Tensor:
        return _over_tokens(self.dy) if self.bias_sums is None else self.bias_sums

    @cached_property
    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        found = [(self.weight_gradient, self.weight)]
        return found if self.bias is None else [*found, (self.bias_gradient, self.bias)]

    @cached_property
    def turns(self) -> list[Tensor]:
        assert self.dy_along is not None
        of_weight = over_tokens(self.dy_along.flatten(1, 2), self.x.flatten(-3, -2))
        if self.x_along is not None:
            of_weight += over_tokens(self.dy.flatten(1, 2), self.x_along.flatten(1, 2))
        return [of_weight] if self.bias is None else [of_weight, self.dy_along.sum((1, 2))]

    @cached_property
    def saliency(self) -> Tensor:
        """The sum of y dY: it needs no gradients."""
        total = self.flow.flatten(1).sum(1, dtype=torch.float64)
        return total if self.of_mean is None else total + self.of_mean

    @cached_property
    def weight_saliency(self) -> Tensor:
        """The same for the weight alone."""
        if self.bias is None:
            return self.saliency
        return self.saliency - (self.bias_gradient * self.bias).double().sum(1)

    @cached_property
    def nuclear_norms(self) -> Tensor:
        """Of the weight's gradients, [n]."""
        return nuclear_norms_of(Summed(self.dy.flatten(1, 2), self.x.flatten(-3, -2)))

    def per_image(self) -> Iterator[Tensor]:
        yield over_tokens(self.dy, self.x).flatten(2)
        if self.bias is not None:
            yield self.dy.sum(2)

    def kernel(self) -> Tensor:
        if self.dy.shape[2] > 1 or self.bias is None:
            return super().kernel()
        x, dy = self.x[..., 0, :], self.dy[:, :, 0]  # one token: the gradient is an outer product
        return (dy @ dy.mT).double() * ((x @ x.mT).double() + 1)


class Linear(Product):
    """A linear layer, or the convolution that makes patches into tokens."""

    @property
    def role(self) -> str:
        return role_of(self.name)

    @property
    def is_convolution(self) -> bool:
        return self.name.endswith("entry.proj")


@dataclass(eq=False, kw_only=True)
class Centred(Report):
    """A linear layer of `centred.py`, of which there is only what DSS needs."""

    weight: Tensor
    gradient: Around | None = None
    weight_saliency: Tensor | None = None

    @property
    def role(self) -> str:
        return role_of(self.name)

    @cached_property
    def nuclear_norms(self) -> Tensor:
        assert self.gradient is not None
        return nuclear_norms_of(self.gradient)


class Pooled(Outputs):
    """The outputs of PiT's pooling convolution; its weight and bias come as small parameters."""

    @cached_property
    def saliency(self) -> Tensor:
        return self.flow.new_zeros(len(self.networks))


@dataclass(eq=False, kw_only=True)
class Tables(Product):
    """Relative position tables of rows and columns: two parameters in one weight, side by side in dimension `dim`."""

    dim: int

    @cached_property
    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        both = self.weight_gradient.chunk(2, 1 + self.dim)
        return list(zip(both, self.weight.chunk(2, self.dim), strict=True))

    @cached_property
    def turns(self) -> list[Tensor]:
        (both,) = super().turns
        return list(both.chunk(2, 1 + self.dim))


@dataclass(eq=False, kw_only=True)
class Norm(Report):
    """A layer norm with its initial weight 1 and bias 0: outputs y and their gradients, [n, B, S, C]."""

    y: Tensor
    dy: Tensor
    y_along: Tensor | None = None
    """With the weight and the bias held fixed."""
    dy_along: Tensor | None = None

    @cached_property
    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        of_weight, of_bias = _over_tokens(self.dy * self.y), _over_tokens(self.dy)
        return [(of_weight, torch.ones_like(of_weight[0])), (of_bias, torch.zeros_like(of_bias[0]))]

    @cached_property
    def turns(self) -> list[Tensor]:
        assert self.dy_along is not None and self.y_along is not None
        of_weight = (self.dy_along * self.y).addcmul_(self.dy, self.y_along).sum((1, 2))
        return [of_weight, self.dy_along.sum((1, 2))]

    def per_image(self) -> Iterator[Tensor]:
        yield (self.dy * self.y).sum(2)
        yield self.dy.sum(2)


@dataclass(eq=False, kw_only=True)
class Small(Report):
    """A small parameter [n, ...] of which every image had its own copy, with their gradients [n, B, ...]."""

    value: Tensor
    copies: Tensor
    copies_along: Tensor | None = None

    @cached_property
    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        return [(self.copies.sum(1), self.value)]

    @cached_property
    def turns(self) -> list[Tensor]:
        assert self.copies_along is not None
        return [self.copies_along.sum(1)]

    def per_image(self) -> Iterator[Tensor]:
        yield self.copies.flatten(2)

    @property
    def is_convolution(self) -> bool:
        return self.name.endswith("conv.weight")

    def in_parts(self, parts: int) -> Tensor:
        """Gradients that came by way of equal parts of the batch: [n, parts, ...]."""
        networks, images, *shape = self.copies.shape
        return self.copies.reshape(networks, parts, images // parts, *shape).sum(2)


def role_of(name: str) -> str:
    """What a layer of this name belongs to: attention, mlp or other."""
    return "attention" if ".attn." in name else "mlp" if ".mlp." in name else "other"


def _in_parts(x: Tensor, parts: int) -> Tensor:
    """[..., B, S, C] -> [..., parts, B / parts * S, C]."""
    *lead, images, tokens, channels = x.shape
    return x.reshape(*lead, parts, images // parts * tokens, channels)


def _over_tokens(x: Tensor) -> Tensor:
    """The sum over images and tokens, [n, channels]; of half precision in float32."""
    return x.sum((1, 2), dtype=torch.float32 if x.dtype == torch.float16 else x.dtype)
