"""Pictures of results, as HTML pages that need nothing else."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitsearch.correlation import Row, ScoreBook, between_proxies, measured
from vitsearch.errors import VitsearchError
from vitsearch.records import write_atomically
from vitsearch.spaces import cost_of

if TYPE_CHECKING:
    from vitsearch.benchmark import Table

ACROSS = 5
STYLE = "body{font-family:sans-serif;max-width:1500px;margin:2em auto;padding:0 1em}h1,h2{font-weight:normal}"


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
    parts = [f"<!doctype html><meta charset=utf-8><title>vitsearch: proxies</title><style>{STYLE}</style>"]
    parts.append(
        f"<h1>Proxies against accuracies</h1><p>Seeds {', '.join(map(str, seeds))}; scatter plots: the first.</p>"
    )
    figures = 0
    for table in tables:
        parts.append(f"<h2>{html.escape(table.name)}</h2>")
        for column in columns or table.columns:
            if column not in table.columns or len(measured(table, column)) < 2:
                continue
            own = [
                row for row in rows if (row["benchmark"], row["dataset"], row["source"]) == (table.name, column, None)
            ]
            for figure in (
                _intervals(column, own),
                _heat_map(column, proxies, between_proxies(table, column, book, proxies, seeds[0])),
                _scatter(table, column, book, own, seeds[0]),
            ):
                parts.append(figure.to_html(full_html=False, include_plotlyjs=figures == 0))
                figures += 1
    if not figures:
        raise VitsearchError("`page` must have something to show, but no column has two measured networks")
    write_atomically(path, "\n".join(parts))


def _intervals(column: str, rows: Sequence[Row]) -> Any:
    import plotly.graph_objects as go

    shown = sorted((row for row in rows if row["kendall"] is not None), key=lambda row: row["kendall"])
    figure = go.Figure()
    for measure, name in (("kendall", "all networks"), ("kendall_near_size", "within 5 % of parameters")):
        known = [row for row in shown if row[measure] is not None]
        values = [row[measure] for row in known]
        above = [(row[f"{measure}_high"] if row[f"{measure}_high"] is not None else row[measure]) for row in known]
        below = [(row[f"{measure}_low"] if row[f"{measure}_low"] is not None else row[measure]) for row in known]
        error = {
            "type": "data",
            "symmetric": False,
            "array": [high - value for high, value in zip(above, values, strict=True)],
            "arrayminus": [value - low for low, value in zip(below, values, strict=True)],
        }
        names = [row["proxy"] for row in known]
        figure.add_trace(go.Scatter(x=values, y=names, error_x=error, mode="markers", name=name))
    figure.update_layout(title=f"{column}: Kendall's tau with 95 % intervals", height=120 + 22 * len(shown))
    return figure


def _heat_map(column: str, proxies: Sequence[str], matrix: Sequence[Sequence[float | None]]) -> Any:
    import plotly.graph_objects as go

    heat = go.Heatmap(z=matrix, x=list(proxies), y=list(proxies), zmin=-1, zmax=1, colorscale="RdBu", reversescale=True)
    figure = go.Figure(heat)
    figure.update_layout(title=f"{column}: Kendall's tau between proxies", height=240 + 22 * len(proxies))
    return figure


def _scatter(table: Table, column: str, book: ScoreBook, rows: Sequence[Row], seed: int) -> Any:
    """Score against accuracy, a panel for each proxy, coloured by parameters."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    pairs = measured(table, column)
    networks = [network for network, _ in pairs]
    millions = [cost_of(network.settings, network.geometry).params / 1e6 for network in networks]
    shown = [row for row in rows if row["kendall"] is not None]
    down = max(1, math.ceil(len(shown) / ACROSS))
    titles = [f"{row['proxy']}, {row['kendall']:.2f}" for row in shown]
    figure = make_subplots(rows=down, cols=ACROSS, subplot_titles=titles)
    for number, row in enumerate(shown):
        scores = book.column(networks, seed, row["proxy"])
        marker = {"color": millions, "size": 5, "colorscale": "Viridis", "showscale": number == 0}
        marker |= {"colorbar": {"title": "M params"}} if number == 0 else {}
        points = go.Scatter(x=scores, y=[accuracy for _, accuracy in pairs], mode="markers", marker=marker)
        figure.add_trace(points, row=number // ACROSS + 1, col=number % ACROSS + 1)
    figure.update_layout(title=f"{column}: accuracy against score", height=100 + 230 * down, showlegend=False)
    return figure
