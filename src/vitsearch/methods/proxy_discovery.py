"""Auto-Prox: formulas are drawn, judged by their joint correlation, and evolved (Wei et al., AAAI 2024, Algorithm 1).

A search is a deterministic function of its seed and of what it has judged before: stopped at any moment, it is run
again over its journal, which answers in the place of the judge, and goes on where the journal ends.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from vitsearch.architecture import brief, check_seed, check_whole
from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.methods.evidence import Evidence, Part
from vitsearch.methods.formula_draws import Grammar
from vitsearch.proxies.expression import Formula, constant
from vitsearch.ranking import pareto_front
from vitsearch.records import Journal, Trial

STRATEGIES = ("elitism", "naive", "random")
CHUNK = 256
"""Judged formulas between two writes."""
FEWEST = 4
"""Draws for each evaluation that is left, before a search over few formulas gives up finding new ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """Algorithm 1 and its comparisons. The defaults are the paper's, where it names them."""

    strategy: str = "elitism"
    """`elitism`: a child must beat its parent by `margin`; `naive`: any valid child counts; `random`: no parents."""
    evaluations: int = 2020
    """JCM evaluations of different formulas: 20 + 200 x 10."""
    population: int = 20
    sample_ratio: float = 0.5
    top: int = 5
    mutation: float = 0.5
    margin: float = 0.001
    tries: int = 10
    crossover: float = 0.0
    """How often a child has two parents."""
    pareto: bool = False
    """Parents come from the front of (tau, size) in the place of the best alone."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise VitsearchError(f"`strategy` must be one of {', '.join(STRATEGIES)}, but got {brief(self.strategy)}")
        for name in ("evaluations", "population", "top", "tries"):
            check_whole(name, getattr(self, name), most=1 << 40)
        for name in ("sample_ratio", "mutation", "crossover"):
            if not 0 <= getattr(self, name) <= 1:
                raise VitsearchError(f"`{name}` must be from 0 to 1, but got {brief(getattr(self, name))}")
        if not 0 <= self.margin <= 2:
            raise VitsearchError(f"`margin` must be from 0 to 2, but got {brief(self.margin)}")


@dataclass(frozen=True, slots=True)
class Judged:
    """A formula in canonical form and its joint correlation on the networks of the search."""

    formula: Formula
    joint: float
    number: int


@dataclass(frozen=True, slots=True)
class Member:
    """Of a population: a formula as it was drawn, which is what changes, and what the judge said of it.

    The canonical form is shorter; children of it would lose operations from one generation to the next.
    """

    drawn: Formula
    judged: Judged


class Exhausted(Exception):
    """The budget is spent."""


@dataclass
class Judge:
    """Joint correlations, each different formula once; written down, and answered from what is written."""

    evidence: Evidence
    part: Part
    journal: Journal
    budget: int
    progress: Callable[[int, Judged | None], None] | None = None
    known: dict[str, Judged | None] = field(default_factory=dict)
    judged: list[Judged] = field(default_factory=list)
    best: Judged | None = None
    _count: int = 0
    _asked: int = 0
    _pending: list[Trial] = field(default_factory=list)

    def __call__(self, formula: Formula) -> Judged | None:
        """None for formulas without a value."""
        self._asked += 1
        if self._asked > FEWEST * self.budget + 1000:
            raise Exhausted
        formula = formula.simplified()
        text = str(formula)
        if text not in self.known:
            if self._count >= self.budget:
                raise Exhausted
            self.known[text] = self._judge(formula, text)
        return self.known[text]

    def _judge(self, formula: Formula, text: str) -> Judged | None:
        number, self._count = self._count, self._count + 1
        if number < len(self.journal.trials):
            trial = self.journal.trials[number]
            if trial.settings != {"formula": text}:
                raise BadStudy(f"{self.journal.path} line {number + 1} is not the formula this search judges there")
        else:
            trial = self._evaluate(formula, text, number)
        if trial.error is not None:
            return None
        found = Judged(formula, trial.measured["joint"], number)
        self.judged.append(found)
        if self.best is None or found.joint > self.best.joint:
            self.best = found
        return found

    def _evaluate(self, formula: Formula, text: str, number: int) -> Trial:
        began = time.perf_counter()
        best = self.best.joint if self.best else -1.0
        fixed = constant(formula.tree, formula.scalar)
        joint, error = (-1.0, "constant by its form") if fixed else self.evidence.judge(formula, self.part, best)
        measured: dict[str, float] = {} if error else {"joint": joint, "size": formula.size}
        seconds = round(time.perf_counter() - began, 6)
        trial = Trial(number=number, settings={"formula": text}, measured=measured, error=error, seconds=seconds)
        self._pending.append(trial)
        if len(self._pending) >= CHUNK:
            self.flush()
        return trial

    def flush(self) -> None:
        self.journal.append(self._pending)
        self._pending = []
        if self.progress:
            self.progress(self._count, self.best)


def search(evolution: Evolution, grammar: Grammar, judge: Judge, seed: int) -> list[Judged]:
    """All formulas with a value, in the order they were judged, once the budget is spent."""
    check_seed(seed)
    rounds = _random(grammar, seed) if evolution.strategy == "random" else None
    try:
        if rounds is not None:
            for formula in rounds:
                judge(formula)
        else:
            _evolve(evolution, grammar, judge, seed)
    except Exhausted:
        pass
    judge.flush()
    return judge.judged


def _random(grammar: Grammar, seed: int) -> Iterator[Formula]:
    random = Random(f"{seed}/random")
    while True:
        yield grammar.draw(random)


def _evolve(evolution: Evolution, grammar: Grammar, judge: Judge, seed: int) -> None:
    random = Random(f"{seed}/start")
    population: list[Member] = []
    while len(population) < evolution.population:
        drawn = grammar.draw(random)
        _join(population, drawn, judge(drawn))
    step = 0
    while True:
        child = _child(evolution, grammar, judge, population, Random(f"{seed}/{step}"))
        if child is not None and _join(population, child.drawn, child.judged):
            population.remove(min(population, key=_rank))
        step += 1


def _join(population: list[Member], drawn: Formula, judged: Judged | None) -> bool:
    """Whether it is a formula with a value that was not there in another spelling."""
    if judged is None or any(judged.number == member.judged.number for member in population):
        return False
    population.append(Member(drawn, judged))
    return True


def _rank(member: Member) -> tuple[float, int]:
    return member.judged.joint, -member.judged.number


def _child(
    evolution: Evolution, grammar: Grammar, judge: Judge, population: list[Member], random: Random
) -> Member | None:
    """Lines 5 to 14: a parent among the best of a sample, and its first child that is good enough, in so many tries."""
    count = max(1, round(evolution.sample_ratio * len(population)))
    best = _parents(evolution, random.sample(population, count))
    parent = random.choice(best)
    for _ in range(evolution.tries):
        if random.random() < evolution.crossover:
            drawn = grammar.cross(parent.drawn, random.choice(best).drawn, random)
        else:
            drawn = grammar.mutate(parent.drawn, random, evolution.mutation)
        child = judge(drawn)
        if child is None:
            continue
        if evolution.strategy == "naive" or child.joint - parent.judged.joint >= evolution.margin:
            return Member(drawn, child)
    return None


def _parents(evolution: Evolution, sample: list[Member]) -> list[Member]:
    if evolution.pareto:
        front = pareto_front([(one.judged.joint, -one.judged.formula.size) for one in sample])
        sample = [sample[index] for index in front]
    return heapq.nlargest(evolution.top, sample, key=_rank)


def front_of(judged: list[Judged]) -> list[Judged]:
    """From the smallest on, every formula that is better than all smaller ones."""
    found: list[Judged] = []
    for one in sorted(judged, key=lambda one: (one.formula.size, -one.joint, one.number)):
        if not found or one.joint > found[-1].joint:
            found.append(one)
    return found


def choose(judged: list[Judged], tolerance: float) -> Judged:
    """The smallest formula within `tolerance` of the best; of equal size the better, then the earlier."""
    if not judged:
        raise VitsearchError("no formula had a value for all networks")
    most = max(one.joint for one in judged)
    near = [one for one in judged if one.joint >= most - tolerance]
    return min(near, key=lambda one: (one.formula.size, -one.joint, one.number))
