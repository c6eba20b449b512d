"""The 24 unary and 4 binary operations that formulas are made of, on matrices and numbers.

Auto-Prox's own list was not published. The first 15, `negate`, `minmax`, `mean`, `std` and `identity` are those of the
same authors' later code; `sign`, `sum`, `max` and `min` take the place of the four that are unknown. Elements keep the
matrix's precision, sums over rows are float64, and a number is a float64 tensor of no dimension. No operation changes
its argument. What overflows becomes infinite or NaN, and whoever asked finds that the formula has no value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

EPSILON = 1e-9
TINY = 1.2e-38
Operation = Callable[[Tensor], Tensor]


def _log(x: Tensor) -> Tensor:
    """What is not positive counts as 1. Adding is several times as fast as choosing."""
    positive = x.clamp_min(0)
    return positive.add_(1 - positive.sign()).log_()


def _abslog(x: Tensor) -> Tensor:
    return _log(x.abs())


def _normalize(x: Tensor) -> Tensor:
    """A constant has no deviation, and becomes 0."""
    deviation = _std(x)
    return torch.zeros_like(x) if deviation == 0 else (x - mean(x).to(x.dtype)).div_(deviation.to(x.dtype))


def _sqrt(x: Tensor) -> Tensor:
    """Of what is negative, 0. Roots of 0 itself are slow, so 0 is reached from the smallest number."""
    return x.clamp_min(TINY).sqrt_().sub_(x.new_tensor(TINY).sqrt())


def _invert(x: Tensor) -> Tensor:
    return (x + EPSILON).reciprocal_()


def _softmax(x: Tensor) -> Tensor:
    return x.softmax(0) if x.dim() else torch.ones_like(x)


def _logsoftmax(x: Tensor) -> Tensor:
    return x.log_softmax(0) if x.dim() else torch.zeros_like(x)


def _minmax(x: Tensor) -> Tensor:
    low, high = x.min(), x.max()
    return (x - low).div_(high - low + EPSILON)


def _frobenius(x: Tensor) -> Tensor:
    of_rows: Tensor = torch.linalg.vector_norm(x, dim=-1) if x.dim() else x
    norm: Tensor = torch.linalg.vector_norm(of_rows.double())
    return norm


def mean(x: Tensor) -> Tensor:
    return _sum(x) / x.numel()


def _normalized_sum(x: Tensor) -> Tensor:
    return _sum(x) / (x.numel() + EPSILON)


def _l1(x: Tensor) -> Tensor:
    return _normalized_sum(x.abs())


def _std(x: Tensor) -> Tensor:
    """Of a number it is 0."""
    if x.numel() < 2:
        return torch.zeros((), dtype=torch.float64, device=x.device)
    center = mean(x)
    found = _frobenius(x - center.to(x.dtype)) / (x.numel() - 1) ** 0.5
    return no_rounding(found, center, x.dtype)


def no_rounding(deviation: Tensor, center: Tensor, dtype: torch.dtype) -> Tensor:
    """0 in the place of a deviation as small as the rounding of the mean: the elements are all the same."""
    return torch.where(deviation <= torch.finfo(dtype).eps * center.abs(), 0.0, deviation)


def _sum(x: Tensor) -> Tensor:
    """Rows in the matrix's precision, their sums in float64: a sum of elements of float64 is slow."""
    return x.sum(-1).double().sum() if x.dim() else x.double()


UNARY: Mapping[str, Operation] = {  # in the order of the published indices
    "log": _log,
    "abslog": _abslog,
    "abs": torch.abs,
    "square": torch.square,
    "exp": torch.exp,
    "normalize": _normalize,
    "relu": torch.relu,
    "invert": _invert,
    "frobenius": _frobenius,
    "normalized_sum": _normalized_sum,
    "l1": _l1,
    "softmax": _softmax,
    "sigmoid": torch.sigmoid,
    "logsoftmax": _logsoftmax,
    "sqrt": _sqrt,
    "negate": torch.neg,
    "minmax": _minmax,
    "mean": mean,
    "std": _std,
    "identity": lambda x: x,
    "sign": torch.sign,
    "sum": _sum,
    "max": lambda x: x.max().double(),
    "min": lambda x: x.min().double(),
}


def combine(sign: str, left: Tensor, right: Tensor) -> Tensor:
    """Element by element where the shapes are the same or one is a number, else between the means.

    `@` is the matrix product where the inner sizes agree, and `*` of numbers and with numbers.
    """
    matrices = bool(left.dim() and right.dim())
    if matrices and sign == "@" and left.shape[1] == right.shape[0]:
        dtype = torch.promote_types(left.dtype, right.dtype)
        return left.to(dtype) @ right.to(dtype)
    if matrices and (sign == "@" or left.shape != right.shape):
        left, right = mean(left), mean(right)
    elif left.dim() != right.dim():  # a number may be far larger than the matrix's precision holds
        left, right = left.double(), right.double()
    return left + right if sign == "+" else left - right if sign == "-" else left * right
