"""Many networks at once: the same proxies, without building networks and without per-network weight gradients.

Networks are grouped by the widths of their stages, and a group goes through the layers together (`group_pass.py`). The
backward pass hands each linear layer its inputs X and output gradients dY for every network, from which a proxy takes
what it needs (`takers.py`):

    sum(g w)     = sum(dY * Y) over tokens, since Y = X w^T            (DSS's MLP term, plain)
    ||g||_nuc    from products of g = dY^T X with a few vectors         (DSS's attention term; see `nuclear_norms_of`)
    |g w|, |g|   from g itself                                          (SNIP, gradient norm, ...)
    theta^T H g  from derivatives of X and dY along theta               (GraSP; see `along.py`)
    g_i . g_j    from the gradients by way of every single image        (NTK)

SynFlow needs no backward pass: see `forward_along.py`. What depends on weights alone is computed once for each
distinct tensor. The one-at-a-time definitions are the reference; tests and `benchmarks/scoring.py` compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from vitsearch.architecture import Architecture, Attention
from vitsearch.cost import Geometry
from vitsearch.data import Batch
from vitsearch.models.weights import WeightBank
from vitsearch.proxies import takers
from vitsearch.proxies.autoprox import log_softmax, sigmoid_norm
from vitsearch.proxies.base import parse_proxy
from vitsearch.proxies.centred import pays
from vitsearch.proxies.group_pass import GroupPass
from vitsearch.proxies.layers import FormulaTaker, score_weights
from vitsearch.proxies.takers import Taker

Named: TypeAlias = tuple[str, tuple[int, ...]]  # a weight's name and shape


@dataclass(frozen=True, slots=True)
class Recipe:
    """Who takes a proxy's number, from which pass: that on the data, or that of the absolute network on ones.

    `along` is for derivatives that go forward with the values; on the data, for all proxies or for none. `exact` is for
    sums of some layers of both signs, which nearly cancel, and for elements: in float64.
    """

    maker: Callable[..., Taker]
    absolute: bool = False
    exact: bool = False
    along: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.exact else torch.float32


RECIPES: Mapping[str, Recipe] = {
    "dss": Recipe(partial(takers.Diversity, roles=("mlp",)), absolute=True),
    "dss-signed": Recipe(partial(takers.Diversity, roles=("mlp",), of_absolute=False), absolute=True),
    "dss-diversity": Recipe(takers.Diversity, absolute=True),
    "dss-saliency": Recipe(partial(takers.Saliency, roles=("mlp",)), absolute=True, exact=True),
    "saliency-msa": Recipe(partial(takers.Saliency, roles=("attention",)), absolute=True, exact=True),
    "saliency-all": Recipe(partial(takers.Saliency, roles=("attention", "mlp")), absolute=True, exact=True),
    "synflow": Recipe(takers.SynapticFlow, absolute=True, along=True),
    "synflow:sign=absolute": Recipe(takers.Snip, absolute=True, exact=True),
    "log-synflow": Recipe(takers.LogSynflow, absolute=True, exact=True),
    "snip": Recipe(takers.Snip),
    "plain": Recipe(takers.Plain),
    "grad_norm": Recipe(takers.GradientNorm),
    "autoproxa": Recipe(takers.AutoProxA),
    "zico": Recipe(takers.Zico),
    "fisher": Recipe(takers.Fisher),
    "naswot": Recipe(takers.Naswot),
    "linear_regions": Recipe(takers.LinearRegions),
    "entropy": Recipe(takers.Entropy),
    "grasp": Recipe(takers.Grasp, along=True),
    "ntk": Recipe(takers.TangentKernel),
}
BATCHED = (*(name for name in RECIPES if ":" not in name), "autoproxp")
ROUGH, ROUGH_ON = {"snip", "grad_norm"}, ("cuda",)
"""Proxies that a rough pass serves, and where it pays."""

CENTRED, MANY_TOKENS = {"dss", "dss-signed", "dss-diversity", "synflow"}, 100
"""Proxies of the absolute network where nothing cancels, and tokens that average rounding out: see `centred.py`."""


def goes_batched(text: str, batch_size: int) -> bool:
    """Whether a proxy goes through in batches. ZiCo's batches must be there; where not, its definition says so."""
    proxy, options = parse_proxy(text)
    parts = int(options.get("batches", "2")) if proxy.name == "zico" else 1
    if proxy.formula is not None:
        return True
    return proxy.name in BATCHED and (parts == 1 or (batch_size % parts == 0 and batch_size >= 2 * parts))


def gradients_of_a_weight(text: str, batch_size: int) -> int:
    """How many a proxy looks at together: NTK at that of every image, ZiCo at those of the parts of a batch."""
    proxy, options = parse_proxy(text)
    return {"ntk": batch_size, "zico": int(options.get("batches", "2"))}.get(proxy.name, 1)


def recipe_of(text: str) -> tuple[Recipe | None, dict[str, str]]:
    """Of a proxy with its options, and the options that its taker has."""
    proxy, options = parse_proxy(text)
    if proxy.name == "synflow":  # another taker for each sign
        absolute = options.get("sign") == "absolute"
        return RECIPES["synflow:sign=absolute" if absolute else "synflow"], {}
    return RECIPES.get(proxy.name), options


@dataclass(frozen=True, slots=True)
class Route:
    """A kind of pass."""

    absolute: bool
    dtype: torch.dtype
    along: bool
    rough: bool = False
    centred: bool = False

    @property
    def finer(self) -> Route | None:
        """With more digits, for sums that cancel more than others and tokens that are less alike."""
        if self.centred:
            return replace(self, centred=False)
        if self.absolute and self.along and self.dtype != torch.float64:
            return replace(self, dtype=torch.float64)
        return None


def routes(proxies: Sequence[str], plan: Architecture, device: torch.device) -> dict[Route, list[str]]:
    """The passes that these proxies need, and who goes along in each; rough where nobody minds and it pays."""
    found: dict[Route, list[str]] = {}
    chosen = {text: parse_proxy(text)[0] for text in proxies}
    names = {text: proxy.name for text, proxy in chosen.items()}
    recipes = {text: recipe_of(text)[0] for text in names}
    along = any(recipe.along and not recipe.absolute for recipe in recipes.values() if recipe)
    for text, recipe in recipes.items():
        if chosen[text].formula is not None and chosen[text].needs_data:
            found.setdefault(Route(False, torch.float32, along), []).append(text)
        elif recipe is not None:
            route = Route(recipe.absolute, recipe.dtype, recipe.along if recipe.absolute else along)
            found.setdefault(route, []).append(text)
    rough = plan.readout == "mean" and device.type in ROUGH_ON
    halved = plan.readout == "mean" and len(plan.stages) == 1 and pays(device)
    return {
        replace(
            route,
            rough=rough and {names[text] for text in texts} <= ROUGH,
            centred=halved and {names[text] for text in texts} <= CENTRED,
        ): texts
        for route, texts in found.items()
    }


def score_group(
    plans: Sequence[Architecture],
    proxies: Sequence[str],
    *,
    geometry: Geometry,
    bank: WeightBank,
    batch: Callable[[], Batch],
    exact: bool = False,
) -> dict[str, Tensor]:
    """Scores of networks with the same skeleton, on the CPU, by proxy; NaN leaves a network to the definition.

    With `exact`, everything in float64.
    """
    scores: dict[str, Tensor] = {}
    for route, texts in routes(proxies, plans[0], bank.device).items():
        if exact:
            route = replace(route, dtype=torch.float64, rough=False, centred=False)
        elif plans[0].sides(geometry.image_size)[-1] ** 2 < MANY_TOKENS:
            route = replace(route, centred=False)
        scores |= _score_route(route, plans, texts, geometry, bank, batch)
    for text in proxies:
        proxy, options = parse_proxy(text)
        if proxy.formula is not None and not proxy.needs_data:
            values = [score_weights(proxy.formula, plan, bank) for plan in plans]
            scores[text] = torch.tensor(values, dtype=torch.float64)
        elif proxy.name == "autoproxp":
            scores[text] = torch.tensor([autoproxp(plan, bank, **options) for plan in plans], dtype=torch.float64)
    return scores


def _score_route(
    route: Route,
    plans: Sequence[Architecture],
    texts: Sequence[str],
    geometry: Geometry,
    bank: WeightBank,
    batch: Callable[[], Batch],
) -> dict[str, Tensor]:
    """Of one pass; what it leaves open, a finer one says where there is one."""
    takers = {text: _taker(text, plans, bank) for text in texts}
    run = GroupPass(
        plans=plans,
        bank=bank,
        absolute=route.absolute,
        dtype=route.dtype,
        takers=list(takers.values()),
        rough=route.rough,
        centred=route.centred,
    )
    run.run(None if route.absolute else batch(), geometry)
    found = {text: taker.scores().cpu() for text, taker in takers.items()}
    finer = route.finer
    if finer is not None:
        left = torch.stack([values.isnan() for values in found.values()]).any(0).nonzero()[:, 0].tolist()
        again = _score_route(finer, [plans[row] for row in left], texts, geometry, bank, batch) if left else {}
        for text, values in again.items():
            found[text][left] = values
    return found


def _taker(text: str, plans: Sequence[Architecture], bank: WeightBank) -> Taker:
    proxy, _ = parse_proxy(text)
    if proxy.formula is not None:
        return FormulaTaker(len(plans), bank, proxy.formula, plans)
    recipe, options = recipe_of(text)
    assert recipe is not None
    return recipe.maker(len(plans), bank, **options)


def autoproxp(plan: Architecture, bank: WeightBank, softmax: str = "mean") -> float:
    """AutoProxP from numbers that are found once for each distinct weight."""
    blocks = list(_block_weights(plan))
    norms = [bank.number("sigmoid norm", name, shape, sigmoid_norm) for (name, shape), _ in blocks]
    weights = [weight for _, pair in blocks for weight in pair]
    if softmax == "layers":
        sizes = [
            bank.number("norm", name, shape, lambda w: torch.linalg.vector_norm(w.double())) for name, shape in weights
        ]
        logs: list[float] = torch.tensor(sizes, dtype=torch.float64).log_softmax(0).tolist()
    else:
        find = partial(log_softmax, softmax=softmax)
        logs = [bank.number(f"log softmax {softmax}", name, shape, find) for name, shape in weights]
    return sum(norms) / len(norms) - sum(logs) / len(logs)


def _block_weights(plan: Architecture) -> Iterator[tuple[Named, tuple[Named, Named]]]:
    """For each block, its QKV weight and the two of its MLP."""
    for index, stage in enumerate(plan.stages):
        for number, block in enumerate(stage.blocks):
            assert isinstance(block, Attention)
            name, width, inner = f"stages.{index}.blocks.{number}", stage.width, block.heads * block.head_dim
            first, second = (block.hidden, width), (width, block.hidden)
            mlp = (f"{name}.mlp.fc1.weight", first), (f"{name}.mlp.fc2.weight", second)
            yield (f"{name}.attn.qkv.weight", (3 * inner, width)), mlp
