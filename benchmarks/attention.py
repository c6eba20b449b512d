"""How fast is attention, with relative position over small grids, in windows, and without either, there and back?

    python benchmarks/attention.py --quick --json                 # under 50 s on two cores
    python benchmarks/attention.py --device cuda --out benchmarks/results/attention-h200.json --commit HASH
    python benchmarks/attention.py --device cpu --out benchmarks/results/attention-cpu.json

In one run, on the same weights and images, in bfloat16 where the device has units for it: the layer as networks have it
(on a GPU with kernels of ours, on a processor in steps), torch's fused attention in its place, and the definition with
every product spelt out, which is the reference. Projections are included. `max_relative_error` is the largest of the
outputs and of all gradients against the definition in float64, on a few images.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from scoring import add_output_options, circumstances, keep_rows
from torch import Tensor, nn

from training import seconds_of
from vitsearch import architecture as blueprint
from vitsearch.environment import pick_device
from vitsearch.models import layers
from vitsearch.models.kernels import multiplies_half

GRIDS = ((8, 216, 3), (8, 240, 4), (4, 216, 4))
"""Side, width, heads."""
WINDOWS = ((32, 96, 3, 4, True), (32, 96, 3, 8, False), (32, 96, 3, 8, True), (8, 128, 4, 4, True))
"""Side, width, heads, window, whether it is shifted."""
PLAIN = ((14, 192, 3, 64), (8, 192, 3, 64), (7, 32, 4, 8))
"""Side, width, heads and their width: DeiT-Ti at 224 px, at 32 px with patches of 4, and a small one at 28 px."""
IMAGES = {"grid": 8192, "windows": 1024, "plain": 2048}
FEW = 16
Measure = Callable[[torch.device, bool, int], Iterator[dict[str, Any]]]


@contextmanager
def by_torch_alone() -> Iterator[None]:
    names = ("is_small_grid", "is_small_window", "is_faster_in_steps")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(layers, name, lambda *_: False))
        yield


def cases(quick: bool) -> Iterator[tuple[str, nn.Module, int, int]]:
    """Name, layer, tokens and width."""
    for side, width, heads in GRIDS[:1] if quick else GRIDS:
        grid = blueprint.Attention(heads=heads, head_dim=64, hidden=8, relative_distance=14)
        yield f"grid/{side}/{heads}", layers.Attention(width, grid, side), side * side + 1, width
    for side, width, heads, window, shifted in WINDOWS[:1] if quick else WINDOWS:
        windowed = blueprint.WindowAttention(heads=heads, head_dim=32, hidden=8, window=window, shifted=shifted)
        name = f"windows/{side}/{heads}/{window}{'-shifted' if shifted else ''}"
        yield name, layers.WindowAttention(width, windowed, side), side * side, width
    for side, width, heads, head_dim in PLAIN[-1:] if quick else PLAIN:
        plain = blueprint.Attention(heads=heads, head_dim=head_dim, hidden=8)
        yield f"plain/{side}/{heads}/{head_dim}", layers.Attention(width, plain, side), side * side + 1, width


def there_and_back(layer: nn.Module, images: Tensor, gradient: Tensor) -> list[Tensor]:
    with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda or multiplies_half()):
        out = layer(images)
    return [out, *torch.autograd.grad(out, [images, *layer.parameters()], gradient.to(out.dtype))]


def largest_error(layer: nn.Module, exact: nn.Module, images: Tensor, gradient: Tensor) -> float:
    ours = there_and_back(layer, images[:FEW].detach().requires_grad_(), gradient[:FEW])
    with torch.autocast(images.device.type, enabled=False):
        precise = images[:FEW].detach().double().requires_grad_()
        out = exact(precise)
        theirs = [out, *torch.autograd.grad(out, [precise, *exact.parameters()], gradient[:FEW].double())]
    pairs = [(a.detach().double(), b.detach()) for a, b in zip(ours, theirs, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def warm_seconds(device: torch.device, steps: int, work: Callable[[], Any]) -> float:
    seconds_of(device, max(2, steps // 10), work)
    return seconds_of(device, steps, work)


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
        ours = warm_seconds(device, steps, work)
        with by_torch_alone():
            by_torch = warm_seconds(device, steps, work)
        layer.fused = False
        reference = warm_seconds(device, steps, work)
        shared = {"images": count, "tokens": tokens}
        kept = {"name": name, "seconds": ours, "speedup": reference / ours, "max_relative_error": error}
        yield kept | shared | {"times_torch": by_torch / ours}
        yield {"name": f"baseline/torch/{name}", "seconds": by_torch, "speedup": None} | shared
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
    steps = 2 if options.quick else 30
    keep_rows(measure(device, options.quick, steps), circumstances(device, options.commit), options, show)


if __name__ == "__main__":
    run(__doc__, "one case of each kind", measure)
