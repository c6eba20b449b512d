"""PreNAS, Table 4: networks of one size from scratch: PreNAS's pick, plain SNIP's, DSS's, and random ones.

    python experiments/prenas_from_scratch.py --data parquet:cifar10 --work runs/scratch [--budget 6M] [--device auto]

All have the parameters of PreNAS's pick, within one percent and below the budget. Each is trained with every seed and
measured on the test part once. Writes results/prenas_from_scratch.json, which a later run goes on with.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from prenas_training import add_options, choose, inputs
from readings import between_seeds, difference, spread
from sittings import Sittings, kept
from teachers import about_teacher, guided
from trainings import from_scratch, train_one

from vitsearch.architecture import Settings
from vitsearch.arguments import read_quantity
from vitsearch.cost import Geometry, Limits
from vitsearch.spaces import SPACES, cost_of, sample
from vitsearch.study import run_search
from vitsearch.training.run import Machine

FILE = "prenas_from_scratch.json"
NEAR = 0.99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--budget", default="6M")
    parser.add_argument("--random", type=int, default=4)
    parser.add_argument("--trials", type=int, default=1000, help="of the search for DSS's pick")
    options = parser.parse_args()
    geometry, recipe = inputs(options)
    chosen = kept(FILE, options).get("networks") or networks(options, geometry)
    taught = guided(options, geometry)
    about = {"data": Path(options.data).name, "space": options.space, "recipe": recipe.to_json(), "networks": chosen}
    about |= {"teacher": about_teacher(taught)}
    sittings = Sittings(FILE, options, about)
    wanted = [(name, settings, seed) for seed in range(options.seeds) for name, settings in chosen.items()]
    trainings = from_scratch(wanted, geometry=geometry, data=options.data, recipe=recipe, taught=taught)
    work = partial(train_one, folder=options.work, machine=Machine(device=options.device))
    complete = sittings.run(work, {f"{one.name}-{one.plan.seed}": one for one in trainings})
    rows = [row_of(name, settings, geometry, sittings.rows) for name, settings in chosen.items()]
    sittings.write({"complete": complete, "seeds": options.seeds, "rows": rows})
    for row in rows:
        print(f"{row['name']:10s} {row['params'] / 1e6:.3f} M  {row['test_top1']} {row.get('prenas_minus_this')}")


def row_of(name: str, settings: Settings, geometry: Geometry, cells: list[dict[str, Any]]) -> dict[str, Any]:
    def of(network: str) -> list[float]:
        found = {cell["seed"]: cell["test_top1"] for cell in cells if cell["name"] == network}
        return [found[seed] for seed in sorted(found)]

    row = {"name": name, "settings": settings, "params": cost_of(settings, geometry).params, "test_top1": of(name)}
    row |= spread(of(name)) or {}
    trained = sorted({cell["name"] for cell in cells})
    noise = between_seeds([of(other) for other in trained])
    random = [value for other in trained if other.startswith("random") for value in of(other)]
    if not name.startswith("random"):
        row |= {"minus_random": difference(of(name), random, noise)}
    return row if name == "prenas" else row | {"prenas_minus_this": difference(of("prenas"), of(name), noise)}


def networks(options: argparse.Namespace, geometry: Geometry) -> dict[str, Settings]:
    found = {}
    for name, variant in (("prenas", "paper"), ("snip", "snip")):
        (pick,) = choose(options, geometry, options.budget, name, variant).picks
        found[name] = pick.settings
    params = cost_of(found["prenas"], geometry).params
    limits = Limits(min_params=round(NEAR * params), max_params=(read_quantity("--budget", options.budget) or 1) - 1)
    space = SPACES[options.space].with_patch_size(options.patch_size)
    search = run_search(
        space,
        out=options.work / "dss",
        objective="dss",
        trials=options.trials,
        limits=limits,
        geometry=geometry,
        device=options.device,
        resume=True,
    )
    assert search.study.best is not None
    found["dss"] = search.study.best.settings
    drawn = sample(space, options.random, seed=0, limits=limits, geometry=geometry)
    return found | {f"random-{number}": settings for number, settings in enumerate(drawn)}


if __name__ == "__main__":
    main()
