"""Write a network in one of the formats, compare its outputs with the original's, and put the folder in place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor

from vitsearch.architecture import Settings
from vitsearch.cost import IMAGENET, Cost, Geometry
from vitsearch.errors import VitsearchError
from vitsearch.export.card import CARD, model_card, size_of
from vitsearch.export.handover import Handover, inherited, trained, untrained
from vitsearch.export.onnx_file import require_onnx, run_onnx, write_onnx
from vitsearch.export.single_file import run_single_file, write_single_file
from vitsearch.models.folder import write_network
from vitsearch.records import new_folder, write_atomically
from vitsearch.registry import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    write: Callable[[Handover, Path], None]
    run: Callable[[Path, Tensor], Tensor]
    """Outputs of what lies in the folder."""
    tolerance: float
    """How far outputs may be from the original's, for each unit of the largest."""
    prepare: Callable[[], None] = lambda: None
    """What is missing is said before any work."""


def _write_timm(handover: Handover, folder: Path) -> None:
    write_network(folder, handover.network.state_dict(), handover.config)


def _run_timm(folder: Path, images: Tensor) -> Tensor:
    outputs: Tensor = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(images)
    return outputs


FORMATS = {
    "timm": Format(write=_write_timm, run=_run_timm, tolerance=1e-5),
    "onnx": Format(
        write=lambda handover, folder: write_onnx(handover.network, handover.geometry, handover.config, folder),
        run=run_onnx,
        tolerance=1e-4,
        prepare=require_onnx,
    ),
    "torch": Format(
        write=lambda handover, folder: write_single_file(handover.ours, handover.geometry, handover.config, folder),
        run=run_single_file,
        tolerance=1e-4,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    out: Path
    format: str
    settings: Settings | None
    geometry: Geometry
    cost: Cost
    weights: str
    """`initial`, `trained` or `inherited`."""
    seed: int | None
    """Of initial weights."""
    max_difference: float
    """Largest difference between the outputs of the network and of what was read back from the folder."""


def check_format(name: str) -> Format:
    if name not in FORMATS:
        raise VitsearchError(
            f"`--format` must be one of {', '.join(FORMATS)}, but got {name!r}.{did_you_mean(name, list(FORMATS))}"
        )
    FORMATS[name].prepare()
    return FORMATS[name]


def check_out(out: str | Path) -> Path:
    if os.path.lexists(out):
        raise VitsearchError(f"`out` must not exist yet, but got {str(out)!r}")
    return Path(out)


def export(find: Callable[[], Handover], out: str | Path, format: str = "timm", command: str | None = None) -> Exported:
    """A folder with the network and its card, filled in one step or not there at all.

    `find` gives the network; it is asked when format and folder are known to be good.
    """
    chosen, path = check_format(format), check_out(out)
    handover = find()
    with new_folder(path):  # holds the name; the finished folder replaces it in one step
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            chosen.write(handover, temporary)
            difference = check_export(handover, chosen, temporary)
            write_atomically(temporary / CARD, model_card(handover, format, difference, command))
            os.chmod(temporary, 0o755)
            os.replace(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return Exported(
        out=path,
        format=format,
        settings=handover.settings,
        geometry=handover.geometry,
        cost=size_of(handover),
        weights=weights_of(handover),
        seed=handover.config["vitsearch"].get("seed") if weights_of(handover) == "initial" else None,
        max_difference=difference,
    )


def weights_of(handover: Handover) -> str:
    return str((handover.config.get("vitsearch") or {}).get("weights", "trained"))


@torch.no_grad()
def check_export(handover: Handover, chosen: Format, folder: Path) -> float:
    """Largest output difference on seeded noise; an error if it is more than another order of sums explains."""
    geometry = handover.geometry
    side = geometry.image_size
    images = torch.randn(3, geometry.channels, side, side, generator=torch.Generator().manual_seed(0))
    expected = handover.network(images)
    difference = float((expected - chosen.run(folder, images)).abs().max())
    if not difference <= chosen.tolerance * max(1.0, float(expected.abs().max())):
        raise VitsearchError(f"the exported network must give the same outputs, but they differ by {difference}")
    return difference


def export_timm(
    settings: Mapping[str, Any], out: str | Path, *, geometry: Geometry = IMAGENET, seed: int = 0
) -> Exported:
    """Write settings as an untrained network with the initial weights of this seed, then load it back and compare."""
    return export(lambda: untrained(settings, geometry, seed), out)


def export_trained(folder: str | Path, out: str | Path, format: str = "timm", command: str | None = None) -> Exported:
    """Hand a finished training over: its network alone, loaded back and compared."""
    return export(lambda: trained(folder), out, format, command)


def export_subnet(folder: str | Path, settings: Mapping[str, Any], out: str | Path) -> Exported:
    """One network of a trained supernet, with the weights it inherits."""
    return export(lambda: inherited(folder, settings), out)
