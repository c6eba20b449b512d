"""Formulas on the cached tables: exact values for many networks at once, wherever they follow from branches.

Networks of all columns lie behind one another, [networks, layers]. A formula follows from the table when no operation
must see two matrices, or the result of three operations, element by element: sums, differences, products with
numbers, and products of matrices whose shapes do not agree, which are averaged first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from vitsearch.methods.statistics import SLOTS, Statistics
from vitsearch.proxies.branches import branches, rename
from vitsearch.proxies.expression import Binary, Formula, Input, Node, Unary, is_number, nodes_of, show_node
from vitsearch.proxies.layers import DIGITS, OF_MLP

Array = NDArray[np.float64]
TINY = 1.2e-38


def _positive_log(x: Array) -> Array:
    return np.log(np.where(x > 0, x, np.where(np.isnan(x), x, 1.0)))


NUMBERS: Mapping[str, Callable[[Array], Array]] = {
    "log": _positive_log,
    "abslog": lambda x: _positive_log(np.abs(x)),
    "abs": np.abs,
    "square": np.square,
    "exp": np.exp,
    "normalize": np.zeros_like,
    "relu": lambda x: np.maximum(x, 0.0),
    "invert": lambda x: 1 / (x + 1e-9),
    "frobenius": np.abs,
    "normalized_sum": lambda x: x / (1 + 1e-9),
    "l1": lambda x: np.abs(x) / (1 + 1e-9),
    "softmax": np.ones_like,
    "sigmoid": lambda x: np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), 1 - 1 / (1 + np.exp(-np.abs(x)))),
    "logsoftmax": np.zeros_like,
    "sqrt": lambda x: np.sqrt(np.maximum(x, TINY)) - np.sqrt(TINY),
    "negate": np.negative,
    "minmax": np.zeros_like,
    "mean": np.array,
    "std": np.zeros_like,
    "identity": np.array,
    "sign": np.sign,
    "sum": np.array,
    "max": np.array,
    "min": np.array,
}
"""Unary operations on numbers, as `proxies/operations.py` has them on tensors of no dimension."""


class Numbers:
    """The tables of networks, and what follows from them."""

    def __init__(self, statistics: Iterable[Statistics], most: int = 4000) -> None:
        tables = [(one.table, one.shapes) for one in statistics]  # blocks are let go
        depths = [len(table) for table, _ in tables]
        self.layers = max(depths)
        self.mask = np.arange(self.layers) < np.array(depths)[:, None]
        self.counts = np.array(depths, dtype=np.float64)
        size = (len(SLOTS), len(branches()), len(tables), self.layers)
        self.table = np.full(size, np.nan)
        self.shapes = np.zeros((len(SLOTS), len(tables), self.layers, 2), dtype=np.int64)
        for number, (table, shapes) in enumerate(tables):
            self.table[:, :, number, : depths[number]] = table.permute(1, 2, 0).numpy()
            self.shapes[:, number, : depths[number]] = shapes.permute(1, 0, 2).numpy()
        self._places = {text: place for place, text in enumerate(branches())}
        self._known: dict[tuple[str, str, bool], Array | None] = {}
        self._most = most

    def of_layers(self, formula: Formula) -> Array | None:
        """[networks, layers], NaN behind the last layer; None when the table does not say."""
        variants = ("fc1", "fc2") if formula.inputs & set(OF_MLP) else ("fc1",)
        found = [self._number(formula.tree, which, formula.scalar) for which in variants]
        known = [values for values in found if values is not None]
        if len(known) < len(found):
            return None
        with np.errstate(invalid="ignore"):  # infinities of both signs
            return known[0] if len(known) == 1 else (known[0] + known[1]) / 2

    def of_networks(self, formula: Formula) -> Array | None:
        """[networks], NaN where a layer has no finite value; None when the table does not say."""
        values = self.of_layers(formula)
        return None if values is None else self.put_together(formula.aggregate, values)

    def put_together(self, aggregate: str, values: Array) -> Array:
        with np.errstate(all="ignore"):
            bad = (~np.isfinite(values) & self.mask).any(1)
            if aggregate == "last":
                found = values[np.arange(len(values)), self.counts.astype(int) - 1]
            elif aggregate == "max":
                found = np.where(self.mask, values, -np.inf).max(1)
            else:
                total = np.where(self.mask, values, 0.0).sum(1)
                found = total / self.counts if aggregate == "mean" else total
            return np.where(bad, np.nan, rounded(found))

    def slot(self, name: str, which: str) -> int:
        return SLOTS.index(name.replace("mlp", which) if name in OF_MLP else name)

    def _number(self, node: Node, which: str, scalar: bool) -> Array | None:
        key = (show_node(node), which, scalar)
        if key not in self._known:
            if len(self._known) >= self._most:  # branches repeat; whole formulas do not
                self._known.clear()
            with np.errstate(all="ignore"):
                self._known[key] = self._find(node, which, scalar)
        return self._known[key]

    def _find(self, node: Node, which: str, scalar: bool) -> Array | None:
        leaves = {part.name for part in nodes_of(node) if isinstance(part, Input)}
        if not any(isinstance(part, Binary) for part in nodes_of(node)):
            place = self._places.get(show_node(rename(node, "x")))
            if place is not None:
                found: Array = self.table[self.slot(next(iter(leaves)), which), place]
                return found
        if isinstance(node, Unary):
            return self._unary(node, which, scalar)
        return self._binary(node, which, scalar) if isinstance(node, Binary) else None

    def _unary(self, node: Unary, which: str, scalar: bool) -> Array | None:
        if node.name == "normalize":  # a matrix less its mean, or a number: 0 in the mean
            return np.where(self.mask, 0.0, np.nan)
        linear = node.name in ("mean", "negate", "identity", "normalized_sum")
        if not linear and not is_number(node.of, scalar):
            return None
        below = self._number(node.of, which, scalar)
        return None if below is None else NUMBERS[node.name](below)

    def _binary(self, node: Binary, which: str, scalar: bool) -> Array | None:
        left, right = self._number(node.left, which, scalar), self._number(node.right, which, scalar)
        if left is None or right is None:
            return None
        if node.sign in "+-":
            return left + right if node.sign == "+" else left - right
        matrices = not (scalar or is_number(node.left, scalar) or is_number(node.right, scalar))
        return None if matrices and self._meet(node, which) else left * right

    def _meet(self, node: Binary, which: str) -> bool:
        """Whether two matrices act on each other, in some network."""
        first, second = (self._shape(part, which) for part in (node.left, node.right))
        if first is None or second is None:
            return True
        agree = first[..., 1] == second[..., 0] if node.sign == "@" else (first == second).all(-1)
        return bool((agree & self.mask).any())

    def _shape(self, node: Node, which: str) -> NDArray[np.int64] | None:
        """Of a matrix that is a chain over one input."""
        while isinstance(node, Unary):
            node = node.of
        return self.shapes[self.slot(node.name, which)] if isinstance(node, Input) else None


def rounded(values: Array) -> Array:
    """To `DIGITS` digits, so that what differs by rounding alone is equal."""
    magnitude = np.floor(np.log10(np.where(values == 0, 1.0, np.abs(values))))
    scale = 10.0 ** (DIGITS - 1 - np.clip(np.nan_to_num(magnitude), -280, 280))
    found: Array = np.round(values * scale) / scale
    return found
