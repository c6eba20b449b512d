"""Who may ask, and for what: every request passes here before anything else sees it."""

from __future__ import annotations

import ipaddress
from hmac import compare_digest
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from vitsearch.report.page import POLICY

COOKIE = "vitsearch_token"
LONGEST_PATH, LONGEST_QUERY = 512, 2048
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
HEADERS = {
    "content-security-policy": POLICY.format(connect="'self'", scripts="'self'") + "; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Gate:
    """An ASGI application around another. Only reading, only from hosts that are meant, only with the token.

    A page elsewhere that makes its own name point to this machine still sends that name as Host, and is refused.
    """

    def __init__(self, app: Any, *, host: str, token: str | None) -> None:
        self.app, self.host, self.token = app, host, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in own]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self.refused(scope, headers)
        if refused is not None:
            return await _answer(guarded, *refused)
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if self.token is not None and not self._knows(headers):
            if not any(compare_digest(given.encode(), self.token.encode()) for given in query.pop("token", [])):
                return await _answer(
                    guarded, 401, "A token is needed: open the address that `vitsearch serve` printed."
                )
            return await _answer(guarded, 303, "", self._remember(scope["path"], query))
        await self.app(scope, receive, guarded)

    def refused(self, scope: Any, headers: dict[str, str]) -> tuple[int, str] | None:
        if not self.is_meant(headers.get("host", "")):
            return 421, "This is not a host that is served here."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "Only reading is possible here."
        if len(scope.get("raw_path") or scope["path"]) > LONGEST_PATH or len(scope["query_string"]) > LONGEST_QUERY:
            return 414, "That address is too long."
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 413, "Nothing can be sent here."
        return None

    def is_meant(self, text: str) -> bool:
        """Loopback names; beyond loopback also the name that is served, and plain addresses, which no one else owns."""
        host, colon, port = text.rpartition(":")
        name = (host if colon and port.isdigit() else text).lower()
        if name in LOOPBACK:
            return True
        if is_loopback(self.host):
            return name == self.host.lower()
        try:
            return bool(ipaddress.ip_address(name.strip("[]")))
        except ValueError:
            return name == self.host.lower()

    def _knows(self, headers: dict[str, str]) -> bool:
        assert self.token is not None
        given = [headers.get("authorization", "").removeprefix("Bearer ")]
        for cookie in headers.get("cookie", "").split(";"):
            name, _, value = cookie.strip().partition("=")
            given += [value] if name == COOKIE else []
        return any(compare_digest(one.encode(), self.token.encode()) for one in given)

    def _remember(self, path: str, query: dict[str, list[str]]) -> dict[str, str]:
        """Keep the token in a cookie, and take it out of the address."""
        rest = urlencode(query, doseq=True)
        safe = "/" + path.lstrip("/\\")  # //other.example is another host
        return {
            "location": quote(safe) + (f"?{rest}" if rest else ""),
            "set-cookie": f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Strict",
        }


async def _answer(send: Any, status: int, text: str, headers: dict[str, str] | None = None) -> None:
    body = text.encode()
    shown = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), **(headers or {})}
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in shown.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
