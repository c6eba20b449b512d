"""A checkpoint is one safetensors file: tensors by name, and in its header a JSON text with everything else.

Tensors: `network.*`, `task.*`, `average.*` (moving average), `optimizer.PARAMETER.STATE`. One file is written beside,
synced and renamed, so that there is always a whole one. No random state is stored: the randomness of a step comes from
(seed, step, rank).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from vitsearch.errors import BadStudy
from vitsearch.records import parse_json, write_bytes_atomically

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a training is, and what it had to change on the way."""

    step: int = 0
    rate_factor: float = 1.0
    """Halves each time the loss was not finite."""
    retries: int = 0
    micro_batches: int = 1
    """Into how many a batch is cut; doubles when memory runs out."""
    loss_scale: float | None = None
    """Of float16; it grows after enough steps in a row without overflow, of which `scaled_steps` are past."""
    scaled_steps: int = 0


def named_state(network: nn.Module, task: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, under the names they have in a checkpoint."""
    found = {f"network.{name}": parameter for name, parameter in network.named_parameters()}
    found |= {f"task.{name}": parameter for name, parameter in task.named_parameters()}
    return {name: parameter for name, parameter in found.items() if parameter.requires_grad}


def optimizer_tensors(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """State by parameter name, as `torch.distributed.checkpoint.state_dict` flattens it."""
    return {
        f"optimizer.{name}.{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]
) -> None:
    """Fill the optimizer's state; what a fresh optimizer would hold where the checkpoint has none."""
    optimizer.state.clear()
    for name, parameter in parameters.items():
        prefix = f"optimizer.{name}."
        found = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        for key, value in found.items():
            if value.shape == parameter.shape and key != "step":  # laid out as the parameter, maybe channels last
                optimizer.state[parameter][key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
            else:
                on_device = value if key == "step" else value.to(parameter.device)
                optimizer.state[parameter][key] = on_device.clone()


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], position: Position, about: Mapping[str, Any]) -> None:
    header = {"format": FORMAT, "position": asdict(position), **about}
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    separate = {name: tensor.clone() if _shares(tensor) else tensor for name, tensor in plain.items()}
    write_bytes_atomically(path, save(separate, metadata={"vitsearch": json.dumps(header, allow_nan=False)}))


def _shares(tensor: Tensor) -> bool:
    """Whether a tensor is a part of a larger memory, which safetensors refuses."""
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], Position]:
    """All tensors on the CPU. A broken file is an error that says so."""
    try:
        with safe_open(path, framework="pt") as file:
            header = parse_json((file.metadata() or {}).get("vitsearch", "null"), str(path))
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise BadStudy(f"{path} must be a checkpoint of format {FORMAT}")
            return {name: file.get_tensor(name) for name in file.keys()}, Position(**header["position"])  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError) as error:
        raise BadStudy(f"{path} is not a checkpoint that can be read: {error}") from None


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def checkpoint_exists(folder: Path) -> bool:
    return os.path.lexists(folder / "checkpoint.safetensors")
