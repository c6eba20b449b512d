"""How fast is the layer norm of narrow tokens, there and back, in front of a linear layer in half precision?

    python benchmarks/norms.py --quick --json                 # seconds on two cores
    python benchmarks/norms.py --device cuda --out benchmarks/results/norms-h200.json --commit HASH

In one run, on the same numbers: the norm as networks have it (on a GPU under autocast, with kernels of ours where there
are enough numbers), and torch's with the rounding that follows it, which is the reference. Launches are included.
`max_relative_error` is the largest of the outputs and of all gradients against float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from attention import run
from torch import Tensor, nn

from training import seconds_of
from vitsearch.models import layers

SHAPES = ((262_144, 64), (262_144, 96), (65_536, 128), (133_120, 216), (131_072, 384))
"""Tokens and channels: S3's first two stages with 256 images of 64 px, AutoFormer's and ViTAS's with those of 32 px."""


def there_and_back(norm: nn.Module, x: Tensor, gradient: Tensor) -> list[Tensor]:
    with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
        out = norm(x).to(gradient.dtype)
    return [out, *torch.autograd.grad(out, [x, *norm.parameters()], gradient)]


def exact(norm: nn.LayerNorm, x: Tensor, gradient: Tensor) -> list[Tensor]:
    given = [one.detach().double().requires_grad_() for one in (x, norm.weight, norm.bias)]
    out = F.layer_norm(given[0], norm.normalized_shape, given[1], given[2], norm.eps)
    return [out, *torch.autograd.grad(out, given, gradient.double())]


def measure(device: torch.device, quick: bool, steps: int) -> Iterator[dict[str, Any]]:
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    for tokens, width in ((4096, 96),) if quick else SHAPES:
        torch.manual_seed(0)
        ours = layers.InnerNorm(width, eps=1e-6).to(device)
        theirs = nn.LayerNorm(width, eps=1e-6).to(device)
        for parameter in ours.parameters():
            nn.init.normal_(parameter)
        theirs.load_state_dict(ours.state_dict())
        x = torch.randn(tokens, width, device=device, requires_grad=True)
        gradient = torch.randn(tokens, width, device=device).to(half)
        pairs = zip(there_and_back(ours, x, gradient), exact(ours, x, gradient), strict=True)
        error = max(float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in pairs)
        works = [partial(there_and_back, norm, x, gradient) for norm in (ours, theirs)]
        for work in works:
            work()
        seconds, reference = (seconds_of(device, steps, work) for work in works)
        name = f"norm/{tokens}/{width}"
        yield {"name": name, "seconds": seconds, "speedup": reference / seconds, "max_relative_error": error}
        yield {"name": f"reference/{name}", "seconds": reference, "speedup": None}


if __name__ == "__main__":
    run(__doc__, "one small shape", measure)
