"""The recipes of the papers, each with the place it comes from. Where paper and public code differ, the paper's."""

from __future__ import annotations

from dataclasses import replace

from vitsearch.data import Augmentation
from vitsearch.training.recipe import RECIPES, Recipe

DEIT_AUGMENTATION = Augmentation(rand_augment="rand-m9-mstd0.5-inc1", erase=0.25, repeats=3)
WEAK_AUGMENTATION = Augmentation(erase=0.25)

AUTOFORMER = RECIPES.add(
    "autoformer",
    Recipe(
        source="AutoFormer (ICCV 2021), supernet training: 500 epochs, 20 of warm-up; the recipe of DeiT otherwise",
        epochs=500,
        warmup_epochs=20,
        augmentation=DEIT_AUGMENTATION,
        mixup=0.8,
        cutmix=1.0,
        label_smoothing=0.1,
        drop_path=0.1,
        precision="float16",
    ),
)
RECIPES.add(
    "deit",
    replace(
        AUTOFORMER,
        source="DeiT (ICML 2021), table 9: 300 epochs, 5 of warm-up, batch 1,024",
        epochs=300,
        warmup_epochs=5,
    ),
)
RECIPES.add(
    "tftas",
    replace(
        AUTOFORMER,
        source="TF-TAS (CVPR 2022), section 5.1: AutoFormer's, rate 1e-3 to 1e-5, 5 warm-up, batch 256, 300 epochs",
        epochs=300,
        warmup_epochs=5,
        batch_size=256,
        learning_rate=1e-3,
        rate_batch=None,
    ),
)
VITAS = RECIPES.add(
    "vitas-weak",
    Recipe(
        source="ViTAS (ECCV 2022), tables 3 (row 6) and 4, for the super-transformer: CutMix and erasing alone",
        learning_rate=1e-3,
        rate_batch=None,
        minimum_rate=0.0,
        warmup_rate=0.0,
        steps_of="step",
        decayed="all-but-vectors",
        augmentation=WEAK_AUGMENTATION,
        cutmix=1.0,
        label_smoothing=0.1,
        precision="float32",
    ),
)
VITAS_RETRAIN = RECIPES.add(
    "vitas-retrain",
    replace(
        VITAS,
        source="ViTAS (ECCV 2022), section 4.3, retraining as DeiT: RandAugment, Mixup, CutMix, drop path, repeats",
        augmentation=DEIT_AUGMENTATION,
        mixup=0.8,
        drop_path=0.1,
    ),
)
RECIPES.add(
    "vitas-retrain-small",
    replace(VITAS_RETRAIN, source="ViTAS (ECCV 2022), section 4.3, retraining below 1.3 G MACs: no CutMix", cutmix=0.0),
)
PRENAS = replace(AUTOFORMER, source="PreNAS (ICML 2023), appendix C, table 9", minimum_rate=2e-5, mix_mode="elem")
RECIPES.add(
    "prenas-tiny",
    replace(
        PRENAS,
        weight_decay=0.02,
        mixup=0.0,
        cutmix=0.0,
        augmentation=replace(DEIT_AUGMENTATION, rand_augment="rand-m9-n2-mstd0.5-inc1"),
    ),
)
RECIPES.add("prenas-small", replace(PRENAS, augmentation=replace(DEIT_AUGMENTATION, rand_augment="v0r-mstd0.5")))
RECIPES.add(
    "prenas-base",
    replace(
        PRENAS,
        augmentation=replace(DEIT_AUGMENTATION, rand_augment="rand-m10-n3-mstd0.5-inc1", erase_count=2),
    ),
)
S3 = RECIPES.add(
    "s3",
    replace(
        AUTOFORMER,
        source="S3 (NeurIPS 2021), section 4.1: rate 1e-3 to 1e-5, 20 warm-up, batch 1,024, 300 epochs, drop path 0.2",
        epochs=300,
        drop_path=0.2,
    ),
)
RECIPES.add(
    "s3-384",
    replace(
        S3,
        source="S3 (NeurIPS 2021), section 4.2: 384 px, 10 epochs at a constant rate of 1e-5, weight decay 1e-8",
        image_size=384,
        epochs=10,
        schedule="constant",
        learning_rate=1e-5,
        rate_batch=None,
        warmup_epochs=0,
        weight_decay=1e-8,
        crop_percent=1.0,
    ),
)
RECIPES.add(
    "autoprox-small",
    Recipe(
        source="Auto-Prox (AAAI 2024), small datasets: batch 128, rate 5e-4 to 5e-6, 20 warm-up; public code",
        batch_size=128,
        rate_batch=None,
        minimum_rate=5e-6,
        warmup_epochs=20,
        warmup_rate=5e-7,
        augmentation=replace(DEIT_AUGMENTATION, repeats=1),
        drop_path=0.1,
        precision="float32",
        crop_percent=1.0,
    ),
)
RECIPES.add(
    "autoprox-teacher",
    Recipe(
        source="Auto-Prox (AAAI 2024), the ResNet-56 teacher at 32 px: SGD with Nesterov momentum, rate 0.1 to 0",
        image_size=32,
        batch_size=128,
        optimizer="sgd",
        learning_rate=0.1,
        rate_batch=None,
        minimum_rate=0.0,
        warmup_epochs=0,
        weight_decay=5e-4,
        decayed="everything",
        augmentation=replace(DEIT_AUGMENTATION, repeats=1),
        precision="float32",
        crop_percent=1.0,
    ),
)
