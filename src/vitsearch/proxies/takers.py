"""What each proxy takes from a batched pass, in one small class for each family.

A taker is shown every report of the backward pass, and the inputs of every activation function on the way there. It
adds up one number for each network. The definitions of `saliency.py`, `diversity.py`, `activation.py`, `curvature.py`
and `autoprox.py`, one network at a time, are the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from vitsearch.models.kernels import runs_kernels
from vitsearch.models.weights import WeightBank
from vitsearch.proxies.along import halves
from vitsearch.proxies.reports import Centred, Linear, Pooled, Report, Small, role_of

Term = Callable[[Tensor, Tensor], Tensor]


class Taker:
    """`goes_back` says what is differentiated: the loss, the summed logits, or nothing."""

    goes_back: Literal["loss", "logits"] | None = "loss"
    sees_everything = False
    """Norms, relative tables, tokens and position too, not only linear layers."""
    along = False
    parts = 1
    sees_elements = False
    """Single elements of the gradients of norms, which `GroupPass` has only where it leaves weights as they are."""

    def __init__(self, count: int, bank: WeightBank) -> None:
        self.bank = bank
        self.total = torch.zeros(count, device=bank.device, dtype=torch.float64)

    def keeps_outputs(self, name: str) -> bool:
        """Whether the outputs of the linear layer of this name must still be there in the backward pass."""
        return False

    def on_signs(self, inputs: Tensor, networks: Tensor) -> None:
        """Inputs of an activation function, [n, B, S, channels]."""

    def on_logits(self, logits: Tensor, read: Tensor, weight: Tensor, rounding: float) -> None:
        """Logits [n, rows, classes], what the classifier reads [n, rows, C], and how wrong that may be; its weight."""

    def on_report(self, report: Report) -> None:
        """What the backward pass found of some parameters."""

    def add(self, report: Report, values: Tensor) -> None:
        self.total.index_add_(0, report.networks, values.double())

    def scores(self) -> Tensor:
        """One for each network, NaN where the definition has the last word."""
        return self.total


# --- over parameters


class Magnitudes(Taker):
    """The sum over parameters of a term of gradient and value."""

    term: Term
    sees_elements = True

    def __init__(self, count: int, bank: WeightBank, params: str = "all") -> None:
        super().__init__(count, bank)
        self.linears_alone = params == "linear"
        self.sees_everything = not self.linears_alone

    def on_report(self, report: Report) -> None:
        if not self.linears_alone:
            terms = [self.term(gradient, value).double() for gradient, value in report.gradients]
            if terms:  # not every layer has parameters
                self.add(report, reduce(torch.add, terms))
        elif isinstance(report, Linear) and not report.is_convolution:
            self.add(report, self.term(report.weight_gradient, report.weight))

    @staticmethod
    def sum_of(values: Tensor) -> Tensor:
        return values.flatten(2).sum(2).sum(1, dtype=torch.float64) if values.dim() > 2 else values.sum(1)


def is_half_on_gpu(gradient: Tensor) -> bool:
    """Whether a gradient is float16, on a GPU that runs kernels of ours."""
    return gradient.is_cuda and gradient.dtype == torch.float16 and runs_kernels(gradient.device.index)


class Snip(Magnitudes):
    def term(self, gradient: Tensor, value: Tensor) -> Tensor:
        if is_half_on_gpu(gradient):
            from vitsearch.proxies.rough import magnitudes  # which needs Triton

            return magnitudes(gradient, value)
        return self.sum_of((gradient * value).abs_())


class GradientNorm(Magnitudes):
    def term(self, gradient: Tensor, value: Tensor) -> Tensor:
        wide = torch.promote_types(gradient.dtype, torch.float32)  # a norm in float16 is rounded to float16
        norm: Tensor = torch.linalg.vector_norm(gradient.flatten(1), dim=1, dtype=wide)
        return norm


class LogSynflow(Magnitudes):
    def term(self, gradient: Tensor, value: Tensor) -> Tensor:
        return self.sum_of(gradient.abs().log1p_().mul_(value))


class Plain(Taker):
    """The sum of gradient x value, with its sign."""

    def __init__(self, count: int, bank: WeightBank, params: str = "all") -> None:
        super().__init__(count, bank)
        self.linears_alone = params == "linear"
        self.sees_everything = not self.linears_alone

    def keeps_outputs(self, name: str) -> bool:
        return True

    def on_report(self, report: Report) -> None:
        if not self.linears_alone:
            self.add(report, report.saliency)
        elif isinstance(report, Linear) and not report.is_convolution:
            self.add(report, report.weight_saliency)


class SynapticFlow(Taker):
    """The same over all parameters of an absolute network, where layers nearly cancel, for the summed logits.

    It is their derivative along the scaling of all parameters by 1 + a, which goes forward with the values (see
    `forward_along.py`): no way back, and no sum over layers. In the end it is a product of two vectors, of what the
    classifier reads and of its weights; where these are nearly orthogonal, it is left open.
    """

    goes_back = None
    sees_everything = True
    along = True
    TOLERANCE = 1e-4

    def on_logits(self, logits: Tensor, read: Tensor, weight: Tensor, rounding: float) -> None:
        derivative = halves(logits)[1].sum((1, 2), dtype=torch.float64)
        value, change = halves(read)
        size = torch.linalg.vector_norm(value + change, dim=(1, 2)) * torch.linalg.vector_norm(weight.sum(0))
        self.total += torch.where(rounding * size > self.TOLERANCE * derivative.abs(), math.nan, derivative)


class Saliency(Taker):
    """The sum of gradient x weight over linear layers of some roles."""

    def __init__(self, count: int, bank: WeightBank, roles: tuple[str, ...] = ()) -> None:
        super().__init__(count, bank)
        self.roles = roles

    def keeps_outputs(self, name: str) -> bool:
        return role_of(name) in self.roles

    def on_report(self, report: Report) -> None:
        if isinstance(report, Linear | Centred) and report.role in self.roles:
            assert report.weight_saliency is not None
            self.add(report, report.weight_saliency)


class Diversity(Saliency):
    """Nuclear norm of gradient x that of weight over attention, and saliency over `roles`."""

    def __init__(self, count: int, bank: WeightBank, roles: tuple[str, ...] = (), of_absolute: bool = True) -> None:
        super().__init__(count, bank, roles)
        self.of_absolute = of_absolute

    def on_report(self, report: Report) -> None:
        super().on_report(report)
        if isinstance(report, Linear | Centred) and report.role == "attention":
            shape = tuple(report.weight.shape)
            of_weight = self.bank.nuclear_norm(f"{report.name}.weight", shape, absolute=self.of_absolute)
            self.add(report, report.nuclear_norms * of_weight)


class AutoProxA(Taker):
    """Mean over layers of |QKV gradients| plus that of the sigmoid of MLP gradients."""

    def __init__(self, count: int, bank: WeightBank, norm: str = "mean") -> None:
        super().__init__(count, bank)
        self.mean = norm == "mean"
        self.sums, self.layers = ({role: self.total.clone() for role in ("attention", "mlp")} for _ in range(2))

    def on_report(self, report: Report) -> None:
        if not isinstance(report, Linear) or report.role == "other" or report.name.endswith("attn.proj"):
            return
        gradient = report.weight_gradient
        size = gradient[0].numel()
        if report.role == "attention":
            values = Magnitudes.sum_of(gradient.abs()) / (size if self.mean else 1)
        else:
            values = Magnitudes.sum_of(gradient.sigmoid()) / (size + 1e-9)
        self.sums[report.role].index_add_(0, report.networks, values.double())
        self.layers[report.role].index_add_(0, report.networks, torch.ones_like(values, dtype=torch.float64))

    def scores(self) -> Tensor:
        return self.sums["attention"] / self.layers["attention"] + self.sums["mlp"] / self.layers["mlp"]


class Zico(Taker):
    """Log of the sum of mean / deviation of gradients over parts of the batch, for each linear and convolution."""

    def __init__(self, count: int, bank: WeightBank, batches: str = "2", spread: str = "absolute") -> None:
        super().__init__(count, bank)
        self.parts, self.signed = int(batches), spread == "signed"
        self.sees_everything = True  # for the pooling convolutions

    def on_report(self, report: Report) -> None:
        if not (isinstance(report, Linear) or (isinstance(report, Small) and report.is_convolution)):
            return
        gradients = report.in_parts(self.parts).unbind(1)
        sizes = [gradient.abs() for gradient in gradients]
        spreads = gradients if self.signed else sizes
        mean, center = _mean(sizes), _mean(spreads)
        deviation = _mean([(value - center).square_() for value in spreads]).sqrt_()
        ratios = Magnitudes.sum_of(torch.where(deviation > 0, mean / deviation, 0.0))
        self.add(report, torch.where(ratios > 0, ratios.log(), 0.0))

    def scores(self) -> Tensor:
        return torch.where(self.total == 0, math.nan, self.total)


def _mean(values: Sequence[Tensor]) -> Tensor:
    """One addition after the other: torch's own reductions are slow over so few."""
    return reduce(torch.add, values) / len(values)


# --- over outputs


class Fisher(Taker):
    """Half the mean square, over images, of the sum of activation x gradient, for each channel."""

    sees_everything = True  # for the pooling convolutions

    def keeps_outputs(self, name: str) -> bool:
        return True

    def on_report(self, report: Report) -> None:
        if isinstance(report, (Linear, Pooled)):
            images = report.dy.shape[1]
            per_image = images * report.flow.double()  # the loss is the mean over images
            self.add(report, per_image.square().mean(1).sum(1) / 2)


class Signs(Taker):
    """For every two images, how many units are on for both or off for both; `units` is how many there are."""

    goes_back = None

    def __init__(self, count: int, bank: WeightBank) -> None:
        super().__init__(count, bank)
        self.agreement: Tensor | None = None
        self.units = self.total.clone()

    def on_signs(self, inputs: Tensor, networks: Tensor) -> None:
        codes = (inputs > 0).to(inputs.dtype).flatten(2)
        both, ones = (codes @ codes.mT).double(), codes.sum(2).double()  # exact: counts below 2^24
        agreement = codes.shape[2] - ones[:, :, None] - ones[:, None, :] + 2 * both
        if self.agreement is None:
            self.agreement = self.total.new_zeros(len(self.total), *agreement.shape[1:])
        self.agreement.index_add_(0, networks, agreement)
        self.units[networks] += codes.shape[2]

    @property
    def found(self) -> Tensor:
        assert self.agreement is not None
        return self.agreement.cpu()


class Naswot(Signs):
    def scores(self) -> Tensor:
        found: Tensor = torch.linalg.slogdet(self.found).logabsdet
        return found


class LinearRegions(Signs):
    def scores(self) -> Tensor:
        same = (self.found == self.units.cpu()[:, None, None]).tril(-1).any(2)
        return (~same).sum(1)


class Entropy(Taker):
    """Mean over units of the entropy of being on, over all images and tokens."""

    goes_back = None

    def __init__(self, count: int, bank: WeightBank) -> None:
        super().__init__(count, bank)
        self.channels = self.total.clone()

    def on_signs(self, inputs: Tensor, networks: Tensor) -> None:
        often = (inputs > 0).to(inputs.dtype).mean((1, 2)).double()
        bits = -(torch.xlogy(often, often) + torch.xlogy(1 - often, 1 - often)) / math.log(2.0)
        self.total.index_add_(0, networks, bits.sum(1))
        self.channels[networks] += inputs.shape[-1]

    def scores(self) -> Tensor:
        return self.total / self.channels


# --- curvature and kernel


class Grasp(Taker):
    """- theta^T H g."""

    sees_everything = True
    along = True

    def on_report(self, report: Report) -> None:
        for (gradient, _), turn in zip(report.gradients, report.turns, strict=True):
            self.add(report, -(gradient * turn).flatten(1).sum(1, dtype=torch.float64))


class TangentKernel(Taker):
    """Condition number of J J^T, J the gradient of each image's summed logits."""

    goes_back = "logits"
    sees_everything = True

    def __init__(self, count: int, bank: WeightBank) -> None:
        super().__init__(count, bank)
        self.kernel: Tensor | None = None

    def on_report(self, report: Report) -> None:
        if isinstance(report, Pooled):
            return
        kernel = report.kernel()
        if self.kernel is None:
            self.kernel = self.total.new_zeros(len(self.total), *kernel.shape[1:])
        self.kernel.index_add_(0, report.networks, kernel)

    def scores(self) -> Tensor:
        assert self.kernel is not None
        values: Tensor = torch.linalg.eigvalsh(self.kernel.cpu())
        return values[:, -1] / values[:, 0]
