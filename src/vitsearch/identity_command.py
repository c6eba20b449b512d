"""`vitsearch identity`: how often slots must be empty so that the networks a supernet trains fit a budget on average.

vitsearch identity vitas --max-macs 1G
vitsearch identity vitas --image-size 32 --classes 10 --patch-size 2,4,8 --min-throughput 20000
"""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from vitsearch.arguments import choose_geometry, read_limits, read_rate, refuse
from vitsearch.cost import IMAGENET, Geometry, Limits
from vitsearch.errors import VitsearchError
from vitsearch.options import (
    NUMBER,
    ClassesOption,
    DeviceOption,
    ImageSizeOption,
    JsonOption,
    MaxMacs,
    MaxParams,
    PatchOption,
    SeedOption,
    SpaceArgument,
)
from vitsearch.spaces import Space, find_space, patch_words
from vitsearch.terminal import emit, progress_bar


def identity(
    space: SpaceArgument,
    max_params: MaxParams = None,
    max_macs: MaxMacs = None,
    min_throughput: Annotated[
        str | None, typer.Option("--min-throughput", help="Images/s, measured on this machine, such as 20k.")
    ] = None,
    samples: Annotated[int | None, typer.Option("--samples", **NUMBER, help="Networks to measure [1000].")] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", **NUMBER, help="Images at once when measuring [256].")
    ] = None,
    image_size: ImageSizeOption = None,
    classes: ClassesOption = None,
    patch_size: PatchOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """The identity probability at which networks cost, on average, what the budget says (ViTAS)."""
    found = find_space(space, patch_size)
    geometry = choose_geometry(IMAGENET, image_size, classes)
    limits = read_limits(None, max_params, None, max_macs)
    target = read_rate("--min-throughput", min_throughput)
    if (target is not None) + len(limits.bounds()) != 1:
        raise VitsearchError("exactly one of `--max-params`, `--max-macs`, `--min-throughput` must be given")
    if target is None:
        refuse("a budget that is solved for", {"samples": samples, "batch-size": batch_size})
        shown = solve(found, limits, geometry)
    else:
        shown = measure(found, target, geometry, samples, batch_size, seed, device)
    if as_json:
        return emit(shown)
    print(f"identity probability {shown['probability']:.6f}: on average {describe(shown)}")
    words = ["vitsearch", "supernet", "train", space, "--subnets", f"identity:probability={shown['probability']:.6f}"]
    words += ["--recipe", "vitas-weak"]
    words += [] if image_size is None else ["--image-size", str(image_size)]
    print(f"next: {shlex.join([*words, *patch_words(space, found.fixed())])} --out run")


def solve(space: Space, limits: Limits, geometry: Geometry) -> dict[str, Any]:
    from vitsearch.spaces.identity import identity_probability, reach

    probability, ends = identity_probability(space, limits, geometry), reach(space, geometry)
    mean = ends.at(float(probability))
    shown: dict[str, Any] = {"probability": float(probability)}
    shown |= {"mean_params": float(mean.params), "mean_macs": float(mean.macs)}
    for kind in ("params", "macs"):
        shown[f"reachable_{kind}"] = [float(getattr(ends.least, kind)), float(getattr(ends.most, kind))]
    return shown


def measure(
    space: Space,
    target: float,
    geometry: Geometry,
    samples: int | None,
    batch_size: int | None,
    seed: int,
    device: str,
) -> dict[str, Any]:
    from vitsearch.environment import pick_device
    from vitsearch.throughput import BATCH, SAMPLES, Stopwatch, identity_for_throughput

    samples, batch_size = SAMPLES if samples is None else samples, BATCH if batch_size is None else batch_size
    watch = Stopwatch(geometry=geometry, batch_size=batch_size, device=pick_device(device))
    with progress_bar("measuring", 1) as tick:
        found = identity_for_throughput(space, target, watch, samples=samples, seed=seed, progress=tick)
    shown: dict[str, Any] = {"probability": found.probability, "interval": [found.low, found.high]}
    shown |= {"interval_95": [found.low_95, found.high_95]}
    shown |= {"images_per_second": found.images_per_second, "standard_error": found.standard_error}
    return shown | {"samples": found.samples, "batch_size": batch_size, "device": str(watch.device)}


def describe(shown: dict[str, Any]) -> str:
    if "mean_macs" in shown:
        return f"{shown['mean_params']:,.0f} parameters, {shown['mean_macs']:,.0f} MACs"
    low, high = shown["interval_95"]
    speed = f"{shown['images_per_second']:,.0f} +- {shown['standard_error']:,.0f} images/s"
    return (
        f"{speed} over {shown['samples']} networks; with others the probability may be {low:.4f} to {high:.4f} (95 %)"
    )
