"""The network for a budget out of a supernet that was trained on chosen networks: no search (PreNAS, Eq. 12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitsearch.architecture import Settings
from vitsearch.cost import Cost, Limits
from vitsearch.errors import NothingFits, VitsearchError
from vitsearch.evaluate import SupernetEvaluator
from vitsearch.spaces import cost_of
from vitsearch.training.plan import read_plan
from vitsearch.training.run import read_training


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
    rank: bool = False,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Specialized:
    """The best candidate within the limits, by the order they were chosen in, or by accuracy with `rank`.

    `candidates` are those the supernet was trained on unless given, best first.
    """
    plan, _ = read_plan(Path(run))
    read_training(run)  # must be finished
    known = plan.candidates if candidates is None else list(candidates)
    if not known:
        raise VitsearchError(f"{run} was not trained on candidates: `candidates` must be given, but got none")
    costs = [cost_of(settings, plan.geometry) for settings in known]
    fitting = [settings for settings, cost in zip(known, costs, strict=True) if limits.allow(cost)]
    if not fitting:
        smallest = min(costs)
        found = f"the smallest has params={smallest.params}, macs={smallest.macs}"
        raise NothingFits(f"none of the {len(known)} candidates of {run} satisfies {limits}; {found}")
    ranked = _ranked(run, fitting, device, progress) if rank else []
    settings, top1 = ranked[0] if ranked else (fitting[0], None)
    return Specialized(settings=settings, cost=cost_of(settings, plan.geometry), top1=top1, ranked=ranked)


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
