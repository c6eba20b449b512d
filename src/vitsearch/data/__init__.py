"""Image data: batches for proxies, parts and loaders for training. Searching only ever sees the training part."""

from vitsearch.data.augment import Augmentation
from vitsearch.data.base import (
    DATASETS,
    Batch,
    ChosenImages,
    Dataset,
    Images,
    ImageSource,
    JoinedImages,
    Split,
    open_data,
    open_training_data,
    seeded_everything,
)
from vitsearch.data.loading import Loader, evaluation_batches, train_loader
from vitsearch.data.splits import some_of_each_class

__all__ = [
    "DATASETS",
    "Augmentation",
    "Batch",
    "ChosenImages",
    "Dataset",
    "ImageSource",
    "Images",
    "JoinedImages",
    "Loader",
    "Split",
    "evaluation_batches",
    "open_data",
    "open_training_data",
    "seeded_everything",
    "some_of_each_class",
    "train_loader",
]
