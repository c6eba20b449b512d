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
from vitsearch.records import Trial, has_proxies, looks_into_networks
from vitsearch.report.columns import Columns, choices_of, entries_of
from vitsearch.report.findings import findings
from vitsearch.report.kinds import DISCOVERY, EVOLUTION, TRAININGS, geometry_of, is_known, is_prenas, space_of_study
from vitsearch.report.reading import Reader
from vitsearch.report.repeat import budget_text, command_of, prenas_options
from vitsearch.spaces import Space, cost_of, sample

DRAWN = 2000  # members of the space that stand for all
SHOWN_ROWS = 500  # of a journal that is not known here
LONGEST = 200  # characters of a fact
KINDS = {"search": "search", "train": "training", "supernet": "supernet training"}
KINDS |= {DISCOVERY: "discovery of a proxy", EVOLUTION: "evolution of a space"}
ACCURACIES = ("test_top1", "validation_top1", "validation_largest_top1")
Facts = list[tuple[str, str]]


def view(reader: Reader, start: int = 0) -> dict[str, Any]:
    """All that is known of a study; of its trials those from number `start` on."""
    return summary(reader) | {
        "asked": asked(reader.study),
        "repeat": repeat(reader),
        "objectives": [dataclasses.asdict(one) for one in reader.objectives],
        "front": reader.front,
        "trials": trials_of(reader).to_json(start),
        "space": space_facts(reader.study),
        "epochs": by_column(reader.epochs),
        "result": reader.result,
        "findings": findings(reader),
        "rows": {
            name: {"count": len(rows), **by_column(rows[-SHOWN_ROWS:])}
            for name, rows in reader.rows.items()
            if rows and not is_known(reader.study, name)
        },
    }


def repeat(reader: Reader) -> dict[str, Any]:
    command = command_of(reader.study, len(reader.columns))
    return {"command": command, "environments": environments(reader.study)}


def summary(reader: Reader) -> dict[str, Any]:
    """What a list of studies shows."""
    done, wanted, unit, _ = reader.progress
    return {
        "name": reader.name,
        "path": str(reader.folder),
        "kind": reader.kind,
        "what": "choice for budgets" if is_prenas(reader.study) else KINDS.get(reader.kind, reader.kind),
        "thing": "formula" if reader.kind == DISCOVERY else "network",
        "state": reader.state,
        "problem": reader.problem,
        "done": done,
        "wanted": wanted,
        "unit": unit,
        "failed": len(reader.columns.errors),
        "seconds_left": reader.seconds_left,
        "changed": reader.changed,
        "best": best_of(reader),
        "about": about(reader.study),
        "weights": "trained" if reader.has_trained else "initial",
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
    strategy = str(study["strategy"]).partition(":")[0] if is_prenas(study) else study.get("strategy")
    tables = study["tables"] if isinstance(study.get("tables"), list) else []
    training = study.get("training")
    data = training.get("data") if isinstance(training, dict) else study.get("data")
    data = None if "data" in unused(study) else data
    words = [name or study.get("timm"), strategy, *tables, data]
    return ", ".join(str(word)[:60] for word in words if word)


UNASKED = ("format", "kind", "environments", "chunk", "at_once", "memory", "wanted", "start_digest", "teacher_digest")


def asked(study: Mapping[str, Any]) -> Facts:
    """Every field of `study.json` but for the machine; those that are known in words, the others as they are."""
    facts: Facts = []
    for name, value in plain_fields(study):
        if value is None or name in UNASKED:
            continue
        facts.extend(_fact(name, value))
    if isinstance(study.get("wanted"), int):
        facts.append(("trials", f"{study['wanted']:,}"))
    return facts


def unused(study: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields that the objectives of a search have no use for: what was trained or measured says its input itself."""
    objectives = study["objectives"] if isinstance(study.get("objectives"), list) else []
    names = [str(one.get("name")) for one in objectives if isinstance(one, dict)]
    if not names or has_proxies(names):
        return ()
    return ("batch_size", "weights") if looks_into_networks(names) else ("data", "batch_size", "weights")


def plain_fields(study: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The fields; what PreNAS keeps in the name of its strategy, and parts that hold a few words each, one by one."""
    found: list[tuple[str, Any]] = []
    for name, value in study.items():
        options = prenas_options(study) if name == "strategy" else None
        if options is not None:
            found += [("strategy", "prenas"), ("budgets", budget_text(options).replace(",", ", "))]
            found += [(part, options[part]) for part in ("resource", "top", "variant", "draws", "weights")]
        elif name in unused(study) or (name in ("data", "batch_size") and study.get("training") is not None):
            continue  # only for an objective
        elif name in OPENED and isinstance(value, dict):
            found += [(f"{name}: {part}", inner) for part, inner in value.items() if inner is not None]
        else:
            found.append((name, value))
    return found


def _fact(name: str, value: Any) -> Facts:
    try:
        return [(label, _cut(words)) for label, words in WORDS[name](value)]
    except (KeyError, AttributeError, TypeError, ValueError, VitsearchError):  # not known, or not what it should be
        return [(name.replace("_", " "), _cut(_in_words(value)))] if value not in ({}, []) else []


def _in_words(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(one, (str, int, float)) for one in value):
        return ", ".join(map(str, value))
    if isinstance(value, dict) and all(isinstance(one, (str, int, float)) for one in value.values()):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return value


def _objectives(value: list[dict[str, str]]) -> Facts:
    directions = {"max": "more is better", "min": "less is better"}
    return [("objective", "; ".join(f"{one['name']}, {directions[one['direction']]}" for one in value))]


def _input(value: Any) -> Facts:
    one = geometry_of({"geometry": dict(value)})
    return [("input", f"{one.image_size} x {one.image_size} px, {one.channels} channels, {one.classes:,} classes")]


def _limits(value: dict[str, int]) -> Facts:
    words = [f"{'at least' if name[:3] == 'min' else 'at most'} {bound:,} {name[4:]}" for name, bound in value.items()]
    return [("limits", ", ".join(words) or "none")]


def _speed(value: dict[str, Any]) -> Facts:
    latency, throughput = value["max_latency_ms"], value["min_throughput"]
    words = [f"at most {latency:g} ms"] if latency is not None else []
    words += [f"at least {throughput:g} images per second"] if throughput is not None else []
    return [("predicted latency", ", ".join(words) or "no bound"), ("its file", f"sha256 {value['digest']}")]


def _space(value: Any) -> Facts:
    return [("space", value)] if isinstance(value, str) else [("space", value["name"]), *_fixed(value["fixed"])]


def _fixed(value: dict[str, Any]) -> Facts:
    searched = [
        (name.replace("_", " "), ", ".join(map(str, part))) for name, part in value.items() if type(part) is list
    ]
    others = ", ".join(f"{name} {part}" for name, part in value.items() if type(part) is not list)
    return searched + ([("not searched", others)] if others else [])


def _recipe(value: dict[str, Any]) -> Facts:
    shown = ("source", "epochs", "batch_size", "optimizer", "learning_rate", "weight_decay", "precision")
    return [(f"recipe: {name.replace('_', ' ')}", value[name]) for name in shown]


def _candidates(value: list[Settings]) -> Facts:
    return [("candidates", f"{len(value):,} networks chosen before")]


def _training(value: dict[str, Any]) -> Facts:
    shown = [("data of the supernets", value["data"]), ("networks of a step", value["subnets"])]
    return [*shown, *_recipe(value["recipe"])]


OPENED = ("evolution", "grammar", "rules", "sharing")
WORDS: dict[str, Callable[[Any], Facts]] = {
    "objectives": _objectives,
    "geometry": _input,
    "limits": _limits,
    "speed": _speed,
    "space": _space,
    "fixed": _fixed,
    "recipe": _recipe,
    "candidates": _candidates,
    "training": _training,
    "objective": lambda value: _objectives([value]),
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
    if isinstance(chosen := study.get("candidates"), list) and chosen:
        largest: Settings = max(chosen, key=lambda one: cost_of(one, geometry))
        return largest
    space = space_of_study(study)
    return space.region(None, geometry).largest() if space is not None else None


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
        values = [entry for one in members for entry in entries_of(knob, one[knob.name])]
        counts = Counter(json.dumps(value) for value in values)
        spelled = [json.dumps(choice) for choice in choices_of(space, knob)]
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
