"""Pictures of a space evolution: how choices moved (Figure 2), and how errors are distributed (Figures 3 and 6).

draw_evolution(study, "evolution.svg")     # study: the folder, or what `evolve_space` gave
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitsearch.errors import BadStudy, require
from vitsearch.methods.space_moves import Rules, et_error, top_count
from vitsearch.methods.space_study import Evolved, read_evolution
from vitsearch.spaces import SPACES
from vitsearch.spaces.windowed import DIMENSIONS, Windowed

NAMES = {
    "depth": "blocks",
    "embed_dim": "embedding",
    "num_heads": "heads",
    "mlp_ratio": "MLP ratio",
    "window_size": "window",
}


def choices_by_step(study: Evolved | str | Path) -> dict[str, list[list[tuple[float, ...]]]]:
    """Figure 2: for each dimension and stage the choices of every space, in order, and of the one to come."""
    found = _opened(study)
    spaces = [_space(space["name"]) for space in found.spaces]
    by_step = {
        name: [[getattr(space, name)[stage] for space in spaces] for stage in range(spaces[0].stages)]
        for name in DIMENSIONS
    }
    for move in found.moves:
        if move["iteration"] == len(spaces) - 1:  # stopped before it was measured
            by_step[move["dimension"]][move["stage"] - 1].append(tuple(move["new_choices"]))
    return by_step


def errors_by_depth(study: Evolved | str | Path, iteration: int = -1) -> list[dict[int, list[float]]]:
    """Figure 3: for each stage, and each number of blocks in it, the errors of networks of one space, sorted."""
    found = _opened(study)
    number = iteration % len(found.spaces)
    pairs, stages = found.errors_of(number), _space(found.spaces[number]["name"]).stages
    by_stage: list[dict[int, list[float]]] = []
    for stage in range(stages):
        own: dict[int, list[float]] = {}
        for settings, error in sorted(pairs, key=lambda pair: pair[1]):
            own.setdefault(settings["depth"][stage], []).append(error)
        by_stage.append(dict(sorted(own.items())))
    return by_stage


def errors_by_space(study: Evolved | str | Path) -> list[list[float]]:
    """Figure 6: the errors of networks of every space, sorted."""
    found = _opened(study)
    return [sorted(error for _, error in found.errors_of(number)) for number in range(len(found.spaces))]


def draw_evolution(study: Evolved | str | Path, path: str | Path) -> None:
    found = choices_by_step(study)
    stages = len(found["depth"])

    def paint(figure: Any) -> None:
        grid = figure.subplots(len(found), stages, sharex=True, sharey="row", squeeze=False)
        for row, (name, by_stage) in zip(grid, found.items(), strict=True):
            for stage, (axes, steps) in enumerate(zip(row, by_stage, strict=True)):
                for step, choices in enumerate(steps):
                    axes.plot([step] * len(choices), choices, "o", color="tab:blue", markersize=4)
                axes.plot(range(len(steps)), [sum(own) / len(own) for own in steps], color="tab:orange")
                axes.set_xticks(range(len(steps)))
                if stage == 0:
                    axes.set_ylabel(NAMES[name])
                if name == "depth":
                    axes.set_title(f"stage {stage + 1}", fontsize=10)
        for axes in grid[-1]:
            axes.set_xlabel("step")

    _save(paint, path, (2.6 * stages, 1.7 * len(found)))


def draw_depths(study: Evolved | str | Path, path: str | Path, iteration: int = -1) -> None:
    """One panel a stage, and the error of the best networks for each number of blocks."""
    by_stage, rules = errors_by_depth(study, iteration), Rules()

    def paint(figure: Any) -> None:
        *panels, last = figure.subplots(1, len(by_stage) + 1)
        for stage, (axes, own) in enumerate(zip(panels, by_stage, strict=True), 1):
            for depth, errors in own.items():
                _distribution(axes, errors, f"{depth} blocks")
            axes.set_title(f"stage {stage}", fontsize=10)
            best = [
                sum(errors[: top_count(len(errors), rules)]) / top_count(len(errors), rules) for errors in own.values()
            ]
            last.plot(list(own), best, marker="o", label=f"stage {stage}")
        last.set_xlabel("blocks")
        last.set_ylabel("error of the best (%)")
        last.legend(frameon=False, fontsize=8)

    _save(paint, path, (3.2 * (len(by_stage) + 1), 3.2))


def draw_spaces(study: Evolved | str | Path, path: str | Path) -> None:
    found, rules = errors_by_space(study), Rules()

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        for number, errors in enumerate(found):
            _distribution(axes, errors, f"space {chr(ord('A') + number)}: E-T error {et_error(errors, rules):.2f}")

    _save(paint, path, (4.5, 3.5))


def _distribution(axes: Any, errors: list[float], label: str) -> None:
    axes.step(errors, [(number + 1) / len(errors) for number in range(len(errors))], where="post", label=label)
    axes.set_xlabel("error (%)")
    axes.set_ylabel("share of networks")
    axes.legend(frameon=False, fontsize=8)


def _save(paint: Callable[[Any], None], path: str | Path, size: tuple[float, float]) -> None:
    require("matplotlib", extra="plots")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "vitsearch"}):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None})


def _opened(study: Evolved | str | Path) -> Evolved:
    found = study if isinstance(study, Evolved) else read_evolution(study)
    if not found.spaces:
        raise BadStudy(f"{found.path} has not measured a space yet")
    return found


def _space(name: str) -> Windowed:
    space = SPACES[name]
    assert isinstance(space, Windowed)
    return space
