"""The application: one page, its scripts, and what it asks for. All of it only reads."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from vitsearch.errors import VitsearchError, require
from vitsearch.report.page import LIVE_SCRIPT, SCRIPTS, STYLE, asset, live_page, plotly_script
from vitsearch.serve.downloads import Busy, Downloads
from vitsearch.serve.gate import Gate
from vitsearch.serve.library import Library, NotThere

MOST_TRIALS = 1 << 40


def make_app(folder: str | Path, *, host: str = "127.0.0.1", token: str | None = None) -> Gate:
    """An ASGI application that shows the studies under `folder`. `host` is the address it will be served at."""
    require("fastapi", extra="serve")
    from fastapi import FastAPI

    root = Path(folder)
    if not root.is_dir():
        raise VitsearchError(f"`DIR` must be a folder, but got {str(folder)!r}")
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_pages(app, root.resolve().name or "studies")
    _add_studies(app, Library(root), Downloads())
    return Gate(app, host=host, token=token)


def _add_pages(app: Any, title: str) -> None:
    from fastapi import Response

    kept = {"cache-control": "private, max-age=3600"}
    scripts = {name: (asset(name), "text/javascript") for name in (*SCRIPTS, LIVE_SCRIPT)}
    files = scripts | {STYLE: (asset(STYLE), "text/css"), "plotly.js": (plotly_script(), "text/javascript")}
    bodies = {name: (text.encode(), kind) for name, (text, kind) in files.items()}
    front = live_page(f"{title} · vitsearch").encode()

    async def index() -> Response:
        return Response(front, media_type="text/html")

    async def static(name: str) -> Response:
        if name not in bodies:
            return Response("There is no such file.", 404, media_type="text/plain")
        body, kind = bodies[name]
        return Response(body, media_type=kind, headers=kept if name == "plotly.js" else None)

    app.get("/")(index)
    app.get("/static/{name}")(static)


def _add_studies(app: Any, library: Library, downloads: Downloads) -> None:
    from fastapi import Query, Request, Response

    name_type = Annotated[str, Query(max_length=512)]
    number_type = Annotated[int, Query(ge=0, le=MOST_TRIALS)]

    def studies() -> dict[str, Any]:
        return {"studies": library.studies(), "formats": downloads.formats()}

    def study(name: str, start: int = 0, seen: str = "") -> Response:
        body = library.study(name, start, seen)
        return Response(status_code=204) if body is None else Response(body, media_type="application/json")

    def download(name: str, trial: int, form: str) -> Response:
        if form not in downloads.formats():
            raise NotThere("there is no such format")
        settings, geometry, seed = library.network(name, trial)
        label = f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name).strip('-.') or 'study'}-trial-{trial}"[-80:]
        file = downloads.make(label, form, settings, geometry, seed)
        named = {"content-disposition": f'attachment; filename="{file.name}"'}
        return Response(file.content, media_type=file.kind, headers=named)

    study.__annotations__ |= {"name": name_type, "start": number_type, "seen": Annotated[str, Query(max_length=64)]}
    download.__annotations__ |= {"name": name_type, "trial": number_type, "form": Annotated[str, Query(max_length=16)]}
    for path, function in (("/api/studies", studies), ("/api/study", study), ("/api/download", download)):
        app.get(path, response_model=None)(function)

    def said(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
        async def answer(request: Request, error: Exception) -> Response:
            return Response(str(error), status, media_type="text/plain")

        return answer

    for kind, status in ((NotThere, 404), (Busy, 503), (VitsearchError, 422)):
        app.exception_handler(kind)(said(status))
