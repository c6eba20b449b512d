"""TF-TAS Table 3: does DSS rank the members of a published family by their size?

    python experiments/published_families.py [--device auto] [--commit HASH]

PiT and XCiT as timm builds them, at 224 px, untrained, three seeds. T2T-ViT is left out: timm has none. Our figures are
not the paper's: its public code leaves QKV out and takes absolute values of tensors that the forward pass does not use.
"""

from __future__ import annotations

import argparse

from common import circumstances, write

from vitsearch.environment import pick_device
from vitsearch.ranking import kendall
from vitsearch.scoring import ProxyEvaluator

FAMILIES = {  # timm's name: parameters in millions, top-1 and proxy of the paper
    "PiT": {"pit_ti_224": (4.9, 73.8, 2.9e4), "pit_xs_224": (10.6, 78.2, 3.4e4), "pit_s_224": (23.5, 80.5, 4.3e4)},
    "XCiT": {
        "xcit_tiny_24_p16_224": (12.0, 79.4, 3.4e4),
        "xcit_small_24_p16_224": (48.0, 82.6, 9.2e4),
        "xcit_medium_24_p16_224": (84.0, 82.7, 1.4e5),
        "xcit_large_24_p16_224": (189.0, 82.9, 2.4e5),
    },
}
SEEDS = (0, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    options = parser.parse_args()
    device = pick_device(options.device)
    rows = []
    for family, members in FAMILIES.items():
        for model, (millions, top1, proxy) in members.items():
            scores = []
            for seed in SEEDS:
                found = ProxyEvaluator(["dss", "params"], seed=seed, device=device).timm(model)
                scores.append(found.scores["dss"])
            row = {"family": family, "model": model, "params": found.scores["params"], "dss": scores}
            rows.append(row | {"paper_params": millions * 1e6, "paper_top1": top1, "paper_proxy": proxy})
            print(f"{family:5s} {model:24s} {found.scores['params'] / 1e6:6.1f} M  top-1 {top1}", end="  ")
            print("DSS", " ".join(f"{score:.4g}" for score in scores), f" paper {proxy:.2g}", flush=True)
    agreement = {}
    for family in FAMILIES:
        own = [row for row in rows if row["family"] == family]
        top1 = [row["paper_top1"] for row in own]
        agreement[family] = [kendall([row["dss"][index] for row in own], top1) for index in range(len(SEEDS))]
    print("Kendall's tau with top-1, by seed:", agreement)
    write("published_families.json", circumstances(device, options.commit) | {"rows": rows, "kendall": agreement})


if __name__ == "__main__":
    main()
