"""Hand a network over: a folder that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads.

The reader needs `import vitsearch.models` first, so that timm knows `vitsearch_net`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from vitsearch.architecture import Settings, check_seed
from vitsearch.cost import IMAGENET, Cost, Geometry, architecture_cost
from vitsearch.errors import VitsearchError
from vitsearch.models import VisionNetwork, build
from vitsearch.records import new_folder, write_atomically
from vitsearch.spaces import canonical, decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    out: Path
    settings: Settings
    geometry: Geometry
    cost: Cost
    max_difference: float
    """Largest difference between the outputs of the network and of the one timm loaded back from the folder."""


def export_timm(
    settings: Mapping[str, Any],
    out: str | Path,
    *,
    geometry: Geometry = IMAGENET,
    seed: int = 0,
) -> Exported:
    """Write settings as an untrained network with the initial weights of this seed, then load it back and compare.

    The folder is filled in one step, or not there at all.
    """
    path = Path(out)
    check_seed(seed)
    if os.path.lexists(path):
        raise VitsearchError(f"`out` must not exist yet, but got {str(path)!r}")
    spelled = canonical(settings)
    network = build(spelled, geometry, seed=seed)
    with new_folder(path):  # holds the name; the finished folder replaces it in one step
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            config = json.dumps(timm_config(spelled, geometry, seed), indent=2)
            write_atomically(temporary / "config.json", config + "\n")
            save_file(network.state_dict(), temporary / "model.safetensors", metadata={"format": "pt"})
            difference = check_export(network, temporary, geometry)
            os.chmod(temporary, 0o755)
            os.replace(temporary, path)
        except SafetensorError as error:
            raise VitsearchError(f"cannot write {path / 'model.safetensors'}: {error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return Exported(
        out=path,
        settings=spelled,
        geometry=geometry,
        cost=architecture_cost(decode(spelled), geometry),
        max_difference=difference,
    )


def timm_config(settings: Settings, geometry: Geometry, seed: int) -> dict[str, Any]:
    """What timm reads, and how the weights came to be."""
    side = geometry.image_size
    return {
        "architecture": "vitsearch_net",
        "num_classes": geometry.classes,
        "num_features": decode(settings).stages[-1].width,
        "model_args": {"settings": settings},
        "pretrained_cfg": {
            "tag": "untrained",
            "num_classes": geometry.classes,
            "input_size": [geometry.channels, side, side],
            "fixed_input_size": True,
            "pool_size": None,
            "crop_pct": 0.875,
            "interpolation": "bicubic",
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
            "first_conv": "stages.0.entry.proj",
            "classifier": "head",
        },
        "vitsearch": {"weights": "initial", "seed": seed},
    }


def check_export(network: VisionNetwork, folder: Path, geometry: Geometry) -> float:
    """Largest output difference on seeded noise; an error if it is more than another memory layout explains."""
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    side = geometry.image_size
    images = torch.randn(2, geometry.channels, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = network(images)
        difference = float((expected - loaded(images)).abs().max())
    if not difference <= 1e-5 * max(1.0, float(expected.abs().max())):
        raise VitsearchError(f"the exported network must give the same outputs, but they differ by {difference}")
    return difference
