"""TF-TAS Figure 2b and 2c: how much accuracy do trained networks lose when attention or MLP weights are pruned?

    python experiments/pruning_sensitivity.py [--networks 5] [--epochs 40] [--commit HASH]

Five networks of `autoformer-micro` and five of `pit`, trained on scikit-learn's digits (32 px), then the smallest
weights of all attention matrices, or of all MLP matrices, are set to zero. The paper prunes networks trained on
ImageNet; this is the same question on what a laptop can train, so the curves are not comparable number by number.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from common import circumstances, write
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from vitsearch.cost import Geometry, Limits
from vitsearch.models import build
from vitsearch.proxies.base import linear_roles
from vitsearch.spaces import SPACES, cost_of, sample

GEOMETRY = Geometry(image_size=32, classes=10)
RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images, standardised with the training part's mean and deviation."""
    found = load_digits()
    images = F.interpolate(torch.from_numpy(found.images).float()[:, None], size=(32, 32), mode="bilinear")
    labels = torch.from_numpy(found.target).long()
    train, test = train_test_split(torch.arange(len(labels)), test_size=0.3, random_state=0, stratify=labels)
    images = ((images - images[train].mean()) / images[train].std()).repeat(1, 3, 1, 1)
    return images[train], labels[train], images[test], labels[test]


def train(network: nn.Module, images: Tensor, labels: Tensor, epochs: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=epochs * (len(labels) // 64))
    network.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(labels), generator=generator)[: len(labels) // 64 * 64].split(64):
            optimizer.zero_grad()
            F.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    network.eval()


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    return 100 * float((network(images).argmax(1) == labels).float().mean())


@torch.no_grad()
def pruned_accuracy(network: nn.Module, role: str, ratio: float, images: Tensor, labels: Tensor) -> float:
    """With the smallest `ratio` of the weights of every linear layer of this role at zero; then all as before."""
    modules = dict(network.named_modules())
    weights = [modules[name].weight for name, its_role, _ in linear_roles(network) if its_role == role]
    kept = [weight.clone() for weight in weights]
    for weight in weights:
        smallest = weight.abs().flatten().argsort()[: int(ratio * weight.numel())]
        weight.view(-1)[smallest] = 0.0
    found = accuracy(network, images, labels)
    for weight, before in zip(weights, kept, strict=True):
        weight.copy_(before)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--commit")
    options = parser.parse_args()
    images, labels, test_images, test_labels = digits()
    spaces = {
        "autoformer-micro": SPACES["autoformer-micro"].with_patch_size(4),
        "pit": SPACES["pit"].with_patch_size(8),
    }
    rows = []
    limits = Limits(max_params=2_000_000)
    for space, over in spaces.items():
        for number, settings in enumerate(sample(over, options.networks, limits=limits, geometry=GEOMETRY)):
            network = build(settings, GEOMETRY, seed=number)
            train(network, images, labels, options.epochs, seed=number)
            curves = {
                role: [pruned_accuracy(network, role, ratio, test_images, test_labels) for ratio in RATIOS]
                for role in ("attention", "mlp")
            }
            params = cost_of(settings, GEOMETRY).params
            rows.append({"space": space, "settings": settings, "params": params} | curves)
            for role, curve in curves.items():
                print(f"{space:17s} {number} {params:8d} {role:9s}", *(f"{a:5.1f}" for a in curve), flush=True)
    lost = {
        (space, role): sum(row[role][0] - sum(row[role]) / len(RATIOS) for row in rows if row["space"] == space)
        / options.networks
        for space in spaces
        for role in ("attention", "mlp")
    }
    for (space, role), value in lost.items():
        print(f"{space}: pruning {role} costs {value:.1f} points of accuracy, mean over ratios and networks")
    summary = [{"space": space, "role": role, "mean_loss": value} for (space, role), value in lost.items()]
    about = circumstances(torch.device("cpu"), options.commit)
    write("pruning_sensitivity.json", about | {"ratios": RATIOS, "rows": rows, "summary": summary})


if __name__ == "__main__":
    main()
