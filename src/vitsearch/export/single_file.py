"""A network as one Python file in plain torch, with its weights beside it: no vitsearch, no timm."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitsearch import __version__
from vitsearch import architecture as blueprint
from vitsearch.architecture import Architecture, Stage
from vitsearch.cost import Geometry
from vitsearch.export import plain
from vitsearch.models import VisionNetwork
from vitsearch.models.folder import WEIGHTS, class_names, write_weights
from vitsearch.records import write_atomically

MODULE = "model.py"
HEADER = '''"""A {kind} in plain torch, written by vitsearch {version}.

import torch, model
network = model.load()                     # with {weights}, which lies beside this file
logits = network(torch.zeros(1, {channels}, {side}, {side}))  # [1, {classes}]
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

MEAN, STD = {mean}, {std}  # images are numbers from 0 to 1, less MEAN, over STD
'''
FOOTER = '''

def load(weights: str | Path = Path(__file__).with_name("{weights}")) -> Network:
    """The network with these weights, in evaluation mode."""
    network = Network()
    network.load_state_dict(load_file(weights))
    return network.eval()
'''
FORWARD = """
    def forward(self, x: Tensor) -> Tensor:
{resize}        for index, stage in enumerate(self.stages):
            x = self.embed(stage.entry(x)) if index == 0 else stage.entry(x)
            for block in stage.blocks:
                x = block(x)
        return self.head({readout})

    def embed(self, x: Tensor) -> Tensor:
{embed}        return x
"""
RESIZE = '        x = F.interpolate(x, size=({side}, {side}), mode="bilinear", antialias={smaller})\n'
POSITION = "        x = x + self.pos_embed\n"
CLASS_TOKEN = "        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)\n"


def _attention(block: blueprint.Attention, width: int, side: int, eps: float, late_token: bool) -> str:
    more = f", distance={block.relative_distance}" if block.relative_distance else ""
    more += f", scale_width={width // block.heads}" if block.scale == "embed" else ""
    layer = f"Attention({width}, heads={block.heads}, head_dim={block.head_dim}, side={side}{more})"
    kind = (", layer_scale=True" if block.layer_scale else "") + (", late_token=True" if late_token else "")
    return f"Block({layer}, {width}, hidden={block.hidden}, norm_eps={eps!r}{kind})"


def _class_attention(block: blueprint.ClassAttention, width: int, side: int, eps: float, late_token: bool) -> str:
    layer = f"ClassAttention({width}, heads={block.heads}, head_dim={block.head_dim})"
    return f"ClassBlock({layer}, {width}, hidden={block.hidden}, norm_eps={eps!r})"


def _window_attention(block: blueprint.WindowAttention, width: int, side: int, eps: float, late_token: bool) -> str:
    window, shift, _ = block.on(side)
    size = f"side={side}, window={window}, shift={shift}"
    layer = f"WindowAttention({width}, heads={block.heads}, head_dim={block.head_dim}, {size})"
    return f"Block({layer}, {width}, hidden={block.hidden}, norm_eps={eps!r})"


def _inverted_residual(block: blueprint.InvertedResidual, width: int, side: int, eps: float, late_token: bool) -> str:
    size = f"side={side}, expansion={block.expansion}, kernel={block.kernel}"
    return f"Inverted({width}, {width}, {size}, stride=1, norm_eps={eps!r}, residual=True)"


def _absent(block: blueprint.Absent, width: int, side: int, eps: float, late_token: bool) -> str:
    return "nn.Identity()"


def _patch(entry: blueprint.Patch, before: int, width: int, side: int, eps: float, token: bool) -> str:
    norm = f", norm_eps={eps!r}" if entry.norm else ""
    return f"PatchEmbed({before}, {width}, size={entry.size}, stride={entry.stride}{norm})"


def _pool(entry: blueprint.Pool, before: int, width: int, side: int, eps: float, token: bool) -> str:
    return f"Pooling({before}, {width}, side={side}, class_token={token})"


def _merge(entry: blueprint.Merge, before: int, width: int, side: int, eps: float, token: bool) -> str:
    return f"Merging({before}, {width}, side={side}, norm_eps={eps!r})"


def _convolution(entry: blueprint.Convolution, before: int, width: int, side: int, eps: float, token: bool) -> str:
    size = f"side={side}, kernel={entry.kernel}, stride={entry.stride}"
    return f"Convolution({before}, {width}, {size}, norm_eps={eps!r})"


def _bottleneck(entry: blueprint.Bottleneck, before: int, width: int, side: int, eps: float, token: bool) -> str:
    size = f"side={side}, expansion={entry.expansion}, kernel={entry.kernel}, stride={entry.stride}"
    return f"Inverted({before}, {width}, {size}, norm_eps={eps!r})"


BLOCK_TEXTS: dict[type[Any], Callable[..., str]] = {
    blueprint.Attention: _attention,
    blueprint.ClassAttention: _class_attention,
    blueprint.WindowAttention: _window_attention,
    blueprint.InvertedResidual: _inverted_residual,
    blueprint.Absent: _absent,
}
ENTRY_TEXTS: dict[type[Any], Callable[..., str]] = {
    blueprint.Patch: _patch,
    blueprint.Pool: _pool,
    blueprint.Merge: _merge,
    blueprint.Convolution: _convolution,
    blueprint.Bottleneck: _bottleneck,
}
LAYERS: tuple[type[nn.Module], ...] = (
    plain.PatchEmbed,
    plain.Pooling,
    plain.Merging,
    plain.Convolution,
    plain.Inverted,
    plain.RelativePosition,
    plain.Attention,
    plain.WindowAttention,
    plain.ClassAttention,
    plain.Mlp,
    plain.LayerScale,
    plain.Block,
    plain.ClassBlock,
    plain.Stage,
)


def source_of(
    architecture: Architecture,
    geometry: Geometry,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    names: list[str] | None = None,
) -> str:
    """The file: a header, the layers that this network has, and the network, block by block."""
    network = _network(architecture, geometry)
    needed: list[str] = []
    for layer in reversed(LAYERS):
        text = inspect.getsource(layer)
        if any(f"{layer.__name__}(" in user for user in (network, *needed)):
            needed.insert(0, text)
    header = HEADER.format(
        version=__version__,
        kind="vision transformer" if architecture.final_norm else "convolutional network",
        weights=WEIGHTS,
        channels=geometry.channels,
        side=geometry.image_size,
        classes=geometry.classes,
        mean=mean,
        std=std,
    )
    header += "" if names is None else f"CLASSES = {names!r}  # of the outputs, in their order\n"
    return "\n\n".join([header, *needed, network]) + FOOTER.format(weights=WEIGHTS)


def _network(architecture: Architecture, geometry: Geometry) -> str:
    first, last = architecture.stages[0].width, architecture.stages[-1].width
    sides, prefix = architecture.sides(geometry.image_size), int(architecture.class_token)
    lines = ["class Network(nn.Module):", "    def __init__(self) -> None:", "        super().__init__()"]
    if prefix:
        lines.append(f"        self.cls_token = nn.Parameter(torch.zeros(1, 1, {first}))")
    if architecture.position != "none":
        covered = sides[0] ** 2 + (prefix if architecture.position == "all" else 0)
        lines.append(f"        self.pos_embed = nn.Parameter(torch.zeros(1, {covered}, {first}))")
    lines.append("        stages: list[nn.Module] = []")
    before, before_side = geometry.channels, architecture.resolution or geometry.image_size
    resize = ""
    if before_side != geometry.image_size:
        resize = RESIZE.format(side=before_side, smaller=geometry.image_size > before_side)
    for stage, side in zip(architecture.stages, sides, strict=True):
        lines += _stage(stage, before, before_side, side, architecture)
        before, before_side = stage.width, side
    lines += ["        self.stages = nn.ModuleList(stages)"]
    if architecture.final_norm:
        lines += [f"        self.norm = nn.LayerNorm({last}, eps={architecture.norm_eps!r})"]
    lines += [f"        self.head = nn.Linear({last}, {geometry.classes})"]
    normed = "self.norm(x)" if architecture.final_norm else "x"
    tokens = f"{normed}[:, {prefix}:].mean(1)" if architecture.readout == "mean" else f"{normed}[:, 0]"
    steps = {"none": [], "patches": [POSITION], "all": []}[architecture.position]
    steps += [CLASS_TOKEN] if prefix else []
    steps += [POSITION] if architecture.position == "all" else []
    return "\n".join(lines) + "\n" + FORWARD.format(resize=resize, readout=tokens, embed="".join(steps))


def _stage(stage: Stage, before: int, before_side: int, side: int, architecture: Architecture) -> list[str]:
    eps, token = architecture.norm_eps, architecture.class_token
    entry = ENTRY_TEXTS[type(stage.entry)](stage.entry, before, stage.width, before_side, eps, token)
    late = architecture.late_token
    blocks = [BLOCK_TEXTS[type(block)](block, stage.width, side, eps, late) for block in stage.blocks]
    return [
        f"        entry = {entry}",
        "        blocks = [",
        *(f"            {block}," for block in blocks),
        "        ]",
        "        stages.append(Stage(entry, blocks))",
    ]


def write_single_file(network: VisionNetwork, geometry: Geometry, config: dict[str, Any], folder: Path) -> None:
    shown = config["pretrained_cfg"]
    text = source_of(network.architecture, geometry, tuple(shown["mean"]), tuple(shown["std"]), class_names(config))
    write_weights(folder, network.state_dict())
    write_atomically(folder / MODULE, text)


class Uncached(SourceFileLoader):
    """Leaves no __pycache__ beside the file."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        return


def run_single_file(folder: Path, images: Tensor) -> Tensor:
    """Outputs of the network in the folder: the file that this package has just written is imported and called."""
    loader = Uncached("vitsearch_single_file", str(folder / MODULE))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    outputs: Tensor = module.load()(images)
    return outputs
