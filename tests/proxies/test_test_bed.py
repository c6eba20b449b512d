"""The proxies of the test-bed against slow references in float64: one image at a time, loops, finite differences."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitsearch.cost import Geometry
from vitsearch.data import Batch, open_data
from vitsearch.models import build
from vitsearch.proxies import PROXIES, Subject, parse_proxy
from vitsearch.scoring import ProxyEvaluator, score
from vitsearch.spaces import SPACES

GEOMETRY = Geometry(image_size=32, classes=10)
NETWORKS = ["autoformer-micro", "autoformer-tiny-plain", "pit"]


def smallest(space: str) -> dict[str, Any]:
    return SPACES[space].region(geometry=GEOMETRY).smallest()


def exact(space: str, seed: int = 2) -> nn.Module:
    return build(smallest(space), GEOMETRY, seed=seed).double().set_fused_attention(False)


def images_and_labels(count: int, seed: int = 2) -> tuple[Tensor, Tensor]:
    batch = open_data("noise").draw(count, GEOMETRY, seed)
    return batch.images.double(), batch.labels


def scores(space: str, names: str, batch_size: int = 4) -> dict[str, float]:
    (found,) = score(smallest(space), names, geometry=GEOMETRY, seed=2, device="cpu", batch_size=batch_size)
    assert found.errors == {}
    return found.scores


def in_float64(space: str, count: int) -> Subject:
    batch = Batch(*images_and_labels(count))
    return Subject(name=space, network=lambda: exact(space), batch=lambda: batch, geometry=GEOMETRY)


def gradients(network: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(network(images), labels), list(network.parameters())))


@pytest.mark.parametrize("space", NETWORKS)
def test_grasp_equals_finite_differences(space: str) -> None:
    """theta^T H g, with H g from the gradients a small step along g to both sides. PiT's biases are not zero."""
    network, (images, labels) = exact(space), images_and_labels(4)
    first, step, ends = gradients(network, images, labels), 1e-5, []
    for sign in (1, -1):
        moved = copy.deepcopy(network)
        with torch.no_grad():
            for parameter, gradient in zip(moved.parameters(), first, strict=True):
                parameter += sign * step * gradient
        ends.append(gradients(moved, images, labels))
    product = [(plus - minus) / (2 * step) for plus, minus in zip(*ends, strict=True)]
    expected = -sum(float((p.detach() * h).sum()) for p, h in zip(network.parameters(), product, strict=True))
    assert scores(space, "grasp")["grasp"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("space", NETWORKS)
def test_fisher_equals_one_image_at_a_time(space: str) -> None:
    network, (images, labels) = exact(space), images_and_labels(3)
    total: dict[str, Tensor] = {}
    for image, label in zip(images, labels, strict=True):
        outputs: dict[str, Tensor] = {}
        handles = [
            module.register_forward_hook(lambda _, __, out, into=outputs, name=name: into.__setitem__(name, out))
            for name, module in network.named_modules()
            if isinstance(module, (nn.Linear, nn.Conv2d))
        ]
        loss = F.cross_entropy(network(image[None]), label[None])
        for (name, output), gradient in zip(
            outputs.items(), torch.autograd.grad(loss, list(outputs.values())), strict=True
        ):
            product = (output.detach() * gradient)[0]
            channels = product.flatten(1).sum(1) if output.dim() == 4 else product.reshape(-1, product.shape[-1]).sum(0)
            total[name] = total.get(name, torch.zeros(())) + channels.pow(2)
        for handle in handles:
            handle.remove()
    expected = sum(float(value.sum()) / 2 / len(images) for value in total.values())
    assert scores(space, "fisher", 3)["fisher"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("space", NETWORKS)
def test_signs_equal_a_loop_over_units(space: str) -> None:
    network, (images, _) = exact(space), images_and_labels(4)
    codes: list[Tensor] = []
    for name, module in network.named_modules():
        if name.endswith("mlp.fc1"):
            module.register_forward_hook(lambda _, __, output: codes.append((output > 0).flatten(1)))
    hidden: list[Tensor] = []
    for name, module in network.named_modules():
        if name.endswith("mlp.fc1"):
            module.register_forward_hook(lambda _, __, output: hidden.append(output > 0))
    network(images)
    code = torch.cat(codes, 1).numpy()
    kernel = np.array([[np.sum(a == b) for b in code] for a in code], dtype=float)
    found = scores(space, "naswot,linear_regions,entropy")
    assert found["naswot"] == pytest.approx(np.linalg.slogdet(kernel)[1], rel=1e-4)
    assert found["linear_regions"] == len({row.tobytes() for row in code})
    bits = []
    for layer in hidden:
        for unit in range(layer.shape[-1]):
            often = float(layer[..., unit].double().mean())
            bits.append(-sum(p * math.log2(p) for p in (often, 1 - often) if p > 0))
    assert found["entropy"] == pytest.approx(sum(bits) / len(bits), abs=1e-3)


def test_equal_images_are_one_region() -> None:
    evaluator = ProxyEvaluator(["linear_regions", "naswot"], geometry=GEOMETRY, device="cpu", batch_size=4)
    images, _ = evaluator.batch()
    images[2] = images[0]
    found = evaluator.one(smallest("autoformer-micro"))
    assert found.scores == {"linear_regions": 3}
    assert "not finite" in found.errors["naswot"]  # its kernel is singular


@pytest.mark.parametrize("variant", ["", ":spread=signed", ":batches=4"])
@pytest.mark.parametrize("space", NETWORKS)
def test_zico_equals_its_equation(space: str, variant: str) -> None:
    network, (images, labels) = exact(space), images_and_labels(8)
    batches = 4 if "4" in variant else 2
    drawn = [gradients(network, i, lab) for i, lab in zip(images.chunk(batches), labels.chunk(batches), strict=True)]
    layers = {f"{n}.weight" for n, module in network.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))}
    expected = 0.0
    for index, (name, _) in enumerate(network.named_parameters()):
        if name in layers:
            values = np.stack([one[index].numpy() for one in drawn])
            spread = values.std(0) if "signed" in variant else np.abs(values).std(0)
            changing = spread > 0
            expected += math.log(float((np.abs(values).mean(0)[changing] / spread[changing]).sum()))
    # in float64: the ratio of a weight whose gradients happen to agree is huge, and not the same in float32
    proxy, options = parse_proxy(f"zico{variant}")
    assert proxy.score(in_float64(space, 8), **options) == pytest.approx(expected, rel=1e-6)
    assert scores(space, f"zico{variant}", 8)[f"zico{variant}"] == pytest.approx(expected, rel=0.05)


def test_zico_needs_two_batches() -> None:
    (found,) = score(smallest("autoformer-micro"), "zico", geometry=GEOMETRY, device="cpu", batch_size=3)
    assert "3 images are not 2 batches" in found.errors["zico"]


@pytest.mark.parametrize("space", NETWORKS)
def test_ntk_equals_one_image_at_a_time(space: str) -> None:
    network, (images, _) = exact(space), images_and_labels(4)
    rows = []
    for image in images:
        found = torch.autograd.grad(network(image[None]).sum(), list(network.parameters()), allow_unused=True)
        rows.append(torch.cat([g.flatten() for g in found if g is not None]))
    values = torch.linalg.eigvalsh(torch.stack(rows) @ torch.stack(rows).T)
    assert PROXIES["ntk"].score(in_float64(space, 4)) == pytest.approx(float(values[-1] / values[0]), rel=1e-8)
    assert scores(space, "ntk")["ntk"] == pytest.approx(float(values[-1] / values[0]), rel=1e-2)


@pytest.mark.parametrize("space", NETWORKS)
def test_autoprox_equals_its_equations(space: str) -> None:
    network, (images, labels) = exact(space), images_and_labels(4)
    of_loss = dict(zip(dict(network.named_parameters()), gradients(network, images, labels), strict=True))
    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    qkv = [name for name in weights if name.endswith("attn.qkv.weight")]
    mlp = [name for name in weights if name.endswith(("mlp.fc1.weight", "mlp.fc2.weight"))]

    def mean(values: list[Tensor]) -> float:
        return float(sum(float(value) for value in values) / len(values))

    sigmoids = mean([of_loss[name].sigmoid().mean() for name in mlp])
    norms = mean([weights[name].sigmoid().pow(2).sum().sqrt() for name in qkv])
    logs = [weights[name] - weights[name].exp().sum(0, keepdim=True).log() for name in mlp]
    sizes = torch.stack([weights[name].pow(2).sum().sqrt() for name in mlp])
    expected = {
        "autoproxa": mean([of_loss[name].abs().mean() for name in qkv]) + sigmoids,
        "autoproxa:norm=sum": mean([of_loss[name].abs().sum() for name in qkv]) + sigmoids,
        "autoproxp": norms - mean([values.mean() for values in logs]),
        "autoproxp:softmax=sum": norms - mean([values.sum() for values in logs]),
        "autoproxp:softmax=layers": norms - mean(list((sizes.exp() / sizes.exp().sum()).log())),
    }
    assert scores(space, ",".join(expected)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("space", NETWORKS)
def test_sums_over_the_absolute_network(space: str) -> None:
    network = exact(space)
    for parameter in network.parameters():
        parameter.data.abs_()
    network(torch.ones(1, 3, 32, 32, dtype=torch.float64)).sum().backward()
    named = dict(network.named_parameters())
    attention = [name for name in named if name.endswith(("attn.qkv.weight", "attn.proj.weight"))]
    mlp = [name for name in named if name.endswith(("mlp.fc1.weight", "mlp.fc2.weight"))]

    def salient(names: list[str]) -> float:
        return sum(float((named[name].grad * named[name].detach()).sum()) for name in names)

    products = [(p.grad * p.detach()) for p in network.parameters()]
    expected = {
        "synflow": sum(float(product.sum()) for product in products),
        "synflow:sign=absolute": sum(float(product.abs().sum()) for product in products),
        "dss-saliency": salient(mlp),
        "saliency-msa": salient(attention),
        "saliency-all": salient(attention) + salient(mlp),
        "log-synflow": sum(float((p.grad.abs() + 1).log().mul(p.detach()).sum()) for p in network.parameters()),
    }
    found = scores(space, ",".join(expected))
    assert found.pop("synflow") == pytest.approx(expected.pop("synflow"), rel=1e-5)  # in float32
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    halves = scores(space, "dss,dss-diversity,dss-saliency")
    assert halves["dss"] == pytest.approx(halves["dss-diversity"] + halves["dss-saliency"], rel=1e-4)


def test_zen_equals_a_network_in_training_mode() -> None:
    evaluator = ProxyEvaluator(["zen"], geometry=GEOMETRY, seed=1, device="cpu")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = timm.create_model("resnet10t", num_classes=10).double().train()
    generator = torch.Generator().manual_seed(0)
    images, change = (torch.randn(16, 3, 64, 64, generator=generator).double() for _ in range(2))
    kept, changed = (network.forward_features(x) for x in (images, images + 0.01 * change))
    expected = float((kept - changed).detach().abs().sum((1, 2, 3)).mean().log())

    def uncorrected(module: nn.BatchNorm2d, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        module.running_var *= 1 - inputs[0].shape[1] / inputs[0].numel()

    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0  # what it keeps is then the variance of this batch, times n / (n - 1)
            module.register_forward_hook(uncorrected)
    network.forward_features(images)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            expected += 0.5 * math.log(float(module.running_var.mean()))
    assert evaluator.timm("resnet10t", 64).scores["zen"] == pytest.approx(expected, rel=1e-3)


def test_scoring_leaves_buffers_and_hooks_alone() -> None:
    from vitsearch.scoring import timm_subject

    evaluator = ProxyEvaluator(list(PROXIES), geometry=GEOMETRY, device="cpu", batch_size=4)
    subject = timm_subject("resnet10t", evaluator, 64)
    before = {name: value.clone() for name, value in subject.network.state_dict().items()}
    evaluator.examine(subject, {})
    assert all(torch.equal(value, before[name]) for name, value in subject.network.state_dict().items())
    assert not subject.network.training
    for module in subject.network.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
        assert not module.training
