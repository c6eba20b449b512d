"""Does this device give the numbers of the definitions?

    python experiments/device_agreement.py --device cuda [--networks 8] [--commit HASH]    # about two minutes on a GPU

Scores of random networks, many at once, beside those of one network at a time on the processor; and gradients of a
supernet as it is trained on this device (in bfloat16, layers compiled and recorded where they are) beside the
definition's in float32 on the processor: a network built by itself, whose weights are slices of the supernet's. What
bfloat16 costs is shown by the definition in bfloat16 on the same device: the gradients of a training may not be farther
away than 1.5 times that. Writes
results/device_agreement-DEVICE.json, where rows of other spaces are kept, and ends with 1 where anything is too far
away.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import RESULTS, circumstances, command_line, write
from torch import Tensor
from torch.func import functional_call

from vitsearch.architecture import Architecture
from vitsearch.cost import Geometry
from vitsearch.environment import pick_device
from vitsearch.models import build
from vitsearch.models.recorded import GraphRecorder
from vitsearch.models.super_transformer import supernet_for
from vitsearch.models.supernet import Supernet
from vitsearch.scoring import ProxyEvaluator
from vitsearch.spaces import SPACES, Space, sample

SCORED = {"autoformer-tiny": 224, "autoformer-base": 224, "pit": 224, "vitas": 112}
TRAINED = {"autoformer-tiny": (32, 4), "pit": (32, 4), "vitas": (32, 4), "s3": (64, 2)}
"""Image and patch size; every kernel of ours is taken in one of them."""
PROXIES = ["dss", "snip", "synflow", "grad_norm"]
CLOSE, NOISE = 1e-4, 1.5
Row = dict[str, Any]
Look = Callable[[Supernet, Tensor, Architecture], Tensor]


def scores(space: str, image_size: int, device: torch.device, count: int) -> Row:
    """The largest relative error of each proxy, and networks that were left to the definition count as none."""
    geometry = Geometry(image_size=image_size, classes=10)
    networks = sample(space, count, seed=5, geometry=geometry)
    makers = {where: ProxyEvaluator(PROXIES, geometry=geometry, seed=0, device=where) for where in ("cpu", device.type)}
    exact = [makers["cpu"].one(settings).scores for settings in networks]
    found = [score.scores for score in makers[device.type](networks)]
    errors = {
        proxy: max(abs(ours[proxy] / theirs[proxy] - 1) for ours, theirs in zip(found, exact, strict=True))
        for proxy in PROXIES
    }
    return {"what": "scores", "networks": count, "errors": errors, "close": max(errors.values()) <= CLOSE}


def gradients(space_name: str, image_size: int, patch_size: int, device: torch.device, count: int) -> Row:
    """Of all parameters together, the distance to the definition for each unit of its length: the largest of some
    networks'."""
    space = SPACES[space_name].with_patch_size(patch_size)
    geometry = Geometry(image_size=image_size, classes=10)
    definition = supernet_for(space, geometry, seed=0)
    plain, trained = (copy.deepcopy(definition).to(device) for _ in range(2))
    if device.type == "cuda":
        if trained.few_shapes:
            trained.compile()
        trained.record_layers(GraphRecorder())
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(64, 3, image_size, image_size, generator=generator)
    labels = torch.randint(10, (64,), generator=generator)
    errors: dict[str, list[float]] = {"definition": [], "trained": []}
    for architecture in some(space, count, geometry):
        exact = flat(definition, by_definition, images, labels, architecture, half=False)
        for name, supernet, look in (("definition", plain, by_definition), ("trained", trained, Supernet.__call__)):
            for _ in range(2):  # the first time records
                found = flat(supernet, look, images, labels, architecture, half=True)
            errors[name].append(float((found - exact).norm() / exact.norm()))
    largest = {name: max(values) for name, values in errors.items()}
    close = all(ours <= NOISE * theirs for ours, theirs in zip(errors["trained"], errors["definition"], strict=True))
    return {"what": "gradients", "networks": count, "errors": largest, "close": close}


def some(space: Space, count: int, geometry: Geometry) -> list[Architecture]:
    return [space.decode(settings) for settings in sample(space, count, seed=6, geometry=geometry)]


def by_definition(supernet: Supernet, images: Tensor, architecture: Architecture) -> Tensor:
    """A network by itself, every product of its attention spelled out, with slices of the supernet's weights."""
    network = build(architecture, supernet.geometry, draw_weights=False).train().to(images.device)
    network.set_fused_attention(False)
    weights = [supernet.slices(architecture, side) for side in supernet.sides]
    return torch.stack([functional_call(network, own, (images,)) for own in weights]).sum(0)


def flat(
    supernet: Supernet, look: Look, images: Tensor, labels: Tensor, architecture: Architecture, *, half: bool
) -> Tensor:
    """All gradients of one network, one after the other, on the processor."""
    supernet.zero_grad()
    device = supernet.head.weight.device
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        logits = look(supernet, images.to(device), architecture)
    F.cross_entropy(logits.float(), labels.to(device)).backward()
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in supernet.parameters()]
    return torch.cat([part.flatten().double().cpu() for part in parts])


def rows(device: torch.device, count: int, scored: list[str], trained: list[str]) -> Iterator[Row]:
    for name in scored:
        yield {"space": name, "image_size": SCORED[name]} | scores(name, SCORED[name], device, count)
    for name in trained:
        side, patch = TRAINED[name]
        yield {"space": name, "image_size": side} | gradients(name, side, patch, device, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--networks", type=int, default=8)
    parser.add_argument("--scored", nargs="*", default=list(SCORED), choices=list(SCORED), help="spaces")
    parser.add_argument("--trained", nargs="*", default=list(TRAINED), choices=list(TRAINED), help="spaces")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = pick_device(options.device)
    about = circumstances(device, options.commit) | {"command": command_line()}
    own = {key: about[key] for key in ("machine", "commit", "command")}
    name = f"device_agreement-{device.type}.json"
    path = options.out / name
    found: list[Row] = json.loads(path.read_text())["rows"] if path.exists() else []
    made: list[Row] = []
    for row in rows(device, options.networks, options.scored, options.trained):
        errors = ", ".join(f"{name} {error:.1e}" for name, error in row["errors"].items())
        print(f"{row['what']:9s} {row['space']:16s} {errors}{'' if row['close'] else '  TOO FAR'}", flush=True)
        made.append(row | own)
        found = [old for old in found if (old["what"], old["space"]) != (row["what"], row["space"])] + made[-1:]
        write(name, about | {"rows": found}, options.out)
    sys.exit(0 if all(row["close"] for row in made) else 1)


if __name__ == "__main__":
    main()
