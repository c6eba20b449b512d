"""BatchNorm's statistics of one network of a supernet, found on training images before it is evaluated or handed over.

A supernet's networks share weights but not statistics: the mean and variance that a channel has depend on all channels
before it (Yu et al., BigNAS, ECCV 2020, section 3.3). `IMAGES` of the training part, the same for every network, go
through it once as they would in evaluation, without augmentation; their means and variances are averaged.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.optim.swa_utils import update_bn

from vitsearch.architecture import Architecture
from vitsearch.data import Batch, ChosenImages, Dataset, evaluation_batches
from vitsearch.environment import products_in
from vitsearch.models.skeleton import Side
from vitsearch.models.supernet import Supernet
from vitsearch.models.vit import VisionNetwork
from vitsearch.training.plan import TrainingPlan

IMAGES = 2048


def calibration_batches(
    supernet: Supernet, plan: TrainingPlan, dataset: Dataset, device: torch.device, workers: int = 0
) -> Iterable[Batch]:
    """Batches of equal size, since each counts alike; in every process the same ones. None without BatchNorm."""
    if not supernet.batch_norm:
        return ()
    images = dataset.part("train")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).tolist()
    batch_size = min(plan.recipe.batch_size, len(images), IMAGES)
    count = min(len(images), IMAGES) // batch_size * batch_size
    return evaluation_batches(
        ChosenImages(images, order[:count]),
        dataset=dataset,
        geometry=plan.geometry,
        batch_size=batch_size,
        device=device,
        crop_pct=plan.recipe.crop_percent,
        workers=workers,
    )


def calibrated(
    supernet: Supernet, architecture: Architecture, batches: Iterable[Batch], precision: str, side: Side = "left"
) -> VisionNetwork:
    """One network with the weights it inherits and statistics of its own, in evaluation mode."""
    network = supernet.extract(architecture, side)
    if supernet.batch_norm:
        with products_in(supernet.head.weight.device, precision):
            update_bn(batches, network)
    return network.eval()
