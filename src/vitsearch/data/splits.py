"""Labels that can be trusted, and parts that are held out where a dataset has none of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitsearch.architecture import brief, check_whole
from vitsearch.data.base import ChosenImages, Images, generator_for
from vitsearch.errors import BadData

VALIDATION = 1 / 10  # of what would be the training part
TEST = 2 / 9  # of what the validation part leaves: 20 % of all when both are held out


def check_labels(values: Any, classes: int | None, where: str) -> Tensor:
    """int64 [N]; every label from 0 to `classes` - 1, or the first one that is not is named."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        wrong = [(row, value) for row, value in enumerate(array.tolist()) if not _is_whole(value)]
        if wrong:
            row, value = wrong[0]
            raise BadData(f"{where}: labels must be whole numbers, but item {row} has {brief(value)}")
    if array.ndim != 1:
        raise BadData(f"{where}: every image must have one label, but got the shape {array.shape}")
    limit = min(classes if classes is not None else 1 << 24, 1 << 24)
    labels = array.astype(np.int64)
    bad = np.flatnonzero((labels < 0) | (labels >= limit))
    if len(bad):
        rule = f"from 0 to {limit - 1}"
        raise BadData(f"{where}: labels must be {rule}, but item {bad[0]} has {labels[bad[0]]}")
    return torch.from_numpy(labels.copy())


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_no_class_is_empty(labels: Tensor, classes: int, names: Sequence[str] | None, where: str) -> None:
    empty = (labels.bincount(minlength=classes) == 0).nonzero().flatten().tolist()
    if empty:
        first = f"class {empty[0]} ({names[empty[0]]!r})" if names else f"class {empty[0]}"
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise BadData(f"{where}: every class must have an image to train on, but {first}{more} has none")


def hold_out(labels: Tensor, fraction: float, purpose: str) -> tuple[Tensor, Tensor]:
    """Indices kept and indices held out, both ascending: `fraction` of each class, and at least one where it has two.

    Which ones depends on the labels alone, not on the seed of a run.
    """
    order = torch.randperm(len(labels), generator=generator_for(0, purpose))
    order = order[labels[order].argsort(stable=True)]  # shuffled inside each class
    counts = labels.bincount()
    held = (counts.double() * fraction + 0.5).long().clamp(min=1).minimum(counts - 1).clamp(min=0)
    place = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]  # within its class
    out = place < held[labels[order]]
    return order[~out].sort().values, order[out].sort().values


def some_of_each_class(images: Images, count: int) -> ChosenImages:
    """`count` images, as even over classes as can be; always the same ones, and more of them hold the fewer."""
    check_whole("images", count, most=len(images))
    order = torch.randperm(len(images), generator=generator_for(0, "images that judge"))
    labels = images.labels[order]
    by_class = labels.argsort(stable=True)
    counts = labels.bincount()
    place = torch.empty_like(order)
    place[by_class] = torch.arange(len(order)) - (counts.cumsum(0) - counts)[labels[by_class]]  # within its class
    chosen = order[place.argsort(stable=True)[:count]]  # the first of every class, then the second, ...
    return ChosenImages(images, chosen.sort().values.tolist())
