"""The command line that a training plan is of."""

from __future__ import annotations

import dataclasses
from typing import Any

from vitsearch.spaces import SPACES, patch_words
from vitsearch.spaces.ratioed import Ratioed
from vitsearch.training.distill import Distillation
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import RECIPES, Recipe


def recipe_name(recipe: Recipe) -> tuple[str | None, dict[str, Any]]:
    """The registered recipe that this one was made from, None where there is none, and the fields that differ."""
    found = {name: _differences(RECIPES[name], recipe) for name in RECIPES if RECIPES[name].source == recipe.source}
    return min(found.items(), key=lambda pair: len(pair[1])) if found else (None, {})


def recipe_words(recipe: Recipe) -> list[str] | None:
    """The registered recipe that this one was made from, and what was changed; None where there is none."""
    name, changes = recipe_name(recipe)
    if name is None:
        return None
    words = ["--recipe", name]
    for field, value in changes.items():
        text = "none" if value is None else ",".join(map(str, value)) if isinstance(value, tuple) else value
        words += ["--set", f"{field}={text}"]
    return words


def training_words(plan: TrainingPlan, arch: str) -> list[str] | None:
    """All but device and folder; `arch` is where the settings of a network are, or those of candidates.

    None where the command line cannot say it: a recipe without a name here, unusual distillation.
    """
    recipe, taught = recipe_words(plan.recipe), distillation_words(plan.distillation)
    if recipe is None or taught is None:
        return None
    words: list[Any] = ["vitsearch", *_what(plan, arch), "--data", plan.data, *recipe]
    words += ["--image-size", plan.geometry.image_size, "--channels", plan.geometry.channels, "--seed", plan.seed]
    words += ["--from", plan.start] if plan.start is not None else []
    return list(map(str, words + taught))


def _what(plan: TrainingPlan, arch: str) -> list[Any]:
    if plan.space is None:
        return ["train", *(["--timm", plan.timm] if plan.timm is not None else [arch]), "--parts", plan.parts]
    name, fixed = plan.space["name"], plan.space["fixed"]
    words = ["supernet", "train", name, "--subnets", plan.subnets, *patch_words(name, fixed)]
    words += ["--candidates", arch] if plan.candidates is not None else []
    if plan.sharing is not None:
        private = ["--share", plan.sharing.share, "--class-token", plan.sharing.class_token]
        words += private if isinstance(SPACES[name], Ratioed) else []  # other spaces leave only widths to choose
        words += ["--widths", plan.sharing.widths]
    words += ["--in-place-distillation"] if plan.in_place_distillation else []
    return words


def distillation_words(asked: Distillation | None) -> list[str] | None:
    """None where there are no options for it."""
    if asked is None:
        return []
    usual = asked == Distillation(teacher=asked.teacher, kind=asked.kind)
    return ["--distill", asked.teacher, "--distill-kind", "+".join(asked.kind)] if usual else None


def _differences(base: Recipe, changed: Recipe) -> dict[str, Any]:
    pairs: list[tuple[str, Any, Any]] = [
        ("", base, changed),
        ("augmentation.", base.augmentation, changed.augmentation),
    ]
    return {
        f"{prefix}{field.name}": getattr(new, field.name)
        for prefix, old, new in pairs
        for field in dataclasses.fields(old)
        if field.name != "augmentation" and getattr(old, field.name) != getattr(new, field.name)
    }
