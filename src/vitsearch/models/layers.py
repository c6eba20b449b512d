"""The layers that blueprints are made of.

Shapes: B images, S tokens, N = side * side patches, C width, H heads, D head width, R rows of a relative table.
Weights are left uninitialised here; `initialise.py` fills all of them at once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from vitsearch import architecture as blueprint
from vitsearch.models.kernels import half_on_gpu, is_faster_in_steps, is_narrow, is_small_grid, is_small_window

Module = TypeVar("Module", bound=nn.Module)


def blank(kind: type[Module], *arguments: Any, **options: Any) -> Module:
    """A layer whose weights are not drawn: that would cost time, on the meta device too, and random numbers."""
    made = undrawn(cast(Any, kind))(*arguments, device=torch.get_default_device(), **options)
    made.__class__ = kind
    return cast(Module, made)


@lru_cache
def undrawn(kind: Any) -> Any:
    """Its class as one that leaves weights as the memory was."""
    return type(kind.__name__, (kind,), {"reset_parameters": lambda self: None})


class RelativeMaps(NamedTuple):
    """Constants of the relative position on a grid, the same in every block. S tokens, the class token first."""

    row_index: Tensor
    """[S, side]: the table row for query token i and a key in grid row r."""
    column_index: Tensor
    """[S, side]: the same for grid columns."""
    row_choice: Tensor
    """[S, R, side]: `row_index` as ones and zeros: products with it gather, and add gradients up in a fixed order."""
    column_choice: Tensor
    key_cells: Tensor
    """[S, 2 side + 1]: which grid row, which grid column, or the class token, a key is."""


@lru_cache(maxsize=64)
def relative_maps(side: int, distance: int) -> RelativeMaps:
    with torch.device("cpu"):
        along = torch.arange(side)
        offsets = (along[None, :] - along[:, None]).clamp(-distance, distance) + distance + 1  # [query, key]
        row, column = torch.arange(side * side) // side, torch.arange(side * side) % side
        class_index = torch.zeros(1, side, dtype=torch.long)
        row_index, column_index = (torch.cat([class_index, offsets[place]]) for place in (row, column))
        cells = torch.cat([torch.eye(side)[row], torch.eye(side)[column], torch.zeros(side * side, 1)], 1)
        class_cell = F.one_hot(torch.tensor([2 * side]), 2 * side + 1).float()
        return RelativeMaps(
            row_index=row_index,
            column_index=column_index,
            row_choice=F.one_hot(row_index, 2 * distance + 2).transpose(1, 2).float(),
            column_choice=F.one_hot(column_index, 2 * distance + 2).transpose(1, 2).float(),
            key_cells=torch.cat([class_cell, cells]),
        )


class RelativePosition(nn.Module):
    """AutoFormer's relative position on keys and values, one vector per row offset plus one per column offset.

    Row 0 of each table is for pairs with the class token, row delta + distance + 1 for a clipped offset delta = key
    minus query. All heads share the tables.

    The fused form needs no [S, S, D]. A query's products with the keys' vectors are some of its products with all
    vectors there are; which ones is a matter of its place in the grid. The class token's own pairs all have row 0: on
    the keys' side that adds a constant, which the softmax takes away again, on the values' side it adds row 0 itself.
    """

    row_index: Tensor
    column_index: Tensor
    key_cells: Tensor
    offset_choice: Tensor
    of_cell: Tensor
    of_vector: Tensor
    own: Tensor

    def __init__(self, head_dim: int, distance: int, side: int) -> None:
        super().__init__()
        rows = 2 * distance + 2
        self.key_rows = nn.Parameter(torch.empty(rows, head_dim))
        self.key_columns = nn.Parameter(torch.empty(rows, head_dim))
        self.value_rows = nn.Parameter(torch.empty(rows, head_dim))
        self.value_columns = nn.Parameter(torch.empty(rows, head_dim))
        maps = relative_maps(side, distance)
        constants = {"row_index": maps.row_index, "column_index": maps.column_index}
        constants |= fused_maps(side, distance, head_dim)._asdict()
        for name, constant in constants.items():
            self.register_buffer(name, constant.to(torch.get_default_device()), persistent=False)

    def vectors(self, rows: Tensor, columns: Tensor) -> Tensor:
        """[S, S, D]: the vector of every (query, key) pair, as the definition has it."""
        side = self.row_index.shape[1]
        patch = torch.arange(side * side, device=rows.device)
        row = F.pad(self.row_index[:, patch // side], (1, 0))  # keys: class token first, table row 0
        column = F.pad(self.column_index[:, patch % side], (1, 0))
        return rows[row] + columns[column]

    def extend_query(self, q: Tensor) -> Tensor:
        """[B, H, S, cells]: q_i . vector, for each grid row, each grid column and the class token."""
        return rearranged(q @ self.all_vectors(self.key_rows, self.key_columns).T, self.of_cell, self.of_vector)

    def value_part(self, mass: Tensor) -> Tensor:
        """Sum over keys of attention times value vector, from the attention mass on each cell [B, H, S, cells]."""
        by_vector = rearranged(mass, self.of_vector, self.of_cell) + self.own.to(mass.dtype)
        return by_vector @ self.all_vectors(self.value_rows, self.value_columns)

    def all_vectors(self, rows: Tensor, columns: Tensor) -> Tensor:
        """[V, D]: the vectors of all row offsets, of all column offsets, of the class token, and zeros."""
        choice = self.offset_choice.to(rows.dtype)  # a product, because it adds gradients up in a fixed order
        found = torch.cat([choice @ rows, choice @ columns, (rows[:1] + columns[:1]).to(choice.dtype)])
        return F.pad(found, (0, 0, 0, self.own.shape[1] - len(found)))


class FusedMaps(NamedTuple):
    """Constants of the fused form. Of cells and of vectors the last is a spare one that is zero."""

    key_cells: Tensor
    """[S, cells]: `RelativeMaps.key_cells` with spare columns: attention kernels want whole eights."""
    offset_choice: Tensor
    """[2 side - 1, R]: the table row of each offset, as ones and zeros."""
    of_cell: Tensor
    """[S, cells]: the vector that query i needs for a cell."""
    of_vector: Tensor
    """[S, V]: the cell for which query i needs a vector."""
    own: Tensor
    """[S, V]: the class token's attention over all keys is 1 together, and all of it goes to one vector."""


@lru_cache(maxsize=64)
def fused_maps(side: int, distance: int, head_dim: int) -> FusedMaps:
    with torch.device("cpu"):
        offsets, cells, tokens = 2 * side - 1, 2 * side + 1, side * side + 1
        spare_cells = (-(head_dim + cells) % 8) or 8
        vectors = -(-(2 * offsets + 2) // 8) * 8
        patch = torch.arange(side * side)
        ahead = torch.arange(side) + side - 1  # the number of the offset from place 0
        by_row, by_column = ahead - (patch // side)[:, None], ahead - (patch % side)[:, None] + offsets
        class_vector = torch.full((side * side, 1), 2 * offsets)
        of_cell = torch.full((tokens, cells + spare_cells), vectors - 1)
        of_cell[1:, :cells] = torch.cat([by_row, by_column, class_vector], 1)
        of_vector = torch.full((tokens, vectors), cells + spare_cells - 1)
        of_vector[1:].scatter_(1, of_cell[1:, :cells], torch.arange(cells).expand(side * side, -1))
        own = torch.zeros(tokens, vectors)
        own[0, 2 * offsets] = 1
        rows = torch.arange(1 - side, side).clamp(-distance, distance) + distance + 1
        key_cells = F.pad(relative_maps(side, distance).key_cells, (0, spare_cells))
        choice = F.one_hot(rows, 2 * distance + 2).float()
        return FusedMaps(key_cells, choice, of_cell, of_vector, own)


def rearranged(x: Tensor, there: Tensor, back: Tensor) -> Tensor:
    """x [B, H, S, m] to [B, H, S, n] with out[..., i, j] = x[..., i, there[i, j]]; `back` is the way back.

    Only the spare place is read twice, and what comes back to it does not matter, so that the gradient is a
    rearrangement too. Compiled kernels need to be told.
    """
    if torch.compiler.is_compiling():
        return cast(Tensor, Rearranged.apply(x, there, back))
    return x.gather(-1, there.expand(*x.shape[:2], -1, -1))


class Rearranged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.gather(-1, there.expand(*x.shape[:2], -1, -1))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return gradient.gather(-1, back.expand(*gradient.shape[:2], -1, -1)), None, None


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """softmax(q k^T scale + bias) v, fused where that is the faster way."""
    if not is_faster_in_steps(q, k.shape[-2]):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    logits = (q * scale) @ k.mT
    return (logits if bias is None else logits + bias).softmax(-1) @ v


class Attention(nn.Module):
    """Multi-head self-attention over all tokens.

    `fused` chooses the kernel, not the result: True runs torch's fused attention, with the relative position folded
    into extra key and value channels, or for small grids a kernel of ours; False spells every matrix product out, as
    the definition has it.
    """

    def __init__(self, width: int, block: blueprint.Attention, side: int, fused: bool = True) -> None:
        super().__init__()
        inner = block.heads * block.head_dim
        self.heads = block.heads
        self.scale = (width // block.heads if block.scale == "embed" else block.head_dim) ** -0.5
        self.fused = fused
        self.qkv = blank(nn.Linear, width, 3 * inner)  # rows: all of q, all of k, all of v
        self.proj = blank(nn.Linear, inner, width)
        self.relative: RelativePosition | None = None
        if block.relative_distance:
            self.relative = RelativePosition(block.head_dim, block.relative_distance, side)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1)
        if self.fused and self.relative is not None and is_small_grid(qkv):
            return cast(Tensor, self.proj(self.small_grid_form(qkv, self.relative).flatten(2)))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [B, H, S, D]
        out = self.fused_form(q, k, v) if self.fused else self.explicit_form(q, k, v)
        return cast(Tensor, self.proj(out.transpose(1, 2).reshape(batch, tokens, -1)))

    def small_grid_form(self, qkv: Tensor, relative: RelativePosition) -> Tensor:
        from vitsearch.models.grid_attention import relative_attention  # which needs Triton

        keys = relative.all_vectors(relative.key_rows, relative.key_columns)
        values = relative.all_vectors(relative.value_rows, relative.value_columns)
        return relative_attention(qkv, keys, values, self.scale)

    def explicit_form(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """logit_ij = (q_i . k_j + q_i . RK_ij) scale;  out_i = sum_j a_ij (v_j + RV_ij)."""
        logits = q @ k.transpose(-2, -1)
        if self.relative is not None:
            vectors = self.relative.vectors(self.relative.key_rows, self.relative.key_columns)
            logits = logits + torch.einsum("bhid,ijd->bhij", q, vectors)
        weights = (logits * self.scale).softmax(-1)
        out: Tensor = weights @ v
        if self.relative is not None:
            vectors = self.relative.vectors(self.relative.value_rows, self.relative.value_columns)
            out = out + torch.einsum("bhij,ijd->bhid", weights, vectors)
        return out

    def fused_form(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.relative is None:
            return attend(q, k, v, self.scale)
        cells = self.relative.key_cells.to(k.dtype).expand(*k.shape[:2], -1, -1)
        q = torch.cat([q, self.relative.extend_query(q)], -1)
        out = attend(q, torch.cat([k, cells], -1), torch.cat([v, cells], -1), self.scale)
        head_dim = v.shape[-1]
        return out[..., :head_dim] + self.relative.value_part(out[..., head_dim:])


class WindowAttention(nn.Module):
    """Attention inside (shifted) windows with a bias per head and relative offset, as in Swin."""

    bias_index: Tensor
    mask: Tensor | None
    place: Tensor | None

    def __init__(self, width: int, block: blueprint.WindowAttention, side: int, fused: bool = True) -> None:
        super().__init__()
        inner = block.heads * block.head_dim
        self.heads, self.head_dim, self.side, self.fused = block.heads, block.head_dim, side, fused
        self.window, self.shift, self.padded = block.on(side)
        self.scale = block.head_dim**-0.5
        self.qkv = blank(nn.Linear, width, 3 * inner)
        self.proj = blank(nn.Linear, inner, width)
        self.relative_position_bias_table = nn.Parameter(torch.empty((2 * self.window - 1) ** 2, block.heads))
        for name, constant in self.constants(torch.get_default_device()).items():
            self.register_buffer(name, constant, persistent=False)

    def constants(self, device: torch.device) -> dict[str, Tensor | None]:
        """`bias_index`, `mask` and `place`, made on this device whatever device the layer itself is on."""
        with torch.device(device):
            along = torch.arange(self.window)
            offsets = along[:, None] - along[None, :] + self.window - 1  # [query, key] along one axis
            index = offsets[:, None, :, None] * (2 * self.window - 1) + offsets[None, :, None, :]
            mask = self._shift_mask() if self.shift else None
            place = None
            if self.padded == self.side:
                place = self._shifted_windows(torch.arange(self.side**2, dtype=torch.int32)[None, :, None])[..., 0]
            return {"bias_index": index.reshape(self.window**2, self.window**2), "mask": mask, "place": place}

    def _shift_mask(self) -> Tensor:
        """[windows, tokens, tokens]: -100 between tokens that the cyclic shift brought together."""
        edges = torch.tensor([self.padded - self.window, self.padded - self.shift])
        band = torch.bucketize(torch.arange(self.padded), edges, right=True)  # three bands along one axis
        region = self._windows((band[:, None] * 3 + band[None, :])[None, :, :, None].float())[..., 0]
        return (region[:, None, :] != region[:, :, None]).float() * -100.0

    def _windows(self, x: Tensor) -> Tensor:
        """[B, side, side, C] -> [B windows, window * window, C]."""
        batch, side, _, width = x.shape
        count = side // self.window
        x = x.reshape(batch, count, self.window, count, self.window, width).transpose(2, 3)
        return x.reshape(-1, self.window**2, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        if self.fused and self.place is not None and is_small_window(x, self.window, self.head_dim):
            qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1)
            return cast(Tensor, self.proj(self.small_window_form(qkv, self.place).flatten(2)))
        x = self._attend(self._shifted_windows(x))
        count = self.padded // self.window
        x = x.reshape(batch, count, count, self.window, self.window, width).transpose(2, 3)
        x = x.reshape(batch, self.padded, self.padded, width)
        x = torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x
        return x[:, : self.side, : self.side].reshape(batch, -1, width)

    def small_window_form(self, qkv: Tensor, place: Tensor) -> Tensor:
        from vitsearch.models.window_attention import window_attention  # which needs Triton

        bias = self.relative_position_bias_table[self.bias_index].permute(2, 0, 1)
        return window_attention(qkv, bias, self.mask, place, self.scale)

    def weights(self, x: Tensor) -> Tensor:
        """How much each token attends to each of its window: [B windows, H, S, S]."""
        q, k, _ = self._project(x := self._shifted_windows(x))
        logits: Tensor = (q @ k.transpose(-2, -1)) * self.scale + self._bias(len(x))
        return logits.softmax(-1)

    def _shifted_windows(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], self.side, self.side, -1)
        extra = self.padded - self.side
        x = F.pad(x, (0, 0, 0, extra, 0, extra)) if extra else x
        return self._windows(torch.roll(x, (-self.shift, -self.shift), (1, 2)) if self.shift else x)

    def _project(self, x: Tensor) -> Tensor:
        """q, k and v of windows [W, S, C]: [3, W, H, S, D]."""
        return cast(Tensor, self.qkv(x)).reshape(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)

    def _bias(self, windows: int) -> Tensor:
        bias = self.relative_position_bias_table[self.bias_index].permute(2, 0, 1)[None]  # [1, H, S, S]
        if self.mask is not None:
            bias = bias + self.mask.repeat(windows // self.mask.shape[0], 1, 1)[:, None].to(bias.dtype)
        return bias

    def _attend(self, x: Tensor) -> Tensor:
        windows, tokens, _ = x.shape
        q, k, v = self._project(x)
        bias = self._bias(windows)
        if self.fused:
            out = attend(q, k, v, self.scale, bias.to(q.dtype))
        else:
            out = ((q @ k.transpose(-2, -1)) * self.scale + bias).softmax(-1) @ v
        return cast(Tensor, self.proj(out.transpose(1, 2).reshape(windows, tokens, -1)))


class InnerNorm(nn.LayerNorm):
    """A layer norm in front of linear layers, which under autocast would round what it gives."""

    def forward(self, x: Tensor) -> Tensor:
        if not is_narrow(x):
            return super().forward(x)
        from vitsearch.models.norms import Normed  # which needs Triton

        dtype = torch.get_autocast_dtype("cuda")
        return cast(Tensor, Normed.apply(x, self.weight, self.bias, self.eps, dtype))


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = blank(nn.Linear, width, hidden)
        self.act = nn.GELU()
        self.fc2 = blank(nn.Linear, hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        spare = -self.fc1.out_features % 8
        if not torch.compiler.is_compiling() or not (spare or half_on_gpu(x)):
            return cast(Tensor, self.fc2(self.act(self.fc1(x))))
        weight, bias = F.pad(self.fc1.weight, (0, 0, 0, spare)), F.pad(self.fc1.bias, (0, spare))
        if torch.is_grad_enabled() and half_on_gpu(x):
            from vitsearch.models.gelu import biased_gelu  # which needs Triton

            x = biased_gelu(F.linear(x, weight), bias)
        else:
            x = self.act(F.linear(x, weight, bias))
        return F.linear(x, F.pad(self.fc2.weight, (0, spare)), self.fc2.bias)  # whole eights are fast; gelu(0) is 0


class TransformerBlock(nn.Module):
    """Pre-norm: x + attention(norm(x)), then x + mlp(norm(x)), each branch under stochastic depth."""

    def __init__(
        self,
        attention: nn.Module,
        width: int,
        hidden: int,
        norm_eps: float,
        drop_path: float,
        layer_scale: bool = False,
    ) -> None:
        super().__init__()
        self.norm1 = InnerNorm(width, eps=norm_eps)
        self.attn = attention
        self.scale1 = LayerScale(width) if layer_scale else nn.Identity()
        self.drop_path1 = DropPath(drop_path) if drop_path else nn.Identity()
        self.norm2 = InnerNorm(width, eps=norm_eps)
        self.mlp = Mlp(width, hidden)
        self.scale2 = LayerScale(width) if layer_scale else nn.Identity()
        self.drop_path2 = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x, more = self.parts(x)
        return x + more

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens after attention, and what the MLP adds to them."""
        x = x + self.drop_path1(self.scale1(self.attn(self.norm1(x))))
        return x, self.drop_path2(self.scale2(self.mlp(self.norm2(x))))


class LayerScale(nn.Module):
    """A learned factor for each channel (Touvron et al., CaiT, ICCV 2021)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class PatchEmbed(nn.Module):
    """Image [B, channels, side, side] to tokens [B, N, C]."""

    def __init__(self, entry: blueprint.Patch, channels: int, width: int, norm_eps: float) -> None:
        super().__init__()
        self.proj = blank(nn.Conv2d, channels, width, entry.size, stride=entry.stride)
        self.norm = nn.LayerNorm(width, eps=norm_eps) if entry.norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() and self.proj.stride == self.proj.kernel_size:
            return cast(Tensor, self.norm(self._as_product(x)))
        return cast(Tensor, self.norm(self.proj(x).flatten(2).transpose(1, 2)))

    def _as_product(self, x: Tensor) -> Tensor:
        """Patches that do not overlap are rows of a matrix: kernels for their product are faster, backward too."""
        size = self.proj.kernel_size[0]
        side = x.shape[-1] // size
        x = x[..., : side * size, : side * size].reshape(*x.shape[:2], side, size, side, size)
        patches = x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # [B, side * side, channels * size * size]
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class Pooling(nn.Module):
    """PiT: a strided depth-wise convolution over the map, a linear layer for the class token."""

    def __init__(self, before: int, width: int, side: int, class_token: bool) -> None:
        super().__init__()
        self.side = side  # of the map that comes in
        self.conv = blank(nn.Conv2d, before, width, 3, stride=2, padding=1, groups=before)
        self.fc = blank(nn.Linear, before, width) if class_token else None

    def forward(self, x: Tensor) -> Tensor:
        extra = int(self.fc is not None)
        patches = x[:, extra:].transpose(1, 2).reshape(x.shape[0], -1, self.side, self.side)
        pooled = self.conv(patches).flatten(2).transpose(1, 2)
        return pooled if self.fc is None else torch.cat([self.fc(x[:, :1]), pooled], 1)


class Merging(nn.Module):
    """Swin: the four neighbours of a 2x2 square side by side, norm, linear without bias. An odd side is padded."""

    def __init__(self, before: int, width: int, side: int, norm_eps: float) -> None:
        super().__init__()
        self.side = side
        self.norm_corners = InnerNorm(4 * before, eps=norm_eps)
        self.reduction = blank(nn.Linear, 4 * before, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], self.side, self.side, -1)
        x = F.pad(x, (0, 0, 0, self.side % 2, 0, self.side % 2))
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]  # even-even, odd-even, ...
        return cast(Tensor, self.reduction(self.norm_corners(torch.cat(corners, -1).flatten(1, 2))))
