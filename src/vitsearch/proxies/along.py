"""Layers that carry derivatives along with their values: one forward and one backward pass give theta^T H g.

Scale all parameters by 1 + a. The derivative of the loss at a = 0 is L_a = theta^T g, and its gradient is H theta, with
theta held fixed in the place where it came from. So the pass goes forward with every activation x and its derivative
x_a, and back from L_a: the adjoint of x_a is the gradient dx of the loss itself, and the adjoint of x the derivative of
dx along a. No graph of a backward pass is kept, and nothing is computed that a plain pass would not need, but for the
derivatives.

Tensors are [n networks, rows, ...]: rows are the images, then their derivatives; on the way back, the derivatives of
the gradients, then the gradients. On the way back from the plain values (`Rows.plainly`) the second half is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Rows:
    """Whether derivatives go along, and whether the present way back is from the plain values without them."""

    along: bool = False
    plainly: bool = False


NormReport: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], None]  # Y, rows of dY, derivative of Y


class NormAlong(torch.autograd.Function):
    """The same with derivatives: y = (x - mean) r, y_a = P x_a and, for the weight 1 + a, + y; P = r (1 - 11^T - yy^T).

    Products of vectors here are means over channels. Along x_a, r changes by -r^2 (y x_a), hence P by

        P_a v = -r (y x_a) P v - r (y_a (y v) + y (y_a v)).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, report: NormReport, rows: Rows) -> Tensor:
        value, derivative = halves(x)
        value = value.contiguous()
        y, mean, scale = torch.native_layer_norm(value, (x.shape[-1],), None, None, eps)
        along = (y * derivative).mean(-1, keepdim=True)
        y_along = (derivative - derivative.mean(-1, keepdim=True)).addcmul_(y, along, value=-1).mul_(scale)
        ctx.save_for_backward(value, mean, scale, y, y_along, along)
        ctx.report, ctx.rows = report, rows
        return torch.cat([y, y_along + y], 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, scale, y, y_along, along = ctx.saved_tensors
        ctx.report(y, gradients[0], y_along)
        dy_along, dy = halves(gradients[0])
        if ctx.rows.plainly:
            return beside_zeros(norm_backward(dy_along.contiguous(), x, mean, scale)), None, None, None
        dy = dy.contiguous()
        dx = norm_backward(dy, x, mean, scale)
        dx_along = norm_backward(dy_along + dy, x, mean, scale).addcmul_(dx, -scale * along)
        dx_along.addcmul_(y_along, -scale * (y * dy).mean(-1, keepdim=True))
        dx_along.addcmul_(y, -scale * (y_along * dy).mean(-1, keepdim=True))
        return torch.cat([dx_along, dx], 1), None, None, None


class GeluAlong(torch.autograd.Function):
    """h = gelu(z) and h_a = gelu'(z) z_a; gelu''(z) = (2 - z^2) exp(-z^2 / 2) / sqrt(2 pi)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, rows: Rows) -> Tensor:
        ctx.save_for_backward(z)
        ctx.rows = rows
        value, derivative = halves(z)
        return torch.cat([F.gelu(value), torch.ops.aten.gelu_backward(derivative, value)], 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        value, derivative = halves(ctx.saved_tensors[0])
        dh_along, dh = halves(gradients[0])
        if ctx.rows.plainly:
            return beside_zeros(torch.ops.aten.gelu_backward(dh_along, value)), None
        square = value.square()
        second = (square * -0.5).exp_().mul_(square.neg_().add_(2)).mul_(derivative).mul_(dh)
        dz_along = torch.ops.aten.gelu_backward(dh_along, value).add_(second, alpha=1 / math.sqrt(2 * math.pi))
        return torch.cat([dz_along, torch.ops.aten.gelu_backward(dh, value)], 1), None


class AttentionAlong(torch.autograd.Function):
    """p = softmax(q k^T), out = p v, and their derivatives p_a = p w, w = s_a - p s_a, out_a = p_a v + p v_a.

    On the way back, with e the gradient of the logits s and e_a its derivative,

        e = p (dp - p dp),   e_a = p (dp_a - p dp_a) + e w - p sum(e w).
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
        ctx.lead, ctx.rows = (len(q), q.shape[1] // 2, q.shape[2]), rows
        (q, q_a), (k, k_a), (v, v_a) = (_matrices(x) for x in (q, k, v))
        p = torch.bmm(q, k.mT).softmax(-1)
        w = torch.bmm(q_a, k.mT).baddbmm_(q, k_a.mT)
        w -= (p * w).sum(-1, keepdim=True)
        out_a = torch.bmm(p * w, v).baddbmm_(p, v_a)
        ctx.save_for_backward(q, q_a, k, k_a, v, v_a, p, w)
        return _rows(torch.bmm(p, v), out_a, ctx.lead)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, q_a, k, k_a, v, v_a, p, w = ctx.saved_tensors
        do_a, do = _matrices(gradients[0])
        if ctx.rows.plainly:
            e = _softmax_backward(torch.bmm(do_a, v.mT), p)
            found = (torch.bmm(e, k), torch.bmm(e.mT, q), torch.bmm(p.mT, do_a))
            return *(_rows(dx, torch.zeros_like(dx), ctx.lead) for dx in found), None
        e = _softmax_backward(torch.bmm(do, v.mT), p)
        e_a = _softmax_backward(torch.bmm(do_a, v.mT).baddbmm_(do, v_a.mT), p)
        change = e * w
        e_a += change
        e_a.addcmul_(p, change.sum(-1, keepdim=True), value=-1)
        dv_a = torch.bmm(p.mT, do_a).baddbmm_((p * w).mT, do)
        dq_a = torch.bmm(e_a, k).baddbmm_(e, k_a)
        dk_a = torch.bmm(e_a.mT, q).baddbmm_(e.mT, q_a)
        dq, dk, dv = torch.bmm(e, k), torch.bmm(e.mT, q), torch.bmm(p.mT, do)
        return _rows(dq_a, dq, ctx.lead), _rows(dk_a, dk, ctx.lead), _rows(dv_a, dv, ctx.lead), None


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The images and their derivatives; of gradients, the derivatives and the gradients. Views."""
    half = x.shape[1] // 2
    return x[:, :half], x[:, half:]


def beside_zeros(x: Tensor) -> Tensor:
    return torch.cat([x, torch.zeros_like(x)], 1)


def norm_backward(dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """P dy, for a layer norm without weight and bias."""
    wanted = (True, False, False)
    dx: Tensor = torch.ops.aten.native_layer_norm_backward(dy, x, x.shape[-1:], mean, scale, None, None, wanted)[0]
    return dx


def _matrices(x: Tensor) -> tuple[Tensor, Tensor]:
    """[n, 2 B, H, S, D] -> both halves as [n B H, S, D]."""
    value, derivative = halves(x)
    return value.flatten(0, 2), derivative.flatten(0, 2)


def _rows(first: Tensor, second: Tensor, lead: tuple[int, int, int]) -> Tensor:
    return torch.cat([half.reshape(*lead, *half.shape[1:]) for half in (first, second)], 1)


def _softmax_backward(gradient: Tensor, p: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten._softmax_backward_data(gradient, p, -1, p.dtype)
    return found
