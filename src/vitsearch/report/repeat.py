"""How to do a study again: the exact command, from what its `study.json` says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from vitsearch.errors import VitsearchError
from vitsearch.spaces import SPACES


def command_of(study: Mapping[str, Any], trials: int) -> str | None:
    """`trials` is how many there are, for a study that does not say how many it is to have.

    None where the command line cannot say it: made from Python, or of a kind that is not known here.
    """
    known = {"search": search_command, "train": train_command, "supernet": supernet_command}
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
    words += _patch_size(study["space"], study["fixed"])
    if study["weights"] != "fresh":
        words += ["--weights", study["weights"]]
    return _join([*words, *_where(study)])


def train_command(study: Mapping[str, Any]) -> str:
    words: list[Any] = ["vitsearch", "train"]
    given = ""
    if study["settings"] is not None:
        words.append("-")
        given = f"echo {shlex.quote(json.dumps(study['settings']))} | "
    else:
        words += ["--timm", study["timm"]]
    if study["start"] is not None:
        words += ["--from", study["start"]]
    words += ["--data", study["data"], "--parts", study["parts"], *_training(study, "locality")]
    return given + _join([*words, *_where(study)])


def supernet_command(study: Mapping[str, Any]) -> str:
    space = study["space"]
    words = ["vitsearch", "supernet", "train", space["name"], "--data", study["data"], "--subnets", study["subnets"]]
    words += _patch_size(space["name"], space["fixed"]) + _training(study, "soft")
    return _join([*words, *_where(study)])


def _training(study: Mapping[str, Any], usual: str) -> list[Any]:
    geometry, distillation = study["geometry"], study["distillation"]
    words = [*_recipe(study["recipe"]), "--image-size", geometry["image_size"], "--channels", geometry["channels"]]
    if distillation is not None:
        words += ["--distill", distillation["teacher"], "--distill-kind", "+".join(distillation["kind"])]
    return [*words, "--seed", study["seed"]]


def _recipe(recipe: Mapping[str, Any]) -> list[Any]:
    """The named recipe that differs least, and what is different."""
    from vitsearch.training.recipe import RECIPES  # brings torch

    flat = _flat(recipe)
    differences = {}
    for name in RECIPES:
        named = _flat(json.loads(json.dumps(RECIPES[name].to_json())))
        if named["source"] == flat["source"]:
            differences[name] = {field: value for field, value in flat.items() if named.get(field) != value}
    name = min(differences, key=lambda one: len(differences[one]))
    words: list[Any] = ["--recipe", name]
    for field, value in differences[name].items():
        shown = ",".join(map(str, value)) if isinstance(value, list) else "none" if value is None else value
        words += ["--set", f"{field}={shown}"]
    return words


def _flat(recipe: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in recipe.items() if name != "augmentation"}
    return own | {f"augmentation.{name}": value for name, value in recipe["augmentation"].items()}


def _patch_size(space: str, fixed: Mapping[str, int]) -> list[Any]:
    return ["--patch-size", fixed["patch_size"]] if fixed != SPACES[space].fixed() else []


def _where(study: Mapping[str, Any]) -> list[Any]:
    """The device, plugins by their file names, and a folder that the reader chooses."""
    environment = study["environments"][0]
    words: list[Any] = ["--device", environment["device"]]
    for plugin in environment.get("plugins", []):
        words += ["--plugin", plugin["file"]] if "file" in plugin else []
    return [*words, "--out", "again"]


def _join(words: list[Any]) -> str:
    return shlex.join(map(str, words))
