"""TF-TAS Figure 2b and 2c: how much accuracy do trained networks lose when attention or MLP weights are pruned?

    python experiments/pruning_sensitivity.py [--networks 3] [--epochs 15] [--commit HASH]    # minutes on two cores

Three networks of `autoformer-tiny` (flat) and three of `pit` (narrowing), trained on scikit-learn's digits by the
recipe `quick` of `vitsearch train`; then the smallest weights of all attention matrices, or of all MLPs, are set
to zero, and the validation part is classified (the test part stays shut: there is nothing to report of it). The paper
prunes networks trained on ImageNet; this is the same question on what a laptop can train, so the curves are not
comparable number by number.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path

import timm
import torch
from common import circumstances, write
from torch import nn

import vitsearch.models  # noqa: F401  registers our networks with timm
from vitsearch.architecture import Settings
from vitsearch.cost import Geometry, Limits
from vitsearch.data import Batch, evaluation_batches, open_training_data
from vitsearch.proxies.base import linear_roles
from vitsearch.spaces import SPACES, cost_of, sample
from vitsearch.training.distributed import World
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import RECIPES, change
from vitsearch.training.run import Machine, train_network
from vitsearch.training.trainer import evaluate

GEOMETRIES = {"autoformer-tiny": Geometry(image_size=16, classes=10), "pit": Geometry(image_size=32, classes=10)}
RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
CPU = torch.device("cpu")


def validation(geometry: Geometry) -> Iterable[Batch]:
    data = open_training_data("digits")
    return evaluation_batches(data.part("validation"), dataset=data, geometry=geometry, batch_size=270, device=CPU)


def trained(settings: Settings, geometry: Geometry, epochs: int, seed: int) -> nn.Module:
    recipe = change(RECIPES["quick"], {"epochs": str(epochs)})
    plan = TrainingPlan(settings=settings, timm=None, geometry=geometry, data="digits", recipe=recipe, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        train_network(plan, Path(folder) / "run", machine=Machine(device="cpu", save_every=10_000))
        network: nn.Module = timm.create_model(f"local-dir:{folder}/run", pretrained=True).eval()
    return network


def accuracy(network: nn.Module, batches: Iterable[Batch]) -> float:
    return evaluate(network, batches, World(device=CPU), "float32")["top1"]


@torch.no_grad()
def pruned_accuracy(network: nn.Module, role: str, ratio: float, batches: Iterable[Batch]) -> float:
    """With the smallest `ratio` of the weights of every linear layer of this role at zero; then all as before."""
    modules = dict(network.named_modules())
    weights = [modules[name].weight for name, its_role, _ in linear_roles(network) if its_role == role]
    kept = [weight.clone() for weight in weights]
    for weight in weights:
        smallest = weight.abs().flatten().argsort()[: int(ratio * weight.numel())]
        weight.view(-1)[smallest] = 0.0
    found = accuracy(network, batches)
    for weight, before in zip(weights, kept, strict=True):
        weight.copy_(before)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--commit")
    options = parser.parse_args()
    rows = []
    limits = {"autoformer-tiny": Limits(max_params=6_000_000), "pit": Limits(max_params=2_000_000)}
    for space, geometry in GEOMETRIES.items():
        over, batches = SPACES[space].with_patch_size(8), validation(geometry)
        for number, settings in enumerate(sample(over, options.networks, limits=limits[space], geometry=geometry)):
            network = trained(settings, geometry, options.epochs, seed=number)
            curves = {
                role: [pruned_accuracy(network, role, ratio, batches) for ratio in RATIOS]
                for role in ("attention", "mlp")
            }
            params = cost_of(settings, geometry).params
            rows.append({"space": space, "settings": settings, "params": params} | curves)
            for role, curve in curves.items():
                print(f"{space:17s} {number} {params:8d} {role:9s}", *(f"{a:5.1f}" for a in curve), flush=True)
    lost = {
        (space, role): sum(row[role][0] - sum(row[role]) / len(RATIOS) for row in rows if row["space"] == space)
        / options.networks
        for space in GEOMETRIES
        for role in ("attention", "mlp")
    }
    for (space, role), value in lost.items():
        print(f"{space}: pruning {role} costs {value:.1f} points of accuracy, mean over ratios and networks")
    summary = [{"space": space, "role": role, "mean_loss": value} for (space, role), value in lost.items()]
    about = circumstances(CPU, options.commit)
    about |= {"data": "digits, validation part", "epochs": options.epochs, "ratios": RATIOS}
    write("pruning_sensitivity.json", about | {"rows": rows, "summary": summary})


if __name__ == "__main__":
    main()
