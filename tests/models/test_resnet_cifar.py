"""ResNet-56 for small images: its size, its arithmetic, and the methods that timm's models have."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch.models import CifarResNet


def test_size() -> None:
    with torch.device("meta"):
        network = timm.create_model("vitsearch_resnet56", num_classes=100)
    assert sum(p.numel() for p in network.parameters()) == 861_620
    layers = [m for m in network.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))]
    assert sum(getattr(layer, "kernel_size", (3, 3)) == (3, 3) for layer in layers) == 56  # shortcuts are not counted


def reference(state: dict[str, Tensor], x: Tensor, depth: int) -> tuple[Tensor, list[Tensor]]:
    """Written out from section 4.2, from the weights alone."""

    def conv_norm(x: Tensor, conv: str, norm: str, stride: int) -> Tensor:
        weight = state[f"{conv}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        mean, variance = (state[f"{norm}.running_{name}"][:, None, None] for name in ("mean", "var"))
        scale, shift = (state[f"{norm}.{name}"][:, None, None] for name in ("weight", "bias"))
        return (x - mean) / (variance + 1e-5).sqrt() * scale + shift

    x, maps = conv_norm(x, "conv1", "bn1", 1).clamp_min(0), []
    for stage in range(3):
        for block in range(depth):
            name, stride = f"stages.{stage}.{block}", 2 if stage and not block else 1
            inner = conv_norm(x, f"{name}.conv1", f"{name}.bn1", stride).clamp_min(0)
            inner = conv_norm(inner, f"{name}.conv2", f"{name}.bn2", 1)
            around = conv_norm(x, f"{name}.shortcut.0", f"{name}.shortcut.1", 2) if stage and not block else x
            x = (inner + around).clamp_min(0)
        maps.append(x)
    return x.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"], maps


def test_equals_the_definition() -> None:
    torch.manual_seed(0)
    network = CifarResNet(depth=2, num_classes=5).double()
    network.train()(torch.randn(8, 3, 16, 16, dtype=torch.float64))  # running statistics that are not 0 and 1
    network.eval()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        logits, maps = reference(network.state_dict(), x, depth=2)
        torch.testing.assert_close(network(x), logits)
        final, found = network.forward_intermediates(x)
        for one, other in zip(found, maps, strict=True):
            torch.testing.assert_close(one, other)
        torch.testing.assert_close(network.forward_head(final), logits)


def test_methods_of_timms_models() -> None:
    network = timm.create_model("vitsearch_resnet56", in_chans=1, img_size=64, num_classes=7)
    x = torch.zeros(2, 1, 32, 32)
    maps = network.forward_intermediates(x, indices=[0, 1], stop_early=True, intermediates_only=True)
    assert [tuple(m.shape[1:]) for m in maps] == [(16, 32, 32), (32, 16, 16)]
    assert [info["num_chs"] for info in network.feature_info] == [16, 32, 64]
    network.reset_classifier(3)
    assert network(x).shape == (2, 3) and network.get_classifier().out_features == 3
    network.reset_classifier(0, "")
    assert network(x).shape == (2, 64, 8, 8)
    with pytest.raises(ValueError, match="`global_pool` must be"):
        network.reset_classifier(3, "token")
    extractor = timm.create_model("vitsearch_resnet56", features_only=True, out_indices=[0, 1])
    assert [m.shape[1] for m in extractor(torch.zeros(1, 3, 32, 32))] == extractor.feature_info.channels() == [16, 32]
