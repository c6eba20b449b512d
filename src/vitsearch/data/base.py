"""What a dataset offers to a search and to a trainer, and the registry of datasets."""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from vitsearch.architecture import brief
from vitsearch.cost import Geometry
from vitsearch.errors import BadData, VitsearchError
from vitsearch.registry import Registry

Split = Literal["train", "validation", "test"]
SWEEPING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Batch(NamedTuple):
    """`images` [B, channels, side, side] in float32, normalised; `labels` [B] in int64."""

    images: Tensor
    labels: Tensor


class ImageSource(Protocol):
    """Labelled images. `draw` takes from the training part alone and depends on nothing but its arguments."""

    @property
    def classes(self) -> int | None:
        """None: labels are drawn for whatever number of classes the network has."""

    def draw(self, count: int, geometry: Geometry, seed: int) -> Batch: ...


class Images(Protocol):
    """One part of a dataset: `labels` [N] in int64 on the CPU, images decoded one at a time."""

    @property
    def labels(self) -> Tensor: ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> Tensor:
        """uint8 [channels, height, width]; raises CorruptImage."""
        ...


class JoinedImages:
    """Several parts as one."""

    def __init__(self, parts: Sequence[Images]) -> None:
        self.parts = parts
        self.labels = torch.cat([part.labels for part in parts])

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> Tensor:
        for part in self.parts:
            if index < len(part):
                return part.read(index)
            index -= len(part)
        raise IndexError(index)


class ChosenImages:
    """Some of a part, in the order given."""

    def __init__(self, images: Images, indices: Sequence[int]) -> None:
        self.images, self.indices = images, indices
        self.labels = images.labels[torch.tensor(indices, dtype=torch.long)]

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> Tensor:
        return self.images.read(self.indices[index])


class Dataset(ImageSource, Protocol):
    """What training needs. No image is in two parts; `mean` and `std` are of the training part, in [0, 1]."""

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def class_names(self) -> tuple[str, ...] | None: ...
    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...
    def part(self, split: Split) -> Images: ...


DATASETS: Registry[Callable[..., ImageSource]] = Registry("dataset", "vitsearch.data")


def open_data(text: str) -> ImageSource:
    """`digits`, or a kind and its argument: `parquet:data/cifar10`, `folder:data/pets`."""
    kind, colon, argument = text.partition(":")
    entry = DATASETS[kind]
    takes = [each for each in inspect.signature(entry).parameters.values() if each.kind not in SWEEPING]
    if not takes and colon:
        raise VitsearchError(f"`data` must be {kind!r} alone, without an argument, but got {brief(text)}")
    if takes and takes[0].default is inspect.Parameter.empty and not argument:
        raise VitsearchError(f"`data` must be '{kind}:{takes[0].name.upper()}', but got {brief(text)}")
    try:
        return entry(argument) if colon else entry()
    except (OSError, ValueError) as error:  # ValueError: a null character in a name
        reason = getattr(error, "strerror", None) or error
        raise BadData(f"`data` must be readable, but got {brief(text)}: {reason}") from None


def open_training_data(text: str) -> Dataset:
    """Like `open_data`, for what has parts to train on."""
    source = open_data(text)
    if not callable(getattr(source, "part", None)):
        raise VitsearchError(f"`data` must have parts for training, but {brief(text)} serves proxies only")
    return cast(Dataset, source)


def generator_for(seed: int, purpose: str) -> torch.Generator:
    """A generator of its own for each purpose, so that images do not repeat the numbers of the weights."""
    return torch.Generator().manual_seed(_hashed(f"{seed}/{purpose}") >> 1)


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@contextmanager
def seeded_everything(*parts: int | str) -> Iterator[None]:
    """For code that draws from the global generators of Python, numpy and torch's CPU; they are put back afterwards."""
    seed = _hashed("/".join(str(part) for part in parts))
    kept = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    torch.default_generator.manual_seed(seed >> 1)  # torch.manual_seed would touch the devices too
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.default_generator.set_state(kept[2])
