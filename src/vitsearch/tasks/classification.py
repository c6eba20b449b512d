"""Cross-entropy for labels and for mixed labels, and how many predictions are right."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from vitsearch.errors import VitsearchError
from vitsearch.tasks.base import LogitTask, Outcome


class Classification(LogitTask):
    """(1 - s) times the cross-entropy with the label plus s times the mean over all classes, as timm smooths.

    Soft targets are taken as they are: Mixup has smoothed them already.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise VitsearchError(f"`label_smoothing` must be in [0, 1), but got {label_smoothing}")
        self.label_smoothing = label_smoothing

    def score(self, logits: Tensor, targets: Tensor) -> Outcome:
        smoothing = 0.0 if targets.is_floating_point() else self.label_smoothing
        loss = F.cross_entropy(logits, targets, label_smoothing=smoothing)
        return Outcome(loss, logits, {"cross_entropy": loss.detach()})


class Correct(NamedTuple):
    """Counts, as tensors on the device, so that adding them up waits for nothing."""

    top1: Tensor
    top5: Tensor


def accuracy(logits: Tensor, labels: Tensor) -> Correct:
    """How many of the labels [B] are the first, or among the first five, of the logits [B, K]."""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hits = best == labels[:, None]
    return Correct(hits[:, 0].sum(), hits.sum())
