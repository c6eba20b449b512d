"""`vitsearch export`: hand over what was found or trained.

vitsearch export run#best --format onnx --out best
vitsearch export trained --format torch --out single
"""

from __future__ import annotations

import json
import logging
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from vitsearch.arguments import choose_geometry, note_outside, read_architecture
from vitsearch.errors import VitsearchError
from vitsearch.options import NUMBER, ArchArgument, ClassesOption, ImageSizeOption, JsonOption, OutOption
from vitsearch.terminal import emit

log = logging.getLogger("vitsearch")


def export(
    arch: ArchArgument,
    out: OutOption,
    format: Annotated[
        str, typer.Option("--format", help="timm, onnx, or torch: one Python file without vitsearch and timm.")
    ] = "timm",
    image_size: ImageSizeOption = None,
    classes: ClassesOption = None,
    seed: Annotated[
        int | None, typer.Option("--seed", **NUMBER, help="Of the initial weights [0, or the study's].")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a network and its card to a folder, and check that it gives the same outputs there."""
    from vitsearch.export.write import check_format, check_out

    check_format(format)
    check_out(out)
    if format == "onnx":
        log.info("exporting to ONNX takes up to a second for each block")
    command = shlex.join(["vitsearch", "export", arch, "--format", format, "--out", str(out)])
    if (Path(arch) / "config.json").is_file():
        if (image_size, classes, seed) != (None, None, None):
            raise VitsearchError("`--image-size`, `--classes` and `--seed` must not be given for a trained network")
        from vitsearch.export import export_trained

        return report(export_trained(arch, out, format, command), as_json)
    given = read_architecture(arch)
    from vitsearch import export as exports

    used = given.seed if seed is None else seed
    geometry = choose_geometry(given.geometry, image_size, classes)
    done = exports.export(lambda: exports.untrained(given.settings, geometry, used), out, format, command)
    note_outside([given])
    if given.weights != "fresh":
        log.warning("note: the study scored slices of a supernet; what is written has fresh initial weights")
    report(done, as_json)


def report(done: Any, as_json: bool) -> None:
    geometry, seed = done.geometry, done.seed
    shown: dict[str, Any] = {"out": str(done.out), "format": done.format, "settings": done.settings}
    shown |= {"weights": done.weights, "seed": seed, "image_size": geometry.image_size, "classes": geometry.classes}
    shown |= {"params": done.cost.params, "macs": done.cost.macs, "max_difference": done.max_difference}
    if as_json:
        return emit(shown)
    how = f"untrained (seed {seed})" if done.weights == "initial" else done.weights
    print(
        f"{done.out}: {done.cost.params:,} parameters, {done.cost.macs:,} MACs, {how}; its card is {done.out}/README.md"
    )
    print(f"next: {use_of(done.format, str(done.out))}")


def use_of(format: str, out: str) -> str:
    """The command that loads what was written, for whatever a folder is called."""
    code = {
        "timm": f"import vitsearch.models, timm; timm.create_model({json.dumps(f'local-dir:{out}')}, pretrained=True)",
        "onnx": f"import onnxruntime; onnxruntime.InferenceSession({json.dumps(f'{out}/model.onnx')})",
        "torch": "import model; model.load()",
    }
    command = f"python -c {shlex.quote(code[format])}"
    return f"cd {shlex.quote(out)} && {command}" if format == "torch" else command
