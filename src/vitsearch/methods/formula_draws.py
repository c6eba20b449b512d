"""Random formulas, and random changes to them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from vitsearch.architecture import brief, check_whole
from vitsearch.errors import VitsearchError
from vitsearch.proxies.expression import (
    AGGREGATES,
    BINARY,
    DEEPEST,
    INPUTS,
    UNARY,
    Binary,
    Formula,
    Input,
    Node,
    Unary,
    depth_of,
    nodes_of,
    parts_of,
)

SIGNS = (0.6, 0.3, 0.05, 0.05)
"""How often each binary operation is drawn, as in the same authors' later code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """Which formulas there are: the paper's two branches of two operations, or trees up to `depth` operations."""

    branches: str = "matrix"
    """`matrix`: binary operations act on matrices; `scalar`: on the means of the branches."""
    aggregates: tuple[str, ...] = ("mean",)
    inputs: tuple[str, ...] = INPUTS
    depth: int = 3
    """Operations on the longest way down; above 3 the shape of a tree is drawn and changed too."""

    def __post_init__(self) -> None:
        if self.branches not in ("matrix", "scalar"):
            raise VitsearchError(f"`branches` must be matrix or scalar, but got {brief(self.branches)}")
        for name in self.aggregates:
            if name not in AGGREGATES:
                raise VitsearchError(f"`aggregate` must be one of {', '.join(AGGREGATES)}, but got {brief(name)}")
        for name in self.inputs:
            if name not in INPUTS:
                raise VitsearchError(f"`inputs` must be among {', '.join(INPUTS)}, but got {brief(name)}")
        check_whole("depth", self.depth, least=3, most=DEEPEST)

    def draw(self, random: Random) -> Formula:
        aggregate = random.choice(self.aggregates)
        tree = self._two_branches(random) if self.depth == 3 else self._tree(random, self.depth)
        return Formula(tree=tree, aggregate=aggregate, scalar=self.branches == "scalar")

    def _two_branches(self, random: Random) -> Node:
        left, right = (Unary(random.choice(UNARY), Unary(random.choice(UNARY), self._input(random))) for _ in range(2))
        return Binary(_sign(random), left, right)

    def _tree(self, random: Random, most: int) -> Node:
        """A binary operation half of the time while there is room, else a branch."""
        if most >= 2 and random.random() < 0.5:
            node: Node = Binary(_sign(random), self._tree(random, most - 1), self._tree(random, most - 1))
            return Unary(random.choice(UNARY), node) if most >= 3 and random.random() < 0.25 else node
        node = self._input(random)
        for _ in range(random.randint(0, min(3, most))):
            node = Unary(random.choice(UNARY), node)
        return node

    def mutate(self, formula: Formula, random: Random, rate: float) -> Formula:
        """Everything in it is drawn again with probability `rate`; deeper trees may change shape instead."""
        aggregate = random.choice(self.aggregates) if random.random() < rate else formula.aggregate
        if self.depth > 3 and random.random() < 0.5:
            tree = self._reshaped(formula.tree, random)
        else:
            tree = self._redrawn(formula.tree, random, rate)
        if depth_of(tree) > self.depth:
            tree = formula.tree
        return Formula(tree=tree, aggregate=aggregate, scalar=self.branches == "scalar")

    def _input(self, random: Random) -> Node:
        return Input(random.choice(self.inputs))

    def _redrawn(self, node: Node, random: Random, rate: float) -> Node:
        again = random.random() < rate
        if isinstance(node, Input):
            return self._input(random) if again else node
        if isinstance(node, Unary):
            return Unary(random.choice(UNARY) if again else node.name, self._redrawn(node.of, random, rate))
        left, right = (self._redrawn(part, random, rate) for part in (node.left, node.right))
        return Binary(_sign(random) if again else node.sign, left, right)

    def _reshaped(self, tree: Node, random: Random) -> Node:
        """One node is wrapped in an operation, joined with a new branch, taken away, or drawn anew."""
        chosen = random.choice(list(nodes_of(tree)))
        kind = random.randrange(4)
        if kind == 0:
            new: Node = Unary(random.choice(UNARY), chosen)
        elif kind == 1:
            new = Binary(_sign(random), chosen, self._tree(random, 2))
        elif kind == 2:
            new = random.choice(parts_of(chosen) or (chosen,))
        else:
            new = self._tree(random, 3)
        return replaced(tree, chosen, new)

    def cross(self, first: Formula, second: Formula, random: Random) -> Formula:
        """A part of the first is replaced by one of the second; in two branches, by one of its height."""
        old = random.choice([*nodes_of(first.tree)][1:] or [first.tree])
        new = random.choice(
            [node for node in nodes_of(second.tree) if self.depth > 3 or depth_of(node) == depth_of(old)] or [old]
        )
        tree = replaced(first.tree, old, new)
        tree = first.tree if depth_of(tree) > self.depth else tree
        return Formula(tree=tree, aggregate=first.aggregate, scalar=self.branches == "scalar")


def _sign(random: Random) -> str:
    return random.choices(BINARY, SIGNS)[0]


def replaced(tree: Node, old: Node, new: Node) -> Node:
    """The tree with `new` in the first place where `old` itself stands."""
    if tree is old:
        return new
    if isinstance(tree, Unary):
        return Unary(tree.name, replaced(tree.of, old, new))
    if isinstance(tree, Binary):
        left = replaced(tree.left, old, new)
        right = tree.right if left != tree.left else replaced(tree.right, old, new)
        return Binary(tree.sign, left, right)
    return tree
