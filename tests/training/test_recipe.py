"""Recipes: what the papers say, strict values, texts to fields."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from vitsearch.errors import VitsearchError
from vitsearch.tasks import Classification
from vitsearch.training.optimize import make_optimizer, make_schedule
from vitsearch.training.recipe import RECIPES, Recipe, change


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_survive_json(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.source
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


PUBLISHED: dict[str, dict[str, Any]] = {
    "autoformer": {"rate": 1e-3, "epochs": 500, "warmup_epochs": 20, "batch_size": 1024, "drop_path": 0.1},
    "deit": {"rate": 1e-3, "epochs": 300, "warmup_epochs": 5, "mixup": 0.8, "cutmix": 1.0, "label_smoothing": 0.1},
    "tftas": {"rate": 1e-3, "minimum_rate": 1e-5, "epochs": 300, "warmup_epochs": 5, "batch_size": 256},
    "vitas-weak": {"rate": 1e-3, "minimum_rate": 0, "cutmix": 1.0, "mixup": 0, "drop_path": 0},
    "vitas-retrain": {"mixup": 0.8, "cutmix": 1.0, "drop_path": 0.1, "decayed": "all-but-vectors"},
    "vitas-retrain-small": {"mixup": 0.8, "cutmix": 0.0, "drop_path": 0.1, "epochs": 300, "batch_size": 1024},
    "prenas-tiny": {"weight_decay": 0.02, "mixup": 0, "cutmix": 0, "minimum_rate": 2e-5, "rate": 1e-3},
    "prenas-small": {"weight_decay": 0.05, "mixup": 0.8, "mix_mode": "elem"},
    "prenas-base": {"weight_decay": 0.05, "cutmix": 1.0, "mix_mode": "elem"},
    "s3": {"rate": 1e-3, "minimum_rate": 1e-5, "epochs": 300, "warmup_epochs": 20, "drop_path": 0.2},
    "s3-384": {"rate": 1e-5, "epochs": 10, "schedule": "constant", "weight_decay": 1e-8, "image_size": 384},
    "autoprox-small": {"rate": 5e-4, "minimum_rate": 5e-6, "epochs": 300, "warmup_epochs": 20, "batch_size": 128},
    "autoprox-teacher": {"rate": 0.1, "minimum_rate": 0, "epochs": 300, "weight_decay": 5e-4, "optimizer": "sgd"},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_recipes_say_what_the_papers_say(name: str) -> None:
    for field, value in PUBLISHED[name].items():
        found = getattr(RECIPES[name], field)
        assert found == (pytest.approx(value) if isinstance(value, float) else value), field


def test_augmentations_of_prenas_are_those_of_its_table_9() -> None:
    sizes = [RECIPES[f"prenas-{size}"].augmentation for size in ("tiny", "small", "base")]
    expected = [("rand-m9-n2-mstd0.5-inc1", 1), ("v0r-mstd0.5", 1), ("rand-m10-n3-mstd0.5-inc1", 2)]
    assert [(each.rand_augment, each.erase_count) for each in sizes] == expected


def rates(recipe: Recipe, steps_per_epoch: int, factor: float = 1.0) -> list[float]:
    layer = nn.Linear(3, 2)
    optimizer = make_optimizer(recipe, layer, Classification())
    set_rate = make_schedule(recipe, optimizer, steps_per_epoch, factor)
    found = []
    for step in range(recipe.epochs * steps_per_epoch):
        set_rate(step)
        found.append(optimizer.param_groups[0]["lr"])
    return found


@pytest.mark.parametrize("steps_of", ["step", "epoch"])
def test_cosine_with_warm_up_by_hand(steps_of: Any) -> None:
    recipe = replace(RECIPES["quick"], epochs=8, warmup_epochs=2, steps_of=steps_of, rate_batch=None)
    low, high, start = recipe.minimum_rate, recipe.learning_rate, recipe.warmup_rate
    for step, rate in enumerate(rates(recipe, 5)):
        t = step / 5 if steps_of == "step" else step // 5
        expected = start + (high - start) * t / 2 if t < 2 else low + (high - low) * (1 + math.cos(math.pi * t / 8)) / 2
        assert rate == pytest.approx(expected, rel=1e-6), step


def test_the_whole_curve_scales_and_a_constant_one_is_constant() -> None:
    recipe = replace(RECIPES["quick"], epochs=8)
    assert rates(recipe, 5, 0.5) == pytest.approx([rate / 2 for rate in rates(recipe, 5)])
    assert set(rates(RECIPES["s3-384"], 3)) == {1e-5}


def test_what_is_decayed() -> None:
    from vitsearch import build, sample

    settings = sample("autoformer-tiny", 1, seed=0)[0]
    with torch.device("meta"):
        network = build(settings, draw_weights=False)

    def decayed(kind: str) -> set[str]:
        optimizer = make_optimizer(replace(RECIPES["quick"], decayed=kind), network, Classification())  # type: ignore[arg-type]
        ids = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
        return {name for name, parameter in network.named_parameters() if id(parameter) in ids}

    everything = {name for name, _ in network.named_parameters()}
    vectors = {name for name, parameter in network.named_parameters() if parameter.dim() == 1}
    tables = {name for name in everything if "relative" in name or name in ("pos_embed", "cls_token")}
    assert decayed("everything") == everything
    assert decayed("all-but-vectors") == everything - vectors
    assert decayed("matrices") == everything - vectors - tables and tables


def test_fields_from_texts() -> None:
    changed = change(
        RECIPES["deit"],
        {"epochs": "30", "drop_path": "0.2", "clip": "1", "average": "none", "augmentation.scale": "0.2,1"},
    )
    assert (changed.epochs, changed.drop_path, changed.clip, changed.average) == (30, 0.2, 1.0, None)
    assert changed.augmentation.scale == (0.2, 1.0) and changed.augmentation.erase == 0.25
    assert changed.warmup_epochs == 0.5  # 5 of 300, as before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drop_pth": "1"}, "Did you mean 'drop_path'"),
        ({"epochs": "many"}, "`epochs` must be a whole number, but got 'many'"),
        ({"epochs": "0"}, "`epochs` must be"),
        ({"label_smoothing": "1"}, "below 1"),
        ({"precision": "int8"}, "`precision` must be one of float32, bfloat16, float16, but got 'int8'"),
        ({"learning_rate": "nan"}, "`learning_rate` must be above 0, but got nan"),
        ({"warmup_epochs": "30"}, "`warmup_epochs` must be less than `epochs`"),
        ({"mixup": "0.8", "batch_size": "63"}, "`batch_size` must be even"),
        ({"betas": "0.9"}, "`betas` must be two numbers, but got"),
        ({"betas": "0.9,0.99,0.5"}, "`betas` must be two numbers, but got"),
        ({"augmentation.flp": "1"}, "Did you mean 'flip'"),
        ({"source": "me"}, "no recipe field named 'source'"),
    ],
)
def test_bad_fields_are_named(changes: dict[str, str], said: str) -> None:
    with pytest.raises(VitsearchError, match=said.replace("(", r"\(")):
        change(RECIPES["quick"], changes)


def test_betas_epsilon_and_momentum_reach_the_optimizer_or_are_refused() -> None:
    """AdamW took them, and others took none of them and said nothing."""

    def made(**fields: Any) -> dict[str, Any]:
        recipe = replace(RECIPES["quick"], **fields)
        return make_optimizer(recipe, torch.nn.Linear(2, 2), Classification()).param_groups[0]

    assert made()["betas"] == (0.9, 0.999) and made(betas=(0.8, 0.9))["betas"] == (0.8, 0.9)
    assert made(optimizer="lion")["betas"] == (0.9, 0.99)  # its own
    assert made(optimizer="lion", betas=(0.8, 0.9))["betas"] == (0.8, 0.9)
    with pytest.raises(VitsearchError, match="`optimizer` must be one of timm's, but got 'fusedadamw'"):
        made(optimizer="fusedadamw")  # it asserts that APEX is there
    assert made(optimizer="lamb", epsilon=1e-4)["eps"] == 1e-4
    assert made(optimizer="sgd", momentum=0.5)["momentum"] == 0.5
    refused: list[tuple[str, str, Any]] = [("sgd", "betas", (0.8, 0.9)), ("lion", "epsilon", 1e-4)]
    for optimizer, name, value in [*refused, ("adamw", "momentum", 0.5)]:
        with pytest.raises(VitsearchError, match=f"`{name}` must not be given with optimizer {optimizer}, but got"):
            made(optimizer=optimizer, **{name: value})
