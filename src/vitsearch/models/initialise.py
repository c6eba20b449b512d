"""Initial weights, by the name a blueprint carries.

| name         | linear weights      | linear biases | patch and pooling convolutions | used by                       |
|--------------|---------------------|---------------|--------------------------------|-------------------------------|
| `autoformer` | normal, std 0.02    | 0             | torch's default                | AutoFormer, ViT-Bench-101     |
| `autoprox`   | torch's default     | torch's       | torch's default                | Auto-Prox's PiT (as PiT's own)|
| `tftas-pit`  | normal, std 0.02    | 0             | normal, std 1; bias torch's    | TF-TAS's public PiT code      |

Class token, position and relative tables: normal, std 0.02. Norms: weight 1, bias 0. The published codes truncate
the normal at +-2, which is 100 standard deviations: a plain normal. Torch's default is uniform within
+-1 / sqrt(fan in), for weights and biases alike. Values are drawn on the CPU in the order of `named_modules`, so a
seed gives the same weights on every device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

TOKEN_STD = 0.02


@torch.no_grad()
def initialise(network: nn.Module, scheme: str, generator: torch.Generator | None = None) -> None:
    """Fill every parameter. Without a generator, torch's own CPU generator is used, as `torch.manual_seed` left it."""
    for module in network.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear) and scheme != "autoprox":
            _normal(module.weight, TOKEN_STD, generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.Linear, nn.Conv2d)):
            bound = module.weight[0].numel() ** -0.5
            if scheme == "tftas-pit":
                _normal(module.weight, 1.0, generator)
            else:
                _uniform(module.weight, bound, generator)
            if module.bias is not None:
                _uniform(module.bias, bound, generator)
        for parameter in module.parameters(recurse=False):
            if not isinstance(module, (nn.LayerNorm, nn.Linear, nn.Conv2d)):
                _normal(parameter, TOKEN_STD, generator)


def _normal(tensor: Tensor, std: float, generator: torch.Generator | None) -> None:
    _draw(tensor, lambda target: target.normal_(0.0, std, generator=generator))


def _uniform(tensor: Tensor, bound: float, generator: torch.Generator | None) -> None:
    _draw(tensor, lambda target: target.uniform_(-bound, bound, generator=generator))


def _draw(tensor: Tensor, fill: Callable[[Tensor], Tensor]) -> None:
    if tensor.device.type == "meta":
        return
    if tensor.device.type == "cpu":
        fill(tensor)
    else:
        tensor.copy_(fill(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")))
