"""Proxies that weigh each parameter by its gradient.

Over all parameters unless `params=linear`, which keeps the weight matrices of linear layers alone (what the public
implementations sum over). The loss is the mean cross-entropy on one batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitsearch.proxies.base import Subject, proxy

PARAMS = {"params": ("all", "linear")}
NEEDS = {"needs_data": True, "needs_labels": True, "needs_gradient": True, "options": PARAMS}


@proxy("snip", paper="Lee et al., SNIP: Single-shot Network Pruning, ICLR 2019", **NEEDS)
def snip(subject: Subject, params: str = "all") -> float:
    """Sum of |gradient x weight|."""
    return _total(subject, params, lambda weight, gradient: (gradient * weight).abs().sum(dtype=torch.float64))


@proxy("plain", paper="Abdelfattah et al., Zero-Cost Proxies for Lightweight NAS, ICLR 2021", **NEEDS)
def plain(subject: Subject, params: str = "all") -> float:
    """Sum of gradient x weight, with its sign."""
    return _total(subject, params, lambda weight, gradient: (gradient * weight).sum(dtype=torch.float64))


@proxy("grad_norm", paper="Abdelfattah et al., Zero-Cost Proxies for Lightweight NAS, ICLR 2021", **NEEDS)
def grad_norm(subject: Subject, params: str = "all") -> float:
    """Sum over parameter tensors of the 2-norm of the gradient."""
    return _total(subject, params, lambda _, gradient: torch.linalg.vector_norm(gradient))


@proxy(
    "synflow",
    paper="Tanaka et al., Pruning neural networks without any data (SynFlow), NeurIPS 2020",
    needs_gradient=True,
    options={"sign": ("signed", "absolute")},
)
def synflow(subject: Subject, sign: str = "signed") -> float:
    """Sum of gradient x |weight| over all parameters of the absolute network, an image of ones, in float64.

    In a network without normalisation every term is positive. Behind a layer norm the terms of a layer nearly cancel:
    `sign=absolute` takes their absolute values, as the public codes do.
    """
    weights, gradients = subject.absolute(torch.float64)
    products = [gradient * weights[name] for name, gradient in gradients.items()]
    return float(sum((product.abs() if sign == "absolute" else product).sum() for product in products))


@proxy(
    "log-synflow",
    paper="Cavagnero et al., FreeREA, WACV 2023",
    needs_gradient=True,
)
def log_synflow(subject: Subject) -> float:
    """Sum of |weight| x log(1 + |gradient|) over all parameters of the absolute network, an image of ones, in float64.

    As published it takes log(1 + gradient), which a transformer's negative gradients do not allow.
    """
    weights, gradients = subject.absolute(torch.float64)
    return float(sum((gradient.abs().log1p() * weights[name]).sum() for name, gradient in gradients.items()))


def _total(subject: Subject, params: str, term: Callable[[Tensor, Tensor], Tensor]) -> float:
    chosen = set(subject.loss_gradients)
    if params == "linear":
        chosen &= {name for names in subject.linears.values() for name in names}
    terms: list[Tensor] = [
        term(subject.parameters[name], gradient).cpu().double()
        for name, gradient in subject.loss_gradients.items()
        if name in chosen
    ]
    if not terms:
        raise subject.undefined("saliency", f"it has no parameters to sum over (params={params})")
    return float(torch.stack(terms).sum())
