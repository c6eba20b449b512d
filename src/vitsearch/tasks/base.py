"""The contract between a trainer and what it minimises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn


class Outcome(NamedTuple):
    """`loss` is a scalar, the mean over the batch; `logits` [B, K]; `parts` are detached terms, for logging."""

    loss: Tensor
    logits: Tensor
    parts: dict[str, Tensor]


class Task(nn.Module, ABC):
    """A loss with the network as an argument. Trainable parameters of its own are trained with the network's.

    A task may call other methods of the network than `forward`; whoever compiles or distributes a step wraps task and
    network together.
    """

    @abstractmethod
    def losses(self, network: nn.Module, images: Tensor, targets: Tensor) -> Outcome:
        """`targets`: labels [B] in int64, or probabilities [B, K] in floating point, as Mixup gives them."""


class LogitTask(Task):
    """A task that needs the logits alone, so that another one can wrap it and run the network only once."""

    @abstractmethod
    def score(self, logits: Tensor, targets: Tensor) -> Outcome: ...

    def losses(self, network: nn.Module, images: Tensor, targets: Tensor) -> Outcome:
        return self.score(network(images), targets)
