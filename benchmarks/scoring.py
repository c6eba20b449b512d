"""How fast and how exact is scoring many networks at once?

    python benchmarks/scoring.py --quick --json                 # under 50 s on two cores
    python benchmarks/scoring.py --device cuda --out benchmarks/results/scoring-h200.json --commit HASH
    python benchmarks/scoring.py --device cuda --only sweeps --out benchmarks/results/sweeps-h200.json --commit HASH

In one run, on the same weights: the batched scorer, the one-at-a-time reference (float32 forward and backward as the
proxy has it, singular values in float64), and the best plain loop (one network at a time, no copies, the fastest exact
nuclear norm of torch). A row's speed-up is the reference's time for a network over the batched scorer's. Timing takes
a few networks of the reference; errors and Kendall's tau take `--compared` of them (200), whose networks are made and
whose singular values are taken on all cores.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch
from scipy.stats import kendalltau
from torch import Tensor

import vitsearch
from vitsearch.cost import Geometry
from vitsearch.environment import pick_device
from vitsearch.latency.machine import processor
from vitsearch.proxies import Subject
from vitsearch.proxies.diversity import precision
from vitsearch.scoring import CHUNK_ON_CPU, ProxyEvaluator
from vitsearch.spaces import decode

PROXIES = ("dss", "snip", "synflow", "grad_norm")
SPACES = ("autoformer-tiny", "autoformer-small", "autoformer-base", "pit")
SEARCHES = (
    ("autoformer-tiny", "dss", "fresh"),
    ("autoformer-tiny", "dss", "shared"),
    ("autoformer-tiny", "snip", "fresh"),
    ("autoformer-tiny", "synflow", "fresh"),
    ("autoformer-base", "dss", "fresh"),
)
Settings = dict[str, Any]


def subject_of(evaluator: ProxyEvaluator, settings: Settings) -> Subject:
    """The network of these settings, built, with its initial weights, which are not drawn again for each network."""
    plan = decode(settings)
    network = evaluator.bank(settings, plan).network(plan, evaluator.geometry)
    return Subject(
        name="reference",
        network=lambda: network,
        batch=evaluator.batch,
        geometry=evaluator.geometry,
        architecture=plan,
        device=evaluator.device,
    )


def parts_of_dss(subject: Subject) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """TF-TAS eq. 4-6: the attention matrices with their gradients in float64, and the sum over the MLPs."""
    weights, gradients = subject.absolute(precision(subject.architecture))
    pairs = [(weights[name].double(), gradients[name].double()) for name in subject.linears["attention"]]
    products = [(weights[name] * gradients[name]).sum(dtype=torch.float64) for name in subject.linears["mlp"]]
    return pairs, torch.stack(products).sum()


def sum_of_parts(pairs: list[tuple[Tensor, Tensor]], rest: Tensor) -> float:
    norms = [torch.linalg.svdvals(weight).sum() * torch.linalg.svdvals(gradient).sum() for weight, gradient in pairs]
    return float(torch.stack(norms).sum() + rest)


def reference(evaluator: ProxyEvaluator, settings: Settings, proxy: str) -> float:
    if proxy == "dss":
        return sum_of_parts(*parts_of_dss(subject_of(evaluator, settings)))
    return evaluator.one(settings).scores[proxy]


def exact_scores(
    networks: list[Settings], proxies: list[str], device: torch.device, weights: str
) -> dict[str, list[float]]:
    """The reference's numbers for many networks: each is built once for all proxies, in threads, as are the SVDs."""
    others = [proxy for proxy in proxies if proxy != "dss"]
    evaluator = ProxyEvaluator(others, geometry=Geometry(), seed=0, device=device, weights=weights)
    found: dict[str, list[float]] = {proxy: [] for proxy in others}
    waiting: list[Future[float]] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for subject in _ahead(pool, evaluator, networks, threads):
                scores = evaluator.examine(subject, {}).scores
                for proxy in others:
                    found[proxy].append(scores[proxy])
                if "dss" in proxies:
                    pairs, rest = parts_of_dss(subject)
                    moved = [(weight.cpu(), gradient.cpu()) for weight, gradient in pairs]
                    waiting.append(pool.submit(sum_of_parts, moved, rest.cpu()))
            if "dss" in proxies:
                found["dss"] = [future.result() for future in waiting]
    finally:
        torch.set_num_threads(threads)
    return found


def _ahead(
    pool: ThreadPoolExecutor, evaluator: ProxyEvaluator, networks: list[Settings], ahead: int
) -> Iterator[Subject]:
    coming = [pool.submit(subject_of, evaluator, settings) for settings in networks[:ahead]]
    for settings in [*networks[ahead:], *[None] * ahead]:
        if coming:
            yield coming.pop(0).result()
        if settings is not None:
            coming.append(pool.submit(subject_of, evaluator, settings))


def timed(device: torch.device, work: Callable[[], Any]) -> tuple[float, Any]:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    found = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, found


def in_chunks(evaluator: ProxyEvaluator, networks: list[dict[str, Any]], proxy: str) -> list[float]:
    chunk = evaluator.chunk(networks[0])  # as a search has it
    return [
        score.scores[proxy]
        for start in range(0, len(networks), chunk)
        for score in evaluator(networks[start : start + chunk])
    ]


def typical(networks: list[Settings], few: int) -> list[Settings]:
    """A few networks whose sizes are spread as those of all are."""
    by_size = sorted(networks, key=lambda settings: vitsearch.cost_of(settings).macs)
    return [by_size[(2 * number + 1) * len(networks) // (2 * few)] for number in range(few)]


def measure(
    proxy: str,
    space: str,
    weights: str,
    device: torch.device,
    networks: list[Settings],
    few: int,
    exact: list[float],
    rounds: int,
) -> list[dict[str, Any]]:
    """Three rows: batched, reference, plain loop; medians of rounds in turns, so that noise hits all alike."""
    evaluator = ProxyEvaluator([proxy], geometry=Geometry(), seed=0, device=device, weights=weights)
    some, memory = typical(networks, few), 0
    times: list[tuple[float, float, float]] = []
    for _ in range(rounds):  # each starts warm: memory that another gave back must be cleared first
        in_chunks(evaluator, networks[: evaluator.chunk(networks[0])], proxy)
        reset_peak_memory(device)
        taken, ours = timed(device, lambda: in_chunks(evaluator, networks, proxy))
        memory = memory or peak_memory(device)
        reference(evaluator, networks[0], proxy)
        of_reference, _ = timed(device, lambda: [reference(evaluator, settings, proxy) for settings in some])
        evaluator.one(networks[0])
        times.append((taken, of_reference, timed(device, lambda: [evaluator.one(settings) for settings in some])[0]))
    seconds, reference_seconds, loop_seconds = (median(column) for column in zip(*times, strict=True))
    errors = [abs(a - b) / abs(b) for a, b in zip(ours, exact, strict=False)]
    name, per_network = f"{proxy}/{space}/{weights}", reference_seconds / few
    batched = {
        "name": name,
        "seconds": seconds,
        "networks": len(networks),
        "rounds": rounds,
        "architectures_per_second": len(networks) / seconds,
        "speedup": per_network / (seconds / len(networks)),
        "compared": len(exact),
        "kendall_tau": float(kendalltau(ours[: len(exact)], exact).statistic),
        "max_relative_error": max(errors),
        "at_once": evaluator.at_once,
        "memory_bound_bytes": evaluator.memory,
        "peak_memory_bytes": memory,
    }
    others = {"reference": reference_seconds, "baseline/plain-loop": loop_seconds}
    return [batched] + [
        {
            "name": f"{kind}/{name}",
            "seconds": taken,
            "networks": few,
            "architectures_per_second": few / taken,
            "speedup": None,
        }
        for kind, taken in others.items()
    ]


def sweep_counts(device: torch.device, counts: list[int]) -> Iterator[dict[str, Any]]:
    """Time and peak memory against the number of networks: one grows in proportion, the other does not."""
    evaluator = ProxyEvaluator(["dss"], seed=0, device=device)
    some = vitsearch.sample("autoformer-tiny", 2048, seed=3)
    in_chunks(evaluator, some[: evaluator.chunk(some[0])], "dss")
    for count in counts:
        networks = vitsearch.sample("autoformer-tiny", count, seed=4)
        reset_peak_memory(device)
        seconds, _ = timed(device, lambda networks=networks: in_chunks(evaluator, networks, "dss"))
        row = {"name": f"networks/dss/autoformer-tiny/fresh/{count}", "seconds": seconds, "networks": count}
        speed = {"architectures_per_second": count / seconds, "speedup": None}
        yield row | speed | {"peak_memory_bytes": peak_memory(device)}


def sweep_batches(device: torch.device, sizes: list[int]) -> Iterator[dict[str, Any]]:
    """Networks in a second against the number that go through together."""
    for proxy in ("dss", "snip"):
        for size in sizes:
            networks = vitsearch.sample("autoformer-tiny", min(2048, 8 * size), seed=4)
            evaluator = ProxyEvaluator([proxy], seed=0, device=device, memory=1 << 50)  # no bound but the device's own
            evaluator.at_once = size
            in_chunks(evaluator, networks, proxy)
            reset_peak_memory(device)
            seconds, _ = timed(device, lambda e=evaluator, n=networks, p=proxy: in_chunks(e, n, p))
            if evaluator.at_once != size:
                return  # out of memory
            row = {"name": f"batch/{proxy}/autoformer-tiny/fresh/{size}", "seconds": seconds, "networks": len(networks)}
            speed = {"architectures_per_second": len(networks) / seconds, "speedup": None, "at_once": size}
            yield row | speed | {"peak_memory_bytes": peak_memory(device)}


def whole_searches(device: torch.device, trials: int) -> Iterator[dict[str, Any]]:
    """`vitsearch search` from the start of its process to the closed journal."""
    for space, proxy, weights in SEARCHES:
        with tempfile.TemporaryDirectory() as folder:
            options = ["--objective", proxy, "--weights", weights, "--trials", str(trials), "--device", device.type]
            command = [sys.executable, "-m", "vitsearch", "search", space, *options, "--out", f"{folder}/run"]
            seconds, _ = timed(device, lambda c=command: subprocess.run(c, check=True, capture_output=True))
            lines = len(Path(folder, "run", "trials.jsonl").read_text().splitlines())
        name = f"search/{proxy}/{space}/{weights}/{trials}"
        yield {"name": name, "seconds": seconds, "networks": lines, "speedup": None} | {
            "architectures_per_second": lines / seconds
        }


def reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def circumstances(device: torch.device, commit: str | None) -> dict[str, Any]:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

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


def how_many(proxy: str, space: str, small: bool, quick: bool) -> int:
    """Networks of a batched measurement, unless given: whole chunks, as a search has them, where these take seconds."""
    if quick:
        return 8 if space == "pit" else CHUNK_ON_CPU
    if small:
        return 2 * CHUNK_ON_CPU if proxy == "dss" else 32
    few, many = (256, 1024) if proxy in ("snip", "grad_norm") else (512, 2048)
    return few if space == "autoformer-base" else many


def speeds(options: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    small = device.type == "cpu"
    work = [(space, "fresh", list(options.proxies)) for space in options.spaces]
    if "dss" in options.proxies:
        work.insert(1, (options.spaces[0], "shared", ["dss"]))
    if options.quick:
        work = [
            ("autoformer-tiny", "fresh", ["dss"]),
            ("autoformer-tiny", "shared", ["dss"]),
            ("pit", "fresh", ["dss"]),
        ]
    compared = options.compared or (4 if options.quick else 12 if small else 200)
    few = min(3, options.networks or 3) if options.quick else 6 if small else 10
    for space, weights, proxies in work:
        networks = vitsearch.sample(space, max(options.networks or 2048, compared), seed=1)
        exact = exact_scores(networks[:compared], proxies, device, weights)
        for proxy in proxies:
            count = how_many(proxy, space, small, options.quick)
            chosen = networks[: max(options.networks or count, compared)]
            yield from measure(
                proxy, space, weights, device, chosen, few, exact[proxy], 1 if options.quick else options.rounds
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="DSS on two spaces, few networks")
    parser.add_argument("--only", choices=["speeds", "sweeps", "searches"], default="speeds")
    parser.add_argument("--networks", type=int, help="networks in each batched measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians count")
    parser.add_argument("--compared", type=int, help="networks compared with the reference")
    parser.add_argument("--counts", type=int, nargs="*", default=[1000, 10_000, 100_000], help="of --only sweeps")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 4, 16, 64, 256, 512], help="of --only sweeps")
    parser.add_argument("--trials", type=int, default=8000, help="of --only searches")
    parser.add_argument("--spaces", nargs="*", default=list(SPACES))
    parser.add_argument("--proxies", nargs="*", default=list(PROXIES))
    add_output_options(parser)
    options = parser.parse_args()

    device = pick_device("cpu" if options.quick and options.device == "auto" else options.device)
    about = circumstances(device, options.commit)
    if options.only == "speeds":
        measured = speeds(options, device)
    elif options.only == "sweeps":
        measured = (
            row
            for rows in (sweep_counts(device, options.counts), sweep_batches(device, options.batches))
            for row in rows
        )
    else:
        measured = whole_searches(device, options.trials)
    keep_rows(measured, about, options, show)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="rows on stdout")
    parser.add_argument("--out", type=Path, help="a JSON file; rows in it are kept, those of the same name replaced")
    parser.add_argument("--commit")


def keep_rows(
    measured: Iterable[dict[str, Any]],
    about: dict[str, Any],
    options: argparse.Namespace,
    show: Callable[[dict[str, Any]], None],
) -> None:
    """Each row is shown or kept as soon as it is there, whatever comes after."""
    rows = json.loads(options.out.read_text()) if options.out and options.out.exists() else []
    for row in measured:
        rows = [old for old in rows if old["name"] != row["name"]] + [row | about]
        if not options.json:
            show(row)
        if options.out:
            write(options.out, rows)
    if options.json:
        print(json.dumps(rows))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")


def show(row: dict[str, Any]) -> None:
    speedup = f"{row['speedup']:8.1f} x" if row["speedup"] else ""
    error = f"  error {row['max_relative_error']:.1e}  tau {row['kendall_tau']:.4f}" if "kendall_tau" in row else ""
    print(f"{row['name']:48s} {row['architectures_per_second']:10.2f} /s {speedup}{error}", flush=True)


if __name__ == "__main__":
    main()
