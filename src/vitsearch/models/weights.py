"""Initial weights by name, made once for each distinct tensor and kept on the device.

`fresh`: each network has its own initial weights; a tensor depends on (seed, name, shape), as `build` has it.
`shared`: each network is cut from one supernet with the initial weights of the seed: the first rows and columns of
every tensor, as AutoFormer's weight entanglement has it. In the supernet the rows of q, k and v take turns, so that a
network with fewer heads has the first ones of each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from threading import RLock
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from vitsearch.architecture import Architecture
from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.models.initialise import draw_seed, fan_in, initial_values
from vitsearch.models.skeleton import cut
from vitsearch.models.vit import build

WEIGHTS = ("fresh", "shared")
Key = tuple[str, tuple[int, ...], int]
Form: TypeAlias = Literal["plain", "inputs", "outputs", "apart"]
"""A weight [outputs, inputs] as it is; less its mean over inputs, or over outputs; `apart` has that last mean below it,
as one more output. A bias [outputs] goes with the outputs."""


def check_weights(weights: str) -> str:
    if weights not in WEIGHTS:
        raise VitsearchError(f"`weights` must be one of {', '.join(WEIGHTS)}, but got {weights!r}")
    return weights


class WeightBank:
    """The initial values of every tensor that networks ask for, within a bound on memory.

    With an `envelope`, the blueprint of a supernet, the weights are shared; without one they are fresh.
    """

    def __init__(
        self,
        scheme: str,
        seed: int,
        device: torch.device,
        nuclear_norms: Callable[[Sequence[Tensor]], Tensor],
        most_bytes: int,
        envelope: Architecture | None = None,
        geometry: Geometry | None = None,
    ) -> None:
        self.scheme, self.device = scheme, device
        self._lock = RLock()  # several threads may ask at once
        self.seed = draw_seed(torch.Generator().manual_seed(seed))
        self._nuclear_norms, self._most_bytes, self._bytes = nuclear_norms, most_bytes, 0
        self._tensors: dict[tuple[Key, bool, torch.dtype, Form], Tensor] = {}
        self._numbers: dict[tuple[str, Key, bool], float] = {}
        self.noted: dict[Hashable, float] = {}
        """Numbers of several weights together, which whoever finds them notes."""
        self._whole: dict[str, Tensor] = {}
        self._shapes: dict[str, torch.Size] | None = None
        if envelope is not None:
            with torch.device("meta"):
                supernet = build(envelope, geometry or Geometry())
            self._shapes = {name: parameter.shape for name, parameter in supernet.named_parameters()}

    def get(
        self,
        name: str,
        shape: tuple[int, ...],
        inputs: int,
        *,
        absolute: bool,
        dtype: torch.dtype,
        form: Form = "plain",
    ) -> Tensor:
        """The tensor, or its absolute values. `inputs` is the fan-in of its layer."""
        key = ((name, shape, inputs), absolute, dtype, form)
        with self._lock:
            if key not in self._tensors:
                values = self._values(name, shape, inputs)
                values = formed(values.abs() if absolute else values, form).to(self.device, dtype)
                self._bytes += values.nbytes
                if self._bytes > self._most_bytes:  # all are made again when they are asked for
                    self._tensors.clear()
                    self._bytes = values.nbytes
                self._tensors[key] = values
            return self._tensors[key]

    def number(
        self, what: str, name: str, shape: tuple[int, ...], find: Callable[[Tensor], Tensor], *, absolute: bool = False
    ) -> float:
        """A number of a weight, found once."""
        key = (what, (name, shape, shape[-1]), absolute)
        with self._lock:
            if key not in self._numbers:
                self._numbers[key] = float(find(self.get(*key[1], absolute=absolute, dtype=torch.float32)))
            return self._numbers[key]

    def nuclear_norm(self, name: str, shape: tuple[int, ...], *, absolute: bool) -> float:
        return self.number("nuclear norm", name, shape, lambda w: self._nuclear_norms([w])[0], absolute=absolute)

    def network(self, plan: Architecture, geometry: Geometry) -> nn.Module:
        """A network with these weights. They are not copied: networks with a layer in common share its memory."""
        made = build(plan, geometry, draw_weights=False)
        shapes = {name: parameter.shape for name, parameter in made.named_parameters()}
        for name, parameter in made.named_parameters():
            shape = tuple(parameter.shape)
            parameter.data = self.get(name, shape, fan_in(name, shapes), absolute=False, dtype=torch.float32)
        return made

    def _values(self, name: str, shape: tuple[int, ...], inputs: int) -> Tensor:
        if self._shapes is None:
            return initial_values(name, torch.Size(shape), inputs, self.scheme, self.seed)
        if name not in self._whole:
            whole = self._shapes[name]
            self._whole[name] = initial_values(name, whole, fan_in(name, self._shapes), self.scheme, self.seed)
        return cut(name, self._whole[name], shape).contiguous()


def formed(values: Tensor, form: Form) -> Tensor:
    """In float64, but for what stays as it is."""
    if form == "plain" or (form == "inputs" and values.dim() == 1):
        return values
    wide = values.double()
    mean = wide.mean(1 if form == "inputs" else 0, keepdim=True)
    return torch.cat([wide - mean, mean]) if form == "apart" else wide - mean
