from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitsearch.data.decoding import channels_of, open_image, resize_and_crop, to_mode, to_tensor
from vitsearch.data.stored import StoredDataset
from vitsearch.errors import CorruptImage


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def decoded(data: bytes, channels: int) -> torch.Tensor:
    return to_tensor(to_mode(open_image(data), channels))


def test_sixteen_bits_keep_their_range() -> None:
    wide = Image.fromarray(np.array([[0, 257, 32896, 65535]], dtype=np.uint16))
    for data in (saved(wide), saved(wide, "TIFF")):
        assert channels_of(open_image(data)) == 1
        assert decoded(data, 1)[0, 0].tolist() == [0, 1, 128, 255]
        assert decoded(data, 3)[:, 0, 2].tolist() == [128] * 3


def test_palette_transparency_and_print_colours() -> None:
    red = Image.new("RGB", (4, 3), (255, 0, 0))
    for image, kind in (
        (red.quantize(2), "PNG"),
        (red.quantize(2), "GIF"),
        (red.convert("RGBA"), "PNG"),
        (red.convert("CMYK"), "TIFF"),
    ):
        data = saved(image, kind)
        assert channels_of(open_image(data)) == 3
        assert decoded(data, 3)[:, 1, 1].tolist() == [255, 0, 0], (image.mode, kind)
        assert decoded(data, 1)[:, 1, 1].tolist() == [76]
    clear = red.quantize(2)
    assert decoded(saved(clear, transparency=bytes([0, 255])), 3)[:, 0, 0].tolist() == [255, 0, 0]


def test_grey_and_one_bit() -> None:
    grey = saved(Image.new("L", (2, 2), 7))
    assert channels_of(open_image(grey)) == 1 and decoded(grey, 3)[:, 0, 0].tolist() == [7, 7, 7]
    assert decoded(saved(Image.new("1", (2, 2), 1)), 1)[0, 0, 0] == 255
    assert decoded(saved(Image.new("LA", (2, 2), (9, 3))), 1)[0, 0, 0] == 9


def test_images_stand_upright() -> None:
    image = Image.new("RGB", (6, 4), "black")
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    turned = decoded(saved(image, exif=exif), 3)
    assert turned.shape == (3, 6, 4) and turned[0, 0, 3] == 255


class OneFile:
    labels = [0]

    def __init__(self, data: bytes) -> None:
        self.data = data

    def open(self, index: int) -> Image.Image:
        return open_image(self.data)

    def describe(self, index: int) -> str:
        return "the file"


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", ["cut", "text", "empty", "float", "bomb", "huge"])
def test_what_cannot_be_decoded_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    data = {
        "cut": saved(noise, "JPEG")[:400],
        "text": b"no image",
        "empty": b"",
        "float": saved(Image.new("F", (2, 2)), "TIFF"),
        "bomb": saved(noise),
        "huge": saved(noise),
    }[name]
    images = StoredDataset("one", {split: lambda: OneFile(data) for split in ("train", "validation", "test")})
    images.channels = 3  # not looked at
    if name in ("bomb", "huge"):  # just above Pillow's limit, where it only warns, and above twice that
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500 if name == "bomb" else 100)
    with pytest.raises(CorruptImage, match=r"the file cannot be decoded: .+"):
        images.part("train").read(0)


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (33, 33), (17, 90)])
def test_resize_and_crop_is_timm_s(size: tuple[int, int]) -> None:
    from timm.data.transforms import CenterCropOrPad
    from torchvision import transforms

    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8))
    interpolation = transforms.InterpolationMode.BICUBIC
    reference = CenterCropOrPad(24)(transforms.Resize(27, interpolation)(image))
    ours = resize_and_crop(to_tensor(image), 27, 24)
    assert torch.equal(ours, to_tensor(reference))
