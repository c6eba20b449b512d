"""Datasets of torchvision that are on this machine already: `torchvision:NAME@ROOT`. Nothing is downloaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from PIL import Image

from vitsearch.data.base import DATASETS, Split
from vitsearch.data.stored import FOUND, Records, StoredDataset
from vitsearch.errors import BadData, UnknownName, VitsearchError
from vitsearch.registry import did_you_mean

LABELS = ("targets", "labels", "_labels")


class TorchvisionRecords:
    def __init__(self, dataset: Any, name: str) -> None:
        self.dataset = dataset
        self.name = name
        stored = [getattr(dataset, attribute, None) for attribute in LABELS]
        found = next((values for values in stored if values is not None and len(values) == len(dataset)), None)
        # a few datasets keep labels only beside the images: those are decoded once for them
        self.labels: Any = found if found is not None else [dataset[index][1] for index in range(len(dataset))]

    def open(self, index: int) -> Image.Image:
        image = self.dataset[index][0]
        if not isinstance(image, Image.Image):
            raise TypeError(f"an image was expected, but got {type(image).__name__}")
        return image

    def describe(self, index: int) -> str:
        return f"{self.name}, item {index}"


def find_class(name: str) -> Callable[..., Any]:
    import torchvision.datasets as known  # the package of that name, not this file

    offered = {
        each: kind
        for each in known.__all__
        if inspect.isclass(kind := getattr(known, each))
        and issubclass(kind, known.VisionDataset)
        and {"root"} <= inspect.signature(kind).parameters.keys()
    }
    if name not in offered:
        raise UnknownName(f"no dataset of torchvision named {name!r}.{did_you_mean(name, sorted(offered))}")
    return offered[name]


def part_arguments(kind: Callable[..., Any], split: Split) -> list[dict[str, Any]]:
    """What to try for a part, in this order; nothing where the dataset has no such part."""
    takes = inspect.signature(kind).parameters
    fixed: dict[str, Any] = {"download": False} if "download" in takes else {}
    if "train" in takes:
        return [] if split == "validation" else [fixed | {"train": split == "train"}]
    if "split" in takes:
        names = FOUND[split] + (("trainval",) if split == "train" else ())
        return [fixed | {"split": name} for name in names]
    return [fixed] if split == "train" else []


def open_part(kind: Callable[..., Any], name: str, root: str, split: Split) -> Any:
    """The part, or None where torchvision knows no such part of this dataset."""
    for arguments in part_arguments(kind, split):
        try:
            return kind(root=root, **arguments)
        except ValueError:  # torchvision's answer to the name of a part it does not have
            continue
        except Exception as error:  # missing or damaged files: each dataset says it in its own way
            reason = " ".join(str(error).split())[:160]
            raise BadData(f"`torchvision:{name}@ROOT` must hold the files, but {root!r} does not: {reason}") from None
    return None


@DATASETS.register("torchvision")
def torchvision(name_at_root: str) -> StoredDataset:
    name, at, root = name_at_root.partition("@")
    if not at or not name or not root:
        raise VitsearchError(f"`data` must be 'torchvision:NAME@ROOT', but got 'torchvision:{name_at_root}'")
    kind = find_class(name)
    parts: dict[Split, Any] = {split: open_part(kind, name, root, split) for split in ("train", "validation", "test")}
    if parts["train"] is None:
        raise BadData(f"`torchvision:NAME@ROOT` must have a training part, but {name!r} offers none by that name")
    records = {
        split: partial(_open, part, f"torchvision:{name}, {split}") for split, part in parts.items() if part is not None
    }
    names = getattr(parts["train"], "classes", None)
    whole = isinstance(names, (list, tuple)) and all(isinstance(each, str) for each in names)
    return StoredDataset(f"torchvision:{name}@{root}", records, class_names=names if whole else None)


def _open(part: Any, name: str) -> Records:
    return TorchvisionRecords(part, name)
