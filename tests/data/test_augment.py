"""Batched augmentation beside Pillow and timm, image by image."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment
from torch import Tensor

from vitsearch.data import Augmentation
from vitsearch.data.augment import Crops, as_bytes, draw_boxes, draw_crops, finished, noise_for
from vitsearch.data.decoding import RESAMPLING, to_image, to_tensor
from vitsearch.data.operations import Changer, grouped
from vitsearch.data.rand_augment import (
    MEANINGS,
    MOVES,
    OPERATIONS,
    Entry,
    Layer,
    Policy,
    arguments_of,
    base_name,
    draw_jitter,
    draw_layers,
    timm_policy,
)
from vitsearch.data.resampling import BatchResampler
from vitsearch.data.streaming import posterize
from vitsearch.errors import BadSettings

CPU = torch.device("cpu")


def smooth_images(count: int, channels: int, side: int) -> Tensor:
    coarse = torch.rand(count, channels, 5, 5, generator=torch.Generator().manual_seed(1))
    fine = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic")
    return (fine.clamp(0, 1) * 255).to(torch.uint8)


def noisy_images(count: int, channels: int, side: int) -> Tensor:
    return torch.randint(256, (count, channels, side, side), generator=torch.Generator().manual_seed(2)).byte()


ARGUMENTS: dict[str, list[Any]] = {
    "AutoContrast": [0],
    "Equalize": [0],
    "Invert": [0],
    "Posterize": [0, 1, 2, 3, 4],
    "Solarize": [0, 26, 128, 256],
    "SolarizeAdd": [0, 55, 110],
    "Contrast": [0.1, 0.5, 1.0, 1.9],
    "Brightness": [0.1, 0.5, 1.0, 1.9],
    "Color": [0.1, 0.5, 1.0, 1.9],
    "Sharpness": [0.1, 0.5, 1.0, 1.9],
    "Rotate": [-30.0, -7.5, 12.0, 30.0],
    "ShearX": [-0.3, 0.11],
    "ShearY": [-0.3, 0.11],
    "TranslateX": [-0.45, 0.13],
    "TranslateY": [-0.45, 0.13],
}


def timm_operation(name: str) -> Any:
    return auto_augment.NAME_TO_OP[name + "Rel" if name.startswith("Translate") else name]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_pillow_s(name: str, channels: int) -> None:
    arguments = ARGUMENTS[name]
    moves = name in MOVES
    images = smooth_images(len(arguments), channels, 33) if moves else noisy_images(len(arguments), channels, 33)
    if name in ("AutoContrast", "Equalize"):
        images = torch.cat([images, images // 2 + 30, torch.full_like(images, 9), images % 3])
        arguments = arguments * 4
    for interpolation in ("bilinear", "bicubic") if moves else ("bicubic",):
        layer = Layer(torch.full((len(images),), OPERATIONS.index(name)), torch.tensor(arguments, dtype=torch.float64))
        ours = images.clone()
        Changer(torch.full((channels,), 77), interpolation, len(ours), CPU)(ours, grouped(layer, 33))
        for image, result, argument in zip(images, ours, arguments, strict=True):
            options = {"fillcolor": (77,) * 3 if channels == 3 else 77, "resample": RESAMPLING[interpolation]}
            given = () if name in ("AutoContrast", "Equalize", "Invert") else (argument,)
            operation = posterize if name == "Posterize" else timm_operation(name)
            reference = to_tensor(operation(to_image(image), *given, **options))
            difference = (result.int() - reference.int()).abs()
            if moves:  # the cubic of torch is another one than Pillow's, and a border pixel may fall on either side
                assert float((difference > (1 if interpolation == "bilinear" else 6)).float().mean()) < 0.02
                assert float(difference.float().mean()) < 1.0
            else:
                assert int(difference.max()) <= 1 and float((difference > 0).float().mean()) < 0.02, argument


def test_only_the_chosen_images_change() -> None:
    images = noisy_images(6, 3, 8)
    names = {1: "Invert", 3: "Rotate", 4: "Color"}
    operation = torch.tensor([OPERATIONS.index(names[row]) if row in names else -1 for row in range(6)])
    ours = images.clone()
    groups = grouped(Layer(operation, torch.full((6,), 0.5).double()), 8)
    Changer(torch.zeros(3), "bicubic", 6, CPU)(ours, groups)
    changed = (ours != images).flatten(1).any(dim=1)
    assert changed.tolist() == [False, True, False, True, True, False]


@pytest.mark.parametrize(("channels", "side"), [(3, 16), (1, 9)])
def test_pieces_of_one_size_change_the_same(channels: int, side: int) -> None:
    """As on a GPU: all arithmetic operations in one, and the last piece filled up with images that are there."""
    layer = draw_layers(Policy.parse("rand-m9-mstd0.5-inc1-p0.9"), 150, torch.Generator().manual_seed(0))[0]
    assert set(layer.operation.tolist()) == set(range(-1, len(OPERATIONS)))
    images, change = noisy_images(150, channels, side), Changer(torch.full((channels,), 77), "bicubic", 150, CPU)
    alone, together = images.clone(), images.clone()
    change(alone, grouped(layer, side))
    groups = grouped(layer, side, 20)
    change(together, groups)
    assert torch.equal(alone, together) and not torch.equal(alone, images)
    names = [name for name, *_ in groups]
    assert names.count("arithmetic") > 1 and names.count("move") > 1
    assert {len(rows) for name, rows, _ in groups if name != "Equalize"} == {20}


@pytest.mark.parametrize("name", MEANINGS)
@pytest.mark.parametrize("sign", [1, -1])
def test_arguments_are_timm_s(name: str, sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_augment, "_randomly_negate", lambda value: sign * value)
    meaning = torch.tensor(MEANINGS[name], dtype=torch.float64)
    for level in (0.0, 0.3, 4.9, 9.0, 10.0, 14.5):
        level_of = auto_augment.LEVEL_TO_ARG[name]
        expected = level_of(level, {})[0] if level_of else 0
        ours = arguments_of(meaning, torch.tensor(level, dtype=torch.float64), torch.tensor(sign < 0))
        assert float(ours) == pytest.approx(expected, abs=1e-9)


POLICIES = [
    "rand-m9-mstd0.5-inc1",
    "rand-n3-m5",
    "rand-m7-mstd101-p0.8",
    "rand-m12-mstd2-mmax15-inc1",
    "rand-tweights-inc1",
]


@pytest.mark.parametrize("text", POLICIES)
def test_choices_have_timm_s_distribution(text: str) -> None:
    """The drawn operations, levels and probabilities beside 3,000 calls of timm's own object."""
    policy, count = Policy.parse(text), 3000
    layers = draw_layers(policy, count, torch.Generator().manual_seed(0))
    assert len(layers) == (3 if "n3" in text else 2)
    applied = torch.stack([layer.operation for layer in layers]) >= 0
    assert abs(float(applied.double().mean()) - (0.8 if "p0.8" in text else 0.5)) < 0.03
    called: list[tuple[str, float]] = []
    reference = auto_augment.rand_augment_transform(text, {"translate_const": 1, "img_mean": 0})
    for operation in reference.ops:
        operation.aug_fn = lambda image, *arguments, name=operation.name, **_: (
            called.append((base_name(name), arguments[0] if arguments else 0.0)) or image
        )
    random.seed(0)
    np.random.seed(0)
    for _ in range(count):
        reference(None)
    ours = [
        (OPERATIONS[number], argument)
        for layer in layers
        for number, argument in zip(layer.operation.tolist(), layer.argument.tolist(), strict=True)
        if number >= 0
    ]
    for name in OPERATIONS:
        mine, theirs = ([abs(x) for each, x in found if each == name] for found in (ours, called))
        assert abs(len(mine) / len(ours) - len(theirs) / len(called)) < 0.02, name
        if len(theirs) > 100:
            spread = max(float(np.std(theirs)), 0.01)
            assert abs(float(np.mean(mine)) - float(np.mean(theirs))) < 5 * spread * math.sqrt(2 / len(theirs)), name


def kolmogorov_smirnov(first: list[float], second: list[float]) -> float:
    """The largest difference of two samples' distribution functions; above 2 sqrt(1/n + 1/m) in 1 of 1,500 cases."""
    places = np.round(np.array(first + second), 9)
    shares = [np.searchsorted(np.sort(np.round(each, 9)), places, side="right") / len(each) for each in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())


@pytest.mark.parametrize("text", ["v0", "v0r-mstd0.5", "original-mstd1.5", "originalr-mstd0.5"])
def test_sub_policies_have_timm_s_distribution(text: str) -> None:
    """What both operations of an image do, beside 4,000 calls of timm's own object."""
    count = 4000
    layers = draw_layers(Policy.parse(text), count, torch.Generator().manual_seed(0))
    rows = [zip(layer.operation.tolist(), layer.argument.tolist(), strict=True) for layer in layers]
    ours = [
        [(OPERATIONS[number], argument) for number, argument in pair if number >= 0] for pair in zip(*rows, strict=True)
    ]
    theirs: list[list[tuple[str, float]]] = []
    reference = auto_augment.auto_augment_transform(text, {"img_mean": 0})
    for operation in (each for pair in reference.policy for each in pair):
        operation.aug_fn = lambda image, *arguments, name=operation.name, **_: (
            theirs[-1].append((base_name(name), arguments[0] if arguments else 0.0)) or image
        )
    random.seed(0)
    for _ in range(count):
        theirs.append([])
        reference(None)
    shares = [Counter(tuple(name for name, _ in pair) for pair in found) for found in (ours, theirs)]
    for names in shares[0] | shares[1]:
        assert abs(shares[0][names] - shares[1][names]) < 5 * math.sqrt(shares[0][names] + shares[1][names]), names
        for place in range(len(names)):
            mine, expected = (
                [pair[place][1] for pair in found if tuple(name for name, _ in pair) == names]
                for found in (ours, theirs)
            )
            if len(expected) > 50:
                assert kolmogorov_smirnov(mine, expected) < 2 * math.sqrt(1 / len(mine) + 1 / len(expected)), names


@pytest.mark.parametrize("text", ["v0", "v0r", "original", "originalr"])
def test_each_sub_policy_is_timm_s(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise and signs nothing but the choice is random: every sub-policy on an image, both ways."""
    images = smooth_images(1, 3, 33).repeat(25, 1, 1, 1)
    monkeypatch.setattr(auto_augment, "_randomly_negate", lambda value: value)
    monkeypatch.setattr(torch, "rand", lambda shape, **options: torch.full(shape, 0.5, dtype=torch.float64))
    monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.arange(25)[None])
    policy = Policy.parse(text)
    always = tuple(tuple(entry._replace(probability=1.0) for entry in layer) for layer in policy.layers)
    layers = draw_layers(replace(policy, layers=always), 25, torch.Generator())
    ours, change = images.clone(), Changer(torch.full((3,), 77), "bilinear", 25, CPU)
    for layer in layers:
        change(ours, grouped(layer, 33))
    settings = {"img_mean": (77, 77, 77), "interpolation": RESAMPLING["bilinear"]}
    for result, image, pair in zip(ours, images, timm_policy(text, settings).policy, strict=True):
        expected = to_image(image)
        for operation in pair:
            operation.prob = 1.0
            operation.aug_fn = posterize if operation.name.startswith("Posterize") else operation.aug_fn
            expected = operation(expected)
        difference = (result.int() - to_tensor(expected).int()).abs().float()
        assert float((difference > 3).float().mean()) < 0.05 and float(difference.mean()) < 2, pair


def test_magnitudes_of_sub_policies_vary_and_are_cut() -> None:
    for deviation, mean, spread in ((0.5, 5.0, 0.5), (1000.0, 5.0, 5.0)):
        policy = replace(Policy.parse(f"v0-mstd{deviation}"), layers=((Entry("Rotate", 1.0, 5.0),),))
        (layer,) = draw_layers(policy, 5000, torch.Generator().manual_seed(0))
        levels = layer.argument.abs() / 3  # 30 degrees are a magnitude of 10
        assert float(levels.min()) >= 0 and float(levels.max()) <= 10
        assert float(levels.mean()) == pytest.approx(mean, rel=0.05)
        assert float(levels.std()) == pytest.approx(spread, rel=0.05)


def test_jitter_is_three_changes_in_any_order() -> None:
    layers = draw_jitter(0.4, 600, torch.Generator().manual_seed(0))
    orders = torch.stack([layer.operation for layer in layers], dim=1)
    assert len({tuple(order) for order in orders.tolist()}) == 6 and all(len(set(row)) == 3 for row in orders.tolist())
    factors = torch.stack([layer.argument for layer in layers])
    assert 0.6 <= float(factors.min()) < 0.62 and 1.38 < float(factors.max()) <= 1.4


@pytest.mark.parametrize(("stored", "side"), [(32, 28), (16, 24), (20, 20)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_crops_are_pillow_s(stored: int, side: int, interpolation: str) -> None:
    """Cropped, resized with antialiasing and flipped one by one."""
    images = noisy_images(24, 3, stored)
    crops = draw_crops(Augmentation(), stored, 24, 0, 0)
    resampler = BatchResampler(stored, side, interpolation, CPU, True)
    ours = as_bytes(resampler(images.transpose(1, 2).contiguous(), torch.arange(24), crops))
    assert crops.flipped.any() and not crops.flipped.all()
    for number, image in enumerate(images):
        top, left, height, width = (int(value[number]) for value in crops[:4])
        cut = to_image(image).crop((left, top, left + width, top + height))
        # rows first: some versions of Pillow start with columns where that is less work, and round between the two
        resized = cut.resize((side, height), RESAMPLING[interpolation]).resize((side, side), RESAMPLING[interpolation])
        if crops.flipped[number]:
            resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        difference = (ours[number].int() - to_tensor(resized).int()).abs()
        assert int(difference.max()) <= 2 and float(difference.float().mean()) < 0.1


def test_padded_crops_bring_in_zeros() -> None:
    images = noisy_images(30, 1, 16).clamp(min=1)
    crops = draw_crops(Augmentation(crop="padded", flip=0.0), 16, 30, 3, 0)
    resampler = BatchResampler(16, 16, "bicubic", CPU, False)
    ours = as_bytes(resampler(images.transpose(1, 2).contiguous(), torch.arange(30), crops))
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    for number in range(30):
        top, left = int(crops.top[number]) + 2, int(crops.left[number]) + 2
        assert torch.equal(ours[number], padded[number, :, top : top + 16, left : left + 16])
    assert {int(value) for value in crops.top} == {-2, -1, 0, 1, 2}


def test_crops_have_timm_s_distribution() -> None:
    from timm.data.transforms import RandomResizedCropAndInterpolation as Reference

    random.seed(0)
    image = Image.new("L", (64, 64))
    theirs = np.array([Reference.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(4000)])
    drawn: Crops = draw_crops(Augmentation(), 64, 4000, 0, 0)
    ours = torch.stack(drawn[:4], dim=1).numpy()
    assert (
        abs(ours.mean(axis=0) - theirs.mean(axis=0)).max() < 1 and abs(ours.std(axis=0) - theirs.std(axis=0)).max() < 1
    )
    assert ours[:, 2:].min() >= 1 and (ours[:, :2] + ours[:, 2:]).max() <= 64
    assert abs(float(drawn.flipped.double().mean()) - 0.5) < 0.03


def test_erased_boxes_are_timm_s_and_nothing_else_changes() -> None:
    from timm.data.random_erasing import RandomErasing

    boxes = draw_boxes(0.25, 32, 4000, 0, 0)
    erased = boxes.height > 0
    random.seed(0)
    theirs = [RandomErasing(0.25, mode="pixel", device="cpu")(torch.zeros(1, 32, 32)) for _ in range(2000)]
    areas = torch.stack([(image != 0).sum() for image in theirs]).double()
    assert abs(float(erased.double().mean()) - 0.25) < 0.03 and abs(float((areas > 0).double().mean()) - 0.25) < 0.04
    own = (boxes.height * boxes.width)[erased].double()
    assert abs(float(own.mean()) - float(areas[areas > 0].mean())) < 15
    images = torch.full((4000, 1, 32, 32), 128, dtype=torch.uint8)
    noise = noise_for(0, 1, 32)
    found = finished(images, torch.tensor([[[1 / 255]]]), torch.zeros(1, 1, 1), boxes, noise)
    changed = (found != 128 / 255).flatten(1).sum(dim=1)
    assert torch.equal(changed, (boxes.height * boxes.width).where(erased, torch.tensor(0))[:, 0])
    assert abs(float(noise.std()) - 1) < 0.02


def test_several_boxes_are_timm_s() -> None:
    """How many pixels an image loses, and how many boxes it has, beside timm with up to 3 boxes."""
    from timm.data.random_erasing import RandomErasing

    boxes = draw_boxes(0.6, 32, 4000, 0, 0, most=3)
    numbers = (boxes.height > 0).sum(dim=1)
    shares = torch.bincount(numbers, minlength=4) / 4000
    assert torch.allclose(shares, torch.tensor([0.4, 0.2, 0.2, 0.2]), atol=0.025)
    images, noise = torch.full((4000, 1, 32, 32), 128, dtype=torch.uint8), noise_for(0, 1, 32)
    found = finished(images, torch.tensor([[[1 / 255]]]), torch.zeros(1, 1, 1), boxes, noise)
    ours = (found != 128 / 255).flatten(1).sum(dim=1).double()
    random.seed(0)
    erasing = RandomErasing(0.6, mode="pixel", max_count=3, device="cpu")
    theirs = torch.stack([(erasing(torch.zeros(1, 32, 32)) != 0).sum() for _ in range(4000)]).double()
    assert abs(float((ours > 0).double().mean() - (theirs > 0).double().mean())) < 0.04
    shares_of = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64)
    mine, expected = (areas[areas > 0].quantile(shares_of) for areas in (ours, theirs))
    assert float((mine - expected).abs().max()) < 15
    for row in (numbers == 3).nonzero()[:20, 0].tolist():  # pixel by pixel, the last box on top
        reference = torch.full((32, 32), 128 / 255)
        for top, left, height, width, down, across in zip(*(values[row].tolist() for values in boxes), strict=True):
            window = noise[0, top + down : top + down + height, left + across : left + across + width]
            reference[top : top + height, left : left + width] = window
        assert torch.equal(found[row, 0], reference)
    single, same = draw_boxes(0.6, 32, 50, 0, 0), draw_boxes(0.6, 32, 50, 0, 0, most=1)
    assert all(
        values.shape == (50, 1) and torch.equal(values, other) for values, other in zip(single, same, strict=True)
    )


def test_augmentation_as_plain_data() -> None:
    given = Augmentation(rand_augment="rand-m9-mstd0.5-inc1", scale=(0.2, 1.0), erase=0.25, repeats=3)
    assert Augmentation(**json.loads(json.dumps(asdict(given)))) == given
    for options, message in (
        ({"crop": "centre"}, "`crop` must be one of resized, padded, none, but got 'centre'"),
        ({"scale": (0.5, 0.1)}, "`scale` must be two numbers, 0 < low <= high <= 1"),
        ({"ratio": (0, 1)}, "`ratio` must be two numbers"),
        ({"flip": 1.5}, "`flip` must be from 0 to 1, but got 1.5"),
        ({"erase": True}, "`erase` must be from 0 to 1"),
        ({"repeats": 0}, "`repeats` must be a whole number from 1"),
        ({"erase_count": 0}, "`erase_count` must be a whole number from 1"),
        ({"rand_augment": "auto-v0"}, "`rand_augment` must be timm's text"),
        ({"rand_augment": "rand-x9"}, "`rand_augment` must be timm's text"),
        ({"rand_augment": "v0-m9"}, "`rand_augment` must be timm's text"),
        ({"rand_augment": "v0-mstd0.x"}, "`rand_augment` must be timm's text"),
        ({"rand_augment": ""}, "`rand_augment` must be timm's text"),
        ({"rand_augment": "3a"}, "`rand_augment` must be without Desaturate"),
        ({"rand_augment": "rand-m9-t3a"}, "`rand_augment` must be without Desaturate"),
        ({"rand_augment": "rand-m9", "color_jitter": 0.3}, "`color_jitter` must be 0 beside `rand_augment`"),
        ({"interpolation": "nearest"}, "`interpolation` must be one of"),
    ):
        with pytest.raises(BadSettings, match=message):
            Augmentation(**options)  # type: ignore[arg-type]
