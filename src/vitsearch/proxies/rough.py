"""The blocks of a rough pass on a GPU: there and back in kernels of ours and as few large products as there are shapes.

A half block is x + f(norm(x)). The residual stream x stays in its place, [n, B S, C] in float32, and so does its
gradient; each half block adds to them. What goes into products is float16, in the order of the half's groups:

    there   y = norm(x), z = f(y); the next half adds z to x and takes the norm in one pass over memory
    back    dy from dz by way of f; then in one pass dx += norm's gradient of dy, dz of the half before, and the sums
            over tokens that norms and biases want

No graph is kept, and networks do not change places: kernels read and write where a network is. A hidden layer has zeros
to whole eights, so that products go through the fast units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from vitsearch.architecture import Attention
from vitsearch.proxies.reports import Found, Linear
from vitsearch.proxies.rough_attention import Attended, Grid, grid
from vitsearch.proxies.rough_kernels import magnitudes_kernel, norm_back_kernel, norm_kernel
from vitsearch.proxies.routing import Step, places, route

if TYPE_CHECKING:
    from vitsearch.proxies.group_pass import GroupPass

HALF = torch.float16
TILE = 2048
"""Numbers of a program's tile in a pass over tokens."""
PARTS = 8
"""Programs for each network on the way back, which leave sums."""
PIECE = 1 << 14
"""Numbers of a gradient for each program that adds them up."""


@dataclass
class Group:
    """Networks with the same half block."""

    block: Attention
    networks: Tensor
    here: slice
    """In the order of the half."""
    kept: list[Any] = field(default_factory=list)
    """What the way there leaves for the way back."""


@dataclass
class Half:
    """What is between two norms."""

    name: str
    groups: list[Group]
    networks: Tensor
    before: Tensor
    """For each network its place in the half before."""
    gone: Tensor
    gone_before: Tensor
    """Networks that were in the half before and are not in this one, and their places there."""
    y: Tensor = field(init=False)
    """The norm, and one over the root of each token's variance."""
    rate: Tensor = field(init=False)
    hidden: Tensor = field(init=False)

    @property
    def of_attention(self) -> bool:
        return self.name.endswith("attn")


class Blocks:
    """All blocks of a stage."""

    def __init__(self, run: GroupPass, blocks: Sequence[Sequence[Any]], name: str, side: int) -> None:
        self.run, self.side, self.eps = run, side, run.plans[0].norm_eps
        self.halves = list(self._halves(route(blocks), name))

    def _halves(self, steps: Sequence[Step], name: str) -> Iterator[Half]:
        """With all indices in one transfer."""
        lists: list[list[int]] = []
        before: list[int] = steps[0].before
        for step in steps:
            now = [network for group in step.groups for network in group]
            lists += [now, places(before, now), step.left, places(before, step.left), *step.groups]
            before = now
        together = torch.tensor([index for indices in lists for index in indices])
        device = self.run.bank.device
        indices = iter(torch.split(together.to(device, non_blocking=True), [len(one) for one in lists]))
        for number, step in enumerate(steps):
            half = f"{name}.blocks.{number // 2}.{'mlp' if number % 2 else 'attn'}"
            where = [next(indices) for _ in range(4)]
            groups, end = [], 0
            for block, members in zip(step.blocks, step.groups, strict=True):
                groups.append(Group(block, next(indices), slice(end, end + len(members))))
                end += len(members)
            yield Half(half, groups, *where)

    # --- there

    def there(self, x: Tensor) -> Tensor:
        _, self.images, self.tokens, self.width = x.shape
        given = x.contiguous().flatten(1, 2)
        stream, z = torch.empty_like(given), None
        for half in self.halves:
            self._add(stream, z, half.gone, half.gone_before)
            half.y, half.rate = self._norm(given if z is None else stream, z, stream, half)
            z = (self._attention if half.of_attention else self._mlp)(half)
        last = self.halves[-1].networks
        self._add(stream, z, last, torch.arange(len(last), device=last.device))
        return stream.view_as(x)

    def how(self) -> dict[str, int]:
        padded = triton.next_power_of_2(self.width)
        return {"width": self.width, "padded": padded, "tile": max(1, TILE // padded), "num_warps": 4}

    def _norm(self, x: Tensor, z: Tensor | None, stream: Tensor, half: Half) -> tuple[Tensor, Tensor]:
        """Of x + z, which goes to the stream."""
        count, tokens, how = len(half.networks), x.shape[1], self.how()
        y, rate = x.new_empty(count, tokens, self.width, dtype=HALF), x.new_empty(count, tokens)
        tensors = (x, z, stream, y, rate, half.networks, half.before)
        programs = (count, triton.cdiv(tokens, how["tile"]))
        norm_kernel[programs](*tensors, tokens, self.eps, adds=z is not None, norms=True, **how)
        return y, rate

    def _add(self, stream: Tensor, z: Tensor | None, networks: Tensor, before: Tensor) -> None:
        """To the stream of some networks."""
        if z is None or not len(networks):
            return
        tokens, how = stream.shape[1], self.how()
        programs = (len(networks), triton.cdiv(tokens, how["tile"]))
        tensors = (stream, z, stream, None, None, networks, before)
        norm_kernel[programs](*tensors, tokens, self.eps, adds=True, norms=False, **how)

    def _attention(self, half: Half) -> Tensor:
        z = torch.empty_like(half.y)
        for group in half.groups:
            heads, width, name = group.block.heads, group.block.head_dim, half.name
            qkv = self._product(half.y[group.here], f"{name}.qkv", 3 * heads * width)
            shape = (len(group.networks), self.images, self.tokens, 3, heads, width)
            attended = Attended(qkv.view(shape), *self._vectors(name, group.block))
            self._product(attended.out, f"{name}.proj", self.width, z[group.here])
            group.kept = [attended]
        return z

    def _mlp(self, half: Half) -> Tensor:
        z = torch.empty_like(half.y)
        flat = half.y.new_empty(sum(self._hidden(half)))
        hidden = self._layers(flat, half)
        for group, into in zip(half.groups, hidden, strict=True):
            self._product(half.y[group.here], f"{half.name}.fc1", group.block.hidden, into)
        active = self._layers(F.gelu(flat), half)
        for group, inputs in zip(half.groups, active, strict=True):
            self._product(inputs, f"{half.name}.fc2", self.width, z[group.here], group.block.hidden)
            group.kept = [inputs]
        half.hidden = flat
        return z

    def _hidden(self, half: Half) -> list[int]:
        """Numbers in the hidden layers of each group."""
        rows = self.images * self.tokens
        return [len(group.networks) * rows * eights(group.block.hidden) for group in half.groups]

    def _layers(self, flat: Tensor, half: Half) -> list[Tensor]:
        """The hidden layers of all groups, [n, B S, hidden], in one piece of memory."""
        parts, rows = torch.split(flat, self._hidden(half)), self.images * self.tokens
        return [part.view(len(group.networks), rows, -1) for part, group in zip(parts, half.groups, strict=True)]

    # --- parameters

    def _layer(self, name: str, outputs: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A weight and a bias, with zeros to whole eights."""
        shape = (outputs, inputs)
        weight = self.run.weight(f"{name}.weight", shape, inputs, dtype)
        bias = self.run.weight(f"{name}.bias", (outputs,), inputs, dtype)
        more = eights(outputs) - outputs
        return padded(weight, (0, eights(inputs) - inputs, 0, more)), padded(bias, (0, more))

    def _tables(self, name: str, block: Attention) -> list[Tensor]:
        leaves = [f"{kind}_{along}" for kind in ("key", "value") for along in ("rows", "columns")]
        return [self.run.weight(f"{name}.relative.{leaf}", (block.relative_rows, block.head_dim)) for leaf in leaves]

    def _vectors(self, name: str, block: Attention) -> tuple[Tensor, Grid]:
        """The relative position's for keys and for values, in their slots."""
        found = grid(self.side, block.relative_distance, block.head_dim, self.run.bank.device, HALF)
        return slotted(found.folded, *self._tables(name, block)), found

    def _product(self, x: Tensor, name: str, outputs: int, into: Tensor | None = None, inputs: int = 0) -> Tensor:
        """x W^T + b, of `inputs` that x has zeros beside."""
        weight, bias = self._layer(name, outputs, inputs or x.shape[-1], HALF)
        rows = x.flatten(0, -2)
        if into is None:
            into = x.new_empty(*x.shape[:-1], len(weight))
        torch.addmm(bias, rows, weight.T, out=into.view(len(rows), -1))
        return into

    # --- back

    def back(self, gradient: Tensor) -> Tensor:
        dx = gradient.contiguous().flatten(1, 2).clone()
        last = dx.index_select(0, self.halves[-1].networks)
        dz, sums = last.to(HALF), last.sum(1)
        while self.halves:
            half = self.halves.pop()
            dy = (self._attention_back if half.of_attention else self._mlp_back)(half, dz, sums)
            dz, sums = self._norm_back(half, dy, dx)
        return dx.view_as(gradient)

    def _norm_back(self, half: Half, dy: Tensor, dx: Tensor) -> tuple[Tensor, Tensor]:
        """For the half before: the gradient of what it gave, and its sums over tokens."""
        count, tokens, how = len(half.networks), dx.shape[1], self.how()
        tiles = triton.cdiv(tokens, how["tile"])
        each = triton.cdiv(tiles, PARTS)
        programs = (count, triton.cdiv(tiles, each))
        every = self.halves[-1].networks if self.halves else half.networks
        dz = dy.new_empty(len(every), tokens, self.width) if self.halves else None
        sums = dx.new_empty(*programs, 3, self.width)
        tensors = (half.y, half.rate, dy, dx, dz, sums, half.networks, half.before)
        how["num_warps"] = 8
        norm_back_kernel[programs](*tensors, tokens, each, passes=dz is not None, **how)
        of_weight, of_bias, of_stream = sums.sum(1).unbind(1)
        if self.run.everything:
            known = [(of_weight, torch.ones_like(of_weight[0])), (of_bias, torch.zeros_like(of_bias[0]))]
            self.run.tell(Found(name="norm", networks=half.networks, found=known))
        if dz is None:
            return dy, of_stream
        found = torch.empty_like(dz[:, 0], dtype=torch.float32).index_copy_(0, half.before, of_stream)
        if len(half.gone):
            rest = dx.index_select(0, half.gone)
            dz.index_copy_(0, half.gone_before, rest.to(HALF))
            found.index_copy_(0, half.gone_before, rest.sum(1))
        return dz, found

    def _attention_back(self, half: Half, dz: Tensor, sums: Tensor) -> Tensor:
        dy = torch.empty_like(half.y)
        for group in half.groups:
            (attended,), here, name, inner = group.kept, group.here, half.name, group.block.heads * group.block.head_dim
            dout = torch.empty_like(attended.out)
            told = partial(self._tell, networks=group.networks)
            weight = told(f"{name}.proj", attended.out, dz[here], (self.width, inner), sums[here])
            torch.mm(dz[here].flatten(0, 1), weight, out=dout.view(-1, inner))
            dqkv, dvectors = attended.back(dout)
            if self.run.everything:
                tables = self._tables(name, group.block)
                gradients = (attended.grid.folded @ dvectors).reshape(len(dqkv), len(tables), *tables[0].shape)
                known = list(zip(gradients.unbind(1), tables, strict=True))
                self.run.tell(Found(name=f"{name}.relative", networks=group.networks, found=known))
            weight = told(f"{name}.qkv", half.y[here], dqkv, (3 * inner, self.width), None)
            torch.mm(dqkv.view(-1, 3 * inner), weight, out=dy[here].flatten(0, 1))
            group.kept = []
        return dy

    def _mlp_back(self, half: Half, dz: Tensor, sums: Tensor) -> Tensor:
        flat = torch.empty_like(half.hidden)
        for group, into in zip(half.groups, self._layers(flat, half), strict=True):
            (inputs,), here = group.kept, group.here
            told = partial(self._tell, networks=group.networks)
            weight = told(f"{half.name}.fc2", inputs, dz[here], (self.width, group.block.hidden), sums[here])
            torch.mm(dz[here].flatten(0, 1), weight, out=into.flatten(0, 1))
            group.kept = []
        flat, dy = torch.ops.aten.gelu_backward(flat, half.hidden), torch.empty_like(half.y)
        for group, dhidden in zip(half.groups, self._layers(flat, half), strict=True):
            here, shape = group.here, (group.block.hidden, self.width)
            weight = self._tell(f"{half.name}.fc1", half.y[here], dhidden, shape, None, networks=group.networks)
            torch.mm(dhidden.flatten(0, 1), weight, out=dy[here].flatten(0, 1))
        return dy

    def _tell(
        self, name: str, x: Tensor, dy: Tensor, shape: tuple[int, int], sums: Tensor | None, *, networks: Tensor
    ) -> Tensor:
        """Of a linear layer; the weight that its products have."""
        weight, bias = self._layer(name, *shape, self.run.dtype)
        x, dy = (one.reshape(len(networks), 1, self.images * self.tokens, -1) for one in (x, dy))
        self.run.tell(
            Linear(name=name, networks=networks, x=x, dy=dy, y=None, weight=weight, bias=bias, bias_sums=sums)
        )
        return self._layer(name, *shape, HALF)[0]


class RoughBlocks(torch.autograd.Function):
    """[n, B, S, C] there and back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, blocks: Blocks) -> Tensor:
        ctx.blocks = blocks
        return blocks.there(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.blocks.back(gradients[0]), None


def eights(count: int) -> int:
    return -(-count // 8) * 8


def padded(x: Tensor, more: tuple[int, ...]) -> Tensor:
    return F.pad(x, more) if any(more) else x


@lru_cache(maxsize=64)
def slotted(folded: Tensor, *tables: Tensor) -> Tensor:
    """Once for each set of tables, which all networks of a space share."""
    key_rows, key_columns, value_rows, value_columns = tables
    both = torch.stack([torch.cat([key_rows, key_columns]), torch.cat([value_rows, value_columns])])
    return (folded.T @ both).to(HALF)


def magnitudes(gradient: Tensor, value: Tensor) -> Tensor:
    """The sum of |gradient x value| for each network, in float64."""
    gradient, value = gradient.contiguous(), value.contiguous()  # tables of rows and columns are parts of one tensor
    each = triton.cdiv(PIECE, TILE)
    programs = (len(gradient), triton.cdiv(value.numel(), each * TILE))
    found = value.new_empty(programs)
    magnitudes_kernel[programs](gradient, value, found, value.numel(), each, tile=TILE, num_warps=4)
    return found.sum(1, dtype=torch.float64)
