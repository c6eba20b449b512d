"""Chains of small operations as one kernel on CUDA."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch
from torch import Tensor

from vitsearch.environment import is_out_of_memory

log = logging.getLogger("vitsearch")
TRACING = "using FX to symbolically trace a dynamo-optimized function"
"""Part of what torch says: whether a function is being traced is one flag for all threads."""
PAUSE = 0.01


class Fused:
    """`function`, compiled where the device is a GPU of CUDA; as it is elsewhere, and where compiling fails.

    Compiling is the first call. What goes wrong later, or for want of memory, is not hidden. While another thread
    compiles something, torch refuses to run what is compiled already: then a call waits for it.
    """

    def __init__(self, function: Callable[..., Tensor], device: torch.device) -> None:
        self.plain = function
        self.compiled = torch.compile(function, dynamic=False) if device.type == "cuda" else None
        self._ran = False

    def __call__(self, *arguments: object) -> Tensor:
        if self.compiled is not None:
            try:
                found = patiently(self.compiled, *arguments)
                self._ran = True
                return found
            except Exception as error:  # no compiler on this machine, or one that fails: slower, but the same numbers
                if self._ran or is_out_of_memory(error):
                    raise
                log.warning("%s is not compiled: %s", self.plain.__name__, " ".join(str(error).split())[:160])
                self.compiled = None
        return self.plain(*arguments)


def patiently(compiled: Callable[..., Tensor], *arguments: object) -> Tensor:
    """Its result, once no other thread is compiling."""
    while True:
        try:
            return compiled(*arguments)
        except RuntimeError as error:
            if TRACING not in str(error):
                raise
        time.sleep(PAUSE)
