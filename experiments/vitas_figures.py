"""ViTAS, Figures 3 and 4: heads and ratios of found networks, and attention maps for different head counts.

    python experiments/vitas_figures.py --networks found#best other#best --supernet super [other] [--images 4]

Figure 3: heads of each block and the ratios of layers (1 is the width of the embedding, 2i and 2i + 1 are attention and
MLP of block i), without empty slots. Figure 4: where the class token looks in the first two blocks, the mean over
heads, in one network of the first supernet for each head count, all else equal, on validation images; and how far apart
the maps of two head counts are (half the sum of absolute differences: 0 for the same map, 1 for disjoint ones), beside
those of one head count in two supernets, of other seeds. Writes results/vitas_figures.json, and vitas_figure3.svg and
vitas_figure4.svg beside it.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any, cast

import torch
from common import RESULTS, circumstances, command_line, write
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
from vitsearch.training.plan import read_plan, read_result
from vitsearch.training.supernet import TrainedSupernet, read_supernet

BLOCKS = 2
Maps = dict[int, list[Tensor]]
"""For each head count those of the first blocks, [images, side, side] each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", required=True, help="files, or trials of studies")
    parser.add_argument("--supernet", nargs="+", required=True, help="folders, of one space")
    parser.add_argument("--images", type=int, default=4, help="in the picture")
    parser.add_argument("--measured", type=int, default=256, help="images over which distances are means")
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
    count = max(options.images, options.measured)
    several = [attention_maps(read_supernet(folder), count, device) for folder in options.supernet]
    found = circumstances(device, options.commit) | {"command": command_line(), "networks": networks, "figure3": layers}
    found |= {"supernets": [how_trained(Path(folder)) for folder in options.supernet], "images": count}
    write("vitas_figures.json", found | {"figure4": distances([maps for _, maps in several])}, options.out)
    draw_layers(layers, names, options.out / "vitas_figure3.svg")
    images, maps = several[0]
    shown = {heads: [block[: options.images] for block in blocks] for heads, blocks in maps.items()}
    draw_maps(images[: options.images], shown, options.out / "vitas_figure4.svg")


def how_trained(folder: Path) -> dict[str, Any]:
    plan, _ = read_plan(folder)
    about = {"data": Path(plan.data).name, "epochs": plan.recipe.epochs, "subnets": plan.subnets, "seed": plan.seed}
    return about | read_result(folder)


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
def attention_maps(trained: TrainedSupernet, count: int, device: torch.device) -> tuple[Tensor, Maps]:
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


def distances(several: list[Maps]) -> list[dict[str, Any]]:
    """In each block: of two head counts in every supernet, and of one in every pair of supernets."""
    found: list[dict[str, Any]] = [
        {"heads": [one, other], "apart": [apart(maps[one], maps[other]) for maps in several]}
        for one, other in itertools.combinations(several[0], 2)
    ]
    pairs = list(itertools.combinations(several, 2))
    for heads in several[0] if pairs else ():
        alike = [apart(ours[heads], theirs[heads]) for ours, theirs in pairs]
        found.append({"heads": [heads, heads], "apart": alike})
    return found


def apart(ours: list[Tensor], theirs: list[Tensor]) -> list[float]:
    return [float((a - b).abs().sum((1, 2)).mean() / 2) for a, b in zip(ours, theirs, strict=True)]


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


def draw_maps(images: Tensor, maps: Maps, file: Path) -> None:
    import matplotlib.pyplot as plt

    shown = images.float().cpu()
    low, high = shown.amin((1, 2, 3), keepdim=True), shown.amax((1, 2, 3), keepdim=True)
    shown = ((shown - low) / (high - low).clamp_min(1e-6)).permute(0, 2, 3, 1)
    places = list(itertools.product(range(BLOCKS), maps))
    columns = 1 + len(places)
    figure, axes = plt.subplots(
        len(images), columns, figsize=(1.5 * columns, 1.5 * len(images)), squeeze=False, layout="constrained"
    )
    for image, row in enumerate(axes):
        row[0].imshow(shown[image].numpy())
        for axis, (block, heads) in zip(row[1:], places, strict=True):
            axis.imshow(maps[heads][block][image].numpy(), cmap="gray")
            if image == 0:
                axis.set_title(f"block {block + 1}, {heads} head{'s' * (heads > 1)}", fontsize=9)
    for each in axes.flat:
        each.set(xticks=[], yticks=[])
    figure.savefig(file)
    plt.close(figure)


if __name__ == "__main__":
    main()
