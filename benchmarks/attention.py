"""How fast is attention with relative position over small grids, and attention in windows, there and back?

    python benchmarks/attention.py --quick --json                 # under 50 s on two cores
    python benchmarks/attention.py --device cuda --out benchmarks/results/attention-h200.json --commit HASH

In one run, on the same weights and images: the layer as networks have it (on a GPU in bfloat16, with kernels of ours),
torch's fused attention in its place, and the definition with every product spelt out, which is the reference.
Projections are included. `max_relative_error` is the largest of the outputs and of all gradients against the
definition in float64, on a few images.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from scoring import add_output_options, circumstances, keep_rows
from torch import Tensor, nn

from training import seconds_of
from vitsearch import architecture as blueprint
from vitsearch.environment import pick_device
from vitsearch.models import layers

GRIDS = ((8, 216, 3), (8, 240, 4), (4, 216, 4))
"""Side, width, heads."""
WINDOWS = ((32, 96, 3, 4, True), (32, 96, 3, 8, False), (32, 96, 3, 8, True), (8, 128, 4, 4, True))
"""Side, width, heads, window, whether it is shifted."""
IMAGES = {"grid": 8192, "windows": 1024}
FEW = 16
Measure = Callable[[torch.device, bool, int], Iterator[dict[str, Any]]]


@contextmanager
def without_our_kernels() -> Iterator[None]:
    before = layers.is_small_grid, layers.is_small_window
    layers.is_small_grid, layers.is_small_window = (lambda *_: False), (lambda *_: False)  # type: ignore[assignment]
    try:
        yield
    finally:
        layers.is_small_grid, layers.is_small_window = before  # type: ignore[assignment]


def cases(quick: bool) -> Iterator[tuple[str, nn.Module, int, int]]:
    """Name, layer, tokens and width."""
    for side, width, heads in GRIDS[:1] if quick else GRIDS:
        grid = blueprint.Attention(heads=heads, head_dim=64, hidden=8, relative_distance=14)
        yield f"grid/{side}/{heads}", layers.Attention(width, grid, side), side * side + 1, width
    for side, width, heads, window, shifted in WINDOWS[:1] if quick else WINDOWS:
        windowed = blueprint.WindowAttention(heads=heads, head_dim=32, hidden=8, window=window, shifted=shifted)
        name = f"windows/{side}/{heads}/{window}{'-shifted' if shifted else ''}"
        yield name, layers.WindowAttention(width, windowed, side), side * side, width


def there_and_back(layer: nn.Module, images: Tensor, gradient: Tensor) -> list[Tensor]:
    with torch.autocast("cuda", torch.bfloat16, enabled=images.is_cuda):
        out = layer(images)
    return [out, *torch.autograd.grad(out, [images, *layer.parameters()], gradient.to(out.dtype))]


def largest_error(layer: nn.Module, exact: nn.Module, images: Tensor, gradient: Tensor) -> float:
    ours = there_and_back(layer, images[:FEW].detach().requires_grad_(), gradient[:FEW])
    with torch.autocast("cuda", enabled=False):
        precise = images[:FEW].detach().double().requires_grad_()
        out = exact(precise)
        theirs = [out, *torch.autograd.grad(out, [precise, *exact.parameters()], gradient[:FEW].double())]
    pairs = [(a.detach().double(), b.detach()) for a, b in zip(ours, theirs, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def measure(device: torch.device, quick: bool, steps: int) -> Iterator[dict[str, Any]]:
    for name, layer, tokens, width in cases(quick):
        torch.manual_seed(0)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.05)
        layer.to(device)
        count = 64 if device.type == "cpu" else IMAGES[name.split("/")[0]]
        images = torch.randn(count, tokens, width, device=device, requires_grad=True)
        gradient = torch.randn(count, tokens, width, device=device)
        exact = copy.deepcopy(layer).double()
        exact.fused = False
        error = largest_error(layer, exact, images, gradient)
        work = partial(there_and_back, layer, images, gradient)
        work()
        ours = seconds_of(device, steps, work)
        with without_our_kernels():
            work()
            by_torch = seconds_of(device, steps, work)
        layer.fused = False
        work()
        reference = seconds_of(device, steps, work)
        shared = {"images": count, "tokens": tokens}
        kept = {"name": name, "seconds": ours, "speedup": reference / ours, "max_relative_error": error}
        yield kept | shared | {"times_torch": by_torch / ours}
        yield {"name": f"baseline/torch/{name}", "seconds": by_torch, "speedup": reference / by_torch} | shared
        yield {"name": f"reference/{name}", "seconds": reference, "speedup": None} | shared


def show(row: dict[str, Any]) -> None:
    speedup = f"{row['speedup']:6.2f} x" if row["speedup"] else ""
    print(f"{row['name']:36s} {1000 * row['seconds']:9.3f} ms {speedup}", flush=True)


def run(description: str | None, quick: str, measure: Measure) -> None:
    """A benchmark of kernels: options, and rows as they come. `quick` says what is left of it with --quick."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help=quick)
    add_output_options(parser)
    options = parser.parse_args()
    device = pick_device("cpu" if options.quick and options.device == "auto" else options.device)
    steps = 2 if options.quick else 5 if device.type == "cpu" else 30
    keep_rows(measure(device, options.quick, steps), circumstances(device, options.commit), options, show)


if __name__ == "__main__":
    run(__doc__, "one grid and one kind of window", measure)
