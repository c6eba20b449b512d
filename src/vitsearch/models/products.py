"""Matrix products of float32 on processors, without gradients.

torch has two libraries for them and takes MKL, which does with half of its units on AMD's processors with AVX-512;
oneDNN uses all. benchmarks/products.py measures both.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch.environment import made_by_amd


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b."""
    if x.is_cpu and x.dtype == weight.dtype == torch.float32 and x.numel() and prefers_onednn():
        return _by_onednn(x, weight, bias)
    return F.linear(x, weight, bias)


def over_tokens(x: Tensor, y: Tensor) -> Tensor:
    """x^T y over the last dimension but one, for each of those before it: [..., S, a], [..., S, b] -> [..., a, b]."""
    if not x.is_cpu or x.dtype != torch.float32 or not x.numel() or not prefers_onednn():
        return x.mT @ y
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    found = x.new_empty(*lead, x.shape[-1], y.shape[-1])
    x, y = (one.expand(*lead, *one.shape[-2:]) for one in (x, y))
    for place in product(*map(range, lead)):
        left, right = x[place].T, y[place].T
        if len(left) <= len(right):  # the left factor is copied
            found[place] = _by_onednn(left, right, None)
        else:
            found[place] = _by_onednn(right, left, None).T
    return found


@lru_cache(maxsize=1)
def prefers_onednn() -> bool:
    """Whether the processor is one on which oneDNN is faster, and this torch lets us call it."""
    if not torch._C._has_mkldnn or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    if not made_by_amd() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    x, weight = (torch.linspace(-1, 1, 12 * size).view(size, 12) for size in (5, 7))
    try:
        return torch.allclose(_by_onednn(x, weight, None), x @ weight.T, rtol=1e-5, atol=1e-5)
    except (RuntimeError, TypeError):  # it is what torch's compiler calls, and may change with torch
        return False


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found
