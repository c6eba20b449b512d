"""What formulas see: the matrices of every transformer layer, and the value of a formula on them.

A layer holds `qkv.weight`, `proj.weight`, the weights of the MLP's two linear layers, the gradients of all four, and
the activations between the two (`mlp.act`, after the activation function) with their gradients. Activations are
matrices too: a row for each token of each image. Gradients are those of the mean cross-entropy on one batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from vitsearch.architecture import Architecture, Attention
from vitsearch.models.weights import WeightBank
from vitsearch.proxies.base import Subject, linear_roles
from vitsearch.proxies.expression import Formula, Input, Node, Unary
from vitsearch.proxies.operations import UNARY, combine, mean
from vitsearch.proxies.reports import Linear, Report
from vitsearch.proxies.takers import Taker
from vitsearch.proxies.traces import Recorder

Layer: TypeAlias = Mapping[str, Tensor]
"""By name: inputs of formulas, with `fc1.` and `fc2.` in the place of `mlp.` for weights and their gradients."""
DIGITS = 10
"""Of a network's value: what differs by rounding alone is equal."""
OF_MLP = ("mlp.weight", "mlp.grad")
LINEARS = {"attn.qkv": "qkv", "attn.proj": "proj", "mlp.fc1": "fc1", "mlp.fc2": "fc2"}
ACTIVATIONS = {"attn.proj": "attn.act", "mlp.fc2": "mlp.act"}


def needs_of(formula: Formula) -> frozenset[str]:
    """The matrices of a layer that a formula looks at."""
    return frozenset(
        part
        for name in formula.inputs
        for part in ([name.replace("mlp", fc) for fc in ("fc1", "fc2")] if name in OF_MLP else [name])
    )


def layer_value(formula: Formula, layer: Layer) -> float:
    """The formula's value on one layer."""
    variants = ("fc1", "fc2") if formula.inputs & set(OF_MLP) else ("fc1",)
    return sum(float(mean(_evaluate(formula.tree, layer, which, formula.scalar))) for which in variants) / len(variants)


def _evaluate(node: Node, layer: Layer, which: str, scalar: bool) -> Tensor:
    if isinstance(node, Input):
        return layer[node.name.replace("mlp", which) if node.name in OF_MLP else node.name]
    if isinstance(node, Unary):
        return UNARY[node.name](_evaluate(node.of, layer, which, scalar))
    left, right = (_evaluate(part, layer, which, scalar) for part in (node.left, node.right))
    if scalar:
        left, right = mean(left), mean(right)
    return combine(node.sign, left, right)


def put_together(aggregate: str, values: Sequence[float]) -> float:
    """The value of a network from those of its layers; NaN when one of them is not finite."""
    if not all(map(math.isfinite, values)):
        return math.nan
    if aggregate in ("last", "max"):
        value = values[-1] if aggregate == "last" else max(values)
    else:
        value = math.fsum(values) / (len(values) if aggregate == "mean" else 1)
    return float(f"{value:.{DIGITS}g}")


# --- one network, by its modules


class Activations(Recorder):
    """Inputs of some linear layers and their gradients, as matrices [tokens, channels]."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.values: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        for name, module in modules.items():
            self._handles.append(module.register_forward_pre_hook(self._recorder(name)))

    def _recorder(self, name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            x = inputs[0]
            self.values[name] = x.detach().flatten(0, -2)

            def receive(gradient: Tensor) -> None:
                self.gradients[name] = gradient.detach().flatten(0, -2)

            if x.requires_grad:
                self._handles.append(x.register_hook(receive))

        return record


def layers_of(subject: Subject, needs: frozenset[str]) -> list[dict[str, Tensor]]:
    """The layers of any network whose attention and MLP modules take turns."""
    linears = [_linears(block) for block in _blocks(subject)]
    found: list[dict[str, Tensor]] = [{} for _ in linears]
    wanted = {name for name in ACTIVATIONS.values() if name in needs or f"{name}_grad" in needs}
    modules = dict(subject.network.named_modules())
    recorded = {
        names[place][-1]: modules[names[place][-1]]
        for names in linears
        for place, input_name in ACTIVATIONS.items()
        if input_name in wanted
    }
    activations = subject.recorded(Activations(recorded)) if recorded else None
    for layer, names in zip(found, linears, strict=True):
        for place, short in LINEARS.items():
            parts = [f"{name}.weight" for name in names[place]]
            if f"{short}.weight" in needs:
                layer[f"{short}.weight"] = _one_matrix([subject.parameters[part] for part in parts], subject)
            if f"{short}.grad" in needs:
                layer[f"{short}.grad"] = _one_matrix([subject.loss_gradients[part] for part in parts], subject)
            if activations is not None and ACTIVATIONS.get(place) in wanted:
                name = ACTIVATIONS[place]
                layer[name] = activations.values[names[place][-1]]
                layer[f"{name}_grad"] = activations.gradients[names[place][-1]]
    return found


def _one_matrix(parts: Sequence[Tensor], subject: Subject) -> Tensor:
    """Separate q, k and v, one below the other."""
    if len({part.shape[1] for part in parts}) != 1:
        raise subject.undefined("a formula", "its q, k and v are of different widths")
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]


def _blocks(subject: Subject) -> list[tuple[list[str], list[str]]]:
    """Linear layers of each attention module and of the MLP that goes with it, in order."""
    modules: dict[str, dict[str, list[str]]] = {"attention": {}, "mlp": {}}
    for name, role, module in linear_roles(subject.network):
        if role != "other":
            modules[role].setdefault(module, []).append(name)
    attention, mlp = (list(modules[role].values()) for role in ("attention", "mlp"))
    if not attention or len(attention) != len(mlp):
        reason = f"it has {len(attention)} attention and {len(mlp)} MLP modules, which must be pairs"
        raise subject.undefined("a formula", reason)
    return list(zip(attention, mlp, strict=True))


def _linears(block: tuple[list[str], list[str]]) -> dict[str, list[str]]:
    attention, mlp = block
    qkv = [name for name in attention if name.rpartition(".")[2].startswith(("q", "k", "v"))] or attention[:1]
    others = [name for name in attention if name not in qkv] or qkv
    return {"attn.qkv": qkv, "attn.proj": others[-1:], "mlp.fc1": mlp[:1], "mlp.fc2": mlp[-1:]}


def score(formula: Formula, subject: Subject) -> float:
    """A formula's value for a network, one layer after the other."""
    needs = needs_of(formula)
    return put_together(formula.aggregate, [layer_value(formula, layer) for layer in layers_of(subject, needs)])


# --- many networks, in a batched pass


def block_names(plan: Architecture) -> list[str]:
    return [
        f"stages.{index}.blocks.{number}"
        for index, stage in enumerate(plan.stages)
        for number in range(len(stage.blocks))
    ]


class LayerTaker(Taker):
    """Hands over the layers of every network, each as soon as the backward pass has all that is needed of it."""

    def __init__(self, count: int, bank: WeightBank, needs: frozenset[str]) -> None:
        super().__init__(count, bank)
        self.needs = needs
        self._parts: dict[tuple[int, str], dict[str, Tensor]] = {}

    def on_layer(self, network: int, block: str, layer: Layer) -> None:
        """A complete layer of a network."""

    def on_report(self, report: Report) -> None:
        if not isinstance(report, Linear) or report.role == "other":
            return
        block, _, place = report.name.rpartition(".attn." if report.role == "attention" else ".mlp.")
        place = f"{'attn' if report.role == 'attention' else 'mlp'}.{place}"
        found = dict(self._take(report, place))
        for row, network in enumerate(report.networks.tolist()):
            parts = self._parts.setdefault((network, block), {})
            parts |= {name: values if name.endswith(".weight") else values[row] for name, values in found.items()}
            if self.needs <= parts.keys():
                self.on_layer(network, block, self._parts.pop((network, block)))
                self._parts[network, block] = {}

    def _take(self, report: Linear, place: str) -> Iterator[tuple[str, Tensor]]:
        short, name = LINEARS[place], ACTIVATIONS.get(place, "")
        if f"{short}.weight" in self.needs:
            yield f"{short}.weight", report.weight
        if f"{short}.grad" in self.needs:
            yield f"{short}.grad", report.weight_gradient
        if name in self.needs:
            yield name, report.x.flatten(1, -2)
        if f"{name}_grad" in self.needs:
            yield f"{name}_grad", (report.dy @ report.weight).flatten(1, -2)


class FormulaTaker(LayerTaker):
    """Values of a formula."""

    def __init__(self, count: int, bank: WeightBank, formula: Formula, plans: Sequence[Architecture]) -> None:
        super().__init__(count, bank, needs_of(formula))
        self.formula, self.blocks = formula, [block_names(plan) for plan in plans]
        self.found: list[dict[str, float]] = [{} for _ in range(count)]

    def on_layer(self, network: int, block: str, layer: Layer) -> None:
        self.found[network][block] = layer_value(self.formula, layer)

    def scores(self) -> Tensor:
        values = [
            put_together(self.formula.aggregate, [found[block] for block in blocks])
            for found, blocks in zip(self.found, self.blocks, strict=True)
        ]
        return torch.tensor(values, dtype=torch.float64)


def weights_of(plan: Architecture) -> Iterator[tuple[str, dict[str, tuple[int, int]]]]:
    """For each block its name, and the shapes of its weights by short name."""
    for index, stage in enumerate(plan.stages):
        for number, block in enumerate(stage.blocks):
            assert isinstance(block, Attention)
            width, inner, hidden = stage.width, block.heads * block.head_dim, block.hidden
            shapes = {"qkv": (3 * inner, width), "proj": (width, inner), "fc1": (hidden, width), "fc2": (width, hidden)}
            yield f"stages.{index}.blocks.{number}", shapes


def score_weights(formula: Formula, plan: Architecture, bank: WeightBank) -> float:
    """A formula of weights alone, without a pass; each different layer is looked at once."""
    needs = needs_of(formula)
    values = []
    for block, shapes in weights_of(plan):
        used = {place: short for place, short in LINEARS.items() if f"{short}.weight" in needs}
        key = (str(formula), block, tuple(shapes[short] for short in used.values()))
        if key not in bank.noted:
            layer = {
                f"{short}.weight": bank.get(
                    f"{block}.{place}.weight", shapes[short], shapes[short][1], absolute=False, dtype=torch.float32
                )
                for place, short in used.items()
            }
            bank.noted[key] = layer_value(formula, layer)
        values.append(bank.noted[key])
    return put_together(formula.aggregate, values)
