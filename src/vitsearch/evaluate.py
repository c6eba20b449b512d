"""Evaluators: functions from architectures to named numbers. Strategies get one of these and never see a network."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from vitsearch.architecture import Settings
from vitsearch.benchmark import Lookup
from vitsearch.cost import Geometry
from vitsearch.data import (
    evaluation_batches,
    open_training_data,
    some_of_each_class,
)
from vitsearch.environment import announce_precision, pick_device, usable_precision
from vitsearch.errors import VitsearchError
from vitsearch.latency.model import LATENCY, LatencyModel
from vitsearch.models.recorded import LOOKS, GraphRecorder
from vitsearch.predictor import digest_of_file, read_predictor
from vitsearch.records import IMAGES, supernet_and_images
from vitsearch.scoring import CHUNK_ALONE, ProxyEvaluator, Score, describe_failure
from vitsearch.spaces import Space, decode
from vitsearch.throughput import Stopwatch
from vitsearch.training.calibration import calibration_batches
from vitsearch.training.distributed import World
from vitsearch.training.run import digest_of
from vitsearch.training.supernet import accuracy, read_supernet

AT_ONCE = 512
"""Images that a GPU looks at together, at least: a small network's kernels take longer to launch than to run."""
SUPERNET, PREDICTOR, BENCH, THROUGHPUT = "supernet:", "predictor:", "bench:", "throughput"


def measured(name: str, settings: Settings, measure: Callable[[], float]) -> Score:
    """A bad candidate is a failed score with its reason, never a stopped search."""
    start = time.perf_counter()
    scores: dict[str, float] = {}
    errors: dict[str, str] = {}
    try:
        scores[name] = measure()
    except Exception as error:
        errors[name] = describe_failure(error)
    return Score(arch=settings, scores=scores, errors=errors, seconds=time.perf_counter() - start)


class SupernetEvaluator:
    """Accuracy in percent on the validation part of the supernet's own data, with the weights that networks inherit."""

    def __init__(
        self,
        folder: str | Path,
        *,
        images: int | None = None,
        device: str | torch.device = "auto",
        compiled: bool | None = None,
    ) -> None:
        """`images`: of the validation part, as many of every class, the same for all networks; None: all.

        `compiled`: None compiles layers on a GPU, unless the space has many shapes, and records them, unless it has
        thousands.
        """
        self.folder = folder
        self.name = f"{SUPERNET}{folder}" + ("" if images is None else f"{IMAGES}{images}")
        self.device = device if isinstance(device, torch.device) else pick_device(device)
        self.plan, self.supernet = read_supernet(folder)
        self.supernet.to(self.device)
        usual = self.device.type == "cuda" and self.supernet.few_shapes
        if usual if compiled is None else compiled:
            self.supernet.compile()
        if self.device.type == "cuda" and self.supernet.shapes <= LOOKS and compiled is not False:
            self.supernet.record_layers(GraphRecorder())
        self.space, self.geometry = self.supernet.space, self.plan.geometry
        self.world = World(device=self.device)
        data, recipe = open_training_data(self.plan.data), self.plan.recipe
        announce_precision(self.device, recipe.precision, "evaluating")
        judging = data.part("validation")
        self.batches = evaluation_batches(
            judging if images is None else some_of_each_class(judging, images),
            dataset=data,
            geometry=self.geometry,
            batch_size=max(recipe.batch_size, AT_ONCE) if self.device.type == "cuda" else recipe.batch_size,
            device=self.device,
            crop_pct=recipe.crop_percent,
        )
        self.calibration = calibration_batches(self.supernet, self.plan, data, self.device)

    def __call__(self, architectures: Sequence[Settings]) -> list[Score]:
        return [self.one(settings) for settings in architectures]

    def one(self, settings: Settings) -> Score:
        def measure() -> float:
            precision = self.plan.recipe.precision
            found = accuracy(self.supernet, decode(settings), self.batches, self.world, precision, self.calibration)
            return found["top1"]

        return measured(self.name, settings, measure)


class PredictorEvaluator:
    """What a fitted predictor expects, and beside it under `..._std` how sure it is, in percent."""

    def __init__(self, file: str | Path) -> None:
        self.name, self.file = f"{PREDICTOR}{file}", Path(file)
        self.predictor = read_predictor(file)
        self.space, self.geometry = self.predictor.space, self.predictor.geometry

    def __call__(self, architectures: Sequence[Settings]) -> list[Score]:
        return [self.one(settings) for settings in architectures]  # together, the last bits depend on the others

    def one(self, settings: Settings) -> Score:
        start = time.perf_counter()
        mean, std = self.predictor.predict([settings])
        scores = {self.name: float(mean[0]), f"{self.name}_std": float(std[0])}
        return Score(arch=settings, scores=scores, errors={}, seconds=time.perf_counter() - start)


class TableEvaluator:
    """What a benchmark table has measured, in percent."""

    def __init__(self, text: str) -> None:
        self.name, self.table = f"{BENCH}{text}", Lookup(text)
        self.space, self.geometry = self.table.space, self.table.geometry

    def __call__(self, architectures: Sequence[Settings]) -> list[Score]:
        return [
            Score(arch=settings, scores={self.name: self.table(settings)}, errors={}, seconds=0.0)
            for settings in architectures
        ]


def listed(names: Sequence[str], space: str) -> tuple[Settings, ...] | None:
    """The networks that all benchmark tables among the objectives have; None where there is no table."""
    tables = [Lookup(name.removeprefix(BENCH)).networks for name in names if name.startswith(BENCH)]
    for first, *_ in tables:
        if first["space"] != space:
            rule = f"`objective` must be of the space that is searched, {space}"
            raise VitsearchError(f"{rule}, but got a table of {first['space']}")
    if not tables:
        return None
    common = tuple(settings for settings in tables[0] if all(settings in other for other in tables[1:]))
    if not common:
        raise VitsearchError("`objective` names benchmark tables that must have networks in common, but have none")
    return common


class ThroughputEvaluator:
    """Images per second on this machine, at the batch size that ViTAS measures with."""

    def __init__(self, geometry: Geometry, device: torch.device) -> None:
        self.watch = Stopwatch(geometry=geometry, device=device)

    def __call__(self, architectures: Sequence[Settings]) -> list[Score]:
        return [self.one(settings) for settings in architectures]

    def one(self, settings: Settings) -> Score:
        return measured(THROUGHPUT, settings, lambda: self.watch(settings))


class LatencyEvaluator:
    """What a fitted latency file predicts, in milliseconds for a batch."""

    def __init__(self, model: LatencyModel) -> None:
        self.model = model

    def __call__(self, architectures: Sequence[Settings]) -> list[Score]:
        return [
            Score(arch=settings, scores={LATENCY: self.model.latency_ms(decode(settings))}, errors={}, seconds=0.0)
            for settings in architectures
        ]


class Evaluator:
    """Several measurements of each network, by the names users give them: proxies, supernets, predictors, tables.

    Where a latency file is given, its prediction is always among them.
    """

    def __init__(
        self, names: Sequence[str], *, device: torch.device, latency: LatencyModel | None = None, **options: Any
    ) -> None:
        if LATENCY in names and latency is None:
            raise VitsearchError("`objective` latency needs a file in `latency`, but got none")
        self.latencies = [] if latency is None else [LatencyEvaluator(latency)]
        asked = [supernet_and_images(name.removeprefix(SUPERNET)) for name in names if name.startswith(SUPERNET)]
        self.supernets = [SupernetEvaluator(folder, images=images, device=device) for folder, images in asked]
        self.predictors = [
            PredictorEvaluator(name.removeprefix(PREDICTOR)) for name in names if name.startswith(PREDICTOR)
        ]
        self.tables = [TableEvaluator(name.removeprefix(BENCH)) for name in names if name.startswith(BENCH)]
        others = (SUPERNET, PREDICTOR, BENCH)
        of_proxies = [name for name in names if not name.startswith(others) and name not in (LATENCY, THROUGHPUT)]
        self.proxies = ProxyEvaluator(of_proxies, device=device, **options)
        self.speeds = [ThroughputEvaluator(self.proxies.geometry, device)] if THROUGHPUT in names else []

    @property
    def at_once(self) -> int | None:
        return self.proxies.at_once

    @at_once.setter
    def at_once(self, count: int | None) -> None:
        self.proxies.at_once = count

    @property
    def memory(self) -> int:
        return self.proxies.memory

    @memory.setter
    def memory(self, count: int) -> None:
        self.proxies.memory = count

    def chunk(self, settings: Settings) -> int:
        """How many networks of this one's space to give at a time."""
        return CHUNK_ALONE if self.supernets or self.speeds else self.proxies.chunk(settings)

    def __call__(self, architectures: Sequence[Settings]) -> list[Score]:
        evaluators: list[Callable[[Sequence[Settings]], list[Score]]] = [
            self.proxies,
            *self.supernets,
            *self.predictors,
            *self.tables,
            *self.speeds,
            *self.latencies,
        ]
        found = [evaluator(architectures) for evaluator in evaluators]
        return [_together(scores) for scores in zip(*found, strict=True)]

    def check(self, space: Space, geometry: Geometry) -> None:
        """Whether the supernets, predictors and tables are of this space and input."""
        trained: list[SupernetEvaluator | PredictorEvaluator | TableEvaluator]
        trained = [*self.supernets, *self.predictors, *self.tables]
        for one in trained:
            if (one.space, one.geometry) != (space, geometry):
                theirs = f"{one.space.name} {one.space.fixed()} with {one.geometry}"
                ours = f"{space.name} {space.fixed()} with {geometry}"
                raise VitsearchError(f"`objective` must be of the space that is searched, {ours}, but got {theirs}")

    def precision(self, device: torch.device | None) -> dict[str, str]:
        """Of the supernets' products, in their order: on this device, or as their recipes have them."""
        asked = [one.plan.recipe.precision for one in self.supernets]
        found = asked if device is None else [usable_precision(device, one) for one in asked]
        return {"precision": ", ".join(found)} if found else {}

    def digests(self) -> dict[str, dict[str, str]]:
        """Of the files behind the objectives, by kind, so that a resumed study notices others; formulas as they are."""
        supernets = {one.name: digest_of(str(one.folder)) for one in self.supernets}
        predictors = {one.name: digest_of_file(one.file) for one in self.predictors}
        formulas = {name: str(p.formula) for name, (p, _) in self.proxies.proxies.items() if name.startswith("file:")}
        tables = {one.name: digest_of_file(one.table.file) for one in self.tables}
        kinds = {"supernets": supernets, "predictors": predictors, "tables": tables, "formulas": formulas}
        return {kind: found for kind, found in kinds.items() if found}


def _together(scores: Sequence[Score]) -> Score:
    return Score(
        arch=scores[0].arch,
        scores={name: value for score in scores for name, value in score.scores.items()},
        errors={name: why for score in scores for name, why in score.errors.items()},
        seconds=sum(score.seconds for score in scores),
    )
