"""The network for a budget out of a supernet that was trained on chosen networks: no search (PreNAS, Eq. 12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitsearch.architecture import Settings
from vitsearch.cost import Cost, Limits
from vitsearch.errors import BadSettings, NothingFits, VitsearchError
from vitsearch.evaluate import SupernetEvaluator
from vitsearch.latency import Speed, note_other_machine
from vitsearch.spaces import SPACES, cost_of, decode
from vitsearch.training.plan import TrainingPlan, read_plan
from vitsearch.training.run import read_training
from vitsearch.training.supernet import read_supernet


@dataclass(frozen=True, slots=True, kw_only=True)
class Specialized:
    settings: Settings
    cost: Cost
    top1: float | None
    """On the validation part, in percent; None where nothing was evaluated."""
    ranked: list[tuple[Settings, float]]
    """Those that qualify, best first; empty where nothing was evaluated."""


def specialize(
    run: str | Path,
    limits: Limits,
    *,
    candidates: Sequence[Settings] | None = None,
    speed: Speed | None = None,
    rank: bool = False,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Specialized:
    """The best candidate within the limits, by the order they were chosen in, or by accuracy with `rank`.

    `candidates` are those the supernet was trained on unless given, best first. `speed` bounds predicted latency.
    """
    plan, _ = read_plan(Path(run))
    read_training(run)  # must be finished
    known = plan.candidates if candidates is None else check_parts(run, candidates)
    if not known:
        raise VitsearchError(f"{run} was not trained on candidates: `candidates` must be given, but got none")
    costs = [cost_of(settings, plan.geometry) for settings in known]
    fitting = [settings for settings, cost in zip(known, costs, strict=True) if limits.allow(cost)]
    if not fitting:
        smallest = min(costs)
        found = f"the smallest has params={smallest.params}, macs={smallest.macs}"
        raise NothingFits(f"none of the {len(known)} candidates of {run} satisfies {limits}; {found}")
    fitting = fitting if speed is None else fast_enough(run, fitting, speed, plan)
    ranked = _ranked(run, fitting, device, progress) if rank else []
    settings, top1 = ranked[0] if ranked else (fitting[0], None)
    return Specialized(settings=settings, cost=cost_of(settings, plan.geometry), top1=top1, ranked=ranked)


def check_parts(run: str | Path, candidates: Sequence[Settings]) -> list[Settings]:
    """Other candidates than those it was trained on must be networks of the supernet too."""
    _, supernet = read_supernet(run)
    for number, settings in enumerate(candidates):
        try:
            supernet.check(decode(settings))
        except BadSettings as error:
            raise BadSettings(f"candidate {number} is no network of {run}: {error}") from None
    return list(candidates)


def fast_enough(run: str | Path, known: Sequence[Settings], speed: Speed, plan: TrainingPlan) -> list[Settings]:
    assert plan.space is not None
    speed.model.check(SPACES[plan.space["name"]].with_fixed(plan.space["fixed"]), plan.geometry)
    note_other_machine(speed.model)
    networks = [decode(settings) for settings in known]
    found = [settings for settings, network in zip(known, networks, strict=True) if speed.allows(network)]
    if not found:
        fastest = f"the fastest takes {min(map(speed.latency_ms, networks)):.4g} ms"
        raise NothingFits(f"none of the {len(known)} candidates of {run} has {speed.limits}; {fastest}")
    return found


def _ranked(
    run: str | Path, fitting: Sequence[Settings], device: str, progress: Callable[[int, int], None] | None
) -> list[tuple[Settings, float]]:
    evaluator = SupernetEvaluator(run, device=device)
    found = []
    for number, settings in enumerate(fitting):
        score = evaluator.one(settings)
        if score.errors:
            raise VitsearchError(f"candidate {number} of {run} cannot be evaluated: {score.errors[evaluator.name]}")
        found.append((settings, score.scores[evaluator.name]))
        if progress:
            progress(number + 1, len(fitting))
    return sorted(found, key=lambda one: -one[1])
