"""ONNX, the single file, the card and the hub's layout. Contracts over every space are in test_contracts."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file

from vitsearch.architecture import Absent, Architecture, Attention, Merge, Patch, Pool, Stage, WindowAttention
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.errors import MissingPackage, VitsearchError
from vitsearch.export import FORMATS, Handover, export, export_trained, trained, untrained
from vitsearch.export.card import model_card
from vitsearch.models import build
from vitsearch.models.folder import foreign_config, write_network
from vitsearch.spaces import SPACES, cost_of
from vitsearch.training.plan import read_plan
from vitsearch.training.recipe import RECIPES
from vitsearch.training_command import choose_size

Cli = Callable[..., Any]
SMALL = Geometry(image_size=32, classes=10)
MICRO = SPACES["autoformer-micro"].region(geometry=SMALL).smallest()
ALONE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("vitsearch", "timm"):
            raise ImportError(f"{name} must not be needed")
sys.meta_path.insert(0, Refuse())
import torch, model
network = model.load()
with torch.no_grad():
    torch.save(network(torch.load("images.pt", weights_only=True)), "outputs.pt")
print(model.MEAN, model.STD)
"""


def window(shifted: bool, size: int = 3) -> WindowAttention:
    return WindowAttention(heads=2, head_dim=8, hidden=24, window=size, shifted=shifted)


def drawn(architecture: Architecture, geometry: Geometry) -> Handover:
    """Every parameter matters: norms, tables and biases too."""
    network = build(architecture, geometry, seed=0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    config = {"pretrained_cfg": {"mean": [0.5], "std": [0.25], "interpolation": "bicubic", "crop_pct": 1.0}}
    return Handover(network=network, settings=None, geometry=geometry, config=config)


WINDOWED = Architecture(
    stages=(
        Stage(entry=Patch(size=4, stride=4, norm=True), width=16, blocks=(window(False), window(True), Absent())),
        Stage(entry=Merge(), width=24, blocks=(window(True, 7), window(False, 2))),
    ),
    class_token=False,
    position="patches",
)
POOLED = Architecture(
    stages=(
        Stage(
            entry=Patch(size=8, stride=4),
            width=16,
            blocks=(Attention(heads=2, head_dim=4, hidden=20, relative_distance=2),),
        ),
        Stage(entry=Pool(), width=32, blocks=(Attention(heads=1, head_dim=8, hidden=8), Absent())),
    ),
    position="all",
    readout="class",
)
BARE = Architecture(
    stages=(
        Stage(entry=Patch(size=8, stride=8), width=16, blocks=(Attention(heads=2, head_dim=4, hidden=20),)),
        Stage(entry=Pool(), width=32, blocks=()),
    ),
    class_token=False,
    position="none",
)


@pytest.mark.parametrize(
    ("architecture", "side", "formats"),
    [
        (WINDOWED, 20, ("torch", "onnx")),  # 5 x 5, then 3 x 3 tokens: padded windows, odd sides
        (WINDOWED, 36, ("torch",)),  # 9 x 9: windows that fit
        (POOLED, 24, ("torch", "onnx")),
        (BARE, 32, ("torch",)),
    ],
)
@torch.no_grad()
def test_every_kind_of_block_and_entry(
    tmp_path: Path, architecture: Architecture, side: int, formats: tuple[str, ...]
) -> None:
    geometry = Geometry(image_size=side, classes=5, channels=2)
    handover = drawn(architecture, geometry)
    images = torch.randn(4, 2, side, side, generator=torch.Generator().manual_seed(1))
    for name in formats:
        FORMATS[name].write(handover, tmp_path)
        for batch in (images, images[:1]):
            torch.testing.assert_close(
                FORMATS[name].run(tmp_path, batch), handover.network(batch), rtol=1e-4, atol=1e-4
            )


def test_the_single_file_needs_neither_vitsearch_nor_timm(tmp_path: Path) -> None:
    done = export(lambda: untrained(MICRO, SMALL, 3), tmp_path / "best", "torch")
    assert done.cost == cost_of(MICRO, SMALL) and done.max_difference < 1e-5
    assert sorted(file.name for file in done.out.iterdir()) == ["README.md", "model.py", "model.safetensors"]
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.save(images, done.out / "images.pt")
    ran = subprocess.run([sys.executable, "-c", ALONE], cwd=done.out, check=True, capture_output=True, text=True)
    assert ran.stdout.startswith("(0.485, 0.456, 0.406)")
    outputs = torch.load(done.out / "outputs.pt", weights_only=True)
    with torch.no_grad():
        torch.testing.assert_close(outputs, build(MICRO, SMALL, seed=3)(images), rtol=1e-4, atol=1e-6)
    text = (done.out / "model.py").read_text()
    assert "class RelativePosition" in text and "class WindowAttention" not in text and "class Pooling" not in text


def test_onnx_on_the_command_line(tmp_path: Path, cli: Cli) -> None:
    import onnx

    (tmp_path / "arch.json").write_text(json.dumps(MICRO))
    out = tmp_path / "best"
    command = ["export", tmp_path / "arch.json", "--format", "onnx", "--out", out, "--image-size", 32]
    done = cli(*command, "--classes", 10, "--seed", 4, "--json").json()
    assert done["format"] == "onnx" and done["max_difference"] < 1e-4 and done["weights"] == "initial"
    assert sorted(file.name for file in out.iterdir()) == ["README.md", "model.onnx"]
    proto = onnx.load(out / "model.onnx")
    onnx.checker.check_model(proto)
    (dimension, *rest) = [side.dim_param or side.dim_value for side in proto.graph.input[0].type.tensor_type.shape.dim]
    assert isinstance(dimension, str) and rest == [3, 32, 32]
    assert json.loads({one.key: one.value for one in proto.metadata_props}["settings"]) == MICRO
    images = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = build(MICRO, SMALL, seed=4)(images)
    torch.testing.assert_close(FORMATS["onnx"].run(out, images), expected, rtol=1e-4, atol=1e-5)
    card = (out / "README.md").read_text()
    assert "**Not trained.** The weights are the initial ones of seed 4" in card
    assert shlex.join(["vitsearch", *map(str, command[:6])]) in card and f"{done['params']:,}" in card


def test_what_does_not_agree_is_not_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handover = untrained(MICRO, SMALL, 0)
    loads = {"weights": 0}

    def other(folder: Path, images: torch.Tensor) -> torch.Tensor:
        loads["weights"] = len(load_file(folder / "model.safetensors"))
        return torch.zeros(3, 10)

    with monkeypatch.context() as patch:
        patch.setitem(FORMATS, "torch", type(FORMATS["torch"])(write=FORMATS["torch"].write, run=other, tolerance=1e-4))
        with pytest.raises(VitsearchError, match="must give the same outputs, but they differ by"):
            export(lambda: handover, tmp_path / "new" / "best", "torch")
    assert loads["weights"] and not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingPackage, match=r"pip install 'vitsearch\[export\]'"):
        export(lambda: handover, tmp_path / "best", "onnx")
    assert not list(tmp_path.iterdir())


def test_networks_of_timm(tmp_path: Path) -> None:
    network = timm.create_model("resnet10t", num_classes=10)
    about = {"weights": "trained", "data": "digits", "test_top1": 91.5}
    shown: dict[str, Any] = {"mean": [0.5] * 3, "std": [0.2] * 3, "crop_percent": 1.0}
    (tmp_path / "theirs").mkdir()
    config = foreign_config("resnet10t", network, SMALL, about, **shown)
    write_network(tmp_path / "theirs", network.state_dict(), config)
    done = export_trained(tmp_path / "theirs", tmp_path / "timm")
    assert done.settings is None and done.cost.params == sum(p.numel() for p in network.parameters())
    assert done.cost.macs > 0 and done.max_difference == 0 and done.weights == "trained"
    assert "accuracy, test part | 91.50 %" in (tmp_path / "timm" / "README.md").read_text()
    with pytest.raises(VitsearchError, match="torch is for the networks of our spaces"):
        export_trained(tmp_path / "theirs", tmp_path / "torch", "torch")
    assert not (tmp_path / "torch").exists()


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a training in `run`, and what it pushed in `hub`."""
    from vitsearch.cli import main

    folder = tmp_path_factory.mktemp("pushed")
    (folder / "arch.json").write_text(json.dumps(SPACES["autoformer-micro"].with_patch_size(8).region().smallest()))
    command = ["train", str(folder / "arch.json"), "--data", "digits", "--recipe", "quick", "--epochs", "1"]
    command += ["--image-size", "16", "--set", "drop_path=0.1", "--set", "augmentation.flip=0.25", "--device", "cpu"]
    assert main([*command, "--out", str(folder / "run"), "--push-dir", str(folder / "hub"), "--quiet"]) == 0
    return folder


def test_the_hubs_layout(pushed: Path) -> None:
    hub = pushed / "hub"
    assert sorted(file.name for file in hub.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    result = json.loads((pushed / "run" / "result.json").read_text())
    _, front, body = (hub / "README.md").read_text().split("---\n", 2)
    head = yaml.safe_load(front)
    assert head["library_name"] == "timm" and head["pipeline_tag"] == "image-classification"
    (metric,) = head["model-index"][0]["results"][0]["metrics"]
    assert metric["value"] == result["test_top1"]
    assert f"{result['test_top1']:.2f} % of {result['test_images']:,} images" in body and "ot trained" not in body
    assert f"| torch | {torch.__version__} |" in body and "| drop_path | 0.1 |" in body
    weights = load_file(hub / "model.safetensors")
    original = load_file(pushed / "run" / "model.safetensors")
    assert weights.keys() == original.keys() and all(torch.equal(weights[name], original[name]) for name in weights)
    assert timm.create_model(f"local-dir:{hub}", pretrained=True)(torch.zeros(1, 3, 16, 16)).shape == (1, 10)


def test_the_command_on_the_card_gives_the_same_plan(pushed: Path, tmp_path: Path, cli: Cli) -> None:
    body = (pushed / "hub" / "README.md").read_text()
    (line,) = [line for line in body.splitlines() if line.startswith("vitsearch train")]
    words = shlex.split(line)[1:]
    words[words.index("arch.json")], words[words.index("run")] = str(pushed / "arch.json"), str(tmp_path / "again")
    assert cli(*words, "--device", "cpu").code == 0
    assert read_plan(tmp_path / "again")[0] == read_plan(pushed / "run")[0]


def test_a_push_into_what_is_there_is_refused_before_training(pushed: Path, tmp_path: Path, cli: Cli) -> None:
    ran = cli("train", pushed / "arch.json", "--out", tmp_path / "run", "--push-dir", pushed / "hub")
    assert "`out` must not exist yet" in ran.error() and not (tmp_path / "run").exists()


@pytest.mark.parametrize("out", ["new", "other/../new", "new/run"])
def test_a_push_into_the_folder_of_the_training_is_refused_before_it(tmp_path: Path, cli: Cli, out: str) -> None:
    ran = cli("train", "--timm", "test_vit", "--epochs", 1, "--out", tmp_path / out, "--push-dir", tmp_path / "new")
    assert "`--push-dir` must neither be nor hold --out" in ran.error() and not (tmp_path / "new").exists()


def test_a_training_as_a_single_file(pushed: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli("export", pushed / "run", "--format", "torch", "--out", tmp_path / "single", "--json").json()
    assert done["weights"] == "trained" and done["seed"] is None and done["max_difference"] < 1e-4
    card = (tmp_path / "single" / "README.md").read_text()
    assert "Trained on `digits`" in card and "import model" in card
    assert "(0.3048" in (tmp_path / "single" / "model.py").read_text()


def test_names_of_classes_go_with_the_network(pushed: Path, tmp_path: Path) -> None:
    digits = list("0123456789")
    assert (
        list(timm.create_model(f"local-dir:{pushed / 'hub'}", pretrained=True).pretrained_cfg["label_names"]) == digits
    )
    assert "| names of classes | 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 |" in (pushed / "hub" / "README.md").read_text()
    handover = trained(pushed / "run")
    names = [f"a 'quoted' \"{{name}}\"\nof {number}" for number in range(10)]
    handover.config["label_names"] = names
    export(lambda: handover, tmp_path / "single", "torch")
    module: dict[str, Any] = {"__file__": "model.py", "__name__": "model"}
    exec((tmp_path / "single" / "model.py").read_text(), module)
    assert module["CLASSES"] == names
    export(lambda: handover, tmp_path / "onnx", "onnx")
    import onnx

    props = {one.key: json.loads(one.value) for one in onnx.load(tmp_path / "onnx" / "model.onnx").metadata_props}
    assert props["class_names"] == names
    handover.config["label_names"] = names[:9]  # of other classes than these
    assert "names of classes" not in model_card(handover, "timm", 0.0)


def test_a_training_goes_on_at_the_size_of_what_it_continues(pushed: Path, tmp_path: Path, cli: Cli) -> None:
    words = ("--data", "digits", "--recipe", "quick", "--epochs", 1, "--device", "cpu")
    assert cli("train", "--from", pushed / "run", *words, "--out", tmp_path / "same").code == 0
    assert read_plan(tmp_path / "same")[0].geometry == read_plan(pushed / "run")[0].geometry
    assert choose_size(None, RECIPES["finetune"], False, None, Geometry(image_size=96, classes=2)) == 96
    assert choose_size(None, RECIPES["s3-384"], False, None, IMAGENET) == 384
    assert choose_size(None, RECIPES["quick"], True, None, Geometry(image_size=96, classes=2)) == 32
    assert choose_size(None, RECIPES["quick"], False, None, IMAGENET) == 224
    assert choose_size(None, RECIPES["quick"], False, "run#best", IMAGENET) == 32
    assert choose_size(None, RECIPES["quick"], False, "run#best", Geometry(image_size=64, classes=2)) == 64
    ran = cli("train", "--from", pushed / "run", "--image-size", 0, *words, "--out", tmp_path / "none")
    assert "image_size" in ran.error() and not (tmp_path / "none").exists()


def test_what_users_wrote_stays_text(pushed: Path) -> None:
    handover = trained(pushed / "run")
    evil = "folder:x`|<script>alert(1)</script>\n# [Buy](http://x)"
    handover.config["vitsearch"]["data"] = evil
    assert handover.plan is not None
    object.__setattr__(handover.plan, "data", evil)
    card = model_card(handover, "timm", 0.0)
    assert "<script>" not in card.replace(shlex.quote(evil), "").replace(json.dumps(evil), "")
    assert "\n# [Buy]" not in card.replace(shlex.quote(evil), "")
    assert yaml.safe_load(card.split("---\n")[1])["model-index"][0]["results"][0]["dataset"]["name"] == evil
