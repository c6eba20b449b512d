"""Batched augmentation beside Pillow and timm, image by image."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict
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
from vitsearch.data.rand_augment import (
    MOVES,
    OPERATIONS,
    Layer,
    Policy,
    apply_groups,
    argument_of,
    base_name,
    draw_jitter,
    draw_layers,
)
from vitsearch.data.resampling import BatchResampler
from vitsearch.data.resident import grouped
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
        apply_groups(ours, grouped(layer, 33), torch.full((channels,), 77), interpolation)
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
    operation = torch.tensor([-1, 2, -1, OPERATIONS.index("Rotate"), OPERATIONS.index("Color"), -1])
    ours = images.clone()
    apply_groups(ours, grouped(Layer(operation, torch.full((6,), 0.5).double()), 8), torch.zeros(3), "bicubic")
    changed = (ours != images).flatten(1).any(dim=1)
    assert changed.tolist() == [False, True, False, True, True, False]


@pytest.mark.parametrize("name", [*auto_augment._RAND_TRANSFORMS, *auto_augment._RAND_INCREASING_TRANSFORMS])
@pytest.mark.parametrize("sign", [1, -1])
def test_arguments_are_timm_s(name: str, sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_augment, "_randomly_negate", lambda value: sign * value)
    for level in (0.0, 0.3, 4.9, 9.0, 10.0):
        level_of = auto_augment.LEVEL_TO_ARG[name]
        expected = level_of(level, {})[0] if level_of else 0
        ours = argument_of(name, torch.tensor([level], dtype=torch.float64), torch.tensor([sign]))
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
    assert len(layers) == policy.layers == (3 if "n3" in text else 2)
    applied = torch.stack([layer.operation for layer in layers]) >= 0
    assert abs(float(applied.double().mean()) - policy.probability) < 0.03
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
    assert torch.equal(changed, (boxes.height * boxes.width).where(erased, torch.tensor(0)))
    assert abs(float(noise.std()) - 1) < 0.02


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
        ({"rand_augment": "auto-v0"}, "`rand_augment` must be timm's text"),
        ({"rand_augment": "rand-x9"}, "`rand_augment` must be timm's text"),
        ({"rand_augment": "rand-m9-t3a"}, "`rand_augment` must be without Desaturate"),
        ({"rand_augment": "rand-m9", "color_jitter": 0.3}, "`color_jitter` must be 0 beside `rand_augment`"),
        ({"interpolation": "nearest"}, "`interpolation` must be one of"),
    ):
        with pytest.raises(BadSettings, match=message):
            Augmentation(**options)  # type: ignore[arg-type]
