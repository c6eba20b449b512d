"""ResNet-56 for 32-pixel images, the teacher of Auto-Prox: `timm.create_model("vitsearch_resnet56", num_classes=100)`.

He et al. 2016, section 4.2 (https://arxiv.org/abs/1512.03385): three stages of nine basic blocks, widths 16, 32 and 64.
Where the width changes the shortcut is a 1x1 convolution with a norm, as in the public code of Auto-Prox; the paper's
own shortcut there has no parameters.
"""

from __future__ import annotations

from typing import Any, cast

import torch.nn.functional as F
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from torch import Tensor, nn

__all__ = ["CifarResNet", "vitsearch_resnet56"]

WIDTHS = (16, 32, 64)
NAME = "vitsearch_resnet56"


class BasicBlock(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if before != width:
            projection = nn.Conv2d(before, width, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class CifarResNet(nn.Module):
    """Input [B, in_chans, side, side] of any side; the three stages give maps of side, side / 2 and side / 4."""

    def __init__(
        self,
        depth: int = 9,
        num_classes: int = 100,
        in_chans: int = 3,
        img_size: int | tuple[int, int] | None = None,  # any size fits; accepted because timm passes it on
        global_pool: str = "avg",
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.in_chans = in_chans
        self.conv1 = nn.Conv2d(in_chans, WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.stages = nn.ModuleList()
        self.feature_info: list[dict[str, Any]] = []
        before = WIDTHS[0]
        for index, width in enumerate(WIDTHS):
            first = BasicBlock(before, width, 2 if index else 1)
            self.stages.append(nn.Sequential(first, *(BasicBlock(width, width, 1) for _ in range(depth - 1))))
            self.feature_info.append({"module": f"stages.{index}", "num_chs": width, "reduction": 2**index})
            before = width
        self.num_features = self.head_hidden_size = WIDTHS[-1]
        self.head_drop = nn.Dropout(drop_rate)
        self.fc: nn.Module = nn.Identity()
        self.reset_classifier(num_classes, global_pool)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward_features(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        for stage in self.stages:
            x = stage(x)
        return x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(x.mean((2, 3)) if self.global_pool == "avg" else x)
        return x if pre_logits else cast(Tensor, self.fc(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Outputs of chosen stages. There is no final norm, so `norm` changes nothing, as in timm's ResNets."""
        if output_fmt != "NCHW":
            raise ValueError(f"`output_fmt` must be NCHW, but got {output_fmt!r}")
        wanted, last = feature_take_indices(len(self.stages), indices)
        x, maps = F.relu(self.bn1(self.conv1(x))), []
        for index, stage in enumerate(self.stages[: last + 1] if stop_early else self.stages):
            x = stage(x)
            if index in wanted:
                maps.append(x)
        return maps if intermediates_only else (x, maps)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the stages after the last wanted one, for `features_only`."""
        wanted, last = feature_take_indices(len(self.stages), indices)
        self.stages = self.stages[: last + 1]
        if prune_head:
            self.reset_classifier(0, "")
        return cast(list[int], wanted)

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new classifier; 0 classes leaves the pooled features."""
        if global_pool is not None:
            if global_pool not in ("", "avg") or (num_classes and not global_pool):
                raise ValueError(f"`global_pool` must be 'avg', or '' without classes, but got {global_pool!r}")
            self.global_pool = global_pool
        self.num_classes = num_classes
        weight = self.conv1.weight
        self.fc = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        self.fc.to(weight.device, weight.dtype)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        return {"stem": r"^conv1|^bn1", "blocks": r"^stages\.(\d+)" if coarse else r"^stages\.(\d+)\.(\d+)"}


default_cfgs = generate_default_cfgs(
    {
        f"{NAME}.untrained": {
            "num_classes": 100,
            "input_size": (3, 32, 32),
            "pool_size": (8, 8),
            "crop_pct": 1.0,
            "interpolation": "bicubic",
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
            "first_conv": "conv1",
            "classifier": "fc",
            "license": "apache-2.0",
        }
    }
)


@register_model  # type: ignore[untyped-decorator]
def vitsearch_resnet56(pretrained: bool = False, **options: Any) -> CifarResNet:
    """861,620 parameters at 100 classes."""
    feature_cfg = {"out_indices": (0, 1, 2), "feature_cls": "getter"}
    return cast(CifarResNet, build_model_with_cfg(CifarResNet, NAME, pretrained, feature_cfg=feature_cfg, **options))
