"""A supernet of convolutional networks from training to hand-over, and in-place distillation in every space."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F

import vitsearch.models  # noqa: F401
from vitsearch.cost import Geometry
from vitsearch.data import Batch, evaluation_batches, open_training_data
from vitsearch.errors import VitsearchError
from vitsearch.evaluate import SupernetEvaluator
from vitsearch.models.super_transformer import supernet_for
from vitsearch.spaces import SPACES, sample
from vitsearch.tasks import Classification
from vitsearch.training.calibration import IMAGES, calibrated, calibration_batches
from vitsearch.training.distributed import World
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import RECIPES
from vitsearch.training.run import Machine, train_network
from vitsearch.training.subnet import Subnet
from vitsearch.training.supernet import SupernetTrainer, read_supernet
from vitsearch.training.trainer import evaluate

NAME = "mobilenetv2:resolution=32,depth=1+2/1/1/1/1/1/1,width=8/8/8+16/8+16/16/16/16/16/32+64,kernel=3/3/3+5/3+5/3/3/3"
SPACE = SPACES[NAME]
GEOMETRY = Geometry(image_size=16, classes=10)
CPU = Machine(device="cpu")
RECIPE = replace(RECIPES["quick"], epochs=2, image_size=16, learning_rate=0.01, warmup_epochs=0)


def plan(**changes: Any) -> TrainingPlan:
    given: dict[str, Any] = {"space": {"name": NAME, "fixed": {}}, "subnets": "uniform", "data": "digits"}
    return TrainingPlan(**(given | {"geometry": GEOMETRY, "recipe": RECIPE, "in_place_distillation": True} | changes))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mobile") / "supernet"
    result = train_network(plan(), out, machine=CPU).result
    assert result["validation_largest_top1"] > 25  # of ten classes
    return out


def test_an_objective_is_the_accuracy_with_statistics_of_its_own(trained: Path) -> None:
    """Against extracting, passing the training images once by hand, and classifying."""
    data, device = open_training_data("digits"), torch.device("cpu")
    parts = {
        split: list(
            evaluation_batches(data.part(split), dataset=data, geometry=GEOMETRY, batch_size=64, device=device)  # type: ignore[arg-type]
        )
        for split in ("train", "validation")
    }
    _, supernet = read_supernet(trained)
    settings = sample(SPACE, 2, seed=1)
    scores = SupernetEvaluator(trained, device="cpu")(settings)
    for one, score in zip(settings, scores, strict=True):
        network = calibrated(supernet, SPACE.decode(one), parts["train"], "float32")
        expected = evaluate(network, parts["validation"], World(device=device), "float32")
        found = score.scores[f"supernet:{trained}"]
        assert found == pytest.approx(expected["top1"], abs=6)  # other batches of the same images
        plain = evaluate(supernet.extract(SPACE.decode(one)), parts["validation"], World(device=device), "float32")
        assert plain["loss"] > expected["loss"] + 0.1  # without statistics of its own
    assert SupernetEvaluator(trained, device="cpu")(settings)[1].scores == scores[1].scores


def test_calibration_takes_training_images_in_equal_batches(trained: Path) -> None:
    run, supernet = read_supernet(trained)
    data, device = open_training_data("digits"), torch.device("cpu")
    batches = list(calibration_batches(supernet, run, data, device))
    assert len({len(batch.images) for batch in batches}) == 1
    count = sum(len(batch.images) for batch in batches)
    assert count <= min(IMAGES, len(data.part("train"))) < count + 64
    assert min(len(set(batch.labels.tolist())) for batch in batches) > 5  # in no order
    other = supernet_for(SPACES["autoformer-micro"].with_patch_size(8), GEOMETRY)
    assert list(calibration_batches(other, run, data, device)) == []


def test_the_way_on_the_command_line(tmp_path: Path, cli: Callable[..., Any]) -> None:
    """Choice, preferred training, specialisation: the same commands as for transformers."""
    chosen, preferred = tmp_path / "chosen", tmp_path / "preferred"
    sizes = ["--data", "digits", "--image-size", "16", "--device", "cpu", "--json"]
    budgets = ["--strategy", "prenas", "--budgets", "500k,900k", "--resource", "macs", "--top", "2"]
    done = cli("search", NAME, *budgets, *sizes, "--out", chosen).json()
    assert len(done["picks"]) == 4 and all(pick["macs"] < pick["budget"] for pick in done["picks"])
    training = ["--recipe", "quick", "--epochs", "1", "--candidates", chosen, "--in-place-distillation"]
    cli("supernet", "train", NAME, *training, *sizes, "--out", preferred).json()
    study = json.loads((preferred / "study.json").read_text())
    assert study["subnets"] == "balanced" and study["in_place_distillation"] is True
    specialised = ["specialize", preferred, "--max-macs", "600k", "--rank", "--device", "cpu", "--json"]
    found = cli(*specialised, "--out", tmp_path / "one").json()
    assert found["settings"] in [pick["settings"] for pick in done["picks"]] and found["macs"] <= 600_000
    network = timm.create_model(f"local-dir:{tmp_path / 'one'}", pretrained=True).eval()
    data = open_training_data("digits")
    batches = evaluation_batches(
        data.part("validation"), dataset=data, geometry=GEOMETRY, batch_size=64, device=torch.device("cpu")
    )
    again = evaluate(network, batches, World(device=torch.device("cpu")), "float32")
    assert again["top1"] == pytest.approx(found["top1"], abs=0.5)


class Still:
    """A loader of one batch."""

    steps_per_epoch = 1

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def batches(self, start: int = 0) -> Any:
        yield self.batch


@pytest.mark.parametrize("name", [NAME, "autoformer-micro", "vitas-micro", "s3:depth=1,embed_dim=16,window_size=2"])
@pytest.mark.parametrize("subnets", ["sandwich", "uniform"])
def test_the_largest_network_teaches_the_others(name: str, subnets: str, tmp_path: Path) -> None:
    """Gradients of a step against its definition: labels for the largest, its probabilities for the rest."""
    space = SPACES[name].with_patch_size(8) if SPACES[name].fixed() else SPACES[name]
    geometry = Geometry(image_size=16, classes=10)
    generator = torch.Generator().manual_seed(0)
    batch = Batch(torch.randn(4, 3, 16, 16, generator=generator), torch.arange(4))
    supernet, reference = (supernet_for(space, geometry, seed=0).train() for _ in range(2))
    options: dict[str, Any] = {"classes": 10, "seed": 1, "world": World(device=torch.device("cpu"))}
    options |= {"checkpoint": tmp_path / "checkpoint", "journal": None, "scheme": subnets, "in_place": True}
    recipe = replace(RECIPE, drop_path=0.0)
    trainer = SupernetTrainer(supernet, Classification(), recipe, Still(batch), None, **options)
    loss = trainer.accumulate(*batch)

    largest = space.region().largest()
    drawn = [one for one in trainer.scheme.choose(space, 1, 0) if one != largest]
    assert len(drawn) == (3 if subnets == "sandwich" else 1)
    logits = Subnet(reference, space.decode(largest))(batch.images)
    losses = [F.cross_entropy(logits, batch.labels)]
    for one in drawn:
        student = Subnet(reference, space.decode(one))(batch.images)
        losses.append(-(logits.softmax(1).detach() * student.log_softmax(1)).sum(1).mean())
    torch.stack(losses).sum().backward()
    assert float(loss) == pytest.approx(float(torch.stack(losses).mean().detach()), rel=1e-5)
    for (place, ours), theirs in zip(supernet.named_parameters(), reference.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5, msg=place)


def test_in_place_distillation_is_for_supernets() -> None:
    with pytest.raises(VitsearchError, match="`in_place_distillation` must be given for a supernet"):
        TrainingPlan(
            settings=SPACE.region().smallest(),
            geometry=GEOMETRY,
            data="digits",
            recipe=RECIPE,
            in_place_distillation=True,
        )
    older = plan().to_json()
    del older["in_place_distillation"]
    assert TrainingPlan.from_json(older).in_place_distillation is False
