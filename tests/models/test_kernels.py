"""Triton kernels, run by its interpreter, against the definitions in float64."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

SCRIPT = """
import contextlib
import importlib
import json
import sys
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from vitsearch import architecture as blueprint
from vitsearch.models import gelu, layers, norms, sums

layers.is_small_grid = lambda qkv: qkv.dtype == torch.float32
layers.is_small_window = lambda x, window, head_dim: x.dtype == torch.float32


def compared(ours, definition):
    pairs = list(zip(ours, definition, strict=True))
    errors = [float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in pairs]
    return {"largest": max(errors), "compared": len(errors), "same": all(torch.equal(a, b) for a, b in pairs)}


class Foretold(TorchDispatchMode):
    # what a compiler is told of the results of a kernel, beside what the kernel gives

    def __init__(self):
        super().__init__()
        self.differ, self.seen = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = function(*args, **(kwargs or {}))
        if function.namespace == "vitsearch":
            with FakeTensorMode() as mode:
                told = function(*tree_map_only(torch.Tensor, mode.from_tensor, args))
            self.seen += 1
            for result in zip(given, told, strict=True):
                one, other = ((x.shape, x.stride(), x.dtype) for x in result)
                if one != other:
                    self.differ.append([str(function), str(one), str(other)])
        return given


foretold = Foretold()


def grid(side, heads, head_dim):
    block = blueprint.Attention(heads=heads, head_dim=head_dim, hidden=8, relative_distance=3)
    return layers.Attention(24, block, side), side * side + 1


def windows(side, heads, head_dim, window, shifted):
    block = blueprint.WindowAttention(heads=heads, head_dim=head_dim, hidden=8, window=window, shifted=shifted)
    return layers.WindowAttention(24, block, side), side * side


found = []
for kind, *shape, compiled in json.loads(sys.argv[1]):
    torch.manual_seed(0)
    attention, tokens = {"grid": grid, "windows": windows}[kind](*shape)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    images = torch.randn(3, tokens, 24, requires_grad=True)
    run = torch.compile(attention, backend="aot_eager", fullgraph=True) if compiled else attention
    with contextlib.nullcontext() if compiled else foretold:
        out = run(images)
        back = torch.randn_like(out)
        ours = [out, *torch.autograd.grad(out, [images, *attention.parameters()], back)]
    attention.double().fused = False
    exact = images.detach().double().requires_grad_()
    out = attention(exact)
    definition = [out, *torch.autograd.grad(out, [exact, *attention.parameters()], back.double())]
    found.append(compared(ours, definition))
for *shape, learned in json.loads(sys.argv[2]):
    torch.manual_seed(1)
    x, back = 3 + 2 * torch.randn(shape), torch.randn(shape)
    weights = [torch.randn(shape[-1]) for _ in range(2)] if learned else [None, None]
    if learned:
        given = [one.requires_grad_() for one in (x, *weights)]
        out = norms.Normed.apply(*given, 1e-6, torch.float32)
        ours = [out, *torch.autograd.grad(out, given, back)]
    else:
        out, mean, rate = norms.norm_there(x, None, None, 1e-6, torch.float32)
        ours = [out, norms.norm_back(back, x, None, mean, rate)[0]]
    exact = [None if one is None else one.detach().double().requires_grad_() for one in (x, *weights)]
    out = torch.nn.functional.layer_norm(exact[0], shape[-1:], *exact[1:], 1e-6)
    definition = [out, *torch.autograd.grad(out, [one for one in exact if one is not None], back.double())]
    found.append(compared(ours, definition))
for *shape, kind in json.loads(sys.argv[3]):
    torch.manual_seed(2)
    dtype = getattr(torch, kind)
    given = [(3 * torch.randn(shape)).to(dtype), 3 * torch.randn(shape[-1:])]  # a bias stays float32
    given = [one.requires_grad_() for one in given]
    back = torch.randn(shape[::-1]).permute(*range(len(shape))[::-1]).to(dtype)  # not contiguous
    with foretold:
        out = gelu.biased_gelu(*given)
        ours = [out, *torch.autograd.grad(out, given, back)]
    exact = [one.detach().double().requires_grad_() for one in given]
    out = torch.nn.functional.gelu(exact[0] + exact[1])
    found.append(compared(ours, [out, *torch.autograd.grad(out, exact, back.double())]))
for *shape, kind in json.loads(sys.argv[4]):
    x, more = torch.randn(shape), torch.randn(shape).to(getattr(torch, kind))
    memory = torch.zeros(x.numel() + 50)
    sums.add_rounded(memory[: x.numel()].view(shape), x, more)
    found.append(compared([memory], [torch.cat([(x + more).flatten(), torch.zeros(50)])]))
used = [hasattr(torch.ops.vitsearch, name) for name in ("attend", "attend_in_windows")]
print(json.dumps([found, used, foretold.differ, foretold.seen]))
"""


def test_small_grids_windows_norms_gelu_and_sums_are_the_definition(interpreted: Callable[..., Any]) -> None:
    """Sides, heads, their width, windows and whether they are shifted, whether compiled; shapes, whether learned;
    shapes and precisions."""
    grids = [["grid", 4, 2, 32, False], ["grid", 8, 3, 64, False], ["grid", 4, 3, 32, True]]
    windows = [["windows", 8, 2, 32, 4, False, False], ["windows", 8, 2, 16, 4, True, False]]
    windows += [["windows", 14, 2, 16, 7, True, False], ["windows", 8, 1, 32, 8, False, True]]
    norms: list[list[object]] = [[2, 300, 38, True], [3, 33, 128, True], [1, 5, 77, False]]
    gelus: list[list[object]] = [[2, 5, 24, "float32"], [70, 1100, "float32"], [1, 17, 513, "float16"]]
    sums: list[list[object]] = [[1, 1, 1, "bfloat16"], [3, 17, 216, "bfloat16"], [5, 2048, "float16"]]
    rows, used, differ, seen = interpreted(SCRIPT, [*grids, *windows], norms, gelus, sums)
    assert not differ and used == [True, True] and seen == 2 * (5 + 3)  # of those that are not compiled
    assert [row["compared"] for row in rows] == [10] * 3 + [7] * 4 + [4, 4, 2] + [3] * 3 + [1] * 3
    *whole, half = rows[:13]
    for row in whole:
        assert row["largest"] < 5e-6 and not row["same"]
    assert half["largest"] < 1e-3 and all(row["same"] for row in rows[13:])


POINTERS = {"place": "*i32", "scale": "fp32", "eps": "fp32"}
POINTERS |= dict.fromkeys(("lse", "dbias", "dweight", "mean", "rate"), "*fp32")
COUNTS = ("images", "heads", "windows", "biased", "tokens", "items", "width", "each", "count", "rows")
GRID = {"side": 8, "width": 64, "places": 16}
NORM = {"tile": 32, "padded": 128, "learned": True}
GELU = {"columns": 760, "wide": 1024, "high": 8, "each": 64}
WINDOW = {"size": 49, "padded": 64, "width": 32, "each": 16}


KERNELS = {"grid_kernels": GRID, "window_kernels": WINDOW, "norm_kernels": NORM, "gelu_kernels": GELU}
BOTH = [(module, way, sizes) for module, sizes in KERNELS.items() for way in ("forward_kernel", "backward_kernel")]


@pytest.mark.parametrize(("module", "name", "sizes"), [*BOTH, ("sum_kernels", "sum_kernel", {"block": 2048})])
def test_kernels_compile_for_a_gpu_that_is_not_here(module: str, name: str, sizes: dict[str, int]) -> None:
    """The interpreter takes more than the compiler does."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    kernel = getattr(importlib.import_module(f"vitsearch.models.{module}"), name)
    constants = {key: value for key, value in (sizes | {"precision": "tf32"}).items() if key in kernel.arg_names}
    signature = {key: "i32" if key in COUNTS else POINTERS.get(key, "*bf16") for key in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    places = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    source = compiler.ASTSource(kernel, signature, places, {})
    made = compiler.compile(source, target=target, options={"num_warps": 4}).asm["ptx"]
    assert ("wgmma" if module in ("grid_kernels", "window_kernels") else "st.global") in made
