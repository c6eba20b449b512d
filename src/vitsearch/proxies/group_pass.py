"""Networks of one skeleton go forward and back together, and takers see what they pass.

A group goes through the layers as [n networks, rows, S tokens, C channels]; a row is an image or, in a pass `along`,
its derivative. At each block the group splits into those that have the same heads, then into those that have the same
MLP, whose weights are the same tensor, so that every linear layer is one large matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch.architecture import Architecture, Attention, Patch
from vitsearch.cost import Geometry
from vitsearch.data import Batch
from vitsearch.models.kernels import runs_kernels
from vitsearch.models.weights import Form, WeightBank
from vitsearch.proxies.along import AttentionAlong, GeluAlong, NormAlong, Rows, halves
from vitsearch.proxies.centred import HALF, MOST_SPREAD, AttentionHalf, Layer, MlpHalf, Relative, relative, spread_of
from vitsearch.proxies.diversity import Around
from vitsearch.proxies.forward_along import attention_forward, mlp_forward, normal_sums
from vitsearch.proxies.offsets import WHOLE, one_at, per_token, to_places
from vitsearch.proxies.reporting import Reordered, TracedLinear, TracedNorm, TracedPatches, Watched, products_in
from vitsearch.proxies.reports import Centred, Linear, Norm, Pooled, Report, Small, Tables
from vitsearch.proxies.routing import places, route
from vitsearch.proxies.takers import Taker

MOST_SIDE, HEADS = 14, (16, 32, 64)
"""Of a grid, and the widths of heads, for which kernels of ours have room."""
BEHIND_NORM, BEFORE_NORM = ("attn.qkv", "mlp.fc1", "head"), ("attn.proj", "mlp.fc2")
"""Layers that read what a norm gave, and those whose outputs nothing but norms and poolings read."""


ROUNDING, ROUNDING_CENTRED = {torch.float32: 3e-7, torch.float64: 1e-12}, 7e-7


@dataclass
class GroupPass:
    """One forward pass of a group, and the backward passes that its takers ask for.

    A `rough` pass is for takers of nothing but sums of magnitudes over weight gradients, with a loss to which all
    tokens contribute. What goes into matrix products is rounded to float16: ten bits, as many as TF32 would leave of
    it, in half the memory. Every element of a gradient has its own rounding error of about 3e-4, and in a sum of
    thousands these vanish. The residual stream stays float32; so do the classifier and the last blocks, whose
    gradients are nearly the same for all tokens, so that their errors would not vanish.

    In an absolute network weights are positive, so that all channels of a token have nearly the same value, which the
    next norm takes away, and the products of a layer with what a norm gave, whose channels sum up to zero, nearly
    cancel: float32 has three digits left in the end. So no layer gets to see that value. With y of sum zero, and
    gradients of sum zero from every norm, these are the same numbers but for rounding:

        w . y = (w - mean over inputs) . y,        norm(x) = norm(x - mean over channels)

    and float32 has six digits. Only PiT's poolings read the mean over channels: before them it is one more channel.
    """

    plans: Sequence[Architecture]
    bank: WeightBank
    absolute: bool
    dtype: torch.dtype
    takers: Sequence[Taker]
    rough: bool = False
    centred: bool = False
    """Blocks as `centred.py` has them, for takers of nothing but linear layers; along, their attention alone."""

    def __post_init__(self) -> None:
        self.count = len(self.plans)
        self.along = any(taker.along for taker in self.takers)
        self.rows = Rows(along=self.along)
        self.everything = any(taker.sees_everything for taker in self.takers)
        self.parts = max(taker.parts for taker in self.takers)
        self.listening: list[Taker] = []
        self.small: list[tuple[str, Tensor]] = []
        self.images = 0
        self.last_blocks = self.in_block = False
        self.settled = self.absolute and not any(taker.sees_elements for taker in self.takers)
        """Whether weights are without their means, and what is not in a block in float64: it is little work."""
        self.forward = self.absolute and self.along
        """Whether nothing goes back: derivatives of the logits along all parameters are all that is asked for."""
        self.apart = False
        """Whether the last channel of tokens is the mean of the others, which are without it."""
        self.kernels = False
        """Whether blocks go through kernels of ours."""
        self.all_networks = torch.arange(self.count, device=self.bank.device)
        self.leading = int(self.plans[0].class_token)
        """Tokens that are unlike all others."""

    # --- parameters

    def weight(
        self,
        name: str,
        shape: tuple[int, ...],
        inputs: int = 1,
        dtype: torch.dtype | None = None,
        form: Form = "plain",
    ) -> Tensor:
        return self.bank.get(name, shape, inputs, absolute=self.absolute, dtype=dtype or self.dtype, form=form)

    def form(self, layer: str) -> Form:
        """Of the weight of a linear layer of this name."""
        if not self.settled or not layer.endswith(BEHIND_NORM + BEFORE_NORM):
            return "plain"
        return "inputs" if layer.endswith(BEHIND_NORM) else "apart" if self.apart else "outputs"

    @property
    def rounding(self) -> float:
        """How wrong what the classifier reads may be, for its size: twice what was seen in `forward` passes."""
        return ROUNDING_CENTRED if self.centred else ROUNDING[self.dtype]

    @property
    def outside(self) -> torch.dtype:
        """What is not in a block has."""
        return torch.float64 if self.settled else self.dtype

    def settle(self, x: Tensor) -> Tensor:
        """Tokens as blocks see them."""
        if not self.settled:
            return x
        mean = x.mean(-1, keepdim=True)
        x = x - mean
        return (torch.cat([x, mean], -1) if self.apart else x).to(self.dtype)

    def own(self, name: str, shape: tuple[int, ...], inputs: int = 1) -> Tensor:
        """A small parameter for every network and row; leaves of the graph where their gradients count."""
        rows = self.images * (2 if self.along else 1)
        value = self.weight(name, shape, inputs, self.outside).expand(self.count, rows, *shape)
        if self.everything:
            value = value.clone().requires_grad_(torch.is_grad_enabled())
            self.small.append((name, value))
        return value

    def linear(self, x: Tensor, name: str, outputs: int, networks: Tensor) -> Tensor:
        inputs, form = x.shape[-1], self.form(name)
        leaves = [(f"{name}.weight", (outputs, inputs)), (f"{name}.bias", (outputs,))]
        weight, bias = (self.weight(*leaf, inputs) for leaf in leaves)
        used, added = self.used(name, outputs, inputs, x.dtype)
        told = self.on_apart if form == "apart" else partial(self.on_linear, Linear)
        report = partial(told, name=name, weight=weight, bias=bias, networks=networks)
        exact = name == "head" or self.last_blocks
        y: Tensor = TracedLinear.apply(x, used, added, report, self.keeps(name), exact, self.rows)
        return y

    def used(self, name: str, outputs: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The weight and the bias of a linear layer in its form."""
        leaves = [(f"{name}.weight", (outputs, inputs)), (f"{name}.bias", (outputs,))]
        weight, bias = (self.weight(*leaf, inputs, dtype, self.form(name)) for leaf in leaves)
        return weight, bias

    def layer(self, name: str, outputs: int, inputs: int) -> Layer:
        """For a half block of `centred.py`."""
        shape, form = (outputs, inputs), self.form(name)
        weight, half = (self.weight(f"{name}.weight", shape, inputs, kind, form) for kind in (None, HALF))
        return Layer(name, weight, half, self.weight(f"{name}.bias", (outputs,), inputs, None, form))

    def keeps(self, name: str) -> bool:
        return any(taker.keeps_outputs(name) for taker in self.takers)

    def tables(self, x: Tensor, name: str, kind: str, block: Attention, networks: Tensor, slots: int) -> Tensor:
        """The relative position tables of rows and columns, one below the other: x T^T for keys, x T for values.

        There are `slots` for their rows; in what keys give, the first that is left has a 1.
        """
        size = (block.relative_rows, block.head_dim)
        both = torch.cat([self.weight(f"{name}.relative.{kind}_{leaf}", size) for leaf in ("rows", "columns")])
        used = F.pad(both, (0, 0, 0, slots - len(both))).to(x.dtype)
        weight, dim, one = both, 0, one_at(len(both), slots, x.device, x.dtype)
        if kind == "value":
            used, weight, dim, one = used.T, both.T, 1, None
        if not self.everything:
            return F.linear(x, used, one)
        report = partial(self.on_tables, name=f"{name}.relative", weight=weight, bias=None, networks=networks, dim=dim)
        y: Tensor = TracedLinear.apply(x, used, one, report, self.keeps(f"{name}.relative"), False, self.rows)
        return y

    def norm(self, x: Tensor, eps: float, networks: Tensor) -> Tensor:
        """In the precision that the layers behind it have."""
        dtype = torch.float16 if self.rough and self.in_block and not self.last_blocks else x.dtype
        if not self.everything:  # at initialisation the weight is 1 and the bias 0
            return F.layer_norm(x, (x.shape[-1],), eps=eps).to(dtype)
        report = partial(self.on_norm, networks=networks)
        if self.along:
            y: Tensor = NormAlong.apply(x, eps, report, self.rows)
        else:
            y = TracedNorm.apply(x, eps, report, dtype)
        return y

    # --- reports

    def leave_open(self, networks: Tensor) -> None:
        """For a finer pass."""
        for taker in self.takers:
            taker.total.masked_fill_(networks, math.nan)

    def tell(self, report: Report) -> None:
        for taker in self.listening:
            taker.on_report(report)

    def back(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients, and their derivatives in a pass along."""
        if not self.along:
            return rows, None
        first, second = halves(rows)
        return (first, None) if self.rows.plainly else (second, first)

    def on_linear(
        self, kind: type[Linear] | type[Tables], x: Tensor, dy: Tensor, y: Tensor | None, **facts: Any
    ) -> None:
        """From [n, rows, ..., S, channels]."""
        gradients, derivatives = self.back(dy.flatten(2, -2))
        x_along = None
        if x.dim() > 3:
            x, y = x.flatten(2, -2), None if y is None else y.flatten(2, -2)[:, : self.images]
            x, x_along = halves(x) if self.along else (x, None)
        self.tell(kind(x=x, dy=gradients, y=y, x_along=x_along, dy_along=derivatives, parts=self.parts, **facts))

    def on_apart(self, x: Tensor, dy: Tensor, y: Tensor | None, **facts: Any) -> None:
        """A layer whose last output is the mean of the others, which are without it."""
        of_mean = None if y is None else (y[..., -1] * dy[..., -1]).flatten(1).sum(1, dtype=torch.float64)
        y = None if y is None else y[..., :-1]
        self.on_linear(Linear, x, dy[..., :-1], y, of_mean=of_mean, **facts)

    def on_centred(
        self,
        name: str,
        weight: Tensor,
        gradient: Around | None = None,
        saliency: Tensor | None = None,
        *,
        networks: Tensor,
    ) -> None:
        self.tell(Centred(name=name, networks=networks, weight=weight, gradient=gradient, weight_saliency=saliency))

    def on_tables(self, x: Tensor, dy: Tensor, y: Tensor | None, *, weight: Tensor, dim: int, **facts: Any) -> None:
        rows = weight.shape[dim]
        x, dy, y = (x[..., :rows], dy, y) if dim else (x, dy[..., :rows], None if y is None else y[..., :rows])
        self.on_linear(Tables, x, dy, y, weight=weight, dim=dim, **facts)

    def on_norm(self, y: Tensor, dy: Tensor, y_along: Tensor | None, *, networks: Tensor) -> None:
        gradients, derivatives = self.back(dy)
        self.tell(Norm(name="norm", networks=networks, y=y, dy=gradients, y_along=y_along, dy_along=derivatives))

    def on_pooled(self, y: Tensor, dy: Tensor, *, name: str) -> None:
        self.tell(Pooled(name=name, networks=self.all_networks, y=y[:, : self.images], dy=self.back(dy)[0]))

    def on_small(self, gradients: Sequence[Tensor | None]) -> None:
        for (name, value), gradient in zip(self.small, gradients, strict=True):
            if gradient is not None:
                copies, derivatives = self.back(gradient)
                first = value.detach()[:, 0]
                self.tell(
                    Small(name=name, networks=self.all_networks, value=first, copies=copies, copies_along=derivatives)
                )

    # --- the networks

    def run(self, batch: Batch | None, geometry: Geometry) -> None:
        """On a batch, or on one image of ones."""
        side, device = geometry.image_size, self.bank.device
        if batch is None:
            images = torch.ones(1, geometry.channels, side, side, device=device, dtype=self.outside)
        else:
            images = batch.images.to(device, self.dtype)
        self.images = len(images)
        self.kernels = self.rough and all(has_kernels(plan, side, device) for plan in self.plans)
        ways = sorted({taker.goes_back for taker in self.takers if taker.goes_back is not None})
        anchor = torch.zeros((), device=device, dtype=self.dtype, requires_grad=True)
        scale = self.scale(geometry) if self.rough else 1.0
        with torch.set_grad_enabled(bool(ways)), products_in("high" if self.rough else "highest"):
            logits = self.logits(images, anchor, geometry)
            for way in ways:
                self.listening = [taker for taker in self.takers if taker.goes_back == way]
                self.rows.plainly = self.along and way == "logits"
                if batch is None or way == "logits":
                    value = logits[:, : self.images].sum()
                else:
                    value = self.loss(logits, batch.labels.to(device))
                leaves = [anchor, *(value for _, value in self.small)]
                gradients = torch.autograd.grad(scale * value, leaves, allow_unused=True, retain_graph=way != ways[-1])
                self.on_small(gradients[1:])
        for taker in self.takers if self.rough else ():
            taker.total /= torch.where(taker.total.isfinite(), scale, math.nan)  # too large for float16

    def scale(self, geometry: Geometry) -> float:
        """Of the loss, so that gradients are numbers that float16 has: every token has its share of the mean."""
        shares = self.images * self.plans[0].sides(geometry.image_size)[-1] ** 2
        return 2.0 ** round(math.log2(2 * shares))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The sum over networks of the mean cross-entropy; in a pass along, of its derivative."""
        if not self.along:
            flat = logits.flatten(0, 1)
            return F.cross_entropy(flat, labels.repeat(self.count), reduction="sum") / len(labels)
        values, derivatives = halves(logits)
        change = values.softmax(-1) - F.one_hot(labels, logits.shape[-1]).to(logits.dtype)
        return (change * derivatives).sum() / len(labels)

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
            self.apart = self.settled and index + 1 < len(plan.stages)
            x = self.settle(x)
            if self.centred and not self.forward:
                self.leave_open(spread_of(x[:, 0, self.leading :], plan.norm_eps) > MOST_SPREAD)
            x = self.stage(x, [other.stages[index].blocks for other in self.plans], name, side)
        x = self.norm(x, plan.norm_eps, self.all_networks)
        extra = int(plan.class_token)
        pooled, width = x[:, :, extra:].mean(2) if plan.readout == "mean" else x[:, :, 0], x.shape[-1]
        logits = self.linear(pooled[:, :, None], "head", geometry.classes, self.all_networks)[:, :, 0]
        weight, _ = self.used("head", geometry.classes, width, pooled.dtype)
        for taker in self.takers:
            taker.on_logits(logits.detach(), pooled.detach(), weight, self.rounding)
        return logits

    def embed(self, images: Tensor, entry: Patch, width: int, anchor: Tensor) -> Tensor:
        """Patches, class token, position: [n, rows, S, C]."""
        plan, channels = self.plans[0], images.shape[1]
        patches = F.unfold(images, entry.size, stride=entry.stride).transpose(1, 2)  # [B, N, channels * size * size]
        name, inputs = "stages.0.entry.proj", patches.shape[-1]
        shape = (width, channels, entry.size, entry.size)
        weight = self.weight(f"{name}.weight", shape, inputs, self.outside).flatten(1)
        bias = self.weight(f"{name}.bias", (width,), inputs, self.outside)
        report = partial(self.on_linear, Linear, name=name, weight=weight, bias=bias, networks=self.all_networks)
        rows = (self.count, self.images * (2 if self.along else 1))
        x: Tensor = TracedPatches.apply(anchor, patches, weight, bias, rows, report)
        tokens = patches.shape[1] + (1 if plan.class_token and plan.position == "all" else 0)
        table = None
        if plan.position != "none":
            table = self.own("pos_embed", (1, tokens, width))[:, :, 0]
        if table is not None and plan.position == "patches":
            x, table = x + table, None
        if plan.class_token:
            x = torch.cat([self.own("cls_token", (1, 1, width))[:, :, 0], x], 2)
        return x if table is None else x + table

    def pool(self, x: Tensor, name: str, width: int, side: int) -> Tensor:
        """PiT's pooling, with the convolution as a product over unfolded 3x3 patches."""
        if self.apart:
            x = x.to(self.outside)
            x = x[..., :-1] + x[..., -1:]
        before, extra = x.shape[-1], int(self.plans[0].class_token)
        maps = x[:, :, extra:].transpose(2, 3).reshape(-1, before, side, side)
        columns = F.unfold(maps, 3, stride=2, padding=1)
        columns = columns.reshape(*x.shape[:2], before, 9, columns.shape[-1])
        weight = self.own(f"{name}.conv.weight", (width, 1, 3, 3), inputs=9)
        weight = weight.reshape(*x.shape[:2], before, width // before, 9)
        bias = self.own(f"{name}.conv.bias", (width,), inputs=9)
        pooled = self.convolve(columns, weight) + bias[:, :, None]
        if self.everything:
            pooled = Watched.apply(pooled, partial(self.on_pooled, name=f"{name}.conv"))
        if not extra:
            return pooled
        return torch.cat([self.linear(x[:, :, :1], f"{name}.fc", width, self.all_networks), pooled], 2)

    def convolve(self, columns: Tensor, weight: Tensor) -> Tensor:
        """Derivatives have that of the inputs, times the weight, and that of the weight, times the inputs."""

        def product(columns: Tensor, weight: Tensor) -> Tensor:
            return torch.einsum("nbckl,nbcmk->nblcm", columns, weight).flatten(-2)

        if not self.along:
            return product(columns, weight)
        (value, derivative), (kernel, kernel_along) = halves(columns), halves(weight)
        return torch.cat([product(value, kernel), product(derivative, kernel) + product(value, kernel_along)], 1)

    def stage(self, x: Tensor, blocks: Sequence[Sequence[Any]], name: str, side: int) -> Tensor:
        """All blocks of a stage. Networks change places so that equal ones are neighbours, and end in their order."""
        if self.kernels:
            from vitsearch.proxies.rough import Blocks, RoughBlocks  # which needs Triton

            return RoughBlocks.apply(x, Blocks(self, blocks, name, side))  # type: ignore[no-any-return]
        steps = route(blocks)
        at_end = [network for group in steps[-1].groups for network in group]
        at_end += [network for step in steps for network in step.left]
        lists = [indices for step in steps for indices in step.indices()]
        lists += [places(at_end, range(self.count)), at_end]
        on_device = torch.tensor([index for indices in lists for index in indices]).to(x.device, non_blocking=True)
        tensors = iter(torch.split(on_device, [len(indices) for indices in lists]))  # one transfer for all
        gone: list[Tensor] = []
        self.in_block = True
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
        self.last_blocks = self.in_block = False
        x = Reordered.apply(torch.cat([x, *gone]), next(tensors), next(tensors))
        return x

    def attention_half(self, x: Tensor, block: Attention, networks: Tensor, name: str, *, side: int) -> Tensor:
        inner, tokens, width = block.heads * block.head_dim, x.shape[2], x.shape[-1] - self.apart
        if self.centred:
            layers = self.layer(f"{name}.attn.qkv", 3 * inner, width), self.layer(f"{name}.attn.proj", width, inner)
            position, told = self.position(block, f"{name}.attn", side), partial(self.on_centred, networks=networks)
            if self.forward:
                return attention_forward(x, normal_sums(x, self.plans[0].norm_eps), *layers, block.heads, position)
            given = (*layers, block.heads, position, self.plans[0].norm_eps, told)
            return AttentionHalf.apply(x.flatten(0, 1), *given)[:, None]  # type: ignore[no-any-return]
        normal = self.norm(x[..., :width], self.plans[0].norm_eps, networks)
        if normal.dtype == torch.float16 and block.relative_distance:
            normal = F.pad(normal, (0, 0, 0, -tokens % WHOLE))  # keys that nobody sees, and queries of no consequence
        qkv = self.linear(normal, f"{name}.attn.qkv", 3 * inner, networks)
        qkv = qkv.reshape(*qkv.shape[:3], 3, block.heads, block.head_dim)
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5)  # each [n, rows, H, S, D]
        out = self.attention(q, k, v, block, f"{name}.attn", side, networks)[:, :, :, :tokens]
        return x + self.linear(out.transpose(2, 3).flatten(-2), f"{name}.attn.proj", width, networks)

    def mlp_half(self, x: Tensor, block: Attention, networks: Tensor, name: str) -> Tensor:
        width = x.shape[-1] - self.apart
        if self.forward:
            first = self.used(f"{name}.mlp.fc1", block.hidden, width, self.dtype)
            second = self.used(f"{name}.mlp.fc2", width, block.hidden, self.dtype)
            return mlp_forward(x, normal_sums(x[..., :width], self.plans[0].norm_eps), first, second)
        if self.centred:
            told = partial(self.on_centred, networks=networks)
            layers = (
                self.layer(f"{name}.mlp.fc1", block.hidden, width),
                self.layer(f"{name}.mlp.fc2", width, block.hidden),
            )
            given = (*layers, self.plans[0].norm_eps, self.leading, told)
            return MlpHalf.apply(x.flatten(0, 1), *given)[:, None]  # type: ignore[no-any-return]
        normal = self.norm(x[..., :width], self.plans[0].norm_eps, networks)
        hidden = self.linear(normal, f"{name}.mlp.fc1", block.hidden, networks)
        for taker in self.takers:
            taker.on_signs(hidden.detach()[:, : self.images], networks)
        active: Tensor = GeluAlong.apply(hidden, self.rows) if self.along else F.gelu(hidden)
        return x + self.linear(active, f"{name}.mlp.fc2", width, networks)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, block: Attention, name: str, side: int, networks: Tensor
    ) -> Tensor:
        """With relative position, q, k and v get channels for each grid row, each grid column and the class token."""
        width = block.head_dim
        if block.relative_distance:
            choice, cells = to_places(side, block.relative_distance, q.shape[-2], q.device, q.dtype)
            slots = choice.shape[1]
            by_offset = self.tables(q, name, "key", block, networks, slots)  # [n, rows, H, S, 2 R]
            q = torch.cat([q, per_token(by_offset, choice)], -1)
            cells = cells.expand(*q.shape[:-1], -1)
            if self.along:  # constants
                cells = torch.cat([cells[:, : self.images], torch.zeros_like(cells[:, self.images :])], 1)
            k, v = torch.cat([k, cells], -1), torch.cat([v, cells], -1)
        out: Tensor
        if self.along:
            out = AttentionAlong.apply(q * width**-0.5, k, v, self.rows)
        else:  # spelled out: torch's fused kernels are slower for so few tokens, and on a GPU never twice the same
            out = ((q * width**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v
        if block.relative_distance:
            mass = per_token(out[..., width:], choice.transpose(1, 2))
            out = out[..., :width] + self.tables(mass, name, "value", block, networks, slots)
        return out

    def position(self, block: Attention, name: str, side: int) -> Relative | None:
        if not block.relative_distance:
            return None
        size = (block.relative_rows, block.head_dim)
        leaves = [f"{kind}_{along}" for kind in ("key", "value") for along in ("rows", "columns")]
        tables = {leaf: self.weight(f"{name}.relative.{leaf}", size) for leaf in leaves}
        return relative(side, block.relative_distance, **tables)


def has_kernels(plan: Architecture, image_size: int, device: torch.device) -> bool:
    """Whether kernels of ours have all blocks in a rough pass: see rough.py."""
    if device.type != "cuda" or not runs_kernels(device.index) or not plan.class_token:
        return False
    small = all(side <= MOST_SIDE for side in plan.sides(image_size))
    blocks = [block for stage in plan.stages for block in stage.blocks]
    known = all(isinstance(block, Attention) and block.head_dim in HEADS for block in blocks)
    relative = all(isinstance(block, Attention) and block.relative_distance for block in blocks)
    return small and known and relative and all(stage.width % WHOLE == 0 for stage in plan.stages)
