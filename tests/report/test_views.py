"""What a page says: facts, distributions, and a command that does the study again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from vitsearch.cost import Geometry
from vitsearch.records import read_trials
from vitsearch.report.reading import Reader
from vitsearch.report.repeat import command_of
from vitsearch.report.views import view
from vitsearch.spaces import SPACES, sample
from vitsearch.training.distill import Distillation
from vitsearch.training.plan import TrainingPlan, read_plan, write_plan
from vitsearch.training.recipe import RECIPES, change
from vitsearch.training.run import Trained

Cli = Callable[..., Any]
WriteStudy = Callable[..., Path]


def shown(folder: Path) -> dict[str, Any]:
    reader = Reader(folder)
    reader.refresh()
    return view(reader)


def test_the_command_does_the_search_again(cli: Cli, tmp_path: Path) -> None:
    options = ["--objective", "macs,min:params", "--image-size", 32, "--classes", 7, "--patch-size", 8, "--trials", 9]
    options += ["--strategy", "nsga2:population=4", "--max-params", "200k", "--min-macs", 1000, "--weights", "shared"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert cli("search", "autoformer-micro", *options, "--seed", 5, "--device", "cpu", "--out", first, "-q").code == 0
    words = shlex.split(shown(first)["repeat"]["command"])
    assert words[0] == "vitsearch" and words[-2:] == ["--out", "again"]
    assert cli(*words[1:-1], second, "-q").code == 0
    assert (first / "study.json").read_text() == (second / "study.json").read_text()
    trials = [[trial.settings for trial in read_trials(one / "trials.jsonl")[0]] for one in (first, second)]
    assert trials[0] == trials[1] and len(trials[0]) == 9


PLANS = {
    "settings": {
        "settings": sample("autoformer-micro")[0],
        "recipe": change(RECIPES["deit"], {"epochs": "7", "mixup": "0", "clip": "2.5", "augmentation.flip": "0.25"}),
        "parts": "train+validation",
    },
    "timm": {"timm": "vit_tiny_patch16_224", "recipe": change(RECIPES["quick"], {"betas": "0.8,0.9", "clip": "none"})},
    "teacher": {
        "settings": sample("pit")[0],
        "recipe": RECIPES["quick"],
        "distillation": Distillation(teacher="folder with spaces", kind=("locality", "soft")),
    },
    "supernet": {
        "space": {"name": "pit", "fixed": SPACES["pit"].with_patch_size(4).fixed()},
        "subnets": "sandwich",
        "recipe": change(RECIPES["autoformer"], {"batch_size": "64"}),
    },
}


@pytest.mark.parametrize("name", PLANS)
def test_the_command_trains_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """The command line makes the very plan from it; nothing is trained."""
    given: dict[str, Any] = dict(PLANS[name])
    plan = TrainingPlan(geometry=Geometry(image_size=32, classes=10), data="digits", seed=3, **given)
    write_plan(tmp_path, plan, [{"device": "cpu", "plugins": []}])
    command = command_of(json.loads((tmp_path / "study.json").read_text()), 0)
    assert command is not None and read_plan(tmp_path)[0] == plan
    made: list[TrainingPlan] = []

    def pretend(plan: TrainingPlan, out: Path, **how: object) -> Trained:
        made.append(plan)
        return Trained(out=out, result={}, epochs=[], writes=False)

    monkeypatch.setattr("vitsearch.training.run.train_network", pretend)
    echo, _, words = command.rpartition(" | ")
    if echo:
        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(shlex.split(echo)[1].encode())))
    assert cli(*shlex.split(words)[1:]).code == 0
    assert made == [plan]


def test_no_command_for_what_is_not_known() -> None:
    assert command_of({"kind": "discover"}, 3) is None
    assert command_of({"kind": "search", "space": "nowhere"}, 3) is None
    assert command_of({}, 0) is None


def test_a_search_in_words(write_study: WriteStudy, tmp_path: Path) -> None:
    page = shown(write_study(tmp_path / "run", 30, limits={"max_params": 200_000}))
    facts = dict(page["asked"])
    assert facts["objective"] == "dss, more is better; macs, less is better"
    assert facts["limits"] == "at most 200,000 params" and facts["trials"] == "30" and facts["seed"] == "3"
    assert page["state"] == "finished" and page["failed"] == 3 and page["best"]["name"] == "dss"
    assert page["repeat"]["environments"] == [{"vitsearch": "0.1.0", "device": "cpu"}]
    space = page["space"]
    assert space["size"] == str(SPACES["autoformer-micro"].size) and max(space["params"]) <= 200_000
    assert all(sum(shares) == pytest.approx(1, abs=1e-3) for shares in space["shares"].values())


def test_shares_are_those_of_the_space(write_study: WriteStudy, tmp_path: Path) -> None:
    """Against the space, listed member by member."""
    space = SPACES["autoformer-micro"]
    members = list(space.region(None, Geometry(image_size=32, classes=10)))
    found = shown(write_study(tmp_path / "run"))["space"]["shares"]
    widths = [sum(member["embed_dim"] == width for member in members) / len(members) for width in (32, 48)]
    heads = [head for member in members for head in member["num_heads"]]
    assert found["embed_dim"] == pytest.approx(widths, abs=0.05)
    assert found["num_heads"] == pytest.approx([heads.count(count) / len(heads) for count in (2, 3)], abs=0.05)


def test_unknown_kinds_show_what_is_there(tmp_path: Path) -> None:
    study = {"format": 1, "kind": "from-later", "population": 20, "bench": ["a.json"], "environments": [{"torch": "2"}]}
    (tmp_path / "study.json").write_text(json.dumps(study))
    lines = [{"generation": number, "kendall": number / 10, "formula": {"op": "add"}} for number in range(12)]
    (tmp_path / "formulas.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = shown(tmp_path)
    assert page["kind"] == "from-later" and page["state"] == "finished" and page["done"] == 12
    assert dict(page["asked"]) == {"population": "20", "bench": "a.json"}
    columns = page["rows"]["formulas.jsonl"]["columns"]
    assert columns["kendall"] == [number / 10 for number in range(12)] and columns["formula"][0] == '{"op": "add"}'


def test_trainings_show_their_network(tmp_path: Path) -> None:
    plan = TrainingPlan(
        settings=sample("pit")[0], geometry=Geometry(image_size=32, classes=10), data="digits", recipe=RECIPES["quick"]
    )
    write_plan(tmp_path, plan, [{"device": "cpu"}])
    row = {"epoch": 1, "step": 3, "loss": 2.0, "validation_top1": 40.0}
    (tmp_path / "epochs.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"epoch": 2}) + "\n")
    page = shown(tmp_path)
    assert page["trials"]["count"] == 1 and page["trials"]["parts"]["codes"][0]
    assert page["epochs"]["columns"]["epoch"] == [1, 2] and page["best"]["value"] == 40.0
