"""timm's Muon and AdaMuon, with all matrices at once.

timm goes through the matrices one after the other, some forty kernels each, which takes longer than the training step
of a small network. Here everything but the Newton-Schulz iteration is one kernel for all of them, and the iteration
one for all matrices of one shorter side: zeros beside a matrix stay zeros. State and arithmetic are timm's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from timm.optim.muon import _COEFFICIENTS as COEFFICIENTS
from timm.optim.muon import (
    Muon,
    get_adamuon_lr_scale,
    get_lr_scale,
    resolve_ns_coefficients,
    zeropower_via_newtonschulz,
)
from timm.optim.muon import _is_suitable_for_muon as is_suitable
from torch import Tensor
from torch.nn.functional import pad


class GroupedMuon(Muon):  # type: ignore[misc]
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Matrices here; timm's own step skips what has no gradient any more, and does the vectors."""
        assert closure is None, "the trainer computes gradients beforehand"
        for group in self.param_groups:
            matrices = [one for one in group["params"] if one.grad is not None and is_suitable(one)]
            if matrices:
                self._update(group, matrices)
            for matrix in matrices:
                matrix.grad = None
        return super().step()

    def _update(self, group: dict[str, Any], matrices: list[Tensor]) -> None:
        momentum = group["momentum"]
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        held = self._state(matrices, "momentum_buffer")
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_lerp_(held, gradients, 1 - momentum)
        updates = torch._foreach_lerp(gradients, held, momentum) if group["nesterov"] else held
        directions = orthogonal(group, updates)
        if group["algo"] == "adamuon":
            scales = self._adapt(group, matrices, directions)
        else:
            scales = [get_lr_scale(one.flatten(1).shape, group["adjust_lr_fn"] or "original") for one in updates]
        torch._foreach_mul_(directions, [-group["lr"] * scale for scale in scales])
        torch._foreach_add_(matrices, directions)

    def _adapt(self, group: dict[str, Any], matrices: list[Tensor], directions: list[Tensor]) -> list[float]:
        """AdaMuon: each direction over the root of its running mean of squares, and to a norm that fits its size."""
        squares, beta = self._state(matrices, "exp_avg_sq"), group["betas"][1]
        steps = [self.state[matrix].setdefault("step", torch.tensor(0.0)) for matrix in matrices]
        torch._foreach_add_(steps, 1)
        torch._foreach_mul_(squares, beta)
        torch._foreach_addcmul_(squares, directions, directions, value=1 - beta)
        scales, by_norm = [1.0] * len(matrices), False
        if group["adjust_lr_fn"]:
            found = [get_adamuon_lr_scale(one.flatten(1).shape, group["adjust_lr_fn"]) for one in directions]
            scales, by_norm = [scale for scale, _ in found], found[0][1]
        corrected = squares if by_norm else torch._foreach_div(squares, [1 - beta ** float(step) for step in steps])
        roots = torch._foreach_sqrt(corrected)
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_div_(directions, roots)
        if by_norm:
            norms = torch._foreach_norm(directions)
            torch._foreach_add_(norms, group["eps"])
            torch._foreach_div_(directions, norms)
        return scales

    def _state(self, matrices: Sequence[Tensor], name: str) -> list[Tensor]:
        for matrix in matrices:
            state = self.state[matrix]
            state.setdefault("use_muon", True)
            if name not in state:
                state[name] = torch.zeros_like(matrix)
        return [self.state[matrix][name] for matrix in matrices]


def orthogonal(group: dict[str, Any], updates: Sequence[Tensor]) -> list[Tensor]:
    """Newton-Schulz on all of them; convolutions as [out, in * k * k]."""
    alike: dict[Any, list[int]] = defaultdict(list)
    for number, update in enumerate(updates):
        shape = update.flatten(1).shape
        alike[shape if group["scale_eps"] else min(shape)].append(number)  # its epsilon is one of the shape
    found: dict[int, Tensor] = {}
    for numbers in alike.values():
        flat = [updates[number].flatten(1) for number in numbers]
        wide = [one if one.shape[0] <= one.shape[1] or group["scale_eps"] else one.mT for one in flat]
        longest = max(one.shape[1] for one in wide)
        whole = zeropower_via_newtonschulz(
            torch.stack([pad(one, (0, longest - one.shape[1])) for one in wide]),
            group["ns_steps"],
            resolve_ns_coefficients(group["ns_coefficients"], COEFFICIENTS),
            eps=group["eps"],
            safety_factor=group["safety_factor"],
            scale_eps=group["scale_eps"],
        ).float()
        turned = whole.mT.contiguous()
        for place, (number, one, own) in enumerate(zip(numbers, flat, wide, strict=True)):
            length = own.shape[1]
            cut = whole[place, :, :length] if own is one else turned[place, :length]
            found[number] = cut.contiguous().view(updates[number].shape)
    return [found[number] for number in range(len(updates))]
