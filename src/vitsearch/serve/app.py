"""The application: studies behind the gate."""

from __future__ import annotations

from pathlib import Path

from vitsearch.errors import VitsearchError, require
from vitsearch.serve.gate import Gate
from vitsearch.serve.library import Library


def make_app(folder: str | Path, *, host: str = "127.0.0.1", token: str | None = None) -> Gate:
    """An ASGI application that shows the studies under `folder`. `host` is the address it will be served at."""
    require("fastapi", extra="serve")
    from vitsearch.serve.routes import routed

    root = Path(folder)
    if not root.is_dir():
        raise VitsearchError(f"`DIR` must be a folder, but got {str(folder)!r}")
    return Gate(routed(Library(root), root.resolve().name or "studies"), host=host, token=token)
