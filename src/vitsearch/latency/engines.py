"""What runs a network: torch as it is, torch.compile, or ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import TypeAlias

import torch
from torch import Tensor, nn

from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError, require
from vitsearch.export.onnx_file import INPUT, ONNX, OUTPUT, require_onnx, write_onnx
from vitsearch.models.skeleton import copied
from vitsearch.registry import did_you_mean

Run: TypeAlias = Callable[[], object]
Engine: TypeAlias = Callable[[Tensor], Run]  # images to one forward pass of them, ready to go
NOT_NORMALISED = {"pretrained_cfg": {"mean": (0.0,), "std": (1.0,)}}  # a file that nobody keeps


def eager(network: nn.Module, geometry: Geometry, threads: int) -> Engine:
    return lambda images: _forward(network, images)


def compiled(network: nn.Module, geometry: Geometry, threads: int) -> Engine:
    """The whole network as one graph, for each batch size its own."""
    # with code of its own: torch keeps what it compiled with the code, eight networks at most, and then runs eagerly
    forward = MethodType(copied(type(network).forward), network)
    return lambda images: _forward(torch.compile(forward, dynamic=False), images)


def onnx(network: nn.Module, geometry: Geometry, threads: int) -> Engine:
    runtime = require("onnxruntime", extra="export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        write_onnx(network, geometry, NOT_NORMALISED, Path(folder))
        session = runtime.InferenceSession(str(Path(folder) / ONNX), options, providers=["CPUExecutionProvider"])

    def prepare(images: Tensor) -> Run:
        given = {INPUT: images.numpy()}
        return lambda: session.run([OUTPUT], given)

    return prepare


ENGINES: dict[str, Callable[[nn.Module, Geometry, int], Engine]] = {
    "eager": eager,
    "compile": compiled,
    "onnx": onnx,
}


def check_engine(name: str, device: torch.device) -> str:
    """What is missing is said before any work."""
    if name not in ENGINES:
        near = did_you_mean(name, list(ENGINES))
        raise VitsearchError(f"`engine` must be one of {', '.join(ENGINES)}, but got {name!r}.{near}")
    if name == "onnx":
        require_onnx()
        if device.type != "cpu":
            raise VitsearchError(f"`engine` onnx must go with `device` cpu, but got {device.type!r}")
    return name


def _forward(network: Callable[[Tensor], object], images: Tensor) -> Run:
    def run() -> None:
        with torch.inference_mode():
            network(images)

    return run
