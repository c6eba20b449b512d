"""How to do a study again: the exact command, from what its `study.json` says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from vitsearch.errors import VitsearchError
from vitsearch.spaces import patch_words


def command_of(study: Mapping[str, Any], trials: int) -> str | None:
    """`trials` is how many there are, for a study that does not say how many it is to have.

    None where the command line cannot say it: made from Python, or of a kind that is not known here.
    """
    known: dict[str, Callable[[Mapping[str, Any]], str | None]]
    known = {"search": search_command, "train": training_command, "supernet": training_command}
    make = known.get(str(study.get("kind")))
    try:
        return make({"wanted": trials, **study}) if make is not None else None
    except (KeyError, TypeError, ValueError, AttributeError, VitsearchError):  # a broken or foreign study.json
        return None


def search_command(study: Mapping[str, Any]) -> str:
    objectives = ",".join(f"{one['direction']}:{one['name']}" for one in study["objectives"])
    geometry = study["geometry"]
    words = ["vitsearch", "search", study["space"], "--strategy", study["strategy"], "--objective", objectives]
    words += ["--trials", study["wanted"], "--seed", study["seed"]]
    for name, bound in study["limits"].items():
        words += [f"--{name.replace('_', '-')}", bound]
    words += ["--data", study["data"], "--batch-size", study["batch_size"]]
    words += ["--image-size", geometry["image_size"], "--classes", geometry["classes"]]
    words += patch_words(study["space"], study["fixed"])
    if study["weights"] != "fresh":
        words += ["--weights", study["weights"]]
    return _join([*words, *_where(study)])


def training_command(study: Mapping[str, Any]) -> str | None:
    from vitsearch.training.plan import TrainingPlan  # brings torch
    from vitsearch.training.repeat import training_words

    plan = TrainingPlan.from_json(study)
    words = training_words(plan, "-")
    if words is None:
        return None
    given = "" if plan.settings is None else f"echo {shlex.quote(json.dumps(plan.settings))} | "
    return given + _join([*words, *_where(study)])


def _where(study: Mapping[str, Any]) -> list[Any]:
    """The device, plugins by their file names, and a folder that the reader chooses."""
    environment: Mapping[str, Any] = next(iter(study["environments"]), {})
    words: list[Any] = ["--device", environment.get("device", "auto")]
    for plugin in environment.get("plugins", []):
        words += ["--plugin", plugin["file"]] if "file" in plugin else []
    return [*words, "--out", "again"]


def _join(words: list[Any]) -> str:
    return shlex.join(map(str, words))
