"""What a training step minimises."""

from vitsearch.tasks.base import LogitTask, Outcome, Task
from vitsearch.tasks.classification import Classification, Correct, accuracy

__all__ = ["Classification", "Correct", "LogitTask", "Outcome", "Task", "accuracy"]
