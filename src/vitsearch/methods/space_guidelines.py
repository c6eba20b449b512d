"""S3's four design guidelines (section 3), asked of an evolution's own numbers.

A guideline is about how a dimension moved, or where it ended, over the stages. Slopes decide, with the noise that
resampling gives them: a slope counts where at least `SURE` of the resampled ones have its sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitsearch.errors import BadStudy
from vitsearch.methods.space_study import Evolved, read_evolution
from vitsearch.ranking import kendall
from vitsearch.spaces import SPACES
from vitsearch.spaces.windowed import Windowed

SURE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Guideline:
    guideline: str
    verdict: str
    """`holds`, `does not hold`, or `undecided` where the slopes are within their noise."""
    evidence: str
    numbers: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def guidelines(study: Evolved | str | Path) -> list[Guideline]:
    found = study if isinstance(study, Evolved) else read_evolution(study)
    if not found.moves:
        raise BadStudy(f"{found.path} has not moved yet: its first space is not measured")
    space = SPACES[found.spaces[-1]["name"]]
    assert isinstance(space, Windowed)
    return [
        most_blocks(found, space),
        larger_later(found, space, "window_size"),
        larger_later(found, space, "mlp_ratio"),
        narrow_attention(space),
    ]


def most_blocks(found: Evolved, space: Windowed) -> Guideline:
    """Blocks are added to stage 3, and taken from the others."""
    third = space.stages - 2  # of four
    first = first_slopes(found, "depth")
    slopes = [slope or 0.0 for slope, _ in first]
    depths = means(space, "depth")
    sure = [confidence is not None and confidence >= SURE for _, confidence in first]
    gain = min(slopes)
    best = slopes.index(gain)
    verdict = "holds" if best == third else "does not hold"
    verdict = verdict if sure[best] and gain < 0 else "undecided"
    helped = f"blocks help most in stage {best + 1} ({gain:+.2f} per block)" if gain < 0 else "more blocks help nowhere"
    evidence = f"{helped}; mean depth {listed(depths)}"
    text = "the third stage is the most important, and more blocks in it are better"
    return Guideline(guideline=text, verdict=verdict, evidence=evidence, numbers={"slopes": slopes, "means": depths})


def larger_later(found: Evolved, space: Windowed, dimension: str) -> Guideline:
    """Small in early stages and large in late ones: of the final choices, and of the first slopes, which fall."""
    ends, first = means(space, dimension), first_slopes(found, dimension)
    stages = list(range(len(ends)))
    by_end = (kendall(stages, ends) or 0.0) if len(set(ends)) > 1 else 0.0
    sure = [slope for slope, confidence in first if slope is not None and confidence is not None and confidence >= SURE]
    if by_end:
        verdict = "holds" if by_end > 0 else "does not hold"
    else:
        verdict = "undecided" if len(sure) < 2 else ("holds" if sure[-1] < sure[0] else "does not hold")
    what = "windows" if dimension == "window_size" else "MLP ratios"
    slopes = listed([slope for slope, _ in first])
    return Guideline(
        guideline=f"early stages need small {what}, late stages large ones",
        verdict=verdict,
        evidence=f"mean choice by stage {listed(ends)}; first slopes {slopes}",
        numbers={"means": ends, "slopes": [slope for slope, _ in first], "kendall": by_end},
    )


def narrow_attention(space: Windowed) -> Guideline:
    widths = means(space, "embed_dim")
    inner = [space.head_dim * heads for heads in means(space, "num_heads")]
    smaller = [own < width for own, width in zip(inner, widths, strict=True)]
    equal = all(own == width for own, width in zip(inner, widths, strict=True))
    verdict = "undecided" if equal else "holds" if all(smaller) else "does not hold"
    return Guideline(
        guideline="queries, keys and values are narrower than the embedding",
        verdict=verdict,
        evidence=f"mean q-k-v width by stage {listed(inner)}, mean width {listed(widths)}",
        numbers={"inner": inner, "widths": widths},
    )


def means(space: Windowed, dimension: str) -> list[float]:
    return [sum(stage) / len(stage) for stage in getattr(space, dimension)]


def first_slopes(found: Evolved, dimension: str) -> list[tuple[float | None, float | None]]:
    """Of the first space, stage by stage, where choices are the same in all: slope and confidence."""
    own = [move for move in found.moves if move["iteration"] == 0 and move["dimension"] == dimension]
    return [(move["slope"], move["confidence"]) for move in sorted(own, key=lambda move: int(move["stage"]))]


def listed(values: Sequence[float | None]) -> str:
    return ", ".join("-" if value is None else f"{value:.4g}" for value in values)
