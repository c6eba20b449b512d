"""Shared fixtures. Workers use one thread each, so that two of them fill two cores and no more."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from shutil import which
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background; tests of Ctrl-C need it
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import pytest

from vitsearch import registry as registry_module
from vitsearch.architecture import Settings
from vitsearch.cli import main
from vitsearch.cost import Geometry
from vitsearch.data import DATASETS
from vitsearch.proxies import PROXIES
from vitsearch.records import Trial
from vitsearch.search import STRATEGIES, Domain, History, parse_strategy
from vitsearch.spaces import SPACES, cost_of, sample
from vitsearch.training.recipe import RECIPES
from vitsearch.training.subnets import SUBNET_SCHEMES

hypothesis.settings.register_profile("vitsearch", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("vitsearch")


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one JSON value on stdout; fails when there is anything beside it."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    def error(self) -> str:
        """The one error line of bad input."""
        assert self.code == 2, (self.code, self.err)
        lines = self.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("vitsearch: error: "), self.err
        assert self.out == ""
        return lines[0]


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a test registers is gone after it."""
    all_of_them = (SPACES, PROXIES, STRATEGIES, DATASETS, RECIPES, SUBNET_SCHEMES)
    kept = [(registry, dict(registry._entries)) for registry in all_of_them if len(registry)]
    plugins = dict(registry_module._loaded_plugins)
    yield
    for registry, entries in kept:
        registry._entries = entries
    registry_module._loaded_plugins.clear()
    registry_module._loaded_plugins.update(plugins)
    logging.getLogger("vitsearch").setLevel(logging.NOTSET)  # --quiet was for one command


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command line in this process."""

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def datasets() -> Path:
    """The folder of optional datasets."""
    folder = os.environ.get("VITSEARCH_DATA")
    if not folder:
        pytest.skip("VITSEARCH_DATA is not set")
    return Path(folder)


@pytest.fixture(scope="session")
def published(datasets: Path) -> list[dict[str, Any]]:
    """Published networks with their exact costs."""
    found: list[dict[str, Any]] = json.loads((datasets / "published.json").read_text())
    return found


@pytest.fixture(scope="session")
def write_study() -> Callable[..., Path]:
    """Write a search as its folder, with made-up scores: two objectives, every tenth trial failed."""

    def write(folder: Path, trials: int = 30, space: str = "autoformer-micro", **changes: Any) -> Path:
        folder.mkdir(parents=True)
        geometry = {"image_size": 32, "classes": 10, "channels": 3}
        objectives = [{"name": "dss", "direction": "max"}, {"name": "macs", "direction": "min"}]
        study: dict[str, Any] = {"format": 1, "kind": "search", "space": space, "fixed": SPACES[space].fixed()}
        study |= {"strategy": "random", "objectives": objectives, "limits": {}, "geometry": geometry, "seed": 3}
        study |= {"data": "noise", "batch_size": 8, "weights": "fresh", "chunk": 16, "at_once": None}
        study |= {"wanted": trials, "environments": [{"vitsearch": "0.1.0", "device": "cpu", "plugins": []}]}
        (folder / "study.json").write_text(json.dumps(study | changes))
        with open(folder / "trials.jsonl", "w") as file:
            for trial in made_up_trials(space, trials):
                file.write(trial.to_line())
        return folder

    return write


def made_up_trials(space: str, count: int, start: int = 0) -> Iterator[Trial]:
    random = Random(f"{space}/{start}")
    drawn = sample(space, min(count, 200), seed=start + 1)
    for number in range(start, start + count):
        settings = drawn[number % len(drawn)]
        cost = cost_of(settings, Geometry(image_size=32, classes=10))
        measured = {"dss": cost.macs * random.uniform(0.5, 1.5), "params": cost.params, "macs": cost.macs}
        error = "no value" if number % 10 == 9 else None
        yield Trial(number=number, settings=settings, measured={} if error else measured, error=error, seconds=0.1)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium, headless."""
    found = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := which(name))), None)
    if found is None:
        pytest.skip("no Chromium is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def imagine() -> Callable[..., list[Trial]]:
    """Run a strategy as a study does, with a function in place of networks; a trial fails where it gives None."""

    def run(
        strategy: str,
        domain: Domain,
        measure: Callable[[Settings], dict[str, float] | None],
        *,
        trials: int,
        chunk: int = 16,
        seed: int = 0,
    ) -> list[Trial]:
        found: list[Trial] = []
        while len(found) < trials:
            count = min(chunk - len(found) % chunk, trials - len(found))
            proposals = parse_strategy(strategy).ask(domain, History(tuple(found), len(found)), seed, count)
            assert len(proposals) <= count
            if not proposals:
                break
            for settings in proposals:
                measured = measure(settings)
                error = "no value" if measured is None else None
                trial = Trial(number=len(found), settings=settings, measured=measured or {}, error=error, seconds=0.0)
                found.append(trial)
        return found

    return run


@pytest.fixture(scope="session")
def interpreted() -> Callable[..., Any]:
    """Runs a script in which Triton's interpreter takes the place of a GPU, and gives the JSON value it prints last."""

    def run(script: str, *arguments: object) -> Any:
        command = [sys.executable, "-c", script, *map(json.dumps, arguments)]
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        if "only 0-dimensional arrays can be converted" in done.stderr:
            pytest.skip("the interpreter of this Triton cannot loop with this NumPy (3.6 with 2.4)")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
