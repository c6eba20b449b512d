"""How fast does a supernet train, and how fast are its networks evaluated?

    python benchmarks/supernet.py --quick --json                 # under 50 s on two cores
    python benchmarks/supernet.py --device cuda --out benchmarks/results/supernet-h200.json --commit HASH

In one run, on the same supernet (AutoFormer-Tiny with relative position): the trainer's own steps end to end, a network
drawn for each, with images that are resident on the device; the same steps on one batch (`compute_only`); evaluation
of networks drawn at random. The reference is what the published code does: uncompiled, every matrix product of the
relative position spelt out. `speedup` is the speed over the reference's. `baseline/` rows are one fixed network
of timm, compiled as a whole. Each layer is compiled when its shape first occurs, before the clock starts; the row says
how long that took.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from scoring import add_output_options, circumstances, keep_rows, peak_memory, reset_peak_memory
from torch import Tensor

from training import LIGHT, SyntheticImages, bare_step, precision_on, recipe_of, seconds_of
from vitsearch.architecture import Architecture
from vitsearch.cost import Geometry
from vitsearch.data import train_loader
from vitsearch.environment import pick_device
from vitsearch.models.supernet import Supernet
from vitsearch.spaces import SPACES, Space
from vitsearch.tasks import Classification
from vitsearch.training.distributed import World
from vitsearch.training.supernet import SupernetTrainer

Row = dict[str, Any]
SPACE = "autoformer-tiny"
SETTINGS = {
    "224": {"model": "vit_tiny_patch16_224", "side": 224, "patch": 16, "batch": 512, "classes": 1000},
    "32": {"model": "vit_tiny_patch16_224", "side": 32, "patch": 4, "batch": 4096, "classes": 10},
}
QUICK = {"32": {"model": "test_vit", "side": 32, "patch": 16, "batch": 16, "classes": 10}}
ROUNDS = 3
LOOKS = 50
"""So many networks are evaluated at least, in runs that are not quick."""
KINDS = {"train": "supernet-train", "evaluate": "supernet-eval"}


def make_trainer(
    setting: dict[str, Any], space: Space, device: torch.device, folder: str, published: bool = False
) -> SupernetTrainer:
    """`published`: as the published code has it."""
    geometry = Geometry(image_size=setting["side"], classes=setting["classes"])
    precision = precision_on(device)
    recipe = recipe_of(setting, LIGHT, False, precision)
    stored = setting["side"] * 256 // 224 if setting["side"] >= 224 else setting["side"]
    images = SyntheticImages(4 * setting["batch"], stored, setting["classes"])
    loader = train_loader(
        images,
        dataset=images,
        geometry=geometry,
        augmentation=LIGHT,
        batch_size=setting["batch"],
        seed=0,
        device=device,
        resident=True,
    )
    trainer = SupernetTrainer(
        Supernet(space, geometry, seed=0).to(device),
        Classification(recipe.label_smoothing).to(device),
        recipe,
        loader,
        None,
        scheme="uniform",
        classes=setting["classes"],
        seed=0,
        world=World(device=device),
        checkpoint=Path(folder) / "checkpoint.safetensors",
        journal=None,
        compiled=device.type == "cuda" and not published,
    )
    if published:
        trainer.network.set_fused_attention(False)
    trainer.begin()
    return trainer


def all_shapes(space: Space) -> list[Architecture]:
    """A few networks that together have every shape of a layer."""
    knobs = {knob.name: knob.choices for knob in space.knobs}
    pairs = [(heads, ratio) for heads in knobs["num_heads"] for ratio in knobs["mlp_ratio"]]
    depth = max(knobs["depth"])
    chosen = [pairs[number % len(pairs)] for number in range(depth)]
    each = {"num_heads": [heads for heads, _ in chosen], "mlp_ratio": [ratio for _, ratio in chosen]}
    return [space.decode(space.settings(embed_dim=width, depth=depth, **each)) for width in knobs["embed_dim"]]


def measured(setting: dict[str, Any], name: str, device: torch.device, steps: int, looks: int) -> Iterator[Row]:
    space = SPACES[SPACE].with_patch_size(setting["patch"])
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(setting, space, device, folder, published=True)
        few = max(2, steps // 10)
        reference = timed(trainer, device, few, few, rounds=1)
        yield from rows_of(name, setting, reference, before="reference/")
        ours = timed(make_trainer(setting, space, device, folder), device, steps, looks, rounds=ROUNDS)
    for row, key in zip(rows_of(name, setting, ours), KINDS, strict=True):
        yield row | {"speedup": reference[key] / ours[key]}


def timed(trainer: SupernetTrainer, device: torch.device, steps: int, looks: int, rounds: int) -> Row:
    """Seconds of a step end to end, of a step on one batch, and of an evaluation of one batch; `looks` of these."""
    supernet = trainer.network
    batches = trainer.loader.batches()
    fixed = next(batches)
    start = time.perf_counter()
    for architecture in all_shapes(trainer.space):
        trainer.add_gradients(*fixed, 1, architecture)
        look(supernet, fixed.images, architecture)
    trainer.train_step(next(batches))
    seconds_of(device, 1, lambda: trainer.train_step(next(batches)))
    compiling = time.perf_counter() - start
    reset_peak_memory(device)
    begun = trainer.position.step
    chosen = [trainer.scheme.choose(trainer.space, 1, number)[0] for number in range(looks)]
    networks = [trainer.space.decode(settings) for settings in chosen]
    times: dict[str, list[float]] = {"train": [], "compute_only": [], "evaluate": []}
    for _ in range(rounds):  # in turns, so that noise hits all alike
        coming = iter(networks)
        times["train"].append(seconds_of(device, steps, lambda: trainer.train_step(next(batches))))
        times["compute_only"].append(seconds_of(device, steps, lambda: trainer.train_step(fixed)))
        evaluate = partial(look_at_next, supernet, fixed.images, coming)
        times["evaluate"].append(seconds_of(device, looks, evaluate))
    found: Row = {kind: median(seconds) for kind, seconds in times.items()}
    steps_done = range(begun, trainer.position.step)
    trained = {json.dumps(trainer.scheme.choose(trainer.space, trainer.seed, step)[0]) for step in steps_done}
    distinct = {"train": len(trained), "evaluate": len({network.key() for network in networks})}
    found |= {
        "steps": {"train": steps, "evaluate": looks},
        "architectures": distinct,
        "peak_memory_bytes": peak_memory(device),
    }
    return found | {"compiling_seconds": compiling, "precision": trainer.recipe.precision}


@torch.no_grad()
def look(supernet: Supernet, images: Tensor, architecture: Architecture) -> None:
    training = supernet.training
    supernet.eval()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
        supernet(images, architecture)
    supernet.train(training)


def look_at_next(supernet: Supernet, images: Tensor, coming: Iterator[Architecture]) -> None:
    look(supernet, images, next(coming))


def rows_of(name: str, setting: dict[str, Any], found: Row, before: str = "") -> Iterator[Row]:
    common = {"batch": setting["batch"], "precision": found["precision"], "speedup": None}
    common |= {key: found[key] for key in ("compiling_seconds", "peak_memory_bytes")}
    for key, kind in KINDS.items():
        seconds, steps = found[key], found["steps"][key]
        row = {"name": f"{before}{kind}/{SPACE}/{name}", "images_per_second": setting["batch"] / seconds} | common
        row |= {"steps": steps, "seconds": seconds * steps, "architectures": found["architectures"][key]}
        if key == "train":
            row |= {"compute_only_images_per_second": setting["batch"] / found["compute_only"]}
            row |= {"end_to_end_ratio": found["compute_only"] / seconds}
        yield row


def baseline(setting: dict[str, Any], name: str, device: torch.device, steps: int) -> Row:
    precision = precision_on(device)
    step = bare_step(setting, device, precision)
    seconds_of(device, 5, step)
    seconds = seconds_of(device, steps, step)
    speed = {"images_per_second": setting["batch"] / seconds, "seconds": seconds * steps, "speedup": None}
    return {"name": f"baseline/bare-loop/vit-tiny/{name}", "batch": setting["batch"], "steps": steps} | speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="small images on the CPU")
    parser.add_argument("--steps", type=int, default=60, help="of each of three rounds")
    parser.add_argument("--sizes", nargs="*", default=list(SETTINGS), choices=list(SETTINGS), help="image sizes")
    parser.add_argument("--batch", type=int, help="in place of 512 and 4096")
    add_output_options(parser)
    options = parser.parse_args()
    device = pick_device("cpu" if options.quick and options.device == "auto" else options.device)

    def rows() -> Iterator[Row]:
        steps = 4 if options.quick else options.steps
        for name, setting in (QUICK if options.quick else {size: SETTINGS[size] for size in options.sizes}).items():
            changed = setting | ({"batch": options.batch} if options.batch else {})
            yield from measured(changed, name, device, steps, steps if options.quick else max(steps, LOOKS))
            yield baseline(changed, name, device, steps)

    keep_rows(rows(), circumstances(device, options.commit), options, show)


def show(found: Row) -> None:
    ratio = f"{found['speedup']:6.2f} x" if found["speedup"] else ""
    print(f"{found['name']:44s} {found['images_per_second']:10.0f} images/s {ratio}", flush=True)


if __name__ == "__main__":
    main()
