"""The folder of a training: only the very plan goes on in it, and what is broken in it is said in one line."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
from safetensors.torch import save_file

from vitsearch.cost import Geometry
from vitsearch.errors import BadStudy
from vitsearch.training.distill import distillation
from vitsearch.training.plan import EPOCHS, STUDY, EpochLog, TrainingPlan, enter_folder, read_plan
from vitsearch.training.recipe import RECIPES
from vitsearch.training.run import read_training, with_teacher_digest

PLAN = TrainingPlan(
    timm="test_vit", geometry=Geometry(image_size=32, classes=10), data="digits", recipe=RECIPES["quick"]
)
HERE = {"torch": "2"}


def enter(folder: Path, plan: TrainingPlan, resume: bool = True) -> None:
    enter_folder(folder, plan, HERE, resume, False)


def test_a_change_is_not_recorded_while_another_process_writes(tmp_path: Path) -> None:
    enter(tmp_path / "run", PLAN, resume=False)
    with closing(EpochLog(tmp_path / "run" / EPOCHS)), pytest.raises(BadStudy, match="written by another process"):
        enter_folder(tmp_path / "run", PLAN, {"torch": "3"}, True, True)
    assert read_plan(tmp_path / "run")[1] == [HERE]
    enter_folder(tmp_path / "run", PLAN, {"torch": "3"}, True, True)
    assert read_plan(tmp_path / "run")[1] == [HERE, {"torch": "3"}]
    (tmp_path / "run" / "result.json").touch()
    for allow in (False, True):  # a finished one is shown anywhere, and nothing is said to have run here
        enter_folder(tmp_path / "run", PLAN, {"torch": "4"}, True, allow)
    assert len(read_plan(tmp_path / "run")[1]) == 2


@pytest.mark.parametrize("kind", ["timm", "folder"])
def test_a_training_goes_on_with_its_own_teacher_alone(tmp_path: Path, kind: str) -> None:
    state = timm.create_model("test_resnet").state_dict()
    weights = tmp_path / "model.safetensors"
    save_file(state, weights)
    text = f"timm:test_resnet@{weights}" if kind == "timm" else str(tmp_path)
    asked = replace(PLAN, distillation=distillation(text))
    first = with_teacher_digest(asked)
    enter(tmp_path / "run", first, resume=False)
    enter(tmp_path / "run", with_teacher_digest(asked))
    save_file({name: value + 1 for name, value in state.items()}, weights)
    with pytest.raises(BadStudy, match="is not the one that it started with: its content has changed"):
        enter(tmp_path / "run", with_teacher_digest(asked))
    with pytest.raises(BadStudy, match="is not the teacher of this training: its content has changed"):
        with_teacher_digest(first)


def test_a_folder_from_before_teachers_had_digests_goes_on(tmp_path: Path) -> None:
    enter(tmp_path / "run", replace(PLAN, distillation=distillation("teacher")), resume=False)
    written = json.loads((tmp_path / "run" / STUDY).read_text())
    del written["teacher_digest"]
    (tmp_path / "run" / STUDY).write_text(json.dumps(written))
    assert read_plan(tmp_path / "run")[0].teacher_digest is None
    enter(tmp_path / "run", replace(PLAN, distillation=distillation("teacher"), teacher_digest="0" * 64))


def test_what_differs_from_the_folder_is_named_where_it_is(tmp_path: Path) -> None:
    enter(tmp_path / "run", PLAN, resume=False)
    recipe = PLAN.recipe
    augmented = replace(recipe, augmentation=replace(recipe.augmentation, flip=0.25))
    for changed, said in (
        (replace(PLAN, recipe=replace(recipe, epochs=9)), f"recipe.epochs={recipe.epochs}, but got recipe.epochs=9"),
        (replace(PLAN, recipe=augmented), "but got recipe.augmentation.flip=0.25"),
        (
            replace(PLAN, geometry=replace(PLAN.geometry, channels=1)),
            "geometry.channels=3, but got",
        ),
        (replace(PLAN, seed=1), "was made with seed=0, but got seed=1"),
        (replace(PLAN, distillation=distillation("a")), "distillation=None, but got distillation={"),
    ):
        with pytest.raises(BadStudy) as error:
            enter(tmp_path / "run", changed)
        assert said in str(error.value)
    enter(tmp_path / "run", PLAN)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"environments": []}, "must have environments, one object or more, but got []"),
        ({"environments": [3]}, "must have environments, one object or more, but got [3]"),
        (
            {"kind": "supernet", "timm": None, "subnets": "uniform", "space": {"name": "vitas-deit-tiny"}},
            "`space` must",
        ),
        ({"kind": "supernet", "timm": None, "subnets": "uniform", "space": "vitas-deit-tiny"}, "is broken"),
    ],
)
def test_what_is_wrong_in_a_plan_is_one_line(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    enter(tmp_path / "run", PLAN, resume=False)
    file = tmp_path / "run" / STUDY
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    with pytest.raises(BadStudy) as error:
        enter(tmp_path / "run", PLAN)
    assert said in str(error.value) and str(file) in str(error.value)


@pytest.mark.parametrize("content", ["[]", "{}", '{"seconds": 1}', "3"])
def test_what_is_wrong_in_a_result_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(BadStudy, match="must be an object with seconds and an accuracy"):
        read_training(tmp_path)
