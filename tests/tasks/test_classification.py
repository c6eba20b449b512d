"""Losses against timm's and against the formula; accuracy against a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor, nn

from vitsearch.errors import VitsearchError
from vitsearch.tasks import Classification, accuracy


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_labels_with_smoothing(smoothing: float) -> None:
    logits, labels = 3 * drawn(6, 9), torch.tensor([0, 8, 3, 3, 1, 7])
    outcome = Classification(smoothing).score(logits, labels)
    wanted = (1 - smoothing) * np.eye(9)[labels.numpy()] + smoothing / 9
    values = logits.numpy()
    log_probabilities = values - np.log(np.exp(values).sum(1, keepdims=True))
    assert float(outcome.loss) == pytest.approx(-(wanted * log_probabilities).sum(1).mean(), rel=1e-12)
    torch.testing.assert_close(outcome.loss, LabelSmoothingCrossEntropy(smoothing)(logits, labels))


def test_soft_targets_are_not_smoothed_again() -> None:
    logits, targets = drawn(5, 7), drawn(5, 7, seed=1).softmax(1)
    outcome = Classification(0.3).score(logits, targets)
    torch.testing.assert_close(outcome.loss, SoftTargetCrossEntropy()(logits, targets))


def test_a_step_runs_the_network_once_and_logs_detached_terms() -> None:
    network = nn.Linear(4, 3).double()
    outcome = Classification().losses(network, drawn(2, 4), torch.tensor([0, 2]))
    torch.testing.assert_close(outcome.logits, network(drawn(2, 4)))
    assert outcome.loss.requires_grad and not outcome.parts["cross_entropy"].requires_grad
    torch.testing.assert_close(outcome.parts["cross_entropy"], outcome.loss.detach())


@pytest.mark.parametrize("classes", [1, 3, 5, 12])
def test_accuracy_counts(classes: int) -> None:
    logits = drawn(40, classes)
    labels = torch.randint(classes, (40,), generator=torch.Generator().manual_seed(2))
    top1 = top5 = 0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        rank = sum(value > row[label] for value in row)
        top1, top5 = top1 + (rank == 0), top5 + (rank < 5)
    found = accuracy(logits, labels)
    assert (int(found.top1), int(found.top5)) == (top1, top5)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_bad_smoothing_is_named(smoothing: float) -> None:
    with pytest.raises(VitsearchError, match=r"`label_smoothing` must be in \[0, 1\)"):
        Classification(smoothing)
