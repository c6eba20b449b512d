"""Where kernels of ours are taken in the place of torch's."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

TRITON = find_spec("triton") is not None and torch.version.hip is None
HALF = (torch.bfloat16, torch.float16)


def is_of_triton(error: Exception) -> bool:
    """Whether Triton says that a kernel does not compile, or does not fit into this GPU."""
    return type(error).__module__.partition(".")[0] == "triton"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def runs_kernels(device: int) -> bool:
    """Whether a GPU is one that kernels of ours were written for. Triton comes with torch for CUDA alone."""
    return TRITON and torch.cuda.get_device_capability(device) >= (8, 0)


def half_on_gpu(x: Tensor) -> bool:
    """Whether products of these tokens are in half precision, on a GPU that runs kernels of ours."""
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return x.is_cuda and dtype in HALF and runs_kernels(x.device.index)


def is_small_grid(qkv: Tensor) -> bool:
    """Whether the tokens of [B, S, 3, H, D] but for the class token are one tile of a GPU: see grid_attention.py."""
    if qkv.dtype not in HALF or not half_on_gpu(qkv):
        return False
    return qkv.shape[1] in (4 * 4 + 1, 8 * 8 + 1) and qkv.shape[-1] in (32, 64)


def is_small_window(x: Tensor, window: int, head_dim: int) -> bool:
    """Whether windows of these tokens are tiles of a GPU, in half precision: see window_attention.py."""
    return window**2 <= 64 and head_dim in (16, 32, 64) and half_on_gpu(x)


FEW_TOKENS = 256
"""More would need much memory for what attention has between its two products."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def multiplies_half() -> bool:
    """Whether the processor has units for bfloat16."""
    return torch.cpu._is_avx512_bf16_supported()


def is_faster_in_steps(q: Tensor, tokens: int) -> bool:
    """Whether two products and a softmax are faster than torch's fused attention: in bfloat16 on a processor.

    There the way back through the fused one is slow: see benchmarks/attention.py.
    """
    return q.is_cpu and q.dtype == torch.bfloat16 and tokens <= FEW_TOKENS and multiplies_half()


NARROW, MANY = 128, 1 << 24
"""Channels of a token, at most, and numbers, at least, for which a norm of ours was faster than torch's."""


def is_narrow(x: Tensor) -> bool:
    """Whether tokens on a GPU are so narrow that torch's norm is slow, and so many that it matters: see norms.py.

    Where layers are compiled, the compiler writes a norm of its own.
    """
    if torch.compiler.is_compiling() or not x.is_cuda or not torch.is_autocast_enabled("cuda"):
        return False
    narrow, many = x.shape[-1] <= NARROW, x.numel() >= MANY
    return narrow and many and torch.get_autocast_dtype("cuda") in HALF and runs_kernels(x.device.index)
