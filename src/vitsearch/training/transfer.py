"""Start from weights that are there: read them, and fit them into a network of another input or class count."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vitsearch.errors import VitsearchError
from vitsearch.models.folder import CONFIG, WEIGHTS
from vitsearch.models.resize import adapt_channels, resize_tables
from vitsearch.records import parse_json

WRAPPERS = ("model_ema", "state_dict_ema", "state_dict", "model")
"""Where training scripts keep the weights in a .pth file. Averaged weights come first, as timm has it."""
PREFIXES = ("module.", "_orig_mod.")
"""What DistributedDataParallel and torch.compile put before every name."""

State = dict[str, Tensor]


class Weights(NamedTuple):
    """`config` is what the folder says about the network, None for a bare file."""

    state: State
    config: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Names of tensors of the network, by where their values came from; `dropped` are of the weights instead."""

    copied: tuple[str, ...]
    resized: tuple[str, ...]
    """Position tables at another image size."""
    adapted: tuple[str, ...]
    """The first convolution, at another number of channels."""
    fresh: tuple[str, ...]
    """The classifier, where the class count differs: as the network had it."""
    dropped: tuple[str, ...]

    def __str__(self) -> str:
        """How many tensors there are of each, but for those of which there are none."""
        counts = {field.name: len(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def load_weights(path: str | Path) -> Weights:
    """From a folder with `config.json` and `model.safetensors`, a .safetensors file, or a .pth or .pt file.

    Nothing in a file is ever run: a .pth file may hold tensors and plain containers, no other objects.
    """
    place = Path(path)
    if place.is_dir():
        if not (place / CONFIG).is_file() or not (place / WEIGHTS).is_file():
            raise VitsearchError(f"`weights` must be a folder with {CONFIG} and {WEIGHTS}, but got {str(path)!r}")
        return Weights(_read_safetensors(place / WEIGHTS), _read_config(place / CONFIG))
    if not place.is_file():
        raise VitsearchError(f"`weights` must be an existing file or folder, but got {str(path)!r}")
    if place.suffix == ".safetensors":
        return Weights(_read_safetensors(place), None)
    if place.suffix in (".pth", ".pt"):
        return Weights(_read_pickled(place), None)
    raise VitsearchError(f"`weights` must be a folder, .safetensors, .pth or .pt, but got {str(path)!r}")


def _read_config(path: Path) -> dict[str, Any]:
    config = parse_json(path.read_bytes(), str(path))
    if not isinstance(config, dict):
        raise VitsearchError(f"{path} must hold a JSON object, but holds a {type(config).__name__}")
    return config


def _read_safetensors(path: Path) -> State:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise VitsearchError(f"`weights` must be readable safetensors, but got {str(path)!r}: {error}") from error


def _read_pickled(path: Path) -> State:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, KeyError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise VitsearchError(f"`weights` must hold tensors alone, but got {str(path)!r}: {reason}") from error
    found = content if isinstance(content, dict) else {}
    inner = next((found[key] for key in WRAPPERS if isinstance(found.get(key), dict)), found)
    if not inner or not all(isinstance(value, Tensor) for value in inner.values()):
        raise VitsearchError(
            f"`weights` must hold a state dict, bare or as one of {', '.join(WRAPPERS)}, but got {str(path)!r}"
        )
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in inner):
            inner = {name.removeprefix(prefix): value for name, value in inner.items()}
    return cast(State, dict(inner))


@torch.no_grad()
def fit_weights(state: Mapping[str, Tensor], network: nn.Module) -> Report:
    """Load the weights into the network, resized where its input differs.

    The classifier keeps the network's own initial values unless the class counts are equal. Any other difference is an
    error, and then the network is left as it was.
    """
    head = tuple(f"{name}." for name in classifier_names(network))
    target = network.state_dict()
    fitted = resize_tables(state, network)
    resized = {name for name in fitted if fitted[name] is not state[name]}
    adapted = _adapt_first(fitted, network)
    of_head = {name for name in target if name.startswith(head)} if head else set()
    keep_head = all(name in fitted and fitted[name].shape == target[name].shape for name in of_head)
    fresh = set() if keep_head else of_head
    dropped = {name for name in fitted if head and name.startswith(head) and (name in fresh or name not in target)}
    taken = {name: value for name, value in fitted.items() if name not in dropped}
    _check(taken, {name: value for name, value in target.items() if name not in fresh})
    network.load_state_dict(taken, strict=False)
    return Report(
        copied=tuple(name for name in taken if name not in resized | adapted),
        resized=tuple(sorted(resized)),
        adapted=tuple(sorted(adapted)),
        fresh=tuple(sorted(fresh)),
        dropped=tuple(sorted(dropped)),
    )


def classifier_names(network: nn.Module) -> tuple[str, ...]:
    """Where the network keeps its classifier; two in a distilled DeiT."""
    found = cast(Any, network).get_classifier()
    heads = tuple(found) if isinstance(found, (tuple, list, nn.ModuleList)) else (found,)
    return tuple(name for name, module in network.named_modules() if any(module is one for one in heads))


def _adapt_first(state: State, network: nn.Module) -> set[str]:
    """Fit the first convolution in place, when the channels and nothing else differ."""
    names = (f"{name}.weight" for name, module in network.named_modules() if isinstance(module, nn.Conv2d))
    name = next(names, None)
    if name is None or name not in state:
        return set()
    weight, wanted = state[name], network.get_parameter(name).shape
    same = weight.ndim == 4 and (weight.shape[0], *weight.shape[2:]) == (wanted[0], *wanted[2:])
    if not same or weight.shape[1] == wanted[1]:
        return set()
    state[name] = adapt_channels(weight, wanted[1])
    return {name}


def _check(state: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Every tensor has its place, and every place its tensor; the error lists what has not."""
    shapes = [
        f"{name} {list(value.shape)} instead of {list(target[name].shape)}"
        for name, value in state.items()
        if name in target and value.shape != target[name].shape
    ]
    problems = {
        "missing": [name for name in target if name not in state],
        "unexpected": [name for name in state if name not in target],
        "of another shape": shapes,
    }
    said = "; ".join(f"{what}: {_some(names)}" for what, names in problems.items() if names)
    if said:
        raise VitsearchError(f"`weights` must fit the network, but some are {said}")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
