"""Write the tables of trained networks in the docs from experiments/results/*.json, whatever of them is there.

python experiments/result_tables.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from pages import RESULTS, ROOT

from vitsearch.ranking import kendall

Row = dict[str, Any]
RANKED = ("snip", "normalised")
WEIGHTS = {"tuned": "that after fine-tuning", "scratch": "that from scratch"}


def about(found: Row) -> str:
    rows = found.get("cells", found.get("retrained", found.get("rows", [])))
    commits = sorted({row["commit"][:7] for row in rows if "commit" in row})
    machines = sorted({row["machine"] for row in found.get("cells", []) if "machine" in row}) or [found["machine"]]
    commands = list(dict.fromkeys(row["command"] for row in rows if "command" in row)) or [found["command"]]
    made = f"{', '.join(f'`{one}`' for one in commands)}: {', '.join(machines)}, torch {found['versions']['torch']}, "
    made += f"commit {', '.join(commits) or found['commit'][:7]}"
    if (teacher := found.get("teacher")) is not None:
        made += f"; guided ({teacher['kind']}) by {teacher['network']}, itself {teacher['test_top1']:.2f} %"
    return f"{made}." if found.get("complete", True) else f"{made}. Not complete yet: some cells are missing."


def table(names: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def value(found: Row | None) -> str:
    """Mean and deviation over seeds."""
    if found is None:
        return ""
    spread = "one seed" if found["deviation"] is None else f"± {found['deviation']:.2f}"
    return f"{found['mean']:.2f} ({spread})"


def apart(found: Row | None) -> str:
    """A difference with its interval, and what can be said."""
    if found is None:
        return ""
    interval = "" if found["interval"] is None else " ({:+.2f} to {:+.2f})".format(*found["interval"])
    return f"{found['mean']:+.2f}{interval}: {found['reading']}"


def million(number: float) -> str:
    return f"{number / 1e6:.2f} M"


def cifar10_supernet(found: Row) -> list[str]:
    reached: dict[str, list[Row]] = {}
    for row in found["retrained"]:
        reached.setdefault(row["name"], []).append(row)
    inherited = found.get("inherited_validation_top1", {})
    rows = []
    for name in sorted(reached, key=lambda one: (one.startswith("spread"), reached[one][0]["params"])):
        own = sorted(reached[name], key=lambda row: row["seed"])
        top1 = " / ".join(f"{row['test_top1']:.2f}" for row in own)
        rows.append([name, million(own[0]["params"]), f"{inherited[name]:.2f}" if name in inherited else "", top1])
    names = ["network", "parameters", "inherited, validation", "from scratch, test, by seed"]
    return [*sentences(found), "", *table(names, rows)]


def sentences(found: Row) -> list[str]:
    reading, lines = found.get("reading", {}), []
    if "supernet" in found:
        done, recipe = found["supernet"]["result"], found["supernet"]["recipe"]
        ends = (
            f"{done['validation_smallest_top1']:.2f} % (smallest) and {done['validation_largest_top1']:.2f} % (largest)"
        )
        search = f"{found['search']['trials']} networks were evaluated in {found['search']['seconds']:.0f} s"
        lines.append(f"Supernet: {recipe['epochs']} epochs, {done['seconds']:.0f} s; {ends} on validation. {search}.")
    if reading.get("seed_spread") is not None:
        lines.append(f"Deviation between seeds of one network: {reading['seed_spread']:.2f} points.")
    if winner := reading.get("winner"):
        place = f"above {winner['above']} of {winner['of']} random networks of its size"
        lines.append(f"Winner: {place}; less their mean {apart(winner['minus_random'])}.")
    if most := reading.get("winner_minus_largest"):
        lines.append(f"Winner less the largest network: {apart(most)}.")
    if tau := reading.get("correlation"):
        interval = "" if tau["interval"] is None else " ({:.2f} to {:.2f})".format(*tau["interval"])
        others = {"parameters": tau["params_kendall"], "one seed with the other": tau["between_seeds"]}
        shown = ", ".join(f"{name} {two_digits(one)}" for name, one in others.items())
        lines.append(
            f"Kendall's tau of inherited with retrained accuracy over {tau['networks']} networks: "
            f"{two_digits(tau['kendall'])}{interval}; for comparison {shown}."
        )
    return [" ".join(lines)]


def two_digits(number: float | None) -> str:
    return "undefined" if number is None else f"{number:.2f}"


def prenas_training(found: Row) -> list[str]:
    schemes = list(found["mean"]["top1"])
    rows = []
    for row in [*found["rows"], found["mean"]]:
        top1 = [" / ".join(f"{one:.2f}" for one in row["top1"][scheme]) for scheme in schemes]
        difference = apart(row[f"{schemes[0]}_minus_{schemes[-1]}"])
        counts = "yes" if row["counts"] else "no"
        which = [million(row["budget"]), million(row["params"])] if "budget" in row else ["mean of all", ""]
        rows.append([*which, *top1, difference, counts])
    return table(["below", "parameters", *schemes, f"{schemes[0]} less {schemes[-1]}", "all above 85 %"], rows)


def prenas_from_scratch(found: Row) -> list[str]:
    rows = [
        [
            row["name"],
            million(row["params"]),
            " / ".join(f"{one:.2f}" for one in row["test_top1"]),
            apart(row.get("minus_random")),
            apart(row.get("prenas_minus_this")),
        ]
        for row in found["rows"]
    ]
    names = ["network", "parameters", "test top-1, by seed", "less the mean of all random ones"]
    return table([*names, "PreNAS's pick less this"], rows)


def prenas_analysis(found: Row) -> list[str]:
    rows = []
    for case, each in found["cases"].items():
        ranks = [each[f"mean_best_rank_{name}_{kind}"] for kind in ("trained", "initial") for name in RANKED]
        spans = [group["span"] for group in each["groups"]]
        shown = [f"{rank:.2f}" for rank in (*ranks, *(found["paper"][case][name] for name in RANKED))]
        rows.append([case, str(each["networks"]), f"{min(spans):.2f} to {max(spans):.2f}", *shown])
    names = ["what differs", "networks", "spread of a size (points)"]
    names += [f"{name}, {kind} weights" for kind in ("trained", "initial") for name in RANKED]
    done, recipe = found["supernet"]["result"], found["supernet"]["recipe"]
    trained = f"A supernet of {found['supernet']['data']}, {recipe['epochs']} epochs: "
    trained += f"{done['validation_smallest_top1']:.2f} to {done['validation_largest_top1']:.2f} %."
    errors = ", ".join(f"{name} {each['mean_error']:.2f} %" for name, each in found["spaces"].items())
    count = len(found["spaces"]["A"]["errors"])
    mean = f"Mean error of {count} networks of the whole space (A), "
    mean += "of their best isomers by normalised (B) and plain SNIP (C):"
    shown = table([*names, *(f"*{name}, paper*" for name in RANKED)], rows)
    return [trained, "", *shown, "", f"{mean} {errors}."]


def vitas_table2(found: Row) -> list[str]:
    rows = [
        [
            str(row["row"]),
            row["name"],
            million(row["budget"]),
            value(row.get("inherited_top1")),
            value(row["retrained_top1"]),
            apart(row.get("inherited_top1_of_row_7_minus_this")),
            apart(row.get("retrained_top1_of_row_7_minus_this")),
        ]
        for row in found["rows"]
        if row.get("retrained_top1")
    ]
    names = ["row", "what", "MACs below", "inherited", "retrained", "row 7 less this, inherited", "retrained"]
    return [*speed(found), *table(names, rows)]


def speed(found: Row) -> list[str]:
    runs = [run for row in found["rows"] for run in row["runs"] if "search_seconds" in run]
    if not runs:
        return []
    images, seconds = (sum(run[name] for run in runs) / len(runs) for name in ("images_per_second", "search_seconds"))
    trials = runs[0]["trials"]
    return [f"A search evaluated {trials} networks at {images:,.0f} images/s in {seconds:.0f} s (mean of all).", ""]


def gradients(found: Row) -> list[str]:
    rows = [
        [row["space"], f"{row['image_size']}", f"{row['networks']}"]
        + [f"{row['errors'][name]:.1e}" for name in ("trained", "definition")]
        for row in found["rows"]
        if row["what"] == "gradients"
    ]
    return table(["space", "image size", "networks", "as it is trained", "the definition in half precision"], rows)


def search_speed(found: Row) -> list[str]:
    searches = found["searches"]

    def ends(what: str, kind: str) -> str:
        values = sorted(row[what] for row in searches)
        return f"{values[0]:{kind}} to {values[-1]:{kind}}"

    (networks, images, side), *others = {(row["networks"], row["images"], row["image_size"]) for row in searches}
    assert not others, "searches of different sizes"
    what = (
        f"{len(searches)} searches, {found['beside']} at the same time, of {networks} networks each, on {images} images"
    )
    times = f"{ends('seconds', '.0f')} s of evaluation each, {ends('images_per_second', ',')} images/s"
    return [f"{what} of {side} px: {times}."]


def vitas_figures(found: Row) -> list[str]:
    """How far apart maps are: of two head counts in the same supernets, and of one in two supernets."""
    rows = []
    for one in found["figure4"]:
        few, many = one["heads"]
        what = (
            f"{few} and {many} heads, in one supernet"
            if few != many
            else f"{few} head{'s' * (few > 1)}, in two supernets"
        )
        blocks = zip(*one["apart"], strict=True)
        rows.append([what, *(f"{fmean(block):.3f} ({min(block):.3f} to {max(block):.3f})" for block in blocks)])
    trained, *_ = found["supernets"]
    drawn = [one["validation_drawn_top1"] for one in found["supernets"]]
    reached = f"{min(drawn):.1f} to {max(drawn):.1f} % of the validation part for networks as steps draw them"
    about = (
        f"{len(drawn)} supernets of {trained['data']}, {trained['epochs']} epochs, {reached}. How far maps are apart "
    )
    about += f"(0: the same, 1: disjoint; means over {found['images']} images, in brackets the range over supernets):"
    return [about, "", *table(["maps of", "first block", "second block"], rows)]


def vitas_table3(found: Row) -> list[str]:
    rows = [
        [
            str(row["row"]),
            *(value(row[what]) for what in ("inherited_top1", "first_generation_top1", "retrained_top1")),
            apart(row.get("inherited_top1_minus_row_6")),
            apart(row.get("retrained_top1_minus_row_6")),
        ]
        for row in found["rows"]
        if row["inherited_top1"]
    ]
    names = ["row", "inherited", "first generation", "retrained", "inherited less row 6", "retrained less row 6"]
    return table(names, rows)


def s3_cifar10(found: Row) -> list[str]:
    rows = [
        [
            row["space"],
            value(row["et_error"]),
            apart(row["et_error_minus_before"]),
            f"{million(row['mean_macs']['mean'])}, {million(row['mean_params']['mean'])}",
        ]
        for row in found["summary"]
    ]
    names = ["space", "E-T error", "less the space before", "mean MACs and parameters"]
    best = [
        [
            row["space"],
            value(row["retrained_top1"]),
            apart(row["retrained_minus_before"]),
            f"{million(row['macs']['mean'])}, {million(row['params']['mean'])}" if row["macs"] else "",
        ]
        for row in found["summary"]
    ]
    titles = ["space", f"best network below {found['max_macs']} MACs, from scratch", *names[2:]]
    return [*table(names, rows), "", *table(titles, best), "", *moves_by_seed(found)]


def moves_by_seed(found: Row) -> list[str]:
    """Every dimension of a stage that moved with some seed, with its slopes and steps in all of them."""
    seeds = sorted(found["cells"], key=lambda row: row["seed"])
    places = dict.fromkeys((one["iteration"], one["stage"], one["dimension"]) for one in seeds[0]["moves"])
    rows = []
    for place in places:
        own = [
            next(one for one in row["moves"] if (one["iteration"], one["stage"], one["dimension"]) == place)
            for row in seeds
        ]
        if any(one["choices"] != one["new_choices"] for one in own):
            step, stage, dimension = place
            rows.append([f"{'ABCDEFGH'[step]} -> {'ABCDEFGH'[step + 1]}", str(stage), f"`{dimension}`"])
            rows[-1] += ["stays" if one["slope"] is None else moved(one) for one in own]
    return table(["move", "stage", "dimension", *(f"seed {row['seed']}" for row in seeds)], rows)


def moved(move: Row) -> str:
    still = move["choices"] == move["new_choices"]
    return f"{move['slope']:+.2f}: " + ("stays" if still else "+".join(f"{one:g}" for one in move["new_choices"]))


def s3_bias_tables(found: Row) -> list[str]:
    rows = [
        [row["networks"], value(row["interpolated"]), value(row["separate"]), apart(row["interpolated_minus_separate"])]
        for row in found["summary"]
    ]
    names = ["networks", "one table, interpolated", "a table for each window", "interpolated minus separate"]
    return [f"Mean inherited accuracy of {found['networks']} networks, percent:", "", *table(names, rows)]


def s3_inherited(found: Row) -> list[str]:
    order = sorted(found["rows"], key=lambda row: -row["scratch"]["mean"])
    rows = [
        [million(row["params"]), f"{row['inherited']:.2f}", *(value(row[name]) for name in ("tuned", "scratch"))]
        for row in order
    ]
    names = ["parameters", "inherited", "after fine-tuning", "from scratch"]
    taus = ", ".join(f"{inherited_tau(found, name)} with {words}" for name, words in WEIGHTS.items())
    shown = [*table(names, rows), "", f"Kendall's tau of inherited accuracy: {taus}. {beside_inherited(order)}"]
    looks = found.get("attention", [])
    return [*shown, "", *where_blocks_look(looks)] if looks else shown


def inherited_tau(found: Row, name: str) -> str:
    tau, interval = two_digits(found["kendall"].get(name)), found["kendall_interval"].get(name)
    return tau if interval is None else "{} ({:.2f} to {:.2f})".format(tau, *interval)


def beside_inherited(rows: list[Row]) -> str:
    """How well a size ranks the same networks, and one seed of their training another."""
    scratch = [row["scratch"] for row in rows]
    of_size = kendall([row["params"] for row in rows], [one["mean"] for one in scratch])
    words = f"With accuracy from scratch, parameters alone have {two_digits(of_size)}"
    if min(len(one["values"]) for one in scratch) < 2:
        return f"{words}."
    of_seeds = kendall(*([one["values"][seed] for one in scratch] for seed in (0, 1)))
    return f"{words}, one seed has {two_digits(of_seeds)} with another."


def where_blocks_look(looks: list[Row]) -> list[str]:
    """Means over blocks of one stage and window."""
    rows = []
    for stage, window in sorted({(look["stage"], look["window"]) for look in looks}):
        own = [look for look in looks if (look["stage"], look["window"]) == (stage, window)]
        likenesses = [look["similarity"] for look in own if look["similarity"] is not None]
        cells = [fmean(look["mean_distance"] for look in own), fmean(likenesses) if likenesses else None]
        shown = ["" if cell is None else f"{cell:.2f}" for cell in cells]
        rows.append([str(stage), str(window), str(len(own)), *shown])
    return table(["stage", "window", "blocks", "mean distance of attention, in tokens", "likeness of heads"], rows)


def proxy_winners(found: Row) -> list[str]:
    rows = [
        [
            row["space"],
            row["name"],
            million(row["params"]),
            " / ".join(f"{one:.2f}" for one in row["test_top1"]["values"]),
            apart(row.get("minus_random")),
            apart(row["minus_params"])
            if "minus_params" in row
            else ""
            if row["name"] == "params"
            else "the same network",
        ]
        for row in found["rows"]
        if row["test_top1"]
    ]
    names = ["space", "chosen by", "parameters", "test top-1, by seed"]
    return table([*names, "less the mean of random networks", "less the most parameters"], rows)


TABLES: dict[str, tuple[str, Callable[[Row], list[str]]]] = {
    "cifar10_supernet.json": ("supernet.md", cifar10_supernet),
    "device_agreement-cuda.json": ("supernet.md", gradients),
    "prenas_training.json": ("prenas.md", prenas_training),
    "prenas_from_scratch.json": ("prenas.md", prenas_from_scratch),
    "prenas_analysis-tiny-digits.json": ("prenas.md", prenas_analysis),
    "vitas_table2.json": ("vitas.md", vitas_table2),
    "vitas_table3.json": ("vitas.md", vitas_table3),
    "vitas_table2-fashion-mnist.json": ("vitas.md", vitas_table2),
    "vitas_table3-fashion-mnist.json": ("vitas.md", vitas_table3),
    "vitas_figures.json": ("vitas.md", vitas_figures),
    "search_speed.json": ("vitas.md", search_speed),
    "s3_cifar10.json": ("s3.md", s3_cifar10),
    "s3_bias_tables.json": ("s3.md", s3_bias_tables),
    "s3_inherited.json": ("s3.md", s3_inherited),
    "proxy_winners.json": ("autoprox.md", proxy_winners),
}


def rendered(results: Path = RESULTS) -> dict[Path, str]:
    pages: dict[Path, str] = {}
    for name, (page, render) in TABLES.items():
        path = ROOT / "docs" / page
        marks = re.compile(rf"(<!-- made by experiments/result_tables.py: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = "\nNot run yet.\n"
        if (results / name).exists():
            found = json.loads((results / name).read_text())
            text = "\n".join(["", about(found), "", *render(found), ""])
        before = pages.get(path) or path.read_text()
        if not marks.search(before):
            sys.exit(f"docs/{page} has no place for {name}")
        pages[path] = marks.sub(lambda match, text=text: f"{match.group(1)}{text}\n{match.group(2)}", before)
    return pages


if __name__ == "__main__":
    for path, text in rendered().items():
        if "--check" in sys.argv and text != path.read_text():
            sys.exit(f"{path.relative_to(ROOT)} is not what the results say")
        path.write_text(text)
