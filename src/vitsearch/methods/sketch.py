"""Formulas that the tables do not settle, on blocks of the matrices: all layers of one kind at once.

A block stands for its matrix: means, deviations and extremes are its own; sums, norms and softmax know the whole
matrix's shape; a matrix product knows the whole inner size. The sketch is every second row and column of the block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitsearch.methods.numbers import NUMBERS
from vitsearch.methods.statistics import SLOTS, Statistics
from vitsearch.proxies.expression import Formula, Input, Node, Unary
from vitsearch.proxies.layers import OF_MLP
from vitsearch.proxies.operations import EPSILON, no_rounding
from vitsearch.proxies.operations import UNARY as OPERATIONS

Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Of k layers: blocks [k, rows, columns] of matrices of one `shape`, or numbers [k]."""

    values: Tensor
    shape: Shape | None = None

    def mean(self) -> Tensor:
        return self.values if self.shape is None else self.values.mean((1, 2))


@dataclass(slots=True)
class Blocks:
    """Layers with the same shapes, and their blocks by slot."""

    places: list[tuple[int, int]]
    """Network and layer."""
    shapes: dict[str, Shape]
    blocks: dict[str, list[Tensor]] = field(default_factory=dict)
    """As the cache has them, in half precision over `scales`."""
    scales: dict[str, list[Tensor]] = field(default_factory=dict)
    _stacked: dict[str, Tensor] = field(default_factory=dict)
    _sketches: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def of(self, slot: str, stride: int) -> Sampled:
        """Sketches, which most formulas are judged on, are kept in single precision too."""
        if (slot, stride) in self._sketches:
            return Sampled(self._sketches[slot, stride], self.shapes[slot])
        if slot not in self._stacked:
            self._stacked[slot] = torch.stack(self.blocks.pop(slot))
        scales = torch.stack(self.scales[slot])[:, None, None]
        found = self._stacked[slot][:, ::stride, ::stride].float().mul_(scales).contiguous()
        if stride > 1:
            self._sketches[slot, stride] = found
        return Sampled(found, self.shapes[slot])


class Sketches:
    """The blocks of networks, [networks, layers]."""

    def __init__(self, statistics: Iterable[Statistics]) -> None:
        groups: dict[tuple[Shape, ...], Blocks] = {}
        for number, one in enumerate(statistics):
            for layer in range(len(one.table)):
                shapes = tuple((int(rows), int(columns)) for rows, columns in one.shapes[layer].tolist())
                group = groups.setdefault(shapes, Blocks([], dict(zip(SLOTS, shapes, strict=True))))
                group.places.append((number, layer))
                for at, slot in [(at, slot) for at, slot in enumerate(SLOTS) if (layer, slot) in one.blocks]:
                    group.blocks.setdefault(slot, []).append(one.blocks[layer, slot])
                    group.scales.setdefault(slot, []).append(one.scales[layer, at])
        self.groups = list(groups.values())
        places = [place for group in self.groups for place in group.places]
        self.size = (1 + max(number for number, _ in places), 1 + max(layer for _, layer in places))

    def of_layers(self, formula: Formula, stride: int = 1) -> NDArray[np.float64]:
        """[networks, layers], NaN behind the last layer; stride 2 is the sketch."""
        found = np.full(self.size, np.nan)
        variants = ("fc1", "fc2") if formula.inputs & set(OF_MLP) else ("fc1",)
        for group in self.groups:
            values = [
                evaluate(formula.tree, group, which, formula.scalar, stride).mean().double() for which in variants
            ]
            networks, layers = zip(*group.places, strict=True)
            found[list(networks), list(layers)] = torch.stack(values).mean(0).numpy()
        return found


def evaluate(node: Node, group: Blocks, which: str, scalar: bool, stride: int) -> Sampled:
    if isinstance(node, Input):
        return group.of(node.name.replace("mlp", which) if node.name in OF_MLP else node.name, stride)
    if isinstance(node, Unary):
        return _unary(node.name, evaluate(node.of, group, which, scalar, stride))
    left, right = (evaluate(part, group, which, scalar, stride) for part in (node.left, node.right))
    if scalar:
        left, right = Sampled(left.mean()), Sampled(right.mean())
    return _combine(node.sign, left, right)


def _unary(name: str, of: Sampled) -> Sampled:
    if of.shape is None:
        with np.errstate(all="ignore"):
            return Sampled(torch.from_numpy(NUMBERS[name](of.values.double().numpy())))
    rows, size = of.shape[0], of.shape[0] * of.shape[1]
    x = of.values
    match name:
        case "mean" | "normalized_sum" | "sum":
            return Sampled(of.mean() * (size if name == "sum" else 1))
        case "l1":
            return Sampled(x.abs().mean((1, 2)))
        case "frobenius":
            return Sampled((x.square().mean((1, 2)) * size).sqrt())
        case "std":
            return Sampled(_deviation(x).flatten())
        case "max" | "min":
            return Sampled(x.amax((1, 2)) if name == "max" else x.amin((1, 2)))
        case "normalize":
            deviation = _deviation(x)
            return Sampled(torch.where(deviation > 0, (x - x.mean((1, 2), keepdim=True)) / deviation, 0.0), of.shape)
        case "minmax":
            low, high = x.amin((1, 2), keepdim=True), x.amax((1, 2), keepdim=True)
            return Sampled((x - low) / (high - low + EPSILON), of.shape)
        case "softmax":
            return Sampled(x.softmax(1) * (x.shape[1] / rows), of.shape)
        case "logsoftmax":
            return Sampled(x.log_softmax(1) + math.log(x.shape[1] / rows), of.shape)
    return Sampled(OPERATIONS[name](x), of.shape)


def _deviation(x: Tensor) -> Tensor:
    """[k, 1, 1]"""
    return no_rounding(x.std((1, 2), keepdim=True), x.mean((1, 2), keepdim=True), x.dtype)


def _combine(sign: str, left: Sampled, right: Sampled) -> Sampled:
    """As `operations.combine` has it on whole matrices."""
    first, second = left.shape, right.shape
    matrices = first is not None and second is not None
    if sign == "@" and first is not None and second is not None and first[1] == second[0]:
        if left.values.shape[2] != right.values.shape[1]:  # other elements: nothing can be said
            return Sampled(torch.full((len(left.values),), math.nan))
        factor = first[1] / left.values.shape[2]
        dtype = torch.promote_types(left.values.dtype, right.values.dtype)
        return Sampled(left.values.to(dtype) @ right.values.to(dtype) * factor, (first[0], second[1]))
    if matrices and (sign == "@" or first != second):
        left, right = Sampled(left.mean()), Sampled(right.mean())
    a, b = left.values, right.values
    if a.dim() != b.dim():
        a, b = (x.double() if x.dim() > 1 else x[:, None, None].double() for x in (a, b))
    found = a + b if sign == "+" else a - b if sign == "-" else a * b
    return Sampled(found, left.shape if left.shape is not None else right.shape)
