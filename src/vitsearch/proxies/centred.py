"""Half blocks for tokens that are nearly alike, with their matrix products in bfloat16.

In the absolute network on an image of ones the patches differ from the mean of all tokens by about a twentieth. So
tokens go through as a base, one row for each network, and what differs from it:

    x = base + rest,        x W^T = base W^T + rest W^T

The first product is one of float32; the second, with all the work, goes through the processor's units for bfloat16,
which are twice as fast, and their rounding of one part in 500 is one of the rest alone. Between the products are the
series of GELU and of softmax about the base, of first or second and of first order; the class token, which is unlike
all others, goes through GELU itself. The rests are about a thousandth of DSS (more, the larger their spread), so that
scores keep four to five digits, where bfloat16 without the base would leave three. The sums of DSS are taken here too,
since gradients, a sum over all tokens, come in the same two parts: with dy = base' + rest', where one of the rests sums
up to zero,

    dy^T x = (outer product of two sums over tokens) + rest'^T rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch.models.kernels import multiplies_half
from vitsearch.models.layers import FusedMaps, fused_maps
from vitsearch.proxies.diversity import Around

HALF = torch.bfloat16
MOST_SPREAD = 0.08
"""Of patches after a norm, up to which scores were compared; in AutoFormer's spaces it is 0.04 at any image size."""
Told = Callable[..., None]
"""With the name of a layer and its weight: `gradient` of one of attention, or `saliency` of one of an MLP."""


def pays(device: torch.device) -> bool:
    """Whether a processor multiplies bfloat16 faster than float32."""
    return device.type == "cpu" and multiplies_half()


def apart(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of [n, S, C] the mean over tokens [n, C], and the rest [n S, C] in half precision."""
    mean = x.mean(1)
    return mean, (x - mean[:, None]).to(HALF).flatten(0, 1)


def together(base: Tensor, rest: Tensor) -> Tensor:
    return rest.to(base.dtype).view(len(base), -1, base.shape[-1]).add_(base[:, None])


class Layer(NamedTuple):
    """A linear layer; `half` is its weight in half precision."""

    name: str
    weight: Tensor
    half: Tensor
    bias: Tensor

    def there(self, base: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(base, self.weight, self.bias), F.linear(rest, self.half)

    def back(self, base: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        return base @ self.weight, rest @ self.half


class Normal:
    """Layer norm, without weight and bias, and its way back."""

    def __init__(self, x: Tensor, eps: float) -> None:
        self.x = x
        self.y, self.mean, self.rate = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)

    def back(self, dy: Tensor) -> Tensor:
        given = (self.x.shape[-1:], self.mean, self.rate, None, None, [True, False, False])
        return torch.ops.aten.native_layer_norm_backward(dy, self.x, *given)[0]  # type: ignore[no-any-return]


class Relative(NamedTuple):
    """The relative position as channels beside those of q, k and v: see `RelativePosition`."""

    maps: FusedMaps
    keys: Tensor
    """[V, D]: the vectors of all offsets, of keys, in half precision."""
    values: Tensor
    cells: Tensor
    """[S, E]: without their mean over tokens, as keys and values have them."""
    base: Tensor
    """[D] and [S, D]: what even attention would give, its mean over tokens and the rest."""
    rest: Tensor

    def beside(self, x: Tensor, vectors: Tensor) -> Tensor:
        """From [N, S, D] to [N, S, E]: products of each query with those vectors that it needs for each cell."""
        products = (x.flatten(0, 1) @ vectors.T).view(*x.shape[:2], -1)
        return products.gather(-1, self.maps.of_cell.expand(len(x), -1, -1))

    def back(self, beside: Tensor, vectors: Tensor) -> Tensor:
        """The way back, which is its gradient too: no place but the spare one is read twice."""
        by_vector = beside.gather(-1, self.maps.of_vector.expand(len(beside), -1, -1))
        return (by_vector.flatten(0, 1) @ vectors).view(*beside.shape[:2], -1)


@lru_cache(maxsize=64)
def relative(
    side: int, distance: int, key_rows: Tensor, key_columns: Tensor, value_rows: Tensor, value_columns: Tensor
) -> Relative:
    """Once for each set of tables, which all networks of a space share."""
    maps = fused_maps(side, distance, key_rows.shape[1])

    def vectors(rows: Tensor, columns: Tensor) -> Tensor:
        choice = maps.offset_choice.to(rows.dtype)
        found = torch.cat([choice @ rows, choice @ columns, rows[:1] + columns[:1]])
        return F.pad(found, (0, 0, 0, maps.own.shape[1] - len(found)))

    keys, values = vectors(key_rows, key_columns), vectors(value_rows, value_columns)
    mean, cells = apart(maps.key_cells.to(values.dtype)[None])
    even = (mean.expand(len(maps.of_vector), -1).gather(-1, maps.of_vector) + maps.own.to(values.dtype)) @ values
    base, rest = apart(even[None])
    return Relative(maps, keys.to(HALF), values.to(HALF), cells, base[0], rest)


class Attended:
    """softmax(q k^T scale) v of tokens as base and rest, of which the rest sums up to zero, to first order in logits.

    With a bar for means over tokens, a' = a - bar a, and L what differs between keys,

        L_ij = scale q_i . k'_j,       softmax(L) = (1 + L) / S + O(L^2)
        out  = bar v + q K,            K = scale k'^T v' / S
        dq   = dout K^T,               with M = scale q^T dout / S
        dk   = v' M^T,                 dv = bar dout + k' M

    without a matrix of tokens: neither softmax nor its gradient sees what is the same for all keys. The relative
    position is more channels of q, k and v.
    """

    def __init__(self, base: Tensor, rest: Tensor, heads: int, position: Relative | None) -> None:
        self.position, self.heads = position, heads
        (q, k, v), (of_queries, _, self.of_values) = self.split(base, rest)
        self.tokens, self.width = q.shape[-2:]
        self.scale = self.width**-0.5
        self.q = self.widened(q, of_queries * self.scale, self.scale)
        if position is not None:
            self.q[..., self.width :] = position.beside(self.q[..., : self.width], position.keys)
        self.k, self.v = (self.widened(one) for one in (k, v))

    def mixing(self, x: Tensor, y: Tensor) -> Tensor:
        """x^T y / S, for each head."""
        return torch.bmm(x.mT, y).div_(self.tokens)

    def split(self, base: Tensor, rest: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Of queries, keys and values what is apart, [n, H, S, D], and the means, [n, H, 1, D]."""
        rest = rest.view(len(base), -1, rest.shape[-1])
        rest = rest.view(*rest.shape[:2], 3, self.heads, rest.shape[-1] // (3 * self.heads)).permute(2, 0, 3, 1, 4)
        return rest.unbind(), base.view(len(base), 3, self.heads, 1, -1).unbind(1)

    def widened(self, rest: Tensor, base: Tensor | None = None, scale: float = 1.0) -> Tensor:
        """From [n, H, S, D] to [n H, S, D + E]; without a base, as keys and values have it, with the cells."""
        more = 0 if self.position is None else self.position.cells.shape[-1]
        wide = rest.new_empty(*rest.shape[:-1], self.width + more)
        if base is not None:
            torch.add(base.to(HALF), rest, alpha=scale, out=wide[..., : self.width])
        else:
            wide[..., : self.width] = rest
            if self.position is not None:
                wide[..., self.width :] = self.position.cells
        return wide.flatten(0, 1)

    def out(self) -> tuple[Tensor, Tensor]:
        """[n, C] and [n S, C]."""
        self.mixed = self.mixing(self.k, self.v)
        return self.finished(torch.bmm(self.q, self.mixed), self.of_values)

    def finished(self, both: Tensor, base: Tensor, times: int = 1) -> tuple[Tensor, Tensor]:
        """From what uneven attention gives of values and cells, and that of even attention; its cells count `times`."""
        rest = self.narrowed(both, None if self.position is None else self.position.values)
        if self.position is not None:
            base, rest = base + times * self.position.base, rest.add_(self.position.rest, alpha=times)
        return base.flatten(1), rest.transpose(1, 2).flatten(0, 1).flatten(1)

    def narrowed(self, both: Tensor, vectors: Tensor | None) -> Tensor:
        """From [n H, S, D + E] to [n, H, S, D]."""
        found = both[..., : self.width]
        if self.position is not None and vectors is not None:
            found = self.position.back(both[..., self.width :], vectors).add_(found)
        return found.view(-1, self.heads, self.tokens, self.width)

    def back(self, base: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        """From those of the outputs those of the values, [n, C], and of all inputs, [n S, 3 C]."""
        shape = (len(base), self.tokens, self.heads, self.width)
        wide = self.widened(rest.view(shape).transpose(1, 2), base.view(len(base), self.heads, 1, self.width))
        full = wide[..., : self.width]
        if self.position is not None:
            wide[..., self.width :] = self.position.beside(full, self.position.values)
        dq = self.narrowed(torch.bmm(wide, self.mixed.mT), None if self.position is None else self.position.keys)
        mixed = self.mixing(self.q, wide)
        found = rest.new_empty(len(base), self.tokens, 3, self.heads, self.width)
        torch.mul(dq.transpose(1, 2), self.scale, out=found[:, :, 0])
        others = (self.v, mixed[:, : self.width].mT), (self.k, mixed[..., : self.width])
        for place, pair in enumerate(others, 1):
            found[:, :, place] = torch.bmm(*pair).view(-1, self.heads, self.tokens, self.width).transpose(1, 2)
        return base, found.view(len(rest), -1)


class AttentionHalf(torch.autograd.Function):
    """x + attention(norm(x)), over [n, S, C]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, qkv: Layer, proj: Layer, heads: int, position: Relative | None, eps: float, told: Told
    ) -> Tensor:
        ctx.normal = Normal(x, eps)
        ctx.inputs = apart(ctx.normal.y)
        ctx.attended = Attended(*qkv.there(*ctx.inputs), heads, position)
        ctx.outputs = ctx.attended.out()
        ctx.layers, ctx.told = (qkv, proj), told
        return together(*proj.there(*ctx.outputs)).add_(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (dy,), (qkv, proj) = gradients, ctx.layers
        (mean, rest), (base, outputs), tokens = ctx.inputs, ctx.outputs, dy.shape[1]
        d_mean, d_rest = apart(dy)
        right = over_tokens(outputs, len(dy)).add_(base, alpha=tokens)
        ctx.told(proj.name, proj.weight, gradient=Around(d_mean, right, d_rest, outputs))
        d_values, d_qkv = ctx.attended.back(*proj.back(d_mean, d_rest))
        left = over_tokens(d_qkv, len(dy))
        left[:, -d_values.shape[-1] :].add_(d_values, alpha=tokens)
        ctx.told(qkv.name, qkv.weight, gradient=Around(left, mean, d_qkv, rest))
        of_values = d_values @ qkv.weight[-d_values.shape[-1] :]
        return ctx.normal.back(together(of_values, d_qkv @ qkv.half)).add_(dy), *[None] * 6


class Gelu:
    """Two layers with GELU g between them, about a base b [n, H]: what they make of a rest r of its inputs, and back.

        h = W1 r,       g(b + h) - g(b) = g' h + g'' h^2 / 2,       dh = (dy + dy') (g' + g'' h) + dy g''' h^2 / 2

    with dy the part of the outputs' gradient that all tokens have, and dy' the rest. The `leading` tokens are unlike
    all others, and go through GELU itself.
    """

    def __init__(self, base: Tensor, first: Layer, second: Layer, leading: int) -> None:
        self.base, self.layers, self.leading = base, (first.half, second.half), slice(leading)
        density = torch.exp(base.square() / -2) / math.sqrt(2 * math.pi)
        below = (1 + torch.erf(base / math.sqrt(2))) / 2
        self.value = base * below
        self.derivatives = below + base * density, (2 - base.square()) * density, (base.square() - 4) * base * density

    def exactly(self, hidden: Tensor) -> Tensor:
        """GELU of the base and this, less that of the base."""
        return (F.gelu(self.base[:, None] + hidden) - self.value[:, None]).to(hidden.dtype)

    def exactly_back(self, dy: Tensor, rest: Tensor, hidden: Tensor) -> Tensor:
        """The gradient of the base and this, less that of the base; `dy` is that of its outputs, and `rest` more."""
        found: Tensor = torch.ops.aten.gelu_backward(dy[:, None] + rest, self.base[:, None] + hidden)
        return (found - (dy * self.derivatives[0])[:, None]).to(hidden.dtype)


class GeluByHidden(Gelu):
    """To second order, token by token."""

    def there(self, rest: Tensor) -> Tensor:
        first, second = self.layers
        self.hidden = (rest.flatten(0, 1) @ first.T).view(*rest.shape[:2], -1)
        by_first, by_second = (one.to(HALF)[:, None] for one in (self.derivatives[0], self.derivatives[1] / 2))
        active = (self.hidden * by_first).addcmul_(self.hidden.square(), by_second)
        active[:, self.leading] = self.exactly(self.hidden[:, self.leading])
        return (active.flatten(0, 1) @ second.T).view_as(rest)

    def back(self, dy: Tensor, rest: Tensor) -> Tensor:
        """From dy [n, H] and the rest of the gradient of what the second layer gives, [n, S, C], to that of r."""
        first, second = self.layers
        d_hidden = (rest.flatten(0, 1) @ second).view_as(self.hidden)
        one, two, three = self.derivatives
        rows = (one, two, dy * two, dy * three / 2)
        by_first, by_second, with_second, with_third = (row.to(HALF)[:, None] for row in rows)
        found = torch.addcmul(with_second, self.hidden, with_third).addcmul_(d_hidden, by_second)
        found.mul_(self.hidden).addcmul_(d_hidden, by_first)
        lead = self.leading
        found[:, lead] = self.exactly_back(dy, d_hidden[:, lead], self.hidden[:, lead])
        return (found.flatten(0, 1) @ first).view_as(rest)


class GeluByMatrix(Gelu):
    """To first order, without hidden tokens: W2 diag(g') W1 there, and W1^T diag(dy g'') W1 more on the way back."""

    def there(self, rest: Tensor) -> Tensor:
        first, second = self.layers
        self.rest = rest
        self.matrix = (second * self.derivatives[0].to(HALF)[:, None]) @ first  # [n, C, C]
        found = torch.bmm(rest, self.matrix.mT)
        self.hidden = rest[:, self.leading] @ first.T
        found[:, self.leading] = self.exactly(self.hidden) @ second.T
        return found

    def back(self, dy: Tensor, rest: Tensor) -> Tensor:
        first, second = self.layers
        of_rest = (first.T * (dy * self.derivatives[1]).to(HALF)[:, None]) @ first
        found = torch.bmm(rest, self.matrix).baddbmm_(self.rest, of_rest)
        found[:, self.leading] = self.exactly_back(dy, rest[:, self.leading] @ second, self.hidden) @ first
        return found


def way_through_gelu(tokens: int, width: int, hidden: int) -> type[GeluByMatrix] | type[GeluByHidden]:
    """The one with fewer operations."""
    by_matrix = width * (2 * hidden + 3 * tokens) < 4 * tokens * hidden
    return GeluByMatrix if by_matrix else GeluByHidden


class MlpHalf(torch.autograd.Function):
    """x + MLP(norm(x)), over [n, S, C]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Layer, second: Layer, eps: float, leading: int, told: Told) -> Tensor:
        ctx.normal = Normal(x, eps)
        mean, rest = apart(ctx.normal.y)
        way = way_through_gelu(x.shape[1], x.shape[2], len(first.weight))
        ctx.gelu = way(F.linear(mean, first.weight, first.bias), first, second, leading)
        base = F.linear(ctx.gelu.value, second.weight, second.bias)
        ctx.y = together(base, ctx.gelu.there(rest.view_as(x)))
        ctx.layers, ctx.told = (first, second), told
        return ctx.y + x  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """sum(g w) = sum over tokens of dy . (w x), of outputs, or of (dy w) . x, of inputs, whichever are fewer."""
        (dy,), (first, second) = gradients, ctx.layers
        mean, rest = apart(dy)
        of_bias = dy.shape[1] * (mean.double() @ second.bias.double())
        ctx.told(second.name, second.weight, saliency=product(dy, ctx.y) - of_bias)
        of_active = mean @ second.weight
        base = (of_active * ctx.gelu.derivatives[0]) @ first.weight
        full = together(base, ctx.gelu.back(of_active, rest.view_as(dy)))
        ctx.told(first.name, first.weight, saliency=product(full, ctx.normal.y))
        return ctx.normal.back(full).add_(dy), *[None] * 5


def spread_of(x: Tensor, eps: float) -> Tensor:
    """Of [n, S, C], the root mean square of what differs from the mean over tokens, after a norm."""
    y = F.layer_norm(x, x.shape[-1:], eps=eps)
    return (y - y.mean(1, keepdim=True)).square().mean((1, 2)).sqrt()


def over_tokens(rest: Tensor, count: int) -> Tensor:
    """The sum of [n S, C], as [n, C]: a product adds up in float32."""
    rest = rest.view(count, -1, rest.shape[-1])
    total = torch.bmm(rest.new_ones(()).expand(count, 1, rest.shape[1]), rest)[:, 0]
    return total.to(torch.promote_types(rest.dtype, torch.float32))


def product(x: Tensor, y: Tensor) -> Tensor:
    """The sum of x y for each network, [n] in float64."""
    return torch.stack([torch.dot(*one) for one in zip(x.flatten(1), y.flatten(1), strict=True)]).double()
