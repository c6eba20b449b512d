"""Recipes of our own: quick trainings and fine-tuning."""

from __future__ import annotations

from dataclasses import replace

from vitsearch.data import Augmentation
from vitsearch.training.recipe import RECIPES, Recipe

RECIPES.add(
    "quick",
    Recipe(
        source="vitsearch: small images in minutes, on a CPU too; images as they are",
        image_size=32,
        epochs=30,
        batch_size=64,
        learning_rate=5e-4,
        rate_batch=64,
        warmup_epochs=3,
        steps_of="step",
        augmentation=Augmentation(crop="none", flip=0.0, interpolation="bilinear"),
        clip=1.0,
        precision="float32",
        crop_percent=1.0,
    ),
)
SMALL_IMAGES = Recipe(
    source="vitsearch: tens of thousands of small images from scratch, in minutes on a GPU",
    image_size=32,
    epochs=30,
    batch_size=512,
    optimizer="nadamuon",
    learning_rate=4e-3,
    minimum_rate=1e-6,
    warmup_epochs=2,
    steps_of="step",
    augmentation=Augmentation(crop="padded", interpolation="bilinear"),
    cutmix=1.0,
    label_smoothing=0.1,
    clip=1.0,
    crop_percent=1.0,
)
RECIPES.add("small-images", SMALL_IMAGES)
RECIPES.add(
    "small-images-guided",
    replace(
        SMALL_IMAGES,
        source="vitsearch: small-images with a convolutional teacher (--distill), in a quarter of the epochs",
        epochs=8,
        warmup_epochs=1,
        cutmix=0.0,
    ),
)
RECIPES.add(
    "finetune",
    Recipe(
        source="vitsearch: a trained network to another dataset, class count or resolution",
        epochs=30,
        batch_size=128,
        learning_rate=5e-5,
        rate_batch=128,
        minimum_rate=1e-6,
        warmup_epochs=2,
        steps_of="step",
        weight_decay=0.05,
        augmentation=Augmentation(scale=(0.4, 1.0)),
        label_smoothing=0.1,
        drop_path=0.1,
        clip=1.0,
        average=0.998,
        crop_percent=1.0,
    ),
)
