"""What was found so far, one line for each question, from experiments/results/*.json into docs/findings.md.

python experiments/findings.py [--check]
"""

from __future__ import annotations

import json
from itertools import pairwise
from statistics import fmean
from typing import Any

from pages import RESULTS, put
from result_tables import apart, inherited_tau, two_digits

Row = dict[str, Any]
SPACES = {"autoformer": "AutoFormer-like", "pit": "PiT-like"}
DISTILLED = "cifar100_kd"


def result(name: str) -> Row:
    found: Row = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def proxies() -> list[list[str]]:
    """The best of the proxies that are no size, which is chosen afterwards, beside the best that is one."""
    found = result("vitbench101")["rows"]
    lines = []
    for space, title in SPACES.items():
        own = [row for row in found if (row["benchmark"], row["dataset"], row["source"]) == (space, DISTILLED, None)]
        taus = {row["proxy"]: row["kendall"] for row in own if row["kendall"] is not None and not row["failed"]}
        sizes = {name: taus.pop(name) for name in ("params", "macs", "depth", "width") if name in taus}
        best, size = (max(one, key=one.__getitem__) for one in (taus, sizes))
        answer = f"the best of {len(taus)}, `{best}`, {taus[best]:.2f}; `dss` {taus['dss']:.2f}; "
        answer += f"`{size}` alone {sizes[size]:.2f}"
        lines.append([f"Do training-free scores rank {title} networks better than a size does?", answer, "proxies.md"])
    return lines


def discovered() -> list[list[str]]:
    lines = []
    for run in result("autoprox-all")["runs"]:
        if run["label"] != "elitism, any":
            continue
        (row,) = (row for row in run["rows"] if row["dataset"] == "joint" and row["score"] == "discovered")
        gain, low, high = (row[f"above_best_size{end}"] for end in ("", "_low", "_high"))
        answer = f"{gain:+.3f} in tau above `{row['best_size']}` ({low:+.3f} to {high:+.3f})"
        what = f"Does a discovered formula, on {SPACES[run['space']]} networks that it never saw?"
        lines.append([what, answer, "autoprox.md"])
    return lines


def winners() -> list[list[str]]:
    lines = []
    for space, title in {"autoformer-tiny-plain": "AutoFormer", "pit": "PiT"}.items():
        rows = {row["name"]: row for row in result("proxy_winners")["rows"] if row["space"] == space}
        asked = [name for name in rows if name == "dss" or (name.startswith("discovered") and "," not in name)]
        found = {name: apart(rows[name].get("minus_params")) or "the same network" for name in asked}
        answer = "; ".join(f"`{name}` {one}" for name, one in found.items())
        what = (
            f"Trained on Flowers-102, are {title} networks that a proxy chooses better than the one of most parameters?"
        )
        lines.append([what, answer, "autoprox.md"])
    return lines


def dss() -> list[str]:
    found = result("dss_and_size")
    taus = [fmean(found[name].values()) for name in ("kendall_dss_params", "kendall_between_seeds_inside_bins")]
    answer = f"tau with parameters {taus[0]:.2f}; between seeds, at nearly equal size, {taus[1]:.2f}"
    return ["What is DSS beyond size?", answer, "proxies.md"]


def supernet() -> list[list[str]]:
    reading = result("cifar10_supernet")["reading"]
    tau, winner = reading["correlation"], reading["winner"]
    ranks = f"tau {two_digits(tau['kendall'])} ({tau['interval'][0]:.2f} to {tau['interval'][1]:.2f})"
    ranks += f"; parameters alone {two_digits(tau['params_kendall'])}"
    place = f"above {winner['above']} of {winner['of']}; to their mean {apart(winner['minus_random'])}"
    return [
        ["Does a trained supernet rank networks as training from scratch does?", ranks, "supernet.md"],
        ["Is the network that evolution finds in it better than random ones of its size?", place, "supernet.md"],
    ]


def prenas() -> list[list[str]]:
    trained = apart(result("prenas_training")["mean"]["balanced_minus_redundant"])
    rows = {row["name"]: row for row in result("prenas_from_scratch")["rows"]}
    picks = "; ".join(f"{name} {apart(rows[name]['minus_random'])}" for name in ("prenas", "snip", "dss"))
    return [
        ["Do chosen networks gain when a supernet is trained on them alone?", trained, "prenas.md"],
        ["Are networks chosen before training better than random ones of their size?", picks, "prenas.md"],
    ]


def spaces() -> list[list[str]]:
    """Of each move of the space."""
    rows = result("s3_cifar10")["summary"]
    pairs = list(pairwise(rows))
    errors, networks = (
        "; ".join(f"{a['space']} to {b['space']} {apart(b[name])}" for a, b in pairs)
        for name in ("et_error_minus_before", "retrained_minus_before")
    )
    return [
        ["Does moving the space make the error of its networks smaller?", errors, "s3.md"],
        ["Is the best network below the same MACs better then, from scratch?", networks, "s3.md"],
    ]


def windows() -> list[list[str]]:
    """Of S3's supernets on a processor: smaller networks and images than the spaces above had."""
    tables = result("s3_bias_tables")["summary"][0]["interpolated_minus_separate"]
    found = result("s3_inherited")
    taus = {name: inherited_tau(found, name) for name in ("tuned", "scratch")}
    return [
        ["Does one bias table for all windows cost accuracy, against one for each?", apart(tables), "s3.md"],
        [
            "Do weights inherited from S3's supernet rank ten networks as training does?",
            f"tau {taus['tuned']} with their accuracy after fine-tuning, {taus['scratch']} from scratch",
            "s3.md",
        ],
    ]


def super_transformers() -> list[list[str]]:
    """Of ViTAS's supernets on a processor, which are small too."""
    strong = next(row for row in result("vitas_table3-fashion-mnist")["rows"] if row["row"] == 0)
    maps: dict[bool, list[float]] = {True: [], False: []}
    for one in result("vitas_figures")["figure4"]:
        maps[len(set(one["heads"])) == 1] += [distance for blocks in one["apart"] for distance in blocks]
    return [
        [
            "Does strong augmentation cost a super-transformer accuracy, against a weaker one?",
            f"{apart(strong['inherited_top1_minus_row_6'])}, in what its networks inherit; from scratch the found ones "
            f"differ by {apart(strong['retrained_top1_minus_row_6'])}",
            "vitas.md",
        ],
        [
            "Do other head counts look at other places of an image?",
            f"their maps are {middle_and_ends(maps[False])} apart (of 1), those of one head count in two supernets "
            f"{middle_and_ends(maps[True])}",
            "vitas.md",
        ],
    ]


def middle_and_ends(values: list[float]) -> str:
    return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def guidance() -> list[str]:
    found = result("distillation-flowers102-96px")
    found |= found["difference"]
    answer = f"{found['mean']:+.1f} ({found['low']:+.1f} to {found['high']:+.1f}): {found['reading']}"
    return ["Does a small convolutional teacher help transformers on small images?", answer, "training.md"]


def main() -> None:
    rows = [*proxies(), dss(), *discovered(), *winners(), *supernet(), *prenas(), *spaces(), *windows()]
    rows += [*super_transformers(), guidance()]
    lines = ["| question | answer | more |", "|---|---|---|"]
    lines += [f"| {what} | {answer} | [{page}]({page}) |" for what, answer, page in rows]
    put("findings.md", __file__, "\n".join(["", *lines, ""]))


if __name__ == "__main__":
    main()
