"""Arguments and options that several commands share, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitsearch.architecture import brief
from vitsearch.spaces import SPACES


def whole(text: str | int) -> int:
    """A whole number, or an error that shows what was typed."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"must be a whole number, but got {brief(text)}") from None


class Patches(tuple[int, ...]):
    """Patch sizes: one, or those that are searched."""


def patches(text: str) -> Patches:
    return Patches(whole(part) for part in text.split(","))


NUMBER: dict[str, Any] = {"parser": whole, "metavar": "N"}


def space_names(incomplete: str) -> list[str]:
    return [name for name in SPACES if name.startswith(incomplete)]


def proxy_names(incomplete: str) -> list[str]:
    from vitsearch.proxies import PROXIES

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in PROXIES if name.startswith(last)]


ArchArguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARCH...", help="JSON file, '-' for stdin, or a trial: DIR#best, DIR#17.")
]
ArchArgument = Annotated[str, typer.Argument(metavar="ARCH", help="JSON file, '-' for stdin, or a trial: DIR#best.")]
SpaceArgument = Annotated[str, typer.Argument(metavar="SPACE", help="Name of a space.", autocompletion=space_names)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print exactly one JSON value on stdout.")]
SeedOption = Annotated[int, typer.Option("--seed", **NUMBER, help="Where all randomness comes from.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
ImageSizeOption = Annotated[
    int | None, typer.Option("--image-size", **NUMBER, help="Side of the image [224, or the study's].")
]
ClassesOption = Annotated[
    int | None, typer.Option("--classes", **NUMBER, help="Number of classes [1000, the data's or study's].")
]
PatchOption = Annotated[
    Patches | None,
    typer.Option(
        "--patch-size", parser=patches, metavar="N", help="In place of the space's own; 2,4,8 where sizes are searched."
    ),
]
MinParams = Annotated[str | None, typer.Option("--min-params", help="Such as 5M.")]
MaxParams = Annotated[str | None, typer.Option("--max-params", help="Such as 6M.")]
MinMacs = Annotated[str | None, typer.Option("--min-macs", help="Such as 1G.")]
MaxMacs = Annotated[str | None, typer.Option("--max-macs", help="Such as 1.4G.")]
MaxLatency = Annotated[
    str | None, typer.Option("--max-latency", help="Predicted time of a batch, such as 5ms; needs --latency.")
]
MinThroughput = Annotated[
    str | None, typer.Option("--min-throughput", help="Predicted images per second, such as 250; needs --latency.")
]
LatencyOption = Annotated[Path | None, typer.Option("--latency", help="What `vitsearch fit-latency` wrote.")]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", **NUMBER, help="Threads on the CPU [torch's own number].")
]
RepeatsOption = Annotated[int, typer.Option("--repeats", **NUMBER, help="Runs of each network that count.")]
DataOption = Annotated[
    str, typer.Option("--data", help="noise, digits, parquet:PATH, folder:PATH, torchvision:NAME@ROOT, wds:...")
]
BatchOption = Annotated[int, typer.Option("--batch-size", **NUMBER, help="Images for proxies that need them.")]
WeightsOption = Annotated[str, typer.Option("--weights", help="fresh: each network its own; shared: one supernet's.")]
MemoryOption = Annotated[
    str | None, typer.Option("--memory", help="Bytes for a batch, such as 8G [half of what is free].")
]
ProxyOption = Annotated[
    str,
    typer.Option("--proxy", help="Names with commas; for a benchmark also fast or all.", autocompletion=proxy_names),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained supernet.")]
CandidatesOption = Annotated[
    str | None,
    typer.Option("--candidates", help="Networks chosen before: a study, or a JSON file with a list."),
]
OutOption = Annotated[Path, typer.Option("--out", help="A folder that does not exist yet.")]


ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue what is in --out, or start it.")]
AllowChangedOption = Annotated[
    bool, typer.Option("--allow-changed", help="Resume on another machine or other versions; recorded.")
]
