"""Optimizer and learning rate of a recipe, from timm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from timm.optim import OptimInfo, create_optimizer_v2, get_optimizer_info, param_groups_weight_decay
from timm.optim.muon import Muon
from timm.scheduler import CosineLRScheduler
from torch import nn

from vitsearch.architecture import brief
from vitsearch.errors import VitsearchError
from vitsearch.training.checkpoint import optimizer_state
from vitsearch.training.grouped_muon import GroupedMuon
from vitsearch.training.recipe import Recipe

FUSED = ("adam", "adamw", "sgd")
"""What torch has one kernel for."""


def make_optimizer(recipe: Recipe, network: Any, task: nn.Module) -> torch.optim.Optimizer:
    """Network and task together; the network says which of its tables and tokens are not decayed."""
    spared: set[str] = set()
    if recipe.decayed == "matrices" and hasattr(network, "no_weight_decay"):
        spared = set(network.no_weight_decay())
    groups: list[dict[str, Any]] = []
    for module in (network, task):
        groups += param_groups_weight_decay(
            module,
            recipe.weight_decay,
            weight_decay_exclude_1d=recipe.decayed != "everything",
            no_weight_decay_list=spared if module is network else (),
        )
    groups = [group for group in groups if group["params"]]
    options: dict[str, Any] = {"fused": True} if recipe.optimizer in FUSED else {}
    try:
        known = get_optimizer_info(recipe.optimizer)
        options |= own_options(recipe, known)
        if known.opt_class is Muon:
            options |= {"lr": recipe.rate, "weight_decay": recipe.weight_decay, "momentum": recipe.momentum}
            return GroupedMuon(groups, **options, **(known.defaults or {}))
        optimizer: torch.optim.Optimizer = create_optimizer_v2(
            groups,
            opt=recipe.optimizer,
            lr=recipe.rate,
            weight_decay=recipe.weight_decay,
            momentum=recipe.momentum,
            **options,
        )
    except (ValueError, KeyError, ImportError, AssertionError) as error:
        raise VitsearchError(f"`optimizer` must be one of timm's, but got {recipe.optimizer!r}: {error}") from None
    return optimizer


def own_options(recipe: Recipe, known: OptimInfo) -> dict[str, Any]:
    """Adam has the recipe's betas and epsilon; others have their own, but for what was changed in the recipe."""
    usual = {field.name: field.default for field in dataclasses.fields(Recipe)}
    changed = {name for name in ("betas", "epsilon", "momentum") if getattr(recipe, name) != usual[name]}
    has = {"betas": known.has_betas, "epsilon": known.has_eps, "momentum": known.has_momentum}
    for name in sorted(changed):
        if not has[name]:
            got = brief(getattr(recipe, name))
            raise VitsearchError(f"`{name}` must not be given with optimizer {recipe.optimizer}, but got {got}")
    wanted = changed | ({"betas", "epsilon"} if "adam" in recipe.optimizer else set())
    arguments = {"betas": "betas", "epsilon": "eps"}
    return {key: getattr(recipe, name) for name, key in arguments.items() if name in wanted}


def check_optimizer(recipe: Recipe, device: torch.device) -> None:
    """That it steps by gradients, and keeps what a checkpoint can hold: one step of a small layer shows it."""
    layer = nn.Linear(4, 4, device=device)
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = make_optimizer(recipe, layer, nn.Identity())
    try:
        with torch.compiler.set_stance("force_eager"):
            optimizer.step()
        optimizer_state(optimizer, dict(layer.named_parameters()))
    except (RuntimeError, VitsearchError) as error:
        reason = str(error).splitlines()[0]
        raise VitsearchError(
            f"`optimizer` must be one that can be resumed, but got {recipe.optimizer!r}: {reason}"
        ) from None


def make_schedule(
    recipe: Recipe, optimizer: torch.optim.Optimizer, steps_per_epoch: int, factor: float
) -> Callable[[int], None]:
    """A function that sets the rate of a step. `factor` scales the whole curve."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = recipe.rate * factor
    by_step = recipe.steps_of == "step"
    unit = steps_per_epoch if by_step else 1
    lowest = recipe.rate if recipe.schedule == "constant" else recipe.minimum_rate
    warmup = round(recipe.warmup_epochs * unit) if by_step else int(recipe.warmup_epochs)
    schedule = CosineLRScheduler(
        optimizer,
        t_initial=recipe.epochs * unit,
        lr_min=lowest * factor,
        warmup_t=warmup,
        warmup_lr_init=recipe.warmup_rate * factor,
        t_in_epochs=not by_step,
    )
    if by_step:
        return lambda step: schedule.step_update(step)
    return lambda step: schedule.step(step // steps_per_epoch)
