"""Write the tables of docs/prenas.md from experiments/results/prenas_published.json.

python experiments/prenas_tables.py [--check]
"""

from __future__ import annotations

import json
from typing import Any

from pages import RESULTS, put

RESULT = RESULTS / "prenas_published.json"


def number(value: float | None) -> str:
    return "all the same" if value is None else f"{value:.2f}".replace("-0.00", "0.00")


def both(row: dict[str, Any], name: str) -> str:
    return f"{number(row[f'{name}_heads'])} | {number(row[f'{name}_ratios'])}"


def of_the_code(found: dict[str, Any], seeds: int) -> list[str]:
    names = "budget", "width x depth", "as published", "identical", "heads", "ratios", "heads, seeds", "ratios, seeds"
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in found["rows"]:
        width, depth = row["most_seeds"]
        size = f"{width} x {depth} in {row['most_seeds_count']}"
        shown = "not in the file | | |"
        if row["published"]:
            shown = f"{row['same_size']} of {seeds} | {row['identical']} of {seeds} | {both(row, 'agreement')}"
        lines.append(f"| {row['budget'] / 1e6:g} M | {size} | {shown} | {both(row, 'between_seeds')} |")
    return lines


def of_the_paper(found: dict[str, Any]) -> list[str]:
    lines = ["| budget | all seeds together pick | heads, seeds | ratios, seeds | heads, halves | ratios, halves |"]
    lines += ["|---" * 6 + "|"]
    for row in found["rows"]:
        cells = f"{both(row, 'between_seeds')} | {both(row, 'halves')}"
        lines.append(f"| {row['budget'] / 1e6:g} M | {row['together']} | {cells} |")
    return lines


def rendered() -> str:
    lines = [""]
    for space, found in json.loads(RESULT.read_text()).items():
        code, paper = found["code"], found["paper"]
        about = f"{found['machine']}, torch {found['versions']['torch']}, commit {found['commit']}"
        lines += [f"### {space}\n", f"{about}; {found['seeds']} seeds.\n"]
        lines += [f"The public code's scores, {code['batch_size']} noise images, against the published candidates:\n"]
        lines += of_the_code(code, found["seeds"])
        lines += [f"\nEq. 13 as the paper has it, {paper['batch_size']} noise images:\n", *of_the_paper(paper), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    put("prenas.md", __file__, rendered())
