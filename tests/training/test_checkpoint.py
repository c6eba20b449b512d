"""Checkpoints: what an optimizer keeps comes back as it was, whatever it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.training.checkpoint import (
    Position,
    optimizer_state,
    read_checkpoint,
    restore_optimizer,
    write_checkpoint,
)
from vitsearch.training.optimize import check_optimizer, make_optimizer
from vitsearch.training.recipe import RECIPES

STOPPED, LAST = 3, 6
METER = {"meter": torch.zeros(2)}
OPTIMIZERS = ["adamw", "lamb", "adan", "laprop", "adabelief", "adamp", "mars", "madgrad", "nadamlegacy", "radamlegacy"]


def small(name: str, state: dict[str, Tensor] | None = None) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    network.load_state_dict(state or network.state_dict())
    return network, make_optimizer(replace(RECIPES["quick"], optimizer=name), network, nn.Identity())


def take_steps(network: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> dict[str, Tensor]:
    for step in range(first, last):
        images = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        network(images).square().sum().backward()
        optimizer.step()
    return {name: value.clone() for name, value in network.state_dict().items()}


def kept(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> Path:
    state = optimizer_state(optimizer, dict(network.named_parameters()))
    write_checkpoint(path, network.state_dict() | METER, Position(step=STOPPED), state)
    return path


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_optimizer_goes_on_as_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    network, optimizer = small(name)
    stopped = take_steps(network, optimizer, 0, STOPPED)
    read = read_checkpoint(kept(tmp_path / "checkpoint.safetensors", network, optimizer))
    whole = take_steps(network, optimizer, STOPPED, LAST)
    again, fresh = small(name, stopped)
    restore_optimizer(fresh, dict(again.named_parameters()), {**read.tensors, **read.numbers})
    kinds = [
        {name: type(value) for name, value in optimizer_state(one, dict(of.named_parameters())).items()}
        for of, one in ((network, optimizer), (again, fresh))
    ]
    assert kinds[0] == kinds[1]
    resumed = take_steps(again, fresh, STOPPED, LAST)
    assert all(torch.equal(resumed[key], whole[key]) for key in whole)


@pytest.mark.parametrize("name", ["lamb", "adan"])
def test_a_checkpoint_of_the_first_step_takes_the_count_of_steps_away(name: str, tmp_path: Path) -> None:
    """As when a loss is not finite before the second checkpoint."""
    network, optimizer = small(name)
    begun = {key: value.clone() for key, value in network.state_dict().items()}
    read = read_checkpoint(kept(tmp_path / "checkpoint.safetensors", network, optimizer))
    whole = take_steps(network, optimizer, 0, STOPPED)
    network.load_state_dict(begun)
    restore_optimizer(optimizer, dict(network.named_parameters()), {**read.tensors, **read.numbers})
    again = take_steps(network, optimizer, 0, STOPPED)
    assert all(torch.equal(again[key], whole[key]) for key in whole)


@pytest.mark.parametrize(("name", "reason"), [("kron", "keeps a list as optimizer.weight.Q"), ("adahessian", "grad")])
def test_an_optimizer_that_cannot_be_resumed_is_refused_before_it_starts(name: str, reason: str) -> None:
    with pytest.raises(
        VitsearchError, match=f"`optimizer` must be one that can be resumed, but got '{name}'.*{reason}"
    ):
        check_optimizer(replace(RECIPES["quick"], optimizer=name), torch.device("cpu"))
    check_optimizer(RECIPES["quick"], torch.device("cpu"))


def test_a_restored_optimizer_holds_its_state_as_the_parameters_are_held() -> None:
    """Channels last, as convolutions are on a GPU: mixed layouts would leave the fused update."""
    convolution = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    parameters = dict(convolution.named_parameters())
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.1)
    convolution(torch.randn(2, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    kept = optimizer_state(optimizer, parameters)
    stored = {name: value.contiguous() for name, value in kept.items() if isinstance(value, Tensor)}
    fresh = torch.optim.AdamW(parameters.values(), lr=0.1)
    restore_optimizer(fresh, parameters, stored)
    for parameter in parameters.values():
        for key, value in optimizer.state[parameter].items():
            found = fresh.state[parameter][key]
            assert torch.equal(found, value), key
            assert found.stride() == value.stride(), key


@pytest.mark.parametrize(
    ("header", "tensors", "said"),
    [
        ({"position": {"step": "x"}}, METER, "`step` must be a whole number from 0 on, but got 'x'"),
        ({"position": {"rate_factor": None}}, METER, "`rate_factor` must be a number, but got None"),
        ({"position": {"pace": 1}}, METER, "pace"),
        ({"position": {}}, {}, "must hold the meter of a training"),
        ({"position": {}}, {"meter": torch.zeros(3)}, "must hold the meter of a training"),
        ({"position": {}, "numbers": 3}, METER, "is not a checkpoint that can be read"),
    ],
)
def test_what_is_wrong_in_a_checkpoint_is_one_line(
    tmp_path: Path, header: dict[str, Any], tensors: dict[str, Tensor], said: str
) -> None:
    file = tmp_path / "checkpoint.safetensors"
    save_file(tensors, file, metadata={"vitsearch": json.dumps({"format": 1} | header)})
    with pytest.raises(BadStudy) as error:
        read_checkpoint(file)
    assert said in str(error.value) and str(file) in str(error.value)


def test_a_fused_optimizer_is_not_given_tensors_of_another_shape(tmp_path: Path) -> None:
    network, optimizer = small("adamw")
    take_steps(network, optimizer, 0, STOPPED)
    parameters = dict(network.named_parameters())
    state = optimizer_state(optimizer, parameters)
    for key, wrong in (("exp_avg", torch.zeros(2)), ("step", torch.zeros(2)), ("exp_avg_sq", 3.0)):
        with pytest.raises(BadStudy, match=rf"optimizer.0.weight.{key} must have the shape \["):
            restore_optimizer(optimizer, parameters, state | {f"optimizer.0.weight.{key}": wrong})
