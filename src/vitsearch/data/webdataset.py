"""WebDataset: uncompressed tar shards on this machine, read at random: `wds:PATTERN`.

`wds:data/cars-{split}-*.tar` has its parts where {split} stands: train, val (valid, validation), test. Without it,
`wds:data/train-{000..003}.tar` looks for siblings with another part's name in place of "train" in the file name.
"""

from __future__ import annotations

import glob
import json
import re
import tarfile
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image

from vitsearch.architecture import brief
from vitsearch.data.base import DATASETS, Split
from vitsearch.data.decoding import open_image
from vitsearch.data.stored import FOUND, Records, StoredDataset
from vitsearch.errors import BadData

IMAGES = ("jpg", "jpeg", "png", "webp")
MOST_SHARDS = 1_000_000
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


class TarRecords:
    """Where each image lies in its shard: the headers are read once, then every image is one seek and one read."""

    def __init__(self, shards: Sequence[str]) -> None:
        self.shards = list(shards)
        self.labels: list[Any] = []
        self.keys: list[str] = []
        self.places = array("q")  # shard, offset, size; again and again
        for number, shard in enumerate(self.shards):
            index = read_index(shard)
            with open(shard, "rb") as file:
                for key, fields in index.items():
                    self._add(number, file, key, fields)

    def _add(self, number: int, file: BinaryIO, key: str, fields: dict[str, tuple[int, int]]) -> None:
        image = next((fields[name] for name in IMAGES if name in fields), None)
        where = f"{self.shards[number]}, {key}"
        if image is None:
            raise BadData(
                f"{where}: every sample must have an image ({', '.join(IMAGES)}), but has {', '.join(fields)}"
            )
        self.labels.append(read_label(file, fields, where))
        self.keys.append(key)
        self.places.extend((number, *image))

    def open(self, index: int) -> Image.Image:
        shard, offset, size = self.places[3 * index : 3 * index + 3]
        with open(self.shards[shard], "rb") as file:
            return open_image(read_bytes(file, offset, size))

    def describe(self, index: int) -> str:
        return f"{self.shards[self.places[3 * index]]}, {self.keys[index]}"


def read_bytes(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def read_index(shard: str) -> dict[str, dict[str, tuple[int, int]]]:
    """Offset and size of every field of every sample, by key: the path up to the first dot of the file name."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    length = Path(shard).stat().st_size
    try:
        with open(shard, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if not member.isreg():
                    continue
                folder, slash, name = member.name.rpartition("/")
                stem, _, field = name.partition(".")
                if member.offset_data + member.size > length:
                    raise tarfile.ReadError("unexpected end of data")
                found.setdefault(f"{folder}{slash}{stem}", {})[field.lower()] = (member.offset_data, member.size)
            if any(read_bytes(file, max(0, length - 512), 512)):  # tar files end in blocks of zeros
                raise tarfile.ReadError("unexpected end of data")
    except (tarfile.TarError, OSError) as error:
        raise BadData(f"{shard} must be a whole, uncompressed tar file, but reading it says: {error}") from None
    return found


def read_label(file: BinaryIO, fields: dict[str, tuple[int, int]], where: str) -> int:
    name = next((name for name in ("cls", "json") if name in fields), None)
    if name is None:
        raise BadData(f'{where}: every sample must have a label (cls, or json with "label"), but has neither')
    text = read_bytes(file, *fields[name])
    try:
        value = json.loads(text)
        label = value["label"] if name == "json" else value
    except (ValueError, KeyError, TypeError):
        label = None
    if isinstance(label, bool) or not isinstance(label, int):
        raise BadData(f"{where}: the label must be a whole number, but got {brief(text.decode(errors='replace'))}")
    return label


def expand(pattern: str) -> list[str]:
    """Shards of a pattern with ranges as {000..003} and with wildcards; each must be there."""
    span = RANGE.search(pattern)
    if span:
        first, last = span.groups()
        if int(last) - int(first) >= MOST_SHARDS:
            raise BadData(f"`wds:PATTERN` must name at most {MOST_SHARDS} files, but got {brief(span.group())}")
        numbers = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        return [
            shard for number in numbers for shard in expand(pattern[: span.start()] + number + pattern[span.end() :])
        ]
    found = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207 - may be absolute
    missing = [shard for shard in found if not Path(shard).is_file()]
    if missing or not found:
        raise BadData(f"`wds:PATTERN` must lead to tar files, but {(missing or [pattern])[0]!r} is not there")
    return found


def find_shards(pattern: str) -> dict[Split, list[str]]:
    folder, slash, file = pattern.rpartition("/")
    if "{split}" not in pattern and "train" not in file:
        return {"train": expand(pattern)}
    found: dict[Split, list[str]] = {}
    for split, names in FOUND.items():
        for name in names:
            if "{split}" in pattern:
                wanted = pattern.replace("{split}", name)
            elif split == "train":
                wanted = pattern
            else:  # a sibling may have another number of shards
                wanted = folder + slash + RANGE.sub("*", file.replace("train", name))
            if split == "train" or glob.glob(RANGE.sub("*", wanted)):  # noqa: PTH207
                found[split] = expand(wanted)
                break
    return found


@DATASETS.register("wds")
def webdataset(pattern: str) -> StoredDataset:
    shards = find_shards(pattern)
    return StoredDataset(f"wds:{pattern}", {split: partial(_open, found) for split, found in shards.items()})


def _open(shards: Sequence[str]) -> Records:
    return TarRecords(shards)
