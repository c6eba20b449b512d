"""Trials column by column, so that ten thousand of them fit a page.

Each setting is an index into the table of its values, each network a sequence of indices into the table of its parts:
    stage, block, block, ..., stage, block, ..., whole
Indices are written in base 64, with as many digits for each as the table needs; a dot stands between the stages of a
setting that is a list for each stage.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from string import ascii_letters, digits
from typing import Any, cast

from vitsearch.architecture import (
    BLOCK_KINDS,
    ENTRY_KINDS,
    Architecture,
    Block,
    Bottleneck,
    Convolution,
    Entry,
    InvertedResidual,
    Settings,
)
from vitsearch.cost import IMAGENET, Geometry, block_cost, entry_cost
from vitsearch.errors import VitsearchError
from vitsearch.records import Trial
from vitsearch.spaces import Knob, Space, space_of

ALPHABET = digits + ascii_letters + "-_"
BETWEEN = -1  # stages
HEADS = "num_heads"


class Coded:
    """Values of one kind, each written once, and rows of indices into them."""

    def __init__(self, values: Iterable[Any] = (), *, per: str = "network") -> None:
        self.per = per
        """As `Knob.per`: what there is one value for."""
        self.values: list[Any] = []
        self.rows: list[list[int] | None] = []
        self._numbers: dict[Hashable, int] = {}
        for value in values:
            self.number(_key(value), value)

    def number(self, key: Hashable, value: Any) -> int:
        if (found := self._numbers.get(key)) is None:
            found = self._numbers[key] = len(self.values)
            self.values.append(value)
        return found

    def append(self, value: Any) -> None:
        row: list[int] = []
        for part in _listed(value) if self.per == "stage block" else [value]:
            row += [BETWEEN] if row else []
            row += [self.number(_key(one), one) for one in (_listed(part) if self.per != "network" else [part])]
        self.rows.append(row)

    def value(self, row: Sequence[int]) -> Any:
        """What a row was made of."""
        parts: list[list[Any]] = [[]]
        for number in row:
            if number == BETWEEN:
                parts.append([])
            else:
                parts[-1].append(self.values[number])
        return parts if self.per == "stage block" else parts[0] if self.per != "network" else parts[0][0]

    def to_json(self, start: int = 0) -> dict[str, Any]:
        """`codes`: a text for each row from `start` on; None where the trial has no such setting."""
        width = 1
        while len(self.values) > len(ALPHABET) ** width:
            width += 1
        codes = [None if row is None else _text(row, width) for row in self.rows[start:]]
        return {"per": self.per, "values": self.values, "width": width, "codes": codes}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _key(value: Any) -> Hashable:
    """Equal for what JSON writes alike: 4 and 4.0 are two values."""
    return (type(value), value) if isinstance(value, (int, float, str)) else json.dumps(value)


@lru_cache(maxsize=1 << 12)
def _digits(number: int, width: int) -> str:
    text = ""
    for _ in range(width):
        number, last = divmod(number, len(ALPHABET))
        text = ALPHABET[last] + text
    return text


def _text(numbers: Sequence[int], width: int) -> str:
    return "".join(["." if number == BETWEEN else _digits(number, width) for number in numbers])


class Columns:
    """Grows with a journal; `to_json` gives what a page needs of the trials from a number on."""

    def __init__(self, geometry: Geometry = IMAGENET, space: Space | None = None) -> None:
        self.geometry, self.space = geometry, space
        self.settings: dict[str, Coded] = {}
        self.parts = Coded()
        self.measured: dict[str, list[float | None]] = {}
        self.seconds: list[float] = []
        self.errors: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.seconds)

    def extend(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._add_settings(trial.settings)
            self._add_parts(trial.settings)
            self._add_numbers(trial)

    def to_json(self, start: int = 0) -> dict[str, Any]:
        parts = self.parts.to_json(start)
        return {
            "start": start,
            "count": len(self),
            "settings": {name: coded.to_json(start) for name, coded in self.settings.items()},
            "parts": {name: parts[name] for name in ("values", "width", "codes")},
            "measured": {name: column[start:] for name, column in self.measured.items()},
            "seconds": self.seconds[start:],
            "errors": {number: text for number, text in self.errors.items() if number >= start},
        }

    def settings_at(self, number: int) -> Settings:
        """The settings of a trial, as its journal has them."""
        found: Settings = {}
        for name, coded in self.settings.items():
            if (row := coded.rows[number]) is not None:
                found[name] = coded.value(row)
        return found

    def _add_settings(self, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            if name not in self.settings:
                coded = self.settings[name] = new_column(self.space, name, value)
                coded.rows = [None] * len(self)
        for name, coded in self.settings.items():
            if name not in settings:
                coded.rows.append(None)
            else:
                coded.append(settings[name])

    def _add_parts(self, settings: Mapping[str, Any]) -> None:
        try:
            network = space_of(settings).decode(settings)
            self.parts.rows.append([self._part(*part) for part in parts_of(network, self.geometry)])
        except VitsearchError:  # of a space that is not known here
            self.parts.rows.append(None)

    def _part(self, key: Hashable, value: Any) -> int:
        return self.parts.number(key, value)

    def _add_numbers(self, trial: Trial) -> None:
        for name in trial.measured:
            if name not in self.measured:
                self.measured[name] = [None] * len(self)
        for name, column in self.measured.items():
            value = trial.measured.get(name)
            column.append(float(f"{value:.6g}") if isinstance(value, float) else value)
        if trial.error is not None:
            self.errors[trial.number] = trial.error
        self.seconds.append(float(f"{trial.seconds:.3g}"))


def new_column(space: Space | None, name: str, value: Any) -> Coded:
    """With the choices of the space first, in their order; lists that no space explains are one value a block."""
    knob = next((knob for knob in space.knobs if knob.name == name), None) if space is not None else None
    if space is None or knob is None:
        return Coded(per="block" if isinstance(value, list) else "network")
    return Coded(choices_of(space, knob), per=knob.per)


def choices_of(space: Space, knob: Knob) -> list[Any]:
    """All values that an entry of the setting may have; None where a slot may be empty."""
    if knob.per.startswith("stage"):
        return list(dict.fromkeys(choice for stage in knob.choices for choice in cast(tuple[float, ...], stage)))
    listed = [list(choice) if isinstance(choice, tuple) else choice for choice in knob.choices]
    empty = knob.per == "block" and knob.name != HEADS and any(k.name == HEADS and 0 in k.choices for k in space.knobs)
    return [*listed, None] if empty else listed


def entries_of(knob: Knob, value: Any) -> list[Any]:
    """The entries of one setting, in all stages and blocks."""
    if knob.per == "stage block":
        return [entry for stage in value for entry in stage]
    return [value] if knob.per == "network" else list(value)


def parts_of(network: Architecture, geometry: Geometry) -> Iterable[tuple[Hashable, dict[str, Any]]]:
    """What a drawing shows, each with a key that equal parts share."""
    extra, before = int(network.class_token), geometry.channels
    for stage, side in zip(network.stages, network.sides(geometry.image_size), strict=True):
        width = stage.width
        yield ("stage", stage.entry, before, width, side, extra), _stage(stage.entry, before, width, side, extra)
        for block in stage.blocks:
            yield ("block", block, width, side, extra), _block(block, width, side, extra)
        before = width
    whole = {name: getattr(network, name) for name in ("class_token", "position", "readout")}
    yield ("whole", *whole.values()), {"part": "whole", **whole}


@lru_cache(maxsize=1 << 12)
def _stage(entry: Entry, before: int, width: int, side: int, extra: int) -> dict[str, Any]:
    cost = entry_cost(entry, before, width, side, extra)
    shown = {"part": "stage", "kind": _kind(entry, ENTRY_KINDS), "width": width, "side": side}
    if isinstance(entry, Convolution | Bottleneck):
        shown["hidden"] = before * entry.expansion if isinstance(entry, Bottleneck) else width
    return shown | dataclasses.asdict(entry) | cost._asdict()


@lru_cache(maxsize=1 << 16)
def _block(block: Block, width: int, side: int, extra: int) -> dict[str, Any]:
    cost = block_cost(block, width, side, extra)
    shown: dict[str, Any] = {"part": "block", "kind": _kind(block, BLOCK_KINDS)}
    if isinstance(block, InvertedResidual):
        shown["hidden"] = width * block.expansion
    return shown | dataclasses.asdict(block) | cost._asdict()


def _kind(part: Block | Entry, kinds: Mapping[str, type[Any]]) -> str:
    return next(name for name, kind in kinds.items() if kind is type(part))
