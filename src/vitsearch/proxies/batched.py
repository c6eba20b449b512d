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
from vitsearch.proxies.diversity import pair_nuclear_norms, precision

Report: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]  # inputs, output gradients, outputs of a linear layer
Tallies: TypeAlias = dict[str, Tensor]  # what is being added up, one number for each network

ABSOLUTE = ("dss", "dss-signed", "synflow")
ON_DATA = tuple(f"{name}{variant}" for name in ("snip", "plain", "grad_norm") for variant in ("", ":params=linear"))
BATCHED = (*ABSOLUTE, *ON_DATA, *(f"{name}:params=all" for name in ("snip", "plain", "grad_norm")))


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
        dtype = torch.float64 if name == "synflow" else precision(plans[0]) if name in ABSOLUTE else torch.float32
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


class TracedLinear(torch.autograd.Function):
    """A linear layer that reports (X, dY, Y) in the backward pass and forms no weight gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, report: Report) -> Tensor:
        y = F.linear(x, weight, bias)
        ctx.save_for_backward(x, weight, y)
        ctx.report = report
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        x, weight, y = ctx.saved_tensors
        ctx.report(x.flatten(1, 2), gradients[0].flatten(1, 2), y.flatten(1, 2))
        return gradients[0] @ weight, None, None, None


class TracedPatches(torch.autograd.Function):
    """The patch embedding, the same for all `count` networks. `anchor` ties it to the graph."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, x: Tensor, weight: Tensor, bias: Tensor, count: int, report: Report
    ) -> Tensor:
        y = F.linear(x, weight, bias)
        ctx.save_for_backward(x, y)
        ctx.report = report
        return y.expand(count, *y.shape).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        x, y = ctx.saved_tensors
        ctx.report(x.flatten(0, 1), gradients[0].flatten(1, 2), y.flatten(0, 1))
        return gradients[0].new_zeros(()), None, None, None, None, None


@dataclass
class Pass:
    """One forward and backward pass of a group, and what is added up on the way."""

    plans: Sequence[Architecture]
    bank: WeightBank
    absolute: bool
    dtype: torch.dtype
    wanted: Sequence[str]
    tallies: Tallies = field(default_factory=dict)
    small: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Per-network copies of tokens, tables and norms, with the networks they belong to."""

    def __post_init__(self) -> None:
        self.count = len(self.plans)
        self.everything = any(name in ("synflow", "snip", "plain", "grad_norm") for name in self.wanted)
        zeros = torch.zeros(self.count, device=self.bank.device, dtype=torch.float64)
        self.tallies = {name: zeros.clone() for name in self.wanted}
        self.all_networks = torch.arange(self.count, device=self.bank.device)

    # --- parameters

    def weight(self, name: str, shape: tuple[int, ...], inputs: int = 1) -> Tensor:
        return self.bank.get(name, shape, inputs, absolute=self.absolute, dtype=self.dtype)

    def own(self, name: str, shape: tuple[int, ...], networks: Tensor, inputs: int = 1) -> Tensor:
        """A small parameter with the networks in front; a leaf of its own where its gradient counts."""
        value = self.weight(name, shape, inputs).expand(len(networks), *shape)
        if self.everything:
            value = value.clone().requires_grad_()
            self.small.append((value, networks))
        return value

    def linear(self, x: Tensor, name: str, outputs: int, networks: Tensor) -> Tensor:
        inputs = x.shape[-1]
        weight = self.weight(f"{name}.weight", (outputs, inputs), inputs)
        bias = self.weight(f"{name}.bias", (outputs,), inputs)
        report = partial(self.on_linear, name=name, weight=weight, bias=bias, networks=networks)
        return TracedLinear.apply(x, weight, bias, report)  # type: ignore[no-any-return]

    def norm(self, x: Tensor, name: str, eps: float, networks: Tensor) -> Tensor:
        width = x.shape[-1]
        x = F.layer_norm(x, (width,), eps=eps)
        if not self.everything:  # at initialisation the weight is 1 and the bias 0
            return x
        weight, bias = (self.own(f"{name}.{leaf}", (width,), networks) for leaf in ("weight", "bias"))
        return x * weight[:, None, None] + bias[:, None, None]

    # --- what proxies take

    def add(self, name: str, networks: Tensor, values: Tensor) -> None:
        self.tallies[name].index_add_(0, networks, values.double())

    def on_linear(
        self, x: Tensor, dy: Tensor, y: Tensor, *, name: str, weight: Tensor, bias: Tensor, networks: Tensor
    ) -> None:
        """x [n, tokens, inputs], dy and y [n, tokens, outputs]; x and y without n where all networks have the same."""
        kind = name.rpartition(".")[2]
        role = "attention" if ".attn." in name else "mlp" if ".mlp." in name else "other"
        bias_gradient = dy.sum(1)
        with_bias = (bias_gradient * bias).double()
        if "dss" in self.wanted or "dss-signed" in self.wanted:
            if role == "attention":
                norms = pair_nuclear_norms(dy, x)
                for variant in {"dss", "dss-signed"} & set(self.wanted):
                    of_weight = self.bank.nuclear_norm(f"{name}.weight", tuple(weight.shape), absolute=variant == "dss")
                    self.add(variant, networks, norms * of_weight)
            elif role == "mlp":
                saliency = (dy * y).sum((1, 2), dtype=torch.float64) - with_bias.sum(1)
                for variant in {"dss", "dss-signed"} & set(self.wanted):
                    self.add(variant, networks, saliency)
        linear = kind != "proj" or role == "attention"  # entry.proj is a convolution
        self._on_all(x, dy, y, weight, bias_gradient, with_bias, linear, networks)

    def _on_all(
        self,
        x: Tensor,
        dy: Tensor,
        y: Tensor,
        weight: Tensor,
        bias_gradient: Tensor,
        with_bias: Tensor,
        linear: bool,
        networks: Tensor,
    ) -> None:
        names = set(self.wanted)
        if names & {"synflow", "plain", "plain:params=linear"}:
            both = (dy * y).sum((1, 2), dtype=torch.float64)
            for name in names & {"synflow", "plain"}:
                self.add(name, networks, both)
            if linear and "plain:params=linear" in names:
                self.add("plain:params=linear", networks, both - with_bias.sum(1))
        if names & {"snip", "snip:params=linear", "grad_norm", "grad_norm:params=linear"}:
            gradient = dy.transpose(1, 2) @ x
            self._on_gradient("snip", (gradient * weight).abs().sum((1, 2)), with_bias.abs().sum(1), linear, networks)
            norms = torch.linalg.vector_norm(gradient, dim=(1, 2)), torch.linalg.vector_norm(bias_gradient, dim=1)
            self._on_gradient("grad_norm", *norms, linear, networks)

    def _on_gradient(self, name: str, of_weight: Tensor, of_bias: Tensor, linear: bool, networks: Tensor) -> None:
        if name in self.wanted:
            self.add(name, networks, of_weight.double() + of_bias.double())
        if linear and f"{name}:params=linear" in self.wanted:
            self.add(f"{name}:params=linear", networks, of_weight)

    def on_small(self, gradients: Sequence[Tensor | None]) -> None:
        for (value, networks), gradient in zip(self.small, gradients, strict=True):
            if gradient is None:
                continue
            product = (gradient * value.detach()).flatten(1).double()
            terms = {
                "synflow": product.sum(1),
                "plain": product.sum(1),
                "snip": product.abs().sum(1),
                "grad_norm": torch.linalg.vector_norm(gradient.flatten(1), dim=1),
            }
            for name in set(terms) & set(self.wanted):
                self.add(name, networks, terms[name])

    # --- the networks

    def forward_backward(self, images: Tensor, labels: Tensor | None, geometry: Geometry) -> None:
        anchor = torch.zeros((), device=images.device, dtype=images.dtype, requires_grad=True)
        with torch.enable_grad():
            logits = self.logits(images, anchor, geometry)
            if labels is None:
                loss = logits.sum()
            else:
                flat = logits.flatten(0, 1)
                loss = F.cross_entropy(flat, labels.repeat(self.count), reduction="sum") / len(labels)
            leaves = [anchor, *(value for value, _ in self.small)]
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
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
            blocks = [other.stages[index].blocks for other in self.plans]
            for number in range(max(map(len, blocks))):
                here = [own[number] if number < len(own) else None for own in blocks]
                x = self.blocks(x, here, f"{name}.blocks.{number}", side)
        x = self.norm(x, "norm", plan.norm_eps, self.all_networks)
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
            table = self.own("pos_embed", (1, tokens, width), self.all_networks)[:, None, 0]
        if table is not None and plan.position == "patches":
            x, table = x + table, None
        if plan.class_token:
            token = self.own("cls_token", (1, 1, width), self.all_networks)[:, None, 0]
            x = torch.cat([token.expand(-1, x.shape[1], -1, -1), x], 2)
        return x if table is None else x + table

    def pool(self, x: Tensor, name: str, width: int, side: int) -> Tensor:
        """PiT's pooling, with the convolution as a product over unfolded 3x3 patches."""
        before, extra = x.shape[-1], int(self.plans[0].class_token)
        maps = x[:, :, extra:].transpose(2, 3).reshape(-1, before, side, side)
        columns = F.unfold(maps, 3, stride=2, padding=1)
        columns = columns.reshape(self.count, x.shape[1], before, 9, columns.shape[-1])
        weight = self.own(f"{name}.conv.weight", (width, 1, 3, 3), self.all_networks, inputs=9)
        weight = weight.reshape(self.count, before, width // before, 9)
        bias = self.own(f"{name}.conv.bias", (width,), self.all_networks, inputs=9)
        pooled = torch.einsum("nbckl,ncmk->nblcm", columns, weight).flatten(-2) + bias[:, None, None]
        if not extra:
            return pooled
        return torch.cat([self.linear(x[:, :, :1], f"{name}.fc", width, self.all_networks), pooled], 2)

    def blocks(self, x: Tensor, blocks: Sequence[Any], name: str, side: int) -> Tensor:
        """One position in the depth: attention with those of equal heads, then the MLP with those of equal width."""
        heads = [None if block is None else (block.heads, block.head_dim, block.relative_distance) for block in blocks]
        x = self.split(x, blocks, heads, partial(self.attention_half, name=name, side=side))
        hidden = [None if block is None else block.hidden for block in blocks]
        return self.split(x, blocks, hidden, partial(self.mlp_half, name=name))

    def split(self, x: Tensor, blocks: Sequence[Any], keys: Sequence[Any], half: Callable[..., Tensor]) -> Tensor:
        """Networks with equal keys go on together; those with the key None have no block here and stay as they are."""
        members: dict[Any, list[int]] = {}
        for network, key in enumerate(keys):
            members.setdefault(key, []).append(network)
        if len(members) == 1 and None not in members:
            return half(x, blocks[0], self.all_networks)
        groups = list(members.values())
        sizes = [len(group) for group in groups]
        order = torch.tensor([network for group in groups for network in group])
        moved = torch.cat([order, order.argsort()]).to(x.device, non_blocking=True)  # one transfer for all indices
        there, back = moved[: self.count], moved[self.count :]
        parts = [
            part if key is None else half(part, blocks[group[0]], networks)
            for key, group, networks, part in zip(
                members, groups, torch.split(there, sizes), torch.split(x.index_select(0, there), sizes), strict=True
            )
        ]
        return torch.cat(parts).index_select(0, back)

    def attention_half(self, x: Tensor, block: Attention, networks: Tensor, *, name: str, side: int) -> Tensor:
        inner = block.heads * block.head_dim
        normal = self.norm(x, f"{name}.norm1", self.plans[0].norm_eps, networks)
        qkv = self.linear(normal, f"{name}.attn.qkv", 3 * inner, networks)
        qkv = qkv.reshape(*qkv.shape[:3], 3, block.heads, block.head_dim)
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5)  # each [n, B, H, S, D]
        out = self.attention(q, k, v, block, f"{name}.attn", side, networks)
        return x + self.linear(out.transpose(2, 3).flatten(-2), f"{name}.attn.proj", x.shape[-1], networks)

    def mlp_half(self, x: Tensor, block: Attention, networks: Tensor, *, name: str) -> Tensor:
        normal = self.norm(x, f"{name}.norm2", self.plans[0].norm_eps, networks)
        hidden = self.linear(normal, f"{name}.mlp.fc1", block.hidden, networks)
        return x + self.linear(F.gelu(hidden), f"{name}.mlp.fc2", x.shape[-1], networks)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, block: Attention, name: str, side: int, networks: Tensor
    ) -> Tensor:
        scale = block.head_dim**-0.5
        if not block.relative_distance:
            shape = q.shape
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, scale=scale).view(shape)
        size = (block.relative_rows, block.head_dim)
        leaves = ("key_rows", "key_columns", "value_rows", "value_columns")
        tables = [self.own(f"{name}.relative.{leaf}", size, networks)[:, None, None] for leaf in leaves]
        choices = _choices(side, block.relative_distance, q.device, q.dtype)
        by_row, by_column = (q @ table.transpose(-2, -1) for table in tables[:2])  # [n, B, H, S, R]
        rows, columns = (_per_token(by, choice) for by, choice in zip((by_row, by_column), choices, strict=True))
        patches = (rows[..., :, None] + columns[..., None, :]).flatten(-2)
        logits = q @ k.transpose(-2, -1) + torch.cat([by_row[..., :1] + by_column[..., :1], patches], -1)
        weights = (logits * scale).softmax(-1)
        at_class = F.pad(weights[..., :1], (0, block.relative_rows - 1))
        grid = weights[..., 1:].reshape(*weights.shape[:-1], side, side)
        by_row = at_class + _per_token(grid.sum(-1), choices[0].transpose(1, 2))
        by_column = at_class + _per_token(grid.sum(-2), choices[1].transpose(1, 2))
        out: Tensor = weights @ v + by_row @ tables[2] + by_column @ tables[3]
        return out


@lru_cache(maxsize=32)
def _choices(side: int, distance: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    maps = relative_maps(side, distance)
    return maps.row_choice.to(device, dtype), maps.column_choice.to(device, dtype)


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
