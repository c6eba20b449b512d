"""Hugging Face's image layout in parquet files: `parquet:PATH`.

PATH is a prefix (`data/cifar10` for data/cifar10-train.parquet, data/cifar10-test.parquet, shards too), a folder of
such files, or the training file. Images are a struct of bytes and path, or bytes.
"""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from vitsearch.data.base import DATASETS, Split
from vitsearch.data.decoding import open_image
from vitsearch.data.stored import FOUND, Records, StoredDataset
from vitsearch.errors import BadData

log = logging.getLogger("vitsearch")
IMAGE_COLUMNS = ("image", "img", "jpg", "png")
LABEL_COLUMNS = ("label", "labels", "fine_label", "cls", "target")
NAMED = re.compile(
    r"(?:(?P<prefix>.+)[-_.])?(?P<split>train|validation|valid|val|test)(?:-(?P<shard>\d+)-of-(?P<shards>\d+))?\.parquet"
)
SPLITS: dict[str, Split] = {name: split for split, names in FOUND.items() for name in names}
KEPT_BYTES = 1 << 30  # of row groups held in memory at a time


class ParquetRecords:
    """Rows of some files. Labels are read at once, images by row group; the last used groups stay in memory."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = list(files)
        schema = open_file(self.files[0]).schema_arrow
        self.image = column(schema, IMAGE_COLUMNS, self.files[0])
        self.label = column(schema, LABEL_COLUMNS, self.files[0])
        self.names = label_names(schema, self.label)
        self.labels: list[Any] = []
        self.groups: list[tuple[int, int]] = []  # file and row group
        starts = [0]
        for number, file in enumerate(self.files):
            reader = open_file(file)
            for name in (self.image, self.label):
                if name not in reader.schema_arrow.names:
                    raise BadData(f"{file} must have the column {name!r} as the other files, but has none")
            self.labels += read_columns(reader, file, self.label, None).column(0).to_pylist()
            for group in range(reader.num_row_groups):
                self.groups.append((number, group))
                starts.append(starts[-1] + reader.metadata.row_group(group).num_rows)
        self.starts = np.array(starts)
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._reads = 0
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_kept", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _kept=OrderedDict(), _lock=Lock())

    def open(self, index: int) -> Image.Image:
        group = int(np.searchsorted(self.starts, index, side="right")) - 1
        value = self._group(group)[index - int(self.starts[group])].as_py()
        encoded = value.get("bytes") if isinstance(value, dict) else value
        if encoded is None:
            raise ValueError("the row holds no bytes")
        return open_image(encoded)

    def _group(self, number: int) -> Any:
        with self._lock:
            if number not in self._kept:
                file, group = self.groups[number]
                path = self.files[file]
                self._reads += 1
                if self._reads == 4 * len(self.groups):
                    log.warning("%s is slow to read in any order, being larger than what is kept in memory", path)
                self._kept[number] = read_columns(open_file(path), path, self.image, group).column(0)
                while len(self._kept) > 1 and sum(held.nbytes for held in self._kept.values()) > KEPT_BYTES:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(number)
            return self._kept[number]

    def describe(self, index: int) -> str:
        group = int(np.searchsorted(self.starts, index, side="right")) - 1
        file = self.groups[group][0]
        first = next(number for number, (owner, _) in enumerate(self.groups) if owner == file)
        return f"{self.files[file]}, row {index - int(self.starts[first])}"


def open_file(file: Path) -> Any:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(file)
    except (OSError, ArrowException) as error:
        raise BadData(f"{file} cannot be read as a parquet file: {' '.join(str(error).split())[:160]}") from None


def read_columns(reader: Any, file: Path, name: str, group: int | None) -> Any:
    """One column of a row group, or of all."""
    from pyarrow import ArrowException

    try:
        return reader.read([name]) if group is None else reader.read_row_group(group, [name])
    except (OSError, ArrowException) as error:
        raise BadData(f"{file} is damaged: {' '.join(str(error).split())[:160]}") from None


def column(schema: Any, known: Sequence[str], file: Path) -> str:
    for name in known:
        if name in schema.names:
            return name
    raise BadData(f"{file} must have a column named {' or '.join(known)}, but has {', '.join(schema.names)}")


def label_names(schema: Any, label: str) -> list[str] | None:
    """Class names, where Hugging Face's description of the columns has them."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def find_files(path: str) -> dict[Split, list[Path]]:
    """The files of each part."""
    given = Path(path)
    if given.is_file():
        named = NAMED.fullmatch(given.name)
        if not named or SPLITS[named["split"]] != "train":
            return {"train": [given]}
        return by_split(given.parent, named["prefix"], path)
    if given.is_dir():
        for folder in (given, given / "data"):
            found = {match["prefix"] for file in folder.glob("*.parquet") if (match := NAMED.fullmatch(file.name))}
            if len(found) > 1:
                names = ", ".join(sorted(str(prefix) for prefix in found))
                raise BadData(f"`parquet:PATH` must name one dataset of {path!r}, such as {path}/NAME, of {names}")
            if found:
                return by_split(folder, found.pop(), path)
        nested = {split: sorted((given / name).glob("*.parquet")) for name, split in SPLITS.items()}
        if nested.get("train"):
            return {split: files for split, files in nested.items() if files}
        raise BadData(f"`parquet:PATH` must lead to files named ...train.parquet, but {path!r} has none")
    return by_split(given.parent, given.name, path)


def by_split(folder: Path, prefix: str | None, path: str) -> dict[Split, list[Path]]:
    found: dict[Split, list[Path]] = {}
    for file in sorted(folder.glob("*.parquet")):
        match = NAMED.fullmatch(file.name)
        if match and match["prefix"] == prefix:
            found.setdefault(SPLITS[match["split"]], []).append(file)
    if "train" not in found:
        raise BadData(f"`parquet:PATH` must lead to a training part such as {prefix}-train.parquet, but got {path!r}")
    for files in found.values():
        shards = NAMED.fullmatch(files[0].name)
        assert shards is not None
        if len(files) != int(shards["shards"] or 1):
            raise BadData(f"{files[0]}: {shards['shards'] or 1} files must be there, but got {len(files)}")
    return found


@DATASETS.register("parquet")
def parquet(path: str) -> StoredDataset:
    files = find_files(path)
    train = ParquetRecords(files["train"])
    records = {split: partial(_open, found) for split, found in files.items()}
    return StoredDataset(f"parquet:{path}", records | {"train": lambda: train}, class_names=train.names)


def _open(files: Sequence[Path]) -> Records:
    return ParquetRecords(files)
