"""DSS: synaptic diversity of attention plus synaptic saliency of MLPs (TF-TAS, Zhou et al., CVPR 2022).

The absolute network sees one image of ones; the loss L is the sum of the logits. Then

    D_MSA = sum over attention linears m of  ||dL/dW_m||_nuc * ||W_m||_nuc      (eq. 4, a product of two scalars)
    S_MLP = sum over MLP linears n of        sum(dL/dW_n * W_n)                 (eq. 5, with its sign)
    DSS   = sum over layers of D_MSA + S_MLP                                     (eq. 6)

with W the absolute weights, QKV as one matrix. Patch embedding, norms, biases and classifier add nothing. The score
depends on the initial weights, not on data or labels. The public code differs: its QKV term is exactly zero, and its
MLP term takes an absolute value that eq. 5 does not have.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitsearch.proxies.base import Subject, proxy

PAPER = "Zhou et al., Training-free Transformer Architecture Search (TF-TAS), CVPR 2022, eq. 4-6"


@proxy("dss", paper=PAPER, needs_gradient=True)
def dss(subject: Subject) -> float:
    """Synaptic diversity of attention plus saliency of MLPs, on the absolute weights."""
    weights, _ = subject.absolute()
    return _diversity(subject, "dss", weights) + _saliency(subject)


@proxy("dss-signed", paper=f"{PAPER}; nuclear norm of the weights before their absolute value", needs_gradient=True)
def dss_signed(subject: Subject) -> float:
    """DSS with the nuclear norm of W in place of |W|; the gradients are those of the absolute network."""
    return _diversity(subject, "dss-signed", subject.parameters) + _saliency(subject)


def _diversity(subject: Subject, name: str, weights: dict[str, Tensor]) -> float:
    _, gradients = subject.absolute()
    chosen = [weight for weight in subject.linears["attention"] if weight in gradients]
    if not chosen:
        raise subject.undefined(name, "it has no linear layer inside an attention module")
    norms = nuclear_norms([gradients[weight] for weight in chosen] + [weights[weight] for weight in chosen])
    return float((norms[: len(chosen)] * norms[len(chosen) :]).sum())


def _saliency(subject: Subject) -> float:
    weights, gradients = subject.absolute()
    chosen = [weight for weight in subject.linears["mlp"] if weight in gradients]
    return float(sum((gradients[weight] * weights[weight]).sum(dtype=torch.float64) for weight in chosen))


def nuclear_norms(matrices: Sequence[Tensor]) -> Tensor:
    """Sum of singular values of each matrix, in float64.

    The singular values are the roots of the eigenvalues of the smaller Gram matrix, taken in float64, a batch for each
    size. For matrices that were computed in float32 this loses nothing and takes a tenth of the time of an SVD.
    """
    grams: dict[int, list[int]] = {}
    for index, matrix in enumerate(matrices):
        grams.setdefault(min(matrix.shape), []).append(index)
    norms = torch.empty(len(matrices), dtype=torch.float64)
    for indices in grams.values():
        batch = torch.stack([_gram(matrices[index]) for index in indices])
        norms[indices] = torch.linalg.eigvalsh(batch).clamp_min(0).sqrt().sum(-1).cpu()
    return norms


def _gram(matrix: Tensor) -> Tensor:
    matrix = matrix.cpu() if matrix.device.type == "mps" else matrix  # no float64 there
    matrix = matrix.double()
    return matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
