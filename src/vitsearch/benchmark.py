"""A benchmark table: architectures and the accuracies that were measured of them. Read, check, look up, write.

Formats, by suffix: `.json`; `.csv` and `.parquet` with a column `arch` of JSON text, an optional column `source`
and a column for each accuracy; `.pth`, the lists that Auto-Prox published as ViT-Bench-101 (only read).
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import statistics
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from vitsearch.architecture import Settings, brief
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.errors import UnknownName, VitsearchError
from vitsearch.records import parse_json, write_atomically
from vitsearch.registry import did_you_mean
from vitsearch.spaces import Space, canonical, cost_of, decode, space_of
from vitsearch.spaces.base import patches_of, space_over

Raw: TypeAlias = tuple[dict[str, Any], Sequence[Any]]  # a header, and rows {"arch", "source", "accuracy"}, unchecked

FAR = 8  # times the distance from median to quartile: more than five standard deviations of a normal distribution
OVERRIDES = ("space", "image_size", "classes", "channels")
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {  # field of ViT-Bench-101 -> column, and how its network differs
    "c100_base_acc": ("cifar100", {}),
    "c100_kd_acc": ("cifar100_kd", {}),
    "flower_base_acc": ("flowers", {"classes": 102}),
    "flower_kd_acc": ("flowers_kd", {"classes": 102}),
    "chaoyang_base_acc": ("chaoyang", {"classes": 4}),
    "chaoyang_kd_acc": ("chaoyang_kd", {"classes": 4}),
    "imagenet_super_acc": ("imagenet_inherited", {"space": "autoformer-tiny", "classes": 1000}),
}


@dataclass(frozen=True, slots=True)
class Column:
    """The network that a column of accuracies was measured with; `space` None means the table's."""

    name: str
    space: str | None
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class Entry:
    """Canonical settings and an accuracy in percent for every column of the table, None where not measured."""

    arch: Settings
    source: str | None
    accuracy: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Table:
    """Checked when it is made: it can be written and read back, and the network behind every number can be built."""

    name: str
    space: str
    geometry: Geometry
    columns: dict[str, Column]
    entries: tuple[Entry, ...]
    note: str = ""
    split: str = ""

    def __post_init__(self) -> None:
        _check_text("benchmark", self.name)
        _check_text("split", self.split, least=0)
        _check_text("note", " ".join(self.note.split()) if isinstance(self.note, str) else self.note, least=0)
        if not self.entries or not self.columns:
            counts = f"{len(self.entries)} and {len(self.columns)}"
            raise VitsearchError(f"there must be entries and columns of accuracies, but got {counts}")
        for name, column in self.columns.items():
            if _check_text("name of an accuracy", name) in ("arch", "source") or column.name != name:
                raise VitsearchError(f"an accuracy cannot be named {name!r}")
        seen: dict[str, int] = {}
        for number, entry in enumerate(self.entries):
            with _about(f"entry {number}"):
                self._check(entry)
                earlier = seen.setdefault(json.dumps([entry.arch, entry.source]), number)
                if earlier != number:
                    raise VitsearchError(f"the same architecture from the same source is entry {earlier} already")

    def _check(self, entry: Entry) -> None:
        if canonical(entry.arch) != entry.arch or entry.arch["space"] != self.space:
            raise VitsearchError(f"`arch` must be canonical settings of {self.space}, but got {brief(entry.arch)}")
        if entry.source is not None:
            _check_text("source", entry.source)
        if entry.accuracy.keys() != self.columns.keys():
            raise VitsearchError(f"`accuracy` must have {brief([*self.columns])}, but got {brief([*entry.accuracy])}")
        for name, value in entry.accuracy.items():
            _percent(name, value)
        for space, size in {(column.space, column.geometry.image_size) for column in self.columns.values()}:
            decode(_in_space(space, entry.arch)).sides(size)
        decode(entry.arch).sides(self.geometry.image_size)

    def column(self, name: str) -> Column:
        if name not in self.columns:
            known = list(self.columns)
            raise UnknownName(f"no column named {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}")
        return self.columns[name]

    def settings(self, entry: Entry, column: str) -> Settings:
        """The network that the entry's accuracy in this column was measured with."""
        return _in_space(self.column(column).space, entry.arch)

    def accuracies(self, column: str) -> list[tuple[int, float]]:
        """Entry numbers and accuracies, where measured."""
        name = self.column(column).name
        found = ((number, entry.accuracy[name]) for number, entry in enumerate(self.entries))
        return [(number, value) for number, value in found if value is not None]

    def sources(self) -> list[str]:
        """Each source once, in order of first mention."""
        return list(dict.fromkeys(entry.source for entry in self.entries if entry.source is not None))


COLUMN = ":column="


class Lookup:
    """A column as an objective: `FILE`, for the first one, or `FILE:column=NAME`.

    Of a network that is there from several sources it knows the mean.
    """

    def __init__(self, text: str) -> None:
        file, named, name = text.rpartition(COLUMN)
        self.file = Path(file if named else text)
        table = read_table(self.file)
        column = table.column(name if named else next(iter(table.columns)))
        found: dict[str, tuple[Settings, list[float]]] = {}
        for number, accuracy in table.accuracies(column.name):
            settings = table.settings(table.entries[number], column.name)
            found.setdefault(json.dumps(settings), (settings, []))[1].append(accuracy)
        if not found:
            raise VitsearchError(f"column {column.name!r} of {self.file} must have accuracies, but has none")
        self._found, self.geometry = found, column.geometry
        self.networks = tuple(settings for settings, _ in found.values())

    @property
    def space(self) -> Space:
        """That of the networks, over the patches that they have."""
        sizes: dict[int, None] = {}
        for settings in self.networks:
            own = patches_of(space_over(settings).fixed())
            sizes |= dict.fromkeys(own if isinstance(own, list) else [own])
        return space_of(self.networks[0]).with_patch_size([*sizes])

    def __call__(self, settings: Settings) -> float:
        """Percent; `KeyError` where the table has nothing."""
        return statistics.fmean(self._found[json.dumps(settings)][1])


def _in_space(space: str | None, settings: Settings) -> Settings:
    return settings if space is None else canonical({**settings, "space": space})


def describe(table: Table) -> dict[str, Any]:
    """What is in a table, and which numbers look wrong."""
    columns = []
    for column in table.columns.values():
        network = {"space": column.space or table.space, **dataclasses.asdict(column.geometry)}
        values = [value for _, value in table.accuracies(column.name)]
        summary = (("min", min), ("median", statistics.median), ("max", max))
        spread = {name: function(values) if values else None for name, function in summary}
        columns.append({"name": column.name, **network, "measured": len(values), **spread})
    params = [cost_of(entry.arch, table.geometry).params for entry in table.entries]
    return {
        "name": table.name,
        "space": table.space,
        "split": table.split,
        "note": table.note,
        "entries": len(table.entries),
        "sources": dict(Counter(entry.source for entry in table.entries if entry.source is not None)),
        "columns": columns,
        "params": {"min": min(params), "max": max(params)},
        "warnings": _warnings(table),
    }


def _warnings(table: Table) -> list[str]:
    """One line for each entry: far outside in one column looks like a failed run, in many like a weak network."""
    warnings: list[str] = []
    far: dict[int, list[str]] = {}
    for name in table.columns:
        measured = table.accuracies(name)
        if not measured:
            warnings.append(f"{name}: nothing is measured")
        if len(measured) < 4:
            continue
        low, median, high = statistics.quantiles((value for _, value in measured), n=4, method="inclusive")
        for number, value in measured:
            distance = high - median if value > median else median - low
            if 0 < FAR * distance < abs(value - median):
                far.setdefault(number, []).append(f"{name} {value} (median {median:.2f})")
    return warnings + [f"entry {number}: far outside in {', '.join(far[number])}" for number in sorted(far)]


def read_table(path: Path | str) -> Table:
    """The table in a file; whatever is wrong with it is one line that names the file and the entry."""
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise VitsearchError(f"a benchmark table must end in {', '.join(READERS)}, but got {str(path)!r}")
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise VitsearchError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    with _about(str(path)):
        if not data:
            raise VitsearchError("the file is empty")
        return _build(*reader(data, path.stem))


def write_table(table: Table, path: Path | str) -> None:
    """Write `.json`, `.csv` or `.parquet`; `read_table` gives an equal table."""
    path = Path(path)
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise VitsearchError(f"a benchmark table is written to {', '.join(WRITERS)}, but got {str(path)!r}")
    try:
        writer(table, path)
    except (OSError, ValueError) as error:
        raise VitsearchError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error


def _build(header: dict[str, Any], rows: Sequence[Any]) -> Table:
    sizes: dict[str, Any] = {name: header.get(name) for name in ("image_size", "classes")}
    geometry = Geometry(**sizes, channels=header.get("channels", IMAGENET.channels))
    datasets = _check_object("`datasets`", header.get("datasets", {}))
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        with _about(f"entry {number}"):
            names |= dict.fromkeys(_check_object("`accuracy`", _check_object("an entry", row).get("accuracy")))
    names |= dict.fromkeys(datasets)  # one that no entry has is kept, and `describe` warns of it
    entries = []
    for number, row in enumerate(rows):
        with _about(f"entry {number}"):
            accuracy = {name: _percent(name, row["accuracy"].get(name)) for name in names}
            entries.append(Entry(canonical(row.get("arch")), row.get("source"), accuracy))
    return Table(
        name=header.get("benchmark", ""),
        space=_check_text("space", header.get("space")),
        geometry=geometry,
        columns={name: _column(name, datasets.get(name, {}), geometry) for name in names},
        entries=tuple(entries),
        note=header.get("note", ""),
        split=header.get("split", ""),
    )


def _column(name: str, overrides: object, geometry: Geometry) -> Column:
    with _about(f"`datasets`, {brief(name)}"):
        given = dict(_check_object("a dataset", overrides))
        if unknown := [key for key in given if key not in OVERRIDES]:
            raise VitsearchError(f"it may override {', '.join(OVERRIDES)}, but got {brief(unknown[0])}")
        space = _check_text("space", given.pop("space")) if "space" in given else None
        return Column(name, space, dataclasses.replace(geometry, **given))


def _header(table: Table) -> dict[str, Any]:
    datasets = {}
    for name, column in table.columns.items():
        space = {} if column.space is None else {"space": column.space}
        datasets[name] = {**space, **dataclasses.asdict(column.geometry)}
    header = {"benchmark": table.name, "space": table.space, "split": table.split, "note": table.note}
    return {**header, **dataclasses.asdict(table.geometry), "datasets": datasets}


def _from_json(data: bytes, stem: str) -> Raw:
    whole = _check_object("the file", parse_json(data, "the file"))
    if not isinstance(entries := whole.get("entries"), list):
        raise VitsearchError(f"`entries` must be a list, but got {brief(entries)}")
    return {"benchmark": stem, **whole}, entries


def _write_json(table: Table, path: Path) -> None:
    entries = [dataclasses.asdict(entry) for entry in table.entries]
    write_atomically(path, json.dumps({**_header(table), "entries": entries}, indent=0) + "\n")


def _from_csv(data: bytes, stem: str) -> Raw:
    try:
        text = data.decode("utf-8-sig")  # spreadsheets put a mark in front
        header, _, rest = text.partition("\n") if text.startswith("# ") else ("", "", text)
        lines = [line for line in csv.reader(io.StringIO(rest, newline=""), strict=True) if line]
    except (ValueError, csv.Error) as error:
        raise VitsearchError(f"the file is not CSV in UTF-8: {_one_line(error)}") from None
    cells = [[text or None for text in line] for line in lines[1:]]
    return _from_wide(header.removeprefix("# ") or None, lines[0] if lines else [], cells, stem)


def _write_csv(table: Table, path: Path) -> None:
    text = io.StringIO(newline="")
    text.write(f"# {json.dumps(_header(table))}\n")
    wide = _to_wide(table)
    csv.writer(text, lineterminator="\n").writerows([wide.keys(), *zip(*wide.values(), strict=True)])
    write_atomically(path, text.getvalue())


def _from_parquet(data: bytes, stem: str) -> Raw:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        read = pq.ParquetFile(pa.BufferReader(data)).read()
        names, columns = read.column_names, [column.to_pylist() for column in read.columns]
    except Exception as error:  # a broken file can fail anywhere in the decoder
        raise VitsearchError(f"the file is not Parquet that can be read: {_one_line(error)}") from None
    header = (read.schema.metadata or {}).get(b"vitsearch")
    return _from_wide(header, names, zip(*columns, strict=True), stem)


def _write_parquet(table: Table, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    wide = _to_wide(table)
    kinds = [(name, pa.string() if name in ("arch", "source") else pa.float64()) for name in wide]
    schema = pa.schema(kinds, metadata={"vitsearch": json.dumps(_header(table))})
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        with open(Path(folder) / "table", "wb") as file:
            pq.write_table(pa.table(wide, schema=schema), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)


def _from_wide(header: str | bytes | None, names: Sequence[str], lines: Iterable[Sequence[Any]], stem: str) -> Raw:
    if len(set(names)) < len(names) or "arch" not in names:
        raise VitsearchError(f"there must be a column `arch` and no column twice, but got {brief([*names])}")
    rows = []
    for number, line in enumerate(lines):
        with _about(f"entry {number}"):
            if len(line) != len(names):
                raise VitsearchError(f"there must be {len(names)} fields, but got {len(line)}")
            cells = dict(zip(names, line, strict=True))
            if not isinstance(text := cells.pop("arch"), str):
                raise VitsearchError(f"`arch` must be settings as JSON text, but got {brief(text)}")
            source = cells.pop("source", None)
            accuracy = {name: _number(cell) for name, cell in cells.items()}
            rows.append({"arch": parse_json(text, "`arch`"), "source": source, "accuracy": accuracy})
    if header is not None:
        return _check_object("the header", parse_json(header, "the header")), rows
    with _about("entry 0"):
        space = canonical(rows[0]["arch"])["space"] if rows else "none"
    return {"benchmark": stem, "space": space, **dataclasses.asdict(IMAGENET)}, rows


def _number(cell: object) -> object:
    try:
        return float(cell) if isinstance(cell, str) else cell
    except ValueError:
        return cell  # refused later, as everything else that is no accuracy


def _to_wide(table: Table) -> dict[str, list[Any]]:
    wide: dict[str, list[Any]] = {"arch": [json.dumps(entry.arch) for entry in table.entries]}
    wide["source"] = [entry.source for entry in table.entries]
    return wide | {name: [entry.accuracy[name] for entry in table.entries] for name in table.columns}


def _from_published(data: bytes, stem: str) -> Raw:
    import torch

    try:
        with warnings.catch_warnings():  # torch says what it thinks of a file; we say whether it can be read
            warnings.simplefilter("ignore")
            loaded = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
        whole = json.loads(json.dumps(loaded, default=torch.Tensor.item))
    except Exception as error:  # a broken or hostile file can fail anywhere in the decoder
        kinds = "plain lists, dicts, numbers and tensors of one number"  # torch's own text advises unsafe loading
        raise VitsearchError(f"the file is broken or holds something else than {kinds}") from error
    if not isinstance(whole, list) or not all(isinstance(row, dict) for row in whole):
        raise VitsearchError(f"the file must hold a list of dicts, but got {brief(whole)}")
    rows: list[dict[str, Any]] = []
    datasets: dict[str, Any] = {}
    for number, row in enumerate(whole):
        with _about(f"entry {number}"):
            settings = _published_settings(_check_object("`arch`", row.get("arch")))
        accuracy = {PUBLISHED[field][0]: value for field, value in row.items() if field in PUBLISHED}
        datasets |= {PUBLISHED[field][0]: PUBLISHED[field][1] for field in row if field in PUBLISHED}
        rows.append({"arch": settings, "source": stem, "accuracy": accuracy})
    space = rows[0]["arch"]["space"] if rows else "none"
    return {"benchmark": stem, "space": space, "classes": 100, "image_size": 224, "datasets": datasets}, rows


def _published_settings(arch: dict[str, Any]) -> Settings:
    other_names = {"heads": "num_heads", "hidden_dim": "embed_dim"}
    lower = [(other_names.get(name.lower(), name.lower()), value) for name, value in arch.items()]
    renamed = {name: value for name, value in lower if (name, value) != ("stride", 8)}  # PiT's, the same in all
    if len({name for name, _ in lower}) < len(lower):
        raise VitsearchError(f"`arch` must have each setting under one name, but got {brief([*arch])}")
    for name in ("embed_dim", "base_dim"):
        width = renamed.get(name)
        if isinstance(width, list) and width and width == width[:1] * len(width):  # one for each block or stage
            renamed[name] = width[0]
    return {"space": "pit" if "base_dim" in renamed else "autoformer-tiny-plain", **renamed}


READERS = {".json": _from_json, ".csv": _from_csv, ".parquet": _from_parquet, ".pth": _from_published}
WRITERS = {".json": _write_json, ".csv": _write_csv, ".parquet": _write_parquet}


@contextmanager
def _about(what: str) -> Iterator[None]:
    """Whatever is wrong inside is wrong with this."""
    try:
        yield
    except VitsearchError as error:
        raise VitsearchError(f"{what}: {error}") from error


def _check_object(what: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise VitsearchError(f"{what} must be an object, but got {brief(value)}")
    return value


def _check_text(name: str, value: object, least: int = 1) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) < least:
        raise VitsearchError(f"`{name}` must be a text that can be printed, but got {brief(value)}")
    return value


def _percent(column: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:
        raise VitsearchError(f"accuracy {brief(column)} must be a number from 0 to 100 or null, but got {brief(value)}")
    return float(value)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
