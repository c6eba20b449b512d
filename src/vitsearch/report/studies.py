"""One page for one study or several: `write_report(["run"], "page.html")`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.records import parse_json
from vitsearch.report.correlation import correlation_section
from vitsearch.report.page import check_page, write_page
from vitsearch.report.reading import STUDY, Reader
from vitsearch.report.views import view


def write_report(
    studies: Sequence[str | Path],
    out: str | Path,
    *,
    correlations: str | Path | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """Write the page and return what it shows. `progress` is told how many studies have been read.

    `correlations`: a file with what `bench correlate --json` printed.
    """
    folders, path = [Path(study) for study in studies], Path(out)
    if not folders:
        raise VitsearchError("`report` must have at least one study to show, but got none")
    check_page("out", path)
    views = []
    for reader in named_readers(folders):
        reader.refresh()
        views.append(view(reader))
        progress(len(views))
    figures = [] if correlations is None else [read_correlations(Path(correlations))]
    title = views[0]["name"] if len(views) == 1 else f"{len(views)} studies"
    write_page(path, f"{title} · vitsearch", {"title": title, "studies": views, "figures": figures})
    return views


def named_readers(folders: Sequence[Path]) -> list[Reader]:
    """With names that tell them apart; a folder that is no study is an error, a damaged study is shown as one."""
    names = [folder.resolve().name for folder in folders]
    readers = []
    for folder, name in zip(folders, names, strict=True):
        if not (folder / STUDY).is_file():
            raise BadStudy(f"{folder} is not a study: it has no {STUDY}")
        readers.append(Reader(folder, name if names.count(name) == 1 else str(folder)))
    return readers


def read_correlations(path: Path) -> dict[str, Any]:
    rows = parse_json(path.read_bytes(), str(path))
    needed = {"benchmark", "proxy", "dataset", "source", "kendall", "kendall_low", "kendall_high", "kendall_near_size"}
    if not isinstance(rows, list) or not all(isinstance(row, dict) and set(row) >= needed for row in rows):
        raise VitsearchError(f"`correlations` must be what `vitsearch bench correlate --json` prints, but got {path}")
    return correlation_section(rows)
