"""The options of every command, written down: adding or losing one is a decision, not an accident."""

from __future__ import annotations

import typer.main

from vitsearch.cli import app

LIMITS = "--max-macs --max-params --min-macs --min-params"
SURFACE = {
    "spaces": "--json name",
    "proxies": "--json",
    "sample": f"{LIMITS} --classes --count --image-size --json --patch-size --seed space",
    "cost": "--classes --image-size --json arch",
    "score": "--batch-size --classes --data --device --image-size --json --memory --proxy --seed --timm --weights arch",
    "search": f"{LIMITS} --allow-changed --batch-size --budgets --classes --data --device --draws --image-size --json "
    "--latency --max-latency --memory --min-throughput --objective --out --patch-size --resource --resume --seed "
    "--strategy --top --trials --variant --weights space",
    "bench show": "--bench --json",
    "bench correlate": "--batch-size --bench --column --data --device --json --memory --page --proxy --scores --seed "
    "--seeds --weights",
    "bench fit": "--bench --dataset --json --out --seed",
    "discover": "--aggregate --allow-changed --alpha --batch-size --bench --beside --branches --cache --column "
    "--crossover "
    "--data --depth --device --evaluations --folds --inputs --json --margin --mutation --networks --out --pareto "
    "--population --resume --sample-ratio --seed --seeds --strategy --tolerance --top --tries --weights",
    "train": "--allow-changed --batch-size --channels --compile --data --device --distill --distill-kind --epochs "
    "--evaluate-every --from --image-size --json --out --parts --push-dir --recipe --resident --resume --save-every "
    "--scale-windows --seed --set --tensorboard --timm --workers arch",
    "recipes": "--json name",
    "identity": "--batch-size --classes --device --image-size --json --max-macs --max-params --min-throughput "
    "--patch-size --samples --seed space",
    "supernet train": "--allow-changed --batch-size --channels --data --device --distill --distill-kind --epochs "
    "--evaluate-every --image-size --json --out --patch-size --recipe --resident --resume --save-every --seed --set "
    "--candidates --class-token --compile --in-place-distillation --share --subnets --widths --workers space",
    "specialize": f"{LIMITS} --candidates --device --json --latency --max-latency --min-throughput --out --rank run",
    "evolve-space": f"{LIMITS} --allow-changed --batch-size --channels --compile --data --device --distill "
    "--distill-kind --epochs --image-size --images --iterations --json --max-size --most-steps --objective --out "
    "--paired --patch-size --recipe --resident --resume --rounding --samples --save-every --seed --set --step "
    "--subnets --tau --workers space",
    "guidelines": "--figures --json study",
    "supernet eval": "--device --json arch run",
    "supernet extract": "--json --out arch run",
    "latency": "--batch-size --classes --device --engine --image-size --json --repeats --threads --timm arch",
    "fit-latency": "--batch-size --blocks --classes --device --engine --held-out --image-size --json --networks --out "
    "--patch-size --repeats --seed --threads space",
    "report": "--correlations --json --out study",
    "serve": "--host --port folder",
    "export": "--classes --format --image-size --json --out --seed arch",
}


def test_options_are_the_ones_written_down() -> None:
    group = typer.main.get_command(app)
    found = {}
    commands = dict(group.commands.items())  # type: ignore[attr-defined]
    for name, below in list(commands.items()):
        if hasattr(below, "commands"):
            del commands[name]
            commands |= {f"{name} {inner}": command for inner, command in below.commands.items()}
    for name, command in commands.items():
        names = [max(p.opts, key=len) if p.opts[0].startswith("-") else p.name for p in command.params]
        found[name] = set(names) - {"--help"}
    assert found == {name: set(options.split()) for name, options in SURFACE.items()}
