"""S3: search the search space (Chen et al., NeurIPS 2021, Algorithm 1).

evolve_space("s3-initial", out="evolved", training=Training(data="folder:imagenet", recipe=RECIPES["s3"]))
evolve_space("s3-initial", out="look", objective="dss", iterations=2)      # minutes: no training

Every iteration trains a supernet on its space (sandwich, without in-place distillation), measures networks of every
choice, and moves the choices (`space_moves.py`). The last space is trained and measured too: T iterations give T + 1
spaces and T + 1 supernets, the last of which is the one to search in. The paper says 3 iterations and shows two moves.

The folder: `study.json`; `trials.jsonl`, every network that was measured; `moves.jsonl`, for each space how good it is
and for each dimension of each stage the slope, its confidence and the move; `supernet-T`, the trainings. All of it is
a function of the arguments, so that a stopped evolution goes on where it was.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol

import torch

from vitsearch.architecture import Settings, check_seed, check_whole
from vitsearch.cost import IMAGENET, Geometry, Limits, architecture_cost
from vitsearch.data import open_training_data
from vitsearch.environment import describe_environment, pick_device, usable_precision
from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.evaluate import SUPERNET, Evaluator, SupernetEvaluator
from vitsearch.methods.space_moves import (
    Move,
    Rules,
    choices_of,
    decide,
    et_error,
    free_elsewhere,
    moved_space,
    with_choice,
)
from vitsearch.methods.space_study import (
    ERROR,
    KIND,
    MOVES,
    TRIALS,
    EvolutionPlan,
    Evolved,
    Training,
    enter,
    errors_of,
    read_evolution,
)
from vitsearch.records import Journal, Trial
from vitsearch.scoring import Score
from vitsearch.spaces import Space, find_space
from vitsearch.spaces.windowed import DIMENSIONS, Windowed
from vitsearch.study import parse_objective, study_folder
from vitsearch.training.optimize import check_optimizer
from vitsearch.training.plan import RESULT, EpochLog, TrainingPlan
from vitsearch.training.preferred import scheme_of
from vitsearch.training.randomness import borrowed_generators
from vitsearch.training.run import Machine, train_network
from vitsearch.training.subnets import draw

CHUNK = 16
LOOKED_AT = 1000
"""Networks whose costs tell which share of a space satisfies the limits."""
LEAST_SHARE = 0.05
"""Below it the limits are left aside: the paper's first space has 4.6 to 18.8 GMAC, and next to nothing below 4.7."""
RANK_TAU = 10.0
"""The default threshold where errors are ranks in percent, which spread over all of 0 to 100."""
log = logging.getLogger("vitsearch")


def check_inputs(plan: EvolutionPlan, space: Windowed, device: torch.device) -> dict[str, Any]:
    """What is in the files behind the objective, or the precision. What cannot be measured or trained is refused."""
    for which in (min, max):
        architecture_cost(space.decode(space.end(which)), plan.geometry)
    if plan.training is None:
        assert plan.objective is not None
        if plan.objective.name.startswith(SUPERNET):
            raise VitsearchError("`objective` must be a proxy or a cost: supernets are trained for every space anew")
        evaluator = Evaluator([plan.objective.name], device=pick_device("cpu"), geometry=plan.geometry, data=plan.data)
        return evaluator.digests()
    scheme_of(plan.training.subnets, space, None)
    with borrowed_generators(device):
        check_optimizer(plan.training.recipe, device)
    dataset = open_training_data(plan.training.data)
    check_whole("batch_size", plan.training.recipe.batch_size, most=len(dataset.part("train")))
    if plan.geometry.classes != dataset.classes:
        raise VitsearchError(
            f"`classes` must be {dataset.classes} for {plan.training.data}, but got {plan.geometry.classes}"
        )
    if plan.training.distillation is not None:
        plan.training.distillation.open(plan.geometry, pick_device("cpu"))
    if plan.training.images is not None:
        check_whole("images", plan.training.images, most=len(dataset.part("validation")))
    return {"precision": usable_precision(device, plan.training.recipe.precision)}


class Measure(Protocol):
    def __call__(self, architectures: Sequence[Settings]) -> list[Score]: ...


def evolve_space(
    space: str | Space,
    *,
    out: str | Path,
    training: Training | None = None,
    objective: str | None = None,
    iterations: int = 2,
    samples: int = 100,
    paired: bool = True,
    rules: Rules | None = None,
    limits: Limits | None = None,
    geometry: Geometry = IMAGENET,
    patch_size: int | Sequence[int] | None = None,
    seed: int = 0,
    data: str = "noise",
    batch_size: int = 8,
    machine: Machine | None = None,
    resume: bool = False,
    allow_changed: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Evolved:
    """Move a space towards smaller errors, by supernets (`training`) or, for a first look, by one `objective`.

    With an objective, such as `dss` or `min:macs`, the error of a network is the share of the networks of its
    iteration that are better, in percent; `data` and `batch_size` are for proxies. `paired` compares the choices of a
    dimension in networks that are otherwise the same, which takes most of the chance out of the slopes.
    """
    if (training is None) == (objective is None):
        raise VitsearchError("either `training` or `objective` must be given, and not both")
    found = find_space(space, patch_size)
    if not isinstance(found, Windowed):
        raise VitsearchError(f"`space` must have stages of window attention, as s3-initial, but got {found.name!r}")
    found = found.with_choices()  # under the name that a space with these choices gets where nothing moves
    plan = EvolutionPlan(
        space=found.name,
        fixed=found.fixed(),
        iterations=check_whole("iterations", iterations, most=100),
        samples=check_whole("samples", samples, least=2),
        paired=bool(paired),
        rules=rules or Rules(tau=Rules().tau if objective is None else RANK_TAU),
        limits=limits or Limits(),
        geometry=geometry,
        seed=check_seed(seed),
        training=training,
        objective=None if objective is None else parse_objective(objective),
        data=data,
        batch_size=check_whole("batch_size", batch_size),
    )
    if plan.rules.most_size is not None and found.count > plan.rules.most_size:
        raise VitsearchError(
            f"`most_size` (--max-size) must hold for the first space, {found.count}, but got {plan.rules.most_size}"
        )
    how, path = machine or Machine(), Path(out)
    device = pick_device(how.device)
    checked = check_inputs(plan, found, device)  # what is wrong leaves no folder behind
    environment = describe_environment(device) | checked
    with study_folder(path, resume, KIND), Journal(path / TRIALS) as journal:
        enter(path, plan, environment, journal, allow_changed)
        if samples < plan.rules.least_samples:
            few = "with %d networks for each choice much of a slope is chance, and no choice has the %d it should have"
            log.warning(few, samples, plan.rules.least_samples)
        moves = EpochLog(path / MOVES)
        try:
            Evolution(plan, path, how, device, journal, moves, allow_changed, progress).run(found)
        finally:
            moves.close()
    return read_evolution(path)


def take_over(finished: Path, folder: Path) -> None:
    """A copy of a training, whole or not there: with the same space, recipe and seed, another would be the same."""
    unfinished = folder.with_name(f".{folder.name}.copy")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(finished, unfinished)
    unfinished.rename(folder)


class Evolution:
    """The loop. What is written is computed again where that costs nothing, and must be the same."""

    def __init__(
        self,
        plan: EvolutionPlan,
        path: Path,
        machine: Machine,
        device: torch.device,
        journal: Journal,
        moves: EpochLog,
        allow_changed: bool,
        progress: Callable[[int, int, str], None] | None,
    ) -> None:
        self.plan, self.path, self.machine, self.device = plan, path, machine, device
        self.journal, self.moves, self.allow_changed, self.progress = journal, moves, allow_changed, progress
        moves.cut(1 << 62)  # whole lines only
        self.trial, self.row = 0, 0
        self.spaces: list[Windowed] = []

    def run(self, space: Windowed) -> None:
        for iteration in range(self.plan.iterations + 1):
            self.spaces.append(space)
            constrained, share = self.constraint(space, iteration)
            groups = self.groups(space, iteration, constrained)
            if iteration == self.plan.iterations:
                groups = groups[:1]  # nothing moves after it
            trials = self.measure(space, iteration, groups)
            errors = errors_of(groups, trials, self.plan.objective)
            counted = {"trials": len(trials), "drawn": len(groups[0])}
            self.describe(space, iteration, errors[0], constrained, share, counted)
            if iteration < self.plan.iterations:
                space = self.evolve(space, iteration, errors[1:], self.plan.paired and not constrained)

    def constraint(self, space: Windowed, iteration: int) -> tuple[bool, float | None]:
        """Whether networks must satisfy the limits, and the share of the space that does."""
        if not self.plan.limits.bounds():
            return False, None
        random = Random(f"{self.plan.seed}/{iteration}/limits")
        share = sum(self.allowed(space, draw(space, random)) for _ in range(LOOKED_AT)) / LOOKED_AT
        return share >= LEAST_SHARE, share

    def allowed(self, space: Windowed, settings: Settings) -> bool:
        return self.plan.limits.allow(architecture_cost(space.decode(settings), self.plan.geometry))

    def groups(self, space: Windowed, iteration: int, constrained: bool) -> list[list[Settings]]:
        """Networks of the whole space, then of each of its choices. Every knob is uniform, as in a supernet's steps."""
        start = f"{self.plan.seed}/{iteration}"
        found = [self.drawn(space, Random(f"{start}/space"), constrained, lambda settings: settings)]
        for stage, name, choice in choices_of(space, self.plan.geometry):
            random = Random(f"{start}/{stage}/{name}" + ("" if self.plan.paired else f"/{choice}"))
            chosen = partial(with_choice, stage=stage, dimension=name, choice=choice)
            found.append(self.drawn(free_elsewhere(space, stage, name), random, constrained, chosen))
        return found

    def drawn(
        self, space: Windowed, random: Random, constrained: bool, change: Callable[[Settings], Settings]
    ) -> list[Settings]:
        """As many as are wanted, or as many as satisfy the limits of the draws that a share of 5 % would need."""
        found: list[Settings] = []
        for _ in range(round(self.plan.samples / LEAST_SHARE) if constrained else self.plan.samples):
            settings = change(draw(space, random))
            if not constrained or self.allowed(space, settings):
                found.append(settings)
            if len(found) == self.plan.samples:
                break
        return found

    def measure(self, space: Windowed, iteration: int, groups: Sequence[Sequence[Settings]]) -> list[Trial]:
        """The trials of this iteration: those that are written, then the rest, chunk by chunk."""
        wanted = [settings for group in groups for settings in group]
        start, self.trial = self.trial, self.trial + len(wanted)
        written = self.journal.trials[start : self.trial]
        for trial, settings in zip(written, wanted, strict=False):
            if trial.settings != settings:
                where = f"{self.journal.path} line {trial.number + 1}"
                raise BadStudy(f"{where} is not the trial this study proposes there")
        measure: Measure | None = None
        for first in range(0, len(wanted), CHUNK):
            chunk = wanted[first : first + CHUNK]
            done = len(self.journal.trials) - start - first
            if done >= len(chunk):
                continue
            measure = measure or self.measurement(space, iteration)
            trials = [self.as_trial(start + first + place, score, space) for place, score in enumerate(measure(chunk))]
            self.journal.append(trials[max(done, 0) :])
            self.tick(first + len(chunk), len(wanted), f"space {iteration}")
        return self.journal.trials[start : self.trial]

    def measurement(self, space: Windowed, iteration: int) -> Measure:
        plan = self.plan
        if plan.training is None:
            assert plan.objective is not None
            options: dict[str, Any] = {"geometry": plan.geometry, "seed": plan.seed, "data": plan.data}
            evaluator = Evaluator([plan.objective.name], device=self.device, batch_size=plan.batch_size, **options)
            evaluator.check(space, plan.geometry)
            return evaluator
        folder = self.path / f"supernet-{iteration}"
        training = TrainingPlan(
            space={"name": space.name, "fixed": space.fixed()},
            subnets=plan.training.subnets,
            geometry=plan.geometry,
            data=plan.training.data,
            recipe=plan.training.recipe,
            seed=plan.seed,
            distillation=plan.training.distillation,
        )

        def told(done: int, total: int, note: str = "") -> None:
            self.tick(done, total, f"supernet {iteration} {note}".rstrip())

        before = self.path / f"supernet-{iteration - 1}"
        moved = iteration == 0 or self.spaces[iteration - 1].name != space.name
        if not moved and not folder.exists() and (before / RESULT).exists():
            log.warning("note: nothing has moved: space %d has the supernet of space %d", iteration, iteration - 1)
            take_over(before, folder)
        options = {"machine": self.machine, "resume": True, "allow_changed": self.allow_changed}
        train_network(training, folder, progress=told, **options)
        judging = plan.training.images
        return SupernetEvaluator(folder, images=judging, device=self.device, compiled=self.machine.compiled)

    def as_trial(self, number: int, score: Score, space: Windowed) -> Trial:
        cost = architecture_cost(space.decode(score.arch), self.plan.geometry)
        error = "; ".join(score.errors.values()) or None
        (value,) = score.scores.values() or (0.0,)
        own = {self.plan.objective.name: value} if self.plan.objective else {ERROR.name: 100.0 - value}
        measured = {} if error else own | {"params": cost.params, "macs": cost.macs}
        return Trial(
            number=number, settings=score.arch, measured=measured, error=error, seconds=round(score.seconds, 4)
        )

    def describe(
        self,
        space: Windowed,
        iteration: int,
        errors: Sequence[float],
        constrained: bool,
        share: float | None,
        counted: Mapping[str, int],
    ) -> None:
        rules, ordered = self.plan.rules, sorted(errors)
        if not counted["drawn"]:
            raise VitsearchError(f"none of the networks drawn from {space.name} satisfies {self.plan.limits}")
        if not ordered:
            raise VitsearchError(f"no network of {space.name} could be measured: {self.journal.trials[-1].error}")
        row = {
            "kind": "space",
            "iteration": iteration,
            "name": space.name,
            "size": space.count,
            "error": et_error(ordered, rules),
            "expected_error": sum(ordered) / len(ordered),
            "unit": "percent" if self.plan.training else "percent of the networks of this iteration",
            **counted,
            "share_within_limits": share,
            "constrained": constrained,
            "note": "" if share is None or constrained else "too few networks satisfy the limits: without them",
        }
        if row["note"]:
            log.warning(
                "note: %.1f %% of space %d satisfies the limits: it is measured without them",
                100 * (share or 0),
                iteration,
            )
        self.write([row])

    def evolve(self, space: Windowed, iteration: int, errors: Sequence[Sequence[float]], paired: bool) -> Windowed:
        measured = dict(zip(choices_of(space, self.plan.geometry), errors, strict=True))
        rules = dataclasses.replace(
            self.plan.rules, least_samples=min(self.plan.rules.least_samples, self.plan.samples)
        )
        decided: list[Move] = []
        for stage, side in enumerate(space.envelope().sides(self.plan.geometry.image_size), 1):
            for name in DIMENSIONS:
                choices = getattr(space, name)[stage - 1]
                own = [measured.get((stage, name, choice), []) for choice in choices]
                decided.append(decide(stage, name, choices, own, rules, len(decided), side, paired))
        next_space, moves = moved_space(space, decided, rules, self.plan.geometry)
        self.write([{"kind": "move", "iteration": iteration, **move.to_json()} for move in moves])
        return next_space

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Those that are not written yet; the others must be what is written."""
        for row in rows:
            plain = json.loads(json.dumps({"step": self.row, **row}))
            if self.row == len(self.moves.rows):
                self.moves.append(plain)
            elif self.moves.rows[self.row] != plain:
                raise BadStudy(f"{self.moves.path} line {self.row + 1} is not what follows from the trials")
            self.row += 1

    def tick(self, done: int, total: int, note: str) -> None:
        if self.progress:
            self.progress(done, total, note)
