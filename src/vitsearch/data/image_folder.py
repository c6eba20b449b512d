"""Folders of image files, one folder for each class: `folder:PATH`.

PATH/train/CLASS/*, PATH/val (or valid, validation) and PATH/test as far as they exist; or PATH/CLASS/* alone.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from PIL import Image

from vitsearch.data.base import DATASETS, Split
from vitsearch.data.decoding import open_image
from vitsearch.data.stored import FOUND, Records, StoredDataset
from vitsearch.errors import BadData

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")


class FolderRecords:
    def __init__(self, folder: Path, names: list[str]) -> None:
        unknown = [name for name in class_folders(folder) if name not in names]
        if unknown:
            raise BadData(f"{folder} must have the classes of the training part, but has {unknown[0]!r} too")
        self.files: list[str] = []
        self.labels: list[int] = []
        for label, name in enumerate(names):
            found = image_files(folder / name)
            self.files += found
            self.labels += [label] * len(found)

    def open(self, index: int) -> Image.Image:
        return open_image(self.files[index])

    def describe(self, index: int) -> str:
        return self.files[index]


def class_folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def image_files(folder: Path) -> list[str]:
    """Below `folder` at any depth, in sorted order."""
    return sorted(
        os.path.join(where, file)  # noqa: PTH118 - a million Path objects take seconds
        for where, _, files in os.walk(folder, followlinks=True)
        for file in files
        if file.lower().endswith(SUFFIXES) and not file.startswith(".")
    )


@DATASETS.register("folder")
def image_folder(path: str) -> StoredDataset:
    folder = Path(path)
    if not folder.is_dir():
        raise BadData(f"`folder:PATH` must be an existing folder, but got {path!r}")
    parts: dict[Split, Path] = {
        split: folder / name for split, known in FOUND.items() for name in known if (folder / name).is_dir()
    }
    if "train" not in parts:
        if parts:
            raise BadData(f"{path} has {next(iter(parts.values())).name!r} and must have 'train' beside it")
        parts = {"train": folder}
    names = class_folders(parts["train"])
    if not names:
        raise BadData(f"{parts['train']} must have a folder of images for each class, but has none")
    records = {split: partial(_open, where, names) for split, where in parts.items()}
    return StoredDataset(f"folder:{path}", records, class_names=names)


def _open(folder: Path, names: list[str]) -> Records:
    return FolderRecords(folder, names)
