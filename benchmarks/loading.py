"""How long does one augmented batch take from a resident part?

    python benchmarks/loading.py --json                                            # small, on the CPU
    python benchmarks/loading.py --device cuda --out benchmarks/results/loading-h200.json --commit HASH

Random bytes stand for decoded images; decoding is not timed. `seconds` is the time of the kernels of a
batch, `host_seconds` what the CPU needs to decide and launch one.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitsearch.cost import Geometry
from vitsearch.data import Augmentation, train_loader

POLICY = "rand-m9-mstd0.5-inc1"


class Bytes:
    """Random images, as a dataset and its only part."""

    name = "bytes"
    classes = 10
    channels = 3
    class_names = None
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)

    def __init__(self, count: int, side: int) -> None:
        random = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=random)
        self.labels = torch.randint(10, (count,), generator=random)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> Tensor:
        return self.pixels[index]


def measure(name: str, batch: int, side: int, stored: int, augmentation: Augmentation, device: torch.device) -> Any:
    data: Any = Bytes(2 * batch, stored)
    loader = train_loader(
        data,
        dataset=data,
        geometry=Geometry(image_size=side, classes=10),
        augmentation=augmentation,
        batch_size=batch,
        seed=0,
        device=device,
        resident=True,
    )
    batches = loader.batches()
    repeats = 30 if device.type == "cuda" else 3
    for _ in range(repeats // 3):
        next(batches)
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(repeats):
            next(batches)
        seconds = host = (time.perf_counter() - began) / repeats
    else:
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(repeats):
                next(batches)
            torch.cuda.synchronize()
        seconds = sum(event.self_device_time_total for event in profile.key_averages()) / 1e6 / repeats
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            next(batches)
        host = (time.perf_counter() - began) / repeats
    return {"name": name, "batch": batch, "image_size": side, "seconds": seconds, "host_seconds": host, "speedup": None}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cpu")
    options.add_argument("--out", type=Path)
    options.add_argument("--json", action="store_true")
    options.add_argument("--commit", default="unknown")
    given = options.parse_args()
    device = torch.device(given.device)
    large = (512, 224, 256) if device.type == "cuda" else (8, 224, 256)
    small = (2048, 32, 32) if device.type == "cuda" else (64, 32, 32)
    rows = []
    for kind, options_of in (("crop-erase", {}), ("randaugment", {"rand_augment": POLICY})):
        resized = Augmentation(erase=0.25, **options_of)
        padded = Augmentation(crop="padded", erase=0.25, **options_of)
        rows.append(measure(f"loading/{kind}/224", *large, resized, device))
        rows.append(measure(f"loading/{kind}/32", *small, resized, device))
        rows.append(measure(f"loading/{kind}-padded/32", *small, padded, device))
    machine = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    rows = [row | {"device": device.type, "machine": machine, "commit": given.commit, "dirty": False} for row in rows]
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
