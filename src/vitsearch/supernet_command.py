"""`vitsearch supernet`: train one set of weights for a whole space, look at its networks, take one out.

vitsearch supernet train autoformer-tiny --patch-size 8 --data digits --recipe quick --out supernet
vitsearch search autoformer-tiny --objective supernet:supernet --strategy evolution --trials 100 --out run
vitsearch supernet extract supernet run#best --out best
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from vitsearch.architecture import Settings
from vitsearch.arguments import note_outside, read_architecture, read_architectures, read_candidates
from vitsearch.errors import BadSettings, VitsearchError
from vitsearch.options import (
    AllowChangedOption,
    ArchArgument,
    ArchArguments,
    CandidatesOption,
    DeviceOption,
    JsonOption,
    OutOption,
    PatchOption,
    ResumeOption,
    RunArgument,
    SeedOption,
    SpaceArgument,
)
from vitsearch.spaces import cost_of, decode, find_space
from vitsearch.terminal import emit, progress_bar, show, summary
from vitsearch.training_command import (
    BatchSizeOption,
    ChannelsOption,
    CompileOption,
    DataOption,
    DistillKindOption,
    DistillOption,
    EpochsOption,
    EvaluateEveryOption,
    OwnSizeOption,
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

supernet = typer.Typer(no_args_is_help=True, help="One set of weights for a whole space: train, look, take out.")


@supernet.command("train")
def supernet_train(
    space: SpaceArgument,
    out: OutOption,
    data: DataOption = "digits",
    recipe: RecipeOption = "autoformer",
    subnets: Annotated[
        str | None,
        typer.Option(
            "--subnets",
            help="Which networks a step trains: uniform, sandwich, identity:probability=P; with candidates also "
            "balanced, uniform over them, resampled, redundant [uniform; with candidates balanced].",
        ),
    ] = None,
    candidates: CandidatesOption = None,
    share: Annotated[
        str | None,
        typer.Option("--share", help="vitas: what networks with other head counts share, v, qkv, qk or none [v]."),
    ] = None,
    class_token: Annotated[
        str | None, typer.Option("--class-token", help="vitas: private for each patch size, or shared [private].")
    ] = None,
    widths: Annotated[
        str | None,
        typer.Option("--widths", help="prefix, or two-sided: from the first and the last channels [prefix]."),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place-distillation",
            help="The largest network learns from labels, and the others of a step from its outputs (BigNAS).",
        ),
    ] = False,
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    changes: SetOption = None,
    image_size: OwnSizeOption = None,
    patch_size: PatchOption = None,
    channels: ChannelsOption = 3,
    distill: DistillOption = None,
    distill_kind: DistillKindOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    compiled: CompileOption = None,
    resident: ResidentOption = None,
    workers: WorkersOption = 2,
    save_every: SaveEveryOption = 500,
    evaluate_every: EvaluateEveryOption = None,
    resume: ResumeOption = False,
    allow_changed: AllowChangedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train the weights that all networks of a space share; the test part stays shut."""
    found = find_space(space, patch_size)
    from vitsearch.models.super_transformer import sharing_of
    from vitsearch.training.plan import TrainingPlan
    from vitsearch.training.preferred import scheme_of
    from vitsearch.training.run import train_network
    from vitsearch.training.subnets import Identity

    chosen_before = None if candidates is None else read_candidates(candidates)
    if subnets is None:
        subnets = "uniform" if chosen_before is None else "balanced"
    scheme = scheme_of(subnets, found, chosen_before)
    if subnets == "identity":
        rule = "must say its probability, as in identity:probability=0.46; `vitsearch identity` finds that of a budget"
        raise VitsearchError(f"`subnets` {rule}, but got {subnets!r}")
    chosen = read_recipe(recipe, epochs, batch_size, changes)
    plan = TrainingPlan(
        space={"name": found.name, "fixed": found.fixed()},
        subnets=subnets,
        candidates=chosen_before,
        sharing=sharing_of(found, share=share, class_token=class_token, widths=widths),
        in_place_distillation=in_place,
        geometry=supernet_geometry(data, chosen, image_size, channels),
        data=data,
        recipe=chosen,
        seed=seed,
        distillation=read_distillation(distill, distill_kind, "soft"),
    )
    machine = read_machine(device, compiled, resident, workers, save_every, evaluate_every)
    with progress_bar("training", 1) as tick:
        done = train_network(plan, out, machine=machine, resume=resume, allow_changed=allow_changed, progress=tick)
    if not done.writes:
        return
    if as_json:
        return emit({"out": str(done.out), "space": space, **done.result, "epochs": len(done.epochs)})
    judged = {"smallest": "smallest network", "largest": "largest network", "drawn": "networks as steps draw them"}
    for name, words in judged.items():
        if f"validation_{name}_top1" in done.result:
            print(f"{words}: {done.result[f'validation_{name}_top1']:.2f} % of the validation part")
    if chosen_before is not None:
        most = max(cost_of(settings, plan.geometry).params for settings in chosen_before)
        return print(f"next: vitsearch specialize {shlex.quote(str(done.out))} --max-params {most} --out specialized")
    strategy = "evolution --trials 1000"
    if isinstance(scheme, Identity):
        strategy = f"nsga2:parents=20,identity={scheme.probability} --trials 2000"
    words = shlex.join(["vitsearch", "search", space, "--objective", f"supernet:{done.out}"])
    print(f"next: {words} --strategy {strategy} --out run")


@supernet.command("eval")
def supernet_eval(
    run: RunArgument,
    arch: ArchArguments = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Accuracy of networks on the validation part, with the weights they inherit."""
    given, _ = read_architectures(arch or ["-"])
    from vitsearch.evaluate import SupernetEvaluator

    evaluator = SupernetEvaluator(run, device=device)
    check_some_fit(evaluator.supernet, [item.settings for item in given])
    rows: list[dict[str, Any]] = []
    with progress_bar("evaluating", len(given)) as tick:
        for item in given:
            (score,) = evaluator([item.settings])
            params, macs = cost_of(item.settings, evaluator.geometry)
            shown = {"arch": item.settings, "top1": score.scores.get(evaluator.name), "params": params, "macs": macs}
            rows.append(shown | {"error": score.errors.get(evaluator.name)})
            tick(len(rows))
    note_outside(given)
    if as_json:
        return emit(rows)
    table = Table("architecture", "validation top-1", "parameters", "MACs")
    for row in rows:
        measured = f"{row['top1']:.2f} %" if row["error"] is None else row["error"]
        table.add_row(summary(row["arch"]), measured, f"{row['params']:,}", f"{row['macs']:,}")
    show(table)


def check_some_fit(supernet: Any, networks: Sequence[Settings]) -> None:
    """That one network at least is a part of the supernet; else the reason why the first is not."""
    reasons: list[BadSettings] = []
    for settings in networks:
        try:
            supernet.check(decode(settings))
        except BadSettings as error:
            reasons.append(error)
        else:
            return
    if reasons:
        raise reasons[0]


@supernet.command("extract")
def supernet_extract(run: RunArgument, arch: ArchArgument, out: OutOption, as_json: JsonOption = False) -> None:
    """Write one network with the weights it inherits, as a folder that timm loads."""
    given = read_architecture(arch)
    from vitsearch.export import export_subnet

    done = export_subnet(run, given.settings, out)
    if as_json:
        shown = {"out": str(done.out), "settings": done.settings, "weights": "inherited", "params": done.cost.params}
        return emit(shown | {"macs": done.cost.macs, "max_difference": done.max_difference})
    print(f"{done.out}: {done.cost.params:,} parameters, {done.cost.macs:,} MACs, inherited from {run}")
