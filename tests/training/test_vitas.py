"""ViTAS on a CPU: identity probability, super-transformer, NSGA-II, retraining; and one block by exhaustive search."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy import stats

from vitsearch.cost import Geometry, Limits
from vitsearch.data import evaluation_batches, open_training_data
from vitsearch.errors import NothingFits, UnknownName, VitsearchError
from vitsearch.evaluate import SupernetEvaluator
from vitsearch.models import SuperTransformer
from vitsearch.records import Objective, Trial
from vitsearch.search import Domain, History, parse_strategy
from vitsearch.spaces import SPACES, cost_of
from vitsearch.spaces.channelwise import Repeated
from vitsearch.study import run_search
from vitsearch.tasks.classification import Classification
from vitsearch.training.distributed import World
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.preferred import scheme_of
from vitsearch.training.recipe import RECIPES, change
from vitsearch.training.run import Machine, Trained, train_network
from vitsearch.training.subnets import Identity
from vitsearch.training.supernet import DRAWN, NEVER, SupernetTrainer, read_supernet
from vitsearch.training.trainer import evaluate

MICRO = SPACES["vitas-micro"]
GEOMETRY = Geometry(image_size=16, classes=10)
SIZES = ["--image-size", "16", "--patch-size", "4,8"]
LISTS = ("num_heads", "attention_ratio", "mlp_ratio")


def test_from_a_budget_to_a_retrained_network(tmp_path: Path, cli: Callable[..., Any]) -> None:
    """As a user types it; the winner keeps the budget and is a network of the space."""
    found = cli("identity", "vitas-micro", "--max-macs", "200k", "--classes", 10, *SIZES, "--json").json()
    probability = found["probability"]
    assert 0.2 < probability < 0.3
    quick = ["--data", "digits", "--recipe", "quick", "--device", "cpu", "--json"]
    subnets = f"identity:probability={probability:.6f}"
    train = ["supernet", "train", "vitas-micro", "--subnets", subnets, "--widths", "two-sided", *SIZES, *quick]
    assert cli(*train, "--epochs", 2, "--out", tmp_path / "supernet").json()["space"] == "vitas-micro"
    plan = json.loads((tmp_path / "supernet" / "study.json").read_text())
    assert plan["sharing"] == {"share": "v", "class_token": "private", "widths": "two-sided"}
    assert plan["space"]["fixed"] == {"patch_sizes": [4, 8]} and plan["subnets"] == subnets

    strategy = f"nsga2:population=6,parents=3,identity={probability:.6f}"
    search = [
        "search",
        "vitas-micro",
        "--strategy",
        strategy,
        "--objective",
        f"supernet:{tmp_path}/supernet,min:params",
    ]
    window = ["--min-macs", "150k", "--max-macs", "200k"]
    best = cli(*search, *window, "--trials", 18, "--device", "cpu", "--out", tmp_path / "run", "--json").json()["best"]
    assert best["settings"] in MICRO.with_patch_size((4, 8))
    assert 150_000 <= cost_of(best["settings"], GEOMETRY).macs <= 200_000

    retrain = ["train", f"{tmp_path}/run#best", "--image-size", 16, "--epochs", 1, *quick]
    done = cli(*retrain, "--out", tmp_path / "retrained").json()
    assert 0 <= done["test_top1"] <= 100
    extracted = cli(
        "supernet", "extract", tmp_path / "supernet", f"{tmp_path}/run#best", "--out", tmp_path / "x", "--json"
    )
    assert extracted.json()["params"] == cost_of(best["settings"], GEOMETRY).params


@pytest.mark.parametrize(
    ("subnets", "strategy"),
    [
        ("identity:probability=0.462541", "nsga2:parents=20,identity=0.462541 --trials 2000"),
        ("uniform", "evolution --trials 1000"),
    ],
)
def test_the_search_that_is_named_leans_as_the_steps_do(
    subnets: str, strategy: str, tmp_path: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended = Trained(out=tmp_path / "run", result={}, epochs=[])
    monkeypatch.setattr("vitsearch.training.run.train_network", lambda *_, **how: pretended)
    said = cli("supernet", "train", "vitas-micro", "--subnets", subnets, *SIZES, "--out", tmp_path / "run").out
    assert f"--objective supernet:{tmp_path / 'run'} --strategy {strategy} --out run" in said


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    space = MICRO.with_patch_size((4, 8))
    plan = TrainingPlan(
        space={"name": space.name, "fixed": space.fixed()},
        subnets="identity:probability=0.3",
        geometry=GEOMETRY,
        data="digits",
        recipe=change(RECIPES["quick"], {"epochs": "1", "image_size": "16"}),
    )
    out = tmp_path_factory.mktemp("supernet") / "run"
    train_network(plan, out, machine=Machine(device="cpu"))
    return out


def validation_batches() -> Any:
    data, device = open_training_data("digits"), torch.device("cpu")
    return evaluation_batches(data.part("validation"), dataset=data, geometry=GEOMETRY, batch_size=64, device=device)


def test_a_training_is_judged_by_networks_as_its_steps_draw_them(trained: Path) -> None:
    """The largest network has every slot, and a step hardly ever does."""
    _, supernet = read_supernet(trained)
    drawn = [Identity(probability=0.3).choose(supernet.space, 0, NEVER + number)[0] for number in range(DRAWN)]
    assert len({json.dumps(one) for one in drawn}) == DRAWN
    networks = [supernet.extract(MICRO.decode(one)) for one in drawn]
    world = World(device=torch.device("cpu"))
    found = [evaluate(network, validation_batches(), world, "float32")["top1"] for network in networks]
    result = json.loads((trained / "result.json").read_text())
    assert result["validation_drawn_top1"] == result["validation_top1"] == pytest.approx(sum(found) / DRAWN)
    assert {"validation_smallest_top1", "validation_largest_top1"} <= set(result)


def test_an_objective_is_the_accuracy_of_the_extracted_network(trained: Path) -> None:
    _, supernet = read_supernet(trained)
    assert isinstance(supernet, SuperTransformer) and supernet.space == MICRO.with_patch_size((4, 8))
    batches = validation_batches()
    chosen = [supernet.space.region(geometry=GEOMETRY).shuffled(0, number) for number in range(3)]
    for one, score in zip(chosen, SupernetEvaluator(trained, device="cpu")(chosen), strict=True):
        network = supernet.extract(MICRO.decode(one))
        expected = evaluate(network, batches, World(device=torch.device("cpu")), "float32")
        assert score.scores == {f"supernet:{trained}": pytest.approx(expected["top1"])}


def test_one_block_by_trying_them_all(tmp_path: Path) -> None:
    """Section 5.3 in small: every network of one repeated block, on the weights of their supernet."""
    space = Repeated(
        name="one-block",
        description="",
        paper="",
        patch_size=8,
        embed_dim=(16, 32),
        num_heads=(2, 4),
        attention_dim=96,
        mlp_dim=64,
        steps=2,
        depth=2,
    )
    SPACES.add("one-block", space)
    plan = TrainingPlan(
        space={"name": "one-block", "fixed": {"patch_size": 8}},
        subnets="uniform",
        geometry=GEOMETRY,
        data="digits",
        recipe=change(RECIPES["quick"], {"epochs": "1", "image_size": "16"}),
    )
    train_network(plan, tmp_path / "supernet", machine=Machine(device="cpu"))
    objective = f"supernet:{tmp_path / 'supernet'}"
    options: dict[str, Any] = {"strategy": "exhaustive", "trials": 100, "geometry": GEOMETRY, "device": "cpu"}
    study = run_search(space, out=tmp_path / "all", objective=objective, **options).study
    assert len({json.dumps(trial.settings) for trial in study.trials}) == 16 == space.size
    assert study.best is not None
    assert study.best.measured[objective] == max(trial.measured[objective] for trial in study.trials)


@pytest.mark.parametrize("subnets", ["sandwich", "uniform"])
def test_the_ends_are_those_at_the_size_of_the_images(subnets: str, tmp_path: Path) -> None:
    """At 224 px, patches of 8 would have the fewest parameters: the position tables of others are long."""
    space, geometry = MICRO.with_patch_size((2, 4, 8)), Geometry(image_size=32, classes=10)
    options: dict[str, Any] = {"classes": 10, "seed": 1, "world": World(device=torch.device("cpu"))}
    options |= {"checkpoint": tmp_path / "checkpoint", "journal": None, "scheme": subnets}
    supernet = SuperTransformer(space, geometry, seed=0)
    loader = SimpleNamespace(steps_per_epoch=1)  # no step is made
    trainer = SupernetTrainer(supernet, Classification(), RECIPES["quick"], loader, None, **options)
    ends = [trainer.looked_at()[name][0] for name in ("largest", "smallest")]
    for found, choose, slot in zip(ends, (max, min), ((4, 1.0), (0, None)), strict=True):
        lists = {name: [value] * 4 for name, value in zip(LISTS, (slot[0], slot[1], slot[1]), strict=True)}
        alike = [{"space": space.name, "patch_size": n, "embed_dim": w, **lists} for n in (2, 4, 8) for w in (16, 32)]
        expected = choose(alike, key=lambda settings: cost_of(settings, geometry))
        assert cost_of(found, geometry) == cost_of(expected, geometry)
        assert found["patch_size"] == expected["patch_size"] == (2 if choose is max else 4)
    if subnets == "sandwich":
        assert trainer.architectures()[:2] == [space.decode(end) for end in ends]


def test_steps_draw_with_the_probability() -> None:
    scheme = scheme_of("identity:probability=0.3", MICRO, None)
    drawn = [scheme.choose(MICRO, 5, step)[0] for step in range(3000)]
    assert drawn[:20] == [scheme.choose(MICRO, 5, step)[0] for step in range(20)]
    heads = Counter(count for settings in drawn for count in settings["num_heads"])
    assert stats.chisquare([heads[0], heads[2], heads[4]], [3600, 4200, 4200]).pvalue > 0.01
    ratios = Counter(ratio for settings in drawn for ratio in settings["mlp_ratio"] if ratio is not None)
    assert stats.chisquare(list(ratios.values())).pvalue > 0.01 and len(ratios) == 2


@pytest.mark.parametrize(
    ("text", "space", "message"),
    [
        ("identity:probability=2", "vitas", "must be from 0 to 1"),
        ("identity:probability=x", "vitas", "must be a number"),
        ("identity:share=0.5", "vitas", "identity:probability=0.4, but got"),
        ("uniform:probability=0.5", "vitas", "must be a name"),
        ("identity", "autoformer-tiny", "slots may be empty"),
    ],
)
def test_schemes_have_rules(text: str, space: str, message: str) -> None:
    with pytest.raises(VitsearchError, match=message):
        scheme_of(text, SPACES[space], None)


def test_a_supernet_is_told_its_probability(tmp_path: Path, cli: Callable[..., Any]) -> None:
    """It follows from a budget: without one, half of all slots would be empty, whatever that costs."""
    said = cli("supernet", "train", "vitas-micro", "--subnets", "identity", *SIZES, "--out", tmp_path / "run").error()
    assert "`subnets` must say its probability" in said and not (tmp_path / "run").exists()


def test_the_first_generation_lies_in_the_window_and_leans() -> None:
    """With a high probability it has fewer blocks than uniform draws from the same window; none is rejected."""
    limits = Limits(min_macs=900_000_000, max_macs=1_000_000_000)
    domain = Domain(space=SPACES["vitas"], limits=limits)
    empty = History((), 0)

    def blocks(strategy: str) -> list[int]:
        members = parse_strategy(strategy).ask(domain, empty, 0, 50)
        assert len({json.dumps(member) for member in members}) == 50 and all(map(domain.allows, members))
        return [sum(heads > 0 for heads in member["num_heads"]) for member in members]

    assert sum(blocks("nsga2:identity=0.6")) < sum(blocks("nsga2:identity=0.1")) < sum(blocks("nsga2"))
    with pytest.raises(VitsearchError, match="`identity` must be a number from 0 to 1"):
        parse_strategy("nsga2:identity=1.5")
    with pytest.raises(VitsearchError, match="option `identity` of strategy 'nsga2' must be of a space"):
        other = Domain(space=SPACES["autoformer-tiny"], limits=Limits())
        parse_strategy("nsga2:identity=0.5").ask(other, empty, 0, 5)
    with pytest.raises(UnknownName, match="identity=None"):
        parse_strategy("nsga2:parent=3")
    with pytest.raises(NothingFits, match="has probability at identity 1"):
        parse_strategy("nsga2:identity=1").ask(domain, empty, 0, 5)


def test_parents_are_the_best_of_all_so_far(imagine: Callable[..., list[Trial]]) -> None:
    """With 2 parents and no mutation, a generation is what those two can have together."""
    domain = Domain(space=MICRO, limits=Limits(), objectives=(Objective(name="quality", direction="max"),))

    def measure(settings: dict[str, Any]) -> dict[str, float]:
        return {"quality": float(sum(settings["num_heads"]) + settings["embed_dim"] / 100)}

    strategy = "nsga2:population=10,parents=2,network_rate=0,block_rate=0,tries=100"
    trials = imagine(strategy, domain, measure, trials=20)
    parents = sorted(trials[:10], key=lambda trial: -trial.measured["quality"])[:2]
    allowed = [{parent.settings["num_heads"][slot] for parent in parents} for slot in range(4)]
    children = [trial.settings["num_heads"] for trial in trials[10:]]
    bred = [heads for heads in children if all(h in a for h, a in zip(heads, allowed, strict=True))]
    assert len(bred) >= 3


def test_what_a_generation_lacks_is_drawn_as_the_first_one_is() -> None:
    """Uniform draws of so large a space have hardly an empty slot: no step of the supernet trains such networks."""
    limits = Limits(min_macs=900_000_000, max_macs=1_000_000_000)
    objectives = (Objective(name="macs", direction="max"),)
    domain = Domain(space=SPACES["vitas"], limits=limits, objectives=objectives)
    strategy = parse_strategy("nsga2:population=12,parents=4,tries=1,identity=0.46")
    first = strategy.ask(domain, History([], 0), 0, 12)
    trials = [
        Trial(number=n, settings=one, measured={"macs": float(n)}, error=None, seconds=0.0)
        for n, one in enumerate(first)
    ]
    second = strategy.ask(domain, History(trials, 12), 0, 12)
    assert len(second) == 12 and all(domain.allows(one) for one in second)
    assert max(sum(map(bool, one["num_heads"])) for one in [*first, *second]) <= 14
