"""Proxies that need more of the loss than one gradient: its curvature, its spread, its kernel."""

from __future__ import annotations

import torch

from vitsearch.proxies.base import Subject, full_precision, proxy
from vitsearch.proxies.traces import Fisher

NEEDS = {"needs_data": True, "needs_labels": True, "needs_gradient": True}


@proxy("grasp", paper="Wang et al., GraSP: Picking Winning Tickets, ICLR 2020, eq. 8", traces=("hessian",), **NEEDS)
def grasp(subject: Subject) -> float:
    """Minus the sum of weight x (Hessian times gradient)."""
    product = subject.trace("hessian")
    terms = [(subject.parameters[name] * value).sum(dtype=torch.float64) for name, value in product.items()]
    return -float(torch.stack(terms).sum())


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
    **NEEDS,
)
def zico(subject: Subject, batches: str = "2", spread: str = "absolute") -> float:
    """Sum over layers of log of the sum over weights of mean / standard deviation of |gradient|, over batches.

    `spread=signed` takes the deviation of the gradient itself, as the public code does.
    """
    drawn = [subject.gradients_on(number) for number in range(int(batches))]
    names = {name for names in subject.linears.values() for name in names} | set(subject.convolutions)
    total = 0.0
    for name in sorted(names & set(drawn[0])):
        stack = torch.stack([gradients[name] for gradients in drawn]).double()
        mean = stack.abs().mean(0)
        deviation = (stack if spread == "signed" else stack.abs()).std(0, unbiased=False)
        ratios = mean[deviation > 0] / deviation[deviation > 0]
        if ratios.numel():
            total += float(ratios.sum().log())
    if not total:
        raise subject.undefined("zico", "no weight's gradient differs between batches")
    return total


@proxy("ntk", paper="Chen et al., TE-NAS, ICLR 2021, eq. 3", needs_data=True, needs_gradient=True, direction="min")
def ntk(subject: Subject) -> float:
    """Condition number of the tangent kernel J J^T, J the gradient of each image's summed logits."""
    images = subject.batch().images
    parameters = [parameter for parameter in subject.network.parameters() if parameter.requires_grad]
    rows = []
    for image in torch.split(images, 1):
        with torch.enable_grad(), full_precision():
            found = torch.autograd.grad(subject.network(image).sum(), parameters, allow_unused=True)
        rows.append(torch.cat([gradient.flatten() for gradient in found if gradient is not None]))
    jacobian = torch.stack(rows).cpu()
    kernel = torch.zeros(len(images), len(images), dtype=torch.float64)
    for part in torch.split(jacobian, 1 << 20, dim=1):
        kernel += part.double() @ part.double().T
    values = torch.linalg.eigvalsh(kernel)
    return float(values[-1] / values[0])
