"""Looking on while a search writes: many readers at once, and a browser that clicks through."""

from __future__ import annotations

import io
import json
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import torch
from safetensors.torch import load

from vitsearch.cost import Geometry
from vitsearch.export import export, untrained
from vitsearch.records import Journal, Trial, read_trials
from vitsearch.serve import make_app
from vitsearch.serve.run import AT_ONCE, bind
from vitsearch.spaces import cost_of, sample
from vitsearch.training.plan import TrainingPlan, write_plan
from vitsearch.training.recipe import RECIPES

WriteStudy = Callable[..., Path]
READERS = 200


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A real server in a thread."""
    import uvicorn

    bound = bind("127.0.0.1", 0)
    config = uvicorn.Config(make_app(folder), log_level="error", ws="none", limit_concurrency=AT_ONCE)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def more_trials(start: int, count: int) -> list[Trial]:
    settings = sample("autoformer-micro", count, seed=start)
    measured = [{"dss": float(number), "params": 1, "macs": cost_of(one).macs} for number, one in enumerate(settings)]
    return [
        Trial(number=start + index, settings=one, measured=measured[index], seconds=0.01)
        for index, one in enumerate(settings)
    ]


def test_many_readers_while_a_search_writes(write_study: WriteStudy, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "run", 100, wanted=500)
    stop = threading.Event()

    def write() -> None:
        with Journal(folder / "trials.jsonl") as journal:
            while not stop.is_set():
                journal.append(more_trials(len(journal.trials), 16))
                time.sleep(0.05)

    def read(address: str) -> list[int]:
        """Follow the study as the page does; the codes of all trials, put together from the parts."""
        codes: list[str] = []
        counts, seen = [], ""
        for _ in range(3):
            query = urlencode({"name": "run", "start": len(codes), "seen": seen})
            with urlopen(f"{address}/api/study?{query}", timeout=60) as answer:
                body = answer.read()
            if answer.status == 204:
                continue
            view = json.loads(body)
            trials, seen = view["trials"], view["version"]
            assert trials["start"] == len(codes) and view["state"] == "running"
            codes += trials["settings"]["num_heads"]["codes"]
            assert len(codes) == trials["count"] == view["done"]
            counts.append(len(codes))
        return counts

    writer = threading.Thread(target=write)
    with served(tmp_path) as address:
        writer.start()
        time.sleep(0.1)
        with ThreadPoolExecutor(READERS) as pool:
            found = list(pool.map(read, [address] * READERS))
        stop.set()
        writer.join()
    assert len(found) == READERS and all(counts == sorted(counts) for counts in found)
    trials, _ = read_trials(folder / "trials.jsonl")  # and the writer was not disturbed
    assert len(trials) > max(map(max, found)) - 16 and [trial.number for trial in trials] == list(range(len(trials)))


def test_a_network_to_take_home(write_study: WriteStudy, tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    write_study(tmp_path / "run")
    reader = TestClient(make_app(tmp_path), base_url="http://localhost")
    answer = reader.get("/api/download", params={"name": "run", "trial": 4, "form": "timm"})
    assert answer.status_code == 200, answer.text
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        names = {Path(name).name for name in archive.namelist()}
        config = json.loads(archive.read("run-trial-4/config.json"))
    trial = read_trials(tmp_path / "run" / "trials.jsonl")[0][4]
    assert names >= {"config.json", "model.safetensors"} and config["model_args"]["settings"] == trial.settings


def unpacked(answer: Any) -> dict[str, Any]:
    """The weights in what came, and what is said of them."""
    assert answer.status_code == 200, answer.text
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        files = {Path(name).name: archive.read(name) for name in archive.namelist()}
    return {"weights": load(files["model.safetensors"]), "about": json.loads(files["config.json"])["vitsearch"]}


def test_a_trained_network_comes_with_its_weights(tmp_path: Path) -> None:
    """And never with weights that lie elsewhere."""
    from starlette.testclient import TestClient

    settings, geometry = sample("autoformer-micro")[0], Geometry(image_size=32, classes=10)
    folder = tmp_path / "studies" / "evolved" / "trained"
    export(lambda: untrained(settings, geometry, seed=9), folder, "timm")
    plan = TrainingPlan(settings=settings, geometry=geometry, data="digits", recipe=RECIPES["quick"], seed=0)
    write_plan(folder, plan, [{"device": "cpu"}])
    (folder / "result.json").write_text('{"test_top1": 50.0, "seconds": 1.0}')
    (folder.parent / "study.json").write_text('{"kind": "evolve-space"}')
    reader = TestClient(make_app(tmp_path / "studies"), base_url="http://localhost")
    names = [one["name"] for one in reader.get("/api/studies").json()["studies"]]
    assert sorted(names) == ["evolved", "evolved/trained"]  # a study inside a study
    asked = {"name": "evolved/trained", "trial": 0, "form": "timm"}
    found = unpacked(reader.get("/api/download", params=asked))
    own = load((folder / "model.safetensors").read_bytes())
    assert found["about"]["seed"] == 9 and all(torch.equal(found["weights"][name], own[name]) for name in own)
    (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    again = TestClient(make_app(tmp_path / "studies"), base_url="http://localhost")
    found = unpacked(again.get("/api/download", params=asked))
    assert found["about"] == {"weights": "initial", "seed": 0}
    assert not all(torch.equal(found["weights"][name], own[name]) for name in own)


def test_clicking_through(browser: Any, write_study: WriteStudy, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "running", 0, wanted=64)
    write_study(tmp_path / "done", 20)
    evil = write_study(tmp_path / "<img src=x onerror=evil()>", 5)
    (evil / "trials.jsonl").write_text("broken\n")
    wrong: list[str] = []
    with served(tmp_path) as address, Journal(folder / "trials.jsonl") as journal:
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request",
            lambda asked: None if asked.url.startswith((address, "blob:", "data:")) else wrong.append(asked.url),
        )
        page.goto(address)
        states = {row: page.locator(f'tr[data-study="{row}"] .pill') for row in ("running", "done")}
        assert states["running"].inner_text() == "running" and states["done"].inner_text() == "finished"
        assert page.locator(".pill.failed").count() == 1 and page.locator("img").count() == 0
        assert "0 of 64 trials" in page.locator('tr[data-study="running"]').inner_text()
        page.click('tr[data-study="running"] a')
        page.wait_for_selector("#asked-running")
        journal.append(more_trials(0, 32))
        page.wait_for_selector("#found-running .scatterlayer path.point")
        assert page.locator("a.button").all_inner_texts()[:2] == ["JSON", "timm"]
        assert "Trials" in page.locator(".bar nav a").all_inner_texts()
        page.locator("#trials-running tbody tr").nth(3).click()
        chosen = int(page.locator("#architecture-running h2").inner_text().split()[-1])
        with page.expect_download() as download:
            page.click("a.button:has-text('JSON')")
        assert json.loads(Path(download.value.path()).read_text()) == journal.trials[chosen].settings
        journal.append(more_trials(32, 32))
        page.wait_for_selector("text=64 of 64 trials", timeout=10_000)  # without being asked to
        assert page.locator("#architecture-running h2").inner_text().endswith(f" {chosen}")
        assert "of 64" in page.locator("#trials-running .pager").inner_text()
        page.click("text=all studies")
        page.wait_for_selector("text=about 0.0 s left")
        for name in ("running", "done"):
            page.check(f'tr[data-study="{name}"] input')
        page.click("button.primary")
        page.wait_for_selector("#fronts .scatterlayer path.point")
        assert page.locator("#side-by-side th").all_inner_texts()[1:3] == ["running", "done"]
        page.goto(f"{address}/#/study/nowhere")
        page.wait_for_selector("text=there is no such study")
        page.context.close()
    assert not wrong


def test_serve_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn

    from vitsearch.serve import serve_studies

    told: list[str] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: sockets[0].close())
    serve_studies(tmp_path, port=0, said=told.append)
    serve_studies(tmp_path, host="0.0.0.0", port=0, said=told.append)
    assert told[0].startswith("http://127.0.0.1:") and "token" not in told[0] and "?token=" in told[1]
