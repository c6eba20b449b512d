"""Strangers at the door: paths, names, hosts, tokens, sizes. Nothing outside the folder is ever read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from vitsearch.errors import VitsearchError
from vitsearch.serve import make_app, serve_studies
from vitsearch.serve.run import bind, choose_token

WriteStudy = Callable[..., Path]
HOME = "http://127.0.0.1:8765"
TOKEN = "a-token-that-is-long-enough"
EVIL = "<script>alert(1)</script>"


def client(folder: Path, host: str = "127.0.0.1", token: str | None = None, home: str = HOME) -> TestClient:
    return TestClient(make_app(folder, host=host, token=token), base_url=home, follow_redirects=False)


@pytest.fixture(scope="module")
def folder(write_study: WriteStudy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    write_study(root / "secret" / "outside", data="SECRET")
    write_study(root / "dir" / "run")
    write_study(root / "dir" / "deep" / "er" / EVIL.replace("/", ""))
    (root / "dir" / "link").symlink_to(root / "secret" / "outside")
    (root / "dir" / "file").mkdir()
    (root / "dir" / "file" / "study.json").symlink_to(root / "secret" / "outside" / "study.json")
    (root / "dir" / "run" / "other.jsonl").symlink_to(root / "secret" / "outside" / "study.json")
    write_study(root / "dir" / ".hidden" / "run", data="SECRET")
    return root / "dir"


def test_studies_are_found_and_nothing_else(folder: Path) -> None:
    found = client(folder).get("/api/studies").json()
    assert {one["name"] for one in found["studies"]} == {"run", f"deep/er/{EVIL.replace('/', '')}"}
    assert set(found["formats"]) == {"json", "timm", "torch", "onnx"}
    assert client(folder).get("/api/study", params={"name": "run"}).json()["trials"]["count"] == 30


OUTSIDE = [
    "../secret/outside",
    "run/../../secret/outside",
    "/etc",
    "link",
    "file",
    ".hidden/run",
    ".",
    "..",
    "",
    "run/",
]
OUTSIDE += ["deep", "run\0", "../" * 40 + "etc", "%2e%2e/secret/outside", "..\\secret\\outside", "file:///etc"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_path_leads_out(folder: Path, name: str) -> None:
    reader = client(folder)
    for path, more in (("/api/study", {}), ("/api/download", {"trial": 0, "form": "json"})):
        answer = reader.get(path, params={"name": name, **more})
        assert answer.status_code == 404 and "SECRET" not in answer.text and "root:" not in answer.text


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/page.py", "/static/..%2fpage.py", "//etc/passwd"]
)
def test_files_are_those_that_have_a_name(folder: Path, path: str) -> None:
    assert client(folder).get(path).status_code == 404
    assert client(folder).get("/static/style.css").status_code == 200
    for unused in ("/docs", "/openapi.json", "/redoc", "/api", "/api/studies/x"):
        assert client(folder).get(unused).status_code == 404


def test_links_inside_a_study_are_not_read(folder: Path) -> None:
    text = client(folder).get("/api/study", params={"name": "run"}).text
    assert "SECRET" not in text and json.loads(text)["rows"] == {}


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil", "", "@"]
)
def test_other_hosts_are_refused(folder: Path, host: str) -> None:
    answer = client(folder).get("/api/studies", headers={"host": host})
    assert answer.status_code == 421 and "studies" not in answer.text


def test_our_own_hosts_are_not(folder: Path) -> None:
    for host in ("127.0.0.1", "localhost", "localhost:1234", "[::1]:8765", "LOCALHOST"):
        assert client(folder).get("/api/studies", headers={"host": host}).status_code == 200
    assert client(folder).get("/api/studies", headers={"host": "192.168.0.7"}).status_code == 421
    open_to_all = client(folder, host="0.0.0.0", token=TOKEN)
    signed = {"authorization": f"Bearer {TOKEN}"}
    assert open_to_all.get("/api/studies", headers={"host": "192.168.0.7:80", **signed}).status_code == 200
    assert open_to_all.get("/api/studies", headers={"host": "evil.example", **signed}).status_code == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_reading(folder: Path, method: str) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    assert client(folder).request(method, "/api/study", params={"name": "run"}).status_code == 405
    client(folder).get("/api/download", params={"name": "run", "trial": 0, "form": "timm"})
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before


def test_too_much_is_refused(folder: Path) -> None:
    reader = client(folder)
    assert reader.get("/api/study", params={"name": "x" * 5000}).status_code == 414
    assert reader.get("/" + "x" * 5000).status_code == 414
    assert reader.get("/api/study", params={"name": "x" * 600}).status_code == 422
    assert reader.request("GET", "/api/studies", content=b"x" * 100_000).status_code == 413
    for start in ("-1", "1e9", "9" * 40, "x"):
        assert reader.get("/api/study", params={"name": "run", "start": start}).status_code == 422
    answers = [reader.get("/api/download", params={"name": "run", "trial": t, "form": "json"}) for t in (30, 10**12)]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert reader.get("/api/download", params={"name": "run", "trial": 0, "form": "../timm"}).status_code == 404


def test_what_users_write_is_never_a_page(folder: Path) -> None:
    reader = client(folder)
    name = f"deep/er/{EVIL.replace('/', '')}"
    for path, more in (("/api/studies", {}), ("/api/study", {"name": name}), ("/api/study", {"name": EVIL})):
        answer = reader.get(path, params=more)
        assert answer.headers["content-type"].split(";")[0] in ("application/json", "text/plain")
        assert answer.headers["x-content-type-options"] == "nosniff"
    saved = reader.get("/api/download", params={"name": name, "trial": 1, "form": "json"})
    assert saved.headers["content-disposition"] == 'attachment; filename="deep-er-script-alert-1-script-trial-1.json"'
    assert saved.json()["space"] == "autoformer-micro"


def test_every_answer_has_its_policy(folder: Path) -> None:
    for path in ("/", "/api/studies", "/nothing", "/static/live.js"):
        headers = client(folder).get(path).headers
        scripts = headers["content-security-policy"].split("script-src ")[1].split(";")[0]
        assert (
            scripts == "'self'" and headers["x-frame-options"] == "DENY" and headers["referrer-policy"] == "no-referrer"
        )
        assert "access-control-allow-origin" not in headers
    assert "<script src=" in client(folder).get("/").text and "onload" not in client(folder).get("/").text


def test_the_token(folder: Path) -> None:
    reader = client(folder, host="0.0.0.0", token=TOKEN, home="http://10.0.0.5:8765")
    for given in ({}, {"token": "wrong"}, {"token": TOKEN[:-1]}, {"token": ""}):
        assert reader.get("/api/studies", params=given).status_code == 401
    assert (
        reader.get("/", headers={"authorization": "Bearer wrong", "cookie": "vitsearch_token=x; ="}).status_code == 401
    )
    assert reader.get("/static/page.js").status_code == 401
    entered = reader.get("/", params={"token": TOKEN, "a": "b"})
    assert entered.status_code == 303 and entered.headers["location"] == "/?a=b"
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert reader.get("/api/studies").status_code == 200  # the cookie is kept
    gate = make_app(folder, host="0.0.0.0", token=TOKEN)
    elsewhere = {path: gate._remember(path, {})["location"] for path in ("//evil.example", "/\\evil", "/a\r\nb: c")}
    assert list(elsewhere.values()) == ["/evil.example", "/evil", "/a%0D%0Ab%3A%20c"]


def test_a_token_wherever_others_can_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VITSEARCH_TOKEN", raising=False)
    assert choose_token("127.0.0.1") is None and choose_token("localhost") is None and choose_token("::1") is None
    first, second = choose_token("0.0.0.0"), choose_token("my-machine")
    assert first and second and first != second and len(first) >= 32
    monkeypatch.setenv("VITSEARCH_TOKEN", TOKEN)
    assert choose_token("127.0.0.1") == choose_token("0.0.0.0") == TOKEN
    monkeypatch.setenv("VITSEARCH_TOKEN", "short")
    with pytest.raises(VitsearchError, match="at least 16"):
        choose_token("0.0.0.0")


def test_bad_input(cli: Any, tmp_path: Path) -> None:
    assert "`DIR` must be a folder" in cli("serve", tmp_path / "no").error()
    assert "--port" in cli("serve", tmp_path, "--port", 70000).error()
    assert "`host` must be an address or a name, but got ''" in cli("serve", tmp_path, "--host", "").error()
    with bind("127.0.0.1", 0) as taken, pytest.raises(VitsearchError, match="must be free"):
        serve_studies(tmp_path, port=taken.getsockname()[1])
