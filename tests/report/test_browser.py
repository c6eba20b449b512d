"""Pages in a real Chromium: what is drawn, what a click does, and what does not happen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
from PIL import Image

from vitsearch.architecture import Absent, Architecture, Attention, Merge, Patch, Stage, WindowAttention
from vitsearch.cost import Geometry
from vitsearch.ranking import pareto_front
from vitsearch.records import Trial
from vitsearch.report import page as page_module
from vitsearch.report.columns import Columns, parts_of
from vitsearch.report.page import write_page
from vitsearch.report.studies import write_report
from vitsearch.spaces import SPACES, sample

WriteStudy = Callable[..., Path]
EVIL = '<img src=x onerror="window.evil=1"><script>window.evil=1</script>'


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page; an error in its scripts, or a request to anywhere, fails the test."""
    contexts, wrong = [], []

    def open_page(path: Path, **options: Any) -> Any:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if line.type in ("error", "warning") else None)
        page.on("request", lambda asked: wrong.append(asked.url) if asked.url.startswith("http") else None)
        page.metrics = context.new_cdp_session(page)
        page.metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong


@pytest.fixture(scope="module")
def blank(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A page with nothing on it but the scripts."""
    path = tmp_path_factory.mktemp("blank") / "page.html"
    write_page(path, "blank", {"title": "blank", "studies": [], "figures": []})
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    return page


def seconds_of(page: Any) -> float:
    """What the page has computed so far, whatever else the machine does."""
    metrics = page.metrics.send("Performance.getMetrics")["metrics"]
    found: float = next(one["value"] for one in metrics if one["name"] == "TaskDuration")
    assert found > 0.1
    return found


def is_painted(picture: bytes) -> bool:
    """More than a few colours: something is drawn."""
    colours = Image.open(BytesIO(picture)).convert("RGB").getcolors(1 << 24)
    return colours is not None and len(colours) > 60


def test_front_drawing_and_table(opened: Callable[..., Any], write_study: WriteStudy, tmp_path: Path) -> None:
    """With ten thousand trials, in five seconds of the browser's time."""
    folder = write_study(tmp_path / "run", 10_000)
    (view,) = write_report([folder], tmp_path / "page.html")
    page = opened(tmp_path / "page.html")
    page.wait_for_selector("#found-run .scatterlayer path.point")
    assert seconds_of(page) < 5
    front = page.locator("#found-run .scatterlayer .trace").nth(1).locator("path.point")
    assert front.count() == len(view["front"])  # the axes are the two objectives
    drawing = page.locator("#architecture-run .drawing svg")
    depth = json.loads((folder / "trials.jsonl").read_text().splitlines()[view["best"]["trial"]])["settings"]["depth"]
    assert drawing.locator(".hit").count() == depth + 1
    assert page.locator("#trials-run tbody tr").count() == 15
    for part in ("#found-run", "#architecture-run", "#trials-run"):
        assert is_painted(page.locator(part).screenshot()), part
    assert page.locator(".modebar-btn[data-title*=hare]").count() == 0  # nothing is sent to plotly's servers
    front.first.hover(force=True)
    page.wait_for_selector("#card:not([hidden]) svg")
    front.first.click(force=True)
    assert page.locator("#architecture-run h2").inner_text().startswith(("Trial ", "The best"))
    page.fill("#trials-run input[type=search]", "depth 3 params>100k")
    assert all("depth 3" in row for row in page.locator("#trials-run tbody tr").all_inner_texts())
    assert " of 10,000" not in page.locator("#trials-run .pager").inner_text()
    page.fill("#trials-run input[type=search]", "trial=19")
    page.locator("#trials-run tbody tr").first.click()
    assert page.locator("#architecture-run h2").inner_text() == "Trial 19"
    assert "no value" in page.locator("#architecture-run").inner_text()  # it failed, and says why


def test_large_studies_of_large_spaces_stay_small(
    opened: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks that are all different; a page of 10,000 has to stay below 6.5 MB, so one of 2,500 has a quarter."""
    space = "vitas"
    study = {"format": 1, "kind": "search", "space": space, "fixed": SPACES[space].fixed(), "limits": {}, "seed": 0}
    study |= {"objectives": [{"name": "dss", "direction": "max"}], "environments": [], "wanted": 2500}
    (tmp_path / "study.json").write_text(json.dumps(study))
    with open(tmp_path / "trials.jsonl", "w") as file:
        for number, one in enumerate(sample(space, 2500, seed=1)):
            measured = {"dss": number / 7, "params": number * 9001, "macs": number * 900_001}
            file.write(Trial(number=number, settings=one, measured=measured, seconds=0.1).to_line())
    monkeypatch.setattr(page_module, "PLAIN", 1000)
    write_report([tmp_path], tmp_path / "page.html")
    empty = len(page_module.static_page("", {"studies": []}))
    assert (tmp_path / "page.html").stat().st_size - empty < (6_500_000 - empty) / 4 * 1.3  # tables of parts come first
    page = opened(tmp_path / "page.html")
    assert page.evaluate("vitsearch.data().then((data) => data.studies[0].trials.count)") == 2500
    own = json.loads((tmp_path / "trials.jsonl").read_text().splitlines()[2499])["settings"]
    script = """async () => { const trials = new vitsearch.Trials([]);
      trials.add((await vitsearch.data()).studies[0].trials); return trials.settings(2499); }"""
    assert page.evaluate(script) == own


def test_phone_dark_and_print(opened: Callable[..., Any], write_study: WriteStudy, tmp_path: Path) -> None:
    write_report([write_study(tmp_path / "run", 20)], tmp_path / "page.html")
    options = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
    dark = opened(tmp_path / "page.html", color_scheme="dark", **options)
    assert dark.evaluate("document.documentElement.scrollWidth") <= 390
    red, green, blue = dark.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert max(red, green, blue) < 60
    dark.emulate_media(media="print", color_scheme="dark")
    dark.wait_for_selector("#space-run .chart:last-child .main-svg")
    assert dark.evaluate("[...vitsearch.allCharts].every((chart) => chart.drawn)")
    assert dark.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not dark.locator("button").first.is_visible()


def write_discovery(folder: Path) -> Path:
    folder.mkdir()
    plan = {"format": 1, "kind": "discover", "tables": ["a.json"], "evolution": {"evaluations": 12}, "folds": 2}
    (folder / "study.json").write_text(json.dumps(plan | {"environments": []}))
    with open(folder / "trials.jsonl", "w") as file:
        for number in range(12):
            measured = {"joint": number % 5 / 5, "size": 3 + number % 4}
            formula = {"formula": f"abs(qkv.grad) + {EVIL}{number}"}
            file.write(Trial(number=number, settings=formula, measured=measured, seconds=0.1).to_line())
    row = {"score": EVIL, "kendall": 0.5, "kendall_low": None, "kendall_high": None, "above_best_size": None}
    found = {"formula": f"exp({EVIL})", "joint": 0.8, "fold_formulas": [EVIL], "warnings": [EVIL]}
    found["rows"] = [row | {"dataset": name} for name in (EVIL, "joint")]
    (folder / "found.json").write_text(json.dumps(found))
    return folder


def test_formulas_spaces_and_slots(
    opened: Callable[..., Any], write_study: WriteStudy, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    """A discovery, the evolution of a space, and a space with empty slots, side by side and on a phone."""
    options = ["--objective", "macs", "--samples", 2, "--iterations", 1, "--image-size", 32, "--device", "cpu"]
    assert cli("evolve-space", "s3-initial", *options, "--out", tmp_path / "moved", "-q").code == 0
    slots = write_study(tmp_path / "slots", 30, "vitas-micro")
    write_report([write_discovery(tmp_path / "formulas"), tmp_path / "moved", slots], tmp_path / "page.html")
    page = opened(tmp_path / "page.html", viewport={"width": 390, "height": 844})
    page.evaluate("async () => { for (const chart of vitsearch.allCharts) await chart.draw(); }")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("window.evil") is None and page.locator("img").count() == 0
    assert page.locator("#finding-0-formulas pre").inner_text() == f"exp({EVIL})"
    assert page.locator("#finding-1-formulas tbody tr").count() == 1
    assert page.locator("#architecture-formulas pre").inner_text() == f"abs(qkv.grad) + {EVIL}4"
    assert page.locator("#finding-1-moved tbody tr").count() == 20
    assert page.locator("#architecture-moved .drawing svg .hit").count() > 4
    page.locator("#trials-moved tbody tr").nth(3).click()
    number = int(page.locator("#architecture-moved h2").inner_text().split()[-1])
    own = json.loads((tmp_path / "moved" / "trials.jsonl").read_text().splitlines()[number])["settings"]
    found = page.evaluate(
        "(number) => { const data = JSON.parse(document.getElementById('data').textContent).studies[1];"
        "const trials = new vitsearch.Trials([]); trials.add(data.trials); return trials.settings(number); }",
        number,
    )
    assert found == own
    bars = page.locator("#space-slots .chart").nth(2).locator(".xtick text").all_text_contents()
    assert bars == ["0", "2", "4"]
    assert page.locator("#space-moved .chart").nth(2).locator(".xtick text").all_text_contents()[0] == "7"
    page.fill("#trials-slots input[type=search]", "–")
    assert page.locator("#trials-slots tbody tr").count() > 0  # networks with an empty slot
    assert page.locator("#fronts .legendtext").all_text_contents() == ["moved", "slots"]  # formulas have no MACs


def test_what_users_write_stays_text(opened: Callable[..., Any], write_study: WriteStudy, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "a<b>&'", 12, data=EVIL, strategy=EVIL, foreign={EVIL: EVIL})
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    for line in lines:
        line["settings"][EVIL] = EVIL
        line["error"] = EVIL if line["error"] else None
        line["measured"] |= {EVIL: 1.5} if line["measured"] else {}
    (folder / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "other.jsonl").write_text(json.dumps({EVIL: EVIL}) + "\n")
    write_report([folder, write_study(tmp_path / "other")], tmp_path / "page.html")
    page = opened(tmp_path / "page.html")
    page.evaluate("async () => { for (const chart of vitsearch.allCharts) await chart.draw(); }")
    page.locator("article select").nth(1).select_option(EVIL)
    assert page.evaluate("window.evil") is None
    assert page.locator("img").count() == 0 and EVIL in page.locator("main").inner_text()


def test_every_kind_of_block_is_drawn(blank: Any) -> None:
    """A network that no space here has: windows, shifted windows, absent blocks, merging."""
    window = {"heads": 2, "head_dim": 8, "hidden": 32, "window": 4}
    blocks = (WindowAttention(**window), WindowAttention(**window, shifted=True), Absent())
    first = Stage(entry=Patch(size=4, stride=4), width=16, blocks=blocks)
    second = Stage(entry=Merge(), width=32, blocks=(Attention(heads=4, head_dim=8, hidden=64),))
    network = Architecture(stages=(first, second), class_token=False, position="none")
    parts = [value for _, value in parts_of(network, Geometry(image_size=32))]
    parts.insert(-1, {"part": "block", "kind": "from_later", "params": 1, "macs": 2})
    script = """(parts) => {
      const trials = new vitsearch.Trials([]);
      trials.parts = { values: parts, codes: [{ code: "01234567", width: 1 }] };
      document.querySelector("main").append(vitsearch.draw(trials.network(0), trials.scale));
      return [...document.querySelectorAll("main svg text")].map((one) => one.textContent);
    }"""
    words = blank.evaluate(script, parts)
    assert {
        "patch 4",
        "merge 2×2",
        "absent",
        "16 wide",
        "32 wide",
        "▦ 4",
        "⇄ 4",
        "4",
        "2×",
        "mean",
        "from late",
    } <= set(words)
    titles = blank.evaluate("[...document.querySelectorAll('main svg title')].map((one) => one.textContent)")
    assert any("windows of 4 × 4, shifted" in title for title in titles) and len(titles) == 7


def test_numbers_and_fronts_in_the_browser(blank: Any) -> None:
    """The scripts' own arithmetic, against Python's."""
    random, columns = Random(1), Columns()
    points = [(random.randrange(20), random.randrange(20)) for _ in range(60)]
    columns.extend(
        [
            Trial(number=number, settings={"space": "x"}, measured={"a": x, "params": y}, seconds=0.0)
            for number, (x, y) in enumerate(points)
        ]
    )
    script = """(part) => { const trials = new vitsearch.Trials([{ name: "a", direction: "max" }]);
      trials.add(part); return trials.front("params", "a"); }"""
    found = blank.evaluate(script, json.loads(json.dumps(columns.to_json())))
    expected = {points[index] for index in pareto_front([(x, -y) for x, y in points])}
    assert {points[number] for number in found} == expected and len(found) == len(expected)
    shown = blank.evaluate("[5867944, 1.4e9, 0.123456, 97.40740, 1234, null].map(vitsearch.short)")
    assert shown == ["5.87 M", "1.4 G", "0.1235", "97.41", "1234", "–"]
    assert blank.evaluate("[5, 90, 7260, null].map(vitsearch.duration)") == ["5.0 s", "2 min", "2 h 1 min", "–"]
