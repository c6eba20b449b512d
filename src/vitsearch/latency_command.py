"""`vitsearch latency` measures networks on this machine; `vitsearch fit-latency` predicts those of a whole space.

vitsearch latency run#best --timm deit_tiny_patch16_224 --engine eager,onnx --batch-size 1,8 --threads 2
vitsearch fit-latency autoformer-tiny --threads 1 --out latency.json
vitsearch search autoformer-tiny --latency latency.json --max-latency 60ms --out run
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from vitsearch.arguments import (
    Given,
    check_new_file,
    choose_geometry,
    note_outside,
    read_architectures,
    read_list,
    read_whole_list,
)
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.errors import VitsearchError
from vitsearch.options import (
    NUMBER,
    ArchArguments,
    ClassesOption,
    ImageSizeOption,
    JsonOption,
    PatchOption,
    RepeatsOption,
    SeedOption,
    SpaceArgument,
    ThreadsOption,
)
from vitsearch.spaces import find_space
from vitsearch.terminal import emit, progress_bar, show, summary

HostOption = Annotated[str, typer.Option("--device", help="cpu, cuda, mps, or auto.")]


def latency(
    arch: ArchArguments = None,
    timm: Annotated[list[str] | None, typer.Option("--timm", help="A model of timm, by name.")] = None,
    engine: Annotated[str, typer.Option("--engine", help="eager, compile, onnx, or several with commas.")] = "eager",
    batch_size: Annotated[str, typer.Option("--batch-size", help="Images at once, or several with commas.")] = "1",
    threads: ThreadsOption = None,
    device: HostOption = "cpu",
    image_size: ImageSizeOption = None,
    classes: ClassesOption = None,
    repeats: RepeatsOption = 30,
    as_json: JsonOption = False,
) -> None:
    """Measure networks on this machine: median and 95th percentile of runs in which all take turns."""
    engines, sizes = read_list("--engine", engine), read_whole_list("--batch-size", batch_size)
    if not arch and not timm:
        raise VitsearchError("`latency` needs an ARCH or --timm MODEL, but got neither")
    given, _ = read_architectures(arch or [])
    if not given and not timm:
        raise VitsearchError(f"`ARCH` must hold an architecture at least, but got none in {shlex.join(arch or [])}")
    from vitsearch.environment import pick_device
    from vitsearch.latency import check_engine, measure

    for name in engines:  # before networks are made
        check_engine(name, pick_device(device))
    names = [*(item.settings for item in given), *({"timm": name} for name in timm or [])]
    with progress_bar("measuring", 1) as tick:
        timings = measure(
            candidates(given, timm or [], image_size, classes),
            engines=engines,
            batch_sizes=sizes,
            threads=threads,
            device=device,
            repeats=repeats,
            progress=lambda done, total: tick(done, total),
        )
    note_outside(given)
    show_timings([timing_json(names[timing.candidate], timing) for timing in timings], as_json)


def candidates(given: Sequence[Given], models: Sequence[str], image_size: int | None, classes: int | None) -> list[Any]:
    """Networks with initial weights, ours first, then timm's at their own input size unless another is given."""
    from vitsearch.latency import Candidate, timm_candidate
    from vitsearch.models import build

    found = []
    for item in given:
        geometry = choose_geometry(item.geometry, image_size, classes)
        found.append(Candidate(network=build(item.settings, geometry, seed=item.seed), geometry=geometry))
    return found + [timm_candidate(name, image_size, classes) for name in models]


def timing_json(arch: dict[str, Any], timing: Any) -> dict[str, Any]:
    fields = ("engine", "device", "threads", "batch", "latency_ms", "p95_ms", "images_per_second")
    return {"arch": arch, **{name: getattr(timing, name) for name in fields}, "repeats": len(timing.seconds)}


def show_timings(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        return emit(rows)
    table = Table("architecture", "engine", "batch", "median ms", "95 % ms", "images/s")
    table.title = f"{rows[0]['device']}, {rows[0]['threads']} threads, {rows[0]['repeats']} runs"
    for row in rows:
        numbers = [f"{row[name]:.4g}" for name in ("latency_ms", "p95_ms", "images_per_second")]
        table.add_row(row["arch"].get("timm") or summary(row["arch"]), row["engine"], str(row["batch"]), *numbers)
    show(table)


def fit_latency(
    space: SpaceArgument,
    out: Annotated[Path, typer.Option("--out", help="A JSON file that does not exist yet.")],
    engine: Annotated[str, typer.Option("--engine", help="eager, compile or onnx.")] = "eager",
    batch_size: Annotated[int, typer.Option("--batch-size", **NUMBER, help="Images at once.")] = 1,
    threads: ThreadsOption = None,
    device: HostOption = "cpu",
    image_size: ImageSizeOption = None,
    classes: ClassesOption = None,
    patch_size: PatchOption = None,
    blocks: Annotated[int, typer.Option("--blocks", **NUMBER, help="Blocks to measure at most.")] = 48,
    networks: Annotated[int, typer.Option("--networks", **NUMBER, help="Whole networks for the scale.")] = 12,
    held_out: Annotated[int, typer.Option("--held-out", **NUMBER, help="Networks that only tell the error.")] = 20,
    repeats: RepeatsOption = 30,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Fit a predictor of latency for a whole space from measured blocks, for `search --latency FILE`."""
    found = find_space(space, patch_size)
    check_new_file("--out", out)
    from vitsearch import latency

    with progress_bar("measuring", 1) as tick:
        model = latency.fit_latency(
            found,
            geometry=choose_geometry(IMAGENET, image_size, classes),
            engine=engine,
            batch=batch_size,
            threads=threads,
            device=device,
            blocks=blocks,
            networks=networks,
            held_out=held_out,
            repeats=repeats,
            seed=seed,
            progress=lambda done, total: tick(done, total),
        )
    model.save(out)
    report_fit(model, model.geometry, out, as_json)


def report_fit(model: Any, geometry: Geometry, out: Path, as_json: bool) -> None:
    errors, where = model.errors, model.environment
    if as_json:
        shown = {"out": str(out), "space": model.space.name, "engine": model.engine, "batch": model.batch}
        shown |= {"image_size": geometry.image_size, "device": where["device"], "device_name": where["device_name"]}
        shown |= {"threads": where["threads"], "blocks": len(model.blocks), "errors": errors}
        return emit(shown)
    print(f"{out}: {model.space.name}, {model.engine}, batch {model.batch}, {where['threads']} threads")
    print(
        f"error on {errors['networks']} networks that were not fitted on: median {errors['median']:.1%}, "
        f"95th percentile {errors['p95']:.1%} (a line over MACs: median {errors['macs_median']:.1%})"
    )
    times = sorted(one.measured_ms for one in model.held_out)
    print(f"they take from {times[0]:.3g} to {times[-1]:.3g} ms")
    words = shlex.join(["vitsearch", "search", model.space.name, "--latency", str(out)])
    print(f"next: {words} --max-latency {times[len(times) // 2]:.3g}ms ...")
