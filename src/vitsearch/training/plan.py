"""What a training is, and its folder: `study.json` (what), `epochs.jsonl` (what happened), a checkpoint, the result."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from vitsearch.architecture import Settings, brief, check_seed
from vitsearch.cost import Geometry
from vitsearch.environment import describe_changes
from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.models.super_transformer import Sharing
from vitsearch.records import append_whole, lock_file, new_folder, parse_json, read_rows, write_atomically
from vitsearch.training.distill import Distillation
from vitsearch.training.recipe import Recipe

FORMAT = 1
Parts = Literal["train", "train+validation"]
STUDY, EPOCHS, CHECKPOINT, RESULT = "study.json", "epochs.jsonl", "checkpoint.safetensors", "result.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """All that decides the trained weights, but for the machine. Exactly one of settings, timm and space is given."""

    settings: Settings | None = None
    timm: str | None = None
    space: dict[str, Any] | None = None
    """Of a supernet: `name`, and `fixed`, the parts of its settings that are not searched."""
    subnets: str | None = None
    """Which networks of the supernet a step trains."""
    candidates: list[Settings] | None = None
    """Networks of the supernet that were chosen before: schemes draw from them, and they are evaluated."""
    sharing: Sharing | None = None
    """What the networks of a supernet share, where that is to choose."""
    in_place_distillation: bool = False
    """Whether the largest network of a supernet teaches the others of its step."""
    geometry: Geometry
    data: str
    parts: Parts = "train"
    """What is trained on. With the validation part, nothing is left to choose by; the test part never is."""
    recipe: Recipe
    seed: int = 0
    start: str | None = None
    """Weights to start from; their digest is in `start_digest`."""
    start_digest: str | None = None
    distillation: Distillation | None = None
    teacher_digest: str | None = None
    """Of the teacher's weights, found when the training starts; None in older folders, which take any."""

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.settings, self.timm, self.space)) != 1:
            raise VitsearchError("a training must have either settings, the name of a timm model, or a space")
        if self.space is not None and (
            not isinstance(self.space.get("name"), str) or not isinstance(self.space.get("fixed"), dict)
        ):
            raise VitsearchError(f"`space` must have a name and an object `fixed`, but got {brief(self.space)}")
        if (self.space is None) != (self.subnets is None):
            raise VitsearchError("`subnets` must be given for a supernet, and for nothing else")
        if self.sharing is not None and self.space is None:
            raise VitsearchError("`sharing` must be given for a supernet, and for nothing else")
        if self.in_place_distillation and self.space is None:
            raise VitsearchError("`in_place_distillation` must be given for a supernet, and for nothing else")
        if self.candidates is not None and (self.space is None or not self.candidates):
            raise VitsearchError("`candidates` must be networks of a supernet, one at least")
        if self.parts not in get_args(Parts):
            raise VitsearchError(f"`parts` must be one of {', '.join(get_args(Parts))}, but got {brief(self.parts)}")
        check_seed(self.seed)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrainingPlan:
        older = {"candidates": None, "sharing": None, "in_place_distillation": False, "teacher_digest": None}
        known = {**older, **data}
        fields = {field.name: known[field.name] for field in dataclasses.fields(cls)}
        fields["geometry"] = Geometry(**fields["geometry"])
        fields["recipe"] = Recipe.from_json(fields["recipe"])
        if fields["sharing"] is not None:
            fields["sharing"] = Sharing(**fields["sharing"])
        if fields["distillation"] is not None:
            fields["distillation"] = Distillation.from_json(fields["distillation"])
        return cls(**fields)


def read_plan(folder: Path) -> tuple[TrainingPlan, list[dict[str, Any]]]:
    """The plan and the environments of a training's folder."""
    file = folder / STUDY
    try:
        data = parse_json(file.read_bytes(), str(file))
    except (FileNotFoundError, NotADirectoryError):
        raise BadStudy(f"{folder} is not a training: it has no {STUDY}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("kind") not in ("train", "supernet"):
        kind = data.get("kind") if isinstance(data, dict) else None
        raise BadStudy(f"{file} must have format {FORMAT} and kind 'train' or 'supernet', but got kind {brief(kind)}")
    environments = data.get("environments")
    if not isinstance(environments, list) or not environments or not all(isinstance(one, dict) for one in environments):
        raise BadStudy(f"{file} must have environments, one object or more, but got {brief(environments)}")
    try:
        return TrainingPlan.from_json(data), environments
    except (KeyError, TypeError, ValueError, AttributeError, VitsearchError) as error:
        raise BadStudy(f"{file} is broken: {type(error).__name__}: {error}") from None


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished training measured."""
    file = folder / RESULT
    try:
        result = parse_json(file.read_bytes(), str(file))
    except FileNotFoundError:
        raise BadStudy(f"{folder} is not a finished training: it has no {RESULT}") from None
    measured = result if isinstance(result, dict) else {}
    if "seconds" not in measured or not any(name.endswith("top1") for name in measured):
        raise BadStudy(f"{file} must be an object with seconds and an accuracy, but got {brief(result)}")
    return measured


def write_plan(folder: Path, plan: TrainingPlan, environments: list[dict[str, Any]]) -> None:
    kind = "train" if plan.space is None else "supernet"
    data = {"format": FORMAT, "kind": kind, **plan.to_json(), "environments": environments}
    write_atomically(folder / STUDY, json.dumps(data, indent=2, allow_nan=False) + "\n")


def refuse_existing(folder: Path, resume: bool) -> None:
    if os.path.lexists(folder) and not resume:
        raise BadStudy(f"`out` must not exist yet, but got {str(folder)!r}; give --resume to go on with what is in it")


def enter_folder(folder: Path, plan: TrainingPlan, environment: dict[str, Any], resume: bool, allow: bool) -> None:
    """A new folder with its plan, or one that holds this very plan."""
    refuse_existing(folder, resume)
    if not os.path.lexists(folder):
        with new_folder(folder):
            return write_plan(folder, plan, [environment])
    if not (folder / STUDY).exists():
        others = [file.name for file in folder.iterdir() if not file.name.startswith((f".{STUDY}.", EPOCHS))]
        if others:
            raise BadStudy(f"{folder} is not a training: it has files and no {STUDY}")
        return write_plan(folder, plan, [environment])
    written, environments = read_plan(folder)
    check_same(folder, written, plan)
    if (folder / RESULT).exists():
        return  # finished: nothing is computed here, so there is nothing to allow or to record
    before = {"precision": plan.recipe.precision} | environments[-1]  # older folders do not say what they took
    changes = describe_changes(before, environment)
    if changes and not allow:
        raise BadStudy(f"{folder} was made elsewhere ({changes}); give --allow-changed to continue, which is recorded")
    if changes:
        with closing(EpochLog(folder / EPOCHS)):  # whoever else writes there is not to be disturbed
            write_plan(folder, plan, [*environments, environment])


def check_same(folder: Path, written: TrainingPlan, plan: TrainingPlan) -> None:
    """That a folder's plan is this one; else an error with the first field that differs."""
    if written.teacher_digest is None:  # an older folder
        plan = dataclasses.replace(plan, teacher_digest=None)
    old, new = (json.loads(json.dumps(one.to_json())) for one in (written, plan))
    if old == new:
        return
    name, was, wanted = _difference("", old, new)
    if name == "teacher_digest":
        raise BadStudy(f"the teacher of {folder} is not the one that it started with: its content has changed")
    raise BadStudy(f"{folder} was made with {name}={brief(was)}, but got {name}={brief(wanted)}")


def _difference(name: str, old: Any, new: Any) -> tuple[str, Any, Any]:
    """Where two values differ first, objects within objects by dotted names."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return name, old, new
    key = next(key for key in {**new, **old} if old.get(key) != new.get(key) or (key in old) != (key in new))
    return _difference(f"{name}.{key}" if name else key, old.get(key), new.get(key))


class EpochLog:
    """The one writer of `epochs.jsonl`: one object a line, append-only, cut back to the checkpoint on resume."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115, closed by `close`
        try:
            lock_file(self._file, path)
            self.rows = read_epochs(path)
        except BaseException:
            self._file.close()
            raise

    def cut(self, step: int) -> None:
        """Keep what had happened by this step."""
        self.rows = [row for row in self.rows if row["step"] <= step]
        self._file.truncate(sum(len(_line(row).encode()) for row in self.rows))  # they are the first lines

    def append(self, row: dict[str, Any]) -> None:
        append_whole(self._file, _line(row).encode(), self.path, "the checkpoint is safe")
        self.rows.append(row)

    def close(self) -> None:
        self._file.close()


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n"


def read_epochs(path: Path) -> list[dict[str, Any]]:
    rows, _ = read_rows(path)
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("step"), int):
            raise BadStudy(f"{path} is broken at line {number}: it must be an object with a step")
    return rows
