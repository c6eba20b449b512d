"""Pictures of how proxies agree with benchmark tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitsearch.errors import VitsearchError
from vitsearch.report.page import write_page
from vitsearch.spaces import cost_of

if TYPE_CHECKING:
    from vitsearch.benchmark import Table
    from vitsearch.correlation import Row, ScoreBook

ACROSS = 5
Figure = dict[str, Any]  # data and layout, as plotly.js takes them


def write_correlation_page(
    path: Path,
    tables: Sequence[Table],
    book: ScoreBook,
    proxies: Sequence[str],
    seeds: Sequence[int],
    rows: Sequence[Row],
    columns: Sequence[str] = (),
) -> None:
    """Kendall's tau with intervals, proxies against each other, and every score against every accuracy."""
    from vitsearch.correlation import between_proxies, measured

    sections = []
    for table in tables:
        figures: list[Figure] = []
        for column in columns or table.columns:
            if column not in table.columns or len(measured(table, column)) < 2:
                continue
            own = [row for row in rows if _place(row) == (table.name, column, None)]
            matrix = between_proxies(table, column, book, proxies, seeds[0])
            figures += [
                intervals(column, own),
                heat_map(column, proxies, matrix),
                scatter(table, column, book, own, seeds[0]),
            ]
        if figures:
            note = f"Seeds {', '.join(map(str, seeds))}; scatter plots: the first."
            sections.append({"heading": table.name, "note": note, "figures": figures})
    if not sections:
        raise VitsearchError("`page` must have something to show, but no column has two measured networks")
    title = "Proxies against accuracies"
    write_page(path, f"{title} · vitsearch", {"title": title, "studies": [], "figures": sections})


def correlation_section(rows: Sequence[Row]) -> dict[str, Any]:
    """What `bench correlate --json` printed, as intervals for each table and column."""
    plain = [row for row in rows if row["source"] is None]
    places = dict.fromkeys((row["benchmark"], row["dataset"]) for row in plain)
    figures = [
        intervals(f"{place[0]}, {place[1]}", [row for row in plain if _place(row)[:2] == place]) for place in places
    ]
    note = "How well each proxy ranks networks whose accuracy is known, beside the size baselines."
    return {"heading": "Proxies against accuracies", "note": note, "figures": figures}


def _place(row: Row) -> tuple[Any, Any, Any]:
    return row["benchmark"], row["dataset"], row["source"]


def intervals(column: str, rows: Sequence[Row]) -> Figure:
    shown = sorted((row for row in rows if row["kendall"] is not None), key=lambda row: row["kendall"])
    traces = []
    for measure, name in (("kendall", "all networks"), ("kendall_near_size", "within 5 % of parameters")):
        known = [row for row in shown if row[measure] is not None]
        values = [row[measure] for row in known]
        above, below = (
            [row[measure] if row.get(f"{measure}_{end}") is None else row[f"{measure}_{end}"] for row in known]
            for end in ("high", "low")
        )
        error = {
            "type": "data",
            "symmetric": False,
            "array": [high - value for high, value in zip(above, values, strict=True)],
            "arrayminus": [value - low for low, value in zip(below, values, strict=True)],
        }
        names = [row["proxy"] for row in known]
        trace = {"type": "scatter", "x": values, "y": names, "error_x": error, "mode": "markers", "name": name}
        traces.append(trace | {"orientation": "h", "offsetgroup": measure})
    layout = {"title": f"{column}: Kendall's tau with 95 % intervals", "height": 150 + 26 * len(shown)}
    layout |= {"scattermode": "group", "scattergap": 0.4}
    return {"data": traces, "layout": layout}


def heat_map(column: str, proxies: Sequence[str], matrix: Sequence[Sequence[float | None]]) -> Figure:
    heat: Figure = {"type": "heatmap", "z": [list(row) for row in matrix], "x": list(proxies), "y": list(proxies)}
    heat |= {"zmin": -1, "zmax": 1, "colorscale": [[0, "#2166ac"], [0.5, "#f7f7f7"], [1, "#b2182b"]]}
    layout = {"title": f"{column}: Kendall's tau between proxies", "height": 240 + 22 * len(proxies)}
    return {"data": [heat], "layout": layout}


def scatter(table: Table, column: str, book: ScoreBook, rows: Sequence[Row], seed: int) -> Figure:
    """Score against accuracy, a panel for each proxy, coloured by parameters."""
    from vitsearch.correlation import measured

    pairs = measured(table, column)
    networks = [network for network, _ in pairs]
    millions = [cost_of(network.settings, network.geometry).params / 1e6 for network in networks]
    shown = [row for row in rows if row["kendall"] is not None]
    down = max(1, math.ceil(len(shown) / ACROSS))
    layout: Figure = {"title": f"{column}: accuracy against score", "height": 100 + 230 * down, "showlegend": False}
    layout |= {"grid": {"rows": down, "columns": ACROSS, "pattern": "independent", "ygap": 0.35}}
    traces, titles = [], []
    for number, row in enumerate(shown):
        axis = str(number + 1) if number else ""
        marker: Figure = {"color": millions, "size": 5, "colorscale": "Viridis", "showscale": number == 0}
        marker |= {"colorbar": {"title": {"text": "M params"}}} if number == 0 else {}
        scores = book.column(networks, seed, row["proxy"])
        trace = {"type": "scatter", "mode": "markers", "marker": marker, "xaxis": f"x{axis}", "yaxis": f"y{axis}"}
        traces.append(trace | {"x": scores, "y": [accuracy for _, accuracy in pairs], "name": row["proxy"]})
        text = f"{row['proxy']}, {row['kendall']:.2f}"
        place = {"xref": f"x{axis} domain", "yref": f"y{axis} domain", "x": 0.5, "y": 1.0}
        titles.append(place | {"text": text, "xanchor": "center", "yanchor": "bottom", "showarrow": False})
    return {"data": traces, "layout": layout | {"annotations": titles}}
