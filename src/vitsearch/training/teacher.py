"""A frozen network that another one learns from, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitsearch.models  # noqa: F401  registers our networks with timm
from vitsearch.errors import VitsearchError
from vitsearch.registry import did_you_mean
from vitsearch.training.transfer import classifier_names, fit_weights, load_weights

STAGES = 3
MODES = ("eval", "train")


class Seen(NamedTuple):
    """What a network makes of a batch: logits [B, K], maps [B, C, h, w] by the student's block or teacher's stage."""

    logits: Tensor
    maps: dict[int, Tensor]


class Teacher(nn.Module):
    """Gives logits and the maps of the last three stages, without gradients, at an image size of its own.

    A network that cannot give maps, as some of timm's, teaches its logits alone; then `widths` is empty.

    `mode` is what it runs in while the student trains: `eval`, or `train` for batch statistics and moving averages that
    go on. Checkpoints hold its running statistics and not its weights, which never change.

    In `eval` it looks at a batch once, however many students there are: those of a supernet's step see the same one.
    """

    def __init__(self, network: nn.Module, image_size: int, mode: str = "eval") -> None:
        super().__init__()
        self.network = network.requires_grad_(False)
        self.image_size = image_size
        self.mode = mode
        self.widths = [int(stage["num_chs"]) for stage in features(network)[-STAGES:]]
        self._last: tuple[Tensor, object, Seen] | None = None
        self.register_state_dict_post_hook(leave_weights_out)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(put_weights_back)  # type: ignore[no-untyped-call]
        self.train(False)

    def train(self, mode: bool = True) -> Teacher:
        super().train(mode)
        self.network.train(mode and self.mode == "train")
        self._last = None
        return self

    def forward(self, images: Tensor) -> Seen:
        if self.network.training or torch.compiler.is_compiling() or images.is_inference():
            return self.look(images)
        state = state_of(images)
        if self._last is None or self._last[1] != state:
            self._last = None  # its memory is needed
            self._last = images, state, self.look(images)  # held, so that no other batch comes to the same place
        return self._last[2]

    @torch.no_grad()
    def look(self, images: Tensor) -> Seen:
        size = (self.image_size, self.image_size)
        if tuple(images.shape[2:]) != size:
            images = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
        if images.is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)
        network: Any = self.network
        if not self.widths:
            return Seen(network(images), {})
        final, maps = network.forward_intermediates(images, indices=len(self.widths), output_fmt="NCHW")
        return Seen(network.forward_head(final), dict(enumerate(maps)))


def state_of(images: Tensor) -> object:
    """Different for any two batches that are there at the same time, and when one is written into."""
    kind = images.device.type
    precision = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return images.device, images.data_ptr(), images.shape, images.stride(), images.dtype, images._version, precision


def features(network: nn.Module) -> list[Mapping[str, Any]]:
    """What timm's networks say about the maps that `forward_intermediates` gives; nothing where it does not exist."""
    info: Any = getattr(network, "feature_info", []) if hasattr(network, "forward_intermediates") else []
    return list(getattr(info, "info", info))


def leave_weights_out(teacher: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
    for name, _parameter in teacher.named_parameters():
        state.pop(f"{prefix}{name}", None)


def put_weights_back(teacher: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    for name, parameter in teacher.named_parameters():
        state.setdefault(f"{prefix}{name}", parameter.detach())


def open_teacher(text: str, *, classes: int | None, channels: int, device: torch.device) -> Teacher:
    """A teacher from `FOLDER` (config.json and model.safetensors) or `timm:NAME@FILE`. Nothing is fetched.

    Without `classes` any number of them will do.
    """
    network = _from_timm(text, channels) if text.startswith("timm:") else _from_folder(text)
    found: Any = network
    if classes is not None and found.num_classes != classes:
        raise VitsearchError(
            f"`teacher` must have the {classes} classes of the data for logits, but {text!r} has {found.num_classes}"
        )
    stem = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    if stem.in_channels != channels:
        raise VitsearchError(
            f"`teacher` must take the {channels} channels of the data, but {text!r} takes {stem.in_channels}"
        )
    return Teacher(on_device(network, device), int(found.pretrained_cfg["input_size"][-1])).to(device)


def weights_of_teacher(text: str) -> str:
    """The file or the folder that holds them."""
    return text.removeprefix("timm:").partition("@")[2] if text.startswith("timm:") else text


def on_device(network: nn.Module, device: torch.device) -> nn.Module:
    """There, channels last on a GPU, as cuDNN wants half-precision convolutions."""
    network = network.to(device)
    return network.to(memory_format=torch.channels_last) if device.type == "cuda" else network


def _from_folder(text: str) -> nn.Module:
    if not Path(text).is_dir():
        raise VitsearchError(f"`teacher` must be a folder or timm:NAME@FILE, but got {text!r}")
    state, config = load_weights(text)
    assert config is not None
    try:
        network: nn.Module = timm.create_model(f"local-dir:{text}", pretrained=False)
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        raise VitsearchError(f"`teacher` must be a network that timm can build, but got {text!r}: {error}") from error
    _load_exactly(state, network, text)
    return network


def _from_timm(text: str, channels: int) -> nn.Module:
    name, _, file = text.removeprefix("timm:").partition("@")
    if not timm.is_model(name):
        near = did_you_mean(name, timm.list_models())
        raise VitsearchError(f"`teacher` must name a network of timm, but got {name!r}.{near}")
    if not file:
        raise VitsearchError(f"`teacher` must say where its weights are, as timm:{name}@FILE, but got {text!r}")
    state, _config = load_weights(file)
    network: Any = timm.create_model(name, pretrained=False, in_chans=channels)
    head = state.get(f"{classifier_names(network)[0]}.weight")
    if head is not None and len(head) != network.num_classes:
        network.reset_classifier(len(head))
    _load_exactly(state, network, text)
    found: nn.Module = network
    return found


def _load_exactly(state: dict[str, Tensor], network: nn.Module, text: str) -> None:
    """A teacher is what it was trained as: no table resized, no classifier drawn anew."""
    report = fit_weights(state, network)
    changed = report.resized + report.adapted + report.fresh
    if changed:
        raise VitsearchError(f"`teacher` {text!r} must have weights of its own size, but {changed[0]} is of another")
