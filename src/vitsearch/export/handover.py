"""A network that is to be handed over, with what is known of it: untrained, trained, or cut from a supernet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from vitsearch.architecture import Settings, check_seed
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.data import open_training_data
from vitsearch.errors import VitsearchError
from vitsearch.models import VisionNetwork, build
from vitsearch.models.folder import CONFIG, timm_config
from vitsearch.spaces import canonical, decode
from vitsearch.training.calibration import calibrated, calibration_batches
from vitsearch.training.plan import RESULT, STUDY, TrainingPlan, read_plan, read_result
from vitsearch.training.supernet import read_supernet
from vitsearch.training.transfer import fit_weights, load_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """`config` is what timm reads; its part `vitsearch` says how the weights came to be. In evaluation mode."""

    network: nn.Module
    settings: Settings | None
    """None for a network of timm's own."""
    geometry: Geometry
    config: dict[str, Any]
    plan: TrainingPlan | None = None
    """Of the training that made the weights, where its folder is at hand."""
    result: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Machine and versions of that training."""

    @property
    def ours(self) -> VisionNetwork:
        if not isinstance(self.network, VisionNetwork):
            raise VitsearchError("`format` torch is for the networks of our spaces; timm's own have timm or onnx")
        return self.network


def untrained(settings: Mapping[str, Any], geometry: Geometry = IMAGENET, seed: int = 0) -> Handover:
    """With the initial weights of this seed."""
    check_seed(seed)
    spelled = canonical(settings)
    return Handover(
        network=build(spelled, geometry, seed=seed),
        settings=spelled,
        geometry=geometry,
        config=timm_config(spelled, geometry, {"weights": "initial", "seed": seed}),
    )


def trained(folder: str | Path) -> Handover:
    """The network of a finished training, or of a folder that timm loads."""
    source = Path(folder)
    state, config = load_weights(source)
    if config is None or "architecture" not in config:
        raise VitsearchError(f"{source} must hold a network: a {CONFIG} that names it, beside its weights")
    geometry = _geometry(source, config)
    settings = (config.get("model_args") or {}).get("settings")
    network: nn.Module
    if isinstance(settings, dict):
        settings = canonical(settings)
        network = build(settings, geometry, draw_weights=False)
        fit_weights(state, network)
    else:
        settings, network = None, timm.create_model(f"local-dir:{source}", pretrained=True).eval()
    about: dict[str, Any] = {}
    if (source / STUDY).is_file():
        plan, environments = read_plan(source)
        about = {"plan": plan, "environment": environments[-1]}
    if (source / RESULT).is_file():
        about["result"] = read_result(source)
    return Handover(network=network, settings=settings, geometry=geometry, config=config, **about)


def _geometry(source: Path, config: Mapping[str, Any]) -> Geometry:
    try:
        shown = config["pretrained_cfg"]
        _ = [*map(float, shown["mean"]), *map(float, shown["std"])]
        return Geometry.of_config(config)
    except (KeyError, TypeError, ValueError) as error:
        raise VitsearchError(f"{source / CONFIG} does not say its input, classes and normalisation: {error}") from None


def inherited(folder: str | Path, settings: Mapping[str, Any]) -> Handover:
    """One network of a trained supernet, with the weights it inherits."""
    plan, supernet = read_supernet(folder)
    spelled = canonical(settings)
    data = open_training_data(plan.data)
    about = {"weights": "inherited", "supernet": str(folder), "data": plan.data, "seed": plan.seed}
    shown: dict[str, Any] = {"mean": data.mean, "std": data.std, "crop_percent": plan.recipe.crop_percent}
    calibration = calibration_batches(supernet, plan, data, torch.device("cpu"))
    return Handover(
        network=calibrated(supernet, decode(spelled), calibration, plan.recipe.precision),
        settings=spelled,
        geometry=plan.geometry,
        config=timm_config(spelled, plan.geometry, about, class_names=data.class_names, **shown),
        plan=plan,
        environment=read_plan(Path(folder))[1][-1],
    )
