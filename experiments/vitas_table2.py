"""ViTAS, Table 2: what of a super-transformer to share, with and without the identity probability.

    python experiments/vitas_table2.py --data parquet:cifar10 --work runs/vitas [--rows 0 4 7] [--seeds 3]
        --space vitas:embed_dim=48+96+144+192,num_heads=3+6+12,attention_dim=720,mlp_dim=720,slot_count=8
        --baseline 144 3 6 --recipe small-images-guided --set epochs=16 --set batch_size=256 --images 500 --at-once 9

The second and third line are for one GPU and minutes: a space so deep that the budgets, 105 and 131 M MACs, leave 0.46
and 0.33 of its slots empty; 1 G leaves 0.46 of those of `vitas`. Of a deeper one, steps within them train little.

Rows 0 to 7 at equal steps: DeiT-Ti scaled to the budget; its dimensions searched; the whole space without and with a
class token for each patch size; with the identity probability; then with q, k, v, with q, k and with v shared. Two
budgets, DeiT-Ti's MACs and 1.25 times as many, as 280 M and 350 M are in the paper. Reports the accuracy that the
winner inherits (validation) and that it has from scratch (test), with the spread over seeds beside every difference to
row 7. All trainings are guided by one convolutional teacher. Writes results/vitas_table2.json, which a later run goes
on with.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from readings import between_seeds, difference, spread
from sittings import Sittings
from vitas_common import Bench, Run, add_options, dimensions

from vitsearch.architecture import Settings
from vitsearch.models.super_transformer import Sharing
from vitsearch.spaces import cost_of
from vitsearch.spaces.channelwise import Channelwise

SHARED = Sharing(share="none", class_token="shared")
ROWS: dict[int, tuple[str, Sharing, bool]] = {
    1: ("dimensions", Sharing(share="qkv", class_token="shared"), False),
    2: ("nas", SHARED, False),
    3: ("nas-token", Sharing(share="none"), False),
    4: ("identity", Sharing(share="none"), True),
    5: ("share-qkv", Sharing(share="qkv"), True),
    6: ("share-qk", Sharing(share="qk"), True),
    7: ("share-v", Sharing(share="v"), True),
}
"""Name, sharing, and whether the identity probability is solved for. An empty cell of the paper's column MHSA is
`none`: section 4.2 calls row 4 the one with independent q, k and v."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--rows", type=int, nargs="+", default=list(range(8)))
    parser.add_argument("--baseline", type=int, nargs=3, default=[192, 3, 12], help="width, heads, blocks of row 0")
    parser.add_argument("--baseline-patch", type=int, default=4)
    parser.add_argument("--scales", type=float, nargs="+", default=[1.0, 1.25], help="budgets, in MACs of row 0")
    options = parser.parse_args()
    bench = Bench(options, guided_supernets=True)
    unit = cost_of(baseline(bench, options.baseline[0]), bench.geometry).macs
    budgets = [round(scale * unit) for scale in options.scales]
    sittings = Sittings("vitas_table2.json", options, bench.about() | {"budgets": budgets})
    cells = {
        f"{row}-{'+'.join(map(str, some))}-{seed}": (row, some, seed)
        for long in (True, False)  # what takes longest, one supernet for all budgets, is begun first
        for seed in range(options.seeds)
        for row in options.rows
        if shares_supernets(row) is long
        for some in ([budgets] if long else [[budget] for budget in budgets])
    }
    complete = sittings.run(partial(cell_of, bench), cells)
    rows = [summary(row, budget, sittings.rows) for budget in budgets for row in sorted(options.rows)]
    sittings.write({"complete": complete, "seeds": options.seeds, "rows": rows})
    for found in rows:
        print({key: value for key, value in found.items() if key != "runs"})


def shares_supernets(row: int) -> bool:
    """Whether all budgets have the same supernet: nothing in it depends on them."""
    return row != 0 and not ROWS[row][2]


def cell_of(bench: Bench, cell: tuple[int, list[int], int]) -> dict[str, Any]:
    """One row with one seed, at the budgets that share a supernet."""
    row, budgets, seed = cell
    return {"row": row, "seed": seed, "runs": {str(budget): one(bench, row, budget, seed) for budget in budgets}}


def one(bench: Bench, row: int, budget: int, seed: int) -> dict[str, Any]:
    if row == 0:
        settings = scaled(bench, budget)
        cost = cost_of(settings, bench.geometry)
        found = {"settings": settings, "seed": seed, "params": cost.params, "macs": cost.macs}
        return found | bench.retrain(f"baseline-{budget}", settings, seed)
    name, sharing, solved = ROWS[row]
    _, heads, depth = bench.options.baseline
    space = dimensions(bench.space, bench.options.baseline_patch, heads, depth) if row == 1 else bench.space
    identity = bench.identity(budget) if solved else None
    run = Run(name=name, space=space, sharing=sharing, identity=identity, recipe=bench.recipe, budget=budget)
    return bench.whole(run, seed)


def baseline(bench: Bench, width: int) -> Settings:
    """A plain transformer: attention as wide as the network, MLPs four times as wide."""
    space, (_, heads, depth) = bench.space, bench.options.baseline
    assert isinstance(space, Channelwise)
    empty = space.slot_count - depth
    return space.settings(
        patch_size=bench.options.baseline_patch,
        embed_dim=width,
        num_heads=[heads] * depth + [0] * empty,
        attention_ratio=[3 * width / space.attention_dim] * depth + [None] * empty,
        mlp_ratio=[4 * width / space.mlp_dim] * depth + [None] * empty,
    )


def scaled(bench: Bench, budget: int) -> Settings:
    """The widest of them within the budget, its heads as many."""
    heads = bench.options.baseline[1]
    width = heads
    while cost_of(baseline(bench, width + heads), bench.geometry).macs <= budget:
        width += heads
    return baseline(bench, width)


def summary(row: int, budget: int, cells: list[dict[str, Any]]) -> dict[str, Any]:
    def of(number: int) -> list[dict[str, Any]]:
        ordered = sorted((cell for cell in cells if cell["row"] == number), key=lambda cell: cell["seed"])
        return [cell["runs"][str(budget)] for cell in ordered if str(budget) in cell["runs"]]

    runs, every = of(row), [of(number) for number in sorted({cell["row"] for cell in cells})]
    found: dict[str, Any] = {"row": row, "name": "baseline" if row == 0 else ROWS[row][0], "budget": budget}
    for what in ("inherited_top1", "retrained_top1"):
        values = [run[what] for run in runs if what in run]
        found |= {what: spread(values)} if values else {}
        if values and row != 7:
            noise = between_seeds([[run[what] for run in others if what in run] for others in every])
            found[f"{what}_of_row_7_minus_this"] = difference([run[what] for run in of(7)], values, noise)
    return found | {"runs": runs}


if __name__ == "__main__":
    main()
