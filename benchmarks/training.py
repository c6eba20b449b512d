"""How much of a bare training loop's speed does `vitsearch train` keep, with its data and everything around a step?

    python benchmarks/training.py --quick --json                 # under 50 s on two cores
    python benchmarks/training.py --device cuda --out benchmarks/results/training-h200.json --commit HASH

In one run, on the same network of timm (ViT-Tiny): the bare loop (one batch that lies on the device, forward, backward,
fused AdamW), and the trainer's own steps end to end, with images that are resident on the device and augmented there.
`speedup` is the trainer's speed over the bare loop's. Streaming rows decode JPEG files in worker processes; their
`speedup` is the speed over what the decoder alone does on as many cores.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from PIL import Image
from scoring import add_output_options, circumstances, keep_rows
from timm import create_model
from torch import Tensor, nn
from torch.nn import functional as F

from vitsearch.cost import Geometry
from vitsearch.data import Augmentation, Loader, train_loader
from vitsearch.environment import pick_device, usable_precision
from vitsearch.tasks import Classification
from vitsearch.training.distributed import World
from vitsearch.training.recipe import RECIPES, Recipe
from vitsearch.training.trainer import Trainer

Row = dict[str, Any]
SETTINGS = {
    "224": {"model": "vit_tiny_patch16_224", "side": 224, "patch": 16, "batch": 512, "classes": 1000},
    "32": {"model": "vit_tiny_patch16_224", "side": 32, "patch": 4, "batch": 2048, "classes": 10},
}
QUICK = {"32": {"model": "test_vit", "side": 32, "patch": 16, "batch": 64, "classes": 10}}
LIGHT = Augmentation(flip=0.5)
STRONG = RECIPES["deit"].augmentation
KINDS = (("crop-flip", LIGHT, False), ("deit", STRONG, True))
ROUNDS = 3


class SyntheticImages:
    """Seeded bytes of one size, as a dataset: what is in the images does not change the speed."""

    name, class_names, channels = "synthetic", None, 3
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)

    def __init__(self, count: int, side: int, classes: int) -> None:
        random = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=random)
        self.labels = torch.randint(classes, (count,), generator=random)
        self.classes = classes

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> Tensor:
        return self.pixels[index]

    def part(self, split: str) -> SyntheticImages:
        return self

    def draw(self, *_: Any) -> Any:
        raise NotImplementedError


class StreamedImages(SyntheticImages):
    """The same as JPEG files in memory, decoded at each read."""

    def __init__(self, count: int, side: int, classes: int) -> None:
        super().__init__(count, side, classes)
        self.files = [encoded(smooth(index, side)) for index in range(min(64, count))]

    def read(self, index: int) -> Tensor:
        return decoded(self.files[index % len(self.files)])


def smooth(index: int, side: int) -> Tensor:
    """Noise blown up from 1/16 of the side: compresses about as a photograph does."""
    small = torch.rand(1, 3, side // 16, side // 16, generator=torch.Generator().manual_seed(index))
    return (F.interpolate(small, size=(side, side), mode="bicubic").clamp(0, 1)[0] * 255).to(torch.uint8)


def encoded(pixels: Tensor) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def decoded(file: bytes) -> Tensor:
    image = Image.open(io.BytesIO(file)).convert("RGB")
    array = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return array.view(image.height, image.width, 3).permute(2, 0, 1)


def make_network(setting: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"img_size": setting["side"], "patch_size": setting["patch"], "num_classes": setting["classes"]}
    network: nn.Module = create_model(setting["model"], **sizes)
    return network


def recipe_of(setting: dict[str, Any], augmentation: Augmentation, mixing: bool, precision: str) -> Recipe:
    recipe = replace(RECIPES["deit"], batch_size=setting["batch"], image_size=setting["side"], epochs=1000)
    recipe = replace(recipe, augmentation=augmentation, drop_path=0.0, precision=precision)
    return recipe if mixing else replace(recipe, mixup=0.0, cutmix=0.0)


def seconds_of(device: torch.device, steps: int, one: Any) -> float:
    """Mean seconds of a step, after the device has done all before."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        one()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def bare_step(setting: dict[str, Any], device: torch.device, precision: str) -> Callable[[], None]:
    """Forward, backward and update on one batch that lies on the device."""
    network = make_network(setting).to(device).train()
    compiled = torch.compile(network, dynamic=False) if device.type == "cuda" else network
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    images = torch.randn(setting["batch"], 3, setting["side"], setting["side"], device=device)
    labels = torch.randint(setting["classes"], (setting["batch"],), device=device)
    dtype = getattr(torch, precision)

    def step() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = F.cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def make_trainer(setting: dict[str, Any], recipe: Recipe, loader: Loader, device: torch.device, folder: str) -> Trainer:
    trainer = Trainer(
        make_network(setting).to(device),
        Classification(recipe.label_smoothing).to(device),
        recipe,
        loader,
        None,
        classes=setting["classes"],
        seed=0,
        world=World(device=device),
        checkpoint=Path(folder) / "checkpoint.safetensors",
        journal=None,
        compiled=device.type == "cuda",
    )
    trainer.begin()
    return trainer


def whole_step(trainer: Trainer) -> Callable[[], None]:
    batches = trainer.loader.batches()

    def step() -> None:
        trainer.train_step(next(batches))
        if trainer.position.step % 50 == 0:
            trainer.look()

    return step


def in_turns(device: torch.device, warm: int, steps: int, works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of a step of each, measured in turns, so that noise hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        seconds_of(device, warm, work)
    for _ in range(ROUNDS):
        for name, work in works.items():
            times[name].append(seconds_of(device, steps, work))
    return {name: median(seconds) for name, seconds in times.items()}


def precision_on(device: torch.device) -> str:
    return usable_precision(device, "bfloat16") if device.type == "cuda" else "float32"


def resident(name: str, setting: dict[str, Any], device: torch.device, warm: int, steps: int) -> Iterator[Row]:
    precision = precision_on(device)
    stored = setting["side"] * 256 // 224 if setting["side"] >= 224 else setting["side"]
    images = SyntheticImages(4 * setting["batch"], stored, setting["classes"])
    geometry = Geometry(image_size=setting["side"], classes=setting["classes"])
    works: dict[str, Callable[[], object]] = {"bare": bare_step(setting, device, precision)}
    with tempfile.TemporaryDirectory() as folder:
        for kind, augmentation, mixing in KINDS:
            recipe = recipe_of(setting, augmentation, mixing, precision)
            loader = train_loader(
                images,
                dataset=images,
                geometry=geometry,
                augmentation=augmentation,
                batch_size=setting["batch"],
                seed=0,
                device=device,
                resident=True,
            )
            works[kind] = whole_step(make_trainer(setting, recipe, loader, device, folder))
            works[f"{kind}/data"] = partial(next, loader.batches())
        seconds = in_turns(device, warm, steps, works)
    yield row(f"baseline/bare-loop/vit-tiny/{name}", setting, seconds["bare"], steps, None, precision)
    for kind, *_ in KINDS:
        ratio = seconds["bare"] / seconds[kind]
        found = row(f"train/vit-tiny/{name}/{kind}", setting, seconds[kind], steps, ratio, precision)
        yield found | {"seconds_of_data_alone": seconds[f"{kind}/data"], "rounds": ROUNDS}


def decode_many(files: list[bytes], count: int) -> int:
    torch.set_num_threads(1)
    for index in range(count):
        decoded(files[index % len(files)])
    return count


def streaming(device: torch.device, workers: int, count: int, side: int) -> Iterator[Row]:
    """Batches of JPEG files through worker processes, beside the decoder alone on as many cores."""
    images = StreamedImages(count, side, 1000)
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(decode_many, [images.files] * workers, [4] * workers))
        start = time.perf_counter()
        list(pool.map(decode_many, [images.files] * workers, [count // workers] * workers))
        decoder = time.perf_counter() - start
    batch = 32
    loader = train_loader(
        images,
        dataset=images,
        geometry=Geometry(image_size=side * 7 // 8, classes=1000),
        augmentation=LIGHT,
        batch_size=batch,
        seed=0,
        device=device,
        resident=False,
        workers=workers,
    )
    batches = loader.batches()
    for _ in range(2 * workers):
        next(batches)  # what workers prepared ahead while they started
    steps = count // batch
    start = time.perf_counter()
    for _ in range(steps):
        next(batches)
    seconds = time.perf_counter() - start
    speed, alone = steps * batch / seconds, count / decoder
    about = {"workers": workers, "batch": batch, "steps": steps}
    per_core = {"images_per_second": speed, "images_per_second_per_core": speed / workers}
    yield {"name": f"streaming/jpeg/{side}", "seconds": seconds, "speedup": speed / alone} | about | per_core
    per_core = {"images_per_second": alone, "images_per_second_per_core": alone / workers}
    yield {"name": f"baseline/decoder/jpeg/{side}", "seconds": decoder, "speedup": None} | about | per_core


def row(name: str, setting: dict[str, Any], seconds: float, steps: int, speedup: float | None, precision: str) -> Row:
    speed = {"images_per_second": setting["batch"] / seconds, "seconds": seconds * steps, "speedup": speedup}
    return {"name": name} | speed | {"batch": setting["batch"], "steps": steps, "precision": precision}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="a small network on the CPU")
    parser.add_argument("--steps", type=int, default=50, help="of each of three rounds")
    parser.add_argument("--sizes", nargs="*", default=list(SETTINGS), choices=list(SETTINGS), help="image sizes")
    parser.add_argument("--workers", type=int, default=2)
    add_output_options(parser)
    options = parser.parse_args()
    device = pick_device("cpu" if options.quick and options.device == "auto" else options.device)

    def measured() -> Iterator[Row]:
        warm, steps = (3, 4) if options.quick else (20, options.steps)
        for name, setting in (QUICK if options.quick else {size: SETTINGS[size] for size in options.sizes}).items():
            yield from resident(name, setting, device, warm, steps)
        yield from streaming(device, options.workers, 256 if options.quick else 4096, 256)

    keep_rows(measured(), circumstances(device, options.commit), options, show)


def show(found: Row) -> None:
    ratio = f"{found['speedup']:6.3f} x" if found["speedup"] else ""
    print(f"{found['name']:40s} {found['images_per_second']:10.0f} images/s {ratio}", flush=True)


if __name__ == "__main__":
    main()
