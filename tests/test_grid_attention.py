"""The kernels for small grids, run by Triton's interpreter against the definition in float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

SCRIPT = """
import json
import torch
from vitsearch import architecture as blueprint
from vitsearch.models import layers

layers.is_small_grid = lambda qkv: qkv.dtype == torch.float32
found = []
for side, heads, head_dim, compiled in ((4, 2, 32, False), (8, 3, 64, False), (4, 3, 32, True)):
    torch.manual_seed(side)
    block = blueprint.Attention(heads=heads, head_dim=head_dim, hidden=8, relative_distance=3)
    attention = layers.Attention(24, block, side)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    images = torch.randn(3, side * side + 1, 24, requires_grad=True)
    run = torch.compile(attention, backend="aot_eager", fullgraph=True) if compiled else attention
    out = run(images)
    back = torch.randn_like(out)
    ours = [out, *torch.autograd.grad(out, [images, *attention.parameters()], back)]
    attention.double().fused = False
    exact = images.detach().double().requires_grad_()
    out = attention(exact)
    definition = [out, *torch.autograd.grad(out, [exact, *attention.parameters()], back.double())]
    errors = [float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in zip(ours, definition)]
    used = hasattr(torch.ops.vitsearch, "attend")
    found.append({"largest": max(errors), "compared": len(errors), "used": used})
print(json.dumps(found))
"""


def test_small_grids_are_the_definition() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    assert len(rows) == 3
    for row in rows:
        assert row["used"] and row["compared"] == 10 and row["largest"] < 5e-6
