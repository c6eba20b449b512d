"""Teachers: the losses against slow float64 references, what gets gradients, and where teachers come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load, save, save_file
from torch import Tensor, nn

from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.export import export_timm
from vitsearch.models import CifarResNet, Supernet, VisionNetwork, build
from vitsearch.spaces import SPACES
from vitsearch.tasks import Classification
from vitsearch.training.distill import (
    Distillation,
    LocalityGuidance,
    LogitDistillation,
    distillation,
    guided_blocks,
    map_distance,
)
from vitsearch.training.subnet import Subnet
from vitsearch.training.teacher import Teacher, open_teacher

SMALL = Geometry(image_size=48, classes=5)
CPU = torch.device("cpu")
MICRO = SPACES["autoformer-micro"].region().largest()
LABELS = torch.tensor([0, 4, 2])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def student() -> VisionNetwork:
    return build(MICRO, SMALL, seed=0).double()


def teacher(mode: str = "eval") -> Teacher:
    torch.manual_seed(1)
    network = CifarResNet(depth=1, num_classes=5)
    network.train()(torch.randn(16, 3, 32, 32))  # running statistics that are not 0 and 1
    return Teacher(network, 32, mode).double()


def bilinear(x: np.ndarray, size: int) -> np.ndarray:
    """Pixel by pixel: centres at half-integers, neighbours outside the map replaced by its edge."""
    side = x.shape[-1]
    out = np.empty((*x.shape[:2], size, size))
    for row, column in np.ndindex(size, size):
        (top, down), (left, right) = ((int(at), at - int(at)) for at in _places((row, column), side / size))
        low, far = min(top + 1, side - 1), min(left + 1, side - 1)
        upper = x[..., top, left] * (1 - right) + x[..., top, far] * right
        lower = x[..., low, left] * (1 - right) + x[..., low, far] * right
        out[..., row, column] = upper * (1 - down) + lower * down
    return out


def _places(at: tuple[int, int], ratio: float) -> list[float]:
    return [max((index + 0.5) * ratio - 0.5, 0.0) for index in at]


def reference_guidance(task: LocalityGuidance, network: VisionNetwork, images: Tensor) -> float:
    """Block outputs by hooks, class token cut off, projected, resized, squared, averaged, summed."""
    caught: list[Tensor] = []
    blocks = network.stages[0].blocks
    handles = [blocks[index].register_forward_hook(lambda *a: caught.append(a[2])) for index in (0, 1, 2)]
    with torch.no_grad():
        network(images)
        cnn: Any = task.teacher.network
        x = torch.tensor(bilinear(images.numpy(), 32))
        x, goals = torch.relu(cnn.bn1(cnn.conv1(x))), []
        for stage in cnn.stages:
            x = stage(x)
            goals.append(x.numpy())
    for handle in handles:
        handle.remove()
    total = 0.0
    for projection, tokens, goal in zip(task.projections, caught, goals, strict=True):
        patches = tokens[:, 1:].numpy().reshape(len(images), 3, 3, -1)
        weight, bias = (p.detach().numpy() for p in (projection.weight, projection.bias))
        ours = np.einsum("bhwc,oc->bohw", patches, weight[:, :, 0, 0]) + bias[:, None, None]
        size = max(ours.shape[-1], goal.shape[-1])
        total += float(np.mean((bilinear(ours, size) - bilinear(goal, size)) ** 2))
    return total


def guided(network: nn.Module, mode: str = "eval") -> LocalityGuidance:
    return LocalityGuidance(Classification(0.1), teacher(mode), network).double().train()


def test_locality_guidance_against_a_slow_reference() -> None:
    network = student()
    task, images = guided(network), drawn(3, 3, 48, 48)
    outcome = task.losses(network, images, LABELS)
    plain = Classification(0.1).losses(network, images, LABELS)
    expected = reference_guidance(task, network, images)
    assert float(outcome.parts["guidance"]) == pytest.approx(expected, rel=1e-9)
    assert outcome.loss.item() == pytest.approx(plain.loss.item() + 2.5 * expected, rel=1e-9)
    assert float(outcome.parts["cross_entropy"]) == pytest.approx(plain.loss.item(), rel=1e-12)
    torch.testing.assert_close(outcome.logits, plain.logits)
    assert not any(part.requires_grad for part in outcome.parts.values())


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_who_gets_gradients(mode: str) -> None:
    network = student()
    task = guided(network, mode)
    task.losses(network, drawn(3, 3, 48, 48), LABELS).loss.backward()
    for name, parameter in [*network.named_parameters(), *task.projections.named_parameters()]:
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    assert all(p.grad is None and not p.requires_grad for p in task.teacher.parameters())
    trainable = [name for name, p in task.named_parameters() if p.requires_grad]
    assert trainable == [f"projections.{i}.{leaf}" for i in range(3) for leaf in ("weight", "bias")]


def test_guidance_is_learnt() -> None:
    network = student()
    task, images = guided(network), drawn(3, 3, 48, 48)
    optimizer = torch.optim.AdamW([*network.parameters(), *task.projections.parameters()], lr=3e-3)
    values = []
    for _ in range(20):
        outcome = task.losses(network, images, LABELS)
        optimizer.zero_grad()
        outcome.loss.backward()
        optimizer.step()
        values.append(float(outcome.parts["guidance"]))
    assert values[-1] < 0.8 * values[0]


def test_guided_blocks() -> None:
    assert guided_blocks(12) == (0, 6, 11)
    assert [guided_blocks(depth) for depth in (1, 2, 13, 14)] == [(0, 0, 0), (0, 1, 1), (0, 6, 12), (0, 7, 13)]
    shallow = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=1, embed_dim=24, num_heads=2, num_classes=5)
    task = LocalityGuidance(Classification(), teacher(), shallow).double()
    assert task.taps(shallow) == (0, 0, 0)
    assert torch.isfinite(task.losses(shallow.double(), drawn(3, 3, 48, 48), LABELS).loss)
    with pytest.raises(VitsearchError, match=r"`blocks` must be 3 of 0 to 0, but got \(0, 6, 11\)"):
        LocalityGuidance(Classification(), teacher(), shallow, blocks=(0, 6, 11))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet10t"])
def test_students_of_timm(name: str) -> None:
    network = timm.create_model(name, num_classes=5).double().eval()
    side = 224 if name.startswith("vit") else 64
    task, images = guided(network), drawn(3, 3, side, side)
    outcome = task.losses(network, images, LABELS)
    torch.testing.assert_close(outcome.logits, network(images))
    assert task.taps(network) == ((0, 6, 11) if name.startswith("vit") else (0, 2, 4))


def log_probabilities(logits: Tensor, temperature: float) -> np.ndarray:
    values = logits.detach().numpy() / temperature
    return values - np.log(np.exp(values).sum(1, keepdims=True))


@pytest.mark.parametrize(("hard", "temperature", "alpha"), [(False, 1.0, 0.5), (False, 3.0, 0.1), (True, 1.0, 0.7)])
def test_logit_distillation_against_the_formula(hard: bool, temperature: float, alpha: float) -> None:
    network, guide = student(), teacher()
    task = LogitDistillation(Classification(), guide, hard=hard, temperature=temperature, alpha=alpha).train()
    images = drawn(3, 3, 48, 48)
    outcome = task.losses(network, images, LABELS)
    theirs = guide.network(torch.tensor(bilinear(images.numpy(), 32)))
    if hard:
        chosen = theirs.argmax(1).numpy()
        term = -log_probabilities(outcome.logits, 1.0)[np.arange(3), chosen].mean()
    else:
        ours, goal = (log_probabilities(logits, temperature) for logits in (outcome.logits, theirs))
        term = (np.exp(goal) * (goal - ours)).sum(1).mean() * temperature**2
    plain = -log_probabilities(outcome.logits, 1.0)[np.arange(3), LABELS.numpy()].mean()
    assert float(outcome.parts["distillation"]) == pytest.approx(term, rel=1e-9)
    assert outcome.loss.item() == pytest.approx((1 - alpha) * plain + alpha * term, rel=1e-9)


def counting(module: Any, method: str, counts: list[str]) -> Callable[..., Any]:
    original = getattr(module, method)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        counts.append(method)
        return original(*arguments, **options)

    return wrapped


def test_both_share_one_forward_of_each_network(monkeypatch: pytest.MonkeyPatch) -> None:
    network, guide, images = student(), teacher(), drawn(3, 3, 48, 48)
    logits = LogitDistillation(Classification(), guide, temperature=2.0, alpha=0.3)
    both, single = LocalityGuidance(logits, guide, network).double(), guided(network)
    both.projections.load_state_dict(single.projections.state_dict())
    alone = single.losses(network, images, LABELS)
    soft = logits.losses(network, images, LABELS)
    counts: list[str] = []
    for module in (network, guide.network):
        for method in ("forward", "forward_intermediates", "forward_head"):
            monkeypatch.setattr(module, method, counting(module, method, counts))
    outcome = both.losses(network, images.clone(), LABELS)
    assert sorted(counts) == ["forward_head"] * 2 + ["forward_intermediates"] * 2
    torch.testing.assert_close(outcome.loss, soft.loss + 2.5 * alone.parts["guidance"])
    assert set(outcome.parts) == {"cross_entropy", "distillation", "guidance"}
    with pytest.raises(ValueError, match="`teacher` must be the one of the task inside"):
        LocalityGuidance(logits, teacher(), network)


def test_a_batch_is_looked_at_once_for_all_students(monkeypatch: pytest.MonkeyPatch) -> None:
    guide, images, counts = teacher().train(), drawn(4, 3, 32, 32), list[str]()
    method = "forward_intermediates"
    monkeypatch.setattr(guide.network, method, counting(guide.network, method, counts))
    first = guide(images)
    assert guide(images.chunk(1)[0]) is first
    assert len(counts) == 1
    halves = [guide(half).logits for half in images.chunk(2)]
    torch.testing.assert_close(torch.cat(halves), first.logits)
    assert len(counts) == 3
    guide(images)
    images += 1  # another batch in the same place
    assert not torch.equal(guide(images).logits, first.logits)
    assert len(counts) == 5
    with torch.autocast("cpu", torch.bfloat16):
        guide(images)
    guide.network.bn1.running_mean += 1
    guide.train()
    guide(images)
    assert len(counts) == 7
    moving = teacher("train").train()  # whose statistics go on with every look
    before = moving(images).logits, moving.network.bn1.running_mean.clone()
    assert moving(images).logits is not before[0]
    assert not torch.equal(moving.network.bn1.running_mean, before[1])


def test_teacher_modes() -> None:
    images = drawn(3, 3, 32, 32)
    still, moving = teacher().train(), teacher("train").train()
    before = still.network.bn1.running_mean.clone()
    assert not torch.equal(still(images).logits, moving(images).logits)
    assert torch.equal(still.network.bn1.running_mean, before)
    assert not torch.equal(moving.network.bn1.running_mean, before)
    with torch.no_grad():
        by_batch = moving.network.conv1(images)
        normalised = (by_batch - by_batch.mean((0, 2, 3), keepdim=True)) / (
            by_batch.var((0, 2, 3), keepdim=True, correction=0) + 1e-5
        ).sqrt()
        expected = moving.network.stages[0](normalised.clamp_min(0))
    torch.testing.assert_close(moving(images).maps[0], expected)
    moving.eval()
    torch.testing.assert_close(moving(images[:1]).logits, moving(images).logits[:1])


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_checkpoints_hold_projections_and_statistics_but_no_weights_of_the_teacher(mode: str) -> None:
    network, guide = student(), teacher(mode)
    task = LocalityGuidance(LogitDistillation(Classification(), guide), guide, network).double().train()
    task.losses(network, drawn(3, 3, 48, 48), LABELS)
    state = load(save({name: value.contiguous() for name, value in task.state_dict().items()}))
    weights = {name for name, _ in guide.network.named_parameters()}
    assert not any(name.partition("own_teacher.network.")[2] in weights for name in state)
    again = teacher(mode)
    other = LocalityGuidance(LogitDistillation(Classification(), again), again, network).double().train()
    other.load_state_dict(state, strict=True)
    a, b = (one.losses(network, drawn(3, 3, 48, 48, seed=4), LABELS).loss for one in (task, other))
    assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match=r"projections\.0\.bias"):
        other.load_state_dict({name: v for name, v in state.items() if name != "projections.0.bias"})


def test_the_step_is_one_graph() -> None:
    network, guide = student(), teacher()
    task = LocalityGuidance(LogitDistillation(Classification(), guide), guide, network).double()
    images = drawn(3, 3, 48, 48)
    compiled = torch.compile(lambda x, y: task.losses(network, x, y).loss, backend="eager", fullgraph=True)
    for targets in (LABELS, drawn(3, 5).softmax(1)):
        torch.testing.assert_close(compiled(images, targets), task.losses(network, images, targets).loss)


def test_mixed_precision() -> None:
    network, guide, images = student().float(), teacher().float(), drawn(3, 3, 48, 48).float()
    task = LocalityGuidance(LogitDistillation(Classification(), guide), guide, network)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = task.losses(network, images, LABELS)
    exact = task.losses(network, images, LABELS)
    assert mixed.loss.dtype == torch.float32
    torch.testing.assert_close(mixed.loss, exact.loss, rtol=0.02, atol=0)
    mixed.loss.backward()


def saved_teacher(folder: Path, classes: int = 5, channels: int = 3) -> nn.Module:
    """A folder as a trained network is written."""
    torch.manual_seed(3)
    network: nn.Module = timm.create_model("vitsearch_resnet56", num_classes=classes, in_chans=channels)
    folder.mkdir()
    save_file(network.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architecture": "vitsearch_resnet56",
        "num_classes": classes,
        "pretrained_cfg": {"num_classes": classes, "input_size": [channels, 32, 32], "classifier": "fc"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return network.eval()


def test_teachers_from_a_folder_and_from_a_file(tmp_path: Path) -> None:
    network, images = saved_teacher(tmp_path / "teacher"), drawn(2, 3, 32, 32).float()
    file = tmp_path / "teacher" / "model.safetensors"
    for text in (str(tmp_path / "teacher"), f"timm:vitsearch_resnet56@{file}"):
        opened = open_teacher(text, classes=5, channels=3, device=CPU)
        assert opened.image_size == 32 and opened.widths == [16, 32, 64]
        with torch.no_grad():
            torch.testing.assert_close(opened(images).logits, network(images))
    grey = saved_teacher(tmp_path / "grey", channels=1)
    opened = open_teacher(str(tmp_path / "grey"), classes=None, channels=1, device=CPU)
    with torch.no_grad():
        torch.testing.assert_close(opened(images[:, :1]).logits, grey(images[:, :1]))
    export_timm(MICRO, tmp_path / "ours", geometry=SMALL, seed=0)
    ours = open_teacher(str(tmp_path / "ours"), classes=5, channels=3, device=CPU)
    assert ours.image_size == 48 and ours(drawn(2, 3, 16, 16).float()).logits.shape == (2, 5)


def test_a_network_without_maps_teaches_logits_alone(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    guide, images = Teacher(network, 48), drawn(3, 3, 48, 48)
    torch.testing.assert_close(guide(images).logits, network(images))
    with pytest.raises(VitsearchError, match=r"`teacher` must give maps .* but got Sequential"):
        LocalityGuidance(Classification(), guide, student())
    with pytest.raises(VitsearchError, match=r"`network` must give maps .* but got Sequential"):
        LocalityGuidance(Classification(), teacher(), network)


def test_teachers_that_do_not_fit_are_named(tmp_path: Path) -> None:
    saved_teacher(tmp_path / "five")
    five, file = str(tmp_path / "five"), tmp_path / "five" / "model.safetensors"
    wrong = {
        "absent": "`teacher` must be a folder or timm:NAME@FILE, but got 'absent'",
        "timm:resnet10t": "`teacher` must say where its weights are, as timm:resnet10t@FILE",
        "timm:resnet_10t@x": "`teacher` must name a network of timm, but got 'resnet_10t'. Did you mean",
        "timm:resnet10t@absent.safetensors": "`weights` must be an existing file",
        f"timm:resnet10t@{file}": "`weights` must fit the network, but some are missing",
    }
    for text, message in wrong.items():
        with pytest.raises(VitsearchError, match=message):
            open_teacher(text, classes=5, channels=3, device=CPU)
    with pytest.raises(VitsearchError, match=r"must have the 10 classes of the data for logits, but .* has 5"):
        open_teacher(five, classes=10, channels=3, device=CPU)
    with pytest.raises(VitsearchError, match=r"must take the 1 channels of the data, but .* takes 3"):
        open_teacher(five, classes=None, channels=1, device=CPU)
    with pytest.raises(VitsearchError, match=r"must have weights of its own size, but conv1.weight is of another"):
        open_teacher(f"timm:vitsearch_resnet56@{file}", classes=None, channels=1, device=CPU)


@pytest.mark.parametrize("kind", ["locality", "soft", "hard", "locality+soft"])
def test_building_from_text(tmp_path: Path, kind: str) -> None:
    saved_teacher(tmp_path / "teacher", classes=5)
    network = build(MICRO, SMALL, seed=0)
    plan = distillation(str(tmp_path / "teacher"), kind, teacher_mode="train", alpha=0.25)
    task = plan.build(Classification(), network, SMALL, CPU)
    assert task.teacher.network.training
    outcome = task.losses(network, drawn(3, 3, 48, 48).float(), LABELS)
    expected = outcome.parts["cross_entropy"]
    if plan.logits:
        expected = 0.75 * expected + 0.25 * outcome.parts["distillation"]
    if "locality" in plan.kind:
        expected = expected + 2.5 * outcome.parts["guidance"]
    torch.testing.assert_close(outcome.loss.detach(), expected)
    other = Geometry(image_size=48, classes=7)
    if plan.logits:
        with pytest.raises(VitsearchError, match="must have the 7 classes"):
            plan.build(Classification(), build(MICRO, other), other, CPU)
    else:
        plan.build(Classification(), build(MICRO, other), other, CPU)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": ()}, "`kind` must be some of locality, soft, hard, each once"),
        ({"kind": ("locality", "locality")}, "`kind` must be some of"),
        ({"kind": ("softer",)}, r"`kind` must be some of .* but got \('softer',\)"),
        ({"kind": ("soft", "hard")}, "`kind` must not be soft and hard at once"),
        ({"weight": 0.0}, "`weight` must be a positive number, but got 0.0"),
        ({"temperature": float("nan")}, "`temperature` must be a positive number, but got nan"),
        ({"alpha": 1.5}, "`alpha` must be above 0 and at most 1, but got 1.5"),
        ({"teacher_mode": "frozen"}, "`teacher_mode` must be one of eval, train, but got 'frozen'"),
    ],
)
def test_bad_plans_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(VitsearchError, match=message):
        Distillation(teacher="folder", **options)


def test_a_supernet_is_guided_as_its_networks_are() -> None:
    """The guidance of a network of the supernet is that of the extracted one, with the first columns."""
    space = SPACES["autoformer-micro"]
    supernet = Supernet(space, Geometry(image_size=32, classes=5), seed=0).double()
    task = LocalityGuidance(Classification(), teacher(), supernet).double()
    images = drawn(3, 3, 32, 32)
    for settings in (space.region().smallest(), space.region().largest()):
        subnet = Subnet(supernet, space.decode(settings))
        outcome = task.losses(subnet, images, LABELS)
        network = supernet.extract(subnet.architecture)
        alone = LocalityGuidance(Classification(), teacher(), network).double()
        for wide, own in zip(task.projections, alone.projections, strict=True):
            own.weight.data, own.bias.data = wide.weight[:, : own.in_channels].detach(), wide.bias.detach()
        expected = alone.losses(network, images, LABELS)
        torch.testing.assert_close(outcome.loss, expected.loss)
        assert expected.parts["guidance"] > 0
    task.losses(subnet, images, LABELS).loss.backward()
    assert all(project.weight.grad.abs().sum() > 0 for project in task.projections)
    two_sided = Supernet(space, Geometry(image_size=32, classes=5), seed=0, sides=("left", "right"))
    with pytest.raises(VitsearchError, match="must not be locality with `widths` two-sided"):  # not at the first step
        LocalityGuidance(Classification(), teacher(), two_sided)


def test_features_of_two_sides_guide_nothing_and_leave_no_folder(tmp_path: Path, cli: Callable[..., Any]) -> None:
    saved_teacher(tmp_path / "teacher", classes=10)
    command = ["supernet", "train", "autoformer-micro", "--widths", "two-sided", "--recipe", "quick", "--device", "cpu"]
    command += ["--distill", tmp_path / "teacher", "--distill-kind", "locality+soft", "--out", tmp_path / "run"]
    assert "`distill_kind` must not be locality with `widths` two-sided" in cli(*command).error()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("ours", "theirs"), [((8, 8), (32, 32)), ((14, 14), (8, 8)), ((7, 5), (5, 9)), ((4, 4), (4, 4))]
)
def test_maps_are_resized_as_torch_does(ours: tuple[int, int], theirs: tuple[int, int]) -> None:
    random = torch.Generator().manual_seed(0)
    one, other = (torch.randn(2, 3, *side, generator=random, dtype=torch.float64) for side in (ours, theirs))
    size = [max(pair) for pair in zip(ours, theirs, strict=True)]
    own = one.clone().requires_grad_()
    resized = [F.interpolate(x, size=size, mode="bilinear", align_corners=False) for x in (own, other)]
    expected = (resized[0] - resized[1]).square().mean()
    expected.backward()
    given = one.float().requires_grad_()
    found = map_distance(given, other.float())
    found.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert own.grad is not None
    assert given.grad is not None
    torch.testing.assert_close(given.grad.double(), own.grad, rtol=1e-4, atol=1e-7)
