"""Proxies as formulas: trees of whitelisted operations over what every transformer layer has.

    sum: log(frobenius(sign(qkv.weight))) - mean(mlp.act)
    scalar: frobenius(sigmoid(qkv.weight)) * mlp.grad

Before the colon stands how layers are put together, `mean` unless it is named, and `scalar` where every branch is
averaged to a number before binary operations join them. Binary operations are `+`, `-`, `*` (element by element) and
`@` (matrix product), with the usual precedence. What is a matrix at the end is averaged to a number. A formula with
`mlp.weight` or `mlp.grad` is evaluated with those of the MLP's first and of its second linear layer, and averaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from vitsearch.architecture import brief
from vitsearch.errors import VitsearchError
from vitsearch.registry import did_you_mean

INPUTS = (
    *("qkv.weight", "qkv.grad", "proj.weight", "proj.grad"),
    *("mlp.weight", "mlp.grad", "mlp.act", "mlp.act_grad"),
)
MORE_INPUTS = ("attn.act", "attn.act_grad")
"""Inputs of the attention's projection: understood, and never drawn."""
UNARY = (  # in the order of the published indices, as far as they are known
    *("log", "abslog", "abs", "square", "exp", "normalize", "relu", "invert"),
    *("frobenius", "normalized_sum", "l1", "softmax", "sigmoid", "logsoftmax", "sqrt", "negate"),
    *("minmax", "mean", "std", "identity", "sign", "sum", "max", "min"),
)
BINARY = ("+", "-", "*", "@")
AGGREGATES = ("mean", "sum", "max", "last")
TO_NUMBER = frozenset({"frobenius", "normalized_sum", "l1", "mean", "std", "sum", "max", "min"})
NOT_NEGATIVE = frozenset(
    {"abs", "square", "exp", "relu", "frobenius", "l1", "softmax", "sigmoid", "sqrt", "minmax", "std"}
)
CONSTANT_OF_NUMBER = frozenset({"normalize", "softmax", "logsoftmax", "minmax", "std"})
DEEPEST = 12
TOKEN = re.compile(r"\s*(?:([a-z][a-z0-9_]*(?:\.[a-z_]+)?)|([-+*@()]))")
PRECEDENCE = {"+": 1, "-": 1, "*": 2, "@": 2}


@dataclass(frozen=True, slots=True)
class Input:
    name: str


@dataclass(frozen=True, slots=True)
class Unary:
    name: str
    of: Node


@dataclass(frozen=True, slots=True)
class Binary:
    sign: str
    left: Node
    right: Node


Node: TypeAlias = Input | Unary | Binary


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A tree, how the layers are put together, and whether branches are averaged before they are joined."""

    tree: Node
    aggregate: str = "mean"
    scalar: bool = False

    def __post_init__(self) -> None:
        if self.aggregate not in AGGREGATES:
            raise VitsearchError(f"`aggregate` must be one of {', '.join(AGGREGATES)}, but got {brief(self.aggregate)}")
        if depth_of(self.tree) > DEEPEST:
            raise VitsearchError(f"a formula must be at most {DEEPEST} operations deep, but got {depth_of(self.tree)}")

    def __str__(self) -> str:
        words = ([self.aggregate] if self.aggregate != "mean" else []) + (["scalar"] if self.scalar else [])
        return f"{' '.join(words)}{': ' if words else ''}{show_node(self.tree)}"

    @property
    def size(self) -> int:
        """Operations and inputs."""
        return sum(1 for _ in nodes_of(self.tree))

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset(node.name for node in nodes_of(self.tree) if isinstance(node, Input))

    @property
    def needs_gradient(self) -> bool:
        return any(name.endswith("grad") for name in self.inputs)

    @property
    def needs_data(self) -> bool:
        return any(not name.endswith(".weight") for name in self.inputs)

    def simplified(self) -> Formula:
        """The canonical form: formulas that are equal up to rewriting have the same one."""
        tree = _at_the_end(simplify(self.tree, scalar=self.scalar), self.scalar)
        return Formula(tree=tree, aggregate=self.aggregate, scalar=self.scalar and _joins_matrices(tree))


def nodes_of(tree: Node) -> Iterator[Node]:
    yield tree
    for part in parts_of(tree):
        yield from nodes_of(part)


def parts_of(node: Node) -> tuple[Node, ...]:
    match node:
        case Unary():
            return (node.of,)
        case Binary():
            return (node.left, node.right)
        case _:
            return ()


def depth_of(tree: Node) -> int:
    """Operations on the longest way down, found without recursion: the text comes from users."""
    level, deep = [tree], 0
    while level := [part for node in level for part in parts_of(node)]:
        deep += 1
    return deep


def show_node(node: Node) -> str:
    match node:
        case Input():
            return node.name
        case Unary():
            return f"{node.name}({show_node(node.of)})"
    strength = PRECEDENCE[node.sign]
    left, right = show_node(node.left), show_node(node.right)
    if isinstance(node.left, Binary) and PRECEDENCE[node.left.sign] < strength:
        left = f"({left})"
    if isinstance(node.right, Binary) and PRECEDENCE[node.right.sign] <= strength:
        right = f"({right})"
    return f"{left} {node.sign} {right}"


# --- reading


def parse_formula(text: str) -> Formula:
    """The formula that a text stands for; whatever is wrong with it is a VitsearchError that shows the place."""
    head, colon, body = text.rpartition(":")
    words = head.split() if colon else []
    scalar = "scalar" in words
    names = [word for word in words if word != "scalar"]
    if len(names) > 1 or len(words) - len(names) > 1 or (colon and not words):
        raise VitsearchError(
            f"before the colon of a formula must stand {', '.join(AGGREGATES)} or scalar, but got {brief(head)}"
        )
    return Formula(tree=_Reader(body).whole(), aggregate=names[0] if names else "mean", scalar=scalar)


class _Reader:
    """Recursive descent over tokens."""

    def __init__(self, text: str) -> None:
        self.text, self.place, self.nested = text, 0, 0
        self.tokens: list[tuple[str, int]] = []
        position = 0
        end = len(text.rstrip())
        while position < end:
            found = TOKEN.match(text, position)
            if found is None:
                raise self.error(position, "no name, sign or parenthesis begins")
            self.tokens.append((found.group(1) or found.group(2), found.end()))
            position = found.end()

    def error(self, position: int, what: str) -> VitsearchError:
        return VitsearchError(f"in the formula {brief(self.text)}, {what} at {brief(self.text[position:])}")

    def peek(self) -> str:
        return self.tokens[self.place][0] if self.place < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            before = self.tokens[self.place - 1][1] if self.place else 0
            raise self.error(before, f"{expected or 'an input or operation'} must stand")
        self.place += 1
        return token

    def whole(self) -> Node:
        found = self.binary(1)
        if self.place < len(self.tokens):
            raise self.error(self.tokens[self.place - 1][1], "a sign or the end must stand")
        return found

    def binary(self, strength: int) -> Node:
        node = self.binary(2) if strength == 1 else self.single()
        while PRECEDENCE.get(self.peek()) == strength:
            sign = self.take()
            node = Binary(sign, node, self.binary(2) if strength == 1 else self.single())
        return node

    def single(self) -> Node:
        self.nested += 1
        if self.nested > 4 * DEEPEST:
            raise VitsearchError(f"a formula must be at most {DEEPEST} operations deep, but got {brief(self.text)}")
        token = self.take()
        if token == "(":
            found = self.binary(1)
            self.take(")")
        elif token in UNARY:
            self.take("(")
            found = Unary(token, self.binary(1))
            self.take(")")
        elif token in INPUTS or token in MORE_INPUTS:
            found = Input(token)
        else:
            known = [*UNARY, *INPUTS, *MORE_INPUTS]
            raise VitsearchError(
                f"no input or operation named {token!r} in the formula {brief(self.text)}.{did_you_mean(token, known)}"
            )
        self.nested -= 1
        return found


# --- rewriting


def is_number(node: Node, scalar: bool = False) -> bool:
    """Whether it has no matrix value, whatever the shapes of the inputs are."""
    match node:
        case Input():
            return False
        case Unary():
            return node.name in TO_NUMBER or is_number(node.of, scalar)
    return scalar or (is_number(node.left, scalar) and is_number(node.right, scalar))


@lru_cache(maxsize=1 << 16)
def simplify(node: Node, scalar: bool = False) -> Node:
    """An equal tree in canonical form.

    Equal means: but for rounding, for the 1e-9 of means over elements, and for what overflows on the way alone.
    """
    match node:
        case Input():
            return node
        case Unary():
            return _simplify_unary(node.name, simplify(node.of, scalar), scalar)
    return _simplify_binary(node.sign, simplify(node.left, scalar), simplify(node.right, scalar), scalar)


KEPT_BY_NEGATION = frozenset({"abs", "square", "frobenius", "l1", "abslog", "std"})
TURNED_BY_NEGATION = {
    "sign": "sign",
    "normalize": "normalize",
    "max": "min",
    "min": "max",
    "mean": "mean",
    "sum": "sum",
}


def _simplify_unary(name: str, of: Node, scalar: bool) -> Node:
    below = of.name if isinstance(of, Unary) else ""
    inner = of.of if isinstance(of, Unary) else of
    if name == "identity":
        return of
    if name == "normalized_sum":
        return _simplify_unary("mean", of, scalar)
    if name == "l1":
        return _simplify_unary("mean", _simplify_unary("abs", of, scalar), scalar)
    if is_number(of, scalar):
        if name in ("mean", "sum", "max", "min"):
            return of
        if name == "frobenius":
            return _simplify_unary("abs", of, scalar)
    if below == "negate":
        if name in KEPT_BY_NEGATION:
            return _simplify_unary(name, inner, scalar)
        if name == "negate":
            return inner
        if name in TURNED_BY_NEGATION:
            return _simplify_unary("negate", _simplify_unary(TURNED_BY_NEGATION[name], inner, scalar), scalar)
    if below == "abs" and name in ("square", "frobenius", "abslog"):
        return _simplify_unary(name, inner, scalar)
    if name in ("abs", "relu") and _not_negative(of):
        return of
    if (name, below) in (("sign", "sign"), ("normalize", "normalize")):
        return of
    if (name, below) == ("sqrt", "square"):
        return _simplify_unary("abs", inner, scalar)
    if (name, below) == ("log", "exp") or (name, below) == ("abslog", "exp"):
        return inner
    if name == "abslog" and _not_negative(of):
        return _simplify_unary("log", of, scalar)
    if name == "negate" and isinstance(of, Binary) and of.sign == "-":
        return _simplify_binary("-", of.right, of.left, scalar)
    return Unary(name, of)


def _not_negative(node: Node) -> bool:
    match node:
        case Unary():
            return node.name in NOT_NEGATIVE or (node.name in ("mean", "sum", "max", "min") and _not_negative(node.of))
        case Binary():
            return node.sign != "-" and _not_negative(node.left) and _not_negative(node.right)
        case _:
            return False


def _simplify_binary(sign: str, left: Node, right: Node, scalar: bool) -> Node:
    if scalar:
        left, right = _at_the_end(left, scalar), _at_the_end(right, scalar)
    if sign == "@" and (scalar or is_number(left, scalar) or is_number(right, scalar)):
        sign = "*"
    neutral = 1.0 if sign == "*" else 0.0
    if _fixed(right, scalar) == neutral:
        return _simplify_unary("mean", left, scalar) if scalar else left
    if _fixed(left, scalar) == neutral:
        other = _simplify_unary("mean", right, scalar) if scalar else right
        return _simplify_unary("negate", other, scalar) if sign == "-" else other
    first, second = (isinstance(node, Unary) and node.name == "negate" for node in (left, right))
    if first or second:
        return _without_negation(sign, (left, first), (right, second), scalar)
    if sign == "*" and left == right and is_number(left, scalar):
        return _simplify_unary("square", left, scalar)
    if sign in "+*" and show_node(right) < show_node(left):
        left, right = right, left
    return Binary(sign, left, right)


def _fixed(node: Node, scalar: bool) -> float | None:
    """The value of what is 0 or 1 by its form."""
    if isinstance(node, Unary) and node.name in CONSTANT_OF_NUMBER and is_number(node.of, scalar):
        return 1.0 if node.name == "softmax" else 0.0
    return None


def _without_negation(sign: str, left: tuple[Node, bool], right: tuple[Node, bool], scalar: bool) -> Node:
    """Two parts, each with whether it is the negative of another: a negation is left in front of all, or none."""
    (first, turned), (second, other) = (
        (node.of if negative and isinstance(node, Unary) else node, negative) for node, negative in (left, right)
    )
    if sign in "*@":
        whole = _simplify_binary(sign, first, second, scalar)
        return whole if turned == other else _simplify_unary("negate", whole, scalar)
    minus = other != (sign == "-")
    if not turned:
        return _simplify_binary("-" if minus else "+", first, second, scalar)
    if not minus:
        return _simplify_binary("-", second, first, scalar)
    return _simplify_unary("negate", _simplify_binary("+", first, second, scalar), scalar)


def _at_the_end(node: Node, scalar: bool = False) -> Node:
    """A matrix is averaged at the end in any case, and the mean of a sum is the sum of the means."""
    match node:
        case Unary("mean") if not is_number(node.of):
            return _at_the_end(node.of, scalar)
        case Unary("negate"):
            return _simplify_unary("negate", _at_the_end(node.of, scalar), scalar)
        case Binary("+" | "-"):
            left, right = _at_the_end(node.left, scalar), _at_the_end(node.right, scalar)
            return _simplify_binary(node.sign, left, right, scalar)
    return node


def _joins_matrices(tree: Node) -> bool:
    """Whether it matters that branches are averaged first."""
    return any(
        isinstance(node, Binary) and not (is_number(node.left) and is_number(node.right)) for node in nodes_of(tree)
    )


def constant(node: Node, scalar: bool = False) -> bool:
    """Whether it has the same value for all networks, by its form alone."""
    match node:
        case Input():
            return False
        case Unary():
            fixed = node.name in CONSTANT_OF_NUMBER and is_number(node.of, scalar)
            return fixed or constant(node.of, scalar)
    return (constant(node.left, scalar) and constant(node.right, scalar)) or (
        node.sign == "-" and node.left == node.right
    )
