"""Kill a search at random moments, resume it, and compare with one that ran through.

    python experiments/kill_and_resume.py --kills 20 --trials 200

Uses the real command on `autoformer-tiny` at full size. Prints one line for each kill and whether the journals are
the same, byte for byte, times aside.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def command(out: Path, trials: int, *options: str) -> list[str]:
    arguments = [
        "search",
        "autoformer-tiny",
        "--strategy",
        "random",
        "--objective",
        "dss",
        "--max-params",
        "6M",
        "--seed",
        "0",
        "--json",
    ]
    return [sys.executable, "-m", "vitsearch", *arguments, "--trials", str(trials), "--out", str(out), *options]


def lines_without_times(out: Path) -> list[str]:
    rows = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    return [json.dumps({key: value for key, value in row.items() if key != "seconds"}) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    moments = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        straight, killed = Path(folder) / "straight", Path(folder) / "killed"
        start = time.perf_counter()
        subprocess.run(command(straight, options.trials), check=True, capture_output=True)
        whole = time.perf_counter() - start
        print(f"uninterrupted: {whole:.1f} s")
        for kill in range(options.kills):
            process = subprocess.Popen(
                command(killed, options.trials, "--resume"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            wait = moments.uniform(0.2, 2.5 * whole / options.kills + 6)
            try:
                process.wait(timeout=wait)
                assert process.returncode == 0, process.stderr and process.stderr.read()
                state = "it had finished"
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                state = "killed"
            journal = killed / "trials.jsonl"
            count = journal.read_bytes().count(b"\n") if journal.exists() else 0
            print(f"{kill + 1:2d}: {state} after {wait:5.1f} s, {count} complete trials", flush=True)
        subprocess.run(command(killed, options.trials, "--resume"), check=True, capture_output=True)
        same = lines_without_times(straight) == lines_without_times(killed)
        print(f"{len(lines_without_times(killed))} trials, the same as uninterrupted: {same}")
        sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
