"""Auto-Prox's locality guidance against none: the same student, data, recipe and seeds, with and without a teacher.

    VITSEARCH_DATA=... python experiments/distillation.py --device cuda --commit HASH     # minutes on one H200

1. ResNet-56 (CIFAR form) at 32 px, `vitsearch train --timm vitsearch_resnet56 --recipe autoprox-teacher`
2. a student of `autoformer-tiny-plain` at 96 px, patch 8, `--recipe autoprox-small`, for each seed twice: alone, and
   with `--distill TEACHER` (three pairs of maps, weight 2.5)

Each training is a process of its own in `--work`, where what is finished is not trained again; `--at-once` of them
share the device. Trained on train and validation together, as the paper has it, and tested once at the end.
Differences are paired by seed, with a Student interval of 95 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from common import RESULTS, circumstances, write
from scipy.stats import t as student_t

import vitsearch
from vitsearch.environment import pick_device, usable_precision

STUDENT = {
    "space": "autoformer-tiny-plain",
    "embed_dim": 216,
    "depth": 12,
    "num_heads": [3, 4, 3, 4, 3, 4, 3, 4, 3, 4, 3, 4],
    "mlp_ratio": [4.0] * 12,
    "patch_size": 8,
}


def train(arguments: list[str], out: Path) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "vitsearch",
        "train",
        *arguments,
        "--out",
        str(out),
        "--json",
        "--quiet",
        "--resume",
    ]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"wall_seconds": round(time.perf_counter() - start, 1), "command": " ".join(command[2:])}


def interval(values: list[float]) -> tuple[float, float]:
    """Student's, of the mean, at 95 %."""
    half = float(student_t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return mean(values) - half, mean(values) + half


def summary(alone: list[float], guided: list[float]) -> dict[str, Any]:
    differences = [b - a for a, b in zip(alone, guided, strict=True)]
    low, high = interval(differences)
    reading = "not distinguishable" if low <= 0 <= high else "better" if low > 0 else "worse"
    return {
        "alone": {"top1": alone, "mean": mean(alone), "deviation": stdev(alone)},
        "guided": {"top1": guided, "mean": mean(guided), "deviation": stdev(guided)},
        "difference": {"by_seed": differences, "mean": mean(differences), "low": low, "high": high},
        "reading": f"with the teacher: {reading}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="flowers102-96px", help="prefix of Parquet files under VITSEARCH_DATA")
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--teacher-epochs", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", default="bfloat16", help="the paper trains in float32")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("distillation"), help="folder of the trainings")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    data = f"parquet:{Path(os.environ['VITSEARCH_DATA']) / options.data}"
    common = ["--data", data, "--parts", "train+validation", "--device", options.device, "--save-every", "20000"]
    common += ["--set", f"precision={options.precision}"]
    start = time.perf_counter()
    place: Path = options.work
    place.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.at_once) as pool:
        arch = place / "student.json"
        arch.write_text(json.dumps(STUDENT))
        recipe = ["--recipe", "autoprox-teacher", "--epochs", str(options.teacher_epochs)]
        teacher_of = ["--timm", "vitsearch_resnet56", *recipe, *common, "--no-compile"]  # short, and long to compile
        teacher_job = pool.submit(train, teacher_of, place / "teacher")
        recipe = [
            "--recipe",
            "autoprox-small",
            "--epochs",
            str(options.epochs),
            "--image-size",
            str(options.image_size),
        ]
        student = [str(arch), *recipe, *common]
        seeds = [["--seed", str(seed)] for seed in range(options.seeds)]
        alone = [pool.submit(train, [*student, *seed], place / f"alone{seed[1]}") for seed in seeds]
        teacher = teacher_job.result()
        print(f"teacher: {teacher['test_top1']:.2f} % in {teacher['wall_seconds']} s", flush=True)
        guide = ["--distill", str(place / "teacher")]
        guided = [pool.submit(train, [*student, *seed, *guide], place / f"guided{seed[1]}") for seed in seeds]
        runs = {kind: [job.result() for job in jobs] for kind, jobs in (("alone", alone), ("guided", guided))}
    found = summary(*([run["test_top1"] for run in runs[kind]] for kind in ("alone", "guided")))
    print(json.dumps(found, indent=1))
    kept = ("test_top1", "test_top5", "test_loss", "test_images", "steps", "images_seen", "wall_seconds", "last_epoch")
    about = circumstances(pick_device(options.device), options.commit)
    about |= {"data": options.data, "epochs": options.epochs, "teacher_epochs": options.teacher_epochs}
    precision = usable_precision(pick_device(options.device), options.precision)
    about |= {"precision": precision, "image_size": options.image_size, "student": STUDENT}
    about |= {"params": vitsearch.cost_of(STUDENT, vitsearch.Geometry(image_size=options.image_size)).params}
    about |= {"seconds": round(time.perf_counter() - start, 1), "command": " ".join(sys.argv)}
    found |= {"teacher": {name: teacher[name] for name in kept}}
    found |= {"runs": {kind: [{n: run[n] for n in kept} for run in several] for kind, several in runs.items()}}
    print(write(f"distillation-{options.data}.json", about | found, options.out))


if __name__ == "__main__":
    main()
