"""A network as one ONNX file with a free batch size."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError, require
from vitsearch.models import layers
from vitsearch.models.folder import class_names
from vitsearch.records import write_bytes_atomically

ONNX = "model.onnx"
INPUT, OUTPUT = "images", "logits"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def require_onnx() -> None:
    """Before any work is done."""
    for package in PACKAGES:
        require(package, extra="export")


def write_onnx(network: nn.Module, geometry: Geometry, config: dict[str, Any], folder: Path) -> None:
    """torch's exporter on a batch of two; the file holds settings, normalisation and names of classes as metadata."""
    require_onnx()
    import onnx

    traced = copy.deepcopy(network).cpu().eval().requires_grad_(False)
    for module in traced.modules():
        if isinstance(module, layers.WindowAttention):
            module.fused = False  # the exporter cannot take the fused kernel with a mask and a free batch apart
    side = geometry.image_size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program: Any = torch.onnx.export(
                traced,
                (torch.zeros(2, geometry.channels, side, side),),
                dynamo=True,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:  # a network of timm's may hold what ONNX has not
            reason = next(line for line in str(error).splitlines() if line.strip())
            raise VitsearchError(f"torch cannot export this network to ONNX: {reason}") from error
    proto = program.model_proto
    shown = config["pretrained_cfg"]
    facts = {"settings": (config.get("model_args") or {}).get("settings"), "mean": shown["mean"], "std": shown["std"]}
    if (names := class_names(config)) is not None:
        facts["class_names"] = names
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in facts.items()})
    write_bytes_atomically(folder / ONNX, proto.SerializeToString())


def run_onnx(folder: Path, images: Tensor) -> Tensor:
    """What ONNX Runtime makes of the file, on the CPU."""
    onnxruntime = require("onnxruntime", extra="export")
    session = onnxruntime.InferenceSession(str(folder / ONNX), providers=["CPUExecutionProvider"])
    (outputs,) = session.run([OUTPUT], {INPUT: images.numpy()})
    return torch.from_numpy(outputs)
