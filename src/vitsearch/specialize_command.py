"""`vitsearch specialize`: the trained network for a budget, without a search.

vitsearch search autoformer-tiny --strategy prenas --budgets 6M:11M:1M --draws 8 --out chosen
vitsearch supernet train autoformer-tiny --candidates chosen --data folder:imagenet --recipe prenas-tiny --out preferred
vitsearch specialize preferred --max-params 6M --out specialized
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitsearch.arguments import read_candidates, read_limits, read_milliseconds, read_rate
from vitsearch.options import (
    CandidatesOption,
    DeviceOption,
    JsonOption,
    LatencyOption,
    MaxLatency,
    MaxMacs,
    MaxParams,
    MinMacs,
    MinParams,
    MinThroughput,
    RunArgument,
)
from vitsearch.terminal import emit, progress_bar, summary


def specialize(
    run: RunArgument,
    min_params: MinParams = None,
    max_params: MaxParams = None,
    min_macs: MinMacs = None,
    max_macs: MaxMacs = None,
    latency: LatencyOption = None,
    max_latency: MaxLatency = None,
    min_throughput: MinThroughput = None,
    rank: Annotated[bool, typer.Option("--rank", help="Evaluate those that qualify, take the most accurate.")] = False,
    candidates: CandidatesOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the network here, as a folder that timm loads.")
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """The network of a supernet trained on candidates that fits a budget, at once."""
    limits = read_limits(min_params, max_params, min_macs, max_macs)
    asked = read_milliseconds("--max-latency", max_latency), read_rate("--min-throughput", min_throughput)
    given = None if candidates is None else read_candidates(candidates)
    from vitsearch.export import export_subnet
    from vitsearch.export.write import check_out
    from vitsearch.latency import read_speed
    from vitsearch.methods.specialization import specialize as choose

    if out is not None:
        check_out(out)  # not after the evaluations
    with progress_bar("evaluating", 1) as tick:
        speed = read_speed(latency, *asked)
        found = choose(run, limits, candidates=given, speed=speed, rank=rank, device=device, progress=tick)
    if out is not None:
        export_subnet(run, found.settings, out)
    shown: dict[str, Any] = {"run": str(run), "settings": found.settings, "params": found.cost.params}
    shown |= {"macs": found.cost.macs, "top1": found.top1, "out": None if out is None else str(out)}
    if as_json:
        return emit(shown | {"ranked": [{"settings": settings, "top1": top1} for settings, top1 in found.ranked]})
    accuracy = "" if found.top1 is None else f", {found.top1:.2f} % of the validation part"
    print(f"{summary(found.settings)}: {found.cost.params:,} parameters, {found.cost.macs:,} MACs{accuracy}")
    if out is not None:
        print(f"{out}: with the weights it was trained with in {run}")
