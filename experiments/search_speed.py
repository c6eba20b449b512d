"""How fast were searches on supernets?

    python experiments/search_speed.py runs/search-0 runs/search-1 --beside 9 --commit HASH

Reads finished studies of one machine, which were made with `--objective supernet:RUN:images=N` and `--beside` of them
at the same time, and writes results/search_speed.json: networks, images in a second, and seconds of evaluation for
each. Breeding and writing come on top.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common import RESULTS, command_line, write

from vitsearch.errors import VitsearchError
from vitsearch.evaluate import SUPERNET
from vitsearch.records import supernet_and_images
from vitsearch.study import Study

Row = dict[str, Any]


def speed(folder: Path) -> Row:
    study = Study.open(folder)
    (objective,) = study.plan.objectives
    _, images = supernet_and_images(objective.name.removeprefix(SUPERNET))
    if images is None:
        raise VitsearchError(f"{folder} must say how many images judge a network, as in supernet:RUN:images=500")
    seconds = sum(trial.seconds for trial in study.trials)
    networks = len(study.trials)
    found = {"study": folder.name, "space": study.plan.space, "strategy": study.plan.strategy, "seed": study.plan.seed}
    found |= {"networks": networks, "images": images, "image_size": study.plan.geometry.image_size}
    return found | {"seconds": round(seconds, 2), "images_per_second": round(networks * images / seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", type=Path)
    parser.add_argument("--beside", type=int, default=1, help="searches at the same time")
    parser.add_argument("--commit", required=True, help="that they were made at")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    places = [json.loads((folder / "study.json").read_text())["environments"] for folder in options.studies]
    machines = {(one["device_name"], one["torch"]) for environments in places for one in environments}
    if len(machines) != 1:
        raise VitsearchError(f"`studies` must be of one machine, but got {sorted(machines)}")
    ((machine, torch),) = machines
    about = {"command": command_line(), "machine": machine, "versions": {"torch": torch}, "commit": options.commit}
    found = about | {"beside": options.beside, "searches": [speed(folder) for folder in options.studies]}
    print(write("search_speed.json", found, options.out).read_text())


if __name__ == "__main__":
    main()
