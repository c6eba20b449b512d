"""S3's four design guidelines (section 3), asked of an evolution's own numbers.

A guideline is about how a dimension moved: from where the evolution began to where it is, its last moves included.
Two stages count as different where the intervals of their first slopes do not overlap, which resampling gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from vitsearch.errors import BadStudy
from vitsearch.methods.space_study import Evolved, read_evolution
from vitsearch.spaces.windowed import DIMENSIONS

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guideline:
    guideline: str
    verdict: str
    """`holds`, `does not hold`, or `undecided` where nothing moved or the slopes are within their noise."""
    evidence: str
    numbers: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Of one dimension of one stage: its mean choice at first and in the end, and the first slope with its noise."""

    start: float
    end: float
    slope: float | None
    low: float
    high: float

    @property
    def change(self) -> float:
        return self.end - self.start

    def below(self, other: Course) -> bool:
        """Whether errors fall more, or rise less, by more than the noise."""
        return self.slope is not None and other.slope is not None and self.high < other.low

    def differs(self, other: Course) -> bool:
        return self.below(other) or other.below(self)


def guidelines(study: Evolved | str | Path) -> list[Guideline]:
    found = study if isinstance(study, Evolved) else read_evolution(study)
    if len(found.moves) < found.space.stages * len(DIMENSIONS):
        raise BadStudy(f"{found.path} has not moved yet: its first space is not measured")
    return [
        most_blocks(found),
        larger_later(found, "window_size"),
        larger_later(found, "mlp_ratio"),
        narrow_attention(found),
    ]


def most_blocks(found: Evolved) -> Guideline:
    """In stage 3 more blocks help, and more than in any other."""
    depths = courses(found, "depth")
    third = depths[-2]  # of four
    others = [own for own in depths if own is not third]
    if not any(own.change for own in depths) or third.slope is None:
        verdict = UNDECIDED
    elif third.high < 0 and all(third.below(other) for other in others):
        verdict = HOLDS
    else:
        verdict = FAILS if third.low > 0 or any(other.below(third) for other in others) else UNDECIDED
    text = "the third stage is the most important, and more blocks in it are better"
    return described(text, verdict, "depth", depths)


def larger_later(found: Evolved, dimension: str) -> Guideline:
    """Of two stages that differ, the later one grew more, or shrank less."""
    stages = courses(found, dimension)
    pairs = [(early, late) for early, late in combinations(stages, 2) if early.differs(late)]
    signs = [sign(late.change - early.change) for early, late in pairs]
    what = "windows" if dimension == "window_size" else "MLP ratios"
    text = f"early stages need small {what}, late stages large ones"
    return described(text, by_sign(sum(signs)), dimension, stages)


def narrow_attention(found: Evolved) -> Guideline:
    """In every stage the embedding grew more than queries, keys and values."""
    widths, heads = courses(found, "embed_dim"), courses(found, "num_heads")
    pairs = list(zip(widths, heads, strict=True))
    head_dim = found.space.head_dim
    signs = [sign(width.change - head_dim * own.change) if width.differs(own) else 0 for width, own in pairs]
    inner = [head_dim * own.end for own in heads]
    ends = [width.end for width in widths]
    return Guideline(
        guideline="queries, keys and values are narrower than the embedding",
        verdict=by_sign(min(signs)),
        evidence=f"mean q-k-v width by stage {listed(inner)}, mean width {listed(ends)}",
        numbers={"inner": inner, "widths": ends, "signs": signs},
    )


def described(text: str, verdict: str, dimension: str, stages: Sequence[Course]) -> Guideline:
    starts, ends, slopes = ([getattr(own, name) for own in stages] for name in ("start", "end", "slope"))
    shown = ["-" if own.slope is None else f"{own.slope:+.2f} ({own.low:+.2f} to {own.high:+.2f})" for own in stages]
    return Guideline(
        guideline=text,
        verdict=verdict,
        evidence=f"mean {dimension} by stage {listed(starts)}, then {listed(ends)}; first slopes {', '.join(shown)}",
        numbers={"starts": starts, "means": ends, "slopes": slopes},
    )


def courses(found: Evolved, dimension: str) -> list[Course]:
    """Stage by stage, the last moves included. A window that is larger than the map is as large as the map."""
    stages = []
    for stage, side in enumerate(found.space.envelope().sides(found.geometry.image_size), 1):
        own = [move for move in found.moves if (move["dimension"], move["stage"]) == (dimension, stage)]
        first, last, most = own[0], own[-1], side if dimension == "window_size" else math.inf
        course = Course(
            start=fmean(min(choice, most) for choice in first["choices"]),
            end=fmean(min(choice, most) for choice in last["new_choices"]),
            slope=first["slope"],
            low=first["slope_low"],
            high=first["slope_high"],
        )
        stages.append(course)
    return stages


def sign(value: float) -> int:
    return (value > 0) - (value < 0)


def by_sign(value: float) -> str:
    return HOLDS if value > 0 else FAILS if value < 0 else UNDECIDED


def listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
