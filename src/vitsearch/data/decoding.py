"""Encoded images to uint8 tensors: any of Pillow's formats, turned as EXIF says, grey or colour as asked."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from vitsearch.errors import CorruptImage

GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N", "F")
RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def open_image(encoded: bytes | str) -> Image.Image:
    """From bytes or a path. Images beyond Pillow's limit on pixels are refused before they are decoded."""
    image = Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded)
    limit = Image.MAX_IMAGE_PIXELS
    if limit and image.width * image.height > limit:
        raise CorruptImage(f"{image.width} x {image.height} pixels are more than the limit of {limit}")
    return image


def channels_of(image: Image.Image) -> int:
    """1 for grey, 3 for everything with colour in it, palettes too."""
    return 1 if image.mode in GREY_MODES else 3


def to_mode(image: Image.Image, channels: int) -> Image.Image:
    """Mode L or RGB, upright. Transparency is dropped, as timm and torchvision do."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        image = _from_wide(image)
    elif image.mode == "F":
        raise CorruptImage("floating-point images have no known range")
    elif image.mode in ("P", "PA") and "transparency" in image.info:
        image = image.convert("RGBA")  # palettes with bytes for transparency go through RGBA
    return image.convert("L" if channels == 1 else "RGB")


def _from_wide(image: Image.Image) -> Image.Image:
    """16 bits a pixel to 8; Pillow's own conversion would cut at 255."""
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise CorruptImage("32-bit integer images have no known range")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def to_tensor(image: Image.Image) -> Tensor:
    """A mode L or RGB image as uint8 [channels, height, width]."""
    pixels = np.array(image, dtype=np.uint8)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def to_image(pixels: Tensor) -> Image.Image:
    """uint8 [1 or 3, height, width] as a mode L or RGB image."""
    array = pixels.numpy()
    return Image.fromarray(array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0)))


def in_channels(pixels: Tensor, channels: int) -> Tensor:
    """Colour to grey by Pillow's luma (ITU-R 601-2) where one channel is asked; anything else as it is."""
    return to_tensor(to_image(pixels).convert("L")) if channels == 1 and len(pixels) == 3 else pixels


def resize_and_crop(pixels: Tensor, resized: int, side: int, interpolation: str = "bicubic") -> Tensor:
    """Shorter side to `resized`, then the square of `side` from the middle."""
    height, width = pixels.shape[1:]
    if height == width == resized == side:
        return pixels
    shorter = min(height, width)
    target = (max(resized, width * resized // shorter), max(resized, height * resized // shorter))
    image = to_image(pixels)
    image = image if target == image.size else image.resize(target, RESAMPLING[interpolation])
    left, top = round((target[0] - side) / 2), round((target[1] - side) / 2)
    return to_tensor(image.crop((left, top, left + side, top + side)))
