"""From blueprint to network: one builder for every space, one class that timm knows as `vitsearch_net`.

import timm, vitsearch.models
network = timm.create_model("vitsearch_net", settings={"space": "autoformer-tiny", ...}, img_size=224)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, cast

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from timm.models._manipulate import checkpoint
from torch import Tensor, nn

from vitsearch import architecture as blueprint
from vitsearch.architecture import Architecture
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.errors import BadSettings
from vitsearch.models import builders, class_attention, layers
from vitsearch.models.convolution import as_map, resized
from vitsearch.models.initialise import initialise
from vitsearch.models.resize import resize_tables
from vitsearch.models.skeleton import COMPILED, Skeletons, kept_paths
from vitsearch.spaces import decode

__all__ = ["VisionNetwork", "build", "vitsearch_net"]


class NetworkStage(nn.Module):
    def __init__(self, entry: nn.Module, blocks: list[nn.Module], side: int, late_token: bool = False) -> None:
        super().__init__()
        self.entry = entry
        self.blocks = nn.ModuleList(blocks)
        self.side, self.late_token = side, late_token
        self.skeletons: Skeletons | None = None

    def run(self, number: int, x: Tensor, plan: blueprint.Stage, eps: float, drops: bool) -> Tensor:
        """Block `number`; before class attention, without the class token."""
        if self.late_token and isinstance(plan.blocks[number], blueprint.Attention):
            return torch.cat([x[:, :1], self._run(number, x[:, 1:], plan, eps, drops)], 1)
        return self._run(number, x, plan, eps, drops)

    def _run(self, number: int, x: Tensor, plan: blueprint.Stage, eps: float, drops: bool) -> Tensor:
        """Compiled where `skeletons` are there."""
        block, kind = self.blocks[number], plan.blocks[number]
        if self.skeletons is None or isinstance(kind, blueprint.Absent | blueprint.InvertedResidual):
            return cast(Tensor, block(x))  # BatchNorm knows training from evaluation, and a skeleton does not
        factors = kept_paths(x, getattr(block.drop_path1, "drop_prob", 0.0)) if drops else []
        return self.skeletons.get(kind, drops, plan.width, self.side, eps, 0.0)(block, x, factors)


class VisionNetwork(nn.Module):
    """A blueprint as a module, with the methods that timm's models have. Input: [B, in_chans, img_size, img_size]."""

    def __init__(
        self,
        architecture: Architecture,
        img_size: int | tuple[int, int] = IMAGENET.image_size,
        num_classes: int = IMAGENET.classes,
        in_chans: int = IMAGENET.channels,
        global_pool: Literal["", "avg", "token"] | None = None,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        generator: torch.Generator | None = None,
        draw_weights: bool = True,
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.image_size = _square(img_size)
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.global_pool = "avg" if architecture.readout == "mean" else "token"
        self.grad_checkpointing = False
        self.drop_path_rate = drop_path_rate
        first, last = architecture.stages[0].width, architecture.stages[-1].width
        self.num_features = self.head_hidden_size = self.embed_dim = last
        self.num_prefix_tokens = int(architecture.class_token)
        self.cls_token = nn.Parameter(torch.empty(1, 1, first)) if architecture.class_token else None
        self.stages = nn.ModuleList(_stages(architecture, self.image_size, in_chans, drop_path_rate))
        self.pos_embed = self._position_table(first)
        self.norm: nn.Module = nn.Identity()
        if architecture.final_norm:
            self.norm = nn.LayerNorm(last, eps=architecture.norm_eps)
        self.head_drop = nn.Dropout(drop_rate)
        self.head: nn.Module = nn.Identity()
        self.reset_classifier(num_classes, global_pool, initial=False)
        self.feature_info = feature_info(architecture, self.image_size)
        if draw_weights:
            initialise(self, architecture.initialisation, generator)

    @property
    def grid_size(self) -> tuple[int, int]:
        """Patches down and across in the first stage: what the position table covers."""
        side = self._stages()[0].side
        return side, side

    def _position_table(self, width: int) -> nn.Parameter | None:
        if self.architecture.position == "none":
            return None
        extra = self.num_prefix_tokens if self.architecture.position == "all" else 0
        return nn.Parameter(torch.empty(1, math.prod(self.grid_size) + extra, width))

    def _embed(self, x: Tensor) -> Tensor:
        return embed(x, self.cls_token, self.pos_embed)

    def _checked(self, x: Tensor) -> Tensor:
        """Images as they must come, in the size that the first entry takes."""
        check_input(x, self.in_chans, self.image_size)
        return resized(x, self.architecture.resolution)

    def _trace(self, x: Tensor) -> Tensor:
        x = self._checked(x)
        for index, stage in enumerate(self._stages()):
            x = stage.entry(x) if index else self._embed(stage.entry(x))
            for number in range(len(stage.blocks)):
                x = self._run(index, number, x)
        return x

    def _stages(self) -> list[NetworkStage]:
        return cast(list[NetworkStage], list(self.stages))

    def _run(self, index: int, number: int, x: Tensor) -> Tensor:
        drops = self.training and self.drop_path_rate > 0
        plan, eps = self.architecture.stages[index], self.architecture.norm_eps
        run = partial(self._stages()[index].run, number, plan=plan, eps=eps, drops=drops)
        return cast(Tensor, checkpoint(run, x)) if self.grad_checkpointing else run(x)

    def compile_layers(self, skeletons: Skeletons | None = COMPILED) -> None:
        """Blocks of equal shape are compiled once, in all networks of this process together.

        It takes seconds where `compile` takes a minute, and stochastic depth draws what it draws uncompiled. None: no
        longer.
        """
        for stage in self._stages():
            stage.skeletons = skeletons

    def forward_features(self, x: Tensor) -> Tensor:
        """All tokens after the final norm: [B, S, C]."""
        return cast(Tensor, self.norm(self._trace(x)))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(pool(x, self.global_pool, self.num_prefix_tokens))
        return x if pre_logits else cast(Tensor, self.head(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Outputs of chosen blocks (counted over all stages, absent ones too), as timm's transformers give them."""
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"`output_fmt` must be NCHW or NLC, but got {output_fmt!r}")
        wanted, last = feature_take_indices(sum(len(stage.blocks) for stage in self._stages()), indices)
        x = self._checked(x)
        number, found = -1, []
        for index, stage in enumerate(self._stages()):
            if stop_early and number >= last:
                break
            x = stage.entry(x) if index else self._embed(stage.entry(x))
            for place in range(len(stage.blocks)):
                x, number = self._run(index, place, x), number + 1
                if number in wanted:
                    found.append(self._intermediate(self._norm_if_last(x) if norm else x, stage.side, output_fmt))
                if stop_early and number >= last:
                    break
        maps = [pair if return_prefix_tokens and self.num_prefix_tokens else pair[0] for pair in found]
        return maps if intermediates_only else (self._norm_if_last(x), maps)

    def _norm_if_last(self, x: Tensor) -> Tensor:
        """The final norm, where it fits: earlier stages may be narrower."""
        return cast(Tensor, self.norm(x)) if x.shape[-1] == self.num_features else x

    def _intermediate(self, x: Tensor, side: int, output_fmt: str) -> tuple[Tensor, Tensor]:
        prefix, patches = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
        return as_map(patches, side) if output_fmt == "NCHW" else patches, prefix

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the blocks after the last wanted one, for `features_only`."""
        wanted, last = feature_take_indices(sum(len(stage.blocks) for stage in self._stages()), indices)
        start = 0
        for stage in self._stages():
            count = len(stage.blocks)
            stage.blocks = stage.blocks[: max(0, last + 1 - start)]
            start += count
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return cast(list[int], wanted)

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None, initial: bool = True) -> None:
        """A new head; 0 classes leaves the pooled features."""
        if global_pool is not None:
            if global_pool not in ("", "avg", "token") or (global_pool == "token" and not self.num_prefix_tokens):
                raise ValueError(
                    f"`global_pool` must be '', 'avg' or (with a class token) 'token', got {global_pool!r}"
                )
            self.global_pool = global_pool
        self.num_classes = num_classes
        weight = next(self.stages.parameters(), None)
        if num_classes:
            self.head = layers.blank(nn.Linear, self.num_features, num_classes)
        else:
            self.head = nn.Identity()
        if initial:
            initialise(self.head, self.architecture.initialisation, prefix="head.")
        if weight is not None:
            self.head.to(weight.device, weight.dtype)

    def no_weight_decay(self) -> set[str]:
        """Tokens and tables: position, class token, relative position."""
        return tokens_and_tables(self)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        return {
            "stem": r"^cls_token|^pos_embed|^stages\.0\.entry",
            "blocks": r"^stages\.(\d+)"
            if coarse
            else [(r"^stages\.(\d+)\.entry", (0,)), (r"^stages\.(\d+)\.blocks\.(\d+)", None), (r"^norm", (99999,))],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def set_fused_attention(self, fused: bool) -> VisionNetwork:
        """Which kernel attention uses: torch's fused one, or explicit matrix products. The result is the same."""
        for module in self.modules():
            if isinstance(module, (layers.Attention, class_attention.ClassAttention, layers.WindowAttention)):
                module.fused = fused
        return self


def embed(x: Tensor, class_token: Tensor | None, table: Tensor | None) -> Tensor:
    """Patches [B, N, C] with class token and position; the table's length says which tokens it covers."""
    if table is not None and table.shape[1] == x.shape[1]:
        x, table = x + table, None
    if class_token is not None:
        x = torch.cat([class_token.expand(x.shape[0], -1, -1), x], 1)
    return x if table is None else x + table


def pool(x: Tensor, how: str, prefix_tokens: int) -> Tensor:
    """What the classifier reads of the tokens [B, S, C]."""
    if how == "avg":
        return x[:, prefix_tokens:].mean(1)
    return x[:, 0] if how == "token" else x


def check_input(x: Tensor, channels: int, image_size: int) -> None:
    expected = (channels, image_size, image_size)
    if tuple(x.shape[1:]) != expected:
        raise ValueError(f"input must be [batch, {', '.join(map(str, expected))}], but got {list(x.shape)}")


def drop_path_rates(architecture: Architecture, largest: float) -> list[float]:
    """Stochastic depth grows linearly over the blocks of all stages, absent ones too."""
    total = sum(len(stage.blocks) for stage in architecture.stages)
    rates: list[float] = torch.linspace(0, largest, max(total, 1), device="cpu").tolist()
    return rates


def tokens_and_tables(network: nn.Module) -> set[str]:
    tables = ("pos_embed", "cls_token", "relative.", "relative_position_bias_table")
    return {name for name, _ in network.named_parameters() if any(part in name for part in tables)}


def _square(img_size: int | tuple[int, int]) -> int:
    sides = {img_size} if isinstance(img_size, int) else set(img_size)
    if len(sides) != 1:
        raise ValueError(f"`img_size` must be square, but got {img_size}")
    return sides.pop()


def _stages(architecture: Architecture, image_size: int, channels: int, drop_path_rate: float) -> list[NetworkStage]:
    """The one loop that looks every kind of entry and block up."""
    rates = iter(drop_path_rates(architecture, drop_path_rate))
    stages, before, before_side = [], channels, architecture.resolution or image_size
    for stage, side in zip(architecture.stages, architecture.sides(image_size), strict=True):
        entry = builders.ENTRY_BUILDERS[type(stage.entry)](
            stage.entry, before, stage.width, before_side, architecture.norm_eps, architecture.class_token
        )
        blocks = [
            builders.BLOCK_BUILDERS[type(block)](block, stage.width, side, architecture.norm_eps, next(rates))
            for block in stage.blocks
        ]
        stages.append(NetworkStage(entry, blocks, side, architecture.late_token))
        before, before_side = stage.width, side
    return stages


def feature_info(architecture: Architecture, image_size: int) -> list[dict[str, Any]]:
    """What timm's networks say about the maps after each block."""
    info = []
    for index, (stage, side) in enumerate(zip(architecture.stages, architecture.sides(image_size), strict=True)):
        for number, _ in enumerate(stage.blocks):
            name = f"stages.{index}.blocks.{number}"
            info.append({"module": name, "num_chs": stage.width, "reduction": image_size / side})
    return info


def build(
    architecture: Architecture | Mapping[str, Any],
    geometry: Geometry = IMAGENET,
    *,
    seed: int | None = None,
    drop_path_rate: float = 0.0,
    draw_weights: bool = True,
) -> VisionNetwork:
    """The network of a blueprint or of settings, in evaluation mode.

    With a seed, the weights are those that `torch.manual_seed(seed)` right before would give, and torch's own
    generator is left alone. Without `draw_weights` they are whatever the memory held, for a caller that fills them.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    plan = architecture if isinstance(architecture, Architecture) else decode(architecture)
    return VisionNetwork(
        plan,
        img_size=geometry.image_size,
        num_classes=geometry.classes,
        in_chans=geometry.channels,
        drop_path_rate=drop_path_rate,
        generator=generator,
        draw_weights=draw_weights,
    ).eval()


default_cfgs = generate_default_cfgs(
    {
        "vitsearch_net.untrained": {
            "num_classes": IMAGENET.classes,
            "input_size": (3, IMAGENET.image_size, IMAGENET.image_size),
            "fixed_input_size": True,
            "pool_size": None,
            "crop_pct": 0.875,
            "interpolation": "bicubic",
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
            "first_conv": "stages.0.entry.proj",
            "classifier": "head",
            "license": "apache-2.0",
        }
    }
)


def _from_settings(settings: Mapping[str, Any] | None = None, **options: Any) -> VisionNetwork:
    if settings is None:
        raise BadSettings('`settings` must be given, as in create_model("vitsearch_net", settings={"space": ...})')
    return VisionNetwork(decode(settings), **options)


def _feature_count(settings: Mapping[str, Any] | None) -> int:
    """The last three blocks, absent ones too, or fewer where there are fewer."""
    return min(3, sum(len(stage.blocks) for stage in decode(settings).stages)) if settings is not None else 3


@register_model  # type: ignore[untyped-decorator]
def vitsearch_net(pretrained: bool = False, **options: Any) -> VisionNetwork:
    """Any architecture of any space, by its settings."""
    return cast(
        VisionNetwork,
        build_model_with_cfg(
            _from_settings,
            "vitsearch_net",
            pretrained,
            pretrained_filter_fn=resize_tables,
            feature_cfg={"out_indices": _feature_count(options.get("settings")), "feature_cls": "getter"},
            **options,
        ),
    )
