"""Initial weights, by the name a blueprint carries.

| name         | linear weights      | linear biases | patch and pooling convolutions | used by                       |
|--------------|---------------------|---------------|--------------------------------|-------------------------------|
| `autoformer` | normal, std 0.02    | 0             | torch's default                | AutoFormer, ViT-Bench-101     |
| `autoprox`   | torch's default     | torch's       | torch's default                | Auto-Prox's PiT (as PiT's own)|
| `tftas-pit`  | normal, std 0.02    | 0             | normal, std 1; bias torch's    | TF-TAS's public PiT code      |
| `mobilenetv2`| normal, std 0.01    | 0             | normal, variance 2 / fan out   | MobileNetV2, as torchvision's |

Class token, position and relative tables: normal, std 0.02. Norms: weight 1, bias 0. The published codes truncate
the normal at +-2, which is 100 standard deviations: a plain normal. Torch's default is uniform within
+-1 / sqrt(fan in), for weights and biases alike.

The values of a tensor depend on the seed, its name and its shape, and on nothing else: they are drawn on the CPU from
a generator of their own. So a seed gives the same weights on every device, and networks that have a layer in common
have its initial weights in common.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

TOKEN_STD = 0.02
LAYER_SCALE = 0.1
"""CaiT's factor for networks of up to 18 blocks."""


@torch.no_grad()
def initialise(network: nn.Module, scheme: str, generator: torch.Generator | None = None, prefix: str = "") -> None:
    """Fill every parameter. The seed comes from the generator, or from torch's own, as `torch.manual_seed` left it."""
    seed = draw_seed(generator)
    shapes = {f"{prefix}{name}": parameter.shape for name, parameter in network.named_parameters()}
    for name, parameter in network.named_parameters():
        if parameter.device.type != "meta":
            full = f"{prefix}{name}"
            parameter.copy_(initial_values(full, parameter.shape, fan_in(full, shapes), scheme, seed))


def draw_seed(generator: torch.Generator | None) -> int:
    return int(torch.randint(1 << 62, (), generator=generator, device="cpu"))


def fan_in(name: str, shapes: dict[str, torch.Size]) -> int:
    """Inputs of each output of the layer that this weight or bias belongs to."""
    weight = shapes.get(f"{name.rpartition('.')[0]}.weight", shapes[name])
    return weight[1:].numel()


def initial_values(name: str, shape: torch.Size, inputs: int, scheme: str, seed: int) -> Tensor:
    """One tensor, in float32 on the CPU."""
    module, _, leaf = name.rpartition(".")
    kind = module.rpartition(".")[2]
    if kind.startswith("norm"):
        return torch.full(shape, 1.0 if leaf == "weight" else 0.0)
    if scheme == "mobilenetv2":
        return _mobile(name, shape, seed)
    if leaf == "gamma":
        return torch.full(shape, LAYER_SCALE)
    if leaf not in ("weight", "bias"):  # tokens and tables
        return _normal(name, shape, TOKEN_STD, seed)
    convolution = module.endswith(("entry.proj", "entry.conv"))
    if convolution and leaf == "weight" and scheme == "tftas-pit":
        return _normal(name, shape, 1.0, seed)
    if convolution or scheme == "autoprox":
        return torch.empty(shape).uniform_(-(inputs**-0.5), inputs**-0.5, generator=_generator(name, seed))
    return torch.zeros(shape) if leaf == "bias" else _normal(name, shape, TOKEN_STD, seed)


def _mobile(name: str, shape: torch.Size, seed: int) -> Tensor:
    """He et al. 2015, by the outputs that an input reaches: of a convolution of single channels, its kernel's."""
    if len(shape) == 1:
        return torch.zeros(shape)
    if len(shape) == 2:
        return _normal(name, shape, 0.01, seed)
    reached = shape[2:].numel() * (1 if name.endswith("depthwise.weight") else shape[0])
    return _normal(name, shape, (2 / reached) ** 0.5, seed)


def _normal(name: str, shape: torch.Size, std: float, seed: int) -> Tensor:
    return torch.empty(shape).normal_(0.0, std, generator=_generator(name, seed))


def _generator(name: str, seed: int) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
