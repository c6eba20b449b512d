"""The loop: exact resume, retries, memory, several processes, and that it learns."""

from __future__ import annotations

import errno
import json
import os
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
from torch import Tensor

from vitsearch import environment
from vitsearch.cost import Geometry
from vitsearch.data import Batch, open_training_data
from vitsearch.errors import BadStudy, TrainingFailed, VitsearchError
from vitsearch.spaces import SPACES, sample
from vitsearch.tasks import Classification
from vitsearch.training import trainer as trainer_module
from vitsearch.training.checkpoint import read_checkpoint, write_checkpoint
from vitsearch.training.distributed import World
from vitsearch.training.plan import CHECKPOINT, TrainingPlan, read_epochs, read_plan
from vitsearch.training.recipe import RECIPES, Recipe
from vitsearch.training.run import Machine, digest_of, make_network, train_network

SMALL = {
    "space": "autoformer-tiny",
    "embed_dim": 192,
    "depth": 12,
    "num_heads": [3] * 12,
    "mlp_ratio": [3.5] * 12,
    "patch_size": 8,
}
CPU = Machine(device="cpu", save_every=3)
RECIPE = replace(RECIPES["quick"], image_size=32, epochs=2, batch_size=256, warmup_epochs=0, drop_path=0.1)


def plan(recipe: Recipe = RECIPE, **fields: Any) -> TrainingPlan:
    given = {"settings": None, "timm": "test_vit"} | fields
    return TrainingPlan(
        geometry=Geometry(image_size=recipe.image_size, classes=10, channels=3), data="digits", recipe=recipe, **given
    )


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class Stop(Exception):
    pass


def stop_at(step: int) -> Callable[[int, int, str], None]:
    def progress(done: int, total: int, note: str) -> None:
        if done >= step:
            raise Stop

    return progress


RICH = replace(RECIPE, mixup=0.8, cutmix=1.0, average=0.9, clip=1.0)


@pytest.mark.parametrize("recipe", [RECIPE, RICH], ids=["plain", "mixing and averaging"])
@pytest.mark.parametrize("step", [3, 5, 6])
def test_a_stopped_training_resumes_to_the_same_weights(tmp_path: Path, recipe: Recipe, step: int) -> None:
    whole = train_network(plan(recipe), tmp_path / "whole", machine=CPU)
    with pytest.raises(Stop):
        train_network(plan(recipe), tmp_path / "cut", machine=CPU, progress=stop_at(step))
    torch.rand(17)  # the state of the global generators does not matter
    resumed = train_network(plan(recipe), tmp_path / "cut", machine=CPU, resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    timeless = [{k: v for k, v in row.items() if k != "images_per_second"} for row in whole.epochs]
    assert timeless == [{k: v for k, v in row.items() if k != "images_per_second"} for row in resumed.epochs]
    assert resumed.result["test_top1"] == whole.result["test_top1"]


def test_seconds_are_those_of_all_sittings(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        train_network(plan(), tmp_path / "cut", machine=CPU, progress=stop_at(5))
    file = tmp_path / "cut" / CHECKPOINT
    tensors, position, numbers = read_checkpoint(file)
    assert position.step == 3 and 0 < position.seconds < 100
    write_checkpoint(file, tensors, replace(position, seconds=5000.0), numbers)
    resumed = train_network(plan(), tmp_path / "cut", machine=CPU, resume=True)
    assert 5000 < resumed.result["seconds"] < 5100
    assert read_checkpoint(file).position.seconds <= resumed.result["seconds"]


def test_a_training_that_saves_nothing_begins_anew(tmp_path: Path) -> None:
    whole = train_network(plan(), tmp_path / "whole", machine=CPU)
    brief = replace(CPU, save_every=None)
    with pytest.raises(Stop):
        train_network(plan(), tmp_path / "cut", machine=brief, progress=stop_at(5))
    again = train_network(plan(), tmp_path / "cut", machine=brief, resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut")) and len(again.epochs) == len(whole.epochs)
    assert not (tmp_path / "cut" / CHECKPOINT).exists()
    with pytest.raises(TrainingFailed, match="there is no checkpoint to go back to"):
        train_network(plan(replace(RECIPE, learning_rate=1e38)), tmp_path / "wild", machine=brief)


def test_streamed_images_train_as_resident_ones_do(tmp_path: Path) -> None:
    """Without augmentation both see the same images, up to how each resizes them."""
    recipe = replace(RECIPE, drop_path=0.0, epochs=3)
    resident = train_network(plan(recipe), tmp_path / "resident", machine=CPU)
    streamed = train_network(plan(recipe), tmp_path / "streamed", machine=replace(CPU, resident=False, workers=0))
    losses = [[row["loss"] for row in done.epochs] for done in (resident, streamed)]
    assert losses[1] == pytest.approx(losses[0], rel=0.02) and losses[1][-1] < losses[1][0]


def test_seeds_and_generators(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_network(plan(), tmp_path / "a", machine=CPU)
    assert torch.equal(torch.rand(3), expected), "the global generator must be given back as it was"
    train_network(plan(), tmp_path / "b", machine=CPU)
    train_network(plan(seed=1), tmp_path / "c", machine=CPU)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_the_test_part_is_not_trained_or_chosen_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = type(open_training_data("digits"))
    asked: list[str] = []
    part = digits.part
    monkeypatch.setattr(digits, "part", lambda self, split: asked.append(split) or part(self, split))
    done = train_network(plan(), tmp_path / "run", machine=CPU)
    assert asked[-1] == "test" and asked.count("test") == 1
    assert done.result["test_images"] == len(part(open_training_data("digits"), "test"))


def test_a_loss_that_is_not_finite_goes_back_with_a_lower_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    score = Classification.score
    calls = [0]

    def poisoned(self: Classification, logits: Tensor, targets: Tensor) -> Any:
        calls[0] += 1
        outcome = score(self, logits, targets)
        return outcome._replace(loss=outcome.loss * float("nan")) if calls[0] == 5 else outcome

    monkeypatch.setattr(Classification, "score", poisoned)
    done = train_network(plan(), tmp_path / "run", machine=CPU)
    assert done.result["retries"] == 1
    assert {row["rate_factor"] for row in done.epochs} == {0.5}
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())


def test_a_hopeless_training_says_so_and_keeps_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    score = Classification.score
    monkeypatch.setattr(
        Classification, "score", lambda self, *given: score(self, *given)._replace(loss=given[0].sum() * float("inf"))
    )
    with pytest.raises(TrainingFailed, match=r"not finite near step \d+, with 3 lower rates too"):
        train_network(plan(), tmp_path / "run", machine=CPU)
    tensors, position, _ = read_checkpoint(tmp_path / "run" / "checkpoint.safetensors")
    assert position.step == 0 and position.retries == 3 and position.rate_factor == 1 / 8
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_weights_that_the_last_step_made_infinite_are_not_kept(tmp_path: Path) -> None:
    """Each loss is finite, and the step after it is what goes wrong: with one step in all, no other loss tells."""
    recipe = replace(RECIPE, epochs=1, batch_size=1257, optimizer="sgd", learning_rate=1e38, rate_batch=None, clip=None)
    with pytest.raises(TrainingFailed, match="not finite near step 1, with 3 lower rates too"):
        train_network(plan(recipe), tmp_path / "run", machine=CPU)
    tensors, position, _ = read_checkpoint(tmp_path / "run" / "checkpoint.safetensors")
    assert position.step == 0 and all(tensor.isfinite().all() for tensor in tensors.values())


def test_a_validation_loss_that_is_not_finite_goes_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate, calls = trainer_module.evaluate, [0]

    def poisoned(*given: Any) -> dict[str, float]:
        calls[0] += 1
        return evaluate(*given) | ({"loss": float("inf")} if calls[0] in (1, worst) else {})

    monkeypatch.setattr(trainer_module, "evaluate", poisoned)
    worst = 1
    assert train_network(plan(), tmp_path / "run", machine=CPU).result["retries"] == 1
    calls[0], worst = 1, 4  # both epochs, then the test part
    with pytest.raises(TrainingFailed, match="the loss on the test part is not finite"):
        train_network(plan(), tmp_path / "other", machine=CPU)
    assert not (tmp_path / "other" / "result.json").exists()


def test_out_of_memory_halves_the_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train_network(plan(replace(RECIPE, drop_path=0.0)), tmp_path / "whole", machine=CPU)
    forward = trainer_module.Step.forward

    def greedy(self: Any, images: Tensor, targets: Tensor) -> Any:
        if len(images) > 64:
            raise torch.cuda.OutOfMemoryError("too much")
        return forward(self, images, targets)

    monkeypatch.setattr(trainer_module.Step, "forward", greedy)
    cut = train_network(plan(replace(RECIPE, drop_path=0.0)), tmp_path / "cut", machine=CPU)
    assert cut.epochs[-1]["micro_batches"] == 4
    assert cut.epochs[-1]["loss"] == pytest.approx(whole.epochs[-1]["loss"], rel=1e-3)
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.allclose(first[name], second[name], atol=2e-3) for name in first)


def test_out_of_memory_in_evaluation_too(caplog: pytest.LogCaptureFixture) -> None:
    """A training that goes on in pieces ended where its first epoch was looked at."""

    class Greedy(torch.nn.Linear):
        most = 1000

        def forward(self, x: Tensor) -> Tensor:
            if len(x) > self.most:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return super().forward(x)

    network, images, labels = Greedy(4, 3), torch.randn(100, 4), torch.arange(100) % 3
    batches = [Batch(images[:64], labels[:64]), Batch(images[64:], labels[64:])]
    world = World(device=torch.device("cpu"))
    whole = trainer_module.evaluate(network, batches, world, "float32")
    network.most = 20
    assert trainer_module.evaluate(network, batches, world, "float32") == pytest.approx(whole)
    assert [record.message[-8:] for record in caplog.records] == ["2 pieces", "4 pieces"]
    network.most = 0
    with pytest.raises(RuntimeError, match="allocate memory"):
        trainer_module.evaluate(network, batches, world, "float32")


def test_folders_that_are_not_this_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_network(plan(), tmp_path / "run", machine=CPU)
    with monkeypatch.context() as second:  # of several processes
        second.setattr(World, "writes", False)
        assert not train_network(plan(), tmp_path / "run", machine=CPU, resume=True).writes
    with pytest.raises(BadStudy, match="must not exist yet"):
        train_network(plan(), tmp_path / "run", machine=CPU)
    with pytest.raises(BadStudy, match="was made with seed=0, but got seed=1"):
        train_network(plan(seed=1), tmp_path / "run", machine=CPU, resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(BadStudy, match="it has files and no study"):
        train_network(plan(), tmp_path / "other", machine=CPU, resume=True)
    assert sorted(file.name for file in (tmp_path / "other").iterdir()) == ["thesis.txt"]


def test_processes_go_on_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one of them looks at the folder; the others met its absence as an error of the network."""
    train_network(plan(), tmp_path / "run", machine=CPU)
    monkeypatch.setattr(World, "total", lambda self, values: values + 1)  # as if one more had refused
    with pytest.raises(BadStudy, match="was made with seed=0, but got seed=1"):
        train_network(plan(seed=1), tmp_path / "run", machine=CPU, resume=True)
    monkeypatch.setattr(World, "writes", False)
    with pytest.raises(VitsearchError, match="another process of this training cannot go on; its line says why"):
        train_network(plan(seed=1), tmp_path / "run", machine=CPU, resume=True)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stop):
        train_network(plan(), tmp_path / "run", machine=CPU, progress=stop_at(4))
    file = tmp_path / "run" / "checkpoint.safetensors"
    before, names = file.read_bytes(), sorted(path.name for path in (tmp_path / "run").iterdir())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(VitsearchError, match="No space left on device"):
        train_network(plan(), tmp_path / "run", machine=CPU, resume=True)
    assert file.read_bytes() == before and sorted(path.name for path in (tmp_path / "run").iterdir()) == names
    monkeypatch.undo()
    train_network(plan(), tmp_path / "run", machine=CPU, resume=True)
    train_network(plan(), tmp_path / "whole", machine=CPU)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "run"))


def test_a_disk_that_is_full_from_the_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(VitsearchError, match="No space left on device"):
        train_network(plan(), tmp_path / "runs" / "run", machine=CPU)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def has_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this processor had units for half precision: without, it does the same, slower."""
    monkeypatch.setattr(environment, "processor_facts", lambda: {"avx512_bf16": True, "avx512_fp16": True})


@pytest.mark.usefixtures("has_units")
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_trains_and_resumes(tmp_path: Path, precision: Any) -> None:
    recipe = replace(RECIPE, precision=precision, epochs=1)
    train_network(plan(recipe), tmp_path / "whole", machine=CPU)
    with pytest.raises(Stop):
        train_network(plan(recipe), tmp_path / "cut", machine=CPU, progress=stop_at(4))
    train_network(plan(recipe), tmp_path / "cut", machine=CPU, resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


def test_a_processor_without_units_trains_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder says so, and the rest of such a training is not done in another precision."""
    monkeypatch.setattr(environment, "processor_facts", lambda: {"avx2": True, "avx512_bf16": False})
    recipe = replace(RECIPE, precision="bfloat16", epochs=1)
    with pytest.raises(Stop):
        train_network(plan(recipe), tmp_path / "half", machine=CPU, progress=stop_at(4))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(environment, "processor_facts", lambda: {"avx512_bf16": True})
        with pytest.raises(BadStudy, match=r"precision .float32. -> .bfloat16."):
            train_network(plan(recipe), tmp_path / "half", machine=CPU, resume=True)
    trained = train_network(plan(recipe), tmp_path / "half", machine=CPU, resume=True)
    train_network(plan(replace(recipe, precision="float32")), tmp_path / "single", machine=CPU)
    assert trained.result["precision"] == "float32"
    assert same(weights(tmp_path / "half"), weights(tmp_path / "single"))


@pytest.mark.usefixtures("has_units")
def test_the_loss_scale_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It doubles after so many steps without overflow; a resumed training must not begin to count anew."""
    scaler = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda kind, enabled: scaler(kind, enabled=enabled, growth_interval=5))
    recipe = replace(RECIPE, precision="float16")
    train_network(plan(recipe), tmp_path / "whole", machine=CPU)
    with pytest.raises(Stop):
        train_network(plan(recipe), tmp_path / "cut", machine=CPU, progress=stop_at(4))
    train_network(plan(recipe), tmp_path / "cut", machine=CPU, resume=True)
    ends = [read_checkpoint(tmp_path / name / "checkpoint.safetensors")[1] for name in ("whole", "cut")]
    ends = [replace(end, seconds=0.0) for end in ends]
    assert ends[0] == ends[1] and ends[0].scaled_steps == 8 - 5


def test_curves_for_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = train_network(plan(), tmp_path / "run", machine=replace(CPU, tensorboard=True))
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    found = {event.step: event.value for event in events.Scalars("loss")}
    assert found == {row["step"]: pytest.approx(row["loss"], rel=1e-6) for row in done.epochs} and len(found) == 2


def test_a_missing_package_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(VitsearchError, match=r"vitsearch\[tensorboard\]"):
        train_network(plan(), tmp_path / "run", machine=replace(CPU, tensorboard=True))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", ["test_vit", "test_resnet"])
def test_a_trained_model_of_timm_is_loaded_by_timm(tmp_path: Path, model: str) -> None:
    train_network(plan(replace(RECIPE, epochs=1), timm=model), tmp_path / "run", machine=CPU)
    network = timm.create_model(f"local-dir:{tmp_path / 'run'}", pretrained=True).eval()
    assert same(network.state_dict(), weights(tmp_path / "run")) and network.num_classes == 10
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_a_teacher_trained_by_the_same_command(tmp_path: Path, cli: Callable[..., Any]) -> None:
    options = ["--data", "digits", "--batch-size", "250", "--epochs", "2", "--device", "cpu", "--json"]
    teacher = cli("train", "--timm", "test_resnet", *options, "--image-size", "32", "--out", tmp_path / "teacher")
    assert teacher.code == 0, teacher.err
    student = ["train", "--timm", "test_vit", *options, "--save-every", "3"]
    alone = cli(*student, "--out", tmp_path / "alone").json()
    guided = cli(*student, "--distill", tmp_path / "teacher", "--out", tmp_path / "guided").json()
    assert guided["last_epoch"]["loss"] > alone["last_epoch"]["loss"], "the guidance is part of the loss"
    assert read_plan(tmp_path / "guided")[0].teacher_digest == digest_of(str(tmp_path / "teacher"))
    read = read_checkpoint(tmp_path / "guided" / "checkpoint.safetensors")[0]
    assert any(name.startswith("task.projections.") for name in read)
    assert any(name.startswith("optimizer.task.projections.") for name in read)
    assert cli(*student, "--distill", tmp_path / "nobody", "--out", tmp_path / "none").error()
    assert not (tmp_path / "none").exists()


def test_from_weights_to_another_size(tmp_path: Path) -> None:
    """No step is taken that could hide a fault: the loaded network is compared before it is trained."""
    settings = sample(SPACES["autoformer-micro"].with_patch_size(8), 1, seed=0)[0]
    first = plan(settings=settings, timm=None)
    short = replace(RECIPE, epochs=1, batch_size=1250)
    train_network(replace(first, recipe=short), tmp_path / "run", machine=CPU)
    tuned = replace(
        first,
        start=str(tmp_path / "run"),
        start_digest=digest_of(str(tmp_path / "run")),
        geometry=Geometry(image_size=48, classes=10),
    )
    before, after = make_network(first).state_dict(), make_network(tuned).state_dict()
    trained = weights(tmp_path / "run")
    assert torch.equal(after["head.weight"], trained["head.weight"])
    assert after["pos_embed"].shape[1] > before["pos_embed"].shape[1]
    with pytest.raises(BadStudy, match="its content has changed"):
        train_network(replace(tuned, start_digest="0" * 64), tmp_path / "other", machine=CPU)
    assert not (tmp_path / "other").exists()


def test_a_broken_checkpoint_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        train_network(plan(), tmp_path / "run", machine=CPU, progress=stop_at(4))
    file = tmp_path / "run" / "checkpoint.safetensors"
    tensors, position, numbers = read_checkpoint(file)
    (left := tmp_path / "run" / ".checkpoint.safetensors.ab_cd123").write_bytes(b"killed while it was written")
    name = next(name for name in tensors if name.startswith("optimizer.") and name.endswith(".exp_avg"))
    write_checkpoint(file, tensors | {name: torch.zeros(2)}, position, numbers)
    with pytest.raises(BadStudy, match=rf"checkpoint.safetensors is not of this network: {name} must have the shape"):
        train_network(plan(), tmp_path / "run", machine=CPU, resume=True)
    assert not left.exists()
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BadStudy, match="is not a checkpoint that can be read"):
        train_network(plan(), tmp_path / "run", machine=CPU, resume=True)


def test_a_torn_epoch_line_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "epochs.jsonl"
    file.write_text('{"epoch":1,"step":4}\n{"epoch":2,"st')
    assert read_epochs(file) == [{"epoch": 1, "step": 4}]
    file.write_text('{"epoch":1}\n{"epoch":2,"step":8}\n')
    with pytest.raises(BadStudy, match="line 1"):
        read_epochs(file)


def launch(arguments: list[str], processes: int = 1, **options: Any) -> subprocess.Popen[bytes]:
    """`vitsearch ARGUMENTS` in processes of its own, under torchrun where there are several."""
    runner = [sys.executable, "-m"]
    if processes > 1:
        runner += ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*runner, "vitsearch", *arguments], env=environment, **options)


@pytest.fixture
def arch(tmp_path: Path) -> str:
    file = tmp_path / "arch.json"
    file.write_text(json.dumps(SMALL))
    return str(file)


QUICK = ["train", "--timm", "test_vit", "--data", "digits", "--device", "cpu", "--no-compile", "--quiet"]


SUPERNET = ["supernet", "train", "autoformer-micro", "--patch-size", "8", "--subnets", "sandwich", "--recipe", "quick"]


@pytest.mark.parametrize("command", [QUICK, [*SUPERNET, *QUICK[3:]]], ids=["network", "supernet"])
def test_two_processes_agree_with_one(tmp_path: Path, cli: Callable[..., Any], command: list[str]) -> None:
    """With SGD: where a gradient is zero but for rounding (key biases), Adam makes a whole step of the rounding."""
    options = ["--epochs", "1", "--batch-size", "250", "--set", "warmup_epochs=0", "--set", "optimizer=sgd"]
    options += ["--set", "learning_rate=0.01", "--out"]
    command = [option for option in command if option != "--no-compile"]
    two = launch([*command, *options, str(tmp_path / "2"), "--json"], processes=2, stdout=subprocess.PIPE)
    one = cli(*command, *options, tmp_path / "1", "--json").json()
    assert one["steps"] == 5
    assert len(two.communicate(timeout=60)[0].splitlines()) == 1 and two.returncode == 0, "one process prints"
    first, second = (read_checkpoint(tmp_path / name / "checkpoint.safetensors")[0] for name in ("1", "2"))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.allclose(tensor, second[name], atol=1e-5) or name == "meter", name
    rows = [read_epochs(tmp_path / name / "epochs.jsonl")[-1] for name in ("1", "2")]
    for name in ("loss", "validation_top1"):
        assert rows[0][name] == pytest.approx(rows[1][name], abs=1e-5), name


def test_kill_and_resume_on_the_command_line(tmp_path: Path, cli: Callable[..., Any]) -> None:
    options = ["--epochs", "8", "--batch-size", "250", "--save-every", "3"]
    killed = launch([*QUICK, *options, "--out", str(tmp_path / "cut")])
    checkpoint = tmp_path / "cut" / "checkpoint.safetensors"
    while killed.poll() is None:
        if checkpoint.exists() and read_checkpoint(checkpoint)[1].step >= 6:
            killed.send_signal(signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    assert cli(*QUICK, *options, "--out", tmp_path / "cut", "--resume").code == 0
    assert cli(*QUICK, *options, "--out", tmp_path / "whole").code == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


def test_train_then_load_with_timm(tmp_path: Path, cli: Callable[..., Any], arch: str) -> None:
    """The promise: a network of a space, on real digits, to 95 % on the test part."""
    options = ["--data", "digits", "--recipe", "quick", "--epochs", "10", "--image-size", "16", "--device", "cpu"]
    shown = cli("train", arch, *options, "--out", str(tmp_path / "trained"), "--json").json()
    assert shown["test_top1"] >= 95, shown
    import vitsearch.models

    network = timm.create_model(f"local-dir:{tmp_path / 'trained'}", pretrained=True).eval()
    test = open_training_data("digits").part("test")
    assert (
        sum(p.numel() for p in network.parameters())
        == vitsearch.cost_of(SMALL, Geometry(image_size=16, classes=10)).params
    )
    config = json.loads((tmp_path / "trained" / "config.json").read_text())
    assert config["vitsearch"]["weights"] == "trained" and config["num_classes"] == 10
    assert shown["test_images"] == len(test)
