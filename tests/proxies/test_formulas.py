"""Formulas: text, rewriting, and values against a reference in numpy with float64 that shares no code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vitsearch.correlation import Conditions, Network, ScoreBook
from vitsearch.cost import Geometry
from vitsearch.data import open_data
from vitsearch.errors import VitsearchError
from vitsearch.methods.formula_draws import Grammar
from vitsearch.models import build
from vitsearch.proxies import PROXIES, parse_proxy
from vitsearch.proxies.branches import Branches, branches
from vitsearch.proxies.expression import (
    AGGREGATES,
    INPUTS,
    UNARY,
    Binary,
    Formula,
    Input,
    Node,
    Unary,
    constant,
    parse_formula,
)
from vitsearch.proxies.layers import layer_value
from vitsearch.scoring import ProxyEvaluator, score
from vitsearch.spaces import SPACES, sample

GEOMETRY = Geometry(image_size=32, classes=10)
Array = NDArray[np.float64]


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(0))
    return powers / powers.sum(0)


SLOW: dict[str, Callable[[Array], Array]] = {
    "log": lambda x: np.log(np.where(x <= 0, 1, x)),
    "abslog": lambda x: np.log(np.where(x == 0, 1, np.abs(x))),
    "abs": np.abs,
    "square": lambda x: x**2,
    "exp": np.exp,
    "normalize": lambda x: (x - x.mean()) / x.std(ddof=1) if x.size > 1 and x.std() > 0 else 0 * x,
    "relu": lambda x: np.maximum(x, 0),
    "invert": lambda x: 1 / (x + 1e-9),
    "frobenius": lambda x: np.sqrt((x**2).sum()),
    "normalized_sum": lambda x: x.sum() / (x.size + 1e-9),
    "l1": lambda x: np.abs(x).sum() / (x.size + 1e-9),
    "softmax": lambda x: softmax(x) if x.ndim else np.float64(1),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "logsoftmax": lambda x: np.log(softmax(x)) if x.ndim else np.float64(0),
    "sqrt": lambda x: np.sqrt(np.maximum(x, 0)),
    "negate": lambda x: -x,
    "minmax": lambda x: (x - x.min()) / (x.max() - x.min() + 1e-9),
    "mean": lambda x: x.mean(),
    "std": lambda x: x.std(ddof=1) if x.size > 1 else np.float64(0),
    "identity": lambda x: x,
    "sign": np.sign,
    "sum": lambda x: x.sum(),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
}


def slow(node: Node, layer: dict[str, Array], which: str, scalar: bool) -> Array:
    if isinstance(node, Input):
        split = node.name in ("mlp.weight", "mlp.grad")
        return layer[node.name.replace("mlp", which) if split else node.name]
    if isinstance(node, Unary):
        return np.asarray(SLOW[node.name](slow(node.of, layer, which, scalar)))
    left, right = (slow(part, layer, which, scalar) for part in (node.left, node.right))
    if scalar:
        left, right = left.mean(), right.mean()
    if node.sign == "@":
        if not (left.ndim and right.ndim):
            return left * right
        return left @ right if left.shape[1] == right.shape[0] else left.mean() * right.mean()
    if left.ndim and right.ndim and left.shape != right.shape:
        left, right = left.mean(), right.mean()
    return {"+": np.add, "-": np.subtract, "*": np.multiply}[node.sign](left, right)


def some_layer(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"qkv": (36, 12), "proj": (12, 12), "fc1": (24, 12), "fc2": (12, 24)}
    layer = {}
    for name, shape in shapes.items():
        layer[f"{name}.weight"] = torch.randn(*shape, generator=generator) * 0.3
        layer[f"{name}.grad"] = torch.randn(*shape, generator=generator) * 0.1
    layer["mlp.act"] = F.gelu(torch.randn(10, 24, generator=generator))
    layer["mlp.act_grad"] = torch.randn(10, 24, generator=generator) * 0.2
    return layer


def slow_value(formula: Formula, layer: dict[str, torch.Tensor]) -> float:
    double = {name: value.double().numpy() for name, value in layer.items()}
    with np.errstate(all="ignore"):
        found = [slow(formula.tree, double, which, formula.scalar).mean() for which in ("fc1", "fc2")]
    return float(np.mean(found))


GRAMMARS = [
    Grammar(),
    Grammar(branches="scalar", aggregates=AGGREGATES),
    Grammar(depth=6, aggregates=("sum", "last")),
    Grammar(branches="scalar", depth=7),
]


def drawn(count: int, seed: int = 0) -> list[Formula]:
    random = Random(seed)
    return [random.choice(GRAMMARS).draw(random) for _ in range(count)]


def test_there_are_eight_inputs_and_twenty_four_operations() -> None:
    assert len(INPUTS) == 8 and len(UNARY) == len(set(UNARY)) == 24 and set(SLOW) == set(UNARY)


def test_text_round_trips() -> None:
    for formula in drawn(500):
        assert parse_formula(str(formula)) == formula
        assert parse_formula(str(formula.simplified())) == formula.simplified()
    assert str(parse_formula("qkv.weight-(proj.weight - mlp.act)*mlp.act")) == (
        "qkv.weight - (proj.weight - mlp.act) * mlp.act"
    )


@given(st.text(alphabet="qkv.weightmlpact()+-*@ :logsum_", max_size=40))
@settings(max_examples=300)
def test_any_text_is_a_formula_or_a_clear_error(text: str) -> None:
    try:
        assert parse_formula(str(parse_formula(text))) == parse_formula(text)
    except VitsearchError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "an input or operation must stand"),
        ("frobenius(qkv.weight", ") must stand"),
        ("qkv.weight qkv.grad", "a sign or the end must stand"),
        ("median(qkv.weight)", "no input or operation named 'median'"),
        ("sigmoud(qkv.weight)", "Did you mean 'sigmoid'?"),
        ("__import__('os')", "no name, sign or parenthesis"),
        ("median: qkv.weight", "`aggregate` must be one of mean, sum, max, last"),
        ("mean sum: qkv.weight", "before the colon"),
        ("log(" * 60 + "qkv.weight" + ")" * 60, "at most 12 operations deep"),
        ("abs(" * 13 + "qkv.weight" + ")" * 13, "at most 12 operations deep"),
    ],
)
def test_what_is_wrong_with_a_formula_is_said(text: str, part: str) -> None:
    with pytest.raises(VitsearchError) as caught:
        parse_formula(text)
    assert part in str(caught.value)


def test_values_are_those_of_the_reference() -> None:
    layer, compared = some_layer(), 0
    for formula in drawn(400, seed=1):
        ours, theirs = layer_value(formula, layer), slow_value(formula, layer)
        if math.isfinite(theirs) and 1e-2 < abs(theirs) < 1e4 and "invert" not in str(formula):  # well conditioned
            assert ours == pytest.approx(theirs, rel=2e-3, abs=1e-5), str(formula)
            compared += 1
    assert compared > 100


@pytest.mark.parametrize("kind", ["any", "zero", "negative", "constant"])
def test_rewriting_changes_no_value(kind: str) -> None:
    layer, changed = some_layer(), 0
    if kind != "any":
        made = {"zero": lambda x: 0 * x, "negative": lambda x: -x.abs() - 0.1, "constant": lambda x: 0 * x + 0.25}
        layer = {name: made[kind](value) for name, value in layer.items()}
    for formula in drawn(1500 if kind == "any" else 500, seed=2):
        simple = formula.simplified()
        assert simple.simplified() == simple, str(formula)
        first, second = (slow_value(one, layer) for one in (formula, simple))
        steep = "normalize" in str(formula) or "invert" in str(formula)
        if math.isfinite(first) and abs(first) < 1e12 and not steep:
            assert second == pytest.approx(first, rel=1e-5, abs=1e-7), (str(formula), str(simple))
        changed += str(simple) != str(formula)
    assert changed > 100


def test_constants_have_no_deviation_and_large_numbers_stay_finite() -> None:
    """0.3 is not its own mean in float32; numbers may be larger than float32 holds."""
    layer = {"qkv.weight": torch.full((48, 32), 0.3), "mlp.act": torch.full((7, 5), 60.0)}
    assert layer_value(parse_formula("normalize(qkv.weight)"), layer) == 0
    assert layer_value(parse_formula("std(qkv.weight)"), layer) == 0
    assert Branches(layer["qkv.weight"]).reduced(Input("x")).std == 0
    large = "exp(frobenius(mlp.act)) + qkv.weight"  # exp(355)
    assert layer_value(parse_formula(large), layer) == pytest.approx(math.exp(60 * math.sqrt(35)), rel=1e-4)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("qkv.weight + mlp.act", "mlp.act + qkv.weight"),
        ("abs(negate(qkv.grad))", "abs(abs(qkv.grad))"),
        ("qkv.weight + negate(mlp.act)", "qkv.weight - mlp.act"),
        ("sqrt(square(qkv.weight))", "l1(qkv.weight)"),
        ("mean(exp(qkv.weight)) ", "normalized_sum(identity(exp(qkv.weight)))"),
        ("max(negate(qkv.weight))", "negate(min(qkv.weight))"),
        ("scalar: mean(qkv.weight) @ mlp.act", "scalar: mlp.act * qkv.weight"),
        ("sum(qkv.weight) * sum(mlp.act)", "scalar: sum(mlp.act) * sum(qkv.weight)"),
        ("negate(qkv.weight) - mlp.act", "negate(mlp.act) - qkv.weight"),
        ("negate(qkv.weight + mlp.act)", "negate(mlp.act) + negate(qkv.weight)"),
        ("negate(max(qkv.weight)) * mlp.act", "max(qkv.weight) * negate(mlp.act)"),
        ("negate(proj.weight) @ negate(proj.grad)", "proj.weight @ proj.grad"),
        ("mean(qkv.weight) + frobenius(mlp.act)", "frobenius(mlp.act) + qkv.weight"),
        ("abs(mlp.act) - std(sum(qkv.grad))", "minmax(max(qkv.grad)) + l1(mlp.act)"),
        ("max(mlp.act) * softmax(sum(qkv.grad))", "max(mlp.act)"),
        ("logsoftmax(sum(qkv.grad)) - mlp.act", "negate(mlp.act)"),
        ("scalar: exp(mlp.act + std(sum(qkv.grad)))", "exp(mean(mlp.act))"),
        ("exp(proj.weight @ max(mlp.act))", "exp(max(mlp.act) * proj.weight)"),
    ],
)
def test_equal_formulas_have_one_form(first: str, second: str) -> None:
    assert parse_formula(first).simplified() == parse_formula(second).simplified()


def test_constants_are_known_by_their_form() -> None:
    for text in (
        "softmax(sum(qkv.weight))",
        "std(std(mlp.act)) + normalize(max(qkv.grad))",
        "log(mlp.act)-log(mlp.act)",
    ):
        assert constant(parse_formula(text).simplified().tree), text
    assert not constant(parse_formula("std(mlp.act) + softmax(sum(qkv.weight))").tree)


def test_all_branches_at_once_are_the_branches_one_by_one() -> None:
    layer = some_layer(3)
    for name in ("qkv.weight", "fc1.grad", "mlp.act"):
        found = dict(zip(branches(), Branches(layer[name]).values(), strict=True))
        assert len(found) > 300
        for text, value in found.items():
            node = parse_formula(text.replace("x)", "qkv.weight)") if text != "x" else "qkv.weight").tree
            theirs = slow_value(Formula(tree=node), {"qkv.weight": layer[name]})
            if "invert" in text or not abs(theirs) < 1e6:
                continue
            assert value == pytest.approx(theirs, rel=1e-3, abs=2e-5), (name, text)


@pytest.mark.parametrize("space", ["pit", "autoformer-tiny-plain", "autoformer-tiny"])
def test_the_papers_proxies_are_formulas(space: str) -> None:
    named = {
        "autoproxa": "abs(qkv.grad) + normalized_sum(sigmoid(mlp.grad))",
        "autoproxa:norm=sum": "sum(abs(qkv.grad)) + normalized_sum(sigmoid(mlp.grad))",
        "autoproxp": "frobenius(sigmoid(qkv.weight)) - logsoftmax(mlp.weight)",
        "autoproxp:softmax=sum": "frobenius(sigmoid(qkv.weight)) - sum(logsoftmax(mlp.weight))",
    }
    drawn_settings = sample(SPACES[space], 2, seed=0)
    names = [*named, *(f"expr:{text}" for text in named.values())]
    for found in score(drawn_settings, names, geometry=GEOMETRY, batch_size=2, device="cpu"):
        for name, text in named.items():
            assert found.scores[f"expr:{text}"] == pytest.approx(found.scores[name], rel=1e-6), name


def test_batched_layers_are_those_of_the_network() -> None:
    """Against gradients that autograd finds, with hooks of its own."""
    texts = ["sum: abs(mlp.act_grad) * mlp.act", "last: mlp.grad @ proj.weight", "max: std(proj.grad) - abs(mlp.act)"]
    texts += ["abs(attn.act) + abs(attn.act_grad)"]
    (found,) = sample(SPACES["pit"], 1, seed=5)
    evaluator = ProxyEvaluator([f"expr:{text}" for text in texts], geometry=GEOMETRY, batch_size=2, device="cpu")
    (batched,), alone = evaluator([found]), evaluator.one(found)
    network = build(found, GEOMETRY, seed=0).eval()
    batch = open_data("noise").draw(2, GEOMETRY, 0)
    seen: list[torch.Tensor] = []
    for name, module in network.named_modules():
        if name.endswith("mlp.fc2"):
            module.register_forward_pre_hook(lambda _, inputs: (inputs[0].retain_grad(), seen.append(inputs[0]))[0])
    F.cross_entropy(network(batch.images), batch.labels).backward()
    slowly = sum(float((x.grad.abs() * x.detach()).double().mean()) for x in seen if x.grad is not None)
    assert batched.scores[f"expr:{texts[0]}"] == pytest.approx(slowly, rel=1e-4)
    for text in texts:
        assert batched.scores[f"expr:{text}"] == pytest.approx(alone.scores[f"expr:{text}"], rel=1e-3, abs=1e-9)


def test_a_formula_of_weights_needs_no_data_and_ties_what_is_equal() -> None:
    proxy, _ = parse_proxy("expr:sum: frobenius(sign(qkv.weight))")
    assert not (proxy.needs_data or proxy.needs_gradient or proxy.needs_labels)
    first = sample(SPACES["autoformer-tiny-plain"], 1, seed=0)[0]
    other = first | {"mlp_ratio": [4.0 if ratio == 3.5 else 3.5 for ratio in first["mlp_ratio"]]}
    found = score([first, other], ["expr:sum: frobenius(sign(qkv.weight))"], geometry=GEOMETRY, device="cpu")
    assert found[0].scores == found[1].scores
    width, depth = first["embed_dim"], first["depth"]
    assert next(iter(found[0].scores.values())) == pytest.approx(depth * width * math.sqrt(3))


def test_formulas_come_from_files_too(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"formula": "sum: frobenius(qkv.weight)"}))
    settings_ = sample(SPACES["pit"], 1, seed=0)
    names = [f"file:{path}", "expr:sum: frobenius(qkv.weight)"]
    (found,) = score(settings_, names, geometry=GEOMETRY, device="cpu")
    assert len(set(found.scores.values())) == 1
    path.write_text("[]")
    with pytest.raises(VitsearchError, match="must be an object with a `formula`"):
        parse_proxy(f"file:{path}")
    with pytest.raises(VitsearchError, match="cannot read"):
        parse_proxy(f"file:{tmp_path / 'none.json'}")


def test_kept_scores_are_not_those_of_another_formula(tmp_path: Path) -> None:
    path, book = tmp_path / "found.json", tmp_path / "book.jsonl"
    (found,) = sample(SPACES["pit"], 1, seed=0)
    network, columns = Network.of(found, GEOMETRY), []
    for text in ("frobenius(qkv.weight)", "sum: frobenius(qkv.weight)"):
        path.write_text(json.dumps({"formula": text}))
        kept = ScoreBook(Conditions(device="cpu"), book)
        kept.fill([network], [f"file:{path}", "params"], [0])
        columns.append(kept.column([network], 0, f"file:{path}")[0])
    assert columns[1] == pytest.approx(sum(found["depth"]) * columns[0])


@pytest.mark.parametrize("command", ["search", "evolve-space"])
def test_another_formula_in_the_file_is_noticed(command: str, tmp_path: Path, cli: Callable[..., Any]) -> None:
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"formula": "sum: frobenius(qkv.weight)"}))
    line: list[Any] = [command, "--objective", f"file:{path}", "--out", tmp_path / "run", "--device", "cpu", "--json"]
    if command == "search":
        line[1:1] = ["pit", "--trials", 2]
    else:
        line[1:1] = ["s3-initial", "--samples", 2, "--iterations", 1]
    cli(*line)
    path.write_text(json.dumps({"formula": "max: frobenius(qkv.weight)"}))
    assert "was made elsewhere (formulas" in cli(*line, "--resume").error()


def test_a_formula_without_a_value_says_so() -> None:
    (found,) = score(sample(SPACES["pit"], 1, seed=0), ["expr:exp(exp(sum(square(qkv.weight))))"], geometry=GEOMETRY)
    assert not found.scores and "not finite" in next(iter(found.errors.values()))


@pytest.mark.parametrize("name", ["autoformer", "pit"])
def test_what_was_discovered_is_registered(name: str) -> None:
    formula = PROXIES[f"discovered-{name}"].formula
    assert formula is not None and formula.simplified() == formula
    text = json.dumps({"formula": str(formula)})
    assert parse_formula(json.loads(text)["formula"]) == formula


def test_drawn_and_changed_formulas_stay_in_their_grammar() -> None:
    random = Random(0)
    for grammar in GRAMMARS:
        first, second = grammar.draw(random), grammar.draw(random)
        for _ in range(200):
            first = grammar.mutate(first, random, 0.5)
            second = grammar.cross(second, first, random)
            for formula in (first, second):
                assert formula.scalar == (grammar.branches == "scalar") and formula.aggregate in grammar.aggregates
                assert parse_formula(str(formula)) == formula
        if grammar.depth == 3:
            tree = grammar.mutate(grammar.draw(random), random, 1.0).tree
            assert isinstance(tree, Binary) and isinstance(tree.left, Unary) and isinstance(tree.left.of, Unary)
