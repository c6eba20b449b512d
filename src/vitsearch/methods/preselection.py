"""PreNAS: choose the networks of every budget before anything is trained (Wang et al., ICML 2023).

preselect("autoformer-tiny", out="chosen", budgets="6M:11M:1M", draws=8)

One forward and backward pass of the largest network on one batch gives the scores of a whole space as tables
(`score_tables.py`); the choice over them is exact (`two_steps.py`). Tables of several draws, each with initial weights
and a batch of its own, are averaged. The folder is a study whose trials are the picks; `draws.jsonl` keeps the tables
of every draw, so that a stopped choice goes on with the next draw.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from vitsearch.architecture import Architecture, Settings, brief, check_whole
from vitsearch.cost import IMAGENET, Geometry, Limits
from vitsearch.data import Batch, ImageSource, open_data
from vitsearch.environment import describe_environment, pick_device
from vitsearch.errors import BadStudy, NothingFits, VitsearchError
from vitsearch.latency import LATENCY, Speed, note_other_machine, read_speed
from vitsearch.methods.one_step import ChainSelector, ChainTables, both, chain_tables, fitting_count
from vitsearch.methods.score_tables import CODE_DROP_PATH, ScoreTables, Variant, code_images, score_tables
from vitsearch.methods.two_steps import RELIABLE, Pick, Resource, Selector, Window
from vitsearch.models.supernet import Supernet
from vitsearch.records import Journal, Objective, Trial
from vitsearch.spaces import Space, find_space
from vitsearch.spaces.halved import HalvedRegion
from vitsearch.spaces.isotropic import Isotropic
from vitsearch.spaces.mobile import Mobile
from vitsearch.study import KIND, Plan, Study, check_same, open_or_create, study_folder
from vitsearch.training.plan import EpochLog
from vitsearch.training.randomness import borrowed_generators, seed_generators, seed_of
from vitsearch.training.run import digest_of
from vitsearch.training.supernet import read_supernet

OBJECTIVE = Objective(name="snip", direction="max")
BATCH_SIZES: dict[Variant, int] = {"paper": 8, "code": 64, "snip": 8}
DRAWS = "draws.jsonl"
log = logging.getLogger("vitsearch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The budgets C = (a, a + step, ..., b) of Eq. 10, or any list of them, in growing order."""

    bounds: tuple[int | float, ...]
    """Whole, or milliseconds of predicted latency."""
    below: int | float = 0
    """Where the public code's first bin begins."""

    def __post_init__(self) -> None:
        for bound in self.bounds:
            if not isinstance(bound, float):
                check_whole("budgets", bound, most=1 << 62)
            elif not 0 < bound < math.inf:
                raise VitsearchError(f"`budgets` must be more than 0, but got {bound}")
        if not self.bounds or list(self.bounds) != sorted(set(self.bounds)):
            raise VitsearchError(f"`budgets` must grow, but got {brief(list(self.bounds))}")

    def windows(self, variant: Variant) -> list[Window]:
        """Everything below a budget; in the public code, what lies between it and the one before."""
        lows = (self.below, *self.bounds) if variant == "code" else (0,) * len(self.bounds)
        return [Window(low, high) for low, high in zip(lows, self.bounds, strict=False)]

    def __str__(self) -> str:
        return "+".join(map(str, self.bounds)) + (f" from {self.below}" if self.below else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preselected:
    study: Study
    picks: list[Pick]
    stopped: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Where the tables of a draw come from: a function of the seed and the number of the draw."""

    space: Isotropic | Mobile
    geometry: Geometry
    variant: Variant
    source: ImageSource
    batch_size: int
    seed: int
    device: torch.device
    trained: Supernet | None = None

    def tables(self, draw: int) -> ScoreTables | ChainTables:
        """The first draw has the weights and the batch that `--weights shared` gives the proxies."""
        seed = seed_of(self.seed, "draw", draw) if draw else self.seed
        batch = self.source.draw(self.batch_size, self.geometry, seed)
        with borrowed_generators(self.device):
            seed_generators(seed_of(seed, "stochastic depth"))
            if isinstance(self.space, Mobile):
                return chain_tables(self._supernet(seed), batch)
            return score_tables(self._supernet(seed), self._images(batch), self.variant)

    def _supernet(self, seed: int) -> Supernet:
        if self.trained is not None:
            return self.trained
        rate = CODE_DROP_PATH if self.variant == "code" else 0.0
        return Supernet(self.space, self.geometry, seed=seed, drop_path_rate=rate).to(self.device)

    def _images(self, batch: Batch) -> Batch:
        return code_images(batch) if self.variant == "code" else batch


def preselect(
    space: str | Space,
    *,
    out: str | Path,
    budgets: Budgets,
    resource: Resource = "params",
    top: int = 1,
    variant: Variant = "paper",
    draws: int = 1,
    limits: Limits | None = None,
    geometry: Geometry = IMAGENET,
    seed: int = 0,
    data: str = "noise",
    batch_size: int | None = None,
    patch_size: int | Sequence[int] | None = None,
    weights: str | None = None,
    latency: str | Path | None = None,
    max_latency_ms: float | None = None,
    min_throughput: float | None = None,
    device: str = "auto",
    resume: bool = False,
    allow_changed: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Preselected:
    """Choose the `top` networks of every budget and keep them as the trials of the study `out`.

    `latency` is a file of `fit_latency`: each pick then has its prediction, budgets may be of latency, and
    `max_latency_ms` (of a batch) and `min_throughput` (images per second) bound it.

    `weights` is the folder of a trained supernet, in place of initial weights; draws then differ in their batches.
    `resume` goes on where a choice was stopped; the arguments must be the same.
    """
    found = check_space(space, patch_size)
    check_choices(top, draws, variant, resource, data)
    if isinstance(found, Mobile) and variant == "code":
        raise VitsearchError(f"`variant` must be paper for {found.name}, of which there is no public code, not 'code'")
    windows, speed = budgets.windows(variant), read_speed(latency, max_latency_ms, min_throughput)
    check_latency(found, geometry, budgets, resource, speed)  # what is wrong must leave no folder behind
    check_windows(found, windows, resource, limits, geometry, speed)
    size = BATCH_SIZES[variant] if batch_size is None else check_whole("batch_size", batch_size)
    passes = Pass(
        space=found,
        geometry=geometry,
        variant=variant,
        source=open_data(data),
        batch_size=size,
        seed=seed,
        device=(chosen := pick_device(device)),
        trained=None if weights is None else trained_supernet(weights, found, geometry).to(chosen),
    )
    options: dict[str, Any] = {"budgets": budgets, "resource": resource, "top": top, "variant": variant, "draws": draws}
    options |= {} if weights is None else {"weights": weights}
    plan = plan_of(passes, options, limits or Limits(), speed, data)
    environment, path = describe_environment(chosen), Path(out)
    environment |= {} if weights is None else {"supernets": {weights: digest_of(weights)}}
    with study_folder(path, resume, KIND), Journal(path / "trials.jsonl") as journal:
        study = open_or_create(path, plan, 1, environment, journal, allow_changed)  # picks are written at once
        began = time.perf_counter()
        tables = draw_tables(passes, draws, path, progress)
        selector = selector_of(found, tables, geometry, variant)
        picks = choose(selector, windows, resource, speed, top=top, limits=plan.limits, seed=seed)
        write_picks(study, journal, picks, time.perf_counter() - began)
        warn(picks, windows, draws, resource)
        if not selector.heads_matter:
            log.warning("note: heads change no score in %s: those of the picks are the first of equals", found.name)
        study = dataclasses.replace(study, trials=tuple(journal.trials))
    return Preselected(study=study, picks=picks, stopped=f"chose {len(picks)} networks by {draws} draws")


def selector_of(
    space: Isotropic | Mobile, draws: Sequence[Any], geometry: Geometry, variant: Variant
) -> Selector | ChainSelector:
    """The choice over these tables."""
    if isinstance(space, Mobile):
        return ChainSelector(space, draws, geometry=geometry)
    return Selector(space, draws, geometry=geometry, variant=variant)


def choose(
    selector: Selector | ChainSelector,
    windows: Sequence[Window],
    resource: Resource,
    speed: Speed | None,
    *,
    top: int,
    limits: Limits,
    seed: int,
) -> list[Pick]:
    if isinstance(selector, ChainSelector):
        return selector.picks(windows, top=top, resource=resource, limits=limits, seed=seed)
    return selector.picks(windows, top=top, resource=resource, limits=limits, speed=speed, seed=seed)


def plan_of(passes: Pass, options: Mapping[str, Any], limits: Limits, speed: Speed | None, data: str) -> Plan:
    """The study's plan. All networks share weights; what is PreNAS's own is in the name of the strategy."""
    return Plan(
        space=passes.space.name,
        fixed=passes.space.fixed(),
        strategy="prenas:" + ",".join(f"{name}={value}" for name, value in options.items()),
        objectives=(OBJECTIVE,),
        limits=limits,
        geometry=passes.geometry,
        seed=passes.seed,
        data=data,
        batch_size=passes.batch_size,
        weights="shared",
        speed=speed.limits if speed else None,
    )


def check_space(space: str | Space, patch_size: int | Sequence[int] | None) -> Isotropic | Mobile:
    found = find_space(space, patch_size)
    if not isinstance(found, Isotropic | Mobile):
        rule = "must have one width, and heads and an MLP ratio for each block, or be of convolutions"
        raise VitsearchError(f"`space` {rule}, for strategy prenas, but got {found.name!r}")
    return found


def check_choices(top: int, draws: int, variant: str, resource: str, data: str) -> None:
    check_whole("top", top)
    check_whole("draws", draws)
    for name, value, known in (("variant", variant, Variant), ("resource", resource, Resource)):
        if value not in get_args(known):
            raise VitsearchError(f"`{name}` must be one of {', '.join(get_args(known))}, but got {brief(value)}")
    if variant == "code" and data != "noise":
        raise VitsearchError(f"`data` must be noise for variant code, which has no labels, but got {data!r}")


def check_latency(space: Space, geometry: Geometry, budgets: Budgets, resource: Resource, speed: Speed | None) -> None:
    if resource != "latency" and any(isinstance(bound, float) for bound in budgets.bounds):
        raise VitsearchError(f"`budgets` must be whole for resource {resource}, but got {brief(list(budgets.bounds))}")
    if isinstance(space, Mobile) and (speed is not None or resource == "latency"):
        raise VitsearchError(f"`budgets` must be in params or macs for {space.name}, but got latency")
    if speed is not None:
        speed.model.check(space, geometry)
        note_other_machine(speed.model)
    elif resource == "latency":
        raise VitsearchError("`latency` must be a file of `vitsearch fit-latency` for resource latency, but got none")


def check_windows(
    space: Isotropic | Mobile,
    windows: Sequence[Window],
    resource: Resource,
    limits: Limits | None,
    geometry: Geometry,
    speed: Speed | None,
) -> None:
    """Whether anything fits; raises `NothingFits`. Latency is a matter of isomers: here only the ends are known."""
    region = space.region(limits, geometry)
    used: list[float]
    if resource == "latency" and speed is not None:
        assert isinstance(space, Isotropic)
        used = sorted(speed.latency_ms(plan) for plan in uniform_networks(space))
        fits = any(low <= used[-1] and high > used[0] for low, high in windows)
    elif isinstance(region, HalvedRegion):
        used = list(region.span(resource))
        fits = any(fitting_count(region, both(limits or Limits(), window, resource)) for window in windows)
    else:
        used = sorted(getattr(cell.cost, resource) for cell in region.cells)
        fits = any(low <= value < high for low, high in windows for value in used)
    if not fits:
        asked = ", ".join(f"{low} <= {resource} < {high}" for low, high in windows)
        raise NothingFits(f"no architecture of {space.name} has {asked}; there is {used[0]} to {used[-1]}")


def uniform_networks(space: Isotropic) -> Iterator[Architecture]:
    """All with equal blocks. What is a sum over blocks, as latency is, has its least and its most among them."""
    for width, depth, heads, ratio in itertools.product(space.embed_dim, space.depth, space.num_heads, space.mlp_ratio):
        each = {"num_heads": [heads] * depth, "mlp_ratio": [ratio] * depth}
        yield space.decode(space.settings(embed_dim=width, depth=depth, **each))


def trained_supernet(folder: str, space: Space, geometry: Geometry) -> Supernet:
    _, supernet = read_supernet(folder)
    if (supernet.space, supernet.geometry) != (space, geometry):
        theirs = f"{supernet.space.name} {supernet.space.fixed()} with {supernet.geometry}"
        ours = f"{space.name} {space.fixed()} with {geometry}"
        raise VitsearchError(f"`weights` must be a supernet of {ours}, but got {theirs}")
    return supernet


def draw_tables(passes: Pass, count: int, folder: Path, progress: Callable[[int, int], None] | None) -> list[Any]:
    """The tables of every draw: those that the folder has, then the rest."""
    journal = EpochLog(folder / DRAWS)
    try:
        journal.cut(count)  # whole lines only: what follows the last was cut off
        for draw in range(len(journal.rows), count):
            if progress:
                progress(draw, count)
            journal.append({"step": draw, **passes.tables(draw).to_json()})
        if progress:
            progress(count, count)
        kind = ChainTables if isinstance(passes.space, Mobile) else ScoreTables
        return [kind.from_json(row) for row in journal.rows]
    except (KeyError, TypeError, ValueError) as error:
        raise BadStudy(f"{folder / DRAWS} is broken: {type(error).__name__}: {error}") from None
    finally:
        journal.close()


def write_picks(study: Study, journal: Journal, picks: Sequence[Pick], seconds: float) -> None:
    """One trial for each, in one write."""
    check_same(study, journal.trials, [pick.settings for pick in picks])
    each = round(seconds / len(picks), 4)
    trials = [
        Trial(number=number, settings=pick.settings, measured=measured(pick), seconds=each)
        for number, pick in enumerate(picks)
    ]
    journal.append(trials[len(journal.trials) :])


def measured(pick: Pick) -> dict[str, float]:
    """The numbers of a pick that are there."""
    found = {
        "snip": pick.snip,
        "budget": pick.budget,
        "score": pick.score,
        "greedy_score": pick.greedy_score,
        "agreement": pick.agreement,
        "agreement_heads": pick.agreement_heads,
        "agreement_ratios": pick.agreement_ratios,
        "agreement_settings": pick.agreement_settings,
        "params": pick.cost.params,
        "macs": pick.cost.macs,
        LATENCY: pick.latency_ms,
    }
    return {name: value for name, value in found.items() if value is not None}


def warn(picks: Sequence[Pick], windows: Sequence[Window], draws: int, resource: str) -> None:
    """Of budgets that nothing fits or that change nothing, and of allocations that other draws would change."""
    before: list[Settings] = []
    for low, high in windows:
        chosen = [pick.settings for pick in picks if pick.budget == high]
        if not chosen:
            log.warning("note: no network has %s <= %s < %s", low, resource, high)
        elif chosen == before:
            log.warning("note: a budget of %s %s chooses nothing that the one before did not", high, resource)
        before = chosen
    if draws == 1:
        log.warning("note: one draw does not show how much of the picks is noise; --draws 8 does")
        return
    for kind in ("heads", "ratios"):
        noisy = [pick for pick in picks if kind in pick.noisy]
        if noisy:
            values = [getattr(pick, f"agreement_{kind}") for pick in noisy]
            shown = f"{min(values):.2f}" + (f" to {max(values):.2f}" if len(noisy) > 1 else "")
            log.warning(
                "warning: in %d of %d picks, which block gets how many %s is within its noise: "
                "halves of %d draws agree by %s (1: always, 0: as by chance, below %.1f: noise)",
                *(len(noisy), len(picks), "heads" if kind == "heads" else "MLP units", draws, shown, RELIABLE),
            )
