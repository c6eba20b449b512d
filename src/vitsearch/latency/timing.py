"""Median and 95th percentile of real runs.

Candidates take turns, so that whatever else the machine does hits all of them alike; the first run of each turn brings
caches and clocks to the candidate and is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

import numpy as np
import timm
import torch
from torch import Tensor, nn

from vitsearch.architecture import check_whole
from vitsearch.cost import Geometry
from vitsearch.environment import pick_device
from vitsearch.latency.engines import ENGINES, Run, check_engine, eager
from vitsearch.training.run import timm_network

WARM_UP = 2
TURN = 3  # runs that count, each time a candidate has its turn
Timer: TypeAlias = Callable[[Run], float]  # seconds of one run
Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A network in evaluation mode, and the input it takes."""

    network: nn.Module
    geometry: Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The runs of one candidate, by its number, with one engine and batch size."""

    candidate: int
    engine: str
    device: str
    threads: int
    batch: int
    seconds: tuple[float, ...]

    @property
    def latency_ms(self) -> float:
        """Median time of a batch."""
        return float(np.median(self.seconds)) * 1000

    @property
    def p95_ms(self) -> float:
        return float(np.quantile(self.seconds, 0.95)) * 1000

    @property
    def images_per_second(self) -> float:
        return self.batch * 1000 / self.latency_ms


def measure(
    candidates: Sequence[Candidate],
    *,
    engines: Sequence[str] = ("eager",),
    batch_sizes: Sequence[int] = (1,),
    threads: int | None = None,
    device: str | torch.device = "cpu",
    repeats: int = 30,
    progress: Progress | None = None,
) -> list[Timing]:
    """Each candidate with each engine and batch size, in this order; all of them take turns. Networks move to `device`.

    `threads` are of the CPU, torch's own number unless given. `progress` is told (done, wanted), in rounds of turns
    and, before them, in networks that are ready.
    """
    check_whole("repeats", repeats, most=1 << 20)
    chosen = device if isinstance(device, torch.device) else pick_device(device)
    names = [check_engine(name, chosen) for name in engines]
    sizes = [check_whole("batch_size", size) for size in batch_sizes]
    count = torch.get_num_threads() if threads is None else check_whole("threads", threads, most=1024)
    with thread_count(count):
        keys: list[tuple[int, str, int]] = []
        runs: list[Run] = []
        for number, candidate in enumerate(candidates):
            candidate.network.eval().to(chosen)
            for name in names:
                engine = ENGINES[name](candidate.network, candidate.geometry, count)
                for size in sizes:
                    keys.append((number, name, size))
                    runs.append(engine(noise(candidate.geometry, size, chosen)))
                    warm_up(runs[-1])
            if progress:
                progress(number + 1, len(candidates))
        times = take_turns(runs, repeats, timer_of(chosen), progress)
    return [
        Timing(candidate=number, engine=name, device=chosen.type, threads=count, batch=size, seconds=tuple(seconds))
        for (number, name, size), seconds in zip(keys, times, strict=True)
    ]


def images_per_second(network: nn.Module, batch: Tensor, repeats: int = 10) -> float:
    """Median throughput of a network as it is, on a batch [B, C, H, W] that lies where the network does."""
    check_whole("repeats", repeats)
    training = network.training
    run = eager(network.eval(), Geometry(), torch.get_num_threads())(batch)
    try:
        warm_up(run)
        (seconds,) = take_turns([run], repeats, timer_of(batch.device))
    finally:
        network.train(training)
    return len(batch) / float(np.median(seconds))


def timm_candidate(model: str, image_size: int | None = None, classes: int | None = None) -> Candidate:
    """Any classifier of timm, with untrained weights, at its own input size and classes unless others are given."""
    network = timm_network(model, choose_input(model, image_size, classes), 0.0)
    return Candidate(network=network.eval(), geometry=choose_input(model, image_size, classes))


def choose_input(model: str, image_size: int | None, classes: int | None) -> Geometry:
    own = timm.get_pretrained_cfg(model) if timm.is_model(model) else None
    channels, side, _ = own.input_size if own is not None else (3, 224, 224)
    return Geometry(
        image_size=side if image_size is None else image_size,
        classes=1000 if classes is None else classes,
        channels=channels,
    )


def warm_up(run: Run) -> None:
    """The first runs allocate, choose kernels and compile."""
    for _ in range(WARM_UP):
        run()


def take_turns(runs: Sequence[Run], repeats: int, timer: Timer, progress: Progress | None = None) -> list[list[float]]:
    """Seconds of each run of each candidate; those with the same index were measured in the same round."""
    times: list[list[float]] = [[] for _ in runs]
    order = list(range(len(runs)))
    rounds = -(-repeats // TURN)
    for number in range(rounds):
        Random(number).shuffle(order)  # nobody always runs behind the same other
        for index in order:
            runs[index]()
            for _ in range(min(TURN, repeats - number * TURN)):
                times[index].append(timer(runs[index]))
        if progress:
            progress(number + 1, rounds)
    return times


def noise(geometry: Geometry, batch: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    side = geometry.image_size
    return torch.randn(batch, geometry.channels, side, side, generator=generator).to(device)


def timer_of(device: torch.device) -> Timer:
    if device.type == "cuda":
        return _cuda_seconds
    return _mps_seconds if device.type == "mps" else _cpu_seconds


def _cpu_seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _cuda_seconds(run: Run) -> float:
    """Between two events on the stream, from an idle device on: launches count, as they do in use."""
    event: Any = torch.cuda.Event  # not typed
    start, end = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def _mps_seconds(run: Run) -> float:
    torch.mps.synchronize()
    start = time.perf_counter()
    run()
    torch.mps.synchronize()
    return time.perf_counter() - start


@contextmanager
def thread_count(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
