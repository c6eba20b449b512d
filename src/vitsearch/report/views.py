"""What a page says of a study: what was asked, what was found, how to repeat it. Plain data that goes out as JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry, Limits
from vitsearch.errors import VitsearchError
from vitsearch.records import Trial
from vitsearch.report.columns import Columns
from vitsearch.report.reading import TRAININGS, Reader, geometry_of
from vitsearch.report.repeat import command_of
from vitsearch.spaces import SPACES, Space, cost_of, sample

DRAWN = 2000  # members of the space that stand for all
SHOWN_ROWS = 500  # of a journal that is not known here
LONGEST = 200  # characters of a fact
KINDS = {"search": "search", "train": "training", "supernet": "supernet training"}
ACCURACIES = ("test_top1", "validation_top1", "validation_largest_top1")
Facts = list[tuple[str, str]]


def view(reader: Reader, start: int = 0) -> dict[str, Any]:
    """All that is known of a study; of its trials those from number `start` on."""
    return summary(reader) | {
        "asked": asked(reader.study),
        "repeat": {"command": command_of(reader.study, reader.done), "environments": environments(reader.study)},
        "objectives": [dataclasses.asdict(one) for one in reader.objectives],
        "front": reader.front,
        "trials": trials_of(reader).to_json(start),
        "space": space_facts(reader.study),
        "epochs": by_column(reader.epochs),
        "result": reader.result,
        "rows": {
            name: {"count": len(rows), **by_column(rows[-SHOWN_ROWS:])} for name, rows in reader.rows.items() if rows
        },
    }


def summary(reader: Reader) -> dict[str, Any]:
    """What a list of studies shows."""
    return {
        "name": reader.name,
        "path": str(reader.folder),
        "kind": reader.kind,
        "what": KINDS.get(reader.kind, reader.kind),
        "state": reader.state,
        "problem": reader.problem,
        "done": reader.done,
        "wanted": reader.wanted,
        "unit": "epochs"
        if reader.kind in TRAININGS
        else "lines"
        if reader.rows and not len(reader.columns)
        else "trials",
        "failed": len(reader.columns.errors),
        "seconds_left": reader.seconds_left,
        "changed": reader.changed,
        "best": best_of(reader),
        "about": about(reader.study),
    }


def best_of(reader: Reader) -> dict[str, Any] | None:
    """The number that a study is about: the first objective of its best trial, or an accuracy."""
    if reader.best is not None:
        name = reader.objectives[0].name
        return {"trial": reader.best, "name": name, "value": reader.columns.measured[name][reader.best]}
    sources: list[Mapping[str, Any]] = [reader.result or {}, *reversed(reader.epochs)]
    for source, name in itertools.product(sources, ACCURACIES):
        if isinstance(source.get(name), (int, float)):
            return {"trial": None, "name": name, "value": source[name]}
    return None


def about(study: Mapping[str, Any]) -> str:
    """A few words that tell studies apart in a list."""
    space = study.get("space")
    name = space.get("name") if isinstance(space, dict) else space
    settings = study.get("settings")
    if name is None and isinstance(settings, dict):
        name = settings.get("space")
    words = [name or study.get("timm"), study.get("strategy"), study.get("data")]
    return ", ".join(str(word)[:60] for word in words if word)


def asked(study: Mapping[str, Any]) -> Facts:
    """Every field of `study.json` but for the machine; those that are known in words, the others as they are."""
    facts: Facts = []
    for name, value in study.items():
        if value is None or name in ("format", "kind", "environments", "chunk", "at_once", "wanted", "start_digest"):
            continue
        facts.extend(_fact(name, value))
    if isinstance(study.get("wanted"), int):
        facts.append(("trials", f"{study['wanted']:,}"))
    return facts


def _fact(name: str, value: Any) -> Facts:
    try:
        return [(label, _cut(words)) for label, words in WORDS[name](value)]
    except (KeyError, AttributeError, TypeError, ValueError, VitsearchError):  # not known, or not what it should be
        return [(name.replace("_", " "), _cut(value))]


def _objectives(value: list[dict[str, str]]) -> Facts:
    directions = {"max": "more is better", "min": "less is better"}
    return [("objective", "; ".join(f"{one['name']}, {directions[one['direction']]}" for one in value))]


def _input(value: Any) -> Facts:
    one = geometry_of({"geometry": dict(value)})
    return [("input", f"{one.image_size} x {one.image_size} px, {one.channels} channels, {one.classes:,} classes")]


def _limits(value: dict[str, int]) -> Facts:
    words = [f"{'at least' if name[:3] == 'min' else 'at most'} {bound:,} {name[4:]}" for name, bound in value.items()]
    return [("limits", ", ".join(words) or "none")]


def _space(value: Any) -> Facts:
    return [("space", value)] if isinstance(value, str) else [("space", value["name"]), *_fixed(value["fixed"])]


def _fixed(value: dict[str, int]) -> Facts:
    return [("not searched", ", ".join(f"{name} {part}" for name, part in value.items()))]


def _recipe(value: dict[str, Any]) -> Facts:
    shown = ("source", "epochs", "batch_size", "optimizer", "learning_rate", "weight_decay", "precision")
    return [(f"recipe: {name.replace('_', ' ')}", value[name]) for name in shown]


WORDS: dict[str, Callable[[Any], Facts]] = {
    "objectives": _objectives,
    "geometry": _input,
    "limits": _limits,
    "space": _space,
    "fixed": _fixed,
    "recipe": _recipe,
}


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def environments(study: Mapping[str, Any]) -> list[dict[str, str]]:
    """Versions and machine, first as it was at the start, then each change."""
    found = study.get("environments")
    listed: list[dict[str, Any]] = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return [{str(name): _cut(value) for name, value in one.items() if value not in ([], None)} for one in listed]


def trials_of(reader: Reader) -> Columns:
    """A study's trials; of a training its network as the only one, of a supernet the largest of its networks."""
    if reader.kind not in TRAININGS:
        return reader.columns
    columns = Columns()
    try:
        columns.geometry = geometry_of(reader.study)
        settings = network_of(reader.study, columns.geometry)
        if settings is not None:
            measured = {"params": (cost := cost_of(settings, columns.geometry)).params, "macs": cost.macs}
            columns.extend([Trial(number=0, settings=settings, measured=measured, seconds=0.0)])
    except (VitsearchError, TypeError, KeyError):  # nothing to draw
        pass
    return columns


def network_of(study: Mapping[str, Any], geometry: Geometry) -> Settings | None:
    if isinstance(settings := study.get("settings"), dict):
        return settings
    space = space_of_study(study)
    return space.region(None, geometry).largest() if space is not None else None


def space_of_study(study: Mapping[str, Any]) -> Space | None:
    """The registered space, with the parts that are not searched as the study has them; None where none is known."""
    space: Any = study.get("space")
    given, fixed = (space.get("name"), space.get("fixed")) if isinstance(space, dict) else (space, study.get("fixed"))
    if not isinstance(given, str) or given not in SPACES:
        return None
    try:
        return dataclasses.replace(SPACES[given], **fixed) if isinstance(fixed, dict) else SPACES[given]
    except TypeError:
        return None


def space_facts(study: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the space would give without a search: how often each choice, and costs, among uniform draws."""
    space, limits = space_of_study(study), study.get("limits")
    if space is None or study.get("kind") != "search":
        return None
    try:
        bounds = Limits(**limits) if isinstance(limits, dict) else Limits()
        return _drawn(space, bounds, geometry_of(study))
    except (VitsearchError, TypeError):
        return None


@lru_cache(maxsize=64)
def _drawn(space: Space, limits: Limits, geometry: Geometry) -> dict[str, Any]:
    members = sample(space, DRAWN, seed=0, limits=limits, geometry=geometry)
    shares: dict[str, list[float]] = {}
    for knob in space.knobs:
        listed = [one[knob.name] for one in members]
        values = [value for one in listed for value in one] if knob.per == "block" else listed
        counts = Counter(json.dumps(value) for value in values)
        spelled = [json.dumps(list(choice) if isinstance(choice, tuple) else choice) for choice in knob.choices]
        shares[knob.name] = [round(counts[text] / len(values), 5) for text in spelled]
    costs = [cost_of(one, geometry) for one in members]
    return {
        "name": space.name,
        "description": space.description,
        "paper": space.paper,
        "size": str(space.region(limits, geometry).size),  # a text: larger than what JavaScript counts exactly
        "drawn": DRAWN,
        "shares": shares,
        "params": [cost.params for cost in costs],
        "macs": [cost.macs for cost in costs],
    }


def by_column(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows as columns, in the order in which names come up; None where a row has no such name."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {"columns": {name: [_plain(row.get(name)) for row in rows] for name in names}} if rows else {"columns": {}}


def _plain(value: Any) -> Any:
    """Numbers and short texts as they are, everything else as short text."""
    return value if value is None or isinstance(value, (int, float)) else _cut(value)
