"""What can be asked for: one page, its scripts, and what they ask for. All of it only reads.

This module needs fastapi; `make_app` imports it when it is known to be there.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response

from vitsearch.errors import VitsearchError
from vitsearch.report.page import LIVE_SCRIPT, SCRIPTS, STYLE, asset, live_page, plotly_script
from vitsearch.serve.downloads import Busy, Downloads
from vitsearch.serve.library import Library, NotThere

MOST_TRIALS = 1 << 40
Name = Annotated[str, Query(max_length=512)]
Number = Annotated[int, Query(ge=0, le=MOST_TRIALS)]
Word = Annotated[str, Query(max_length=64)]
KEPT = {"cache-control": "private, max-age=3600"}


def routed(library: Library, title: str) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_page(app, title)
    add_studies(app, library, Downloads())
    for kind, status in ((NotThere, 404), (Busy, 503), (VitsearchError, 422)):
        app.exception_handler(kind)(answer_with(status))
    return app


def add_page(app: FastAPI, title: str) -> None:
    front = live_page(f"{title} · vitsearch").encode()
    bodies = {name: (asset(name).encode(), "text/javascript") for name in (*SCRIPTS, LIVE_SCRIPT)}
    bodies[STYLE] = asset(STYLE).encode(), "text/css"
    bodies["plotly.js"] = plotly_script().encode(), "text/javascript"

    @app.get("/")
    async def index() -> Response:
        return Response(front, media_type="text/html")

    @app.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in bodies:
            return Response("there is no such file", 404, media_type="text/plain")
        body, kind = bodies[name]
        return Response(body, media_type=kind, headers=KEPT if name == "plotly.js" else None)


def add_studies(app: FastAPI, library: Library, downloads: Downloads) -> None:
    """Plain functions, which run in threads: they read files."""

    @app.get("/api/studies")
    def studies() -> dict[str, Any]:
        return {"studies": library.studies(), "formats": downloads.formats}

    @app.get("/api/study")
    def study(name: Name, start: Number = 0, seen: Word = "") -> Response:
        body = library.study(name, start, seen)
        return Response(status_code=204) if body is None else Response(body, media_type="application/json")

    @app.get("/api/download")
    def download(name: Name, trial: Number, form: Word) -> Response:
        if form not in downloads.formats:
            raise NotThere("there is no such format")
        wanted = library.network(name, trial)
        label = f"{re.sub('[^A-Za-z0-9.-]+', '-', name).strip('-.') or 'study'}-trial-{trial}"[-80:]
        file = downloads.make(label, form, wanted)
        named = {"content-disposition": f'attachment; filename="{file.name}"'}
        return Response(file.content, media_type=file.kind, headers=named)


def answer_with(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        return Response(str(error), status, media_type="text/plain")

    return answer
