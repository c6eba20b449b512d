"""Thousands of malformed inputs: every reader accepts what is right and refuses the rest with our own error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitsearch.architecture import Architecture
from vitsearch.arguments import read_quantity
from vitsearch.cli import main
from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.records import parse_json, read_trials
from vitsearch.report.page import as_json
from vitsearch.report.reading import Reader
from vitsearch.report.views import view
from vitsearch.spaces import SPACES, canonical, cost_of, decode, outside, sample
from vitsearch.study import Study
from vitsearch.training.plan import TrainingPlan, read_plan, write_plan
from vitsearch.training.recipe import RECIPES, change

numbers = st.one_of(st.integers(-5, 300), st.integers(), st.floats(), st.sampled_from([2**31, 2**63, 10**400, 1e308]))
scalars = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=5))
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=8,
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container inside a JSON value, with a key or index into it."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@st.composite
def damaged(draw: st.DrawFn, originals: list[Any]) -> Any:
    """A valid value with one to three things in it replaced, removed or added."""
    value = json.loads(json.dumps(draw(st.sampled_from(originals))))
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(list(places(value)) or [([None], 0)]))
        action = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if action == "replace":
            container[key] = draw(anything)
        elif action == "remove":
            del container[key]
        elif isinstance(container, dict):
            container[draw(st.text(max_size=5))] = draw(anything)
        else:
            container.append(draw(anything))
    return value


MEMBERS = [member for name in SPACES for member in sample(name, 3, seed=0)]
BLUEPRINTS = [decode(member).to_json() for member in MEMBERS]


@given(st.one_of(damaged(MEMBERS), anything))
@settings(max_examples=1000)
def test_settings(value: Any) -> None:
    try:
        cost = cost_of(decode(value))
    except VitsearchError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert cost.params > 0 and cost.macs > 0
        spelled = canonical(value)
        assert canonical(spelled) == spelled and decode(spelled) == decode(value)
        assert (outside(value) is None) == (outside(spelled) is None)


@given(st.one_of(damaged(BLUEPRINTS), anything))
@settings(max_examples=600)
def test_blueprints(value: Any) -> None:
    try:
        blueprint = Architecture.from_json(value)
    except VitsearchError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert Architecture.from_json(json.loads(json.dumps(blueprint.to_json()))) == blueprint


@given(st.one_of(st.text(), st.binary(), anything.map(json.dumps)))
@settings(max_examples=400)
def test_json(text: str | bytes) -> None:
    try:
        value = parse_json(text, "source")
    except VitsearchError as error:
        assert str(error).startswith("source is") and "\n" not in str(error)
    else:
        json.dumps(value, allow_nan=False)


def test_quantities_are_exact_however_large() -> None:
    assert read_quantity("--max-size", "1e24", below=1 << 1000) == 10**24
    assert read_quantity("--max-size", f"{10**40 + 1}M", below=1 << 1000) == 10**46 + 10**6
    with pytest.raises(VitsearchError, match="`--max-params` must be a positive whole number"):
        read_quantity("--max-params", "1e24")


@given(st.text(max_size=12))
@settings(max_examples=300)
def test_quantities(text: str) -> None:
    try:
        value = read_quantity("--max-params", text)
    except VitsearchError as error:
        assert "`--max-params`" in str(error)
    else:
        assert isinstance(value, int) and value >= 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vitsearch.study import run_search

    out = tmp_path_factory.mktemp("fuzz") / "study"
    run_search("autoformer-micro", out=out, trials=3, objective="params", device="cpu")
    return out


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_training_plans(tmp_path: Path, data: st.DataObject) -> None:
    """A damaged plan of a training is one error, or a plan that can be written and read again."""
    recipe = RECIPES[data.draw(st.sampled_from(["quick", "deit", "autoprox-teacher"]))]
    plan = TrainingPlan(settings=MEMBERS[0], timm=None, geometry=Geometry(), data="digits", recipe=recipe)
    whole = {"format": 1, "kind": "train", **plan.to_json(), "environments": [{"torch": "2"}]}
    (tmp_path / "study.json").write_text(json.dumps(data.draw(damaged([whole]))))
    rows = [{"epoch": 1, "step": 5, "loss": 1.5, "images_per_second": 3.0}, {"epoch": 2, "step": 10, "loss": 1.0}]
    lines = data.draw(st.one_of(st.just(rows), damaged([rows])))
    (tmp_path / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    look(tmp_path)
    try:
        found, environments = read_plan(tmp_path)
    except VitsearchError as error:
        assert "\n" not in str(error) and str(tmp_path / "study.json") in str(error)
    else:
        write_plan(tmp_path, found, environments)
        assert read_plan(tmp_path) == (found, environments)


@given(
    st.dictionaries(
        st.one_of(st.sampled_from(sorted(RECIPES["quick"].to_json())), st.text(max_size=8)), st.text(max_size=8)
    )
)
@settings(max_examples=200)
def test_recipe_changes(changes: dict[str, str]) -> None:
    try:
        recipe = change(RECIPES["quick"], changes)
    except VitsearchError as error:
        assert "\n" not in str(error)
    else:
        assert type(recipe).from_json(json.loads(json.dumps(recipe.to_json(), allow_nan=False))) == recipe


@given(data=st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_studies(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    """Damage in either file of a study is one error that names the file, or does no harm."""
    study = json.loads((whole / "study.json").read_text())
    lines = [json.loads(line) for line in (whole / "trials.jsonl").read_text().splitlines()]
    broken = data.draw(damaged([{"study": study, "trials": lines}]))
    (tmp_path / "study.json").write_text(json.dumps(broken.get("study")))
    trials = broken.get("trials")
    (tmp_path / "trials.jsonl").write_text(
        "".join(json.dumps(t) + "\n" for t in trials) if isinstance(trials, list) else "x\n"
    )
    try:
        opened = Study.open(tmp_path)
        opened.trial("best")
        read_trials(tmp_path / "trials.jsonl")
    except VitsearchError as error:
        assert str(tmp_path) in str(error) and "\n" not in str(error)
    if data.draw(st.integers(0, 2)) == 0:  # it takes longer than the rest
        look(tmp_path)


def look(folder: Path) -> None:
    """Whatever is wrong with a study, it can be shown."""
    reader = Reader(folder)
    reader.refresh()
    shown = json.loads(as_json(view(reader)))
    assert shown["state"] in ("finished", "stopped", "failed") and (shown["state"] == "failed" or not shown["problem"])


def run(arguments: list[str]) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


TYPED = """spaces sample cost proxies pit autoformer-micro --json --seed -n 1 -1 0 --max-params 6M --image-size 32
--classes --patch-size 4 1e9 missing.json #best - -- --quiet --plugin a#b --min-macs -h"""
words = st.one_of(st.sampled_from(["", *TYPED.split()]), st.text(max_size=6).filter(lambda text: "\0" not in text))


@given(st.lists(words, max_size=6))
@settings(max_examples=350, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """Whatever is typed: an exit code of 0 or 2, one line when it is 2, never a traceback, nothing written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", type("Empty", (), {"buffer": StringIO("")})())
    code, out, err = run(arguments)
    assert code in (0, 2), (arguments, err)
    if code == 2:
        assert err.count("\n") == 1 and err.startswith("vitsearch: error: ") and out == "", (arguments, err)
    assert list(tmp_path.iterdir()) == []


@given(damaged(MEMBERS))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_architecture_files(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "arch.json"
    path.write_text(json.dumps(value))
    code, out, err = run(["cost", str(path), "--json"])
    assert code in (0, 2), err
    if code == 2:
        assert err.count("\n") == 1 and err.startswith(f"vitsearch: error: {path}") and out == ""
    else:
        assert json.loads(out)["params"] > 0
