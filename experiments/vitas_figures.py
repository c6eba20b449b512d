"""ViTAS, Figures 3 and 4: heads and ratios of found networks, and attention maps for different head counts.

    python experiments/vitas_figures.py --networks found#best other#best --supernet super [--images 4] [--device auto]

Figure 3: heads of each block and the ratios of layers (1 is the width of the embedding, 2i and 2i + 1 are attention and
MLP of block i), without empty slots. Figure 4: where the class token looks in the first two blocks, the mean over
heads, in one network of the supernet for each head count, all else equal, on validation images; and how far apart the
maps of two head counts are (half the sum of absolute differences: 0 for the same map, 1 for disjoint ones). Writes
results/vitas_figures.json and vitas_figure3.svg, vitas_figure4.svg beside it.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any, cast

import torch
from common import RESULTS, circumstances, write
from torch import Tensor, nn

from vitsearch import architecture as blueprint
from vitsearch.architecture import Settings
from vitsearch.arguments import read_architectures
from vitsearch.data import evaluation_batches, open_training_data
from vitsearch.environment import pick_device
from vitsearch.models import VisionNetwork
from vitsearch.models.layers import Attention
from vitsearch.spaces import space_of
from vitsearch.spaces.ratioed import Ratioed
from vitsearch.training.supernet import TrainedSupernet, read_supernet

BLOCKS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", required=True, help="files, or trials of studies")
    parser.add_argument("--supernet", required=True)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = pick_device(options.device)
    given = {name: read_architectures([name])[0] for name in options.networks}
    networks = [one.settings for several in given.values() for one in several]
    names = [
        Path(name).name + (f" {number}" if len(several) > 1 else "")
        for name, several in given.items()
        for number in range(len(several))
    ]
    layers = [layers_of(settings) for settings in networks]
    images, maps = attention_maps(read_supernet(options.supernet), options.images, device)
    found = circumstances(device, options.commit) | {"networks": networks, "figure3": layers}
    write("vitas_figures.json", found | {"figure4": distances(maps)}, options.out)
    draw_layers(layers, names, options.out / "vitas_figure3.svg")
    draw_maps(images, maps, options.out / "vitas_figure4.svg")


def layers_of(settings: Settings) -> dict[str, list[float]]:
    """Heads of the blocks that are there, and the ratios of all layers in order."""
    space = cast(Ratioed, space_of(settings))
    (stage,) = space.decode(settings).stages
    present = [block for block in stage.blocks if isinstance(block, blueprint.Attention)]
    ratios = [stage.width / max(space.embed_dim)]
    return {
        "heads": [block.heads for block in present],
        "ratios": ratios + [ratio for block in present for ratio in space.ratios_of(block)],
    }


@torch.no_grad()
def attention_maps(
    trained: TrainedSupernet, count: int, device: torch.device
) -> tuple[Tensor, dict[int, list[Tensor]]]:
    """Images, and for each head count the maps [images, side, side] of the first blocks."""
    plan, supernet = trained
    space, data = cast(Ratioed, supernet.space), open_training_data(plan.data)
    batches = evaluation_batches(
        data.part("validation"), dataset=data, geometry=plan.geometry, batch_size=count, device=device
    )
    images = next(iter(batches))[0]
    found = {}
    for heads in space.num_heads:
        blocks = [space.block(heads, 1.0, 1.0)] * len(space.envelope().stages[0].blocks)
        architecture = space.blueprint(min(space.patches), max(space.embed_dim), blocks)
        network = supernet.to(device).extract(architecture)
        found[heads] = [where_the_class_token_looks(network, number, images) for number in range(BLOCKS)]
    return images, found


def where_the_class_token_looks(network: VisionNetwork, number: int, images: Tensor) -> Tensor:
    attention = cast(Any, network.stages[0]).blocks[number].attn
    assert isinstance(attention, Attention)
    seen: list[Tensor] = []

    def keep(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        seen.append(given[0])

    handle = attention.register_forward_pre_hook(keep)
    network(images)
    handle.remove()
    batch, tokens, _ = seen[0].shape
    q, k, _ = attention.qkv(seen[0]).reshape(batch, tokens, 3, attention.heads, -1).permute(2, 0, 3, 1, 4)
    weights = (q[:, :, :1] @ k.transpose(-2, -1) * attention.scale).softmax(-1).mean(1)[:, 0, 1:]  # [B, N]
    side = network.grid_size[0]
    return (weights / weights.sum(1, keepdim=True)).reshape(batch, side, side).cpu()


def distances(maps: dict[int, list[Tensor]]) -> list[dict[str, Any]]:
    found = []
    for (one, ours), (other, theirs) in itertools.combinations(maps.items(), 2):
        apart = [float((a - b).abs().sum((1, 2)).mean() / 2) for a, b in zip(ours, theirs, strict=True)]
        found.append({"heads": [one, other], "apart": apart})
    return found


def draw_layers(layers: list[dict[str, list[float]]], names: list[str], file: Path) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 5), layout="constrained")
    for name, one in zip(names, layers, strict=True):
        above.plot(range(1, len(one["heads"]) + 1), one["heads"], "o-", label=name)
        below.plot(range(1, len(one["ratios"]) + 1), one["ratios"], "o-", label=name)
    above.set(xlabel="block", ylabel="heads")
    below.set(xlabel="layer", ylabel="ratio", ylim=(0, 1.05))
    for axis in (above.xaxis, above.yaxis, below.xaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    above.legend()
    figure.savefig(file)
    plt.close(figure)


def draw_maps(images: Tensor, maps: dict[int, list[Tensor]], file: Path) -> None:
    import matplotlib.pyplot as plt

    shown = images.float().cpu()
    low, high = shown.amin((1, 2, 3), keepdim=True), shown.amax((1, 2, 3), keepdim=True)
    shown = ((shown - low) / (high - low).clamp_min(1e-6)).permute(0, 2, 3, 1)
    columns = 1 + BLOCKS
    figure, axes = plt.subplots(
        len(images) * len(maps), columns, figsize=(2 * columns, 2 * len(images) * len(maps)), squeeze=False
    )
    for number, (image, heads) in enumerate(itertools.product(range(len(images)), maps)):
        axes[number, 0].imshow(shown[image].numpy())
        axes[number, 0].set_ylabel(f"{heads} heads")
        for block in range(BLOCKS):
            axes[number, 1 + block].imshow(maps[heads][block][image].numpy(), cmap="gray")
    for each in axes.flat:
        each.set(xticks=[], yticks=[])
    figure.savefig(file)
    plt.close(figure)


if __name__ == "__main__":
    main()
