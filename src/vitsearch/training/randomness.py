"""Where the randomness of a step comes from: (seed, step, rank), and nothing that went before.

Stochastic depth, timm's Mixup and timm's RandAugment draw from the global generators of torch, numpy and Python. They
are seeded for each step, and given back as they were when the training ends.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_of(*parts: object) -> int:
    """A number of 63 bits that depends on all parts."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def seed_generators(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % (1 << 32))
    random.seed(seed)


@contextmanager
def borrowed_generators(device: torch.device) -> Iterator[None]:
    """The global generators are ours inside, and as before afterwards."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
