"""Pillow's operations on batches of bytes. Every operation sees just its own images.

On a GPU the images of a kind are worked on in pieces of one fixed size, filled up with repeated images, so that each
kind is one kernel that is compiled once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitsearch.data.fusing import Fused
from vitsearch.data.rand_augment import ARITHMETIC, MOVES, OPERATIONS, Layer

PIECES = 16  # of a batch on a GPU


def luma(images: Tensor) -> Tensor:
    """Pillow's grey in int32 [B, 1, H, W]."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = images.int().unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16)[:, None]


def blend(degenerate: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Pillow's: from `degenerate` at 0 through the image at 1 and beyond, cut to bytes."""
    below = degenerate.float()
    return (images.float() - below).mul_(factor).add_(below).clamp_(0, 255).to(torch.uint8)


def changed(name: str, images: Tensor, argument: Tensor) -> Tensor:
    """One of the arithmetic operations on all of uint8 [b, C, H, W]."""
    value = argument.view(-1, 1, 1, 1)
    match name:
        case "Invert":
            return 255 - images
        case "Posterize":  # the lower 8 - bits are cleared
            return images & ((255 << (8 - value.int().clamp(0, 8))) & 255).to(torch.uint8)
        case "Solarize":
            return torch.where(images < value.to(torch.int16), images, 255 - images)
        case "SolarizeAdd":
            return torch.where(images < 128, images + torch.minimum(255 - images, value.to(torch.uint8)), images)
        case "Brightness":
            return images.float().mul_(value).clamp_(0, 255).to(torch.uint8)
        case "Contrast":
            mean = (luma(images).float().mean(dim=(1, 2, 3), keepdim=True) + 0.5).floor()
            return blend(mean, images, value)
        case "Color":
            return blend(luma(images), images, value)
        case _:
            return auto_contrast(images)


def auto_contrast(images: Tensor) -> Tensor:
    flat = images.flatten(2)
    low, high = (ends.float()[..., None] for ends in (flat.amin(2, keepdim=True), flat.amax(2, keepdim=True)))
    several = high > low
    low, span = torch.where(several, low, 0), torch.where(several, high - low, 255)  # 255 / 255: nothing changes
    return (images.float() - low).mul_(255).div_(span).clamp_(0, 255).to(torch.uint8)


def arithmetic(images: Tensor, rows: Tensor, chosen: Tensor) -> Tensor:
    """The images of `rows`, each by an operation of its own; `chosen` float32 [b, 2] has its number and argument."""
    taken = images.index_select(0, rows)
    found = taken
    number, argument = chosen[:, 0].view(-1, 1, 1, 1), chosen[:, 1]
    for each, name in enumerate(ARITHMETIC):
        found = torch.where(number == each, changed(name, taken, argument), found)
    return found


def sharpened(images: Tensor, rows: Tensor, factor: Tensor) -> Tensor:
    """From the image smoothed by (1 1 1; 1 5 1; 1 1 1) / 13 through the image and beyond; its border stays."""
    taken = images.index_select(0, rows)
    height, width = taken.shape[-2:]
    if min(height, width) < 3:
        return taken
    values = taken.float()
    smooth = values.clone()
    total = 4 * values[..., 1:-1, 1:-1]
    for y in range(3):
        for x in range(3):
            total = total + values[..., y : height - 2 + y, x : width - 2 + x]
    smooth[..., 1:-1, 1:-1] = (total / 13 + 0.5).floor()
    return blend(smooth, taken, factor.view(-1, 1, 1, 1))


def equalised(images: Tensor) -> Tensor:
    """Pillow's equalize: the running count of darker pixels in steps of 1/255 of all but the brightest."""
    indices = images.flatten(2).long()
    counts = torch.zeros(*images.shape[:2], 256, dtype=torch.int32, device=images.device)
    counts.scatter_add_(2, indices, counts.new_ones(1).expand_as(indices))
    brightest = counts.gather(2, images.flatten(2).amax(2, keepdim=True).long())
    step = (indices.shape[2] - brightest) // 255
    darker = counts.cumsum(2, dtype=torch.int32) - counts
    table = ((step // 2 + darker) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device, dtype=torch.int32))
    return table.to(torch.uint8).gather(2, indices).view_as(images)


def matrices(operation: Tensor, argument: Tensor, side: int) -> Tensor:
    """float32 [b, 6]: (x, y) of the result to a x + b y + c, d x + e y + f of the source, as Pillow's AFFINE."""
    rotate, shear_x, shear_y, translate_x, translate_y = (
        torch.where(operation == OPERATIONS.index(name), argument, 0.0) for name in MOVES
    )
    cosine, sine, middle = torch.cos(rotate.deg2rad()), torch.sin(-rotate.deg2rad()), side / 2
    across = middle - cosine * middle - sine * middle + translate_x * side
    down = middle + sine * middle - cosine * middle + translate_y * side
    return torch.stack([cosine, sine + shear_x, across, shear_y - sine, cosine, down], dim=1).float()


def moved(images: Tensor, rows: Tensor, matrix: Tensor, fill: Tensor, interpolation: str) -> Tensor:
    """Resample the images of `rows` by `matrix` float32 [b, 6]; what comes from outside is `fill` [C]."""
    height, width = images.shape[-2:]
    x = torch.arange(width, device=images.device) + 0.5
    y = (torch.arange(height, device=images.device) + 0.5)[:, None]
    a, b, c, d, e, f = (column[:, None, None] for column in matrix.unbind(1))
    across, down = a * x + b * y + c, d * x + e * y + f  # [b, height, width]
    inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
    grid = torch.stack([across * (2 / width) - 1, down * (2 / height) - 1], dim=3)
    found = torch.nn.functional.grid_sample(
        images.index_select(0, rows).float(), grid, mode=interpolation, padding_mode="border", align_corners=False
    )
    # a hair more than nothing, so that whole numbers that came out a little short are not cut to the next below
    return torch.where(inside[:, None], found + 1e-3, fill.view(1, -1, 1, 1)).clamp_(0, 255).to(torch.uint8)


Group = tuple[str, Tensor, Tensor]
"""An operation, the rows it is for, and what it needs for each of them, on the device."""


def grouped(layer: Layer, side: int, size: int | None = None) -> list[Group]:
    """The images of each operation; all that move pixels are one group, with matrices [b, 6].

    With a `size`, so are all arithmetic ones, and groups come in pieces of that size.
    """
    order = layer.operation.argsort(stable=True)
    counts = torch.bincount(layer.operation + 1, minlength=len(OPERATIONS) + 1).tolist()
    rows = dict(zip(OPERATIONS, torch.split(order, counts)[1:], strict=True))
    numbers = torch.stack([layer.operation, layer.argument], dim=1).float()
    moves = torch.cat([rows[name] for name in MOVES])
    groups = [(name, rows[name], numbers[rows[name], 1]) for name in ("Equalize", "Sharpness")]
    if size is None:
        groups += [(name, rows[name], numbers[rows[name], 1]) for name in ARITHMETIC]
    else:
        together = torch.cat([rows[name] for name in ARITHMETIC])
        groups.append(("arithmetic", together, numbers[together]))
    if len(moves):
        groups.append(("move", moves, matrices(layer.operation[moves], layer.argument[moves], side)))
    return [piece for group in groups if len(group[1]) for piece in pieces(group, size)]


def pieces(group: Group, size: int | None) -> list[Group]:
    name, rows, needed = group
    if size is None or name == "Equalize":
        return [group]
    places = torch.arange(-(-len(rows) // size) * size).clamp(max=len(rows) - 1)
    split = zip(torch.split(rows[places], size), torch.split(needed[places], size), strict=True)
    return [(name, *each) for each in split]


class Changer:
    """Applies groups to uint8 [B, C, H, W], in place. No image is in two groups."""

    def __init__(self, fill: Tensor, interpolation: str, batch: int, device: torch.device) -> None:
        self.fill, self.interpolation = fill, interpolation
        self.size = -(-batch // PIECES) if device.type == "cuda" else None
        self.arithmetic, self.sharpened, self.moved = (Fused(each, device) for each in (arithmetic, sharpened, moved))
        self._compiled = self.size is None

    def __call__(self, images: Tensor, groups: list[Group]) -> None:
        if not self._compiled:
            self._compile(images)
        for name, rows, needed in groups:
            found = self._changed(name, images, rows, needed)
            into, new = images.flatten(1), found.flatten(1)
            if into.shape[1] % 8 == 0:  # an eighth of the work
                into, new = into.view(torch.int64), new.view(torch.int64)
            into.index_copy_(0, rows, new)

    def _compile(self, images: Tensor) -> None:
        """All kinds, whether the first batch has them or not: later batches are made where nothing may compile."""
        assert self.size is not None
        rows = torch.zeros(self.size, dtype=torch.int64, device=images.device)
        for name, needs in (("arithmetic", (2,)), ("Sharpness", ()), ("move", (6,))):
            self._changed(name, images, rows, torch.zeros(self.size, *needs, device=images.device))
        self._compiled = True

    def _changed(self, name: str, images: Tensor, rows: Tensor, needed: Tensor) -> Tensor:
        match name:
            case "arithmetic":
                return self.arithmetic(images, rows, needed)
            case "Sharpness":
                return self.sharpened(images, rows, needed)
            case "move":
                return self.moved(images, rows, needed, self.fill, self.interpolation)
            case "Equalize":
                return equalised(images.index_select(0, rows))
            case _:
                return changed(name, images.index_select(0, rows), needed)
