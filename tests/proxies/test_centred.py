"""Products around means: with float64 in the place of bfloat16 they are the definition, and DSS keeps its digits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch import sample
from vitsearch.architecture import Attention as Block
from vitsearch.cost import Geometry
from vitsearch.models.layers import Attention
from vitsearch.proxies import batched, centred, diversity, group_pass
from vitsearch.scoring import ProxyEvaluator
from vitsearch.spaces import decode


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alike(count: int, tokens: int, width: int, seed: int, spread: float = 0.1) -> Tensor:
    return drawn(count, 1, width, seed=seed) + spread * drawn(count, tokens, width, seed=seed + 1)


def layer(name: str, weight: Tensor, bias: Tensor) -> centred.Layer:
    return centred.Layer(name, weight.detach(), weight.detach().to(centred.HALF), bias.detach())


def seen_by(half: type[torch.autograd.Function], x: Tensor, back: Tensor, *given: Any) -> tuple[list[Tensor], Any]:
    """Outputs, gradient of the inputs, and what was told of each layer."""
    seen: dict[str, dict[str, Any]] = {}

    def told(name: str, weight: Tensor, **found: Any) -> None:
        assert name not in seen
        seen[name] = found | {"weight": weight}

    x = x.clone().requires_grad_()
    y = half.apply(x, *given, told)
    return [y.detach(), *torch.autograd.grad(y, [x], back)], seen


def exactly(x: Tensor, back: Tensor, run: Any, *weights: Tensor) -> list[Tensor]:
    """The same by the definition, one network at a time; then gradients of the weights."""
    found = []
    for one, gradient in zip(x, back, strict=True):
        inputs = one.clone().requires_grad_()
        y = run(inputs)
        found.append([y.detach(), *torch.autograd.grad(y, [inputs, *weights], gradient)])
    return [torch.stack(values) for values in zip(*found, strict=True)]


def mlp(dtype: torch.dtype, tokens: int, leading: int, spread: float = 0.1) -> tuple[list[Tensor], Any, list[Tensor]]:
    """With a first token that is a hundred times as far away as all others."""
    x, back = (alike(3, tokens, 6, seed=seed, spread=spread).to(dtype) for seed in (3, 5))
    x[:, 0] += 100 * spread * drawn(3, 6, seed=9)
    weights = [drawn(10, 6, seed=1), drawn(6, 10, seed=2)]
    biases = [drawn(10, seed=7), drawn(6, seed=8)]
    layers = [
        layer(name, weight.to(dtype), bias.to(dtype))
        for name, weight, bias in zip(("first", "second"), weights, biases, strict=True)
    ]
    found, seen = seen_by(centred.MlpHalf, x, back, *layers, 1e-6, leading)
    leaves = [weight.requires_grad_() for weight in weights]

    def run(one: Tensor) -> Tensor:
        hidden = F.gelu(F.linear(F.layer_norm(one, (6,), eps=1e-6), leaves[0], biases[0]))
        return one + F.linear(hidden, leaves[1], biases[1])

    return found, seen, exactly(x.double(), back.double(), run, *leaves)


def distances(found: list[Tensor], exact: list[Tensor]) -> Tensor:
    """For their size."""
    both = zip(found, exact, strict=False)
    return torch.stack([(one - other).norm() / other.norm() for one, other in both]).double()


BY_MATRIX, BY_HIDDEN = 11, 5
"""Tokens, for these widths."""


def test_which_way_has_fewer_operations() -> None:
    """Counted: two products of weights and three with tokens, or four with tokens."""
    for tokens, way in ((BY_MATRIX, centred.GeluByMatrix), (BY_HIDDEN, centred.GeluByHidden)):
        matrix, hidden = 2 * 6 * 10 * 6 + 3 * tokens * 6 * 6, 4 * tokens * 6 * 10
        assert (matrix < hidden) == (way is centred.GeluByMatrix)
        assert centred.way_through_gelu(tokens, 6, 10) is way


@pytest.mark.parametrize("tokens", [BY_MATRIX, BY_HIDDEN])
def test_mlps_are_the_definition(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """Where all tokens go through GELU itself."""
    found, _, exact = mlp(torch.float32, tokens, tokens, 1e-3)
    assert 1e-7 < distances(found, exact).max() < 2**-8  # less than bfloat16 has: it is one of the rest alone
    monkeypatch.setattr(centred, "HALF", torch.float64)
    found, seen, (*expected, first, second) = mlp(torch.float64, tokens, tokens)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    for name, gradient in (("first", first), ("second", second)):
        saliency = (gradient * seen[name]["weight"]).sum((1, 2))
        torch.testing.assert_close(seen[name]["saliency"], saliency, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("tokens", "order"), [(BY_MATRIX, 2), (BY_HIDDEN, 3)])
def test_what_the_series_of_mlps_leave_out(monkeypatch: pytest.MonkeyPatch, tokens: int, order: int) -> None:
    """Is of second or third order, and nothing of it is the first token's."""
    monkeypatch.setattr(centred, "HALF", torch.float64)
    errors = []
    for spread in (1e-3, 5e-4, 2.5e-4):
        found, seen, exact = mlp(torch.float64, tokens, 1, spread)
        names = zip(("first", "second"), exact[2:], strict=True)
        expected = [(gradient * seen[name]["weight"]).sum((1, 2)) for name, gradient in names]
        saliencies = [seen[name]["saliency"] for name in ("first", "second")]
        errors.append(torch.cat([distances(found, exact), distances(saliencies, expected)]))
    for wide, narrow in pairwise(errors):
        orders = (wide / narrow).log2()
        assert (orders > order - 0.2).all(), orders
    assert errors[-1].max() < {2: 2e-4, 3: 2e-5}[order]  # with the first token in the series ten times as much


@pytest.fixture
def attentions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Half blocks as they are here and by the definition, on tokens and tables of a spread."""
    monkeypatch.setattr(centred, "HALF", torch.float64)
    side, heads, width, distance = 4, 2, 8, request.param
    torch.manual_seed(0)
    block = Block(heads=heads, head_dim=width, hidden=4, relative_distance=distance)
    attention = Attention(24, block, side, fused=False).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    whole = {name: table.detach().clone() for name, table in attention.named_parameters() if "relative" in name}
    qkv, proj = attention.qkv, attention.proj

    def both(spread: float) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs, gradients of the inputs and of both weights."""
        tables = {name.rpartition(".")[2]: spread * table for name, table in whole.items()}
        attention.load_state_dict({name: spread * table for name, table in whole.items()}, strict=False)
        position = centred.relative(side, distance, **tables) if tables else None
        layers = layer("qkv", qkv.weight, qkv.bias), layer("proj", proj.weight, proj.bias)
        x, back = (alike(3, side**2 + 1, 24, seed=seed, spread=spread) for seed in (0, 4))
        found, seen = seen_by(centred.AttentionHalf, x, back, *layers, heads, position, 1e-6)

        def run(one: Tensor) -> Tensor:
            y: Tensor = attention(F.layer_norm(one, (24,), eps=1e-6)[None])[0]
            return one + y

        formed = [seen[name]["gradient"].formed(torch.arange(3)) for name in ("qkv", "proj")]
        return found + formed, exactly(x, back, run, qkv.weight, proj.weight)

    return both


relative_distances = pytest.mark.parametrize("attentions", [0, 2, 14], indirect=True)
"""Without relative position, with clipped offsets, and with all of them."""


@relative_distances
def test_attention_is_the_definition_to_first_order_in_logits(attentions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With (1 + L) / S, spelled out, in the place of softmax(L), everything is the same."""

    def series(logits: Tensor, dim: int) -> Tensor:
        return (1 + logits - logits.mean(dim, keepdim=True)) / logits.shape[dim]

    monkeypatch.setattr(Tensor, "softmax", series)
    for found, exact in zip(*attentions(0.5), strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-9)


@relative_distances
def test_what_even_attention_leaves_out_is_of_higher_order(attentions: Any) -> None:
    """Third order in what tokens differ by, but for gradients of single tokens: these are q's times second order."""
    errors = [distances(*attentions(spread)) for spread in (4e-3, 2e-3, 1e-3)]
    for wide, narrow in pairwise(errors):
        orders = (wide / narrow).log2()
        assert (orders > torch.tensor([2.8, 1.8, 2.8, 2.8])).all(), orders


@pytest.mark.parametrize("small", [1e-6, 1e-3, 1.0, 0.0])
@pytest.mark.parametrize("decay", [0, -6])
def test_nuclear_norms_around_an_outer_product(small: float, decay: int) -> None:
    """Whatever the spectrum: where few vectors do not suffice, the bound notices."""
    x = drawn(3, 80, 64, seed=0) * torch.logspace(0, decay, 64, dtype=torch.float64)
    dy, left, right = (drawn(*shape, seed=seed) for seed, shape in enumerate([(3, 80, 96), (3, 96), (3, 64)], 1))
    dy, x = (one.to(torch.bfloat16).flatten(0, 1) for one in (small / 80 * dy, x))
    around = diversity.Around(left.float(), right.float(), dy, x)
    gradients = left[..., None] * right[:, None]
    gradients = gradients + dy.double().view(3, 80, -1).mT @ x.double().view(3, 80, -1)
    expected = torch.linalg.svdvals(gradients).sum(-1)
    assert around.sizes == (80, 96, 64)
    torch.testing.assert_close(diversity.nuclear_norms_of(around), expected, rtol=2e-3 * small + 1e-4, atol=0)


@pytest.mark.parametrize("space", ["autoformer-micro", "autoformer-tiny-plain"])
def test_dss_keeps_its_digits(monkeypatch: pytest.MonkeyPatch, space: str) -> None:
    networks, geometry = sample(space, 4, seed=2), Geometry(image_size=224, classes=10)
    passes: list[bool] = []
    real = batched.GroupPass.run

    def counted(self: batched.GroupPass, *arguments: Any) -> None:
        passes.append(self.centred)
        real(self, *arguments)

    monkeypatch.setattr(batched.GroupPass, "run", counted)
    scores = {}
    for on in (True, False):
        monkeypatch.setattr(batched, "pays", lambda device, on=on: on)
        scorer = ProxyEvaluator(["dss"], geometry=geometry, seed=0, device="cpu")
        scores[on] = [score.scores["dss"] for score in scorer(networks)]
        assert passes and set(passes) == {on}
        passes.clear()
    assert scores[True] == pytest.approx([scorer.one(settings).scores["dss"] for settings in networks], rel=5e-5)
    assert scores[True] != scores[False]


def test_networks_whose_tokens_are_unlike_each_other_go_without_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those alone, and their scores are those of the pass that knows no base."""
    monkeypatch.setattr(batched, "pays", lambda device: True)
    networks = [one for one in sample("autoformer-micro", 40, seed=2) if one["embed_dim"] == 48][:3]
    plans, geometry = [decode(settings) for settings in networks], Geometry(image_size=224, classes=10)
    scorer = ProxyEvaluator(["dss"], geometry=geometry, seed=0, device="cpu")
    spreads: list[Tensor] = []
    real = centred.spread_of

    def first_wide(x: Tensor, eps: float) -> Tensor:
        spreads.append(real(x, eps))
        wide = torch.zeros(len(x))
        wide[0] = 2 * group_pass.MOST_SPREAD
        return spreads[-1] + wide

    def scores(spread: Callable[[Tensor, float], Tensor]) -> Tensor:
        monkeypatch.setattr(group_pass, "spread_of", spread)
        given = {"geometry": geometry, "bank": scorer.bank(networks[0], plans[0]), "batch": scorer.batch}
        return batched.score_group(plans, ["dss"], **given)["dss"]

    alike, all_wide = scores(real), scores(lambda x, eps: torch.full((len(x),), torch.inf))
    monkeypatch.setattr(batched, "pays", lambda device: False)
    plain = scores(real)
    monkeypatch.setattr(batched, "pays", lambda device: True)
    assert all_wide.tolist() == plain.tolist() and not (alike == plain).any()
    torch.testing.assert_close(scores(first_wide), torch.cat([plain[:1], alike[1:]]), rtol=1e-6, atol=0)
    assert 0.02 < float(spreads[0].max()) < group_pass.MOST_SPREAD


@pytest.mark.parametrize("times", [1.0, 1.8])
def test_scores_up_to_the_largest_spread(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """With positions that are larger than initial ones, against everything in float64."""
    monkeypatch.setattr(batched, "pays", lambda device: True)
    networks = [one for one in sample("autoformer-micro", 40, seed=2) if one["embed_dim"] == 48][:3]
    plans, geometry = [decode(settings) for settings in networks], Geometry(image_size=224, classes=10)
    scorer = ProxyEvaluator(["dss"], geometry=geometry, seed=0, device="cpu")
    weight, spread_of, spreads = group_pass.GroupPass.weight, centred.spread_of, []

    def scaled(self: group_pass.GroupPass, name: str, *arguments: Any, **more: Any) -> Tensor:
        return weight(self, name, *arguments, **more) * (times if name == "pos_embed" else 1.0)

    def noted(x: Tensor, eps: float) -> Tensor:
        spreads.append(float(spread_of(x, eps).max()))
        return spread_of(x, eps)

    monkeypatch.setattr(group_pass.GroupPass, "weight", scaled)
    monkeypatch.setattr(group_pass, "spread_of", noted)
    given = {"geometry": geometry, "bank": scorer.bank(networks[0], plans[0]), "batch": scorer.batch}
    found, exact = (batched.score_group(plans, ["dss"], **given, exact=exact)["dss"] for exact in (False, True))
    assert found.tolist() == pytest.approx(exact.tolist(), rel=5e-5) and not (found == exact).any()
    (spread,) = spreads  # one pass, and none behind it
    assert 0.035 * times < spread < group_pass.MOST_SPREAD


def test_few_tokens_and_sums_that_cancel_are_not_centred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "pays", lambda device: True)
    (network,) = sample("autoformer-micro", 1, seed=0)
    (tokens,) = sample("pit-tiny", 1, seed=0)
    cpu = torch.device("cpu")

    def kinds(settings: Any, *proxies: str) -> set[bool]:
        return {route.centred for route in batched.routes(proxies, decode(settings), cpu)}

    assert kinds(network, "dss") == {True}
    assert kinds(network, "snip", "dss-saliency") == {False} and kinds(network, "synflow") == {True}
    assert kinds(tokens, "dss", "synflow") == {False}  # its classifier reads one token
    small = [ProxyEvaluator(["dss"], geometry=Geometry(image_size=32), seed=0, device="cpu") for _ in range(2)]
    first = small[0]([network])[0].scores
    monkeypatch.setattr(batched, "pays", lambda device: False)
    assert small[1]([network])[0].scores == first
