"""What is exported loads in a fresh process and gives the same outputs."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch

from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.export import export, export_timm, untrained
from vitsearch.export_command import use_of
from vitsearch.models import build
from vitsearch.spaces import SPACES, cost_of, sample

FRESH = """
import sys, torch, vitsearch.models, timm
network = timm.create_model(f"local-dir:{sys.argv[1]}", pretrained=True).eval()
images = torch.load(sys.argv[2], weights_only=True)
with torch.no_grad():
    torch.save(network(images), sys.argv[3])
"""


@pytest.mark.parametrize(("space", "image_size", "classes"), [("autoformer-tiny", 224, 1000), ("pit", 64, 7)])
def test_a_fresh_process_gives_equal_outputs(tmp_path: Path, space: str, image_size: int, classes: int) -> None:
    geometry = Geometry(image_size=image_size, classes=classes)
    settings = sample(space, 1, seed=1)[0]
    exported = export_timm(settings, tmp_path / "best", geometry=geometry, seed=4)
    assert exported.max_difference == 0 and exported.cost == cost_of(settings, geometry)
    images = torch.randn(2, 3, image_size, image_size, generator=torch.Generator().manual_seed(0))
    torch.save(images, tmp_path / "images.pt")
    command = [sys.executable, "-c", FRESH, "best", "images.pt", "outputs.pt"]
    subprocess.run(command, check=True, cwd=tmp_path)
    with torch.no_grad():
        expected = build(settings, geometry, seed=4)(images)
    assert torch.equal(torch.load(tmp_path / "outputs.pt", weights_only=True), expected)


@pytest.mark.parametrize("out", ["best", 'it\'s "the" best $x'])
def test_the_next_line_loads_whatever_the_folder_is_called(out: str) -> None:
    for format, file in (("timm", f"local-dir:{out}"), ("onnx", f"{out}/model.onnx")):
        command = shlex.split(use_of(format, out))
        assert command[:2] == ["python", "-c"] and len(command) == 3
        texts = [node.value for node in ast.walk(ast.parse(command[2])) if isinstance(node, ast.Constant)]
        assert texts[0] == file
    assert shlex.split(use_of("torch", out)) == ["cd", out, "&&", "python", "-c", "import model; model.load()"]


@pytest.mark.parametrize("space", ["autoformer-micro", "pit"])
def test_loading_at_another_size_and_class_count(tmp_path: Path, space: str) -> None:
    settings = SPACES[space].region().smallest()
    export_timm(settings, tmp_path / "best", geometry=Geometry(image_size=64, classes=10), seed=0)
    network = timm.create_model(
        f"local-dir:{tmp_path / 'best'}", pretrained=True, img_size=96, num_classes=3, in_chans=1
    )
    assert network(torch.zeros(1, 1, 96, 96)).shape == (1, 3)
    original = build(settings, Geometry(image_size=64, classes=10), seed=0).state_dict()
    loaded = network.state_dict()
    name = "stages.0.blocks.0.attn.qkv.weight"
    assert torch.equal(loaded[name], original[name])
    resized = loaded["pos_embed"]
    assert resized.shape != original["pos_embed"].shape
    assert float(resized.std()) == pytest.approx(float(original["pos_embed"].std()), rel=0.5)


def test_the_folder_describes_itself(tmp_path: Path) -> None:
    settings = SPACES["autoformer-micro"].region().smallest()
    export_timm(settings, tmp_path / "a" / "best", geometry=Geometry(image_size=32, classes=10), seed=5)
    config = json.loads((tmp_path / "a" / "best" / "config.json").read_text())
    assert config["architecture"] == "vitsearch_net" and config["model_args"] == {"settings": settings}
    assert (
        config["pretrained_cfg"]["input_size"] == [3, 32, 32] and config["pretrained_cfg"]["fixed_input_size"] is True
    )
    assert config["num_classes"] == 10 and config["vitsearch"] == {"weights": "initial", "seed": 5}
    assert sorted(path.name for path in (tmp_path / "a").rglob("*")) == [
        "README.md",
        "best",
        "config.json",
        "model.safetensors",
    ]


def test_nothing_half_written(tmp_path: Path) -> None:
    settings = SPACES["autoformer-micro"].region().smallest()
    (tmp_path / "there").mkdir()
    with pytest.raises(VitsearchError, match="`out` must not exist yet"):
        export_timm(settings, tmp_path / "there")
    with pytest.raises(VitsearchError, match="`image_size` must be at least the patch size"):
        export_timm(settings, tmp_path / "small", geometry=Geometry(image_size=8))
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("more", [{"cait": 2}, {"scale": "embed"}])
def test_a_single_file_of_vitas_variants(tmp_path: Path, more: dict[str, object]) -> None:
    settings = SPACES["vitas-micro"].region().largest() | more
    done = export(lambda: untrained(settings, Geometry(image_size=32, classes=7), 0), tmp_path / "best", "torch")
    assert done.max_difference < 1e-6
    text = (tmp_path / "best" / "model.py").read_text()
    assert ("late_token=True" in text and "ClassBlock(" in text) == ("cait" in more)
    assert ("scale_width=" in text.split("class Network")[1]) == ("scale" in more)
