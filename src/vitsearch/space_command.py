"""`vitsearch evolve-space` and `vitsearch guidelines`: search the search space, and say what it shows.

vitsearch evolve-space s3-initial --objective dss --samples 20 --out look
vitsearch evolve-space s3-initial --data folder:imagenet --recipe s3 --max-macs 4.7G --out evolved
vitsearch guidelines evolved
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from vitsearch.arguments import choose_geometry, read_limits, read_quantity, refuse
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.options import (
    NUMBER,
    AllowChangedOption,
    DeviceOption,
    ImageSizeOption,
    JsonOption,
    MaxMacs,
    MaxParams,
    MinMacs,
    MinParams,
    OutOption,
    PatchOption,
    ResumeOption,
    SeedOption,
    SpaceArgument,
)
from vitsearch.spaces import SPACES, find_space, patch_words
from vitsearch.terminal import emit, progress_bar, show
from vitsearch.training_command import (
    BatchSizeOption,
    ChannelsOption,
    CompileOption,
    DistillKindOption,
    DistillOption,
    EpochsOption,
    RecipeOption,
    ResidentOption,
    SaveEveryOption,
    SetOption,
    WorkersOption,
    read_distillation,
    read_machine,
    read_recipe,
    supernet_geometry,
)

RECIPE, SUBNETS = "s3", "sandwich"


def evolve_space(
    space: SpaceArgument,
    out: OutOption,
    objective: Annotated[
        str | None,
        typer.Option("--objective", help="A proxy or a cost in place of trained supernets: a look without training."),
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", **NUMBER, help="How often the space moves.")] = 2,
    samples: Annotated[int, typer.Option("--samples", **NUMBER, help="Networks for each choice.")] = 100,
    paired: Annotated[
        bool,
        typer.Option(
            "--paired/--independent", help="Compare choices in networks that are otherwise the same, or in others."
        ),
    ] = True,
    data: Annotated[
        str | None,
        typer.Option("--data", help="digits, parquet:PATH, folder:PATH, ... [digits; noise for an objective]."),
    ] = None,
    recipe: RecipeOption = RECIPE,
    subnets: Annotated[
        str, typer.Option("--subnets", help="Which networks a step trains: sandwich or uniform.")
    ] = SUBNETS,
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    changes: SetOption = None,
    image_size: ImageSizeOption = None,
    patch_size: PatchOption = None,
    channels: ChannelsOption = 3,
    distill: DistillOption = None,
    distill_kind: DistillKindOption = None,
    images: Annotated[
        int | None, typer.Option("--images", **NUMBER, help="Validation images that judge a network [all].")
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option("--tau", help="Percent of error per step that moves a choice [0.4; 10 for an objective]."),
    ] = None,
    rounding: Annotated[
        str, typer.Option("--rounding", help="Of slope / tau: trunc, or floor as the paper prints.")
    ] = "trunc",
    step: Annotated[
        list[str] | None, typer.Option("--step", help="Of a dimension, such as embed_dim=32; repeatable.")
    ] = None,
    most_steps: Annotated[int, typer.Option("--most-steps", **NUMBER, help="In one move; the paper has no bound.")] = 8,
    max_size: Annotated[
        str | None, typer.Option("--max-size", help="Networks that a space may have, such as 1e24 [no bound].")
    ] = None,
    seed: SeedOption = 0,
    min_params: MinParams = None,
    max_params: MaxParams = None,
    min_macs: MinMacs = None,
    max_macs: MaxMacs = None,
    device: DeviceOption = "auto",
    compiled: CompileOption = None,
    resident: ResidentOption = None,
    workers: WorkersOption = 2,
    save_every: SaveEveryOption = 500,
    resume: ResumeOption = False,
    allow_changed: AllowChangedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Move the choices of a space towards smaller errors; print every move and keep all that led to it."""
    SPACES[space]  # a wrong name is said before torch is loaded
    limits = read_limits(min_params, max_params, min_macs, max_macs)
    from vitsearch.data import open_data
    from vitsearch.methods.space_evolution import RANK_TAU
    from vitsearch.methods.space_evolution import evolve_space as evolve
    from vitsearch.methods.space_moves import MOST_SIZE, Rules, check_steps
    from vitsearch.methods.space_study import Training

    usual = Rules().tau if objective is None else RANK_TAU
    rules = Rules(
        tau=usual if tau is None else tau,
        rounding=rounding,
        steps=check_steps(step or []),
        most_steps=most_steps,
        most_size=read_quantity("--max-size", max_size, below=MOST_SIZE),
    )
    options: dict[str, Any] = {"objective": objective}
    if data is None:
        data = "digits" if objective is None else "noise"
    if objective is None:
        chosen = read_recipe(recipe, epochs, batch_size, changes)
        taught = read_distillation(distill, distill_kind, "soft")
        options["training"] = Training(data=data, recipe=chosen, subnets=subnets, distillation=taught, images=images)
        geometry = supernet_geometry(data, chosen, image_size, channels)
    else:
        useless: dict[str, Any] = {"distill": distill, "distill-kind": distill_kind, "images": images, "epochs": epochs}
        useless |= {"set": changes, "compile": compiled, "resident": resident}
        useless |= {"recipe": None if recipe == RECIPE else recipe, "subnets": None if subnets == SUBNETS else subnets}
        refuse("--objective, where nothing is trained", useless)
        options |= {"data": data} | ({} if batch_size is None else {"batch_size": batch_size})
        base = replace(IMAGENET, channels=channels)
        geometry = choose_geometry(base, image_size, open_data(data).classes)
    with progress_bar("evolving", 1) as tick:
        found = evolve(
            space,
            out=out,
            iterations=iterations,
            samples=samples,
            paired=paired,
            rules=rules,
            limits=limits,
            geometry=geometry,
            patch_size=patch_size,
            seed=seed,
            machine=read_machine(device, compiled, resident, workers, save_every, None),
            resume=resume,
            allow_changed=allow_changed,
            progress=tick,
            **options,
        )
    words = patch_words(space, find_space(space, patch_size).fixed())
    words += [f"--{name.replace('_', '-')} {bound}" for name, bound in limits.bounds().items()]
    if objective is not None:
        words += [] if data == "noise" else [f"--data {shlex.quote(data)}"]
        words += [] if batch_size is None else [f"--batch-size {batch_size}"]
    report(found, geometry, words, as_json)


def report(found: Any, geometry: Geometry, words: Sequence[str], as_json: bool) -> None:
    """`words`: what else the command for the search says."""
    if as_json:
        return emit({"study": str(found.path), "spaces": found.spaces, "moves": found.moves})
    table = Table("iteration", "stage", "dimension", "choices", "E-T errors", "slope", "95 %", "confidence", "becomes")
    for move in found.moves:
        errors = " ".join("-" if error is None else f"{error:.2f}" for error in move["errors"])
        slopes = ["", "", ""]
        if move["slope"] is not None:
            between = f"{move['slope_low']:.2f} to {move['slope_high']:.2f}"
            slopes = [f"{move['slope']:.2f}", between, f"{move['confidence']:.2f}"]
        becomes = numbers(move["new_choices"]) if move["move"] else "stays"
        cells = [str(move["iteration"]), str(move["stage"]), move["dimension"], numbers(move["choices"]), errors]
        table.add_row(*cells, *slopes, f"{becomes} {move['note']}".strip())
    show(table)
    for space in found.spaces:
        note = f" ({space['note']})" if space["note"] else ""
        print(f"space {space['iteration']}: E-T error {space['error']:.2f}, {space['size']:,} networks{note}")
        print(f"  {space['name']}")
    last = found.spaces[-1]
    own = found.objective
    by = shlex.quote(f"supernet:{found.path}/supernet-{last['iteration']}")
    by = by if own is None else f"{own.direction}:{own.name} --image-size {geometry.image_size}"
    by = " ".join([by, *words])
    strategy = "evolution:network_rate=0.2,block_rate=0.4"  # and 20 generations of 50 after the first: Algorithm 3
    print(f"next: vitsearch search '{last['name']}' --objective {by} --strategy {strategy} --trials 1050 --out run")


def numbers(values: Any) -> str:
    return " ".join(f"{value:g}" for value in values)


def guidelines(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="Folder of a space evolution.")],
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Draw evolution.svg, depths.svg and spaces.svg into this folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What an evolution says of the paper's four design guidelines, from its own numbers."""
    from vitsearch.methods.space_figures import draw_depths, draw_evolution, draw_spaces
    from vitsearch.methods.space_guidelines import guidelines as find

    rows = find(study)
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        draw_evolution(study, figures / "evolution.svg")
        draw_depths(study, figures / "depths.svg")
        draw_spaces(study, figures / "spaces.svg")
    if as_json:
        return emit([row.to_json() for row in rows])
    table = Table("guideline", "verdict", "evidence")
    for row in rows:
        table.add_row(row.guideline, row.verdict, row.evidence)
    show(table)
