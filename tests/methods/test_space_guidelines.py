"""Verdicts of moves that are written down here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from vitsearch.cost import Geometry
from vitsearch.errors import BadStudy
from vitsearch.methods.space_figures import choices_by_step
from vitsearch.methods.space_guidelines import guidelines
from vitsearch.methods.space_study import Evolved
from vitsearch.spaces import SPACES
from vitsearch.spaces.windowed import DIMENSIONS, Windowed

SLOPES = tuple[float | None, ...]
FLAT: SLOPES = (0.0,) * 4
BLOCKS, WINDOWS, RATIOS, ATTENTION = range(4)


def evolved(name: str, moved: dict[str, Any] | None = None, noise: float = 0.1, **slopes: SLOPES) -> Evolved:
    """One iteration, stopped before the next space is measured; `moved`: new choices, stage by stage."""
    space = cast(Windowed, SPACES[name])
    moves = []
    for stage in range(4):
        for dimension in DIMENSIONS:
            choices = getattr(space, dimension)[stage]
            new = (moved or {}).get(dimension, getattr(space, dimension))[stage]
            slope = slopes.get(dimension, FLAT)[stage]
            ends = (None, None) if slope is None else (slope - noise, slope + noise)
            row = {"iteration": 0, "stage": stage + 1, "dimension": dimension, "choices": choices, "new_choices": new}
            moves.append(row | {"slope": slope, "slope_low": ends[0], "slope_high": ends[1]})
    spaces = [{"name": name, "iteration": 0}]
    geometry = Geometry(image_size=64)  # maps of 16, 8, 4 and 2
    return Evolved(
        path=Path("x"), space=space, geometry=geometry, spaces=spaces, moves=moves, trials=[], objective=None, seed=0
    )


def verdicts(*arguments: Any, **options: Any) -> list[str]:
    return [row.verdict for row in guidelines(evolved(*arguments, **options))]


GROWING = "s3-initial:window_size=2/4/8/16,mlp_ratio=1/2/3/4,embed_dim=512"


def test_where_the_evolution_began_decides_nothing() -> None:
    none = dict.fromkeys(DIMENSIONS, (None,) * 4)
    assert verdicts(GROWING, **none) == ["undecided"] * 4
    assert verdicts(GROWING, mlp_ratio=(1.0, 0.0, -1.0, -2.0), window_size=(1.0, 0.0, -1.0, -2.0)) == ["undecided"] * 4
    shrinking = {"mlp_ratio": ((1,), (2,), (3,), (3.5,))}  # still the largest late, but that is not what it did
    assert verdicts(GROWING, shrinking, mlp_ratio=(-1.0, -1.0, -1.0, 1.0))[RATIOS] == "does not hold"


def test_stages_differ_where_their_slopes_do_by_more_than_the_noise() -> None:
    moved = {"mlp_ratio": ((2,), (3,), (4,), (5,))}
    slopes = (0.3, 0.1, -0.1, -0.3)
    assert verdicts("s3-initial", moved, mlp_ratio=slopes)[RATIOS] == "holds"
    assert verdicts("s3-initial", moved, mlp_ratio=slopes, noise=0.4)[RATIOS] == "undecided"
    back = {"mlp_ratio": ((5,), (4,), (3,), (2,))}
    assert verdicts("s3-initial", back, mlp_ratio=slopes[::-1])[RATIOS] == "does not hold"


def test_a_window_beyond_the_map_is_the_map() -> None:
    moved = {"window_size": ((4, 8), (4, 8), (4, 8), (16,))}
    name = "s3-initial:window_size=4+8"
    assert verdicts(name, moved, window_size=(0.5, 0.5, -0.5, -0.5))[WINDOWS] == "undecided"
    moved["window_size"] = ((4,), (8,), (4,), (16,))
    assert verdicts(name, moved, window_size=(0.5, -0.5, None, None))[WINDOWS] == "holds"


@pytest.mark.parametrize(
    ("slopes", "verdict"),
    [
        ((0.0, 0.0, -1.0, 0.0), "holds"),
        ((0.0, 0.0, -1.0, -0.9), "undecided"),
        ((0.0, 0.0, -0.5, -0.9), "does not hold"),
        ((2.0, 2.0, 1.0, 2.0), "does not hold"),
        ((0.0, 0.0, -1.0, None), "undecided"),
    ],
)
def test_the_third_stage_must_gain_most(slopes: SLOPES, verdict: str) -> None:
    moved = {"depth": ((2, 3, 4), (2, 3, 4), (4, 5, 6), (2, 3, 4))}
    assert verdicts("s3-initial", moved, depth=slopes)[BLOCKS] == verdict
    assert verdicts("s3-initial", depth=slopes)[BLOCKS] == "undecided"


def test_attention_is_narrower_where_the_width_grew_more_in_every_stage() -> None:
    wider = {"embed_dim": ((320,),) * 4}
    sure, unsure = (-1.0,) * 4, (-1.0, -1.0, -1.0, -0.1)
    assert verdicts("s3-initial", wider, embed_dim=sure)[ATTENTION] == "holds"
    assert verdicts("s3-initial", wider, embed_dim=unsure)[ATTENTION] == "undecided"
    assert verdicts("s3-initial", {"num_heads": ((10,),) * 4}, num_heads=unsure[::-1])[ATTENTION] == "does not hold"


def test_moves_count_before_the_next_space_is_measured() -> None:
    moved = {"depth": ((2, 3, 4), (2, 3, 4), (4, 5, 6), (2, 3, 4))}
    found = evolved("s3-initial", moved)
    assert guidelines(found)[BLOCKS].numbers["means"] == [3, 3, 5, 3]
    assert choices_by_step(found)["depth"][2] == [(2, 3, 4), (4, 5, 6)]
    with pytest.raises(BadStudy, match="has not moved yet"):
        found.moves.pop()
        guidelines(found)
