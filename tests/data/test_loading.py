"""Batches: the same whatever the number of processes and the step a run starts at; unreadable images; order."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitsearch.cost import Geometry
from vitsearch.data import Augmentation, Batch, evaluation_batches, open_training_data, seeded_everything, train_loader
from vitsearch.data import loading as loading_module
from vitsearch.data.augment import as_bytes
from vitsearch.data.fusing import Fused
from vitsearch.data.order import Order, Unreadable, epoch_order
from vitsearch.data.resident import ResidentLoader, send, stored_side
from vitsearch.errors import BadData, VitsearchError

CPU = torch.device("cpu")
FULL = Augmentation(rand_augment="rand-m9-mstd0.5-inc1", erase=0.5, repeats=2)
PLAIN = Augmentation(crop="none", flip=0.0)


def loader(data: Any, resident: bool, augmentation: Augmentation = FULL, **options: Any) -> Any:
    given = {"geometry": Geometry(image_size=12, classes=5), "batch_size": 8, "seed": 3} | options
    return train_loader(data, dataset=data, augmentation=augmentation, device=CPU, resident=resident, **given)


def same(first: Batch, second: Batch) -> bool:
    return torch.equal(first.images, second.images) and torch.equal(first.labels, second.labels)


JITTERED = Augmentation(crop="padded", color_jitter=0.4)
AUTO = Augmentation(rand_augment="v0r-mstd0.5", erase=0.8, erase_count=3)


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("augmentation", [FULL, JITTERED, AUTO, PLAIN], ids=["full", "jittered", "auto", "plain"])
@pytest.mark.parametrize("channels", [1, 3])
def test_processes_and_restarts_change_nothing(
    resident: bool, augmentation: Augmentation, channels: int, memory: Callable[..., Any]
) -> None:
    data = memory(channels=channels)
    whole = list(islice(loader(data, resident, augmentation).batches(), 7))
    assert whole[0].images.shape == (8, 3, 12, 12) and whole[0].images.dtype == torch.float32
    for rank in range(2):
        halves = islice(loader(data, resident, augmentation, rank=rank, world=2).batches(), 7)
        for batch, half in zip(whole, halves, strict=True):
            own = slice(4 * rank, 4 * rank + 4)
            assert same(Batch(batch.images[own], batch.labels[own]), half)
    later = loader(data, resident, augmentation).batches(start=5)
    assert same(next(later), whole[5]) and same(next(later), whole[6])
    other = next(loader(data, resident, augmentation, seed=4).batches())
    assert not torch.equal(other.images, whole[0].images)
    if augmentation is not PLAIN:
        assert not torch.equal(whole[0].images[0], whole[0].images[1])


def test_the_strongest_magnitudes_can_be_drawn(memory: Callable[..., Any]) -> None:
    for text in ("rand-m10-inc1-p1", "rand-m0-p1", "rand-m10-p1", "v0-mstd9", "originalr-mstd9"):
        for batch in islice(loader(memory(), False, Augmentation(rand_augment=text)).batches(), 15):
            assert batch.images.isfinite().all() and batch.images.shape[1:] == (3, 12, 12), text


def test_workers_change_nothing(memory: Callable[..., Any]) -> None:
    alone, helped = (islice(loader(memory(), False, workers=workers).batches(2), 4) for workers in (0, 2))
    assert all(same(first, second) for first, second in zip(alone, helped, strict=True))


@pytest.mark.parametrize("repeats", [1, 3])
def test_resident_and_streamed_show_the_same_images(repeats: int, memory: Callable[..., Any]) -> None:
    augmentation = Augmentation(crop="none", flip=0.0, erase=0.3, erase_count=2, repeats=repeats)
    for channels in (1, 3):
        data = memory(broken=[2, 3, 17])
        geometry = Geometry(image_size=16, classes=5, channels=channels)
        found = [list(islice(loader(data, way, augmentation, geometry=geometry).batches(), 6)) for way in (True, False)]
        assert all(same(first, second) for first, second in zip(*found, strict=True))


def test_plain_batches_are_the_images_in_their_order(memory: Callable[..., Any]) -> None:
    data = memory(side=12)
    for step, batch in enumerate(islice(loader(data, True, PLAIN).batches(), 10)):
        rows = epoch_order(40, 3, step // 5, 1)[8 * (step % 5) :][:8]
        assert torch.equal(batch.labels, data.labels[rows])
        expected = (data.pixels[rows].float() / 255 - 0.45) / 0.25
        assert torch.allclose(batch.images, expected, atol=1e-5)


def test_an_epoch_shows_every_image_once_in_a_new_order() -> None:
    order = Order(23, batch_size=5, seed=0, repeats=1, rank=0, world=1)
    assert order.steps_per_epoch == 4
    epochs = [torch.cat([order.batch(4 * epoch + step) for step in range(4)]) for epoch in range(3)]
    assert all(len(set(epoch.tolist())) == 20 for epoch in epochs) and not torch.equal(epochs[0], epochs[1])
    assert order.batch(1).tolist() == epochs[0][5:10].tolist()


@pytest.mark.parametrize("repeats", [2, 3])
@pytest.mark.parametrize("world", [1, 4])
def test_repeats_are_those_of_timm(repeats: int, world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """timm's sampler gives its processes every world-th index of what our steps go through as a whole."""
    from timm.data.distributed_sampler import RepeatAugSampler

    count = 24
    permutation = epoch_order(count, 0, 1, 1)
    monkeypatch.setattr(torch, "randperm", lambda *_, **__: permutation)
    samplers = [
        RepeatAugSampler(range(count), world, rank, num_repeats=repeats, selected_round=0) for rank in range(world)
    ]
    theirs = [index for together in zip(*samplers, strict=True) for index in together]
    assert epoch_order(count, 0, 1, repeats).tolist() == theirs and len(theirs) == count


def test_wrong_sizes_are_named(memory: Callable[..., Any]) -> None:
    data = memory()
    for options, message in (
        ({"batch_size": 41}, "`batch_size` must be from 1 to the 40 images to train on, but got 41"),
        ({"batch_size": 9, "world": 2}, "`batch_size` must be a multiple of the 2 processes, but got 9"),
        ({"rank": 2, "world": 2}, "`rank` must be from 0 to 1, but got 2"),
        ({"geometry": Geometry(image_size=8, classes=4)}, "`classes` must be at least 5 for memory, but got 4"),
        ({"geometry": Geometry(image_size=8, classes=5, channels=2)}, "`channels` must be 1 or 3 for memory"),
        ({"seed": -1}, "`seed` must be"),
    ):
        with pytest.raises(VitsearchError, match=message):
            loader(data, True, **options)


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("count", [1, 10, 11])
def test_unreadable_images_up_to_the_limit(
    resident: bool, count: int, memory: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    data = memory(broken=list(range(4, 4 + count)))

    def epoch() -> list[Batch]:
        made = loader(data, resident, PLAIN, geometry=Geometry(image_size=16, classes=5))
        return list(islice(made.batches(), 5))

    with caplog.at_level(logging.WARNING, "vitsearch"):
        if count > 10:
            with pytest.raises(BadData, match="at most 10 of 40 images may be unreadable, but 11 are; the first: item"):
                epoch()
            return
        batches = epoch()
    assert "cannot be decoded; it is left out, and up to 10 of 40" in caplog.text
    assert f"{count} of 40 images could not be decoded" in caplog.text
    images, labels = torch.cat([batch.images for batch in batches]), torch.cat([batch.labels for batch in batches])
    shown = epoch_order(40, 3, 0, 1)
    shown[(shown >= 4) & (shown < 4 + count)] = 4 + count  # the next readable one
    assert torch.equal(labels, data.labels[shown])
    assert torch.allclose(images, (data.pixels[shown].float() / 255 - 0.45) / 0.25, atol=1e-5)


def test_the_limit_is_a_percent_of_large_parts() -> None:
    unreadable = Unreadable(5000)
    for index in range(50):
        unreadable.add(index, f"item {index}")
        unreadable.add(index, "again")
    with pytest.raises(BadData, match="at most 50 of 5000 images may be unreadable, but 51 are; the first: item 0"):
        unreadable.add(50, "item 50")
    with pytest.raises(BadData, match="at most 1 of 2 images may be unreadable, but 2 are"):
        small = Unreadable(2)
        small.add(0, "item 0")
        small.add(1, "item 1")


@pytest.mark.parametrize("resident", [True, False])
def test_evaluation_shows_every_image_once(
    resident: bool, memory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not resident:
        monkeypatch.setattr(loading_module, "resident_bytes", lambda device: 0)
    data = memory(count=43, broken=[0, 42])
    options: dict[str, Any] = {"dataset": data, "geometry": Geometry(image_size=16, classes=5), "device": CPU}
    single = evaluation_batches(data, batch_size=8, **options)
    for _ in range(2):
        batches = list(single)
        assert [len(batch.labels) for batch in batches] == [7, 8, 8, 8, 8, 2]
        assert torch.equal(torch.cat([batch.labels for batch in batches]), data.labels[1:42])
        expected = (data.pixels[1:42].float() / 255 - 0.45) / 0.25
        assert torch.allclose(torch.cat([batch.images for batch in batches]), expected, atol=1e-5)
    shared = [list(evaluation_batches(data, batch_size=8, rank=rank, world=2, **options)) for rank in range(2)]
    assert sum(len(batch.labels) for batches in shared for batch in batches) == 41
    assert torch.equal(shared[1][0].images, next(iter(single)).images[3:])
    data.broken = set(range(11))
    with pytest.raises(BadData, match="at most 10 of 43"):
        list(evaluation_batches(data, batch_size=8, **options))


@pytest.mark.parametrize("crop_pct", [0.875, 1.0])
def test_evaluation_is_timm_s(crop_pct: float, memory: Callable[..., Any]) -> None:
    from timm.data import create_transform

    data = memory(count=3, side=50)
    data.pixels = data.pixels[:, :, :41]
    transform = create_transform((3, 24, 24), crop_pct=crop_pct, interpolation="bicubic", mean=data.mean, std=data.std)
    geometry = Geometry(image_size=24, classes=5)
    (batch,) = evaluation_batches(data, dataset=data, geometry=geometry, batch_size=4, device=CPU, crop_pct=crop_pct)
    for image, pixels in zip(batch.images, data.pixels, strict=True):
        reference = transform(Image.fromarray(pixels.permute(1, 2, 0).numpy()))
        assert torch.allclose(image, reference, atol=1e-5)


def test_stored_side_is_what_is_needed_and_there(memory: Callable[..., Any]) -> None:
    data = memory(side=40)
    assert stored_side(data, 28, Augmentation()) == 32 and stored_side(data, 28, PLAIN) == 28
    assert stored_side(data, 224, Augmentation()) == 40
    large = loader(data, True, geometry=Geometry(image_size=64, classes=5))
    assert large.stored == 40 and next(large.batches()).images.shape == (8, 3, 64, 64)


def test_large_parts_are_streamed(memory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    data = memory()
    size = 40 * 3 * 14 * 14
    for limit, expected in ((size, True), (size - 1, False)):
        monkeypatch.setattr(loading_module, "resident_bytes", lambda device, limit=limit: limit)
        made = train_loader(
            data,
            dataset=data,
            geometry=Geometry(image_size=12, classes=5),
            augmentation=FULL,
            batch_size=8,
            seed=0,
            device=CPU,
        )
        assert isinstance(made, ResidentLoader) == expected


def test_digits_can_be_learnt_from_their_batches() -> None:
    """Nearest mean of the training batches' classes, on the validation part: labels and images belong together."""
    data = open_training_data("digits")
    geometry = Geometry(image_size=8, classes=10, channels=1)
    train = train_loader(
        data.part("train"),
        dataset=data,
        geometry=geometry,
        augmentation=PLAIN,
        batch_size=100,
        seed=0,
        device=CPU,
    )
    batches = list(islice(train.batches(), train.steps_per_epoch))
    images, labels = torch.cat([batch.images for batch in batches]), torch.cat([batch.labels for batch in batches])
    means = torch.stack([images[labels == label].mean(dim=0).flatten() for label in range(10)])
    held = evaluation_batches(data.part("validation"), dataset=data, geometry=geometry, batch_size=64, device=CPU)
    right = [torch.cdist(batch.images.flatten(1), means).argmin(dim=1) == batch.labels for batch in held]
    assert len(torch.cat(right)) == 270 and float(torch.cat(right).double().mean()) > 0.85


def test_global_generators_are_put_back() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with seeded_everything(0, "image", 5):
        inside = draw()
    with pytest.raises(ZeroDivisionError), seeded_everything(1):
        draw()
        1 / 0  # noqa: B018
    assert draw() == expected
    with seeded_everything(0, "image", 5):
        assert draw() == inside
    with seeded_everything(0, "image", 6):
        assert draw() != inside


def test_what_cannot_be_compiled_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compiled(function: Callable[..., Any], **_: object) -> Callable[..., Any]:
        def fail(*_: object) -> None:
            raise RuntimeError("no compiler\nhere")

        return fail

    monkeypatch.setattr(torch, "compile", compiled)
    fused = Fused(as_bytes, torch.device("cuda"))
    with caplog.at_level(logging.WARNING, "vitsearch"):
        assert [fused(torch.tensor([0.5, 300.0])).tolist() for _ in range(2)] == [[1, 255]] * 2
    assert [record.message for record in caplog.records] == ["as_bytes is not compiled: no compiler here"]
    assert Fused(as_bytes, CPU).compiled is None


def test_what_fails_later_or_for_want_of_memory_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Any] = [torch.cuda.OutOfMemoryError("full"), torch.ones(1), RuntimeError("broken")]

    def compiled(*_: object, **__: object) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled)
    fused = Fused(as_bytes, torch.device("cuda"))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        fused(torch.ones(1))
    assert torch.equal(fused(torch.ones(1)), torch.ones(1))
    with pytest.raises(RuntimeError, match="broken"):
        fused(torch.ones(1))


def test_a_batch_waits_while_another_thread_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older torch has one flag for all threads, and what it says is known by its words."""
    one_more = torch.compile(lambda x: x + 1, backend="eager")
    with pytest.raises(RuntimeError) as refusal:
        torch.fx.symbolic_trace(lambda x: one_more(torch.zeros(1)) + x)
    outcomes: list[Any] = [refusal.value, refusal.value, torch.ones(1)]

    def compiled(*_: object) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    fused = Fused(as_bytes, CPU)
    fused.compiled = compiled
    pauses: list[float] = []
    monkeypatch.setattr("vitsearch.data.fusing.time.sleep", pauses.append)
    assert torch.equal(fused(torch.zeros(1)), torch.ones(1))
    assert len(pauses) == 2


def test_streams_leave_the_global_generator_alone(memory: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    expected = torch.rand(())
    torch.manual_seed(0)
    list(islice(loader(memory(), False).batches(), 3))
    assert torch.equal(torch.rand(()), expected)


def test_many_tensors_travel_as_one() -> None:
    given = [
        torch.arange(3),
        torch.tensor([True]),
        torch.rand(2, 6),
        torch.empty(0, dtype=torch.int64),
        torch.arange(5),
    ]
    sent = send(given, torch.device("meta"))
    assert [(t.shape, t.dtype) for t in sent] == [(t.shape, t.dtype) for t in given]


@pytest.mark.parametrize("resident", [True, False])
def test_whoever_takes_a_batch_has_gradients(resident: bool, memory: Callable[..., Any]) -> None:
    batches = loader(memory(), resident).batches()
    next(batches)
    assert torch.is_grad_enabled()
    next(batches)
    assert torch.is_grad_enabled()
