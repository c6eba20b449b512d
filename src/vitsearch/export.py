"""Hand a network over: a folder that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads.

The reader needs `import vitsearch.models` first, so that timm knows `vitsearch_net`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch

from vitsearch.architecture import Settings, check_seed
from vitsearch.cost import IMAGENET, Cost, Geometry, architecture_cost
from vitsearch.data import open_training_data
from vitsearch.errors import VitsearchError
from vitsearch.models import VisionNetwork, build
from vitsearch.models.folder import timm_config, write_network
from vitsearch.records import new_folder
from vitsearch.spaces import canonical, decode
from vitsearch.training.supernet import read_supernet
from vitsearch.training.transfer import fit_weights, load_weights


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
    """Write settings as an untrained network with the initial weights of this seed, then load it back and compare."""
    path = Path(out)
    check_seed(seed)
    if os.path.lexists(path):
        raise VitsearchError(f"`out` must not exist yet, but got {str(path)!r}")
    spelled = canonical(settings)
    network = build(spelled, geometry, seed=seed)
    config = timm_config(spelled, geometry, {"weights": "initial", "seed": seed})
    return _write(network, spelled, geometry, config, path)


def _write(
    network: VisionNetwork, settings: Settings, geometry: Geometry, config: Mapping[str, Any], path: Path
) -> Exported:
    """The folder is filled in one step, or not there at all."""
    with new_folder(path):  # holds the name; the finished folder replaces it in one step
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            write_network(temporary, network.state_dict(), config)
            difference = check_export(network, temporary, geometry)
            os.chmod(temporary, 0o755)
            os.replace(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return Exported(
        out=path,
        settings=settings,
        geometry=geometry,
        cost=architecture_cost(decode(settings), geometry),
        max_difference=difference,
    )


def export_trained(folder: str | Path, out: str | Path) -> Exported:
    """Hand a finished training over: its network alone, loaded by timm and compared."""
    source, path = Path(folder), Path(out)
    if os.path.lexists(path):
        raise VitsearchError(f"`out` must not exist yet, but got {str(path)!r}")
    state, config = load_weights(source)
    settings = ((config or {}).get("model_args") or {}).get("settings")
    if config is None or not isinstance(settings, dict):
        raise VitsearchError(f"{source} must hold one of our networks; others are ready for timm as they are")
    try:
        channels, side, _ = config["pretrained_cfg"]["input_size"]
        geometry = Geometry(image_size=side, classes=config["num_classes"], channels=channels)
    except (KeyError, TypeError, ValueError) as error:
        raise VitsearchError(f"{source / 'config.json'} does not say its input and classes: {error}") from None
    network = build(settings, geometry, draw_weights=False)
    fit_weights(state, network)
    return _write(network, canonical(settings), geometry, config, path)


def export_subnet(folder: str | Path, settings: Mapping[str, Any], out: str | Path) -> Exported:
    """One network of a trained supernet, with the weights it inherits."""
    path = Path(out)
    if os.path.lexists(path):
        raise VitsearchError(f"`out` must not exist yet, but got {str(path)!r}")
    plan, supernet = read_supernet(folder)
    spelled = canonical(settings)
    data = open_training_data(plan.data)
    about = {"weights": "inherited", "supernet": str(folder), "data": plan.data, "seed": plan.seed}
    crop = plan.recipe.crop_percent
    config = timm_config(spelled, plan.geometry, about, mean=data.mean, std=data.std, crop_percent=crop)
    return _write(supernet.extract(decode(spelled)), spelled, plan.geometry, config, path)


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
