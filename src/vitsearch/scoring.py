"""Scores of networks by proxies, many at a time where the proxy allows it, and what of timm's can be scored too."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import timm
import torch
from torch import nn

from vitsearch.architecture import Architecture, Attention, Settings, check_seed, check_whole
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.data import (
    Batch,
    ImageSource,
    open_data,
)
from vitsearch.environment import free_memory, is_out_of_memory, pick_device
from vitsearch.errors import VitsearchError
from vitsearch.models.kernels import is_of_triton
from vitsearch.models.weights import WeightBank, check_weights
from vitsearch.proxies import Proxy, Subject, parse_proxy
from vitsearch.proxies.batched import CENTRED, Route, goes_batched, gradients_of_a_weight, routes, score_group
from vitsearch.proxies.diversity import nuclear_norms
from vitsearch.proxies.group_pass import has_kernels
from vitsearch.proxies.routing import can_batch, group_by_skeleton
from vitsearch.proxies.size import BASELINES
from vitsearch.registry import did_you_mean
from vitsearch.spaces import canonical, decode, space_over

log = logging.getLogger("vitsearch")
OUT_OF_MEMORY = "out of memory"
CPU_ROOM, CPU_MOST = 1 << 30, 12
"""On the CPU, networks at once save calls; beyond this many bytes or networks, caches lose what the calls gain."""
CHUNK_ON_GPU, CHUNK_OF_MIXED, CHUNK_ON_CPU, CHUNK_OF_SLOW, CHUNK_ALONE = 2048, 256, 48, 16, 8
"""Networks between two writes of a journal: a stopped search loses no more. On a GPU, mixed are proxies of which some
take networks one by one; on a CPU, slow is all but DSS, SynFlow and sizes. Alone is who gains nothing from company,
such as a network that a supernet evaluates."""
Known = tuple[dict[str, float], float]  # scores that a batch gave, and seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What proxies said of one network, and why some said nothing."""

    arch: Settings
    scores: dict[str, float]
    errors: dict[str, str]
    seconds: float


class ProxyEvaluator:
    """Scores networks with proxies, many at a time where the proxy allows it.

    Networks are in evaluation mode with the initial weights of the seed: each its own (`fresh`), or all cut from one
    supernet (`shared`). `memory` bounds what a batch of networks may take, half of what is free unless given;
    `at_once` is the number of networks that follows from it, and halves when memory runs out all the same.
    """

    def __init__(
        self,
        proxies: Sequence[str],
        *,
        geometry: Geometry = IMAGENET,
        seed: int = 0,
        device: str | torch.device = "auto",
        data: str = "noise",
        batch_size: int = 8,
        weights: str = "fresh",
        memory: int | None = None,
    ) -> None:
        self.proxies: dict[str, tuple[Proxy, dict[str, str]]] = {text: parse_proxy(text) for text in proxies}
        self.geometry = geometry
        self.seed = check_seed(seed)
        self.device = of_float64(device if isinstance(device, torch.device) else pick_device(device))
        self.batch_size = check_whole("batch_size", batch_size)
        self.weights = check_weights(weights)
        self.memory = memory if memory is not None else free_memory(self.device) // 2
        self.at_once: int | None = None
        self.source: ImageSource = open_data(data)
        self.traces = frozenset(trace for proxy, _ in self.proxies.values() for trace in proxy.traces)
        self._batch: Batch | None = None
        self._said_how_little = False
        self._banks: dict[tuple[str, str], WeightBank] = {}
        if any(proxy.needs_data for proxy, _ in self.proxies.values()):
            self.batch()  # bad data stops here, not in every trial

    def batch(self) -> Batch:
        """The same images and labels for every network."""
        if self._batch is None:
            try:
                self._batch = self.source.draw(self.batch_size, self.geometry, self.seed)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise VitsearchError(
                    f"`batch_size` must fit into memory, but got {self.batch_size} at {self.geometry.image_size} px"
                ) from None
        return self._batch

    def bank(self, settings: Settings, plan: Architecture) -> WeightBank:
        """Where the networks of a space get their weights."""
        space = space_over(settings)
        key = (space.name, json.dumps(space.fixed()))
        if key not in self._banks:
            envelope = space.envelope() if self.weights == "shared" else None
            self._banks[key] = WeightBank(
                plan.initialisation, self.seed, self.device, nuclear_norms, self.memory // 4, envelope, self.geometry
            )
        return self._banks[key]

    def chunk(self, settings: Settings) -> int:
        """How many networks of this one's space to give at a time."""
        slow = {text: proxy.name for text, (proxy, _) in self.proxies.items() if proxy.name not in BASELINES}
        together = {text for text in slow if goes_batched(text, self.batch_size)}
        if slow and not (together and can_batch(decode(settings).present())):
            return CHUNK_ALONE
        if self.device.type != "cpu":
            return CHUNK_ON_GPU if together == slow.keys() else CHUNK_OF_MIXED
        return CHUNK_ON_CPU if CENTRED.issuperset(slow.values()) else CHUNK_OF_SLOW

    def __call__(self, architectures: Sequence[Settings]) -> list[Score]:
        """Batched where possible, one by one where not. Out of memory, all is done again with half as many at once."""
        plans = [decode(settings).present() for settings in architectures]
        names = [text for text in self.proxies if goes_batched(text, self.batch_size)]
        able = {number: plan for number, plan in enumerate(plans) if names and can_batch(plan)}
        known: dict[int, Known] = {}
        while able:
            try:
                known = self._score_parts(able, architectures, plans, names)
                break
            except Exception as error:
                if not isinstance(error, (RuntimeError, MemoryError)) and not is_of_triton(error):
                    raise
                if not is_out_of_memory(error) or self.at_once in (None, 1):
                    log.warning("%d networks could not be scored together: %s", len(able), describe_failure(error))
                    known = {}  # one by one, each failure has its own reason
                    break
                self.at_once = (self.at_once or 2) // 2
                log.warning("out of memory: %d networks at once from here on", self.at_once)
        return [self.one(settings, known.get(number)) for number, settings in enumerate(architectures)]

    def _score_parts(
        self,
        able: Mapping[int, Architecture],
        architectures: Sequence[Settings],
        plans: Sequence[Architecture],
        names: list[str],
    ) -> dict[int, Known]:
        """Networks of one skeleton go through together, `at_once` of them; on the CPU, a thread for each such part.

        A part on one core has its products for itself, and no core waits for another inside every small operation;
        those that take longest are begun first, so that no core waits long at the end.
        """
        self.at_once = self._how_many(able.values(), names)
        split = evenly if self.device.type == "cpu" else in_full
        parts = [part for group in group_by_skeleton(able) for part in split(group, self.at_once)]
        parts.sort(key=lambda part: sum(blocks_by_width(plans[number]) for number in part), reverse=True)
        banks = [self.bank(architectures[part[0]], plans[part[0]]) for part in parts]

        def score(part: list[int], bank: WeightBank) -> dict[int, Known]:
            return self._score_together(part, [plans[number] for number in part], names, bank)

        threads = torch.get_num_threads()
        if self.device.type != "cpu" or threads == 1 or len(parts) == 1:
            found = [score(*given) for given in zip(parts, banks, strict=True)]
        else:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                found = list(pool.map(score, parts, banks))
        return {number: known for one in found for number, known in one.items()}

    def _how_many(self, plans: Iterable[Architecture], names: list[str]) -> int:
        """As many as there is room for; once that is known, fewer only for networks that are too large for it."""
        ways: dict[tuple[str, int], dict[Route, list[str]]] = {}  # finding them takes longer than the rest
        each = 1
        for plan in plans:
            kind = plan.readout, len(plan.stages)
            if kind not in ways:
                ways[kind] = routes(names, plan, self.device)
            each = max(each, self._bytes_at_once(plan, ways[kind]))
        room, on_cpu = self.memory * 3 // 4, self.device.type == "cpu"
        room = room // torch.get_num_threads() if on_cpu else room
        if each > room and not self._said_how_little:
            self._said_how_little = True
            log.info("one network at a time: it takes about %d MB, of %d that are given", each >> 20, room >> 20)
        if self.at_once is not None:
            return self.at_once if self.at_once * each <= room else min(self.at_once, round_down(max(1, room // each)))
        if on_cpu:
            return min(CPU_MOST, round_down(max(1, min(room, CPU_ROOM) // each)))
        return round_down(max(1, room // each))

    def _score_together(
        self, part: list[int], plans: list[Architecture], names: list[str], bank: WeightBank
    ) -> dict[int, Known]:
        began = time.perf_counter()
        scores = score_group(plans, names, geometry=self.geometry, bank=bank, batch=self.batch)
        seconds = (time.perf_counter() - began) / len(part)
        listed = {name: values.tolist() for name, values in scores.items()}
        return {
            number: ({name: of[row] for name, of in listed.items() if not math.isnan(of[row])}, seconds)
            for row, number in enumerate(part)
        }

    def _bytes_at_once(self, plan: Architecture, ways: Mapping[Route, list[str]]) -> int:
        """Of the largest of the passes that these proxies need."""
        sizes = [1]
        for route, texts in ways.items():
            rows = (1 if route.absolute else self.batch_size) * (2 if route.along else 1)
            if route.rough and has_kernels(plan, self.geometry.image_size, self.device):
                size = bytes_with_kernels(plan, self.geometry, rows)
            else:
                size = bytes_per_network(plan, self.geometry, rows, route.dtype, route.rough)
            parts = max(gradients_of_a_weight(text, self.batch_size) for text in texts)
            sizes.append(size + 4 * parts * largest_weight(plan) * route.dtype.itemsize)
        return max(sizes)

    def one(self, settings: Settings, known: Known | None = None) -> Score:
        """A single network, by the definitions; `known` are scores (and seconds) that a batch gave already."""
        plan = decode(settings).present()
        subject = Subject(
            name=lambda: f"{settings['space']} {plan.key()}",
            network=lambda: self.bank(settings, plan).network(plan, self.geometry),
            batch=self.batch,
            geometry=self.geometry,
            architecture=plan,
            device=self.device,
            traces=self.traces,
        )
        return self.examine(subject, settings, *(known or ({}, 0.0)))

    def timm(self, model: str, image_size: int | None = None) -> Score:
        """Any classifier of timm, with untrained weights, at its own input size unless another is given."""
        return self.examine(timm_subject(model, self, image_size), {"timm": model})

    def examine(
        self, subject: Subject, arch: Settings, known: Mapping[str, float] | None = None, seconds: float = 0.0
    ) -> Score:
        start = time.perf_counter()
        scores: dict[str, float] = {}
        errors: dict[str, str] = {}
        for text, (proxy, options) in self.proxies.items():
            try:
                value = known[text] if known and text in known else proxy.score(subject, **options)
                plain = value if type(value) is int else float(value)  # tensors and numpy's numbers too
                if not math.isfinite(plain):
                    raise ArithmeticError(f"the score is not finite: {plain}")
                scores[text] = plain
            except Exception as error:  # a bad candidate is a failed score with its reason, never a stopped search
                errors[text] = describe_failure(error)
        return Score(arch=arch, scores=scores, errors=errors, seconds=seconds + time.perf_counter() - start)


def of_float64(device: torch.device) -> torch.device:
    """The CPU in the place of Apple's GPUs: scores are added up in float64, which those have not."""
    return torch.device("cpu") if device.type == "mps" else device


def evenly(group: list[int], most: int) -> list[list[int]]:
    """In parts of at most so many, none of which is much smaller: the last one of 12 and 1 takes two networks' time."""
    count = -(-len(group) // most)
    edges = [number * len(group) // count for number in range(count + 1)]
    return [group[start:end] for start, end in pairwise(edges)]


def in_full(group: list[int], most: int) -> list[list[int]]:
    """In parts of so many and a last one: on a GPU, whose memory is handed out again in the sizes it had."""
    return [group[start : start + most] for start in range(0, len(group), most)]


def blocks_by_width(plan: Architecture) -> int:
    return sum(stage.width * len(stage.blocks) for stage in plan.stages)


def round_down(count: int) -> int:
    """To 1, 2, 3, 4, 6, 8, 12, 16, ...: a number that does not follow every change in free memory."""
    power = 1 << (count.bit_length() - 1)
    return power * 3 // 2 if count >= power * 3 // 2 else power


def bytes_per_network(plan: Architecture, geometry: Geometry, images: int, dtype: torch.dtype, rough: bool) -> int:
    """About what the activations of one network take in a batched pass."""
    total, inside = 0, 2 if rough else dtype.itemsize
    for stage, side in zip(plan.stages, plan.sides(geometry.image_size), strict=True):
        tokens = side * side + int(plan.class_token)
        for block in stage.blocks:
            if isinstance(block, Attention):
                inner = block.heads * block.head_dim
                channels = (8 if block.relative_distance else 5) * inner + 2 * block.hidden + 2 * block.heads * tokens
                total += images * tokens * (7 * stage.width * dtype.itemsize + channels * inside)
    return total


def bytes_with_kernels(plan: Architecture, geometry: Geometry, images: int) -> int:
    """The same where blocks are as `rough.py` has them: what the way back needs, and what is there once."""
    total = 0
    for stage, side in zip(plan.stages, plan.sides(geometry.image_size), strict=True):
        blocks = [block for block in stage.blocks if isinstance(block, Attention)]
        each = [2 * stage.width + 2 * block.hidden + block.heads * (4 * block.head_dim + 4 * side) for block in blocks]
        total += images * (side * side + 1) * (2 * sum(each) + 40 * stage.width + 4 * max(each))
    return total


def largest_weight(plan: Architecture) -> int:
    """Elements of the largest weight in a block: with few tokens, its gradients and what is made of them take most."""
    blocks = [(s.width, block) for s in plan.stages for block in s.blocks if isinstance(block, Attention)]
    return max(width * max(3 * block.heads * block.head_dim, block.hidden) for width, block in blocks)


def describe_failure(error: Exception) -> str:
    """One line that says what went wrong."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    text = " ".join(str(error).split())
    return text[:300] if isinstance(error, VitsearchError) else f"{type(error).__name__}: {text[:300]}"


def timm_subject(model: str, evaluator: ProxyEvaluator, image_size: int | None) -> Subject:
    names = [name for name in timm.list_models() if not name.startswith("vitsearch_")]
    if model.partition(".")[0] not in names:
        raise VitsearchError(f"no timm model named {model!r}.{did_you_mean(model, names)}")
    wanted, seed = evaluator.geometry, evaluator.seed

    def network() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            options = {"img_size": image_size} if image_size and own.fixed_input_size else {}
            made: nn.Module = timm.create_model(model, num_classes=wanted.classes, in_chans=wanted.channels, **options)
        return made

    try:
        own = timm.get_pretrained_cfg(model)
    except RuntimeError as error:
        raise VitsearchError(f"no timm model named {model!r}: {error}") from None
    size = own.input_size[-1] if image_size is None else image_size
    geometry = Geometry(image_size=size, classes=wanted.classes, channels=wanted.channels)
    return Subject(
        name=model,
        network=network,
        batch=lambda: evaluator.source.draw(evaluator.batch_size, geometry, seed),
        geometry=geometry,
        device=evaluator.device,
        traces=evaluator.traces,
    )


def score(
    architectures: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    proxies: str | Sequence[str],
    *,
    geometry: Geometry = IMAGENET,
    seed: int = 0,
    device: str = "auto",
    data: str = "noise",
    batch_size: int = 8,
    weights: str = "fresh",
) -> list[Score]:
    """Proxy scores of settings, in their order. `proxies` is a list, or a text with commas."""
    names = proxies.split(",") if isinstance(proxies, str) else proxies
    evaluator = ProxyEvaluator(
        names, geometry=geometry, seed=seed, device=device, data=data, batch_size=batch_size, weights=weights
    )
    listed = [architectures] if isinstance(architectures, Mapping) else architectures
    return evaluator([canonical(settings) for settings in listed])
