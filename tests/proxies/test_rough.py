"""Blocks in kernels of ours, run by Triton's interpreter, against the definitions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

BLOCKS = """
import json
import torch
from vitsearch.cost import Geometry
from vitsearch.proxies import batched, group_pass, takers
from vitsearch.proxies.rough import magnitudes
from vitsearch.scoring import ProxyEvaluator
from vitsearch.spaces import sample

names = ["snip", "grad_norm", "snip:params=linear"]
scorer = ProxyEvaluator(names, geometry=Geometry(image_size=48, classes=10), seed=1, device="cpu", batch_size=2)
networks = [settings for settings in sample("autoformer-micro", 24, seed=3) if settings["embed_dim"] == 32][:7]
networks[1]["mlp_ratio"] = [2.0625] * networks[1]["depth"]  # 66 hidden units: not whole eights
theirs = [scorer.one(settings).scores for settings in networks]
batched.ROUGH_ON = ("cpu",)
group_pass.has_kernels = lambda *_: True
takers.is_half_on_gpu = lambda gradient: gradient.dtype == torch.float16
scorer.at_once = 8
ours, again = ([score.scores for score in scorer(networks)] for _ in range(2))
group_pass.GroupPass.scale = lambda *_: 2.0**60
left_open = scorer(networks[:1])[0].scores
gradient, value, parts = torch.randn(3, 12, 16).half(), torch.randn(12, 16), []
for dim in (0, 1):
    for one, other in zip(gradient.chunk(2, 1 + dim), value.chunk(2, dim)):
        parts.append([magnitudes(one, other).tolist(), (one * other).double().abs().sum((1, 2)).tolist()])
print(json.dumps([theirs, ours, again, left_open, sorted({settings["depth"] for settings in networks}), parts]))
"""

ATTENTION = """
import json
import sys
import torch
import torch.nn.functional as F
from vitsearch.models.layers import relative_maps
from vitsearch.proxies.rough_attention import Attended, grid

found = []
for side, distance, heads, width in json.loads(sys.argv[1]):
    torch.manual_seed(0)
    tokens, rows = side * side + 1, 2 * distance + 2
    qkv, tables = torch.randn(1, 2, tokens, 3, heads, width), 0.3 * torch.randn(2, 2 * rows, width)
    dout = torch.randn(1, 2, tokens, heads * width)
    known = grid(side, distance, width, qkv.device, qkv.dtype)
    attended = Attended(qkv, known.folded.T @ tables, known)
    dqkv, dvectors = attended.back(dout)
    ours = [attended.out, dqkv, (known.folded @ dvectors)[0]]
    x, both, maps = qkv.double().requires_grad_(), tables.double().requires_grad_(), relative_maps(side, distance)
    patch = torch.arange(side * side)
    row = F.pad(maps.row_index[:, patch // side], (1, 0))
    column = F.pad(maps.column_index[:, patch % side], (1, 0))
    keys, values = (one[:rows][row] + one[rows:][column] for one in both)
    q, k, v = x[0].permute(2, 0, 3, 1, 4)
    weights = ((q @ k.mT + torch.einsum("bhid,ijd->bhij", q, keys)) * width**-0.5).softmax(-1)
    out = (weights @ v + torch.einsum("bhij,ijd->bhid", weights, values)).transpose(1, 2).reshape(dout.shape)
    theirs = [out, *torch.autograd.grad(out, [x, both], dout.double())]
    pairs = zip(ours, theirs, strict=True)
    found.append([float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in pairs])
print(json.dumps(found))
"""


def test_attention_is_the_definition(interpreted: Callable[..., Any]) -> None:
    """Sides of the grid, distances at which offsets are clipped, heads, their width."""
    rows = interpreted(ATTENTION, [[9, 14, 2, 32], [8, 3, 1, 64], [3, 14, 3, 16]])
    assert isinstance(rows, list) and len(rows) == 3
    for row in rows:
        assert max(row) < 2e-6


def test_blocks_are_the_definition(interpreted: Callable[..., Any]) -> None:
    """Networks of several depths, heads and hidden widths, and one whose gradients float16 cannot hold.

    Tables of rows and of columns, which are parts of one tensor: so they come where blocks are not in kernels.
    """
    found = interpreted(BLOCKS)
    assert isinstance(found, list)
    theirs, ours, again, left_open, depths, parts = found
    assert ours == again and depths == [2, 3]
    for one, other in zip(ours, theirs, strict=True):
        assert one != other and one == pytest.approx(other, rel=1e-4)
    assert left_open == theirs[0]
    for of_part, expected in parts:
        assert of_part == pytest.approx(expected, rel=1e-5)


SIZES = {"heads": 3, "tokens": 197, "width": 64, "side": 14, "offsets": 27, "slots": 64, "places": 32}
SIZES |= {"queries": 64, "keys": 64}
STREAM = {"width": 216, "tile": 8, "padded": 256, "adds": True, "norms": True, "passes": True}
POINTERS = dict.fromkeys(("x", "kept", "rate", "dx", "sums", "value", "dtables"), "*fp32")
POINTERS |= dict.fromkeys(("network", "before"), "*i64") | dict.fromkeys(("scale", "root", "eps"), "fp32")
POINTERS |= dict.fromkeys(("size", "each"), "i32")


@pytest.mark.parametrize(
    ("module", "name"),
    [("rough_attention_kernels", f"{name}_kernel") for name in ("forward", "queries", "keys", "tables")]
    + [("rough_kernels", f"{name}_kernel") for name in ("norm", "norm_back", "magnitudes")],
)
def test_kernels_compile_for_a_gpu_that_is_not_here(module: str, name: str) -> None:
    """The interpreter takes more than the compiler does."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    kernel = getattr(importlib.import_module(f"vitsearch.proxies.{module}"), name)
    sizes = SIZES if "attention" in module else {"tile": 2048} if name == "magnitudes_kernel" else STREAM
    constants = {key: value for key, value in sizes.items() if key in kernel.arg_names}
    signature = {key: POINTERS.get(key, "*fp16") for key in kernel.arg_names}
    if "attention" not in module:
        signature |= {"tokens": "i32"} if "tokens" in kernel.arg_names else {}
    signature |= dict.fromkeys(constants, "constexpr")
    places = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    source = compiler.ASTSource(kernel, signature, places, {})
    made = compiler.compile(source, target=target, options={"num_warps": 4}).asm["ptx"]
    assert ("wgmma" if "attention" in module else "st.global") in made
