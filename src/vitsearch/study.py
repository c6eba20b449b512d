"""A study: ask, evaluate, append, repeat; stop at any moment and resume to the very same trials.

A study is a folder. `study.json` holds everything needed to repeat it, `trials.jsonl` the trials. Trials are
evaluated in fixed chunks and written one chunk at a time; a resumed study scores the chunk it was cut off in again
as a whole and writes what is missing.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitsearch.architecture import Settings, brief, check_seed, check_whole
from vitsearch.cost import IMAGENET, Geometry, Limits, architecture_cost
from vitsearch.environment import describe_changes, describe_environment, pick_device
from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.evaluate import BENCH, PREDICTOR, SUPERNET, THROUGHPUT, Evaluator, listed
from vitsearch.latency import LATENCY, Speed, SpeedLimits, note_other_machine, read_speed
from vitsearch.proxies import parse_proxy
from vitsearch.ranking import pareto_front
from vitsearch.records import (
    Journal,
    Objective,
    Trial,
    new_folder,
    parse_json,
    read_trials,
    trial_number,
    write_atomically,
)
from vitsearch.scoring import Score
from vitsearch.search import Domain, History, TriedIndex, parse_strategy
from vitsearch.spaces import SPACES, Space, find_space

FORMAT, KIND = 1, "search"
log = logging.getLogger("vitsearch")


def parse_objective(text: str) -> Objective:
    """`dss`, or `min:params` to overrule the direction that the proxy declares."""
    prefix, _, rest = text.partition(":")
    direction, name = (prefix, rest) if prefix in ("min", "max") else (None, text)
    if name in ("latency", LATENCY):
        return Objective(name=LATENCY, direction=direction or "min")
    measured = name.startswith((SUPERNET, PREDICTOR, BENCH)) or name == THROUGHPUT
    natural = "max" if measured else parse_proxy(name)[0].direction
    return Objective(name=name, direction=direction or natural)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a search is, apart from how far it goes and the machine it runs on."""

    space: str
    fixed: dict[str, Any]
    """Parts of the space that are not searched, such as the patch size."""
    strategy: str
    objectives: tuple[Objective, ...]
    limits: Limits
    geometry: Geometry
    seed: int
    data: str
    batch_size: int
    weights: str
    """`fresh`, each network its own initial weights, or `shared`, all cut from one supernet."""
    speed: SpeedLimits | None = None
    """Bounds on predicted latency, and which file predicts it."""

    def __post_init__(self) -> None:
        for name, kind in (("space", str), ("strategy", str), ("data", str), ("weights", str), ("objectives", tuple)):
            if not isinstance(getattr(self, name), kind) or not getattr(self, name):
                raise VitsearchError(f"`{name}` must be given, but got {brief(getattr(self, name))}")
        names = [objective.name for objective in self.objectives]
        if len(set(names)) < len(names):
            raise VitsearchError(f"`objectives` must be different, but got {brief(','.join(names))}")
        if not isinstance(self.fixed, dict):
            raise VitsearchError(f"`fixed` must be an object, but got {brief(self.fixed)}")
        for name, value in self.fixed.items():
            for one in value if isinstance(value, list) else [value]:
                check_whole(name, one)
        check_whole("batch_size", self.batch_size)
        check_seed(self.seed)

    def domain(self, speed: Speed | None = None) -> Domain:
        """`speed` is what the file of `self.speed` holds. With a benchmark table, nothing but what it has."""
        return Domain(
            space=SPACES[self.space].with_fixed(self.fixed),
            limits=self.limits,
            geometry=self.geometry,
            objectives=self.objectives,
            speed=speed,
            listed=listed([objective.name for objective in self.objectives], self.space),
        )

    def to_json(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self) | {"limits": self.limits.bounds()}
        if self.speed is None:
            del fields["speed"]
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        fields = {field.name: data[field.name] for field in dataclasses.fields(cls) if field.name != "speed"}
        fields["speed"] = SpeedLimits(**data["speed"]) if "speed" in data else None
        fields["objectives"] = tuple(Objective(**objective) for objective in fields["objectives"])
        fields["limits"] = Limits(**fields["limits"])
        fields["geometry"] = Geometry(**fields["geometry"])
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study folder as it was when it was opened."""

    path: Path
    plan: Plan
    chunk: int
    at_once: int | None
    """How many networks went through at once; it halves when memory runs out."""
    memory: int | None
    """The bound in bytes that this follows from; None where nothing did."""
    environments: list[dict[str, Any]]
    """The machine and versions it started on, then each change that was allowed, with the trial it took effect at."""
    trials: Sequence[Trial]
    wanted: int | None = None
    """How many trials it is to have, for those who look on; as many as there are where the space has no more."""

    @classmethod
    def open(cls, path: str | Path) -> Study:
        """Read a study without touching it."""
        folder = Path(path)
        try:
            data = parse_json((folder / "study.json").read_bytes(), str(folder / "study.json"))
        except (FileNotFoundError, NotADirectoryError):
            raise BadStudy(f"{folder} is not a study: it has no study.json") from None
        journal = folder / "trials.jsonl"
        trials = read_trials(journal)[0] if journal.exists() else []
        study = cls._from_json(folder, data, trials)
        for trial in trials:
            where = f"{journal} line {trial.number + 1}"
            if trial.settings.get("space") != study.plan.space:
                found = brief(trial.settings.get("space"))
                raise BadStudy(f"{where} is of space {found}, and the study is of {study.plan.space!r}")
            for objective in study.plan.objectives:
                if trial.error is None and objective.name not in trial.measured:
                    raise BadStudy(f"{where} has no {objective.name!r}, which is an objective of the study")
        return study

    @classmethod
    def _from_json(cls, folder: Path, data: Any, trials: Sequence[Trial]) -> Study:
        if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("kind") != KIND:
            raise BadStudy(f"{folder / 'study.json'} must have format {FORMAT} and kind {KIND!r}")
        try:
            plan = Plan.from_json(data)
            chunk, environments, at_once = check_whole("chunk", data["chunk"]), data["environments"], data["at_once"]
            for name, least in (("at_once", 1), ("memory", 1), ("wanted", 0)):
                if data.get(name) is not None:
                    check_whole(name, data[name], least=least, most=1 << 62)
            if not isinstance(environments, list) or not environments:
                raise ValueError("`environments` must be a list that is not empty")
            if not all(isinstance(environment, dict) for environment in environments):
                raise ValueError("`environments` must hold objects")
        except (KeyError, TypeError, ValueError, VitsearchError) as error:
            raise BadStudy(f"{folder / 'study.json'} is broken: {type(error).__name__}: {error}") from None
        return cls(
            path=folder,
            plan=plan,
            chunk=chunk,
            at_once=at_once,
            memory=data.get("memory"),
            environments=environments,
            trials=trials,
            wanted=data.get("wanted"),
        )

    def save(self) -> None:
        data = {
            "format": FORMAT,
            "kind": KIND,
            **self.plan.to_json(),
            "chunk": self.chunk,
            "at_once": self.at_once,
            "memory": self.memory,
            "wanted": self.wanted,
            "environments": self.environments,
        }
        write_atomically(self.path / "study.json", json.dumps(data, indent=2, allow_nan=False) + "\n")

    @property
    def best(self) -> Trial | None:
        """The best in the first objective, of equals in the next ones, then the earliest; None when all failed."""
        valid = [trial for trial in self.trials if trial.error is None]
        gains = {trial.number: [one.gain(trial) for one in self.plan.objectives] for trial in valid}
        return max(valid, key=lambda trial: (gains[trial.number], -trial.number), default=None)

    @property
    def front(self) -> list[Trial]:
        """Trials that no other beats in every objective."""
        valid = [trial for trial in self.trials if trial.error is None]
        points = [[objective.gain(trial) for objective in self.plan.objectives] for trial in valid]
        return [valid[index] for index in pareto_front(points)]

    def trial(self, name: str) -> Trial:
        """A trial by number, or `best`."""
        if name == "best":
            if (best := self.best) is None:
                raise BadStudy(f"{self.path} has no best trial: none of its {len(self.trials)} trials succeeded")
            return best
        if (number := trial_number(name)) is None or number >= len(self.trials):
            known = f"0 to {len(self.trials) - 1}" if self.trials else "none yet"
            raise BadStudy(f"a trial of {self.path} must be 'best' or a number ({known}), but got {brief(name)}")
        return self.trials[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    study: Study
    stopped: str
    """Why the search ended."""


def run_search(
    space: str | Space,
    *,
    out: str | Path,
    objective: str | Sequence[str] = "dss",
    strategy: str = "random",
    trials: int = 100,
    limits: Limits | None = None,
    geometry: Geometry = IMAGENET,
    seed: int = 0,
    data: str = "noise",
    batch_size: int = 8,
    patch_size: int | Sequence[int] | None = None,
    weights: str = "fresh",
    memory: int | None = None,
    latency: str | Path | None = None,
    max_latency_ms: float | None = None,
    min_throughput: float | None = None,
    device: str = "auto",
    resume: bool = False,
    allow_changed: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SearchResult:
    """Search a space under limits and keep every trial in the study folder `out`.

    `latency` is a file of `fit_latency`: each trial then has its prediction, and `max_latency_ms` (of a batch) and
    `min_throughput` (images per second) bound it.

    `resume` continues a study that was stopped, or starts it where there is none yet; the arguments must be the same,
    except that `trials` may grow. `progress` is told (done, wanted) after every chunk.
    """
    names = objective.split(",") if isinstance(objective, str) else objective
    found = find_space(space, patch_size)
    check_whole("trials", trials, most=1 << 40)
    speed = read_speed(latency, max_latency_ms, min_throughput)
    plan = Plan(
        space=found.name,
        fixed=found.fixed(),
        strategy=strategy,
        objectives=tuple(parse_objective(name) for name in names),
        limits=limits or Limits(),
        geometry=geometry,
        seed=seed,
        data=data,
        batch_size=batch_size,
        weights=weights,
        speed=speed.limits if speed else None,
    )
    # an unknown name, limits that nothing satisfies and bad data must leave no folder behind
    asked, domain = parse_strategy(strategy), plan.domain(speed)
    if domain.space != found:
        raise VitsearchError(f"`space` must be registered as it is, but {found.name!r} is another space there")
    if speed:
        speed.model.check(found, geometry)
        note_other_machine(speed.model)
    domain.check(seed)
    first = asked.ask(domain, History([], 0), seed, 1)  # options that do not go with the space
    chosen = pick_device(device)
    evaluator = Evaluator(
        [objective.name for objective in plan.objectives],
        geometry=geometry,
        seed=seed,
        device=chosen,
        data=data,
        batch_size=batch_size,
        weights=weights,
        memory=memory,
        latency=speed.model if speed else None,
    )
    evaluator.check(found, geometry)
    if getattr(asked, "one_objective", False) and len(names) > 1:
        log.info("%s goes by %s alone; nsga2 searches by several", strategy, names[0])
    chunk = evaluator.chunk(first[0]) if first else 1
    environment = describe_environment(chosen) | evaluator.digests() | evaluator.precision(chosen)
    older, path = evaluator.precision(None), Path(out)  # older folders do not say what they took
    # the journal's lock comes before anything is read
    with study_folder(path, resume, KIND), Journal(path / "trials.jsonl") as journal:
        study = open_or_create(path, plan, chunk, environment, journal, allow_changed, older)
        study = _within(study, evaluator, memory)
        stopped = run(study, domain, journal, evaluator, trials, progress)
        return SearchResult(study=dataclasses.replace(study, trials=tuple(journal.trials)), stopped=stopped)


def study_folder(path: Path, resume: bool, kind: str) -> AbstractContextManager[None]:
    """The study's folder, new or to be continued; one of another kind is refused before anything is written to it."""
    if not os.path.lexists(path):
        return new_folder(path)
    if not resume:
        raise BadStudy(f"`out` must not exist yet, but got {str(path)!r}; give --resume to continue the study in it")
    if not (path / "study.json").exists():  # killed before it was written, or not a study at all
        journal = path / "trials.jsonl"
        others = [file.name for file in path.iterdir() if not file.name.startswith(".study.json.") and file != journal]
        if others or (journal.exists() and journal.stat().st_size):
            raise BadStudy(f"{path} is not a study: it has files and no study.json")
    else:
        check_kind(path / "study.json", kind)
    return nullcontext()


def check_kind(file: Path, kind: str) -> None:
    data = parse_json(file.read_bytes(), str(file))
    if not isinstance(data, dict) or data.get("kind") != kind:
        found = brief(data.get("kind") if isinstance(data, dict) else data)
        raise BadStudy(f"{file} must have kind {kind!r}, but got {found}")


def open_or_create(
    path: Path,
    plan: Plan,
    chunk: int,
    environment: dict[str, Any],
    journal: Journal,
    allow_changed: bool,
    older: Mapping[str, Any] | None = None,
) -> Study:
    """The study in this folder, which must be of this plan, or a new one; `chunk` is that of a new one.

    `older` is what holds of a folder whose environment does not say it.
    """
    if (path / "study.json").exists():
        return _reopen(Study.open(path), plan, environment, journal, allow_changed, older or {})
    study = Study(path=path, plan=plan, chunk=chunk, at_once=None, memory=None, environments=[environment], trials=())
    try:
        study.save()
    except BaseException:
        journal.path.unlink()  # empty; so that a new folder can be taken away again
        raise
    return study


def _reopen(
    study: Study,
    plan: Plan,
    environment: dict[str, Any],
    journal: Journal,
    allow_changed: bool,
    older: Mapping[str, Any],
) -> Study:
    old, new = (json.loads(json.dumps(p.to_json())) for p in (study.plan, plan))
    for name in {**old, **new}:  # some are there only where they are asked for
        if (was := old.get(name)) != (now := new.get(name)):
            raise BadStudy(f"{study.path} was made with {name}={brief(was)}, but got {name}={brief(now)}")
    text = describe_changes({**older, **study.environments[-1]}, environment)
    if not text:
        return study
    if not allow_changed:
        raise BadStudy(f"{study.path} was made elsewhere ({text}); give --allow-changed to continue, which is recorded")
    log.warning("continuing with changes, which study.json records: %s", text)
    record = {**environment, "from_trial": len(journal.trials)}
    study = dataclasses.replace(study, environments=[*study.environments, record])
    study.save()
    return study


def run(
    study: Study,
    domain: Domain,
    journal: Journal,
    evaluator: Evaluator,
    wanted: int,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Fill the journal chunk by chunk; returns why it stopped.

    A chunk that a strategy cannot propose at once is evaluated in the parts it gives. All that is written is asked for
    again, in the same parts, and must be the same.
    """
    strategy, tried = parse_strategy(study.plan.strategy), TriedIndex()
    start, done, end = 0, len(journal.trials), max(wanted, len(journal.trials))
    study = _aim(study, end)
    while start < end:
        count = min(study.chunk - start % study.chunk, end - start)
        proposals = strategy.ask(domain, History(journal.trials, start, tried), study.plan.seed, count)
        check_same(study, journal.trials[start : start + count], proposals)
        if not proposals:
            _aim(study, done)
            return f"tried all {done} architectures within the limits"
        if start + len(proposals) > done:
            if progress:
                progress(done, wanted)
            study = _evaluate(study, domain, journal, evaluator, proposals, start)
            done = len(journal.trials)
        start += len(proposals)
    if progress:
        progress(done, end)
    return f"reached {wanted} trials" if done == wanted else f"had {done} trials already, {wanted} were asked for"


def _within(study: Study, evaluator: Evaluator, asked: int | None) -> Study:
    """The bound on memory that the study began with, whatever is free by now, unless another is asked for."""
    evaluator.memory = asked or study.memory or evaluator.memory
    if study.at_once is None or study.memory == evaluator.memory:  # what followed from none need not be kept
        return study
    study = dataclasses.replace(study, memory=evaluator.memory)
    study.save()
    return study


def _aim(study: Study, wanted: int) -> Study:
    if study.wanted == wanted:
        return study
    study = dataclasses.replace(study, wanted=wanted)
    study.save()
    return study


def _evaluate(
    study: Study,
    domain: Domain,
    journal: Journal,
    evaluator: Evaluator,
    proposals: Sequence[Settings],
    start: int,
) -> Study:
    """Score the trials from number `start` on together and append those that are not written yet."""
    evaluator.at_once = study.at_once
    scores = evaluator(proposals)
    if evaluator.at_once != study.at_once:  # known before the results are, so that a resumed study does the same
        study = dataclasses.replace(study, at_once=evaluator.at_once, memory=evaluator.memory)
        study.save()
    new = [_trial(start + index, score, domain) for index, score in enumerate(scores)]
    journal.append(new[len(journal.trials) - start :])
    return study


def check_same(study: Study, written: Sequence[Trial], proposals: Sequence[Settings]) -> None:
    """Whether the trials that are written are the ones that are proposed."""
    expected: Sequence[Settings | None] = proposals or [None]  # where nothing is proposed, nothing may be written
    for trial, settings in zip(written, expected, strict=False):
        if trial.settings != settings:
            raise BadStudy(
                f"{study.path / 'trials.jsonl'} line {trial.number + 1} is not the trial this study proposes there"
            )


def _trial(number: int, score: Score, domain: Domain) -> Trial:
    cost = architecture_cost(domain.space.decode(score.arch), domain.geometry)
    error = "; ".join(score.errors.values()) or None
    measured = {} if error else {**score.scores, "params": cost.params, "macs": cost.macs}
    return Trial(number=number, settings=score.arch, measured=measured, error=error, seconds=round(score.seconds, 4))
