"""The machine that latencies hold for."""

from __future__ import annotations

import logging
import platform
from pathlib import Path
from typing import Any

import torch

from vitsearch.architecture import brief
from vitsearch.environment import describe_environment, pick_device
from vitsearch.errors import VitsearchError, require
from vitsearch.latency.model import LatencyModel

log = logging.getLogger("vitsearch")


def describe_machine(device: torch.device, threads: int, engine: str) -> dict[str, Any]:
    """Where times hold, with the processor's own name."""
    facts = describe_environment(device)
    del facts["plugins"], facts["timm"], facts["python"]
    if device.type == "cpu":
        facts["device_name"] = f"{processor()} {torch.backends.cpu.get_cpu_capability()}"
    if engine == "onnx":
        facts["onnxruntime"] = require("onnxruntime", extra="export").__version__
    return facts | {"threads": threads}


def processor(file: Path = Path("/proc/cpuinfo")) -> str:
    """Its name and, since different ones have the same name on rented machines, its family and model."""
    lines = file.read_text().splitlines() if file.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    numbers = [f"{word} {facts[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in facts]
    return " ".join([facts["model name"], *numbers])


def note_other_machine(model: LatencyModel) -> None:
    """A word where this is not the machine the latencies were measured on; a search may well run elsewhere."""
    there = model.environment
    try:
        here = describe_machine(pick_device(str(there["device"])), int(there["threads"]), model.engine)
    except VitsearchError as error:  # no such device, or no ONNX Runtime
        here = {"device_name": str(error)}
    for name in ("device_name", "torch", "onnxruntime"):
        if here.get(name, there.get(name)) != there.get(name):
            found = f"{name} {brief(there.get(name))}, here {brief(here[name])}"
            log.warning("note: latencies were measured elsewhere, and hold there: %s", found)
