"""How large a network is: the baselines that every proxy must beat.

For networks of our spaces these are closed forms and nothing is built. For others they are counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitsearch.cost import architecture_cost
from vitsearch.proxies.base import Subject, linear_roles, proxy

PAPER = "the baseline"
BASELINES = ("params", "macs", "depth", "width")


@proxy("params", paper=PAPER)
def params(subject: Subject) -> float:
    """Number of parameters."""
    if subject.architecture is not None:
        return architecture_cost(subject.architecture, subject.geometry).params
    return sum(parameter.numel() for parameter in subject.network.parameters())


@proxy("macs", paper=PAPER)
def macs(subject: Subject) -> float:
    """Multiply-accumulates of one forward pass of one image."""
    if subject.architecture is not None:
        return architecture_cost(subject.architecture, subject.geometry).macs
    fused: list[Any] = [module for module in subject.network.modules() if getattr(module, "fused_attn", False)]
    side = subject.geometry.image_size
    image = torch.zeros(1, subject.geometry.channels, side, side, device=subject.device)
    learned = [parameter for parameter in subject.network.parameters() if parameter.requires_grad]
    for module in fused:  # the counter sees matrix products, not every fused kernel
        module.fused_attn = False
    for parameter in learned:  # and cannot follow a parameter that is handed from module to module
        parameter.requires_grad_(False)
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            subject.network(image)
    finally:
        for module in fused:
            module.fused_attn = True
        for parameter in learned:
            parameter.requires_grad_()
    return int(counter.get_total_flops()) // 2


@proxy("depth", paper=PAPER)
def depth(subject: Subject) -> float:
    """Number of transformer blocks."""
    if subject.architecture is not None:
        return subject.architecture.depth
    return len(_attention_inputs(subject, "depth"))


@proxy("width", paper=PAPER)
def width(subject: Subject) -> float:
    """Width of the token embedding, averaged over the blocks."""
    if subject.architecture is not None:
        return subject.architecture.mean_width
    inputs = _attention_inputs(subject, "width")
    return sum(inputs) / len(inputs)


def _attention_inputs(subject: Subject, name: str) -> list[int]:
    """For each attention module: the input width of its first linear layer."""
    widths: dict[str, int] = {}
    for linear, role, module in linear_roles(subject.network):
        if role == "attention":
            widths.setdefault(module, subject.parameters[f"{linear}.weight"].shape[1])
    if not widths:
        raise subject.undefined(name, "it has no linear layer inside an attention module")
    return list(widths.values())
