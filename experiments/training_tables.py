"""Write the table of docs/training.md from experiments/results/distillation-*.json.

python experiments/training_tables.py [--check]
"""

from __future__ import annotations

import json
from pathlib import Path

from pages import RESULTS, put


def table(file: Path) -> list[str]:
    found = json.loads(file.read_text())
    seeds = len(found["alone"]["top1"])
    lines = [
        f"\n{found['machine']}, torch {found['versions']['torch']}, commit {found['commit']}; {found['data']}, "
        f"{found['epochs']} epochs, a student of {found['params'] / 1e6:.1f} M parameters, a teacher of "
        f"{found['teacher_epochs']} epochs.\n",
        f"| test top-1, % | {' | '.join(f'seed {seed}' for seed in range(seeds))} | mean | |",
        "|---" * (seeds + 3) + "|",
    ]
    for name in ("alone", "guided"):
        values = " | ".join(f"{value:.2f}" for value in found[name]["top1"])
        lines.append(f"| {name} | {values} | {found[name]['mean']:.2f} | deviation {found[name]['deviation']:.2f} |")
    apart = found["difference"]
    values = " | ".join(f"{value:+.2f}" for value in apart["by_seed"])
    interval = f"95 % interval {apart['low']:+.2f} to {apart['high']:+.2f}"
    return [*lines, f"| difference | {values} | {apart['mean']:+.2f} | {interval} |"]


def rendered() -> str:
    lines = [line for file in sorted(RESULTS.glob("distillation-*.json")) for line in table(file)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    put("training.md", __file__, rendered())
