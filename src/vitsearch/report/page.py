"""The one place where pages are made: a shell, style and scripts of ours, plotly.js, and data.

A page holds everything it needs and may run nothing else: its policy names its own scripts by their hashes. Data goes
in as JSON that cannot end its element, gzipped where there is much of it, and the scripts put it on the page as text,
never as HTML.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from vitsearch import __version__
from vitsearch.errors import VitsearchError
from vitsearch.records import write_atomically

SCRIPTS = (
    *("page.js", "trials.js", "drawing.js", "charts.js"),
    *("sections.js", "space.js", "table.js", "architecture.js"),
    *("study.js", "compare.js"),
)
STATIC_SCRIPT, LIVE_SCRIPT = "static.js", "live.js"
STYLE = "style.css"
PLAIN = 1 << 20  # characters of data that go in as they are
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src 'self' data: blob:; connect-src {connect}; "
    "style-src 'self' 'unsafe-inline'; script-src {scripts}"  # plotly.js writes style attributes
)


def check_page(name: str, path: Path) -> None:
    """That a page can be written there, over nothing but another page; `name` is of the argument."""
    if path.is_dir() or not path.parent.is_dir():
        raise VitsearchError(f"`{name}` must be a file in a folder that exists, but got {str(path)!r}")
    if path.exists() and path.suffix.lower() not in (".html", ".htm"):
        raise VitsearchError(f"`{name}` must be a new file, or a page that ends in .html, but got {str(path)!r}")


@cache
def asset(name: str) -> str:
    return (files("vitsearch.report") / "assets" / name).read_text("utf-8")


@cache
def plotly_script() -> str:
    return (files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8")


def as_json(data: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can look like a tag."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "replace").decode()


def write_page(path: Path, title: str, data: Mapping[str, Any]) -> None:
    write_atomically(path, static_page(title, data))


def static_page(title: str, data: Mapping[str, Any]) -> str:
    """All in one file."""
    scripts = [plotly_script(), *(asset(name) for name in (*SCRIPTS, STATIC_SCRIPT))]
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = POLICY.format(connect="data: blob:", scripts=hashes)
    return _shell(
        title,
        policy=f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        style=f"<style>{asset(STYLE)}</style>",
        data=_element(as_json({"version": __version__, **data})),
        scripts="".join(f"<script>{script}</script>" for script in scripts),
    )


def _element(text: str) -> str:
    if len(text) <= PLAIN:
        return f'<script type="application/json" id="data">{text}</script>'
    packed = base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()
    return f'<script type="text/plain" id="data" data-packed>{packed}</script>'


def live_page(title: str) -> str:
    """The same shell, with style and scripts to be fetched; the policy comes as a header."""
    names = ("plotly.js", *SCRIPTS, LIVE_SCRIPT)
    return _shell(
        title,
        policy="",
        style=f'<link rel="stylesheet" href="/static/{STYLE}">',
        data=f'<script type="application/json" id="data">{as_json({"version": __version__})}</script>',
        scripts="".join(f'<script src="/static/{name}"></script>' for name in names),
    )


def _shell(title: str, **parts: str) -> str:
    return Template(asset("page.html")).substitute(title=escape(title), **parts)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
