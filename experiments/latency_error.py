"""How far off is predicted latency on networks that nothing was fitted on, in every space, on this machine?

    python experiments/latency_error.py [--spaces pit,autoformer-tiny] [--engine eager] [--threads 1] [--device cpu]
    python experiments/latency_error.py --spaces autoformer-micro --image-size 32 --repeats 3 --held-out 3 --out DIR

Writes latency-DEVICE-ENGINE-threadsN-batchB.json, a row for each space, beside the error of a straight line over MACs.
Let the machine do nothing else. What is in the file already is not done again. A space at 224 px takes minutes on one
core; the second command is the smoke form.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from common import RESULTS, circumstances, write

from vitsearch.cost import Geometry
from vitsearch.latency import LatencyModel, fit_latency
from vitsearch.spaces import SPACES


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", default=",".join(SPACES))
    parser.add_argument("--engine", default="eager")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--networks", type=int, default=12)
    parser.add_argument("--held-out", type=int, default=30)
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def row_of(model: LatencyModel, seconds: float) -> dict[str, object]:
    times = sorted(one.measured_ms for one in model.held_out)
    return {
        "space": model.space.name,
        "image_size": model.geometry.image_size,
        "blocks": len(model.blocks),
        "frames": len(model.frames),
        **model.errors,
        "fastest_ms": times[0],
        "slowest_ms": times[-1],
        "scale": model.scale,
        "constant_ms": model.constant_ms,
        "seconds": round(seconds, 1),
        "held_out": [{"measured_ms": one.measured_ms, "predicted_ms": one.predicted_ms} for one in model.held_out],
    }


def main() -> None:
    options = arguments()
    name = f"latency-{options.device}-{options.engine}-threads{options.threads}-batch{options.batch_size}.json"
    path = options.out / name
    head = circumstances(torch.device(options.device), options.commit) | {"threads": options.threads}
    head |= {"engine": options.engine, "batch": options.batch_size, "repeats": options.repeats}
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    for space in options.spaces.split(","):
        if any(row["space"] == space for row in rows):
            continue
        start = time.perf_counter()
        model = fit_latency(
            space,
            geometry=Geometry(image_size=options.image_size),
            engine=options.engine,
            batch=options.batch_size,
            threads=options.threads,
            device=options.device,
            networks=options.networks,
            held_out=options.held_out,
            repeats=options.repeats,
        )
        rows.append(row_of(model, time.perf_counter() - start))
        print(space, model.errors, flush=True)
        write(name, head | {"rows": rows}, options.out)


if __name__ == "__main__":
    main()
