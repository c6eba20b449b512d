"""AutoProxA and AutoProxP, the two proxies that Auto-Prox found (Wei et al., AAAI 2024, eq. 2 and 3).

theta_l are the QKV weights of a layer, theta_k the weights of its MLP's linear layers. Each term is averaged to a
number, layer by layer, and the layers are averaged.

    AutoProxA = |dL/dtheta_l| + 1/(n + 1e-9) sum sigmoid(dL/dtheta_k)            (eq. 2)
    AutoProxP = ||sigmoid(theta_l)||_F - log softmax(||theta_k||)                (eq. 3)

What the paper leaves open has names. |.| in eq. 2 is the mean of absolute values (`norm=mean`) or their sum
(`norm=sum`). The softmax of eq. 3 runs over the first dimension of each weight matrix, and its logarithm is averaged
over the elements (`softmax=mean`) or summed (`softmax=sum`); or it runs over the norms of all MLP matrices
(`softmax=layers`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitsearch.proxies.base import Subject, proxy

PAPER = "Wei et al., Auto-Prox, AAAI 2024, eq. {}"
EPSILON = 1e-9


def _names(subject: Subject, proxy_name: str) -> tuple[list[str], list[str]]:
    """QKV weights (q, k, v, kv or qkv) and MLP weights."""
    qkv = [name for name in subject.linears["attention"] if name.split(".")[-2].startswith(("q", "k", "v"))]
    if not qkv or not subject.linears["mlp"]:
        raise subject.undefined(proxy_name, "it has no QKV or no MLP layers")
    return qkv, subject.linears["mlp"]


def _mean(values: list[Tensor]) -> float:
    return float(torch.stack(values).double().mean())


@proxy(
    "autoproxa",
    paper=PAPER.format(2),
    needs_data=True,
    needs_labels=True,
    needs_gradient=True,
    options={"norm": ("mean", "sum")},
)
def autoproxa(subject: Subject, norm: str = "mean") -> float:
    """Magnitude of QKV gradients plus the mean sigmoid of MLP gradients."""
    qkv, mlp = _names(subject, "autoproxa")
    gradients = subject.loss_gradients
    totals = [gradients[name].abs().sum(dtype=torch.float64) for name in qkv]
    sizes = [gradients[name].numel() if norm == "mean" else 1 for name in qkv]
    first = _mean([total / size for total, size in zip(totals, sizes, strict=True)])
    sigmoids = [gradients[name].sigmoid() for name in mlp]
    return first + _mean([values.sum(dtype=torch.float64) / (values.numel() + EPSILON) for values in sigmoids])


@proxy("autoproxp", paper=PAPER.format(3), options={"softmax": ("mean", "sum", "layers")})
def autoproxp(subject: Subject, softmax: str = "mean") -> float:
    """Norm of the sigmoid of QKV weights minus the log-softmax of MLP weights."""
    qkv, mlp = _names(subject, "autoproxp")
    weights = [subject.parameters[name] for name in mlp]
    first = _mean([sigmoid_norm(subject.parameters[name]) for name in qkv])
    if softmax == "layers":
        norms = torch.stack([torch.linalg.vector_norm(weight.double()) for weight in weights])
        return first - _mean(list(norms.log_softmax(0)))
    return first - _mean([log_softmax(weight, softmax) for weight in weights])


def sigmoid_norm(weight: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(weight.double().sigmoid())
    return norm


def log_softmax(weight: Tensor, softmax: str) -> Tensor:
    """Over the first dimension; the mean or the sum of its elements."""
    values = weight.double().log_softmax(0)
    return values.sum() if softmax == "sum" else values.mean()
