"""How fast are matrix products of float32 that need no gradient: by the library chosen here, and by torch's own?

    python benchmarks/products.py --quick --json                 # seconds on two cores
    python benchmarks/products.py --device cpu --out benchmarks/results/products-cpu.json --commit HASH

In one run, on the same numbers, of the shapes that a layer of AutoFormer has for many networks: rows times weight, and
the gradient of the weight, a product over the rows. `max_relative_error` is that of the matrix against float64. Where
oneDNN is not preferred (see models/products.py) both are torch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from attention import run
from torch import Tensor

from training import seconds_of
from vitsearch.models import products

SHAPES = ((1576, 192, 576), (1576, 192, 768), (1576, 768, 192), (1576, 384, 1536), (1576, 640, 2560), (2920, 64, 256))
"""Rows, inputs and outputs: eight images of AutoFormer's three spaces, and four of PiT's first stage."""


def error(found: Tensor, exact: Tensor) -> float:
    return float(torch.linalg.matrix_norm(found.double() - exact) / torch.linalg.matrix_norm(exact))


def measure(device: torch.device, quick: bool, steps: int) -> Iterator[dict[str, Any]]:
    for rows, inputs, outputs in SHAPES[:1] if quick else SHAPES:
        generator = torch.Generator().manual_seed(rows + inputs)
        x, dy = (torch.randn(rows, size, generator=generator).to(device) for size in (inputs, outputs))
        weight = torch.randn(outputs, inputs, generator=generator).to(device)
        for kind, ours, theirs, exact in (
            (
                "layer",
                partial(products.linear, x, weight),
                partial(F.linear, x, weight),
                x.double() @ weight.double().T,
            ),
            ("gradient", partial(products.over_tokens, dy, x), partial(torch.mm, dy.T, x), dy.double().T @ x.double()),
        ):
            ours(), theirs()
            times = [[seconds_of(device, steps, work) for work in (ours, theirs)] for _ in range(1 if quick else 5)]
            seconds, reference = (min(column) for column in zip(*times, strict=True))
            name, flops = f"{kind}/{rows}/{inputs}/{outputs}", 2 * rows * inputs * outputs
            found = {"name": name, "seconds": seconds, "speedup": reference / seconds, "library": "torch"}
            found |= {"gigaflops": flops / seconds / 1e9, "max_relative_error": error(ours(), exact)}
            if device.type == "cpu" and products.prefers_onednn():
                found["library"] = "onednn"
            yield found
            about = {"speedup": None, "library": "torch", "gigaflops": flops / reference / 1e9}
            yield {"name": f"reference/{name}", "seconds": reference, **about}


if __name__ == "__main__":
    run(__doc__, "one shape", measure)
