"""Kinds of studies, for those who look on: what their trials are judged by, and how far they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vitsearch.architecture import check_whole
from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.records import Objective
from vitsearch.spaces import SPACES, Space

TRAININGS = ("train", "supernet")
DISCOVERY, EVOLUTION = "discover", "evolve-space"
MOVES, DRAWS, FOLD = "moves.jsonl", "draws.jsonl", "fold"
FORMULAS = (Objective(name="joint", direction="max"), Objective(name="size", direction="min"))
ERROR = Objective(name="error", direction="min")
Rows = Mapping[str, Sequence[Mapping[str, Any]]]  # of journals, by file name


class Progress(NamedTuple):
    done: int
    wanted: int | None
    unit: str
    finished: bool
    """Whether nothing is left to do, as far as the folder tells."""


def is_prenas(study: Mapping[str, Any]) -> bool:
    return str(study.get("strategy")).startswith("prenas:")


def is_known(study: Mapping[str, Any], journal: str) -> bool:
    """Whether a page shows what this journal holds in a way of its own."""
    by_kind = {EVOLUTION: journal == MOVES, DISCOVERY: journal.startswith(FOLD)}
    return by_kind.get(str(study.get("kind")), is_prenas(study) and journal == DRAWS)


def objectives_of(study: Mapping[str, Any]) -> list[Objective]:
    """None where a study has no trials, or is of a kind that is not known."""
    if "objectives" in study:
        return [Objective(**one) for one in study["objectives"]]
    if study.get("kind") == DISCOVERY and "evolution" in study:
        return list(FORMULAS)
    if study.get("kind") == EVOLUTION and "objective" in study:
        return [ERROR if study["objective"] is None else Objective(**study["objective"])]
    return []


def geometry_of(study: Mapping[str, Any]) -> Geometry:
    """What the networks of a study see; ImageNet's where it does not say."""
    given = study.get("geometry")
    if not isinstance(given, dict):
        return Geometry()
    known = {name: check_whole(name, given[name], most=1 << 24) for name in Geometry.__slots__ if name in given}
    return Geometry(**known)


def space_of_study(study: Mapping[str, Any]) -> Space | None:
    """The space, with the parts that are not searched as the study has them; None where none is known."""
    space: Any = study.get("space")
    given, fixed = (space.get("name"), space.get("fixed")) if isinstance(space, dict) else (space, study.get("fixed"))
    if not isinstance(given, str):
        return None
    try:
        return SPACES[given].with_fixed(fixed) if isinstance(fixed, dict) else SPACES[given]
    except (VitsearchError, TypeError, AttributeError):
        return None


def progress_of(
    study: Mapping[str, Any], trials: int, rows: Rows, epochs: Sequence[Mapping[str, Any]], has_result: bool
) -> Progress:
    kind = study.get("kind")
    if kind in TRAININGS:
        done = (count(epochs[-1].get("epoch")) or 0) if epochs else 0
        return Progress(done, count(_part(study, "recipe").get("epochs")), "epochs", has_result)
    if kind == DISCOVERY and (searches := count(study.get("folds"))) is not None:
        done = trials + sum(len(listed) for name, listed in rows.items() if name.startswith(FOLD))
        each = None if study.get("pairs") else count(_part(study, "evolution").get("evaluations"))
        return Progress(done, None if each is None else each * (searches + 1), "formulas", has_result)
    if kind == EVOLUTION and (moves := count(study.get("iterations"))) is not None:
        done = sum(row.get("kind") == "space" for row in rows.get(MOVES, []))
        return Progress(done, moves + 1, "spaces", done > moves)
    if is_prenas(study) and not trials:
        return Progress(len(rows.get(DRAWS, [])), None, "draws", False)
    done, wanted = trials or sum(map(len, rows.values())), count(study.get("wanted"))
    unit = "lines" if done and not trials else "trials"
    return Progress(done, wanted, unit, done > 0 if wanted is None else done >= wanted)


def _part(study: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = study.get(name)
    return found if isinstance(found, dict) else {}


def count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 53 else None
