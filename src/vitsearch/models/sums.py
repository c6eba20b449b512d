"""Tokens in float32 plus what a layer adds to them in half precision, as one kernel (sum_kernels.py).

Torch adds tensors of two precisions number by number, at half of the speed of memory.
"""

from __future__ import annotations

import triton
from torch import Tensor

from vitsearch.models.sum_kernels import sum_kernel

BLOCK = 2048


def add_rounded(out: Tensor, x: Tensor, more: Tensor) -> None:
    """out = x + more, all of them contiguous."""
    assert out.is_contiguous() and x.is_contiguous() and more.is_contiguous()
    sum_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, more, out, x.numel(), block=BLOCK)
