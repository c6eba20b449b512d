"""Several processes, one training: what `torchrun` sets in the environment, and nothing where it did not start us."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from vitsearch.environment import pick_device
from vitsearch.errors import VitsearchError


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among all. `writes` is true in exactly one."""

    rank: int = 0
    size: int = 1
    device: torch.device

    @property
    def writes(self) -> bool:
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes, in all of them."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def any(self, here: bool) -> bool:
        """Whether it is so in one process at least."""
        return bool(self.total(torch.tensor(float(here), device=self.device)))

    def agree(self, refused: Exception | None) -> None:
        """Go on in all processes or in none: those that could, say so, and leave the reason to the one that cannot."""
        refusals = self.any(refused is not None)
        if refused is not None:
            raise refused
        if refusals:
            raise VitsearchError("another process of this training cannot go on; its line says why")


@contextmanager
def join_world(device: str = "auto") -> Iterator[World]:
    """The process group that `torchrun` announces: NCCL between GPUs, gloo otherwise."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = pick_device(device)
    if size == 1:
        yield World(device=chosen)
        return
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    if chosen.type == "cuda":
        if local >= torch.cuda.device_count():
            raise VitsearchError(
                f"processes on this machine must be at most its GPUs, {torch.cuda.device_count()}, but got {local + 1}"
            )
        chosen = torch.device("cuda", local)
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield World(rank=rank, size=size, device=chosen)
    finally:
        dist.destroy_process_group()
