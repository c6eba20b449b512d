"""A network as a folder that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry
from vitsearch.records import write_atomically, write_bytes_atomically
from vitsearch.spaces import decode

CONFIG, WEIGHTS, LABELS = "config.json", "model.safetensors", "label_names"
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def timm_config(
    settings: Settings,
    geometry: Geometry,
    about: Mapping[str, Any],
    *,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    crop_percent: float = 0.875,
    class_names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """What timm reads of one of our networks, and under `vitsearch` how the weights came to be."""
    parts = {"first_conv": "stages.0.entry.proj", "classifier": "head"}
    preprocessing = _preprocessing(geometry, mean, std, crop_percent)
    return {
        "architecture": "vitsearch_net",
        "num_classes": geometry.classes,
        **_labels(class_names),
        "num_features": decode(settings).stages[-1].width,
        "model_args": {"settings": settings},
        "pretrained_cfg": {"tag": _tag(about)} | preprocessing | {"fixed_input_size": True} | parts,
        "vitsearch": dict(about),
    }


def foreign_config(
    model: str,
    network: Any,
    geometry: Geometry,
    about: Mapping[str, Any],
    *,
    mean: Sequence[float],
    std: Sequence[float],
    crop_percent: float,
    class_names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The same for a network of timm's own."""
    before = {name: value for name, value in (network.pretrained_cfg or {}).items() if name in KEPT}
    preprocessing = _preprocessing(geometry, mean, std, crop_percent)
    return {
        "architecture": model.partition(".")[0],
        "num_classes": geometry.classes,
        **_labels(class_names),
        "num_features": network.num_features,
        "model_args": {"img_size": geometry.image_size} if hasattr(network, "patch_embed") else {},
        "pretrained_cfg": {"tag": _tag(about)} | before | preprocessing,
        "vitsearch": dict(about),
    }


KEPT = ("first_conv", "classifier", "fixed_input_size", "license")


def _labels(names: Sequence[str] | None) -> dict[str, Any]:
    """What timm takes for `network.pretrained_cfg["label_names"]`; nothing where the data has no names."""
    return {} if names is None else {LABELS: list(names)}


def class_names(config: Mapping[str, Any]) -> list[str] | None:
    """Of the outputs, in their order; None where a folder does not name them all."""
    found = config.get(LABELS)
    if not isinstance(found, list) or len(found) != config.get("num_classes"):
        return None
    return [str(name) for name in found]


def _tag(about: Mapping[str, Any]) -> str:
    return "untrained" if about["weights"] == "initial" else "trained"


def _preprocessing(
    geometry: Geometry, mean: Sequence[float], std: Sequence[float], crop_percent: float
) -> dict[str, Any]:
    return {
        "num_classes": geometry.classes,
        "input_size": [geometry.channels, geometry.image_size, geometry.image_size],
        "pool_size": None,
        "crop_pct": crop_percent,
        "interpolation": "bicubic",
        "mean": list(mean),
        "std": list(std),
    }


def write_network(folder: Path, state: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Weights first, so that a folder with a config has its weights; each file whole or not there."""
    write_weights(folder, state)
    write_atomically(folder / CONFIG, json.dumps(config, indent=2, allow_nan=False) + "\n")


def write_weights(folder: Path, state: Mapping[str, Tensor]) -> None:
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    write_bytes_atomically(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
