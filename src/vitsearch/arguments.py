"""What users type, turned into values: quantities, limits, architectures. No torch, except for reading a study."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

from vitsearch.architecture import Settings, brief, check_seed
from vitsearch.cost import IMAGENET, Geometry, Limits
from vitsearch.errors import VitsearchError
from vitsearch.records import parse_json, supernet_and_images, trial_number
from vitsearch.spaces import patches_of
from vitsearch.spaces.base import Understood, understand

log = logging.getLogger("vitsearch")
MOST_BUDGETS = 1000
TIMES = {"us": 1e-3, "ms": 1.0, "s": 1e3}  # in milliseconds; what ends with another comes first
EXACT = Context(prec=400)  # digits: more than any quantity has
UNITS = {"k": 3, "K": 3, "M": 6, "G": 9, "B": 9, "T": 12}


def check_new_file(name: str, path: Path) -> None:
    """Before the work whose result is to be written there."""
    if os.path.lexists(path) or not path.parent.is_dir():
        raise VitsearchError(f"`{name}` must be a new file in a folder that exists, but got {str(path)!r}")


def refuse(what: str, given: Mapping[str, Any]) -> None:
    """Options, by name without dashes, that have no use with `what` else was typed."""
    for name, value in given.items():
        if value is not None:
            raise VitsearchError(f"`--{name}` must not be given with {what}, but got {brief(value)}")


def read_quantity(name: str, text: str | None, below: int = 1 << 62) -> int | None:
    """`6000000`, `6M`, `1.4G`: exact, so 5.5M is 5,500,000 and 0.5 is refused."""
    if text is None:
        return None
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 0)
    try:
        value = EXACT.scaleb(Decimal(number), unit) if number.isascii() else Decimal("nan")
    except ArithmeticError:  # what decimal raises for text that is no number, and for numbers beyond it
        value = Decimal("nan")
    if not value.is_finite() or not 1 <= value < below or value != int(value):
        raise VitsearchError(
            f"`{name}` must be a positive whole number such as 6000000, 6M or 1.4G, but got {brief(text)}"
        )
    return int(value)


def read_milliseconds(name: str, text: str | None) -> float | None:
    """`5ms`, `1.2s`, `800us`: a unit is needed."""
    if text is None:
        return None
    unit = next((unit for unit in TIMES if text.endswith(unit)), "")
    milliseconds = read_number(text.removesuffix(unit)) * TIMES.get(unit, math.nan)
    if not 0 < milliseconds < math.inf:
        raise VitsearchError(f"`{name}` must be a time such as 5ms, 1.2s or 800us, but got {brief(text)}")
    return milliseconds


def read_rate(name: str, text: str | None) -> float | None:
    """`250`, `1.5k`: images per second."""
    if text is None:
        return None
    factor = 10 ** UNITS[text[-1]] if text[-1:] in UNITS else 1
    rate = read_number(text[:-1] if text[-1:] in UNITS else text) * factor
    if not 0 < rate < math.inf:
        raise VitsearchError(f"`{name}` must be a positive number of images per second, but got {brief(text)}")
    return rate


def read_number(text: str) -> float:
    """Nan where it is none."""
    try:
        return float(text) if text.isascii() else math.nan
    except ValueError:
        return math.nan


def read_list(name: str, text: str) -> list[str]:
    """A list with commas, each entry once."""
    entries = text.split(",")
    if "" in entries or len(set(entries)) < len(entries):
        raise VitsearchError(f"`{name}` must be a list with commas, each entry once, but got {brief(text)}")
    return entries


def read_whole_list(name: str, text: str) -> list[int]:
    entries = read_list(name, text)
    if not all(entry.isascii() and entry.isdecimal() and len(entry) < 10 for entry in entries):
        raise VitsearchError(f"`{name}` must be whole numbers with commas, but got {brief(text)}")
    return [int(entry) for entry in entries]


def read_limits(min_params: str | None, max_params: str | None, min_macs: str | None, max_macs: str | None) -> Limits:
    return Limits(
        min_params=read_quantity("--min-params", min_params),
        max_params=read_quantity("--max-params", max_params),
        min_macs=read_quantity("--min-macs", min_macs),
        max_macs=read_quantity("--max-macs", max_macs),
    )


def read_budgets(text: str) -> tuple[tuple[int | float, ...], int | float]:
    """`6M:11M:1M` (first, last, step) or `6M,8M`; with the first, where a bin before the first would begin.

    `5ms:10ms:1ms` and `5ms,8ms` are times, in milliseconds.
    """
    parts = text.split(":")
    if len(parts) not in (1, 3):
        raise VitsearchError(f"`--budgets` must be FIRST:LAST:STEP or a list with commas, but got {brief(text)}")
    read = read_milliseconds if are_times(text) else read_quantity
    numbers = [read("--budgets", part) or 0 for part in (parts if len(parts) == 3 else text.split(","))]
    if len(parts) == 1:
        return tuple(numbers), 0
    first, last, step = (Decimal(str(number)) for number in numbers)  # 0.1 ms ten times is 1 ms
    if last < first or (last - first) // step >= MOST_BUDGETS:
        rule = f"must go from FIRST up to LAST in at most {MOST_BUDGETS} steps"
        raise VitsearchError(f"`--budgets` {rule}, but got {brief(text)}")
    kind = type(numbers[0])
    count = int((last - first) // step) + 1
    return tuple(kind(first + number * step) for number in range(count)), kind(max(first - step, Decimal(0)))


def are_times(budgets: str) -> bool:
    """Whether any of them has a unit of time; then all must."""
    return any(part.endswith(tuple(TIMES)) for part in budgets.replace(":", ",").split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """An architecture as it was given, and what its study says about input, seed and weights."""

    understood: Understood
    known: Geometry | None = None
    seed: int = 0
    weights: str = "fresh"

    @property
    def settings(self) -> Settings:
        return self.understood.settings

    @property
    def geometry(self) -> Geometry:
        return IMAGENET if self.known is None else self.known


def read_architectures(arguments: Sequence[str]) -> tuple[list[Given], bool]:
    """All architectures in the order given, and whether they were one bare object."""
    found: list[Given] = []
    single = len(arguments) == 1
    for argument in arguments:
        given, bare = _read_argument(argument)
        found.extend(given)
        single = single and bare
    return found, single


def read_architecture(argument: str) -> Given:
    """Exactly one architecture."""
    given, _ = _read_argument(argument)
    if len(given) != 1:
        raise VitsearchError(f"`ARCH` must hold one architecture here, but got {len(given)} in {argument!r}")
    return given[0]


def _read_argument(argument: str) -> tuple[list[Given], bool]:
    path, hash_sign, trial = argument.rpartition("#")
    if hash_sign and not Path(argument).exists():
        return [_read_trial(path, trial)], True
    if argument != "-" and Path(argument).is_dir():
        return [_read_folder(argument)], True
    source = "standard input" if argument == "-" else argument
    data = parse_json(_read_bytes(argument), source)
    listed = data if isinstance(data, list) else [data]
    found = []
    for index, settings in enumerate(listed):
        try:
            found.append(Given(understood=understand(settings)))
        except VitsearchError as error:
            where = f"{source}, entry {index}" if isinstance(data, list) else source
            raise VitsearchError(f"{where}: {error}") from error
    return found, not isinstance(data, list)


def _read_bytes(argument: str) -> bytes:
    if argument != "-":
        try:
            return Path(argument).read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a null character in the name
            reason = getattr(error, "strerror", None) or error
            raise VitsearchError(f"`ARCH` must be a file that can be read, but got {argument!r}: {reason}") from None
    if sys.stdin is None:
        raise VitsearchError("`ARCH` is '-', and standard input is closed")
    return sys.stdin.buffer.read()


def _read_folder(argument: str) -> Given:
    """The network that a training or an export left there."""
    try:
        config = parse_json((Path(argument) / "config.json").read_bytes(), f"{argument}/config.json")
        settings, geometry = config["model_args"]["settings"], Geometry.of_config(config)
    except (OSError, KeyError, TypeError, ValueError):
        rule = "must be a JSON file, '-', a trial as DIR#best, or the folder of a trained or exported network"
        raise VitsearchError(f"`ARCH` {rule}, but got the folder {argument!r}") from None
    return Given(understood=understand(settings), known=geometry)


def _read_trial(path: str, trial: str) -> Given:
    from vitsearch.study import Study  # brings torch

    if (found := _read_evolution(path, trial)) is not None:
        return found
    study = Study.open(path)
    understood = understand(study.trial(trial).settings)
    plan = study.plan
    return Given(understood=understood, known=plan.geometry, seed=plan.seed, weights=plan.weights)


def _read_evolution(path: str, trial: str) -> Given | None:
    """A network that the evolution of a space measured; None for other studies."""
    from vitsearch.report.kinds import EVOLUTION, geometry_of
    from vitsearch.report.reading import Reader

    try:
        study = parse_json((Path(path) / "study.json").read_bytes(), path)
    except (OSError, ValueError, VitsearchError):  # ValueError: a null character in the name
        return None
    if not isinstance(study, dict) or study.get("kind") != EVOLUTION:
        return None
    reader = Reader(Path(path))
    reader.refresh()
    number = reader.best if trial == "best" else trial_number(trial)
    if reader.problem is not None or number is None or number >= len(reader.columns):
        why = reader.problem or f"it has {len(reader.columns)} trials"
        raise VitsearchError(f"a trial of {path} must be 'best' or a number, but got {brief(trial)}: {why}")
    understood = understand(reader.columns.settings_at(number))
    return Given(understood=understood, known=geometry_of(study), seed=check_seed(study.get("seed")))


def read_candidates(argument: str) -> list[Settings]:
    """The networks of a study, best first, or those of a JSON file in its order; each once."""
    if Path(argument).is_dir():
        from vitsearch.study import Study  # brings torch

        study = Study.open(argument)
        valid = [trial for trial in study.trials if trial.error is None]
        valid.sort(key=study.plan.objectives[0].gain, reverse=True)
        found = [trial.settings for trial in valid]
    else:
        found = [given.settings for given in read_architectures([argument])[0]]
    return list({json.dumps(settings): settings for settings in found}.values())


def choose_geometry(base: Geometry, image_size: int | None, classes: int | None) -> Geometry:
    if image_size is None and classes is None:
        return base
    return replace(
        base,
        image_size=base.image_size if image_size is None else image_size,
        classes=base.classes if classes is None else classes,
    )


def objective_input(objective: str, patch_size: Any) -> tuple[Geometry | None, Any]:
    """Image size, classes and patches of the supernet, predictor or table that is an objective, where one is."""
    for name in objective.split(","):
        kind, _, file = name.removeprefix("min:").removeprefix("max:").partition(":")
        if kind == "supernet":
            from vitsearch.training.plan import read_plan

            plan, _ = read_plan(Path(supernet_and_images(file)[0]))
            fixed = plan.space["fixed"] if plan.space else {}
            return plan.geometry, patch_size if patch_size is not None else patches_of(fixed)
        if kind == "predictor":
            from vitsearch.predictor import read_predictor

            found = read_predictor(file)
            return found.geometry, patch_size if patch_size is not None else patches_of(found.space.fixed())
        if kind == "bench":
            from vitsearch.benchmark import Lookup

            table = Lookup(file)
            return table.geometry, patch_size if patch_size is not None else patches_of(table.space.fixed())
    return None, patch_size


def note_outside(given: Sequence[Given], most: int = 3) -> None:
    notes = [item.understood.outside for item in given if item.understood.outside]
    for note in notes[:most]:
        log.warning("note: outside its space: %s", note)
    if len(notes) > most:
        log.warning("note: %d more lie outside their space", len(notes) - most)
