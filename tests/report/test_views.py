"""What a page says: facts, distributions, and a command that does the study again."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.models.super_transformer import Sharing
from vitsearch.records import read_trials
from vitsearch.report.reading import Reader
from vitsearch.report.repeat import command_of
from vitsearch.report.views import view
from vitsearch.spaces import SPACES, sample
from vitsearch.training.distill import Distillation
from vitsearch.training.plan import TrainingPlan, read_plan, write_plan
from vitsearch.training.recipe import RECIPES, change
from vitsearch.training.run import Trained

Cli = Callable[..., Any]
WriteStudy = Callable[..., Path]
SMALL = SPACES["autoformer-micro"].with_patch_size(4)
MEMBERS = list(itertools.islice(SMALL.region(), 3))


def shown(folder: Path) -> dict[str, Any]:
    reader = Reader(folder)
    reader.refresh()
    return view(reader)


def test_the_command_does_the_search_again(cli: Cli, tmp_path: Path) -> None:
    options = ["--objective", "macs,min:params", "--image-size", 32, "--classes", 7, "--patch-size", 8, "--trials", 9]
    options += ["--strategy", "nsga2:population=4", "--max-params", "200k", "--min-macs", 1000, "--weights", "shared"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert cli("search", "autoformer-micro", *options, "--seed", 5, "--device", "cpu", "--out", first, "-q").code == 0
    page = shown(first)
    words = shlex.split(page["repeat"]["command"])
    assert words[0] == "vitsearch" and words[-2:] == ["--out", "again"]
    assert "--batch-size" not in words and "batch size" not in dict(page["asked"])  # sizes look at no images
    assert cli(*words[1:-1], second, "-q").code == 0
    assert (first / "study.json").read_text() == (second / "study.json").read_text()
    trials = [[trial.settings for trial in read_trials(one / "trials.jsonl")[0]] for one in (first, second)]
    assert trials[0] == trials[1] and len(trials[0]) == 9


def test_the_command_searches_the_same_table_again(cli: Cli, tmp_path: Path) -> None:
    """Where an objective says its input itself, data and batch are not asked for, and would be refused."""
    rows = [{"arch": one, "accuracy": {"a": 50.0 + n}} for n, one in enumerate(sample("pit", 5, seed=0))]
    table = {"benchmark": "B", "space": "pit", "classes": 7, "image_size": 32, "datasets": {"a": {}}, "entries": rows}
    (tmp_path / "table.json").write_text(json.dumps(table))
    options = [
        "--objective",
        f"bench:{tmp_path / 'table.json'},min:params",
        "--device",
        "cpu",
        "--out",
        tmp_path / "one",
    ]
    assert cli("search", "pit", *options, "-q").code == 0
    said = shown(tmp_path / "one")
    assert {"data", "batch size", "weights"}.isdisjoint(dict(said["asked"])) and "noise" not in said["about"]
    words = shlex.split(said["repeat"]["command"])
    assert cli(*words[1:-1], tmp_path / "two", "-q").code == 0
    journals = [read_trials(tmp_path / name / "trials.jsonl")[0] for name in ("one", "two")]
    assert [trial.measured for trial in journals[0]] == [trial.measured for trial in journals[1]]
    assert len(journals[0]) == 5


PLANS = {
    "settings": {
        "settings": sample("autoformer-micro")[0],
        "recipe": change(RECIPES["deit"], {"epochs": "7", "mixup": "0", "clip": "2.5", "augmentation.flip": "0.25"}),
        "parts": "train+validation",
    },
    "timm": {"timm": "vit_tiny_patch16_224", "recipe": change(RECIPES["quick"], {"betas": "0.8,0.9", "clip": "none"})},
    "teacher": {
        "settings": sample("pit")[0],
        "recipe": RECIPES["quick"],
        "distillation": Distillation(teacher="folder with spaces", kind=("locality", "soft")),
    },
    "supernet": {
        "space": {"name": "pit", "fixed": SPACES["pit"].with_patch_size(4).fixed()},
        "subnets": "sandwich",
        "recipe": change(RECIPES["autoformer"], {"batch_size": "64"}),
    },
    "two sides": {
        "space": {"name": "autoformer-micro", "fixed": SMALL.fixed()},
        "subnets": "uniform",
        "sharing": Sharing(widths="two-sided"),
        "recipe": RECIPES["quick"],
    },
    "super-transformer": {
        "space": {"name": "vitas-micro", "fixed": SPACES["vitas-micro"].with_patch_size((4, 8)).fixed()},
        "subnets": "identity:probability=0.3",
        "sharing": Sharing(share="qk", class_token="shared", widths="two-sided"),
        "recipe": RECIPES["vitas-weak"],
    },
    "candidates": {
        "space": {"name": "autoformer-micro", "fixed": SMALL.fixed()},
        "subnets": "chosen",
        "candidates": MEMBERS,
        "recipe": RECIPES["prenas-tiny"],
    },
}


@pytest.mark.parametrize("name", PLANS)
def test_the_command_trains_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """The command line makes the very plan from it; nothing is trained."""
    given: dict[str, Any] = dict(PLANS[name])
    plan = TrainingPlan(geometry=Geometry(image_size=32, classes=10), data="digits", seed=3, **given)
    write_plan(tmp_path, plan, [{"device": "cpu", "plugins": []}])
    command = command_of(json.loads((tmp_path / "study.json").read_text()), 0)
    assert command is not None and read_plan(tmp_path)[0] == plan
    made: list[TrainingPlan] = []

    def pretend(plan: TrainingPlan, out: Path, **how: object) -> Trained:
        made.append(plan)
        return Trained(out=out, result={}, epochs=[], writes=False)

    monkeypatch.setattr("vitsearch.training.run.train_network", pretend)
    echo, _, words = command.rpartition(" | ")
    if echo:
        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(shlex.split(echo)[1].encode())))
    assert cli(*shlex.split(words)[1:]).code == 0
    assert made == [plan]


@pytest.mark.parametrize(
    "options",
    [
        "--budgets 35k:65k:10k --top 2 --draws 2 --data digits",
        "--budgets 40k,60k --variant code --min-macs 100k",
        "--budgets 1200k:2M:400k --variant code --resource macs",
    ],
)
def test_the_command_chooses_the_same_for_budgets(options: str, cli: Cli, tmp_path: Path) -> None:
    given = ["search", "autoformer-micro", "--strategy", "prenas", *options.split(), "--image-size", 16]
    given += ["--patch-size", 4, "--batch-size", 2, "--device", "cpu", "--seed", 4]
    assert cli(*given, "--out", tmp_path / "first", "-q").code == 0
    page = shown(tmp_path / "first")
    assert page["what"] == "choice for budgets" and dict(page["asked"])["strategy"] == "prenas" and not page["rows"]
    assert cli(*shlex.split(page["repeat"]["command"])[1:-1], tmp_path / "second", "-q").code == 0
    for name in ("study.json", "draws.jsonl"):
        assert (tmp_path / "first" / name).read_text() == (tmp_path / "second" / name).read_text()


@pytest.mark.parametrize(
    "options",
    [
        "--objective min:macs --channels 1 --independent --max-size 1e24 --step embed_dim=32 --most-steps 2",
        "--data digits --recipe quick --epochs 3 --set drop_path=0.2 --subnets uniform --channels 1 --tau 0.7",
        "--data digits --distill some/teacher --distill-kind locality+hard --images 50",
    ],
)
def test_the_command_evolves_the_same(options: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line makes the very plan from it; nothing is measured."""
    from vitsearch.methods import space_evolution

    plans: list[dict[str, Any]] = []

    def stop(path: Path, plan: Any, *rest: Any) -> None:
        plans.append(plan.to_json() | {"environments": [{"device": "cpu"}]})
        raise VitsearchError("enough")

    monkeypatch.setattr(space_evolution, "enter", stop)
    monkeypatch.setattr("vitsearch.training.distill.Distillation.open", lambda *_: None)
    given = ["evolve-space", "s3:depth=1+2/1/1/1", *options.split(), "--image-size", 32, "--patch-size", 2, "--seed", 3]
    cli(*given, "--max-macs", "9G", "--iterations", 3, "--samples", 7, "--out", tmp_path / "first")
    command = command_of(json.loads(json.dumps(plans[0])), 0)
    assert command is not None
    cli(*shlex.split(command)[1:-1], tmp_path / "second")
    assert plans[0] == plans[1] and len(plans) == 2
    for rule, value in (("most_steps", None), ("least_samples", 3)):  # which have no option
        assert command_of({**plans[0], "rules": plans[0]["rules"] | {rule: value}}, 0) is None


@pytest.mark.parametrize(
    "options",
    [
        "--strategy naive --pareto --column c10 --alpha c10=2.5 --inputs weights --aggregate mean,max --crossover 0.25",
        "--strategy pairs --branches scalar --aggregate sum --seeds 3 --folds 2 --weights shared --data digits",
    ],
)
def test_the_command_discovers_the_same(
    options: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitsearch.methods import discovery

    plans: list[dict[str, Any]] = []

    def stop(tables: Any, plan: Any, **rest: Any) -> None:
        plans.append(plan.to_json() | {"kind": "discover", "environments": [{"device": "cpu"}]})
        raise VitsearchError("enough")

    monkeypatch.setattr(discovery, "run_discovery", stop)
    entries = [{"arch": one, "source": "s", "accuracy": {"c10": 50.0}} for one in MEMBERS]
    table = {"benchmark": "b", "space": "autoformer-micro", "classes": 10, "image_size": 32, "entries": entries}
    table["datasets"] = {}
    (tmp_path / "table.json").write_text(json.dumps(table))
    monkeypatch.chdir(tmp_path)
    cli("discover", "--bench", "table.json", *options.split(), "--seed", 7, "--out", "first")
    command = command_of(plans[0], 0)
    assert command is not None
    cli(*shlex.split(command)[1:])
    assert plans[0] == plans[1] and len(plans) == 2


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_discovery_in_words(tmp_path: Path) -> None:
    """While it runs, and when it has found."""
    plan = {"format": 1, "kind": "discover", "tables": ["a.json"], "evolution": {"evaluations": 3, "pareto": False}}
    (tmp_path / "study.json").write_text(json.dumps(plan | {"folds": 2, "pairs": False, "environments": []}))
    texts = ["qkv.grad", "abs(qkv.grad)", "exp(mlp.act)"]
    rows = [
        {"number": n, "settings": {"formula": text}, "measured": {"joint": n / 4, "size": n + 1}, "error": None}
        | {"seconds": 0.1}
        for n, text in enumerate(texts)
    ]
    write_lines(tmp_path / "trials.jsonl", rows)
    write_lines(tmp_path / "fold0.jsonl", rows[:2])
    page = shown(tmp_path)
    assert (page["state"], page["done"], page["wanted"], page["unit"]) == ("stopped", 5, 9, "formulas")
    assert page["best"] == {"trial": 2, "name": "joint", "value": 0.5} and page["front"] == [0, 1, 2]
    assert page["rows"] == {} and page["findings"] == [] and page["thing"] == "formula"
    interval = {"kendall_low": 0.1, "kendall_high": 0.9, "above_best_size": 0.02}
    interval |= {"above_best_size_low": -0.1, "above_best_size_high": 0.2}
    found = {"formula": texts[2], "joint": 0.5, "fold_formulas": texts[:2], "warnings": ["no better than `params`"]}
    found["rows"] = [{"score": "params", "dataset": name, "kendall": 0.4, **interval} for name in ("a/c10", "joint")]
    (tmp_path / "found.json").write_text(json.dumps(found))
    page = shown(tmp_path)
    assert page["state"] == "finished" and dict(page["asked"])["evolution: pareto"] == "no"
    formula, worth, folds = page["findings"]
    assert formula["lead"] == texts[2] and formula["warnings"] == ["no better than `params`"]
    row = ["params", "0.400 (0.100 to 0.900)", "0.400 (0.100 to 0.900)", "0.020 (-0.100 to 0.200)"]
    assert worth["head"] == ["score", "a/c10", "joint", "above the best size"] and worth["rows"] == [row]
    assert folds["rows"] == [["0", texts[0]], ["1", texts[1]]]
    (tmp_path / "found.json").write_text('{"rows": 3}')
    assert shown(tmp_path)["findings"] == []  # broken, and the rest is still shown


def test_an_evolution_of_a_space_in_words(cli: Cli, tmp_path: Path) -> None:
    options = ["--objective", "macs", "--samples", 2, "--iterations", 1, "--image-size", 32, "--device", "cpu"]
    assert cli("evolve-space", "s3-initial", *options, "--out", tmp_path / "run", "-q").code == 0
    page = shown(tmp_path / "run")
    assert (page["state"], page["done"], page["unit"]) == ("finished", 2, "spaces") and page["rows"] == {}
    spaces, moves = page["findings"]
    assert [row[0] for row in spaces["rows"]] == [0, 1] and spaces["lead"] == spaces["rows"][1][-1]
    assert len(moves["rows"]) == 4 * 5 and {row[2] for row in moves["rows"]} >= {"depth", "window size"}
    best, trials = page["best"]["trial"], read_trials(tmp_path / "run" / "trials.jsonl")[0]
    assert trials[best].measured["macs"] == max(trial.measured["macs"] for trial in trials) == page["best"]["value"]
    cost = cli("cost", f"{tmp_path / 'run'}#best", "--json").json()
    assert cost["macs"] == page["best"]["value"] and cost["image_size"] == 32
    assert "but got 'bst'" in cli("cost", f"{tmp_path / 'run'}#bst").error()
    lines = (tmp_path / "run" / "moves.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "moves.jsonl").write_text("".join(lines[:5]))
    assert shown(tmp_path / "run")["state"] == "stopped"


@pytest.mark.parametrize("space", ["vitas-micro", "s3-initial", "s3-initial:depth=1+2/1/1/3"])
def test_shares_of_slots_and_stages(space: str, tmp_path: Path, write_study: WriteStudy) -> None:
    """Against counting the entries of the members that were drawn, choice by choice."""
    found = SPACES[space]
    fixed = found.with_patch_size((2, 4)).fixed() if space == "vitas-micro" else found.fixed()
    folder = write_study(tmp_path / "run", 3)
    study = json.loads((folder / "study.json").read_text()) | {"space": space, "fixed": fixed}
    (folder / "study.json").write_text(json.dumps(study))
    facts = shown(folder)["space"]
    members = sample(found.with_fixed(fixed), 2000, geometry=Geometry(image_size=32, classes=10))
    assert facts is not None and set(facts["shares"]) == {knob.name for knob in found.knobs}

    def flat(value: Any) -> list[Any]:
        return [one for part in value for one in flat(part)] if isinstance(value, list) else [value]

    for knob in found.with_fixed(fixed).knobs:
        values = [one for member in members for one in flat(member[knob.name])]
        shares = sorted(values.count(value) / len(values) for value in set(values))
        assert [one for one in sorted(facts["shares"][knob.name]) if one] == pytest.approx(shares, abs=1e-4)


def test_no_command_for_what_is_not_known() -> None:
    assert command_of({"kind": "discover"}, 3) is None
    assert command_of({"kind": "search", "space": "nowhere"}, 3) is None
    assert command_of({}, 0) is None


def test_a_search_in_words(write_study: WriteStudy, tmp_path: Path) -> None:
    page = shown(write_study(tmp_path / "run", 30, limits={"max_params": 200_000}))
    facts = dict(page["asked"])
    assert facts["objective"] == "dss, more is better; macs, less is better"
    assert facts["limits"] == "at most 200,000 params" and facts["trials"] == "30" and facts["seed"] == "3"
    assert page["state"] == "finished" and page["failed"] == 3 and page["best"]["name"] == "dss"
    assert page["repeat"]["environments"] == [{"vitsearch": "0.1.0", "device": "cpu"}]
    space = page["space"]
    assert space["size"] == str(SPACES["autoformer-micro"].size) and max(space["params"]) <= 200_000
    assert all(sum(shares) == pytest.approx(1, abs=1e-3) for shares in space["shares"].values())


def test_shares_are_those_of_the_space(write_study: WriteStudy, tmp_path: Path) -> None:
    """Against the space, listed member by member."""
    space = SPACES["autoformer-micro"]
    members = list(space.region(None, Geometry(image_size=32, classes=10)))
    found = shown(write_study(tmp_path / "run"))["space"]["shares"]
    widths = [sum(member["embed_dim"] == width for member in members) / len(members) for width in (32, 48)]
    heads = [head for member in members for head in member["num_heads"]]
    assert found["embed_dim"] == pytest.approx(widths, abs=0.05)
    assert found["num_heads"] == pytest.approx([heads.count(count) / len(heads) for count in (2, 3)], abs=0.05)


def test_unknown_kinds_show_what_is_there(tmp_path: Path) -> None:
    study = {"format": 1, "kind": "from-later", "population": 20, "bench": ["a.json"], "environments": [{"torch": "2"}]}
    (tmp_path / "study.json").write_text(json.dumps(study))
    lines = [{"generation": number, "kendall": number / 10, "formula": {"op": "add"}} for number in range(12)]
    (tmp_path / "formulas.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = shown(tmp_path)
    assert page["kind"] == "from-later" and page["state"] == "finished" and page["done"] == 12
    assert dict(page["asked"]) == {"population": "20", "bench": "a.json"}
    columns = page["rows"]["formulas.jsonl"]["columns"]
    assert columns["kendall"] == [number / 10 for number in range(12)] and columns["formula"][0] == '{"op": "add"}'


def test_trainings_show_their_network(tmp_path: Path) -> None:
    plan = TrainingPlan(
        settings=sample("pit")[0], geometry=Geometry(image_size=32, classes=10), data="digits", recipe=RECIPES["quick"]
    )
    write_plan(tmp_path, plan, [{"device": "cpu"}])
    row = {"epoch": 1, "step": 3, "loss": 2.0, "validation_top1": 40.0}
    (tmp_path / "epochs.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"epoch": 2}) + "\n")
    page = shown(tmp_path)
    assert page["trials"]["count"] == 1 and page["trials"]["parts"]["codes"][0]
    assert page["epochs"]["columns"]["epoch"] == [1, 2] and page["best"]["value"] == 40.0
