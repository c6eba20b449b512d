"""How fast and how exact is scoring many networks at once?

    python benchmarks/scoring.py --quick --json                 # under 50 s on two cores
    python benchmarks/scoring.py --device cuda --out benchmarks/results/scoring-h200.json --commit HASH

In one run, on the same weights: the batched scorer, the one-at-a-time reference (float32 forward and backward as the
proxy has it, singular values in float64), and the best plain loop (one network at a time, no copies, the fastest exact
nuclear norm of torch). A row's speed-up is the reference's time for a network over the batched scorer's.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scipy.stats import kendalltau

import vitsearch
from vitsearch.cost import Geometry
from vitsearch.evaluate import ProxyEvaluator, pick_device
from vitsearch.models import build
from vitsearch.proxies import Subject
from vitsearch.proxies.diversity import precision
from vitsearch.spaces import decode

PROXIES = ("dss", "snip", "synflow", "grad_norm")
SPACES = ("autoformer-tiny", "autoformer-small", "autoformer-base", "pit")
CHUNK = {"cpu": 16, "cuda": 2048}
COMPARED = {"autoformer-tiny": 60, "autoformer-small": 24, "autoformer-base": 10, "pit": 60}  # what minutes allow


def reference_dss(evaluator: ProxyEvaluator, settings: dict[str, Any]) -> float:
    """TF-TAS eq. 4-6 for one network, nuclear norms from singular values in float64."""
    plan = decode(settings)
    network = build(plan, evaluator.geometry, seed=evaluator.seed)
    if evaluator.weights == "shared":
        evaluator.bank(settings, plan).fill(network)
    subject = Subject(
        name="reference",
        network=lambda: network,
        batch=evaluator.batch,
        geometry=evaluator.geometry,
        architecture=plan,
        device=evaluator.device,
    )
    weights, gradients = subject.absolute(precision(plan))
    total = torch.zeros((), dtype=torch.float64, device=evaluator.device)
    for name in subject.linears["attention"]:
        norms = [torch.linalg.svdvals(matrix[name].double()).sum() for matrix in (weights, gradients)]
        total += norms[0] * norms[1]
    for name in subject.linears["mlp"]:
        total += (weights[name] * gradients[name]).sum(dtype=torch.float64)
    return float(total)


def timed(device: torch.device, work: Callable[[], Any]) -> tuple[float, Any]:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    found = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, found


def in_chunks(evaluator: ProxyEvaluator, networks: list[dict[str, Any]], proxy: str) -> list[float]:
    chunk = CHUNK[evaluator.device.type]
    return [
        score.scores[proxy]
        for start in range(0, len(networks), chunk)
        for score in evaluator(networks[start : start + chunk])
    ]


def measure(proxy: str, space: str, weights: str, device: torch.device, counts: dict[str, int]) -> list[dict[str, Any]]:
    """Three rows: batched, reference, plain loop."""
    evaluator = ProxyEvaluator([proxy], geometry=Geometry(), seed=0, device=device, weights=weights)
    networks = vitsearch.sample(space, counts["networks"], seed=1)
    some, few = networks[: counts["compared"]], networks[: counts["reference"]]

    def reference(settings: dict[str, Any]) -> float:
        return reference_dss(evaluator, settings) if proxy == "dss" else evaluator.one(settings).scores[proxy]

    in_chunks(evaluator, networks[: CHUNK[device.type]], proxy)  # warm up: weights, kernels, the size of a batch
    reference(networks[0])
    seconds, ours = timed(device, lambda: in_chunks(evaluator, networks, proxy))
    reference_seconds, theirs = timed(device, lambda: [reference(settings) for settings in few])
    loop_seconds, _ = timed(device, lambda: [evaluator.one(settings) for settings in few])
    theirs += [reference(settings) for settings in some[len(few) :]]
    errors = [abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=False)]
    name, per_network = f"{proxy}/{space}/{weights}", reference_seconds / len(few)
    batched = {
        "name": name,
        "seconds": seconds,
        "networks": len(networks),
        "architectures_per_second": len(networks) / seconds,
        "speedup": per_network / (seconds / len(networks)),
        "compared": len(theirs),
        "kendall_tau": float(kendalltau(ours[: len(theirs)], theirs).statistic),
        "max_relative_error": max(errors),
        "at_once": evaluator.at_once,
        "peak_memory_bytes": peak_memory(device),
    }
    others = {"reference": reference_seconds, "baseline/plain-loop": loop_seconds}
    return [batched] + [
        {
            "name": f"{kind}/{name}",
            "seconds": taken,
            "networks": len(few),
            "architectures_per_second": len(few) / taken,
            "speedup": None,
        }
        for kind, taken in others.items()
    ]


def sweep(space: str, device: torch.device, counts: list[int]) -> list[dict[str, Any]]:
    """Time and peak memory against the number of networks: one grows in proportion, the other does not."""
    evaluator = ProxyEvaluator(["dss"], seed=0, device=device)
    in_chunks(evaluator, vitsearch.sample(space, CHUNK[device.type], seed=3), "dss")
    rows = []
    for count in counts:
        networks = vitsearch.sample(space, count, seed=4)
        seconds, _ = timed(device, lambda networks=networks: in_chunks(evaluator, networks, "dss"))
        row = {"name": f"sweep/dss/{space}/fresh/{count}", "seconds": seconds, "networks": count, "speedup": None}
        rows.append(row | {"architectures_per_second": count / seconds, "peak_memory_bytes": peak_memory(device)})
    return rows


def peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def circumstances(device: torch.device, commit: str | None) -> dict[str, Any]:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()

    machine = torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} {processor()}"
    return {
        "device": device.type,
        "machine": machine,
        "threads": torch.get_num_threads(),
        "commit": commit or git("rev-parse", "--short", "HEAD"),
        "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        "versions": {
            "vitsearch": vitsearch.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="DSS on two spaces, few networks")
    parser.add_argument("--json", action="store_true", help="rows on stdout")
    parser.add_argument("--networks", type=int, help="networks in each batched measurement")
    parser.add_argument("--compared", type=int, help="networks compared with the reference")
    parser.add_argument("--sweep", type=int, nargs="*", default=[], help="numbers of networks for the sweep")
    parser.add_argument("--spaces", nargs="*", default=list(SPACES))
    parser.add_argument("--proxies", nargs="*", default=list(PROXIES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit")
    options = parser.parse_args()

    device = pick_device("cpu" if options.quick and options.device == "auto" else options.device)
    small = device.type == "cpu"
    counts = {"networks": 32 if small else 2048, "reference": 6 if small else 12, "compared": 12 if small else 60}
    work = [(proxy, space, "fresh") for space in options.spaces for proxy in options.proxies]
    work.insert(1, ("dss", options.spaces[0], "shared"))
    if options.quick:
        counts = {"networks": 16, "reference": 4, "compared": 4}
        work = [("dss", "autoformer-tiny", "fresh"), ("dss", "autoformer-tiny", "shared"), ("dss", "pit", "fresh")]
    rows: list[dict[str, Any]] = []
    about = circumstances(device, options.commit)
    for proxy, space, weights in work:
        here = dict(counts)
        if not small and not options.quick:
            here |= {"compared": COMPARED[space] if proxy == "dss" else 24}
            if proxy in ("snip", "grad_norm") or space == "autoformer-base":
                here |= {"networks": 1024}
        here |= {key: value for key in ("networks", "compared") if (value := getattr(options, key)) is not None}
        rows += [row | about for row in measure(proxy, space, weights, device, here)]
        if not options.json:
            show(rows[-3:])
        if options.out:  # what is measured is kept, whatever comes after
            write(options.out, rows)
    rows += [row | about for row in sweep(options.spaces[0], device, options.sweep)] if options.sweep else []
    if options.out:
        write(options.out, rows)
    if options.json:
        print(json.dumps(rows))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        speedup = f"{row['speedup']:8.1f} x" if row["speedup"] else ""
        error = f"  error {row['max_relative_error']:.1e}  tau {row['kendall_tau']:.4f}" if "kendall_tau" in row else ""
        print(f"{row['name']:48s} {row['architectures_per_second']:10.2f} /s {speedup}{error}", flush=True)


if __name__ == "__main__":
    main()
