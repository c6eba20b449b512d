"""Proxies that need more of the loss than one gradient: its curvature, its spread, its kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitsearch.proxies.base import Subject, full_precision, proxy, twice_differentiable
from vitsearch.proxies.traces import Fisher

NEEDS = {"needs_data": True, "needs_labels": True, "needs_gradient": True}


@proxy("grasp", paper="Wang et al., GraSP: Picking Winning Tickets, ICLR 2020, eq. 8", traces=("curvature",), **NEEDS)
def grasp(subject: Subject) -> float:
    """Minus the sum of weight x (Hessian times gradient)."""
    found: float | None = subject.trace("curvature")
    if found is None:
        raise subject.undefined("grasp", "torch has no second derivative of one of its functions")
    return -found


@proxy("fisher", paper="Turner et al., BlockSwap, ICLR 2020; Theis et al., 2018", traces=("fisher",), **NEEDS)
def fisher(subject: Subject) -> float:
    """Sum over channels of half the mean square, over images, of activation x gradient."""
    found: Fisher = subject.trace("fisher")
    if not found.terms:
        raise subject.undefined("fisher", "it has no linear or convolution layers")
    return found.total


@proxy(
    "zico",
    paper="Li et al., ZiCo: Zero-shot NAS via Inverse Coefficient of Variation on Gradients, ICLR 2023, eq. 14",
    options={"batches": ("2", "4", "8"), "spread": ("absolute", "signed")},
    traces=("parts=2",),
    **NEEDS,
)
def zico(subject: Subject, batches: str = "2", spread: str = "absolute") -> float:
    """Sum over layers of log of the sum over weights of mean / standard deviation of |gradient|, over batches.

    The batches are equal parts of the batch. `spread=signed` takes the deviation of the gradient itself, as the public
    code does.
    """
    drawn = subject.gradients_in_parts(int(batches))
    names = {name for names in subject.linears.values() for name in names} | set(subject.convolutions)
    total = 0.0
    for name in sorted(names & set(drawn[0])):
        sizes = [gradients[name].abs() for gradients in drawn]
        mean = _mean(sizes)
        spreads = [gradients[name] for gradients in drawn] if spread == "signed" else sizes
        center = _mean(spreads)
        deviation = _mean([(value - center).square() for value in spreads]).sqrt()
        ratios = float(torch.where(deviation > 0, mean / deviation, 0.0).sum(dtype=torch.float64))
        total += math.log(ratios) if ratios else 0.0
    if not total:
        raise subject.undefined("zico", "no weight's gradient differs between batches")
    return total


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean(0) if len(values) > 2 else (values[0] + values[1]) / 2


@proxy("ntk", paper="Chen et al., TE-NAS, ICLR 2021, eq. 3", needs_data=True, needs_gradient=True, direction="min")
def ntk(subject: Subject) -> float:
    """Condition number of the tangent kernel J J^T, J the gradient of each image's summed logits."""
    network, images = subject.network, subject.batch.images

    def summed_logits(given: dict[str, Tensor], image: Tensor) -> Tensor:
        total: Tensor = torch.func.functional_call(network, given, (image[None],)).sum()
        return total

    with full_precision(), twice_differentiable():  # spelled-out attention goes through vmap
        jacobian = torch.func.vmap(torch.func.grad(summed_logits), in_dims=(None, 0))(subject.parameters, images)
    kernel = torch.zeros(len(images), len(images), dtype=torch.float64)
    for rows in jacobian.values():
        for part in torch.split(rows.flatten(1), 1 << 16, dim=1):
            kernel += (part @ part.T).double().cpu()
    values = torch.linalg.eigvalsh(kernel)
    return float(values[-1] / values[0])
