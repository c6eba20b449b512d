"""The command line: parse, one call, print.

vitsearch search autoformer-tiny --objective dss --max-params 6M --trials 200 --seed 0 --out run
vitsearch export run#best --format timm --out best
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.table import Table

from vitsearch import __version__
from vitsearch.arguments import (
    choose_geometry,
    note_outside,
    read_architectures,
    read_limits,
    read_quantity,
)
from vitsearch.bench_command import bench
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.discover_command import discover
from vitsearch.errors import VitsearchError
from vitsearch.export_command import export
from vitsearch.identity_command import identity
from vitsearch.latency_command import fit_latency, latency
from vitsearch.options import (
    NUMBER,
    ArchArguments,
    BatchOption,
    ClassesOption,
    DataOption,
    DeviceOption,
    ImageSizeOption,
    JsonOption,
    MaxMacs,
    MaxParams,
    MemoryOption,
    MinMacs,
    MinParams,
    PatchOption,
    ProxyOption,
    SeedOption,
    SpaceArgument,
    space_names,
)
from vitsearch.registry import did_you_mean, load_plugin
from vitsearch.report_command import report, serve
from vitsearch.search_command import search
from vitsearch.space_command import evolve_space, guidelines
from vitsearch.spaces import SPACES, Space, cost_of, find_space, space_of
from vitsearch.spaces import sample as draw_sample
from vitsearch.specialize_command import specialize
from vitsearch.supernet_command import supernet
from vitsearch.terminal import emit, in_words, progress_bar, show, summary
from vitsearch.training_command import recipes, train

# typer carries its own click in some versions and uses the package in others
ClickException: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
GLOBAL_HELP = "Anywhere on the line: --plugin FILE.py, -v / --verbose, -q / --quiet."
INTERRUPTED = 130
SHORT = re.compile("-[vq]+")
log = logging.getLogger("vitsearch")
app = typer.Typer(
    name="vitsearch",
    help="Find the best vision transformer for a budget, and see why it is the best.",
    epilog=GLOBAL_HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def common(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print version, torch, timm and device.")] = False,
    plugin: Annotated[list[Path] | None, typer.Option(help="Python file that registers more names.")] = None,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors: no notes, no progress.")] = False,
) -> None:
    level = logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(format="vitsearch: %(message)s", stream=sys.stderr, level=logging.WARNING, force=True)
    log.setLevel(level)
    for file in plugin or []:
        load_plugin(file)
    if version:
        print_version()
    elif context.invoked_subcommand is None:
        print(context.get_help())


def print_version() -> None:
    import timm
    import torch

    from vitsearch.environment import pick_device

    print(f"vitsearch {__version__}, torch {torch.__version__}, timm {timm.__version__}, device {pick_device()}")


@app.command(epilog=GLOBAL_HELP)
def spaces(
    name: Annotated[str | None, typer.Argument(help="One space alone.", autocompletion=space_names)] = None,
    as_json: JsonOption = False,
) -> None:
    """List spaces, their knobs and exact sizes."""
    rows = [describe_space(SPACES[found]) for found in (SPACES if name is None else [name])]
    if as_json:
        return emit(rows if name is None else rows[0])
    table = Table("space", "size", "knobs", "what it is")
    for row in rows:
        knobs = "\n".join(f"{knob}: {brief_choices(facts)}" for knob, facts in row["knobs"].items())
        table.add_row(row["name"], f"{row['size']:,}", knobs, row["description"])
    show(table)


def describe_space(space: Space) -> dict[str, Any]:
    knobs = {knob.name: {"choices": knob.choices, "per": knob.per} for knob in space.knobs}
    facts = {"name": space.name, "size": space.size, "knobs": knobs, "fixed": space.fixed()}
    return facts | {"description": space.description, "paper": space.paper}


def brief_choices(facts: dict[str, Any]) -> str:
    choices = facts["choices"]
    shown = ", ".join(str(list(c) if isinstance(c, tuple) else c) for c in choices[:4])
    more = f", ... ({len(choices)})" if len(choices) > 4 else ""
    return f"{shown}{more}{' (each block)' if facts['per'] == 'block' else ''}"


@app.command(epilog=GLOBAL_HELP)
def proxies(as_json: JsonOption = False) -> None:
    """List proxies: what they need, which direction is better, where they come from."""
    from vitsearch.proxies import PROXIES

    fields = ("name", "direction", "needs_data", "needs_labels", "needs_gradient", "paper", "description")
    rows = [
        {**{field: getattr(PROXIES[name], field) for field in fields}, "options": dict(PROXIES[name].options)}
        for name in PROXIES
    ]
    if as_json:
        return emit(rows)
    table = Table("proxy", "better", "needs", "what it is", "paper")
    for row in rows:
        needs = [need for need in ("data", "labels", "gradient") if row[f"needs_{need}"]]
        better = "higher" if row["direction"] == "max" else "lower"
        table.add_row(row["name"], better, ", ".join(needs) or "nothing", row["description"], row["paper"])
    show(table)


@app.command(epilog=GLOBAL_HELP)
def sample(
    space: SpaceArgument,
    count: Annotated[int, typer.Option("-n", "--count", **NUMBER, help="How many.")] = 1,
    seed: SeedOption = 0,
    min_params: MinParams = None,
    max_params: MaxParams = None,
    min_macs: MinMacs = None,
    max_macs: MaxMacs = None,
    image_size: ImageSizeOption = None,
    classes: ClassesOption = None,
    patch_size: PatchOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw architectures uniformly, under limits without rejection."""
    found = find_space(space, patch_size)
    limits = read_limits(min_params, max_params, min_macs, max_macs)
    geometry = choose_geometry(IMAGENET, image_size, classes)
    drawn = draw_sample(found, count, seed=seed, limits=limits, geometry=geometry)
    if as_json:
        return emit(drawn)
    for settings in drawn:
        print(json.dumps(settings))


@app.command(epilog=GLOBAL_HELP)
def cost(
    arch: ArchArguments = None,
    image_size: ImageSizeOption = None,
    classes: ClassesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Exact parameters and MACs."""
    given, single = read_architectures(arch or ["-"])
    rows = []
    for item in given:
        geometry = choose_geometry(item.geometry, image_size, classes)
        params, macs = cost_of(item.understood.architecture, geometry)
        row = {"params": params, "macs": macs, "image_size": geometry.image_size, "classes": geometry.classes}
        published = space_of(item.settings).published_macs(item.understood.architecture, geometry)
        rows.append(row if published is None else row | {"macs_published_counter": published})
    note_outside(given)  # here and elsewhere after all that may be refused: bad input is one line
    if as_json:
        return emit(rows[0] if single else rows)
    table = Table("architecture", "parameters", "MACs")
    for item, row in zip(given, rows, strict=True):
        table.add_row(summary(item.settings), f"{row['params']:,}", f"{row['macs']:,}")
    show(table)


@app.command(epilog=GLOBAL_HELP)
def score(
    arch: ArchArguments = None,
    proxy: ProxyOption = "dss",
    timm: Annotated[list[str] | None, typer.Option("--timm", help="A model of timm, by name.")] = None,
    data: DataOption = "noise",
    batch_size: BatchOption = 8,
    seed: Annotated[
        int | None, typer.Option("--seed", **NUMBER, help="Of weights and data [0, or the study's].")
    ] = None,
    image_size: ImageSizeOption = None,
    classes: ClassesOption = None,
    weights: Annotated[str | None, typer.Option("--weights", help="fresh or shared [fresh, or the study's].")] = None,
    memory: MemoryOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Score untrained networks with proxies: ours, and any of timm."""
    from vitsearch.data import open_data
    from vitsearch.scoring import ProxyEvaluator

    if not arch and not timm:
        raise VitsearchError("`score` needs an ARCH or --timm MODEL, but got neither")
    given, _ = read_architectures(arch or [])
    classes = classes if classes is not None else open_data(data).classes
    names, room = proxy.split(","), read_quantity("--memory", memory)
    options: dict[str, Any] = {"device": device, "data": data, "batch_size": batch_size, "memory": room}
    groups: dict[tuple[Geometry, int, str, str], list[int]] = {}
    for number, item in enumerate(given):
        geometry = choose_geometry(item.geometry, image_size, classes)
        key = (geometry, item.seed if seed is None else seed, item.weights if weights is None else weights)
        groups.setdefault((*key, str(item.settings["space"])), []).append(number)
    rows: dict[int, dict[str, Any]] = {}
    with progress_bar("scoring", len(given) + len(timm or [])) as tick:
        tick(0)
        for (geometry, used, scheme, _), numbers in groups.items():
            evaluator = ProxyEvaluator(names, geometry=geometry, seed=used, weights=scheme, **options)
            size = evaluator.chunk(given[numbers[0]].settings)
            for start in range(0, len(numbers), size):
                part = numbers[start : start + size]
                found = evaluator([given[number].settings for number in part])
                rows |= {number: score_json(one, used, scheme) for number, one in zip(part, found, strict=True)}
                tick(len(rows))
        for model in timm or []:
            geometry = choose_geometry(IMAGENET, image_size, classes)
            evaluator = ProxyEvaluator(names, geometry=geometry, seed=seed or 0, **options)
            rows[len(rows)] = score_json(evaluator.timm(model, image_size), seed or 0, "fresh")
            tick(len(rows))
    note_outside(given)
    show_scores([rows[number] for number in sorted(rows)], names, as_json)


def score_json(found: Any, seed: int, weights: str) -> dict[str, Any]:
    return {"arch": found.arch, "scores": found.scores, "errors": found.errors, "seed": seed, "weights": weights}


def show_scores(rows: list[dict[str, Any]], names: list[str], as_json: bool) -> None:
    if as_json:
        return emit(rows)
    table = Table("architecture", *names)
    for row in rows:
        cells = [in_words(row["scores"][n]) if n in row["scores"] else row["errors"][n] for n in names]
        table.add_row(row["arch"].get("timm") or summary(row["arch"]), *cells)
    show(table)


app.command("search", epilog=GLOBAL_HELP)(search)
app.add_typer(supernet, name="supernet")
app.add_typer(bench, name="bench")
METHODS = (discover, identity, specialize, evolve_space, guidelines)
for command in (train, export, recipes, *METHODS, report, serve, latency, fit_latency):
    app.command(command.__name__.replace("_", "-"), epilog=GLOBAL_HELP)(command)


def hoist(arguments: Sequence[str]) -> list[str]:
    """Move the global options to the front, so that they may stand anywhere on the line."""
    front: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            rest += [argument, *remaining]
        elif argument == "--plugin":
            front += [argument, *([value] if (value := next(remaining, None)) is not None else [])]
        elif argument in ("--verbose", "--quiet") or SHORT.fullmatch(argument) or argument.startswith("--plugin="):
            front.append(argument)
        else:
            rest.append(argument)
    return front + rest


def one_by_one(arguments: Sequence[str]) -> list[str]:
    """`--bench a.json b.json` as `--bench a.json --bench b.json`: options of click take one value each."""
    found: list[str] = []
    values: int | None = None  # of --bench so far; None elsewhere
    for argument in arguments:
        if argument == "--bench":
            values = 0
        elif values is not None and values > 0 and not argument.startswith("-"):
            found.append("--bench")
        elif values is not None:
            values = 1 if values == 0 else None
        found.append(argument)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; every failure is one line on stderr."""
    typed = hoist(one_by_one(sys.argv[1:] if arguments is None else arguments))
    try:
        code = app(args=typed, prog_name="vitsearch", standalone_mode=False)
        if sys.stdout is not None:  # None where it was closed before we came
            sys.stdout.flush()
        if code == INTERRUPTED:  # some versions of typer turn Ctrl-C into this code, others let it through
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        hint = ", and --resume goes on from it" if goes_on(typed) else ""
        return fail(f"interrupted; whatever was written is safe{hint}", INTERRUPTED)
    except typer.Exit as done:
        return done.exit_code
    except BrokenPipeError:
        return nobody_reads()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer ends with 1 there
            return nobody_reads()
        raise
    except VitsearchError as error:
        return fail(f"error: {error}", 2)
    except OSError as error:
        what = f"use {error.filename!r}" if error.filename is not None else "read or write"
        return fail(f"error: cannot {what}: {error.strerror or error}", 2)
    except ClickException as error:
        return fail(f"error: {usage_error(error)}", 2)
    except MemoryError:
        return fail("error: out of memory", 2)
    except Exception as error:  # ours, not the user's: still one line, and the traceback for those who ask
        if log.isEnabledFor(logging.DEBUG):
            traceback.print_exc()
        from vitsearch.environment import is_out_of_memory  # which takes a second to import

        if is_out_of_memory(error):
            return fail("error: out of memory", 2)
        return fail(f"internal error (please report it; -v shows more): {type(error).__name__}: {error}", 1)


def nobody_reads() -> int:
    """The reader of our output has left, as `head` does: there is nobody to tell."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def goes_on(typed: Sequence[str]) -> bool:
    """Whether the command that was typed has --resume."""
    command: Any = typer.main.get_command(app)
    for word in typed:
        command = getattr(command, "commands", {}).get(word, command)
    return any(option.name == "resume" for option in command.params)


def usage_error(error: Any) -> str:
    """Click's message in one line, with a near command name where it has none."""
    text = str(error.format_message())
    if text.startswith("No such command") and "Did you mean" not in text:
        names = [command.name or cast(Any, command.callback).__name__ for command in app.registered_commands]
        text += did_you_mean(text.split("'")[1] if "'" in text else "", names)
    return text


def fail(text: str, code: int) -> int:
    line = " ".join(text.split())
    with suppress(OSError):  # a full disk; the code still says it
        if sys.stderr is not None:  # closed: print would take stdout
            print(f"vitsearch: {line}".encode("utf-8", "backslashreplace").decode(), file=sys.stderr)
    return code


def run() -> None:
    sys.exit(main())
