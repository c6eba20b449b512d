"""The machine under a run: its device, its memory, and what must not change for a resumed run to be the same."""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch

from vitsearch import __version__
from vitsearch.architecture import brief
from vitsearch.errors import VitsearchError
from vitsearch.registry import loaded_plugins

log = logging.getLogger("vitsearch")
UNITS = {"bfloat16": ("avx512_bf16", "amx_bf16", "bf16"), "float16": ("avx512_fp16", "amx_fp16", "fp16_arith")}
"""What `torch.cpu.get_capabilities` calls a processor's units for products in half precision, on x86 and on ARM."""
OUT_OF_MEMORY = ("allocate memory", "out of memory", "ALLOC_FAILED")
"""In the plain RuntimeErrors of torch on the CPU, of CUDA, MPS and Triton, and of CUDA's libraries."""


def pick_device(name: str = "auto") -> torch.device:
    """`auto` takes CUDA, then MPS, then the CPU."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    if name not in available:
        raise VitsearchError(f"`device` must be one of auto, cpu, cuda, mps, but got {name!r}")
    if not available[name]:
        raise VitsearchError(f"`device` must be available here, but got {name!r} and torch sees none")
    return torch.device(name)


def free_memory(device: torch.device) -> int:
    """Bytes that are free for tensors on this device."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's own, to be reused
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    table = Path("/proc/meminfo")  # Linux: counts what the page cache would give back
    lines = table.read_text().splitlines() if table.exists() else []
    available = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return available[0] if available else 4 << 30


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch or Python ran out of memory; not only torch's own allocator for CUDA, which has a class for it."""
    known = isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError))
    return known or (isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY))


def processor_facts() -> Mapping[str, object]:
    """What torch knows of the processor; nothing, where this torch does not tell."""
    facts: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return facts


def made_by_amd() -> bool:
    """Whether the processor is one of AMD's."""
    return str(processor_facts().get("cpu_name", "")).startswith("AMD")


def usable_precision(device: torch.device, precision: str) -> str:
    """float32 in the place of a half precision that the device has no units for: slower by far, it would gain nothing.

    autoformer-tiny at 32 px trains at 9.7 images/s in float32 on two cores with AVX2 alone, and at 0.9 in bfloat16.
    """
    if device.type == "cuda" and precision == "bfloat16":
        has = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        facts = processor_facts() if device.type == "cpu" else {}
        told = [bool(facts[name]) for name in UNITS.get(precision, ()) if name in facts]
        has = not told or any(told)
    return precision if has else "float32"


def announce_precision(device: torch.device, precision: str, doing: str) -> None:
    """Say what takes its place where the device has no units for it."""
    usable = usable_precision(device, precision)
    if usable != precision:
        log.info("This device has no units for %s: %s in %s", precision, doing, usable)


def products_in(device: torch.device, precision: str) -> torch.autocast:
    """Matrix products in this precision, or in float32 where the device has no units for it."""
    dtype: torch.dtype = getattr(torch, usable_precision(device, precision))
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def describe_environment(device: torch.device) -> dict[str, Any]:
    """What must be the same for a resumed study to give the same numbers."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    if device.type == "cpu":
        words = {"bfloat16": torch.cpu._is_avx512_bf16_supported(), "AMD": made_by_amd()}  # which choose other products
        name = " ".join([name, torch.backends.cpu.get_cpu_capability(), *(word for word in words if words[word])])
    return {
        "vitsearch": __version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "device": device.type,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "plugins": loaded_plugins(),
    }


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """`torch 2.11 -> 2.12, ...`, or nothing."""
    changed = {key: (before.get(key), value) for key, value in now.items() if before.get(key) != value}
    return ", ".join(f"{key} {brief(old)} -> {brief(new)}" for key, (old, new) in changed.items())
