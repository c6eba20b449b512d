"""`vitsearch report` and `vitsearch serve`: look at studies.

vitsearch report run --out page.html
vitsearch serve runs
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from vitsearch.architecture import check_whole
from vitsearch.options import NUMBER, JsonOption
from vitsearch.terminal import emit, progress_bar

log = logging.getLogger("vitsearch")


def report(
    study: Annotated[list[Path], typer.Argument(metavar="STUDY...", help="Folders of studies of any kind.")],
    out: Annotated[Path, typer.Option("--out", help="The HTML file to write; a page that exists is replaced.")],
    correlations: Annotated[
        Path | None, typer.Option("--correlations", help="Show what `bench correlate --json` printed into this file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """One page that needs nothing else: what was asked, what was found, how to repeat it; several studies compared."""
    from vitsearch.report import write_report

    with progress_bar("reading", len(study)) as tick:
        shown = write_report(study, out, correlations=correlations, progress=tick)
    for one in shown:
        if one["problem"]:
            log.warning("%s is shown as failed: %s", one["name"], one["problem"])
    if as_json:
        keys = ("name", "kind", "state", "done", "wanted", "best")
        return emit(
            {"out": str(out), "bytes": out.stat().st_size, "studies": [{k: one[k] for k in keys} for one in shown]}
        )
    print(f"report: {out}")


def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with studies, up to four levels deep.")],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen at; beyond loopback a token is needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", **NUMBER, help="Port; 0 for any that is free.")] = 8765,
) -> None:
    """Show a folder of studies in the browser, live and read-only."""
    from vitsearch.serve import serve_studies

    check_whole("--port", port, least=0, most=65535)
    serve_studies(
        folder, host=host, port=port, said=lambda address: print(f"serving {folder} at {address}", flush=True)
    )
