"""How S3 moves a space: E-T errors, the line through them, and the steps that follow (sections 2.3 and 4.1).

For a dimension of a stage, Q(v) is the error of networks that have v there. A line is fitted to Q over v / gamma, in
percentage points per step: only in these units does the paper's threshold of 0.4 make sense. The choices move against
the slope, by -trunc(slope / tau) steps. The paper prints floor, which grows on any negative slope however small;
`rounding="floor"` is that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from vitsearch.architecture import LARGEST, Settings, brief, check_whole
from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.spaces.windowed import BLOCK_DIMENSIONS, DIMENSIONS, Windowed

RESAMPLES = 400
STEPS: dict[str, float] = {"depth": 1, "embed_dim": 64, "num_heads": 2, "mlp_ratio": 0.5, "window_size": 7}
"""The paper's gamma; its step of 64 for the Q-K-V width is two heads, for which it gives none."""
MOST: dict[str, float] = {"depth": 1024, "num_heads": 1024, "mlp_ratio": 16}
"""No network goes beyond it, in these dimensions or in a width or window (`LARGEST`)."""
MOST_SIZE = 1 << 1000
"""Bounds on the number of networks are below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How errors become moves. `tau` is in percentage points of error per step."""

    tau: float = 0.4
    rounding: str = "trunc"
    steps: dict[str, float] = field(default_factory=lambda: dict(STEPS))
    most_steps: int | None = 8
    """In one move. The paper has no bound, and its widest change, from 256 to 768, is 8 steps; None: no bound here."""
    most_size: int | None = None
    """M of Eq. 2, in networks; the paper does not say it. Depths that grow are taken back, the flattest first."""
    least_samples: int = 20
    """A dimension with a choice of which fewer networks were measured does not move."""
    top_share: float = 0.1
    least_top: int = 5
    """Q is the mean of all errors and of the best: this share of them, and no fewer than this. The paper's 50 best
    would be all or half of the networks with one choice."""

    def __post_init__(self) -> None:
        if self.rounding not in ("trunc", "floor"):
            raise VitsearchError(f"`rounding` must be trunc or floor, but got {brief(self.rounding)}")
        if not isinstance(self.tau, (int, float)) or not 0 < self.tau < math.inf:
            raise VitsearchError(f"`tau` must be above 0, but got {brief(self.tau)}")
        for name, step in self.steps.items():
            if name not in DIMENSIONS or not 0 < step < math.inf or (name != "mlp_ratio" and step != int(step)):
                rule = f"must be positive for {', '.join(DIMENSIONS)}, and whole for all but mlp_ratio"
                raise VitsearchError(f"`steps` {rule}, but got {name}={brief(step)}")
        for name in ("most_steps", "least_samples", "least_top"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        size = self.most_size
        if size is not None and (type(size) is not int or not 1 <= size < MOST_SIZE):
            raise VitsearchError(f"`most_size` must be a whole number from 1 to 2^1000, but got {brief(size)}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What became of one dimension of one stage. `stage` counts from 1, as in the paper."""

    stage: int
    dimension: str
    choices: tuple[float, ...]
    errors: tuple[float | None, ...]
    """Q of each choice; None where too few networks were measured."""
    samples: tuple[int, ...]
    slope: float | None
    slope_low: float | None
    slope_high: float | None
    """95 % of the slopes that resampled networks give."""
    confidence: float | None
    """Share of those slopes that have the sign of the slope."""
    move: float
    """What is added to each choice."""
    new_choices: tuple[float, ...]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def et_error(errors: Sequence[float], rules: Rules) -> float:
    """Q: the mean of all errors and of the best ones, averaged (Eq. 5)."""
    ordered = sorted(errors)
    best = ordered[: top_count(len(ordered), rules)]
    return (sum(ordered) / len(ordered) + sum(best) / len(best)) / 2


def top_count(networks: int, rules: Rules) -> int:
    return min(networks, max(rules.least_top, round(rules.top_share * networks)))


def fit_slope(choices: Sequence[float], values: Sequence[float], step: float) -> float:
    """Of the least-squares line through `values` over choices in steps."""
    x = [choice / step for choice in choices]
    middle, mean = sum(x) / len(x), sum(values) / len(values)
    squares = sum((one - middle) ** 2 for one in x)
    return sum((one - middle) * (value - mean) for one, value in zip(x, values, strict=True)) / squares


def resampled_slopes(
    choices: Sequence[float],
    errors: Sequence[Sequence[float]],
    step: float,
    rules: Rules,
    seed: int,
    paired: bool = False,
) -> list[float]:
    """Slopes from networks drawn with replacement from those of each choice: how much of a slope is chance.

    `paired`: network n of each choice is the same but for the choice, so that they are drawn together.
    """
    columns = []
    for number, own in enumerate(errors):
        generator = np.random.default_rng(seed if paired else [seed, number])
        drawn = np.sort(np.asarray(own)[generator.integers(len(own), size=(RESAMPLES, len(own)))], axis=1)
        columns.append((drawn.mean(1) + drawn[:, : top_count(len(own), rules)].mean(1)) / 2)
    x = np.asarray(choices) / step
    centred = x - x.mean()
    slopes: list[float] = (np.stack(columns, 1) @ centred / (centred @ centred)).tolist()
    return slopes


def steps_of(slope: float, rules: Rules) -> int:
    """Eq. 8. Rounded toward zero, tau is a threshold on both sides."""
    turns = slope / rules.tau
    return -(math.trunc(turns) if rules.rounding == "trunc" else math.floor(turns))


def bounded(steps: int, rules: Rules) -> int:
    most = rules.most_steps
    return steps if most is None else max(-most, min(most, steps))


def decide(
    stage: int,
    dimension: str,
    choices: Sequence[float],
    errors: Sequence[Sequence[float]],
    rules: Rules,
    seed: int = 0,
    side: int = 1 << 16,
    paired: bool = False,
) -> Move:
    """What one dimension of a stage does, given the errors of the networks that have each choice.

    `side` is that of the stage's map: windows that all cover it are the same network, and do not move.
    """
    samples, step = tuple(map(len, errors)), rules.steps[dimension]
    enough = [count >= rules.least_samples for count in samples]
    values = [et_error(own, rules) if good else None for own, good in zip(errors, enough, strict=True)]
    stays: dict[str, Any] = {"slope": None, "slope_low": None, "slope_high": None, "confidence": None, "move": 0}
    shared: dict[str, Any] = {"stage": stage, "dimension": dimension, "choices": tuple(choices)}
    shared |= {"errors": tuple(values), "samples": samples}
    note = "" if all(enough) else f"fewer than {rules.least_samples} networks with a choice"
    note = "one choice" if len(choices) < 2 else note
    note = "every window covers the map" if dimension == "window_size" and min(choices) >= side else note
    if note:
        return Move(**shared, **stays, new_choices=tuple(choices), note=note)
    slope = fit_slope(choices, [value for value in values if value is not None], step)
    slopes = sorted(resampled_slopes(choices, errors, step, rules, seed, paired and len(set(samples)) == 1))
    wanted = steps_of(slope, rules)
    steps = bounded(wanted, rules)
    move = shift_of(steps, dimension, step)
    return Move(
        **shared,
        slope=slope,
        slope_low=slopes[round(0.025 * (RESAMPLES - 1))],
        slope_high=slopes[round(0.975 * (RESAMPLES - 1))],
        confidence=sum(one * slope > 0 for one in slopes) / RESAMPLES,
        move=move,
        new_choices=tuple(choice + move for choice in choices),
        note="" if steps == wanted else f"{abs(steps)} steps, and not {abs(wanted)}",
    )


def repair(move: Move, side: int, step: float) -> Move:
    """Only choices that are networks, and if none would be left, as many steps fewer as leave one.

    The paper removes what is less than zero; no block, no head and no window are no network either.
    """
    if not move.move:
        return move
    most = MOST.get(move.dimension, LARGEST)
    down = math.ceil(round(max(move.choices) / step, 6)) - 1  # steps after which the largest choice is still above 0
    room = down if move.move < 0 else math.floor((most - min(move.choices)) / step)
    steps = min(round(abs(move.move) / step), room)
    if steps < 1:
        return replace(move, move=0, new_choices=move.choices, note="nothing would be left, so it stays")
    shift = shift_of(math.copysign(steps, move.move), move.dimension, step)
    moved = [round(choice + shift, 6) for choice in move.choices]
    kept = networks_of(move.dimension, moved, side)
    gone = [f"{choice:g}" for choice in moved if choice not in kept]
    notes = [move.note] if move.note else []
    notes += [] if shift == move.move else [f"not by {move.move:g}, which would leave nothing"]
    notes += [f"without {', '.join(gone)}"] if gone else []
    return replace(move, move=shift, new_choices=tuple(kept), note="; ".join(notes))


def shift_of(steps: float, dimension: str, step: float) -> float:
    """Ratios need not be whole; three times 0.1 is 0.3."""
    return round(steps * step, 6) if dimension == "mlp_ratio" else int(steps * step)


def networks_of(dimension: str, choices: Sequence[float], side: int) -> list[float]:
    """Those that networks can have; of the windows that cover the map of this side the smallest.

    Windows that do not divide the map stay: it is padded.
    """
    kept = [choice for choice in choices if 0 < choice <= MOST.get(dimension, LARGEST)]
    if dimension != "window_size":
        return kept
    covering = sorted(choice for choice in kept if choice >= side)
    return [choice for choice in kept if choice < side or choice == covering[0]]


def moved_space(
    space: Windowed, moves: Sequence[Move], rules: Rules, geometry: Geometry
) -> tuple[Windowed, list[Move]]:
    """The next space, and the moves as they were made in the end."""
    sides = space.envelope().sides(geometry.image_size)
    made = [repair(move, sides[move.stage - 1], rules.steps[move.dimension]) for move in moves]
    found = with_moves(space, made)
    growing = sorted(
        (place for place, move in enumerate(made) if move.dimension == "depth" and move.move > 0),
        key=lambda place: abs(made[place].slope or 0.0),
    )
    for place in growing:
        if rules.most_size is None or found.count <= rules.most_size:
            break
        note = f"taken back: the space would have more than {rules.most_size} networks"
        made[place] = replace(made[place], move=0, new_choices=made[place].choices, note=note)
        found = with_moves(space, made)
    return found, made


def with_moves(space: Windowed, moves: Sequence[Move]) -> Windowed:
    choices: dict[str, list[Any]] = {name: list(getattr(space, name)) for name in DIMENSIONS}
    for move in moves:
        choices[move.dimension][move.stage - 1] = move.new_choices
    return space.with_choices(**choices)


def check_steps(texts: Sequence[str]) -> dict[str, float]:
    """`embed_dim=32`: the steps of some dimensions, the others as in the paper."""
    found: dict[str, float] = dict(STEPS)
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value) if name == "mlp_ratio" else int(value)
        except ValueError:
            raise VitsearchError(f"`steps` must be as embed_dim=32, but got {brief(text)}") from None
    return found


def ranked_errors(gains: Sequence[float]) -> list[float]:
    """In place of errors, where there is no accuracy: how many percent of the networks are better; ties half."""
    values = np.asarray(gains, dtype=np.float64)
    ordered = np.sort(values)
    worse, not_better = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    better: list[float] = (100.0 * (len(values) - (worse + not_better) / 2) / len(values)).tolist()
    return better


def choices_of(space: Windowed, geometry: Geometry) -> list[tuple[int, str, Any]]:
    """Every (stage, dimension, choice) whose error is measured, stages from 1, where there is more than one network."""
    sides = space.envelope().sides(geometry.image_size)
    found: list[tuple[int, str, Any]] = []
    for stage, side in enumerate(sides, 1):
        for name in DIMENSIONS:
            choices = getattr(space, name)[stage - 1]
            if len(choices) > 1 and (name != "window_size" or min(choices) < side):
                found += [(stage, name, choice) for choice in choices]
    return found


def free_elsewhere(space: Windowed, stage: int, dimension: str) -> Windowed:
    """Where networks are drawn before they get a choice: as deep as any, where depth is what they get."""
    if dimension != "depth":
        return space
    depths = list(space.depth)
    depths[stage - 1] = (max(depths[stage - 1]),)
    return replace(space, depth=tuple(depths))


def with_choice(settings: Settings, stage: int, dimension: str, choice: Any) -> Settings:
    """The network in which all blocks of this stage have the choice (the paper: alpha_i = v); the rest stays."""
    found = {name: list(value) if isinstance(value, list) else value for name, value in settings.items()}
    place = stage - 1
    if dimension == "depth":
        for name in BLOCK_DIMENSIONS:
            found[name][place] = found[name][place][:choice]
    per_block = dimension in BLOCK_DIMENSIONS
    found[dimension][place] = [choice] * settings["depth"][place] if per_block else choice
    return found
