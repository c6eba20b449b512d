"""All branches of two unary operations over one matrix at once: numbers, each branch averaged at its end.

Of the 24 x 24 branches about 350 are different and not constant. Most follow from six reductions of the 16 matrices
that one operation gives; the others need one more pass each, in pieces that stay in the processor's cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from vitsearch.proxies.expression import INPUTS, UNARY, Formula, Input, Node, Unary, constant, is_number, show_node
from vitsearch.proxies.operations import EPSILON
from vitsearch.proxies.operations import UNARY as OPERATIONS

X = Input("x")
PIECE = 1 << 16


def chain(*names: str) -> Node:
    """Operations over the one matrix, the first named first."""
    node: Node = X
    for name in names:
        node = Unary(name, node)
    return node


@lru_cache(maxsize=1)
def branches() -> dict[str, Node]:
    """The different branches of at most two operations by their canonical text, without those that are constant."""
    found: dict[str, Node] = {}
    for first in UNARY:
        for second in UNARY:
            node = Formula(tree=chain(first, second)).simplified().tree
            if not constant(node) and not _flat(node):
                found.setdefault(show_node(node), node)
    return found


def _flat(node: Node) -> bool:
    """The mean of what has the mean 0."""
    return isinstance(node, Unary) and node.name == "normalize"


def rename(node: Node, name: str) -> Node:
    """The branch over an input of this name; `x` for the one matrix here."""
    return Input(name) if isinstance(node, Input) else Unary(node.name, rename(node.of, name))  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True)
class Reduced:
    """What a matrix says in six numbers."""

    size: int
    rows: int
    total: float
    absolute: float
    frobenius: float
    std: float
    low: float
    high: float

    @classmethod
    def of(cls, x: Tensor) -> Reduced:
        total = absolute = squares = spread = 0.0
        low, high = math.inf, -math.inf
        pieces = torch.split(x, max(1, PIECE // x.shape[1]))
        for piece in pieces:
            total += float(piece.sum(-1).double().sum())
            absolute += float(piece.abs().sum(-1).double().sum())
            squares += float(torch.linalg.vector_norm(piece, dim=-1).double().square().sum())
            smallest, largest = torch.aminmax(piece)
            low, high = min(low, float(smallest)), max(high, float(largest))
        center = total / x.numel()
        for piece in pieces:
            spread += float(torch.linalg.vector_norm(piece - center, dim=-1).double().square().sum())
        if math.isnan(total):
            low = high = math.nan
        std = math.sqrt(spread / (x.numel() - 1))
        if std <= torch.finfo(x.dtype).eps * abs(center):  # as `operations.no_rounding` has it
            std = 0.0
        return cls(x.numel(), len(x), total, absolute, math.sqrt(squares), std, low, high)

    @property
    def mean(self) -> float:
        return self.total / self.size

    def number(self, name: str) -> float:
        """The value of an operation that makes a number of a matrix."""
        numbers = {"mean": self.mean, "sum": self.total, "max": self.high, "min": self.low}
        return (numbers | {"frobenius": self.frobenius, "std": self.std})[name]

    def mean_of(self, name: str) -> float | None:
        """The mean after an operation, where it follows from the reductions."""
        if name == "relu":
            return (
                self.mean if self.low >= 0 else 0.0 if self.high <= 0 else (self.absolute + self.total) / 2 / self.size
            )
        if name in ("sqrt", "log") and self.high <= 0:
            return 0.0
        if name == "sign" and (self.low > 0 or self.high < 0):
            return 1.0 if self.low > 0 else -1.0
        follows = {
            "abs": lambda: self.absolute / self.size,
            "negate": lambda: -self.mean,
            "square": lambda: self.frobenius**2 / self.size,
            "softmax": lambda: 1 / self.rows,
            "minmax": lambda: (self.mean - self.low) / (self.high - self.low + EPSILON),
        }
        return follows[name]() if name in follows else None


class Branches:
    """Values of all branches over one matrix [rows, columns]."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self._matrices: dict[Node, Tensor] = {X: x}
        self._reduced: dict[Node, Reduced] = {}
        self._numbers: dict[Node, float] = {}

    def values(self) -> list[float]:
        """In the order of `branches`; what is not finite stays so."""
        found: dict[str, float] = {}
        kept = None
        for text, node in sorted(branches().items(), key=lambda item: show_node(_matrix_below(item[1]))):
            below = _matrix_below(node)
            if below != kept:  # one matrix beside x at a time
                self._matrices = {X: self.x}
                kept = below
            found[text] = self.number(node)
        return [found[text] for text in branches()]

    def matrix(self, node: Node) -> Tensor:
        if node not in self._matrices:
            assert isinstance(node, Unary)
            self._matrices[node] = OPERATIONS[node.name](self.matrix(node.of))
        return self._matrices[node]

    def reduced(self, node: Node) -> Reduced:
        if node not in self._reduced:
            self._reduced[node] = Reduced.of(self.matrix(node))
        return self._reduced[node]

    def number(self, node: Node) -> float:
        """The branch's value, averaged where it is a matrix."""
        if node not in self._numbers:
            self._numbers[node] = self._find(node)
        return self._numbers[node]

    def _find(self, node: Node) -> float:
        if not isinstance(node, Unary):
            return self.reduced(node).mean
        if is_number(node.of):
            return float(OPERATIONS[node.name](torch.tensor(self.number(node.of), dtype=torch.float64)))
        if is_number(node):
            return self.reduced(node.of).number(node.name)
        known = self.reduced(node.of).mean_of(node.name)
        if known is not None:
            return known
        x, reduced = self.matrix(node.of), self.reduced(node.of)
        if node.name in ("exp", "logsoftmax"):
            exponential = Unary("exp", node.of)
            self._numbers[exponential], logarithm = _exponentials(x, reduced)
            return self._numbers[exponential] if node.name == "exp" else logarithm
        pieces = torch.split(x, max(1, PIECE // x.shape[1]))
        return sum(float(OPERATIONS[node.name](piece).sum(-1).double().sum()) for piece in pieces) / x.numel()


def _exponentials(x: Tensor, reduced: Reduced) -> tuple[float, float]:
    """The mean of exp, and of log softmax: the mean less that of log sum exp over the rows."""
    if not (reduced.low > -60 and reduced.high < 60):
        return float(x.exp().sum(-1).double().sum()) / x.numel(), reduced.mean - float(x.logsumexp(0).double().mean())
    sums = torch.zeros(x.shape[1], dtype=torch.float64)
    for piece in torch.split(x, max(1, PIECE // x.shape[1])):
        sums += piece.exp().sum(0)
    return float(sums.sum()) / x.numel(), reduced.mean - float(sums.log().mean())


def _matrix_below(node: Node) -> Node:
    """The matrix that the last pass goes over."""
    while isinstance(node, Unary) and (is_number(node.of) or not isinstance(node.of, Unary)):
        if not isinstance(node.of, Unary):
            return node.of
        node = node.of
    return node.of if isinstance(node, Unary) else node


__all__ = ["INPUTS", "Branches", "branches", "chain", "rename"]
