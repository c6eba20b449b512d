"""Fine-tuning at another image size: windows that grow with it, and the bias tables that follow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vitsearch.cost import Geometry
from vitsearch.models import build
from vitsearch.models.folder import timm_config, write_network
from vitsearch.spaces import SPACES
from vitsearch.training.transfer import fit_weights, load_weights

SPACE = SPACES["s3:depth=1,embed_dim=16,num_heads=1,mlp_ratio=1,window_size=2+4/2/2/1"].with_patch_size(2)


def test_windows_and_bias_tables_grow_with_the_image(tmp_path: Path, cli: Callable[..., Any]) -> None:
    settings, geometry = SPACE.region().largest(), Geometry(image_size=16, classes=10)
    network = build(settings, geometry, seed=0)
    (tmp_path / "small").mkdir()
    write_network(tmp_path / "small", network.state_dict(), timm_config(settings, geometry, {"weights": "trained"}))
    options = ["--data", "digits", "--recipe", "quick", "--epochs", "1", "--batch-size", "512", "--device", "cpu"]
    scaled = ["--from", tmp_path / "small", "--image-size", "32", "--scale-windows"]
    found = cli("train", *scaled, *options, "--out", tmp_path / "large", "--json").json()
    assert found["settings"]["window_size"] == [[8], [4], [4], [2]]
    assert json.loads((tmp_path / "large" / "study.json").read_text())["geometry"]["image_size"] == 32
    larger = build(found["settings"], Geometry(image_size=32, classes=10), seed=1)
    report = fit_weights(load_weights(tmp_path / "small").state, larger)
    tables = [name for name in report.resized if "bias_table" in name]
    assert len(tables) == 4 and not report.fresh
    before, after = (
        dict(one.named_parameters())["stages.0.blocks.0.attn.relative_position_bias_table"] for one in (network, larger)
    )
    assert before.shape == (49, 1) and after.shape == (225, 1)
    torch.testing.assert_close(after[112], before[24], rtol=0.2, atol=0.02)  # offset 0 stays in the middle
    error = cli("train", "--timm", "resnet10t", "--scale-windows", *options, "--out", tmp_path / "no").error()
    assert "`--scale-windows` needs --from the folder of a network with windows" in error
