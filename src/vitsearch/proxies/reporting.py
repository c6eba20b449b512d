"""Layers of a batched pass that report what goes through them, in the place of forming weight gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Report: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], None]  # X, dY and Y of a linear layer


class TracedLinear(torch.autograd.Function):
    """A linear layer that reports (X, dY, Y) in the backward pass and forms no weight gradient.

    Y is kept for the report only where `keep` says so. `exact` layers pass their gradient on in full precision.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, report: Report, keep: bool, exact: bool
    ) -> Tensor:
        y = F.linear(x, weight, bias)
        ctx.save_for_backward(x, weight, y if keep else None)
        ctx.report, ctx.exact = report, exact
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        x, weight, y = ctx.saved_tensors
        ctx.report(x.flatten(1, -2), gradients[0].flatten(1, -2), None if y is None else y.flatten(1, -2))
        with products_in("highest" if ctx.exact else None):
            dx = gradients[0] @ weight
        return dx, None, None, None, None, None


@contextmanager
def products_in(precision: str | None) -> Iterator[None]:
    """Matrix products of float32 on a GPU: `highest` in float32, `high` in TF32; None leaves it as it is."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision or before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class TracedPatches(torch.autograd.Function):
    """The patch embedding, the same for all `count` networks. `anchor` ties it to the graph."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, x: Tensor, weight: Tensor, bias: Tensor, count: int, report: Report
    ) -> Tensor:
        y = F.linear(x, weight, bias)
        ctx.save_for_backward(x, y)
        ctx.report = report
        return y.expand(count, *y.shape).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        x, y = ctx.saved_tensors
        ctx.report(x.flatten(0, 1), gradients[0].flatten(1, 2), y.flatten(0, 1))
        return gradients[0].new_zeros(()), None, None, None, None, None


class TracedNorm(torch.autograd.Function):
    """A layer norm with its initial weight 1 and bias 0 that reports (Y, dY) in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, report: Callable[[Tensor, Tensor], None]) -> Tensor:
        y, mean, scale = torch.native_layer_norm(x, (x.shape[-1],), None, None, eps)
        ctx.save_for_backward(x, mean, scale, y)
        ctx.report = report
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, mean, scale, y = ctx.saved_tensors
        dy = gradients[0].contiguous()
        ctx.report(y.flatten(1, 2), dy.flatten(1, 2))
        wanted = (True, False, False)
        dx, _, _ = torch.ops.aten.native_layer_norm_backward(dy, x, x.shape[-1:], mean, scale, None, None, wanted)
        return dx, None, None


class Reordered(torch.autograd.Function):
    """Rows in another order; the gradient goes the other way, as a plain copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].index_select(0, ctx.saved_tensors[0]), None, None
