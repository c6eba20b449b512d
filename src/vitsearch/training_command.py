"""`vitsearch train`: from what was typed to a plan, and from the result to what is shown.

vitsearch train run#best --data digits --recipe quick --out trained
torchrun --nproc-per-node 8 -m vitsearch train arch.json --data folder:imagenet --recipe deit --out trained
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from vitsearch.architecture import Settings
from vitsearch.arguments import Given, note_outside, read_architecture
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.errors import VitsearchError
from vitsearch.options import (
    NUMBER,
    AllowChangedOption,
    DeviceOption,
    JsonOption,
    OutOption,
    ResumeOption,
    SeedOption,
    whole,
)
from vitsearch.spaces.base import understand
from vitsearch.terminal import emit, progress_bar, show

log = logging.getLogger("vitsearch")


def recipes(
    name: Annotated[str | None, typer.Argument(help="One recipe alone, with every field.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List recipes for training, and where they come from."""
    from vitsearch.training.recipe import RECIPES

    rows = [{"name": found, **RECIPES[found].to_json()} for found in (RECIPES if name is None else [name])]
    if as_json:
        return emit(rows if name is None else rows[0])
    shown = ("epochs", "batch_size", "learning_rate", "image_size")
    table = Table("recipe", *shown, "source") if name is None else Table("field", "value")
    if name is None:
        for row in rows:
            table.add_row(row["name"], *(f"{row[field]:g}" for field in shown), row["source"])
    else:
        for field, value in rows[0].items():
            table.add_row(field, str(value))
    show(table)


def _recipe_names(incomplete: str) -> list[str]:
    from vitsearch.training.recipe import RECIPES

    return [name for name in RECIPES if name.startswith(incomplete)]


DataOption = Annotated[
    str, typer.Option("--data", help="digits, parquet:PATH, folder:PATH, torchvision:NAME@ROOT or wds:PATTERN.")
]
RecipeOption = Annotated[str, typer.Option("--recipe", help="Name of a recipe.", autocompletion=_recipe_names)]
EpochsOption = Annotated[int | None, typer.Option("--epochs", **NUMBER, help="In place of the recipe's.")]
BatchSizeOption = Annotated[int | None, typer.Option("--batch-size", **NUMBER, help="In place of the recipe's.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="A field of the recipe, such as drop_path=0.2; repeatable.")
]


def one_or_three(text: str | int) -> int:
    """How many channels images can be given."""
    if (channels := whole(text)) not in (1, 3):
        raise typer.BadParameter(f"must be 1 or 3, but got {channels}")
    return channels


CHANNELS: dict[str, Any] = {"parser": one_or_three, "metavar": "N"}
ChannelsOption = Annotated[int, typer.Option("--channels", **CHANNELS, help="Of the network: 1 or 3.")]
DistillOption = Annotated[
    str | None, typer.Option("--distill", help="A teacher: a folder of ours, or timm:NAME@weights.safetensors.")
]
DistillKindOption = Annotated[
    str | None,
    typer.Option(
        "--distill-kind", help="locality, soft or hard; locality+soft for both [locality; soft for a supernet]."
    ),
]
OwnSizeOption = Annotated[int | None, typer.Option("--image-size", **NUMBER, help="Side of the image [the recipe's].")]
CompileOption = Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile [on a GPU].")]
ResidentOption = Annotated[
    bool | None, typer.Option("--resident/--streaming", help="Keep decoded images in memory [when they fit].")
]
WorkersOption = Annotated[int, typer.Option("--workers", **NUMBER, help="Processes that decode streamed images.")]
SaveEveryOption = Annotated[int, typer.Option("--save-every", **NUMBER, help="Steps between checkpoints.")]
EvaluateEveryOption = Annotated[
    int | None, typer.Option("--evaluate-every", **NUMBER, help="Epochs between looks at the validation part.")
]
TensorboardOption = Annotated[bool, typer.Option("--tensorboard", help="Write curves for TensorBoard too.")]


def train(
    out: OutOption,
    arch: Annotated[
        str | None, typer.Argument(metavar="[ARCH]", help="JSON file, '-' for stdin, or a trial: DIR#best.")
    ] = None,
    timm: Annotated[str | None, typer.Option("--timm", help="A model of timm in place of ARCH.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Start from these weights: a folder of ours, .safetensors or .pth.")
    ] = None,
    scale_windows: Annotated[
        bool, typer.Option("--scale-windows", help="With --from at another image size: windows grow with the image.")
    ] = False,
    data: DataOption = "digits",
    parts: Annotated[str, typer.Option("--parts", help="Train on train, or on train+validation.")] = "train",
    recipe: RecipeOption = "quick",
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    changes: SetOption = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            "--image-size", **NUMBER, help="Side of the image [of ARCH or --from if they say one, or the recipe's]."
        ),
    ] = None,
    channels: Annotated[
        int | None, typer.Option("--channels", **CHANNELS, help="Of the network: 1 or 3 [of ARCH or --from, or 3].")
    ] = None,
    distill: DistillOption = None,
    distill_kind: DistillKindOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    compiled: CompileOption = None,
    resident: ResidentOption = None,
    workers: WorkersOption = 2,
    save_every: SaveEveryOption = 500,
    evaluate_every: EvaluateEveryOption = None,
    tensorboard: TensorboardOption = False,
    push_dir: Annotated[
        Path | None, typer.Option("--push-dir", help="At the end, a new folder as the Hugging Face hub takes it.")
    ] = None,
    resume: ResumeOption = False,
    allow_changed: AllowChangedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train, retrain or fine-tune a network; the test part is looked at once, at the end."""
    from vitsearch.data import open_training_data
    from vitsearch.export.write import check_out, export_trained
    from vitsearch.training.plan import TrainingPlan
    from vitsearch.training.run import digest_of, train_network

    if push_dir is not None:  # not after hours
        check_out(push_dir)
        if Path(out).resolve().is_relative_to(push_dir.resolve()):
            raise VitsearchError(
                f"`--push-dir` must neither be nor hold --out, {str(out)!r}, but got {str(push_dir)!r}"
            )
    chosen = read_recipe(recipe, epochs, batch_size, changes)
    settings, model, known = choose_network(arch, timm, start)
    size = choose_size(image_size, chosen, "image_size" in read_changes(changes or []), arch, known)
    channels = channels if channels is not None else (known or IMAGENET).channels
    plan = TrainingPlan(
        settings=with_scaled_windows(settings, start, size) if scale_windows else settings,
        timm=model,
        geometry=Geometry(image_size=size, classes=open_training_data(data).classes, channels=channels),
        data=data,
        parts=parts,  # type: ignore[arg-type]
        recipe=chosen,
        seed=seed,
        start=start,
        start_digest=None if start is None else digest_of(start),
        distillation=read_distillation(distill, distill_kind, "locality"),
    )
    machine = read_machine(device, compiled, resident, workers, save_every, evaluate_every, tensorboard)
    with progress_bar("training", 1) as tick:
        done = train_network(plan, out, machine=machine, resume=resume, allow_changed=allow_changed, progress=tick)
    if arch is not None and settings is not None and done.writes:
        note_outside([Given(understood=understand(settings))])
    if push_dir is not None and done.writes:
        export_trained(done.out, push_dir)
    report(done, plan, push_dir, as_json)


def choose_size(typed: int | None, recipe: Any, changed: bool, arch: str | None, known: Geometry | None) -> int:
    """Side of the image: what was typed, then what ARCH or --from say, then the recipe's.

    A recipe that was `changed` says its size, and one for larger images than usual is for them. 224 px in a study is
    what nobody asked for.
    """
    if typed is not None:
        return typed
    usual = arch is not None and known == IMAGENET
    own: int = recipe.image_size
    if known is None or changed or own > IMAGENET.image_size:
        return own
    if usual and own != IMAGENET.image_size:
        log.info("%s is of 224 px, this training of the recipe's %d; --image-size 224 for the other", arch, own)
    return own if usual else known.image_size


def read_recipe(name: str, epochs: int | None, batch_size: int | None, changes: list[str] | None) -> Any:
    """The recipe with what was typed changed in it."""
    from vitsearch.training.recipe import RECIPES, change

    edits = read_changes(changes or [])
    edits |= {
        field: str(value) for field, value in (("epochs", epochs), ("batch_size", batch_size)) if value is not None
    }
    return change(RECIPES[name], edits)


def supernet_geometry(data: str, recipe: Any, image_size: int | None, channels: int) -> Geometry:
    """What a supernet is trained for: its recipe says the size where nobody does."""
    from vitsearch.data import open_training_data

    size = recipe.image_size if image_size is None else image_size
    return Geometry(image_size=size, classes=open_training_data(data).classes, channels=channels)


def read_distillation(teacher: str | None, kind: str | None, usual: str) -> Any:
    """None without a teacher; `usual` is the kind where none was typed."""
    from vitsearch.training.distill import distillation

    if teacher is None and kind is not None:
        raise VitsearchError(f"`--distill-kind` needs --distill, a teacher, but got {kind!r} alone")
    return None if teacher is None else distillation(teacher, usual if kind is None else kind)


def read_machine(
    device: str,
    compiled: bool | None,
    resident: bool | None,
    workers: int,
    save_every: int,
    evaluate_every: int | None,
    tensorboard: bool = False,
) -> Any:
    from vitsearch.architecture import check_whole
    from vitsearch.training.run import Machine

    return Machine(
        device=device,
        compiled=compiled,
        resident=resident,
        workers=workers,
        save_every=check_whole("--save-every", save_every, most=1 << 31),
        evaluate_every=None if evaluate_every is None else check_whole("--evaluate-every", evaluate_every),
        tensorboard=tensorboard,
    )


def choose_network(
    arch: str | None, timm: str | None, start: str | None
) -> tuple[Settings | None, str | None, Geometry | None]:
    """Settings or a timm model, and the geometry that comes with them: from ARCH, --timm, or what --from holds."""
    if arch is not None and timm is not None:
        raise VitsearchError("`train` takes an ARCH or --timm MODEL, but got both")
    if arch is not None:
        given = read_architecture(arch)
        return given.settings, None, given.known
    if timm is not None:
        return None, timm, None
    if start is None:
        raise VitsearchError("`train` needs an ARCH, --timm MODEL, or --from a folder that names its network")
    from vitsearch.training.supernet import supernet_folder
    from vitsearch.training.transfer import load_weights

    _, config = load_weights(start)
    if supernet_folder(start) is not None:
        raise VitsearchError(f"`--from` {start!r} is a supernet: give an ARCH, the one of its networks to train")
    if config is None:
        raise VitsearchError(f"`--from` {start!r} does not say which network it is of: give an ARCH or --timm MODEL")
    settings = (config.get("model_args") or {}).get("settings")
    return settings, None if settings is not None else str(config.get("architecture")), input_of(config)


def input_of(config: Mapping[str, Any]) -> Geometry | None:
    """What a folder says of the images that its network was trained with."""
    try:
        return Geometry.of_config(config)
    except (KeyError, TypeError, ValueError):
        return None


def with_scaled_windows(settings: Settings | None, start: str | None, size: int) -> Settings:
    """For fine-tuning at another image size, as S3 does at 384 px."""
    from vitsearch.spaces.windowed import scale_windows
    from vitsearch.training.transfer import load_weights

    config = load_weights(start)[1] if start is not None else None
    before = None if config is None else input_of(config)
    if settings is None or "window_size" not in settings or before is None:
        raise VitsearchError("`--scale-windows` needs --from the folder of a network with windows")
    return scale_windows(settings, before.image_size, size)


def read_changes(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise VitsearchError(f"`--set` must be FIELD=VALUE, but got {text!r}")
        found[name] = value
    return found


def report(done: Any, plan: Any, push_dir: Path | None, as_json: bool) -> None:
    if not done.writes:
        return
    last = done.epochs[-1] if done.epochs else {}
    if as_json:
        shown = {"out": str(done.out), "settings": plan.settings, "timm": plan.timm, **done.result}
        shown |= {"push_dir": str(push_dir)} if push_dir is not None else {}
        return emit(shown | {"epochs": len(done.epochs), "last_epoch": last})
    validation = f", validation {last['validation_top1']:.2f} %" if "validation_top1" in last else ""
    images, seconds = done.result["test_images"], done.result["seconds"]
    print(f"test accuracy {done.result['test_top1']:.2f} % of {images:,} images{validation}; {seconds:,.0f} s")
    if push_dir is not None:
        return print(f"next: hf upload NAME {shlex.quote(str(push_dir))}")
    print(f"next: vitsearch export {shlex.quote(str(done.out))} --format timm --out best")
