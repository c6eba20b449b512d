"""Layers of a batched pass that report what goes through them, in the place of forming weight gradients.

Tensors are [n networks, rows, ...]. A row is an image; in a pass `along` a direction, the second half of the rows are
derivatives (see `along.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from vitsearch.models.kernels import runs_kernels
from vitsearch.models.products import linear
from vitsearch.proxies.along import NormReport, Rows, beside_zeros, halves, norm_backward

LinearReport: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], None]  # rows of X, dY and Y


class TracedLinear(torch.autograd.Function):
    """A linear layer that reports (X, dY, Y) in the backward pass and forms no weight gradient.

    Y is kept for the report only where `keep` says so. `exact` layers pass their gradient on in full precision.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        report: LinearReport,
        keep: bool,
        exact: bool,
        rows: Rows,
    ) -> Tensor:
        y = linear(x, weight, None if rows.along else bias)
        if rows.along:
            value, derivative = halves(y)
            if bias is not None:
                value += bias
            derivative += value  # d/da of (1 + a) (w x(a) + b)
        ctx.save_for_backward(x, weight, y if keep else None)
        ctx.report, ctx.exact, ctx.rows = report, exact, rows
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        ctx.report(x, gradients[0], y)
        with products_in("highest" if ctx.exact else None):
            dx = linear(halves(gradients[0])[0] if ctx.rows.plainly else gradients[0], weight.T)
        if ctx.rows.plainly:
            dx = beside_zeros(dx)
        elif ctx.rows.along:
            value, derivative = halves(dx)
            value += derivative
        return dx, None, None, None, None, None, None


@contextmanager
def products_in(precision: str | None) -> Iterator[None]:
    """Matrix products of float32 on a GPU: `highest` in float32, `high` in TF32; None leaves it as it is."""
    before = torch.get_float32_matmul_precision()
    if precision in (None, before):
        yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class TracedPatches(torch.autograd.Function):
    """The patch embedding, the same for all networks. `anchor` ties it to the graph.

    The patches do not depend on the scale of the parameters, so the derivative along it is the embedding itself.
    """

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, x: Tensor, weight: Tensor, bias: Tensor, shape: tuple[int, int], report: LinearReport
    ) -> Tensor:
        y = linear(x, weight, bias)
        ctx.save_for_backward(x, y)
        ctx.report = report
        count, rows = shape
        return y.repeat(count, rows // len(y), 1, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        ctx.report(x, gradients[0], y)
        return gradients[0].new_zeros(()), None, None, None, None, None


class Watched(torch.autograd.Function):
    """Nothing but the report of (Y, dY)."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, report: Callable[[Tensor, Tensor], None]) -> Tensor:
        ctx.save_for_backward(y)
        ctx.report = report
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.report(ctx.saved_tensors[0], gradients[0])
        return gradients[0], None


class TracedNorm(torch.autograd.Function):
    """A layer norm with its initial weight 1 and bias 0 that reports (Y, dY) in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, report: NormReport, dtype: torch.dtype) -> Tensor:
        ctx.ours = dtype == torch.float16 and x.is_cuda and runs_kernels(x.device.index)
        if ctx.ours:
            from vitsearch.models.norms import norm_there  # which needs Triton

            x = x.contiguous()
            y, mean, scale = norm_there(x, None, None, eps, dtype)
        else:
            y, mean, scale = torch.native_layer_norm(x, (x.shape[-1],), None, None, eps)
            y = y.to(dtype)
        ctx.save_for_backward(x, mean, scale, y)
        ctx.report = report
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, scale, y = ctx.saved_tensors
        dy = gradients[0].contiguous()
        ctx.report(y, dy, None)
        if ctx.ours:
            from vitsearch.models.norms import norm_back

            return norm_back(dy, x, None, mean, scale)[0], None, None, None
        return norm_backward(dy.to(x.dtype), x, mean, scale), None, None, None


class Reordered(torch.autograd.Function):
    """Networks in another order; the gradient goes the other way, as a plain copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].index_select(0, ctx.saved_tensors[0]), None, None
