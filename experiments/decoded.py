"""A dataset whose images stay decoded: of many trainings in one process, the first one reads the files."""

from __future__ import annotations

from functools import cached_property, lru_cache

from torch import Tensor

from vitsearch.cost import Geometry
from vitsearch.data import Batch, Dataset, Images, Split, open_training_data


class Decoded:
    """A part, each image as it was read the first time."""

    def __init__(self, images: Images) -> None:
        self.images, self.labels = images, images.labels
        self._read: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> Tensor:
        if index not in self._read:
            self._read[index] = self.images.read(index)
        return self._read[index]


class DecodedDataset:
    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.name, self.classes, self.class_names = dataset.name, dataset.classes, dataset.class_names
        self._parts: dict[Split, Decoded] = {}

    @cached_property
    def channels(self) -> int:
        return self.dataset.channels

    @cached_property
    def mean(self) -> tuple[float, ...]:
        return self.dataset.mean

    @cached_property
    def std(self) -> tuple[float, ...]:
        return self.dataset.std

    def part(self, split: Split) -> Images:
        if split not in self._parts:
            self._parts[split] = Decoded(self.dataset.part(split))
        return self._parts[split]

    def draw(self, count: int, geometry: Geometry, seed: int) -> Batch:
        return self.dataset.draw(count, geometry, seed)


@lru_cache(maxsize=1)
def decoded(text: str) -> Dataset:
    """What `text` opens, the same for all of this process that ask for it."""
    return DecodedDataset(open_training_data(text))
