"""Bind, say where, and serve until interrupted."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitsearch.errors import VitsearchError, require
from vitsearch.serve.app import make_app
from vitsearch.serve.gate import is_loopback

TOKEN, SHORTEST_TOKEN = "VITSEARCH_TOKEN", 16
AT_ONCE = 512  # requests; more are told to come back


def serve_studies(
    folder: str | Path, *, host: str = "127.0.0.1", port: int = 8765, said: Callable[[str], None] = lambda address: None
) -> None:
    """Serve the studies under `folder`; `said` is told the address. Beyond loopback it has a token in it."""
    uvicorn: Any = require("uvicorn", extra="serve")
    token = choose_token(host)
    app = make_app(folder, host=host, token=token)
    bound = bind(host, port)
    shown = f"[{host}]" if ":" in host else host
    said(f"http://{shown}:{bound.getsockname()[1]}/" + (f"?token={token}" if token else ""))
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=AT_ONCE,
        timeout_keep_alive=10,
        h11_max_incomplete_event_size=16 << 10,
        http="h11",
    )
    uvicorn.Server(config).run(sockets=[bound])


def choose_token(host: str) -> str | None:
    """The one in the environment, one made up beyond loopback, or none."""
    given = os.environ.get(TOKEN)
    if given is None:
        return None if is_loopback(host) else secrets.token_urlsafe(24)
    if len(given) < SHORTEST_TOKEN or not given.isascii() or not given.replace("-", "").replace("_", "").isalnum():
        raise VitsearchError(f"`{TOKEN}` must be at least {SHORTEST_TOKEN} letters, digits, - and _")
    return given


def bind(host: str, port: int) -> socket.socket:
    if not host:  # sockets take it for all addresses, which the address that is shown would not say
        raise VitsearchError("`host` must be an address or a name, but got ''; 0.0.0.0 listens at all addresses")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=AT_ONCE)
    except (OSError, OverflowError) as error:
        raise VitsearchError(f"`host` and `port` must be free, but got {host}:{port}: {error}") from None
