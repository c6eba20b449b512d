"""ViTAS, Table 2: what of a super-transformer to share, with and without the identity probability.

    python experiments/vitas_table2.py --data parquet:cifar10 --work runs/vitas [--rows 0 4 7] [--seeds 3]

Rows 0 to 7 at equal steps: DeiT-Ti scaled to the budget; its dimensions searched; the whole space without and with a
class token for each patch size; with the identity probability; then with q, k, v, with q, k and with v shared. Two
budgets, DeiT-Ti's MACs and 1.25 times as many, as 280 M and 350 M are in the paper. Reports the accuracy that the
winner inherits (validation) and that it has from scratch (test), with the spread over seeds beside every difference to
row 7. Runs that are finished are not run again. Writes results/vitas_table2.json.
"""

from __future__ import annotations

import argparse
from typing import Any

from common import circumstances, write
from vitas_common import Bench, Run, add_options, difference, dimensions, spread

from vitsearch.architecture import Settings
from vitsearch.environment import pick_device
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
    bench = Bench(options)
    unit = cost_of(baseline(bench, options.baseline[0]), bench.geometry).macs
    budgets = [round(scale * unit) for scale in options.scales]
    found: dict[str, Any] = circumstances(pick_device(options.device), options.commit)
    found |= {"data": options.data, "recipe": bench.recipe.to_json(), "retrain": bench.retrained.to_json()}
    found |= {"seeds": options.seeds, "trials": options.population * options.generations, "rows": []}
    for budget in budgets:
        measured = {row: row_of(bench, row, budget) for row in options.rows}
        for row, results in measured.items():
            found["rows"].append(summary(row, budget, results, measured.get(7)))
            write("vitas_table2.json", found, options.out)


def row_of(bench: Bench, row: int, budget: int) -> list[dict[str, Any]]:
    seeds = range(bench.options.seeds)
    if row == 0:
        settings = scaled(bench, budget)
        macs = cost_of(settings, bench.geometry).macs
        retrained = [bench.retrain(f"baseline-{budget}", settings, seed) for seed in seeds]
        return [{"settings": settings, "macs": macs, "retrained_top1": top1} for top1 in retrained]
    name, sharing, solved = ROWS[row]
    _, heads, depth = bench.options.baseline
    space = dimensions(bench.space, bench.options.baseline_patch, heads, depth) if row == 1 else bench.space
    identity = bench.identity(budget) if solved else None
    run = Run(name=name, space=space, sharing=sharing, identity=identity, recipe=bench.recipe, budget=budget)
    return [bench.whole(run, seed) for seed in seeds]


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


def summary(row: int, budget: int, results: list[dict[str, Any]], best: list[dict[str, Any]] | None) -> dict[str, Any]:
    found: dict[str, Any] = {"row": row, "name": "baseline" if row == 0 else ROWS[row][0], "budget": budget}
    for what in ("inherited_top1", "retrained_top1"):
        if what in results[0]:
            found[what] = spread([one[what] for one in results])
            if best is not None and row != 7:
                found[f"{what}_of_row_7_minus_this"] = difference(best, results, what)
    print(found, flush=True)
    return found | {"runs": results}


if __name__ == "__main__":
    main()
