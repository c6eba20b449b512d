"""Proxies that look at which units are on: the sign of every MLP's pre-activation, or of a CNN's activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitsearch.proxies.base import Subject, full_precision, proxy
from vitsearch.proxies.traces import Signs

SEES_SIGNS: dict[str, Any] = {"needs_data": True, "traces": ("signs",)}


def _signs(subject: Subject, name: str) -> Signs:
    signs: Signs = subject.trace("signs")
    if not signs.layers:
        raise subject.undefined(name, "it has no activation modules")
    return signs


@proxy("naswot", paper="Mellor et al., Neural Architecture Search without Training, ICML 2021", **SEES_SIGNS)
def naswot(subject: Subject) -> float:
    """Log-determinant of the kernel of agreeing signs between images."""
    return float(torch.linalg.slogdet(_signs(subject, "naswot").agreement).logabsdet)


@proxy("linear_regions", paper="Chen et al., TE-NAS, ICLR 2021; Xiong et al., ICML 2020", **SEES_SIGNS)
def linear_regions(subject: Subject) -> float:
    """Number of different patterns of signs among the images of the batch."""
    signs = _signs(subject, "linear_regions")
    same = signs.agreement == signs.units
    return sum(not bool(same[number, :number].any()) for number in range(len(same)))


@proxy(
    "entropy",
    paper="after Cavagnero et al., Entropic Score metric, ICCV workshops 2023: here of the signs",
    **SEES_SIGNS,
)
def entropy(subject: Subject) -> float:
    """Mean over units of the entropy, in bits, of being on, over all images and tokens."""
    return float(_signs(subject, "entropy").entropies.mean())


@proxy("zen", paper="Lin et al., Zen-NAS, ICCV 2021")
def zen(subject: Subject) -> float:
    """Log of the mean change of the features under a small change of a noise image, plus log of BatchNorm's scales."""
    no_norm = subject.undefined("zen", "it has no BatchNorm, whose variances the score is corrected by")
    if subject.architecture is not None and subject.architecture.final_norm:  # none inside: nothing need be built
        raise no_norm
    network = subject.network
    norms = [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        raise no_norm
    features = getattr(network, "forward_features", None)
    if not callable(features):
        raise subject.undefined("zen", "it has no features before the pooling")
    generator, side = torch.Generator().manual_seed(0), subject.geometry.image_size
    shape = (16, subject.geometry.channels, side, side)
    images, change = (torch.randn(shape, generator=generator).to(subject.device) for _ in range(2))
    deviations: list[Tensor] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        variance = inputs[0].var([0, *range(2, inputs[0].dim())], unbiased=False)
        deviations.append(variance.double().mean().sqrt())

    def run(x: Tensor) -> Tensor:
        """With the statistics of the batch, which stay what they were."""
        buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
        given = {f"network.{name}": buffer for name, buffer in buffers.items()}
        found: Tensor = torch.func.functional_call(_Features(network), given, (x,))
        return found

    handles = []
    try:
        for module in norms:
            module.train()
        with torch.no_grad(), full_precision():
            changed = run(images + 0.01 * change)
            handles = [module.register_forward_pre_hook(record) for module in norms]
            kept = run(images)
    finally:
        network.eval()
        for handle in handles:
            handle.remove()
    difference = (kept - changed).double().abs().flatten(1).sum(1).mean()
    return float(difference.log() + torch.stack(deviations).log().sum())


class _Features(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.network.forward_features(x)
        return found
