"""One network of a supernet as a network: what tasks and evaluation call."""

from __future__ import annotations

from typing import Any, Literal, cast

from torch import Tensor, nn

from vitsearch.architecture import Architecture
from vitsearch.models.convolution import as_map
from vitsearch.models.skeleton import Side
from vitsearch.models.supernet import Supernet
from vitsearch.models.vit import feature_info


class Subnet(nn.Module):
    """One network of a supernet as a network. It holds no parameters: they stay the supernet's."""

    def __init__(self, supernet: Supernet, architecture: Architecture, side: Side | None = None) -> None:
        super().__init__()
        self.architecture, self.side = architecture, side
        self._supernet = (supernet,)  # in a tuple, so that it is not a part of this module

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self._supernet[0](x, self.architecture, self.side))

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        return feature_info(self.architecture, self._supernet[0].geometry.image_size)

    def forward_intermediates(
        self, x: Tensor, indices: list[int], norm: Literal[False] = False, output_fmt: Literal["NCHW"] = "NCHW"
    ) -> tuple[Tensor, list[Tensor]]:
        """As timm's transformers give them, for what a teacher's guidance needs."""
        assert len(self._supernet[0].sides) == 1, "features have one side"
        final, found = self._supernet[0].trace(x, self.architecture, indices)
        size, extra = x.shape[-1], int(self.architecture.class_token)
        sides = [round(size / self.feature_info[index]["reduction"]) for index in indices]
        return final, [as_map(tokens[:, extra:], side) for tokens, side in zip(found, sides, strict=True)]

    def forward_head(self, x: Tensor) -> Tensor:
        return self._supernet[0].forward_head(x, self.architecture)

    def train(self, mode: bool = True) -> Subnet:
        super().train(mode)
        self._supernet[0].train(mode)
        return self
