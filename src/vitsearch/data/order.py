"""Which images each step sees, and how many of them may be unreadable."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from vitsearch.data.base import generator_for
from vitsearch.errors import BadData, VitsearchError

log = logging.getLogger("vitsearch")


class Order:
    """A permutation for each epoch from the seed; the last images that fill no batch wait for another epoch."""

    def __init__(self, count: int, *, batch_size: int, seed: int, repeats: int, rank: int, world: int) -> None:
        if not 1 <= batch_size <= count:
            raise VitsearchError(f"`batch_size` must be from 1 to the {count} images to train on, but got {batch_size}")
        check_world(batch_size, rank, world)
        self.count, self.batch_size, self.seed, self.repeats = count, batch_size, seed, repeats
        self.steps_per_epoch = count // batch_size
        share = batch_size // world
        self.own = slice(rank * share, (rank + 1) * share)
        """The rows of the whole batch that this process sees."""
        self._epoch = (-1, torch.empty(0))

    def batch(self, step: int) -> Tensor:
        """Indices of the whole batch, over all processes."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = epoch, epoch_order(self.count, self.seed, epoch, self.repeats)
        return self._epoch[1][place * self.batch_size : (place + 1) * self.batch_size]


def epoch_order(count: int, seed: int, epoch: int, repeats: int) -> Tensor:
    """With `repeats`, each image that many times in a row, cut to `count`: timm's RepeatAugSampler as a whole."""
    order = torch.randperm(count, generator=generator_for(seed, f"epoch/{epoch}"))
    return order.repeat_interleave(repeats)[:count] if repeats > 1 else order


def check_world(batch_size: int, rank: int, world: int) -> None:
    if not 0 <= rank < world:
        raise VitsearchError(f"`rank` must be from 0 to {world - 1}, but got {rank}")
    if batch_size % world:
        raise VitsearchError(f"`batch_size` must be a multiple of the {world} processes, but got {batch_size}")


class Unreadable:
    """Images that could not be decoded: said once, counted, and too many are an error."""

    def __init__(self, count: int, limit: int | None = None) -> None:
        self.limit = limit if limit is not None else max(10, count // 100)
        self.count = count
        self.found: dict[int, str] = {}
        self._reported = 0

    def add(self, index: int, reason: str) -> None:
        if index in self.found:
            return
        if not self.found:
            log.warning("%s; it is left out, and up to %d of %d images may be", reason, self.limit, self.count)
        self.found[index] = reason
        if len(self.found) > self.limit or len(self.found) == self.count:
            first = next(iter(self.found.values()))
            raise BadData(
                f"at most {min(self.limit, self.count - 1)} of {self.count} images may be unreadable,"
                f" but {len(self.found)} are; the first: {first}"
            )

    def report(self) -> None:
        if len(self.found) > self._reported:
            self._reported = len(self.found)
            log.warning("%d of %d images could not be decoded so far and were left out", len(self.found), self.count)


def next_readable(index: int, count: int, unreadable: Sequence[int]) -> int:
    """The first one after `index` that is not known to be unreadable, around the end."""
    known = set(unreadable)
    return next(other % count for other in range(index + 1, index + count) if other % count not in known)
