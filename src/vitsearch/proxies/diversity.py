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
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from vitsearch.architecture import Architecture
from vitsearch.proxies.base import Subject, proxy

PAPER_SALIENCY = "Zhou et al., Training-free Transformer Architecture Search (TF-TAS), CVPR 2022, section 3.3"
PAPER = "Zhou et al., Training-free Transformer Architecture Search (TF-TAS), CVPR 2022, eq. 4-6"


@proxy("dss", paper=PAPER, needs_gradient=True)
def dss(subject: Subject) -> float:
    """Synaptic diversity of attention plus saliency of MLPs, on the absolute weights."""
    weights, _ = subject.absolute(precision(subject.architecture))
    return _diversity(subject, "dss", weights) + _saliency(subject, precision(subject.architecture), "mlp")


@proxy("dss-signed", paper=f"{PAPER}; nuclear norm of the weights before their absolute value", needs_gradient=True)
def dss_signed(subject: Subject) -> float:
    """DSS with the nuclear norm of W in place of |W|; the gradients are those of the absolute network."""
    saliency = _saliency(subject, precision(subject.architecture), "mlp")
    return _diversity(subject, "dss-signed", subject.parameters) + saliency


@proxy("dss-diversity", paper=PAPER, needs_gradient=True)
def dss_diversity(subject: Subject) -> float:
    """The attention half of DSS (eq. 4)."""
    weights, _ = subject.absolute(precision(subject.architecture))
    return _diversity(subject, "dss-diversity", weights)


@proxy("dss-saliency", paper=PAPER, needs_gradient=True)
def dss_saliency(subject: Subject) -> float:
    """The MLP half of DSS (eq. 5), in float64."""
    return _saliency(subject, torch.float64, "mlp")


@proxy("saliency-msa", paper=PAPER_SALIENCY, needs_gradient=True)
def saliency_msa(subject: Subject) -> float:
    """Sum of gradient x weight over the attention's linear layers, of the absolute network, in float64."""
    return _saliency(subject, torch.float64, "attention")


@proxy("saliency-all", paper=PAPER_SALIENCY, needs_gradient=True)
def saliency_all(subject: Subject) -> float:
    """Sum of gradient x weight over the linear layers of attention and MLP, of the absolute network, in float64."""
    return _saliency(subject, torch.float64, "attention", "mlp")


def precision(architecture: Architecture | None) -> torch.dtype:
    """float32 gives six digits where the classifier reads the mean of all tokens, but only three where it reads one."""
    return torch.float32 if architecture is not None and architecture.readout == "mean" else torch.float64


def _diversity(subject: Subject, name: str, weights: dict[str, Tensor]) -> float:
    _, gradients = subject.absolute(precision(subject.architecture))
    chosen = [weight for weight in subject.linears["attention"] if weight in gradients]
    if not chosen:
        raise subject.undefined(name, "it has no linear layer inside an attention module")
    of_gradients = subject.once("nuclear norms", lambda: nuclear_norms([gradients[weight] for weight in chosen]))
    return float((of_gradients * nuclear_norms([weights[weight] for weight in chosen])).sum())


def _saliency(subject: Subject, dtype: torch.dtype, *roles: str) -> float:
    weights, gradients = subject.absolute(dtype)
    chosen = [weight for role in roles for weight in subject.linears[role] if weight in gradients]
    if not chosen:
        raise subject.undefined("saliency", f"it has no linear layer inside {' or '.join(roles)}")
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


PROBES, CHECKS, TOLERANCE = 28, 4, 1e-4
PROBES_AROUND, NARROW = (12, 20), 448
"""Fewer will do where the largest part is known: for matrices that are narrow, and for others."""


class Summed(NamedTuple):
    """Gradients g = dy^T x of many networks, [n, tokens, outputs] and [n, tokens, inputs]."""

    dy: Tensor
    x: Tensor

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.dy.shape[-2], self.dy.shape[-1], self.x.shape[-1]

    def explored(self) -> tuple[Tensor, Tensor]:
        """s^T g, for a basis s of the products of g with random vectors; and what lies outside, of some others."""
        products = self.dy.mT @ (self.x @ _probes(self.x, PROBES))  # g v, without forming g
        probes, checks = products[..., :PROBES], products[..., PROBES:]
        span = _orthonormal(probes.double()).to(probes.dtype)  # [n, outputs, k]
        return (self.dy @ span).mT @ self.x, checks - span @ (span.mT @ checks)

    def exact(self, chosen: Tensor) -> Tensor:
        """Nuclear norms of some. Of few tokens, from matrices of tokens: with x x^T = r r^T, singular values of g are
        the roots of the eigenvalues of r^T (dy dy^T) r."""
        tokens, outputs, inputs = self.sizes
        dy, x = self.dy[chosen], self.x[chosen]
        if 2 * tokens > min(outputs, inputs):
            return nuclear_norms_of_stack(dy.mT @ x)
        dy, x = dy.double(), x.double()
        values, vectors = torch.linalg.eigh(x @ x.mT)
        root = vectors * values.clamp_min(0).sqrt()[:, None]
        return _roots(root.mT @ (dy @ dy.mT) @ root)


class Around(NamedTuple):
    """Gradients g = left right^T + dy^T x, [n, outputs] and [n, inputs]; [n tokens, outputs] and [n tokens, inputs].

    The second part is small, and in half precision.
    """

    left: Tensor
    right: Tensor
    dy: Tensor
    x: Tensor

    @property
    def sizes(self) -> tuple[int, int, int]:
        return len(self.dy) // len(self.left), self.dy.shape[-1], self.x.shape[-1]

    def parts(self) -> tuple[Tensor, Tensor]:
        dy, x = (one.view(len(self.left), -1, one.shape[-1]) for one in (self.dy, self.x))
        return dy, x

    def explored(self) -> tuple[Tensor, Tensor]:
        """As `Summed` does it; the direction of `left` comes first, and the basis is of what is outside of it."""
        dy, x = self.parts()
        size = torch.linalg.vector_norm(self.left, dim=1, keepdim=True)
        first = (self.left / size)[..., None]
        count = PROBES_AROUND[min(self.sizes[1:]) > NARROW]
        products = torch.bmm(dy.mT, (self.x @ _probes(self.x, count)).view(*x.shape[:2], -1)).to(first.dtype)
        products -= first @ (first.mT @ products)
        probes, checks = products[..., :count], products[..., count:]
        span = _orthonormal(probes)
        inside = torch.bmm(torch.bmm(dy, torch.cat([first, span], -1).to(dy.dtype)).mT, x).to(first.dtype)
        inside[:, 0] += size * self.right
        return inside, checks - span @ (span.mT @ checks)

    def formed(self, chosen: Tensor) -> Tensor:
        dy, x = (one[chosen] for one in self.parts())
        return (dy.mT @ x).to(self.left.dtype).add_(self.left[chosen, :, None] * self.right[chosen, None])

    def exact(self, chosen: Tensor) -> Tensor:
        """Nuclear norms of some."""
        return nuclear_norms_of_stack(self.formed(chosen))


def nuclear_norms_of(gradients: Summed | Around) -> Tensor:
    """Nuclear norms of the gradients of many networks, [n] in float64.

    In the absolute network these gradients are of rank one up to about 1e-3. So their singular values are taken on the
    span of their products with a few random vectors, and what lies outside is bounded by those with others:
    nuc(rest) <= sqrt(rank) ||rest||_F. Where the bound is above the tolerance, and for few tokens, norms are exact.
    """
    rank = min(gradients.sizes)
    if rank <= 2 * PROBES:
        return gradients.exact(torch.arange(len(gradients[0])))
    inside, outside = gradients.explored()
    norms = _roots((inside @ inside.mT).double())
    bound = (outside.double().pow(2).sum((1, 2)) / CHECKS * rank).sqrt()
    unsure = (bound > TOLERANCE * norms).nonzero()[:, 0]
    if len(unsure):
        norms[unsure] = gradients.exact(unsure)
    return norms


def _orthonormal(vectors: Tensor) -> Tensor:
    """A basis of the span, from the eigenvectors of the small Gram matrix in float64; directions of noise become 0.

    Columns that are nearly parallel need the Gram matrix in float64 too, though one after the other they are what
    float32 resolves. A QR factorisation would do the same, one matrix at a time on a GPU.
    """
    values, rotation = torch.linalg.eigh((vectors.mT @ vectors).double())
    noise = 1e-13 if vectors.dtype == torch.float64 else 1e-6
    scale = torch.where(values > noise * values[:, -1:], values.clamp_min(1e-300).rsqrt(), 0.0)
    basis: Tensor = vectors @ (rotation * scale[:, None]).to(vectors.dtype)
    return basis


def nuclear_norms_of_stack(matrices: Tensor) -> Tensor:
    matrices = matrices.double()
    tall = matrices.shape[1] > matrices.shape[2]
    gram = matrices.transpose(1, 2) @ matrices if tall else matrices @ matrices.transpose(1, 2)
    return _roots(gram)


def _roots(gram: Tensor) -> Tensor:
    values: Tensor = torch.linalg.eigvalsh(gram)
    return values.clamp_min(0).sqrt().sum(-1)


def _probes(x: Tensor, count: int) -> Tensor:
    return _drawn(x.shape[-1], count + CHECKS, x.device, x.dtype)


@lru_cache(maxsize=64)
def _drawn(size: int, count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, count, generator=generator, dtype=torch.float64).to(device, dtype)
