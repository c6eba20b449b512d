"""Do exported networks give the outputs of the original, in every format, over random networks of every space?

    python experiments/export_agreement.py [--networks 20] [--formats timm,onnx] [--spaces pit,pit-xs] [--commit HASH]

32 px, 10 classes. All weights, tables and norms included, are drawn anew with a deviation of 0.1, so that no part is
too small to matter. A row is the largest difference over the networks, for each unit of the largest output. What is in
the result file already is not done again; ONNX takes some ten seconds for each network.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from common import RESULTS, circumstances, write

from vitsearch.architecture import Settings
from vitsearch.cost import Geometry
from vitsearch.export import Handover, untrained
from vitsearch.export.write import FORMATS
from vitsearch.spaces import SPACES, sample

GEOMETRY = Geometry(image_size=32, classes=10)
NAME = "export_agreement.json"


def drawn(settings: Settings, seed: int) -> Handover:
    handover = untrained(settings, GEOMETRY)
    generator = torch.Generator().manual_seed(seed)
    for parameter in handover.network.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    for module in handover.network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # without a branch around it, 0.1 times 0.1 would be nothing soon
            module.weight.data += 1
    return handover


@torch.no_grad()
def difference(handover: Handover, name: str, seed: int) -> float:
    side = GEOMETRY.image_size
    images = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(seed))
    expected = handover.network(images)
    with tempfile.TemporaryDirectory() as folder:
        FORMATS[name].write(handover, Path(folder))
        found = FORMATS[name].run(Path(folder), images)
    return float((found - expected).abs().max() / expected.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--spaces", default=",".join(SPACES))
    parser.add_argument("--commit")
    options = parser.parse_args()
    head = circumstances(torch.device("cpu"), options.commit)
    rows = json.loads((RESULTS / NAME).read_text())["rows"] if (RESULTS / NAME).exists() else []
    for name in options.formats.split(","):
        for space in options.spaces.split(","):
            if any((row["space"], row["format"]) == (space, name) for row in rows):
                continue
            start = time.perf_counter()
            networks = sample(space, options.networks, seed=7, geometry=GEOMETRY)
            found = [difference(drawn(settings, seed), name, seed) for seed, settings in enumerate(networks)]
            row = {"space": space, "format": name, "networks": len(networks), "largest_difference": max(found)}
            row |= {"tolerance": FORMATS[name].tolerance, "seconds": round(time.perf_counter() - start, 1)}
            rows.append(row | {"commit": head["commit"]})
            print(rows[-1], flush=True)
            assert max(found) <= FORMATS[name].tolerance
            write(NAME, {key: value for key, value in head.items() if key != "commit"} | {"rows": rows})


if __name__ == "__main__":
    main()
