"""timm's Muon and AdaMuon, with all matrices of one shape at once.

timm goes through the matrices one after the other, some forty kernels each: for the thousand small networks of a
search that is longer than the training step itself. The state and the arithmetic are timm's.
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


class GroupedMuon(Muon):  # type: ignore[misc]
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Matrices here; timm's own step skips what has no gradient any more, and does the vectors."""
        assert closure is None, "the trainer computes gradients beforehand"
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None and is_suitable(parameter):
                    alike[parameter.shape].append(parameter)
            for matrices in alike.values():
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
            scale, directions = self._adapted(group, matrices, directions)
        else:
            scale = get_lr_scale(updates[0].flatten(1).shape, group["adjust_lr_fn"] or "original")
        torch._foreach_add_(matrices, directions, alpha=-group["lr"] * scale)

    def _adapted(
        self, group: dict[str, Any], matrices: list[Tensor], directions: list[Tensor]
    ) -> tuple[float, list[Tensor]]:
        """AdaMuon: each direction over the root of its running mean of squares, and to a norm that fits its size."""
        squares, beta = self._state(matrices, "exp_avg_sq"), group["betas"][1]
        steps = [self.state[matrix].setdefault("step", torch.tensor(0.0)) for matrix in matrices]
        torch._foreach_add_(steps, 1)
        torch._foreach_mul_(squares, beta)
        torch._foreach_addcmul_(squares, directions, directions, value=1 - beta)
        scale, by_norm = 1.0, False
        if group["adjust_lr_fn"]:
            scale, by_norm = get_adamuon_lr_scale(directions[0].flatten(1).shape, group["adjust_lr_fn"])
        corrected = squares if by_norm else torch._foreach_div(squares, 1 - beta ** float(steps[0]))
        roots = torch._foreach_sqrt(corrected)
        torch._foreach_add_(roots, group["eps"])
        adapted = torch._foreach_div(directions, roots)
        if by_norm:
            norms = torch._foreach_norm(adapted)
            torch._foreach_add_(norms, group["eps"])
            torch._foreach_div_(adapted, norms)
        return scale, list(adapted)

    def _state(self, matrices: Sequence[Tensor], name: str) -> list[Tensor]:
        for matrix in matrices:
            state = self.state[matrix]
            state.setdefault("use_muon", True)
            if name not in state:
                state[name] = torch.zeros_like(matrix)
        return [self.state[matrix][name] for matrix in matrices]


def orthogonal(group: dict[str, Any], updates: Sequence[Tensor]) -> list[Tensor]:
    """Newton-Schulz on all of them together; convolutions as [out, in * k * k]."""
    whole = zeropower_via_newtonschulz(
        torch.stack([update.flatten(1) for update in updates]),
        group["ns_steps"],
        resolve_ns_coefficients(group["ns_coefficients"], COEFFICIENTS),
        eps=group["eps"],
        safety_factor=group["safety_factor"],
        scale_eps=group["scale_eps"],
    )
    return [one.reshape(updates[0].shape) for one in whole.float()]
