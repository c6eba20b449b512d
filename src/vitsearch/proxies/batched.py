"""Many networks at once: the same proxies, without building networks and without per-network weight gradients.

Networks are grouped by the widths of their stages. A group goes through the layers together, [n networks, B images,
S tokens, C channels]; at each block it splits into those that have the same heads, then into those that have the same
MLP, whose weights are the same tensor, so that every linear layer is one large matrix product. The backward pass hands
each linear layer its inputs X and output gradients dY for every network, from which a proxy takes what it needs:

    sum(g w)   = sum(dY * Y) over tokens, since Y = X w^T            (DSS's MLP term, SynFlow, plain)
    ||g||_nuc  from products of g = dY^T X with a few vectors         (DSS's attention term; see `pair_nuclear_norms`)
    |g w|, |g| from g itself                                          (SNIP, gradient norm)

Nuclear norms of weights are computed once for each distinct tensor. The one-at-a-time definitions in `saliency.py` and
`diversity.py` are the reference; tests and `benchmarks/scoring.py` compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch.architecture import Architecture, Attention, Patch, Pool
from vitsearch.cost import Geometry
from vitsearch.data import Batch
from vitsearch.models.layers import relative_maps
from vitsearch.models.weights import WeightBank
from vitsearch.proxies.base import Proxy
from vitsearch.proxies.diversity import pair_nuclear_norms, precision
from vitsearch.proxies.reporting import Reordered, TracedLinear, TracedNorm, TracedPatches, products_in

SUMMED = {
    "mlp": {"dss", "dss-signed", "dss-saliency", "saliency-all"},
    "attention": {"saliency-msa", "saliency-all"},
    "other": set[str](),
}
"""Which proxies add up gradient x weight over which linear layers."""
Tallies: TypeAlias = dict[str, Tensor]  # what is being added up, one number for each network

DSS = ("dss", "dss-signed", "dss-diversity")
SALIENCY = ("dss-saliency", "saliency-msa", "saliency-all", "synflow")
"""Sums of both signs that nearly cancel: in float64."""
ABSOLUTE = (*DSS, *SALIENCY)
ON_DATA = tuple(f"{name}{variant}" for name in ("snip", "plain", "grad_norm") for variant in ("", ":params=linear"))
BATCHED = (*ABSOLUTE, *ON_DATA, *(f"{name}:params=all" for name in ("snip", "plain", "grad_norm")))


def worth_batching(proxies: Mapping[str, Proxy]) -> list[str]:
    """Those that go through in batches: not where a network must be built for another proxy of the same pass anyway."""
    alone = {family(name, proxy) for name, proxy in proxies.items() if name not in BATCHED}
    return [name for name, proxy in proxies.items() if name in BATCHED and family(name, proxy) not in alone]


def family(name: str, proxy: Proxy) -> str:
    """The pass a proxy takes its numbers from."""
    if not proxy.needs_gradient:
        return "none"
    if proxy.needs_data:
        return "data"
    return "dss" if name in DSS else "synflow"


def can_batch(architecture: Architecture) -> bool:
    """Whether every part of the blueprint is of a kind that goes through together."""
    return all(
        isinstance(stage.entry, (Patch, Pool)) and all(isinstance(block, Attention) for block in stage.blocks)
        for stage in architecture.stages
    )


def skeleton(architecture: Architecture) -> tuple[Any, ...]:
    """What networks must have in common to go through together: everything but the blocks."""
    stages = tuple((stage.entry, stage.width) for stage in architecture.stages)
    rest = (architecture.class_token, architecture.position, architecture.readout, architecture.norm_eps)
    return (stages, rest, architecture.initialisation)


def score_group(
    plans: Sequence[Architecture],
    proxies: Sequence[str],
    *,
    geometry: Geometry,
    bank: WeightBank,
    batch: Callable[[], Batch],
) -> dict[str, Tensor]:
    """Scores of networks with the same skeleton, as float64 tensors on the CPU, by proxy."""
    passes: dict[tuple[bool, torch.dtype], list[str]] = {}
    for name in proxies:
        dtype = torch.float64 if name in SALIENCY else precision(plans[0]) if name in ABSOLUTE else torch.float32
        passes.setdefault((name in ABSOLUTE, dtype), []).append(name)
    scores: dict[str, Tensor] = {}
    for (absolute, dtype), names in passes.items():
        side = geometry.image_size
        if absolute:
            images = torch.ones(1, geometry.channels, side, side, device=bank.device, dtype=dtype)
            labels = None
        else:
            drawn = batch()
            images, labels = drawn.images.to(bank.device, dtype), drawn.labels.to(bank.device)
        wanted = {name: name.removesuffix(":params=all") for name in names}
        run = Pass(plans=plans, bank=bank, absolute=absolute, dtype=dtype, wanted=tuple(wanted.values()))
        run.forward_backward(images, labels, geometry)
        scores |= {name: run.tallies[plain].cpu() for name, plain in wanted.items()}
    return scores


@dataclass(frozen=True, slots=True)
class Step:
    """Half a block: networks of equal settings go in together, and those that have no more blocks leave the stage."""

    before: list[int]
    groups: list[list[int]]
    left: list[int]
    blocks: list[Attention]

    @property
    def order(self) -> list[int]:
        return [*(network for group in self.groups for network in group), *self.left]

    def indices(self) -> list[list[int]]:
        """Rows to take, rows to take on the way back, and the networks of each group."""
        return [_places(self.before, self.order), _places(self.order, self.before), *self.groups]


def _places(before: Sequence[int], after: Sequence[int]) -> list[int]:
    place = {network: row for row, network in enumerate(before)}
    return [place[network] for network in after]


def route(blocks: Sequence[Sequence[Attention]]) -> list[Step]:
    """The way of networks through a stage: first by attention, then by MLP, for each of their blocks."""
    steps: list[Step] = []
    order = list(range(len(blocks)))
    for number in range(max(map(len, blocks))):
        for key in (_attention_key, _mlp_key):
            members: dict[Any, list[int]] = {}
            for network in order:
                if number < len(blocks[network]):
                    members.setdefault(key(blocks[network][number]), []).append(network)
            groups = list(members.values())
            left = [network for network in order if number >= len(blocks[network])]
            steps.append(Step(order, groups, left, [blocks[group[0]][number] for group in groups]))
            order = [network for group in groups for network in group]
    return steps


def _attention_key(block: Attention) -> tuple[int, ...]:
    return block.heads, block.head_dim, block.relative_distance


def _mlp_key(block: Attention) -> int:
    return block.hidden


@dataclass
class Pass:
    """One forward and backward pass of a group, and what is added up on the way."""

    plans: Sequence[Architecture]
    bank: WeightBank
    absolute: bool
    dtype: torch.dtype
    wanted: Sequence[str]
    tallies: Tallies = field(default_factory=dict)
    small: list[Tensor] = field(default_factory=list)
    """Per-network copies of tokens, position and pooling, with the networks in front."""

    def __post_init__(self) -> None:
        self.count = len(self.plans)
        self.names = frozenset(self.wanted)
        self.everything = bool(self.names & {"synflow", "snip", "plain", "grad_norm"})
        self.sums = self.names & {"synflow", "plain"}
        self.last_blocks = False
        zeros = torch.zeros(self.count, device=self.bank.device, dtype=torch.float64)
        self.tallies = {name: zeros.clone() for name in self.wanted}
        self.all_networks = torch.arange(self.count, device=self.bank.device)

    # --- parameters

    def weight(self, name: str, shape: tuple[int, ...], inputs: int = 1) -> Tensor:
        return self.bank.get(name, shape, inputs, absolute=self.absolute, dtype=self.dtype)

    def own(self, name: str, shape: tuple[int, ...], inputs: int = 1) -> Tensor:
        """A small parameter with the networks in front; a leaf of its own where its gradient counts."""
        value = self.weight(name, shape, inputs).expand(self.count, *shape)
        if self.everything:
            value = value.clone().requires_grad_()
            self.small.append(value)
        return value

    def linear(self, x: Tensor, name: str, outputs: int, networks: Tensor) -> Tensor:
        inputs = x.shape[-1]
        weight = self.weight(f"{name}.weight", (outputs, inputs), inputs)
        bias = self.weight(f"{name}.bias", (outputs,), inputs)
        report = partial(self.on_linear, name=name, weight=weight, bias=bias, networks=networks)
        keep = ".mlp." in name or bool(
            self.names & {"synflow", "plain", "plain:params=linear", "saliency-msa", "saliency-all"}
        )
        exact = name == "head" or self.last_blocks
        return TracedLinear.apply(x, weight, bias, report, keep, exact)  # type: ignore[no-any-return]

    def tables(self, x: Tensor, name: str, kind: str, block: Attention, networks: Tensor) -> Tensor:
        """The relative position tables of rows and columns, one below the other: x T^T for keys, x T for values."""
        size = (block.relative_rows, block.head_dim)
        both = torch.cat([self.weight(f"{name}.relative.{kind}_{leaf}", size) for leaf in ("rows", "columns")])
        weight = both if kind == "key" else both.T
        if not self.everything:
            return F.linear(x, weight)
        report = partial(self.on_tables, weight=weight, dim=1 if kind == "key" else 2, networks=networks)
        return TracedLinear.apply(x, weight, None, report, bool(self.sums), False)  # type: ignore[no-any-return]

    def norm(self, x: Tensor, eps: float, networks: Tensor) -> Tensor:
        if not self.everything:  # at initialisation the weight is 1 and the bias 0
            return F.layer_norm(x, (x.shape[-1],), eps=eps)
        return TracedNorm.apply(x, eps, partial(self.on_norm, networks=networks))  # type: ignore[no-any-return]

    # --- what proxies take

    def add(self, name: str, networks: Tensor, values: Tensor) -> None:
        self.tallies[name].index_add_(0, networks, values.double())

    def on_linear(
        self, x: Tensor, dy: Tensor, y: Tensor | None, *, name: str, weight: Tensor, bias: Tensor, networks: Tensor
    ) -> None:
        """x [n, tokens, inputs], dy and y [n, tokens, outputs]; x and y without n where all networks have the same."""
        role = "attention" if ".attn." in name else "mlp" if ".mlp." in name else "other"
        diversity = self.names & {"dss", "dss-signed", "dss-diversity"}
        if diversity and role == "attention":
            norms = pair_nuclear_norms(dy, x)
            for variant in sorted(diversity):
                absolute, shape = variant != "dss-signed", tuple(weight.shape)
                of_weight = self.bank.nuclear_norm(f"{name}.weight", shape, absolute=absolute)
                self.add(variant, networks, norms * of_weight)
        salient = self.names & SUMMED[role]
        if salient and y is not None:
            saliency = _total(dy, y) - self._with_bias(dy, bias).sum(1)
            for variant in salient:
                self.add(variant, networks, saliency)
        linear = not name.endswith("entry.proj")  # a convolution
        self._on_products(dy, y, bias, linear, networks)
        self._on_gradients(x, dy, weight, bias, linear, networks)

    def _with_bias(self, dy: Tensor, bias: Tensor) -> Tensor:
        """Gradient times value of a bias, [n, outputs]."""
        return (dy.sum(1) * bias).double()

    def _on_products(self, dy: Tensor, y: Tensor | None, bias: Tensor, linear: bool, networks: Tensor) -> None:
        of_linears = linear and "plain:params=linear" in self.names
        if y is None or not (self.sums or of_linears):
            return
        both = _total(dy, y)
        for name in self.sums:
            self.add(name, networks, both)
        if of_linears:
            self.add("plain:params=linear", networks, both - self._with_bias(dy, bias).sum(1))

    def _on_gradients(
        self, x: Tensor, dy: Tensor, weight: Tensor, bias: Tensor, linear: bool, networks: Tensor
    ) -> None:
        chosen = self.names & {"snip", "grad_norm"}
        of_linears = self.names & {"snip:params=linear", "grad_norm:params=linear"} if linear else frozenset()
        if not (chosen or of_linears):
            return
        gradient = dy.transpose(1, 2) @ x
        for name in ("snip", "grad_norm"):
            if name not in chosen and f"{name}:params=linear" not in of_linears:
                continue
            of_weight = _magnitude(name, gradient, weight).double()
            if f"{name}:params=linear" in of_linears:
                self.add(f"{name}:params=linear", networks, of_weight)
            if name in chosen:
                self.add(name, networks, of_weight + _magnitude(name, dy.sum(1)[:, None], bias).double())

    def on_tables(self, x: Tensor, dy: Tensor, y: Tensor | None, *, weight: Tensor, dim: int, networks: Tensor) -> None:
        """As a linear layer without bias, whose weight is two parameters side by side."""
        if y is not None:
            both = _total(dy, y)
            for name in self.sums:
                self.add(name, networks, both)
        chosen = self.names & {"snip", "grad_norm"}
        if chosen:
            halves = zip((dy.transpose(1, 2) @ x).chunk(2, dim), weight.chunk(2, dim - 1), strict=True)
            for gradient, values in halves:
                for name in chosen:
                    self.add(name, networks, _magnitude(name, gradient, values))

    def on_norm(self, y: Tensor, dy: Tensor, *, networks: Tensor) -> None:
        """The gradient of the weight is the sum of dy * y. The bias is zero: it counts in the gradient norm alone."""
        gradient = (dy * y).sum(1)
        for name in self.sums:
            self.add(name, networks, gradient.sum(1, dtype=torch.float64))
        if "snip" in self.names:
            self.add("snip", networks, gradient.abs().sum(1))
        if "grad_norm" in self.names:
            norms = torch.linalg.vector_norm(torch.stack([gradient, dy.sum(1)]), dim=2)
            self.add("grad_norm", networks, norms.sum(0))

    def on_small(self, gradients: Sequence[Tensor | None]) -> None:
        for value, gradient in zip(self.small, gradients, strict=True):
            if gradient is None:
                continue
            flat = gradient.flatten(1)[:, None], value.detach().flatten(1)[:, None]
            for name in self.sums:
                self.add(name, self.all_networks, _total(*flat))
            for name in self.names & {"snip", "grad_norm"}:
                self.add(name, self.all_networks, _magnitude(name, *flat))

    # --- the networks

    def forward_backward(self, images: Tensor, labels: Tensor | None, geometry: Geometry) -> None:
        """Where nothing but sums of magnitudes over weight gradients is wanted and the mean token is read, in TF32.

        There every element has its own rounding error of about 3e-4, and in a sum of thousands these vanish. The
        classifier and the last blocks, whose gradients are nearly the same for all tokens, stay in float32: their
        errors would not.
        """
        sums = {f"{name}{variant}" for name in ("snip", "grad_norm") for variant in ("", ":params=linear")}
        rough = self.names <= sums and self.plans[0].readout == "mean"
        anchor = torch.zeros((), device=images.device, dtype=images.dtype, requires_grad=True)
        with torch.enable_grad(), products_in("high" if rough else "highest"):
            logits = self.logits(images, anchor, geometry)
            if labels is None:
                loss = logits.sum()
            else:
                flat = logits.flatten(0, 1)
                loss = F.cross_entropy(flat, labels.repeat(self.count), reduction="sum") / len(labels)
            gradients = torch.autograd.grad(loss, [anchor, *self.small], allow_unused=True)
        self.on_small(gradients[1:])

    def logits(self, images: Tensor, anchor: Tensor, geometry: Geometry) -> Tensor:
        plan = self.plans[0]
        sides = plan.sides(geometry.image_size)
        x = images
        for index, (stage, side) in enumerate(zip(plan.stages, sides, strict=True)):
            name = f"stages.{index}"
            if isinstance(stage.entry, Patch):
                x = self.embed(x, stage.entry, stage.width, anchor)
            else:
                x = self.pool(x, f"{name}.entry", stage.width, sides[index - 1])
            x = self.stage(x, [other.stages[index].blocks for other in self.plans], name, side)
        x = self.norm(x, plan.norm_eps, self.all_networks)
        extra = int(plan.class_token)
        pooled = x[:, :, extra:].mean(2) if plan.readout == "mean" else x[:, :, 0]
        return self.linear(pooled[:, :, None], "head", geometry.classes, self.all_networks)[:, :, 0]

    def embed(self, images: Tensor, entry: Patch, width: int, anchor: Tensor) -> Tensor:
        """Patches, class token, position: [n, B, S, C]."""
        plan, channels = self.plans[0], images.shape[1]
        patches = F.unfold(images, entry.size, stride=entry.stride).transpose(1, 2)  # [B, N, channels * size * size]
        name, inputs = "stages.0.entry.proj", patches.shape[-1]
        weight = self.weight(f"{name}.weight", (width, channels, entry.size, entry.size), inputs).flatten(1)
        bias = self.weight(f"{name}.bias", (width,), inputs)
        report = partial(self.on_linear, name=name, weight=weight, bias=bias, networks=self.all_networks)
        x: Tensor = TracedPatches.apply(anchor, patches, weight, bias, self.count, report)
        tokens = patches.shape[1] + (1 if plan.class_token and plan.position == "all" else 0)
        table = None
        if plan.position != "none":
            table = self.own("pos_embed", (1, tokens, width))[:, None, 0]
        if table is not None and plan.position == "patches":
            x, table = x + table, None
        if plan.class_token:
            token = self.own("cls_token", (1, 1, width))[:, None, 0]
            x = torch.cat([token.expand(-1, x.shape[1], -1, -1), x], 2)
        return x if table is None else x + table

    def pool(self, x: Tensor, name: str, width: int, side: int) -> Tensor:
        """PiT's pooling, with the convolution as a product over unfolded 3x3 patches."""
        before, extra = x.shape[-1], int(self.plans[0].class_token)
        maps = x[:, :, extra:].transpose(2, 3).reshape(-1, before, side, side)
        columns = F.unfold(maps, 3, stride=2, padding=1)
        columns = columns.reshape(self.count, x.shape[1], before, 9, columns.shape[-1])
        weight = self.own(f"{name}.conv.weight", (width, 1, 3, 3), inputs=9)
        weight = weight.reshape(self.count, before, width // before, 9)
        bias = self.own(f"{name}.conv.bias", (width,), inputs=9)
        pooled = torch.einsum("nbckl,ncmk->nblcm", columns, weight).flatten(-2) + bias[:, None, None]
        if not extra:
            return pooled
        return torch.cat([self.linear(x[:, :, :1], f"{name}.fc", width, self.all_networks), pooled], 2)

    def stage(self, x: Tensor, blocks: Sequence[Sequence[Any]], name: str, side: int) -> Tensor:
        """All blocks of a stage. Networks change places so that equal ones are neighbours, and end in their order."""
        steps = route(blocks)
        at_end = [network for group in steps[-1].groups for network in group]
        at_end += [network for step in steps for network in step.left]
        lists = [indices for step in steps for indices in step.indices()]
        lists += [_places(at_end, range(self.count)), at_end]
        on_device = torch.tensor([index for indices in lists for index in indices]).to(x.device, non_blocking=True)
        tensors = iter(torch.split(on_device, [len(indices) for indices in lists]))  # one transfer for all
        gone: list[Tensor] = []
        for number, step in enumerate(steps):
            there, back = next(tensors), next(tensors)
            if step.order != step.before:
                x = Reordered.apply(x, there, back)
            *parts, left = torch.split(x, [*map(len, step.groups), len(step.left)])
            self.last_blocks = number // 2 + 1 >= min(map(len, blocks))
            half = self.mlp_half if number % 2 else partial(self.attention_half, side=side)
            where = f"{name}.blocks.{number // 2}"
            done = [half(part, block, next(tensors), where) for part, block in zip(parts, step.blocks, strict=True)]
            x = torch.cat(done) if len(done) > 1 else done[0]
            gone += [left] if step.left else []
        self.last_blocks = False
        x = Reordered.apply(torch.cat([x, *gone]), next(tensors), next(tensors))
        return x

    def attention_half(self, x: Tensor, block: Attention, networks: Tensor, name: str, *, side: int) -> Tensor:
        inner = block.heads * block.head_dim
        normal = self.norm(x, self.plans[0].norm_eps, networks)
        qkv = self.linear(normal, f"{name}.attn.qkv", 3 * inner, networks)
        qkv = qkv.reshape(*qkv.shape[:3], 3, block.heads, block.head_dim)
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5)  # each [n, B, H, S, D]
        out = self.attention(q, k, v, block, f"{name}.attn", side, networks)
        return x + self.linear(out.transpose(2, 3).flatten(-2), f"{name}.attn.proj", x.shape[-1], networks)

    def mlp_half(self, x: Tensor, block: Attention, networks: Tensor, name: str) -> Tensor:
        normal = self.norm(x, self.plans[0].norm_eps, networks)
        hidden = self.linear(normal, f"{name}.mlp.fc1", block.hidden, networks)
        return x + self.linear(F.gelu(hidden), f"{name}.mlp.fc2", x.shape[-1], networks)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, block: Attention, name: str, side: int, networks: Tensor
    ) -> Tensor:
        """With relative position, q, k and v get channels for each grid row, each grid column and the class token."""
        width = block.head_dim
        if block.relative_distance:
            choice, cells = _relative(side, block.relative_distance, q.device, q.dtype)
            by_offset = self.tables(q, name, "key", block, networks)  # [n, B, H, S, 2 R]
            cells = cells.expand(*q.shape[:-1], -1)
            q = torch.cat([q, _per_token(by_offset, choice)], -1)
            k, v = torch.cat([k, cells], -1), torch.cat([v, cells], -1)
        # spelled out: torch's fused kernels are slower for so few tokens, and on a GPU never twice the same
        out: Tensor = ((q * width**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v
        if block.relative_distance:
            mass = _per_token(out[..., width:], choice.transpose(1, 2))
            out = out[..., :width] + self.tables(mass, name, "value", block, networks)
        return out


def _total(dy: Tensor, y: Tensor) -> Tensor:
    """sum(dy * y) for each network, in float64."""
    return (dy * y).sum(2).sum(1, dtype=torch.float64)


def _magnitude(name: str, gradient: Tensor, value: Tensor) -> Tensor:
    """What SNIP and the gradient norm take of a parameter, for each network: [n, a, b] and [a, b]."""
    if name == "snip":
        return (gradient * value).abs().sum((1, 2))
    norm: Tensor = torch.linalg.vector_norm(gradient, dim=(1, 2))
    return norm


@lru_cache(maxsize=32)
def _relative(side: int, distance: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """From offsets to places, for each query: [S, 2 R, 2 side + 1 + padding]; and the place of each key."""
    maps = relative_maps(side, distance)
    rows = maps.row_choice.shape[1]
    choice = torch.zeros(len(maps.row_choice), 2 * rows, 2 * side + 1)
    choice[:, :rows, :side], choice[:, rows:, side:-1] = maps.row_choice, maps.column_choice
    choice[:, 0, -1] = choice[:, rows, -1] = 1.0
    padding = (0, -choice.shape[-1] % 8)  # fused kernels want whole vectors
    return F.pad(choice, padding).to(device, dtype), F.pad(maps.key_cells, padding).to(device, dtype)


def _per_token(x: Tensor, choice: Tensor) -> Tensor:
    """[..., S, a] times [S, a, b]: another matrix for each token."""
    lead = x.shape[:-2]
    return (x.flatten(0, -3).transpose(0, 1) @ choice).transpose(0, 1).reshape(*lead, x.shape[-2], choice.shape[-1])


def group_by_skeleton(plans: Mapping[int, Architecture]) -> list[list[int]]:
    """Numbers of plans that can go through together, in a fixed order."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, plan in plans.items():
        groups.setdefault(skeleton(plan), []).append(number)
    return list(groups.values())
