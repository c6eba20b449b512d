"""Is a supernet told of a network what that network is by itself?

    python experiments/supernet_agreement.py [--spaces autoformer-tiny pit] [--networks 100] [--image-size 32]

For random networks of every space, at full width and in float32: the largest difference between `supernet(x, network)`
and `supernet.extract(network)(x)`, over the largest of the logits. With BatchNorm, in training mode. Writes
results/supernet_agreement.json, where rows of other spaces are kept, and ends with 1 where one is above 1e-5.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, circumstances, command_line, write

from vitsearch.cost import Geometry
from vitsearch.environment import pick_device
from vitsearch.models.super_transformer import supernet_for
from vitsearch.spaces import SPACES, sample

NAME, CLOSE = "supernet_agreement.json", 1e-5


@torch.no_grad()
def agreement(name: str, count: int, image_size: int, device: torch.device) -> dict[str, Any]:
    space, geometry = SPACES[name], Geometry(image_size=image_size, classes=10)
    supernet = supernet_for(space, geometry, seed=0).to(device)
    supernet.train(supernet.batch_norm)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, geometry.channels, image_size, image_size, generator=generator).to(device)
    largest = 0.0
    networks = {json.dumps(settings): settings for settings in sample(space, count, seed=7, geometry=geometry)}
    for settings in networks.values():
        network = space.decode(settings)
        alone = supernet.extract(network).train(supernet.batch_norm)(images)
        difference = float((supernet(images, network) - alone).abs().max() / alone.abs().max())
        largest = max(largest, math.inf if math.isnan(difference) else difference)  # logits that are all zero, too
    return {"space": name, "networks": len(networks), "image_size": image_size, "largest_difference": largest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", nargs="+", default=list(SPACES))
    parser.add_argument("--networks", type=int, default=100)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = pick_device(options.device)
    about = circumstances(device, options.commit) | {"command": command_line()}
    own = {key: about[key] for key in ("machine", "commit", "command")}
    path = options.out / NAME
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    for name in options.spaces:
        row = agreement(name, options.networks, options.image_size, device) | own
        print(
            f"{name:24s} {row['networks']:4d} networks, largest difference {row['largest_difference']:.1e}", flush=True
        )
        rows = [old for old in rows if old["space"] != name] + [row]
        write(NAME, about | {"rows": rows}, options.out)
    sys.exit(0 if all(row["largest_difference"] <= CLOSE for row in rows) else 1)


if __name__ == "__main__":
    main()
