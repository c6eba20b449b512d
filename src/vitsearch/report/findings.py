"""Tables of what a study found that is not in its trials: the formula of a discovery, the moves of a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitsearch.report.kinds import DISCOVERY, EVOLUTION, MOVES
from vitsearch.report.reading import Reader

Finding = dict[str, Any]
"""`title`, `note`, `lead` (what it comes down to), `warnings`, and a table: `head`, `rows` of texts and numbers."""


def findings(reader: Reader) -> list[Finding]:
    """Nothing where the files are of another kind, or broken."""
    known = {DISCOVERY: discovered, EVOLUTION: moved}
    if reader.kind not in known:
        return []
    try:
        return known[reader.kind](reader)
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def finding(
    title: str, note: str, head: Sequence[str] = (), rows: Sequence[Sequence[Any]] = (), **more: Any
) -> Finding:
    return {"title": title, "note": note, "lead": None, "warnings": [], "head": head, "rows": rows, **more}


def discovered(reader: Reader) -> list[Finding]:
    found = reader.result
    if found is None:
        return []
    note = (
        f"Joint tau {found['joint']:.3f} on all networks. It was chosen on them: the table below says what it is worth."
    )
    made = [finding("The formula", note, lead=str(found["formula"]), warnings=list(map(str, found["warnings"])))]
    rows: list[Mapping[str, Any]] = found["rows"]
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    of = {(row["score"], row["dataset"]): row for row in rows}
    cells = [
        [
            score,
            *(_tau(of[score, dataset], "kendall") for dataset in datasets),
            _tau(of[score, "joint"], "above_best_size"),
        ]
        for score in dict.fromkeys(row["score"] for row in rows)
    ]
    note = "Kendall's tau on networks outside the search, with 95 % intervals, beside sizes and published proxies."
    made.append(finding("What it is worth", note, ["score", *datasets, "above the best size"], cells))
    folds = [[str(number), text] for number, text in enumerate(found["fold_formulas"])]
    note = "Each found by a search that did not see a part of the networks, and judged on that part."
    return [*made, finding("Formulas of the folds", note, ["fold", "formula"], folds)]


def _tau(row: Mapping[str, Any], measure: str) -> str:
    if row[measure] is None:
        return "not defined"
    low, high = row[f"{measure}_low"], row[f"{measure}_high"]
    return f"{row[measure]:.3f}" + (f" ({low:.3f} to {high:.3f})" if low is not None else "")


def moved(reader: Reader) -> list[Finding]:
    rows = reader.rows.get(MOVES, [])
    spaces = [row for row in rows if row["kind"] == "space"]
    moves = [row for row in rows if row["kind"] == "move"]
    if not spaces:
        return []
    unit = str(spaces[0]["unit"])
    shown = [
        [one["iteration"], f"{one['error']:.2f}", f"{one['expected_error']:.2f}", f"{one['size']:.3g}", one["name"]]
        for one in spaces
    ]
    head = ["space", "E-T error", "mean error", "networks", "name"]
    note = f"Errors are {unit}. A search takes a space by its name."
    made = [finding("The spaces", note, head, shown, lead=str(spaces[-1]["name"]))]
    head = ["space", "stage", "dimension", "choices", "errors", "slope", "95 %", "becomes", "note"]
    note = "How the error changes along the choices of each dimension, and where they move."
    return [*made, finding("How they moved", note, head, [_move(one) for one in moves])] if moves else made


def _move(one: Mapping[str, Any]) -> list[Any]:
    errors = " ".join("-" if error is None else f"{error:.2f}" for error in one["errors"])
    slope = ["", ""]
    if one["slope"] is not None:
        slope = [f"{one['slope']:.2f}", f"{one['slope_low']:.2f} to {one['slope_high']:.2f}"]
    becomes = _numbers(one["new_choices"]) if one["move"] else "stays"
    dimension = str(one["dimension"]).replace("_", " ")
    return [one["iteration"], one["stage"], dimension, _numbers(one["choices"]), errors, *slope, becomes, one["note"]]


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)
