"""Recorded layers against the same supernet without them. A recorder that does the work again stands for CUDA graphs:
memory, gradients and their order are the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vitsearch.cost import Geometry
from vitsearch.models.recorded import Work
from vitsearch.models.super_transformer import supernet_for
from vitsearch.models.supernet import Supernet
from vitsearch.spaces import SPACES
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import RECIPES, change
from vitsearch.training.run import Machine, train_network
from vitsearch.training.subnets import Sandwich
from vitsearch.training.supernet import SupernetTrainer

GEOMETRY = Geometry(image_size=32, classes=10)
FEW_WINDOWS = "s3-initial:depth=1,embed_dim=32+64,num_heads=1+2,mlp_ratio=2.0,window_size=4"
WINDOWS = "s3-initial:depth=1+2,embed_dim=32+64+96,num_heads=1+2+3,mlp_ratio=2.0+3.0+4.0,window_size=4+8"


class DoneAgain:
    recorded = 0

    def pool(self) -> Any:
        return None

    def warm(self, work: Work) -> None:
        work()

    def record(self, work: Work, pool: Any) -> Work:
        self.recorded += 1
        return work


def supernets(space: str, **options: Any) -> tuple[Supernet, Supernet, DoneAgain]:
    plain, recorded = (Supernet(SPACES[space], GEOMETRY, seed=3, **options).train() for _ in range(2))
    recorder = DoneAgain()
    recorded.record_layers(recorder)
    return plain, recorded, recorder


def backward(supernet: Supernet, settings: Any, images: Tensor, taps: tuple[int, ...] = ()) -> Tensor:
    torch.manual_seed(5)  # stochastic depth
    architecture = supernet.space.decode(settings)
    tokens, found = supernet.trace(images, architecture, taps)
    logits = supernet.forward_head(tokens, architecture)
    (logits.square().sum() + sum(one.square().mean() for one in found)).backward()
    return logits.detach()


@pytest.mark.parametrize(("space", "taps"), [("autoformer-micro", ()), ("autoformer-micro", (0, 1)), ("pit-tiny", ())])
def test_gradients_are_those_of_the_plain_supernet(space: str, taps: tuple[int, ...]) -> None:
    plain, recorded, recorder = supernets(space, drop_path_rate=0.2)
    region, random = SPACES[space].region(), Random(1)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for _ in range(4):  # gradients add up, as those of several networks of one step do
        settings = region.sample(random)
        assert torch.equal(backward(plain, settings, images, taps), backward(recorded, settings, images, taps).detach())
        for (name, one), other in zip(plain.named_parameters(), recorded.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), name
            if one.grad is not None and other.grad is not None:
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-7)
    assert recorder.recorded > 0
    recorded_before = recorder.recorded
    backward(recorded, settings, images, taps)
    assert recorder.recorded == recorded_before  # what was recorded once is used again


def test_layers_hand_over_without_copies() -> None:
    _, recorded, _ = supernets("autoformer-micro")
    space = recorded.space
    images = torch.randn(2, 3, 32, 32)
    backward(recorded, space.region().largest(), images)
    layers = recorded._skeletons.recorded
    assert layers is not None
    memories = [next(iter(held.values())) for held in layers._training._of.values()]
    for before, after in pairwise(memories):
        assert after.input.data_ptr() == before.output.data_ptr()
        assert after.input_gradient.data_ptr() == before.gradient.data_ptr()


def test_a_forward_before_the_backward_is_an_error() -> None:
    _, recorded, _ = supernets("autoformer-micro")
    architecture = recorded.space.decode(recorded.space.region().smallest())
    images = torch.randn(2, 3, 32, 32)
    _, (first,) = recorded.trace(images, architecture, (0,))
    recorded(images, architecture)
    with pytest.raises(RuntimeError, match="before this one went backward"):
        first.backward(torch.ones_like(first))


def test_only_some_shapes_are_recorded_where_there_are_many() -> None:
    """Of a sandwich over windows the layers of the largest and the smallest network, at the first step."""
    space = SPACES[WINDOWS].with_patch_size(4)
    plain, recorded = (Supernet(space, GEOMETRY, seed=3).train() for _ in range(2))
    recorder, ends = DoneAgain(), [space.decode(settings) for settings in Sandwich().always(space)]
    recorded.record_layers(recorder, ends)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for step in range(4):
        found = []
        for supernet in (plain, recorded):
            supernet.zero_grad(set_to_none=True)
            found.append([backward(supernet, each, images, (0, 3)) for each in Sandwich().choose(space, 0, step)])
        torch.testing.assert_close(*found, rtol=0, atol=0)
        for (name, one), other in zip(plain.named_parameters(), recorded.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6, msg=name)
        assert recorder.recorded == 2 * sum(len(stage.blocks) for end in ends for stage in end.stages)


@pytest.mark.parametrize("space", ["autoformer-tiny", "pit-tiny", WINDOWS, "vitas-micro", "mobilenetv2"])
def test_there_are_no_more_shapes_than_are_counted(space: str) -> None:
    supernet = supernet_for(SPACES[space], replace(GEOMETRY, image_size=64))
    random, found = Random(0), set()
    for _ in range(300):
        architecture = supernet.space.decode(supernet.space.region().sample(random))
        parts = supernet._parts(architecture, "left")
        found |= {(i, n, b) for i, (_, blocks) in enumerate(parts) for n, b in enumerate(blocks) if b is not None}
    blocks = [one for one in found if one[2].is_block]
    assert len(blocks) <= supernet.shapes <= 10_000
    if space == "autoformer-tiny":
        assert supernet.shapes == 14 * 3 * 2 * 2  # blocks, widths, heads, ratios
        assert len(found) > 100


def test_weights_are_rounded_anew_at_every_replay() -> None:
    """Autocast keeps the rounded weights of a step: a recording must not find them there."""
    _, recorded, _ = supernets("autoformer-micro")
    architecture = recorded.space.decode(recorded.space.region().largest())  # its weights are not cut, and are kept
    images = torch.randn(2, 3, 32, 32)
    names = {tensor.data_ptr(): name for name, tensor in recorded.named_parameters()}
    rounded: list[set[str]] = []

    class Rounding(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            if function is torch.ops.aten.copy_.default and arguments[1].data_ptr() in names:
                assert (arguments[0].dtype, arguments[1].dtype) == (torch.bfloat16, torch.float32)
                rounded[-1].add(names[arguments[1].data_ptr()].split("blocks.")[1].split(".", 1)[1])
            return function(*arguments, **(options or {}))

    class Watched(DoneAgain):
        def record(self, work: Work, pool: Any) -> Work:
            rounded.append(set())
            with Rounding():
                work()
            return super().record(work, pool)

    recorded.record_layers(Watched())
    with torch.autocast("cpu", torch.bfloat16):
        recorded(images, architecture)
    blocks = sum(len(stage.blocks) for stage in architecture.stages)
    assert len(rounded) == 2 * blocks
    assert all({"attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"} <= found for found in rounded[::2])


@pytest.mark.parametrize("space", ["autoformer-micro", "pit-tiny"])
def test_looks_are_those_of_the_plain_supernet_and_leave_trainings_alone(space: str) -> None:
    plain, recorded, recorder = supernets(space)
    region, random = SPACES[space].region(), Random(2)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    largest = recorded.space.decode(region.largest())
    logits = recorded(images, largest)  # goes backward below, after others were looked at
    before = recorder.recorded
    for _ in range(3):
        architecture = recorded.space.decode(region.sample(random))
        with torch.no_grad():
            tokens, (first,) = recorded.trace(images, architecture, (0,))
            expected, (expected_first,) = plain.trace(images, architecture, (0,))
            recorded(images.flip(0), architecture)  # writes where the first look did
        assert torch.equal(tokens, expected)
        assert torch.equal(first, expected_first)
    assert recorder.recorded > before
    logits.sum().backward()
    plain(images, largest).sum().backward()
    torch.testing.assert_close(recorded.pos_embed.grad, plain.pos_embed.grad)


def test_each_precision_is_recorded_by_itself() -> None:
    plain, recorded, _ = supernets("autoformer-micro")
    architecture = recorded.space.decode(recorded.space.region().smallest())
    images = torch.randn(2, 3, 32, 32)
    for half in (False, True, False):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
            assert torch.equal(recorded(images, architecture), plain(images, architecture)), half


def out_of_memory_once(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """At the first network of a training. What is recorded at each is in the list that comes back."""
    monkeypatch.setattr("vitsearch.training.supernet.GraphRecorder", DoneAgain)
    seen: list[Any] = []
    real = SupernetTrainer.add_gradients

    def full(self: SupernetTrainer, images: Tensor, targets: Tensor, pieces: int, *more: Any, **options: Any) -> Tensor:
        found = real(self, images, targets, pieces, *more, **options)
        seen.append(self.network._skeletons.recorded)
        if len(seen) == 1:
            raise torch.cuda.OutOfMemoryError("full")
        return found

    monkeypatch.setattr(SupernetTrainer, "add_gradients", full)
    return seen


def train(space: Any, subnets: str, folder: Path, compiled: bool = True) -> Any:
    plan = TrainingPlan(
        space={"name": space.name, "fixed": space.fixed()},
        subnets=subnets,
        geometry=GEOMETRY,
        data="digits",
        recipe=change(RECIPES["quick"], {"epochs": "1", "batch_size": "600", "image_size": "32"}),
    )
    return train_network(plan, folder, machine=Machine(device="cpu", compiled=compiled))


def test_memory_that_runs_out_drops_what_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's own way, with a batch that is too large at the first look."""
    seen = out_of_memory_once(monkeypatch)
    monkeypatch.setattr(SupernetTrainer, "compile", lambda self: self._record())
    monkeypatch.setattr(SupernetTrainer, "_records", True)
    done = train(SPACES["autoformer-micro"], "uniform", tmp_path / "run")
    assert done.epochs[0]["micro_batches"] == 2
    assert seen[0] is not None and seen[1] is not None and seen[1] is not seen[0]
    assert all(one is seen[1] for one in seen[1:])


def test_where_there_are_many_shapes_recording_is_given_up_before_batches_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen = out_of_memory_once(monkeypatch)

    def record(self: SupernetTrainer) -> None:
        self._records = True
        self._record()

    monkeypatch.setattr(SupernetTrainer, "compile", lambda self: None)
    monkeypatch.setattr(SupernetTrainer, "record", record)
    done = train(SPACES[FEW_WINDOWS].with_patch_size(4), "sandwich", tmp_path / "run")
    assert done.epochs[0]["micro_batches"] == 1
    assert seen[0] is not None and len(seen) > 4 and all(one is None for one in seen[1:])
    assert "layers are not recorded from here on" in caplog.text and "pieces" not in caplog.text


def test_without_compiling_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[SupernetTrainer] = []
    monkeypatch.setattr(SupernetTrainer, "record", lambda self: asked.append(self))
    monkeypatch.setattr(SupernetTrainer, "compile", lambda self: None)
    for compiled in (True, False):
        train(SPACES[FEW_WINDOWS].with_patch_size(4), "sandwich", tmp_path / str(compiled), compiled)
    assert len(asked) == 1
