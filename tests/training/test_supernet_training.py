"""The whole way on a CPU: train a supernet, search on it, take the winner out, train it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file

import vitsearch
from vitsearch import environment
from vitsearch.cost import Geometry
from vitsearch.data import evaluation_batches, open_training_data, some_of_each_class
from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.evaluate import Evaluator, SupernetEvaluator
from vitsearch.spaces import SPACES
from vitsearch.study import run_search
from vitsearch.training.distributed import World
from vitsearch.training.plan import TrainingPlan, read_plan
from vitsearch.training.recipe import RECIPES
from vitsearch.training.run import Machine, digest_of, make_network, train_network
from vitsearch.training.supernet import read_supernet
from vitsearch.training.trainer import evaluate

SPACE = SPACES["autoformer-micro"].with_patch_size(8)
GEOMETRY = Geometry(image_size=16, classes=10)
CPU = Machine(device="cpu", save_every=4)
BREEDING = "evolution:population=10,parents=4"
"""So small that a few trials reach later generations."""
RECIPE = replace(RECIPES["quick"], image_size=16, epochs=2, warmup_epochs=0, batch_size=128, drop_path=0.1)


def plan(subnets: str = "uniform", **fields: Any) -> TrainingPlan:
    space = {"name": SPACE.name, "fixed": SPACE.fixed()}
    given = {"geometry": GEOMETRY, "data": "digits", "recipe": RECIPE} | fields
    return TrainingPlan(space=space, subnets=subnets, **given)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("supernet") / "run"
    train_network(plan(), out, machine=CPU)
    return out


class Stop(Exception):
    pass


@pytest.mark.parametrize("subnets", ["uniform", "sandwich"])
def test_a_stopped_supernet_resumes_to_the_same_weights(tmp_path: Path, subnets: str) -> None:
    def stop(done: int, total: int, note: str) -> None:
        if done >= 8:
            raise Stop

    train_network(plan(subnets), tmp_path / "whole", machine=CPU)
    with pytest.raises(Stop):
        train_network(plan(subnets), tmp_path / "cut", machine=CPU, progress=stop)
    train_network(plan(subnets), tmp_path / "cut", machine=CPU, resume=True)
    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert whole.keys() == cut.keys() and all(torch.equal(whole[name], cut[name]) for name in whole)


def test_an_objective_is_the_accuracy_of_the_extracted_network(trained: Path) -> None:
    """Independent of the evaluator: extract, then classify the validation part."""
    settings = vitsearch.sample(SPACE, 3, seed=1)
    data = open_training_data("digits")
    batches = evaluation_batches(
        data.part("validation"), dataset=data, geometry=GEOMETRY, batch_size=64, device=torch.device("cpu")
    )
    _, supernet = read_supernet(trained)
    for one, score in zip(settings, SupernetEvaluator(trained, device="cpu")(settings), strict=True):
        network = supernet.extract(SPACE.decode(one))
        expected = evaluate(network, batches, World(device=torch.device("cpu")), "float32")
        assert score.scores == {f"supernet:{trained}": pytest.approx(expected["top1"])}


def test_some_images_judge_where_that_is_asked_for(tmp_path: Path, trained: Path, cli: Callable[..., Any]) -> None:
    settings = vitsearch.sample(SPACE, 2, seed=1)
    data = open_training_data("digits")
    some = some_of_each_class(data.part("validation"), 50)
    batches = evaluation_batches(some, dataset=data, geometry=GEOMETRY, batch_size=64, device=torch.device("cpu"))
    _, supernet = read_supernet(trained)
    name = f"supernet:{trained}:images=50"
    found = Evaluator([name], device=torch.device("cpu"), geometry=GEOMETRY)
    assert found.digests() == {"supernets": {name: digest_of(str(trained))}}
    for one, score in zip(settings, found(settings), strict=True):
        expected = evaluate(supernet.extract(SPACE.decode(one)), batches, World(device=torch.device("cpu")), "float32")
        assert expected["images"] == 50
        assert score.scores == {name: pytest.approx(expected["top1"])}
    options = ["--objective", name, "--trials", "3", "--device", "cpu", "--out", tmp_path / "run"]
    done = cli("search", SPACE.name, *options, "--json").json()  # image size, classes and patches are the supernet's
    assert done["trials"] == 3 and name in done["best"]["measured"]
    for wrong, rule in (
        ("many", "`images` must be a whole number"),
        ("9" * 5000, "`images` must be a whole number"),
        ("100000", "`images` must be a whole number from"),
    ):
        with pytest.raises(VitsearchError, match=rule):
            Evaluator([f"supernet:{trained}:images={wrong}"], device=torch.device("cpu"), geometry=GEOMETRY)


def test_search_on_a_supernet_and_resume(tmp_path: Path, trained: Path) -> None:
    objective = f"supernet:{trained},min:params"
    options: dict[str, Any] = {"objective": objective, "strategy": "evolution:population=8,parents=3", "device": "cpu"}
    options |= {"geometry": GEOMETRY, "seed": 3}
    whole = run_search(SPACE, out=tmp_path / "whole", trials=20, **options)
    run_search(SPACE, out=tmp_path / "cut", trials=11, **options)
    cut = run_search(SPACE, out=tmp_path / "cut", trials=20, resume=True, **options)
    assert [t.settings for t in whole.study.trials] == [t.settings for t in cut.study.trials]
    assert [t.measured for t in whole.study.trials] == [t.measured for t in cut.study.trials]
    assert whole.study.best is not None and whole.study.front


def test_a_search_in_another_precision_is_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Folders of before it was written down were searched in the recipe's."""
    train_network(plan(recipe=replace(RECIPE, epochs=1, precision="bfloat16")), tmp_path / "half", machine=CPU)
    options: dict[str, Any] = {"objective": f"supernet:{tmp_path / 'half'}", "device": "cpu", "geometry": GEOMETRY}
    options |= {"out": tmp_path / "run", "resume": True}
    file = tmp_path / "run" / "study.json"

    def search(trials: int, units: bool, **more: Any) -> list[str | None]:
        monkeypatch.setattr(environment, "processor_facts", lambda: {"avx512_bf16": units})
        run_search(SPACE, trials=trials, **options, **more)
        return [one.get("precision") for one in json.loads(file.read_text())["environments"]]

    changed = "made elsewhere .precision 'bfloat16' -> 'float32'"
    assert search(1, True) == search(2, True) == ["bfloat16"]
    with pytest.raises(BadStudy, match=changed):
        search(3, False)
    written = json.loads(file.read_text())
    del written["environments"][0]["precision"]
    file.write_text(json.dumps(written))
    assert search(3, True) == [None]
    with pytest.raises(BadStudy, match=changed):
        search(4, False)
    with caplog.at_level("INFO", logger="vitsearch"):
        assert search(4, False, allow_changed=True) == [None, "float32"]
    assert "This device has no units for bfloat16: evaluating in float32" in caplog.text


@pytest.mark.parametrize("part", ["", "model.safetensors"])
def test_a_network_of_a_supernet_starts_from_what_it_inherits(trained: Path, part: str) -> None:
    """The largest too, whose names and shapes are the supernet's, and whose q, k and v are not."""
    _, supernet = read_supernet(trained)
    start = str(trained / part)
    for settings in (SPACE.region().largest(), SPACE.region().smallest()):
        given = {"geometry": GEOMETRY, "data": "digits", "recipe": RECIPE, "start": start}
        network = make_network(TrainingPlan(settings=settings, **given)).eval()
        expected = supernet.extract(SPACE.decode(settings)).state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in network.state_dict().items())
    with pytest.raises(VitsearchError, match=r"must be weights of timm's 'vit_tiny_patch16_224', but .* is a supernet"):
        make_network(TrainingPlan(timm="vit_tiny_patch16_224", **given))


def test_a_start_from_a_supernet_needs_to_say_which_network(trained: Path, tmp_path: Path, cli: Any) -> None:
    said = cli("train", "--from", trained, "--out", tmp_path / "run").error()
    assert "is a supernet: give an ARCH" in said


def test_networks_that_are_not_of_the_supernet_are_bad_input(trained: Path, tmp_path: Path, cli: Any) -> None:
    inside, outside = SPACE.region().smallest(), SPACES["autoformer-tiny"].region().largest()
    for name, settings in (("inside", inside), ("outside", outside)):
        (tmp_path / name).write_text(json.dumps(settings))
    command = ["supernet", "eval", trained, "--device", "cpu", "--json"]
    said = cli(*command, tmp_path / "outside", tmp_path / "outside").error()
    assert "`architecture` must be a part of the supernet of autoformer-micro" in said
    first, second = cli(*command, tmp_path / "outside", tmp_path / "inside").json()
    assert "must be a part of the supernet" in first["error"] and second["error"] is None and second["top1"] > 0


@pytest.mark.parametrize("text", ["", "{run}:img=5", "none:img=5"])
def test_what_is_asked_of_a_supernet_has_rules(text: str, trained: Path, cli: Any, tmp_path: Path) -> None:
    objective = f"supernet:{text.format(run=trained)}"
    said = cli("search", "autoformer-micro", "--objective", objective, "--out", tmp_path / "run").error()
    assert "`objective` must be supernet:DIR or supernet:DIR:images=N, but got" in said


@pytest.mark.parametrize("command", [["train", "--timm", "test_vit"], ["supernet", "train", "autoformer-micro"]])
def test_a_kind_of_distillation_needs_a_teacher(command: list[str], tmp_path: Path, cli: Any) -> None:
    said = cli(*command, "--distill-kind", "xx", "--out", tmp_path / "run").error()
    assert "`--distill-kind` needs --distill, a teacher, but got 'xx' alone" in said


def test_a_supernet_of_another_space_or_input_is_refused(tmp_path: Path, trained: Path) -> None:
    for space, geometry in ((SPACES["autoformer-micro"], GEOMETRY), (SPACE, Geometry(image_size=32, classes=10))):
        with pytest.raises(VitsearchError, match="must be of the space that is searched"):
            run_search(
                space, out=tmp_path / "run", objective=f"supernet:{trained}", trials=1, geometry=geometry, device="cpu"
            )
    assert not (tmp_path / "run").exists()


def test_the_whole_way_on_the_command_line(tmp_path: Path, cli: Callable[..., Any]) -> None:
    options = ["--data", "digits", "--recipe", "quick", "--image-size", "16", "--device", "cpu", "--json"]
    supernet = ["supernet", "train", "autoformer-micro", "--patch-size", "8", "--epochs", "2", *options]
    done = cli(*supernet, "--out", tmp_path / "supernet").json()
    assert {"validation_smallest_top1", "validation_largest_top1"} <= set(done) and "test_top1" not in done
    objective, trial = f"supernet:{tmp_path / 'supernet'}", f"{tmp_path / 'run'}#best"
    search = ["search", "autoformer-micro", "--objective", objective, "--strategy", BREEDING, "--trials", "12"]
    found = cli(*search, "--device", "cpu", "--out", tmp_path / "run", "--json").json()
    best = found["best"]["settings"]
    assert best["patch_size"] == 8
    rows = cli("supernet", "eval", tmp_path / "supernet", trial, "--device", "cpu", "--json").json()
    assert rows[0]["top1"] == found["best"]["measured"][objective]
    assert cli("supernet", "extract", tmp_path / "supernet", trial, "--out", tmp_path / "best", "--json").json()
    network = timm.create_model(f"local-dir:{tmp_path / 'best'}", pretrained=True)
    assert sum(parameter.numel() for parameter in network.parameters()) == found["best"]["measured"]["params"]
    retrained = cli("train", trial, *options, "--epochs", "1", "--out", tmp_path / "trained").json()
    assert retrained["settings"] == best and json.loads((tmp_path / "trained" / "result.json").read_text())
    assert "is the training of one network" in cli("supernet", "eval", tmp_path / "trained", trial).error()


def test_a_found_network_is_trained_with_the_channels_of_its_search(tmp_path: Path, cli: Callable[..., Any]) -> None:
    options = ["--data", "digits", "--recipe", "quick", "--image-size", "16", "--device", "cpu", "--batch-size", "1250"]
    options += ["--epochs", "1", "--json"]
    supernet = ["supernet", "train", "autoformer-micro", "--patch-size", "8", "--channels", "1", *options]
    assert cli(*supernet, "--out", tmp_path / "supernet").code == 0
    search = ["search", "autoformer-micro", "--objective", f"supernet:{tmp_path / 'supernet'}:images=50"]
    assert cli(*search, "--trials", "2", "--device", "cpu", "--out", tmp_path / "run", "--json").code == 0
    train = ["train", f"{tmp_path / 'run'}#best", "--from", tmp_path / "supernet", *options]
    assert cli(*train, "--out", tmp_path / "trained").code == 0
    assert read_plan(tmp_path / "trained")[0].geometry.channels == 1
    assert "must be 1 or 3, but got 5" in cli(*train, "--channels", "5", "--out", tmp_path / "none").error()


def test_kill_any_of_the_three_and_resume(tmp_path: Path, cli: Callable[..., Any]) -> None:
    """Supernet, search, retraining: each killed while it runs, each resumed, all as in one go."""

    def chain(folder: Path) -> list[tuple[list[object], Path]]:
        """Commands, and the file that shows how far each has come."""
        supernet, run, trained = folder / "supernet", folder / "run", folder / "trained"
        common = ["--data", "digits", "--recipe", "quick", "--image-size", "16", "--device", "cpu"]
        steps = ["--batch-size", "128", "--save-every", "4", "--epochs"]
        objective = ["--objective", f"supernet:{supernet}", "--strategy", BREEDING, "--device", "cpu"]
        return [
            (
                ["supernet", "train", "autoformer-micro", "--patch-size", "8", *common, *steps, "2", "--out", supernet],
                supernet / "epochs.jsonl",
            ),
            (["search", "autoformer-micro", *objective, "--trials", "40", "--out", run], run / "trials.jsonl"),
            (["train", f"{run}#best", *common, *steps, "4", "--out", trained], trained / "epochs.jsonl"),
        ]

    for command, journal in chain(tmp_path / "cut"):
        process = subprocess.Popen([sys.executable, "-m", "vitsearch", *map(str, command), "--quiet"])
        while process.poll() is None:
            if journal.exists() and journal.read_bytes().count(b"\n"):
                process.kill()
        assert process.returncode == -signal.SIGKILL
        assert cli(*command, "--resume", "--quiet").code == 0
    for command, _ in chain(tmp_path / "whole"):
        assert cli(*command, "--quiet").code == 0
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    for name in ("supernet", "trained"):
        ours, theirs = (load_file(folder / name / "model.safetensors") for folder in (cut, whole))
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert trials(cut / "run") == trials(whole / "run")


def trials(study: Path) -> list[tuple[int, dict[str, Any], list[float]]]:
    """All but times and the supernet's own path."""
    rows = [json.loads(line) for line in (study / "trials.jsonl").read_text().splitlines()]
    return [(row["number"], row["settings"], list(row["measured"].values())) for row in rows]
