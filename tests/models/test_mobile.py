"""Convolutional networks against timm's MobileNetV2, and their supernet against the networks taken out of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
import timm
import torch
from torch import nn

from vitsearch.architecture import Architecture, Bottleneck, Convolution, InvertedResidual, Stage
from vitsearch.cost import Geometry
from vitsearch.data import Batch
from vitsearch.errors import BadSettings
from vitsearch.export import FORMATS, untrained
from vitsearch.models import Supernet, build
from vitsearch.models.convolution import resized
from vitsearch.spaces import SPACES, sample
from vitsearch.training.calibration import calibrated

SPACE = SPACES["mobilenetv2:resolution=32+64,depth=1+2,width=8+16/8+16/8+16/8+16/8+16/8/16/8+16/32+40,kernel=3+5"]
GEOMETRY = Geometry(image_size=32, classes=10)
ROWS = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


def mobilenetv2(resolution: int) -> Architecture:
    """Sandler et al. 2018, Table 2."""
    stages = [Stage(entry=Convolution(kernel=3, stride=2), width=32, blocks=())]
    for expansion, width, depth, stride in ROWS:
        entry = Bottleneck(expansion=expansion, kernel=3, stride=stride)
        blocks = (InvertedResidual(expansion=expansion, kernel=3),) * (depth - 1)
        stages.append(Stage(entry=entry, width=width, blocks=blocks))
    stages.append(Stage(entry=Convolution(kernel=1), width=1280, blocks=()))
    return Architecture(stages=tuple(stages), class_token=False, position="none", norm_eps=1e-5, resolution=resolution)


@pytest.mark.parametrize("training", [False, True])
def test_the_outputs_are_those_of_timm(training: bool) -> None:
    theirs = timm.create_model("mobilenetv2_100", num_classes=7)
    generator = torch.Generator().manual_seed(0)
    for name, tensor in theirs.state_dict().items():
        if tensor.is_floating_point():
            tensor.normal_(0.0, 0.2, generator=generator)
            tensor += 1.0 if "bn" in name else 0.0
            tensor.abs_() if "running_var" in name else None
    ours = build(mobilenetv2(64), Geometry(image_size=64, classes=7))
    assert len(ours.state_dict()) == len(theirs.state_dict())
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    images = torch.randn(4, 3, 64, 64, generator=generator)
    expected = theirs.train(training)(images).detach()
    torch.testing.assert_close(
        ours.train(training)(images), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())
    )


def test_images_are_resized_to_the_networks_resolution() -> None:
    plan = mobilenetv2(64)
    small = build(plan, Geometry(image_size=40, classes=7), seed=1)
    exact = build(plan, Geometry(image_size=64, classes=7), seed=1)
    images = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    larger = nn.functional.interpolate(images, size=64, mode="bilinear")
    torch.testing.assert_close(small(images), exact(larger))
    features = small.forward_intermediates(images, indices=1, intermediates_only=True)
    assert features[0].shape == (2, 160, 2, 2) and small.feature_info[-1]["reduction"] == 20
    assert torch.equal(resized(images, 40), images) and resized(images, 32).shape[-1] == 32


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_network_of_the_supernet_is_the_one_taken_out(side: Any) -> None:
    supernet = Supernet(SPACE, GEOMETRY, seed=0)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    for settings in (SPACE.region().smallest(), *sample(SPACE, 2, seed=1), SPACE.region().largest()):
        plan = SPACE.decode(settings)
        network = supernet.extract(plan, side).train()
        expected = network(images)
        torch.testing.assert_close(supernet(images, plan, side), expected)
        supernet.zero_grad()
        supernet(images, plan, side).square().sum().backward()
        expected.square().sum().backward()
        own = {name: parameter.grad for name, parameter in supernet.named_parameters() if parameter.grad is not None}
        names = dict(network.named_parameters())
        assert set(own) == set(names)
        for name in own:
            assert own[name].abs().sum() == pytest.approx(float(names[name].grad.abs().sum()), rel=1e-3, abs=1e-4)  # type: ignore[union-attr]


def test_a_smaller_kernel_is_the_middle_of_a_larger_one() -> None:
    supernet = Supernet(SPACE, GEOMETRY, seed=0)
    largest = SPACE.region().largest()
    plan, small = SPACE.decode(largest), SPACE.decode(largest | {"kernel": [3] * 7})
    network, of_small = supernet.extract(plan), supernet.extract(small)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("depthwise.weight"):
                parameter[..., 0], parameter[..., -1], parameter[..., 0, :], parameter[..., -1, :] = 0, 0, 0, 0
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(network(images), of_small(images))


def test_statistics_are_the_means_over_the_batches() -> None:
    """Against a pass by hand over the layers of the first stages."""
    supernet = Supernet(SPACE, GEOMETRY, seed=0)
    plan = SPACE.decode(SPACE.region().smallest())
    generator = torch.Generator().manual_seed(2)
    batches = [Batch(torch.randn(8, 3, 32, 32, generator=generator), torch.zeros(8)) for _ in range(3)]
    found = calibrated(supernet, plan, batches, "float32")
    assert not found.training and not any("running" in name for name in supernet.state_dict())
    network: Any = supernet.extract(plan).train()
    entry, second = network.stages[0].entry, network.stages[1].entry
    before = [entry.proj(resized(batch.images, plan.resolution)) for batch in batches]
    statistics: Any = found.stages[0].entry.norm
    mean = torch.stack([one.mean((0, 2, 3)) for one in before]).mean(0)
    variance = torch.stack([one.var((0, 2, 3)) for one in before]).mean(0)
    torch.testing.assert_close(statistics.running_mean, mean)
    torch.testing.assert_close(statistics.running_var, variance)
    after = [second.depthwise(nn.functional.relu6(entry.norm(one))).mean((0, 2, 3)) for one in before]
    torch.testing.assert_close(found.stages[1].entry.norm2.running_mean, torch.stack(after).mean(0))  # type: ignore[union-attr]
    untouched = supernet.extract(plan).stages[0].entry.norm  # type: ignore[union-attr]
    assert float(untouched.running_mean.abs().sum()) == 0.0  # type: ignore[union-attr]


def test_what_is_no_part_of_the_supernet_is_refused() -> None:
    supernet = Supernet(SPACE, GEOMETRY, seed=0)
    largest = SPACE.region().largest()
    supernet.check(dataclasses.replace(SPACE.decode(largest), resolution=96))  # weights know no resolution
    for change in ({"kernel": [7] * 7}, {"depth": [3] + [2] * 6}, {"width": [24] * 9}):
        with pytest.raises(BadSettings, match="must be a part of the supernet"):
            supernet.check(SPACE.decode(largest | change))


@pytest.mark.parametrize("resolution", [32, 64])
@torch.no_grad()
def test_exports_give_the_outputs_where_every_layer_matters(resolution: int, tmp_path: Path) -> None:
    """Images of 48 px shrink or grow; statistics and scales are far from those that change nothing."""
    settings = SPACE.region().largest() | {"resolution": resolution}
    handover = untrained(settings, Geometry(image_size=48, classes=10))
    generator = torch.Generator().manual_seed(0)
    for module in handover.network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, mean in ((module.weight, 1.0), (module.bias, 0.3), (module.running_mean, 0.2)):
                cast(torch.Tensor, tensor).normal_(mean, 0.2, generator=generator)
            cast(torch.Tensor, module.running_var).uniform_(0.5, 1.5, generator=generator)
    images = torch.randn(2, 3, 48, 48, generator=generator)
    expected = handover.network(images)
    changed = handover.network(images.flip(0))
    assert (expected - changed).abs().max() > 0.05 * expected.abs().max()  # the images matter
    for format in ("timm", "torch"):
        FORMATS[format].write(handover, tmp_path)
        torch.testing.assert_close(FORMATS[format].run(tmp_path, images), expected, rtol=1e-4, atol=1e-5)
