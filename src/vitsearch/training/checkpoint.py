"""A checkpoint is one safetensors file: tensors by name, and in its header a JSON text with everything else.

Tensors: `network.*`, `task.*`, `average.*` (moving average), `optimizer.PARAMETER.STATE`, `group.NUMBER.STATE`. What
an optimizer keeps as plain numbers is in the header, under the same names, and comes back as plain numbers. One file is
written beside, synced and renamed, so that there is always a whole one. No random state is stored: the randomness of a
step comes from (seed, step, rank).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from vitsearch.architecture import brief
from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.records import parse_json, write_bytes_atomically

FORMAT = 1
SCHEDULED = ("params", "lr", "initial_lr")
"""What the schedule sets in an optimizer's groups, beside its hyperparameters, which are those of the recipe."""
Value = Tensor | int | float | None
"""What an optimizer may keep: bool is an int."""


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
    seconds: float = 0.0
    """Of all sittings so far, but for what a sitting did after its last checkpoint."""

    def __post_init__(self) -> None:
        counts = {"step": self.step, "retries": self.retries, "micro_batches": self.micro_batches}
        for name, value in (counts | {"scaled_steps": self.scaled_steps}).items():
            if type(value) is not int or value < 0:
                raise TypeError(f"`{name}` must be a whole number from 0 on, but got {brief(value)}")
        numbers = {"rate_factor": self.rate_factor, "loss_scale": self.loss_scale, "seconds": self.seconds}
        for name, factor in numbers.items():
            if not isinstance(factor, (int, float)) and (factor is not None or name != "loss_scale"):
                raise TypeError(f"`{name}` must be a number, but got {brief(factor)}")


def named_state(network: nn.Module, task: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, under the names they have in a checkpoint."""
    found = {f"network.{name}": parameter for name, parameter in network.named_parameters()}
    found |= {f"task.{name}": parameter for name, parameter in task.named_parameters()}
    return {name: parameter for name, parameter in found.items() if parameter.requires_grad}


class Checkpoint(NamedTuple):
    """`numbers` are those that an optimizer keeps beside its tensors."""

    tensors: dict[str, Tensor]
    position: Position
    numbers: dict[str, Value]


def optimizer_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Value]:
    """State by parameter name, as `torch.distributed.checkpoint.state_dict` flattens it; what steps left in groups."""
    found = {
        f"optimizer.{name}.{key}": value
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    for number, group in enumerate(optimizer.param_groups):
        found |= {f"group.{number}.{key}": group[key] for key in _counted(optimizer, group)}
    for name, value in found.items():
        if not isinstance(value, Value):
            kind = f"`{type(optimizer).__name__}` keeps a {type(value).__name__} as {name}"
            raise VitsearchError(f"an optimizer must keep tensors and numbers alone to be resumed, but {kind}")
    return found


def _counted(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> list[str]:
    """What steps have put into a group, such as their number; lists there are tables that are made again."""
    return [
        key
        for key, value in group.items()
        if key not in optimizer.defaults and key not in SCHEDULED and isinstance(value, Value)
    ]


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], state: Mapping[str, Value]
) -> None:
    """Fill the optimizer's state; what a fresh optimizer would hold where the checkpoint has none.

    A fused update does not look at shapes and reads on where a tensor ends, so they are compared here.
    """
    optimizer.state.clear()
    fused = bool(optimizer.defaults.get("fused"))
    for name, parameter in parameters.items():
        for key, value in _under(state, f"optimizer.{name}.").items():
            wanted = torch.Size() if key == "step" else parameter.shape
            if fused and (not isinstance(value, Tensor) or value.shape != wanted):
                got = list(value.shape) if isinstance(value, Tensor) else brief(value)
                raise BadStudy(f"optimizer.{name}.{key} must have the shape {list(wanted)}, but got {got}")
            optimizer.state[parameter][key] = _placed(key, value, parameter) if isinstance(value, Tensor) else value
    for number, group in enumerate(optimizer.param_groups):
        for key in _counted(optimizer, group):
            del group[key]
        for key, value in _under(state, f"group.{number}.").items():
            group[key] = value.clone() if isinstance(value, Tensor) else value


def _under(state: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _placed(key: str, value: Tensor, parameter: nn.Parameter) -> Tensor:
    """A copy where the parameter is, and laid out as it is, maybe channels last; steps are counted on the CPU."""
    if key == "step":
        return value.clone()
    if value.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
    return value.to(parameter.device).clone()


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], position: Position, state: Mapping[str, Value]) -> None:
    """`state` is an optimizer's."""
    numbers = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
    tensors = {**tensors, **{name: value for name, value in state.items() if isinstance(value, Tensor)}}
    header = {"format": FORMAT, "position": asdict(position), "numbers": numbers}
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    separate = {name: tensor.clone() if _shares(tensor) else tensor for name, tensor in plain.items()}
    write_bytes_atomically(path, save(separate, metadata={"vitsearch": json.dumps(header, allow_nan=False)}))


def _shares(tensor: Tensor) -> bool:
    """Whether a tensor is a part of a larger memory, which safetensors refuses."""
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()


def read_checkpoint(path: Path) -> Checkpoint:
    """All tensors on the CPU. A broken file is an error that says so."""
    try:
        with safe_open(path, framework="pt") as file:
            header = parse_json((file.metadata() or {}).get("vitsearch", "null"), str(path))
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise BadStudy(f"{path} must be a checkpoint of format {FORMAT}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if "meter" in tensors and tensors["meter"].shape == (2,):
                return Checkpoint(tensors, Position(**header["position"]), dict(header.get("numbers", {})))
            raise BadStudy(f"{path} must hold the meter of a training, two numbers")
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BadStudy(f"{path} is not a checkpoint that can be read: {error}") from None


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
