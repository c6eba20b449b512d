"""How to do a study again: the exact command, from what its `study.json` says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from vitsearch.errors import VitsearchError
from vitsearch.records import has_proxies, looks_into_networks
from vitsearch.spaces import patch_words

PRENAS = re.compile(
    r"prenas:budgets=(?P<bounds>[\d.e+-]+?)(?: from (?P<below>[\d.e+-]+))?,resource=(?P<resource>\w+),top=(?P<top>\d+),"
    r"variant=(?P<variant>\w+),draws=(?P<draws>\d+)(?:,weights=(?P<weights>.+))?",
    re.DOTALL,
)


def command_of(study: Mapping[str, Any], trials: int) -> str | None:
    """`trials` is how many there are, for a study that does not say how many it is to have.

    None where the command line cannot say it: made from Python, or of a kind that is not known here.
    """
    known: dict[str, Callable[[Mapping[str, Any]], str | None]]
    known = {"search": search_command, "train": training_command, "supernet": training_command}
    known |= {"discover": discovery_command, "evolve-space": evolution_command}
    make = known.get(str(study.get("kind")))
    try:
        return make({"wanted": trials, **study}) if make is not None else None
    except (KeyError, TypeError, ValueError, AttributeError, VitsearchError):  # a broken or foreign study.json
        return None


def search_command(study: Mapping[str, Any]) -> str:
    words = ["vitsearch", "search", study["space"]]
    if (asked := prenas_options(study)) is not None:
        words += ["--strategy", "prenas", "--budgets", budget_text(asked)]
        for name in ("resource", "top", "variant", "draws", "weights"):
            words += [f"--{name}", asked[name]] if asked[name] is not None else []
    else:
        objectives = ",".join(f"{one['direction']}:{one['name']}" for one in study["objectives"])
        words += ["--strategy", study["strategy"], "--objective", objectives, "--trials", study["wanted"]]
        words += ["--weights", study["weights"]] if study["weights"] != "fresh" else []
    words += ["--seed", study["seed"], *_limits(study), *_speed(study.get("speed"))]
    names = [one["name"] for one in study["objectives"]]
    words += ["--data", study["data"]] if asked is not None or looks_into_networks(names) else []
    words += ["--batch-size", study["batch_size"]] if asked is not None or has_proxies(names) else []
    geometry = study["geometry"]
    words += ["--image-size", geometry["image_size"], "--classes", geometry["classes"]]
    return _join([*words, *patch_words(study["space"], study["fixed"]), *_where(study)])


def prenas_options(study: Mapping[str, Any]) -> dict[str, str | None] | None:
    """What PreNAS was asked, out of the name of its strategy; None for other strategies."""
    found = PRENAS.fullmatch(str(study.get("strategy")))
    return found.groupdict() if found else None


def budget_text(asked: Mapping[str, str | None]) -> str:
    """As `--budgets` takes them. Where the first bin has a lower end, a step gave it."""
    unit = "ms" if asked["resource"] == "latency" else ""
    bounds = str(asked["bounds"]).split("+")
    if asked["below"] is None:
        return ",".join(f"{bound}{unit}" for bound in bounds)
    step = float(bounds[0]) - float(asked["below"])
    return f"{bounds[0]}{unit}:{bounds[-1]}{unit}:{f'{step:.9g}' if unit else round(step)}{unit}"


def training_command(study: Mapping[str, Any]) -> str | None:
    from vitsearch.training.plan import TrainingPlan  # brings torch
    from vitsearch.training.repeat import training_words

    plan = TrainingPlan.from_json(study)
    words = training_words(plan, "-")
    if words is None:
        return None
    piped: Any = plan.candidates if plan.settings is None else plan.settings
    given = "" if piped is None else f"echo {shlex.quote(json.dumps(piped))} | "
    return given + _join([*words, *_where(study)])


def discovery_command(study: Mapping[str, Any]) -> str:
    """Tables by their file names: where they lie is the reader's."""
    words: list[Any] = ["vitsearch", "discover"]
    for option, values in (("--bench", study["tables"]), ("--column", study["columns"])):
        words += [word for value in values for word in (option, value)]
    words += [word for name, alpha in study["weights"].items() for word in ("--alpha", f"{name}={alpha}")]
    options = dict(study["evolution"])
    words += ["--pareto"] if options.pop("pareto") else []
    options |= {"strategy": "pairs"} if study["pairs"] else {}
    grammar = study["grammar"]
    options |= {"branches": grammar["branches"], "inputs": ",".join(grammar["inputs"])}
    options |= {"aggregate": ",".join(grammar["aggregates"]), "depth": grammar["depth"]}
    options |= {name: study[name] for name in ("networks", "folds", "tolerance", "seed", "seeds", "data", "batch_size")}
    options |= {"weights": study["weights_scheme"]}
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", value]
    return _join([*words, *_where(study)])


def evolution_command(study: Mapping[str, Any]) -> str | None:
    words: list[Any] = ["vitsearch", "evolve-space", study["space"]]
    if (how := _measured_by(study)) is None or not _usual_rules(study["rules"]):
        return None
    words += [*how, "--iterations", study["iterations"], "--samples", study["samples"]]
    words += ["--paired" if study["paired"] else "--independent"]
    rules = study["rules"]
    words += ["--tau", rules["tau"], "--rounding", rules["rounding"]]
    words += [word for name, step in rules["steps"].items() for word in ("--step", f"{name}={step}")]
    words += ["--most-steps", rules["most_steps"]]
    words += ["--max-size", rules["most_size"]] if rules["most_size"] is not None else []
    words += ["--image-size", study["geometry"]["image_size"], "--seed", study["seed"], *_limits(study)]
    return _join([*words, *patch_words(study["space"], study["fixed"]), *_where(study)])


def _measured_by(study: Mapping[str, Any]) -> list[Any] | None:
    """An objective, or how supernets are trained."""
    if study["training"] is None:
        objective = f"{study['objective']['direction']}:{study['objective']['name']}"
        how = ["--objective", objective, "--data", study["data"], "--batch-size", study["batch_size"]]
        return [*how, "--channels", study["geometry"]["channels"]]
    from vitsearch.training.distill import Distillation  # brings torch
    from vitsearch.training.recipe import Recipe
    from vitsearch.training.repeat import distillation_words, recipe_words

    training = study["training"]
    recipe = recipe_words(Recipe.from_json(training["recipe"]))
    asked = training.get("distillation")
    taught = distillation_words(None if asked is None else Distillation.from_json(asked))
    if recipe is None or taught is None:
        return None
    more = [*taught, "--channels", study["geometry"]["channels"]]
    more += ["--images", training["images"]] if training.get("images") is not None else []
    return ["--data", training["data"], *recipe, "--subnets", training["subnets"], *more]


def _usual_rules(rules: Mapping[str, Any]) -> bool:
    """Whether those that have no option are what they are without one."""
    from vitsearch.methods.space_moves import Rules

    usual = all(rules[name] == getattr(Rules(), name) for name in ("least_samples", "top_share", "least_top"))
    return usual and rules["most_steps"] is not None


def _limits(study: Mapping[str, Any]) -> list[Any]:
    return [word for name, bound in study["limits"].items() for word in (f"--{name.replace('_', '-')}", bound)]


def _speed(asked: Mapping[str, Any] | None) -> list[Any]:
    """The file that predicts latency is the reader's: the study knows its digest, not where it lies."""
    if asked is None:
        return []
    words: list[Any] = ["--latency", "latency.json"]
    if asked["max_latency_ms"] is not None:
        words += ["--max-latency", f"{asked['max_latency_ms']!r}ms"]
    return words + (["--min-throughput", asked["min_throughput"]] if asked["min_throughput"] is not None else [])


def _where(study: Mapping[str, Any]) -> list[Any]:
    """The device, plugins by their file names, and a folder that the reader chooses."""
    environment: Mapping[str, Any] = next(iter(study["environments"]), {})
    words: list[Any] = ["--device", environment.get("device", "auto")]
    for plugin in environment.get("plugins", []):
        words += ["--plugin", plugin["file"]] if "file" in plugin else []
    return [*words, "--out", "again"]


def _join(words: list[Any]) -> str:
    return shlex.join(map(str, words))
