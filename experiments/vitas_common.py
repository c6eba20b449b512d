"""What the experiments on ViTAS share: a supernet for a way of sharing, NSGA-II on it, the winner from scratch."""

from __future__ import annotations

import argparse
import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from decoded import decoded
from sittings import add_sitting_options
from teachers import about_teacher, add_teacher_options, guided
from trainings import how_it_went

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry, Limits
from vitsearch.evaluate import SupernetEvaluator
from vitsearch.models.super_transformer import Sharing
from vitsearch.spaces import SPACES, Space, cost_of
from vitsearch.spaces.channelwise import Channelwise
from vitsearch.spaces.identity import identity_probability
from vitsearch.study import run_search
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import RECIPES, Recipe, change
from vitsearch.training.run import Machine, Trained, train_network

PARENTS = 20
TRIES = 50
"""Draws for a child: about one in ten lies within the window."""
WINDOW = 0.9
"""A budget is the upper end of a window that begins here, as in the public code's configurations."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One supernet and one search: what is searched, what is shared, and how steps draw networks."""

    name: str
    space: Space
    sharing: Sharing
    identity: float | None
    """The identity probability; None: every choice of a slot as likely."""
    recipe: Recipe
    budget: int


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True)
    parser.add_argument("--space", default="vitas")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--patch-sizes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--recipe", default="vitas-weak", help="of the supernets")
    parser.add_argument("--set", action="append", default=[], help="a field of that recipe: epochs=100")
    parser.add_argument("--retrain", default="small-images-guided", help="recipe of the networks found")
    parser.add_argument("--set-retrain", action="append", default=[], help="a field of that recipe")
    parser.add_argument("--population", type=int, default=50)
    parser.add_argument("--generations", type=int, default=40)
    parser.add_argument("--images", type=int, default=1000, help="of the validation part, that judge in the search")
    parser.add_argument("--seeds", type=int, default=3)
    add_teacher_options(parser)
    add_sitting_options(parser)


class Bench:
    """The data, the input and the recipes of an experiment, and the folder its runs are in."""

    def __init__(self, options: argparse.Namespace, guided_supernets: bool) -> None:
        self.options, self.guided_supernets = options, guided_supernets
        dataset = decoded(options.data)
        self.geometry = Geometry(image_size=options.image_size, classes=dataset.classes)
        self.recipe = self._recipe(options.recipe, options.set)
        self.retrained = self._recipe(options.retrain, options.set_retrain)
        self.space = SPACES[options.space].with_patch_size(options.patch_sizes)
        self.taught = guided(options, self.geometry)

    def about(self) -> dict[str, Any]:
        recipes = {"recipe": self.recipe.to_json(), "retrain": self.retrained.to_json()}
        trials = self.options.population * self.options.generations
        about = {"data": Path(self.options.data).name, "space": self.options.space, **recipes, "trials": trials}
        about |= {"images": self.options.images}
        return about | {"teacher": about_teacher(self.taught), "guided_supernets": self.guided_supernets}

    def _recipe(self, name: str, given: list[str]) -> Recipe:
        fields = dict(each.split("=", 1) for each in given)
        return change(RECIPES[name], {"image_size": str(self.options.image_size)} | fields)

    def identity(self, budget: int) -> float:
        return round(float(identity_probability(self.space, Limits(max_macs=budget), self.geometry)), 6)

    def train(self, run: Run, seed: int) -> Trained:
        """The supernet, which runs with another budget share where nothing in it depends on the budget."""
        subnets = "uniform" if run.identity is None else f"identity:probability={run.identity}"
        folder = Path(self.options.work) / f"{run.name}-{'uniform' if run.identity is None else run.budget}-{seed}"
        plan = TrainingPlan(
            space={"name": run.space.name, "fixed": run.space.fixed()},
            subnets=subnets,
            sharing=run.sharing,
            geometry=self.geometry,
            data=self.options.data,
            recipe=run.recipe,
            seed=seed,
            distillation=self.taught if self.guided_supernets else None,
        )
        return self._trained(plan, folder)

    def _trained(self, plan: TrainingPlan, folder: Path) -> Trained:
        """Blocks have widths of their own to compile. Looking, at a supernet's largest network too, and saving takes
        as long as many steps."""
        gc.collect()
        torch.cuda.empty_cache()  # others on this device may need what the step before held
        machine = Machine(
            device=self.options.device, compiled=False, save_every=None, evaluate_every=plan.recipe.epochs
        )
        return train_network(plan, folder, machine=machine, resume=True, dataset=decoded(plan.data))

    def search(self, run: Run, supernet: Path, seed: int) -> dict[str, Any]:
        """The best network of the window by the weights it inherits, and how long finding it took."""
        share = drawn_share(run)
        leaning = "" if share is None else f",identity={share:.6f}"
        trials = self.options.population * self.options.generations
        parents = min(PARENTS, self.options.population)
        objective = f"supernet:{supernet}:images={self.options.images}"
        result = run_search(
            run.space,
            out=Path(self.options.work) / f"search-{run.name}-{run.budget}-{seed}",
            objective=objective,
            strategy=f"nsga2:population={self.options.population},parents={parents},tries={TRIES}{leaning}",
            trials=trials,
            limits=Limits(min_macs=round(WINDOW * run.budget), max_macs=run.budget),
            geometry=self.geometry,
            seed=seed,
            device=self.options.device,
            resume=True,
        )
        best = result.study.best
        assert best is not None
        seconds = sum(trial.seconds for trial in result.study.trials)
        passes = len(run.sharing.sides) * len(result.study.trials)
        accuracy = SupernetEvaluator(supernet, device=self.options.device)
        return {
            "settings": best.settings,
            "inherited_top1": accuracy.one(best.settings).scores[accuracy.name],
            "trials": len(result.study.trials),
            "search_seconds": seconds,
            "images_per_second": self.options.images * passes / seconds,
        }

    def retrain(self, name: str, settings: Settings, seed: int) -> dict[str, Any]:
        """Accuracy on the test part, from scratch, guided by the teacher where there is one, and how it went."""
        plan = TrainingPlan(
            settings=settings,
            geometry=self.geometry,
            data=self.options.data,
            recipe=self.retrained,
            seed=seed,
            distillation=self.taught,
        )
        done = self._trained(plan, Path(self.options.work) / f"retrain-{name}-{seed}")
        return {"retrained_top1": done.result["test_top1"], "retraining": how_it_went(done)}

    def whole(self, run: Run, seed: int) -> dict[str, Any]:
        """Train, search, retrain."""
        supernet = self.train(run, seed)
        found = {"supernet": how_it_went(supernet)} | self.search(run, supernet.out, seed)
        found |= self.retrain(f"{run.name}-{run.budget}", found["settings"], seed)
        cost = cost_of(found["settings"], self.geometry)
        line = f"inherited {found['inherited_top1']:.2f} retrained {found['retrained_top1']:.2f}"
        print(f"{run.name} budget {run.budget} seed {seed}: {line} ({cost.macs / 1e6:.0f} M MACs)", flush=True)
        return found | {"seed": seed, "params": cost.params, "macs": cost.macs}


def drawn_share(run: Run) -> float | None:
    """How often the steps of its supernet draw a slot empty; None where no slot may be."""
    if run.identity is not None or not getattr(run.space, "identity", False):
        return run.identity
    return 1 / (1 + len(cast(Channelwise, run.space).num_heads))


def dimensions(space: Space, patch_size: int, heads: int, depth: int) -> Space:
    """Widths alone: one patch size, one head count, every block there."""
    base, _, varied = space.name.partition(":")
    known = dict(each.split("=", 1) for each in varied.split(",")) if varied else {}
    said = known | {"num_heads": str(heads), "slot_count": str(depth), "identity": "no"}
    name = f"{base}:{','.join(f'{key}={value}' for key, value in said.items())}"
    return SPACES[name].with_patch_size(patch_size)
