"""The tables against loops over the weights that each network inherits, in float64."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitsearch.architecture import Attention, Settings
from vitsearch.cost import Geometry
from vitsearch.data import Batch, open_data
from vitsearch.methods.preselection import Pass
from vitsearch.methods.score_tables import ScoreTables, Tables, code_images, score_tables
from vitsearch.models import Supernet
from vitsearch.scoring import ProxyEvaluator
from vitsearch.spaces import SPACES
from vitsearch.spaces.isotropic import Isotropic

SPACE = cast(Isotropic, SPACES["autoformer-micro"].with_patch_size(8))
GEOMETRY = Geometry(image_size=16, classes=10)


def trained() -> Supernet:
    """Weights as after a training: no bias is zero, no norm is one."""
    supernet = Supernet(SPACE, GEOMETRY, seed=0).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in supernet.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 5
    return supernet


def batch() -> Batch:
    images, labels = open_data("noise").draw(4, GEOMETRY, 3)
    return Batch(images.double(), labels)


def gradients(supernet: Supernet, of_logits: bool = False) -> dict[str, tuple[Tensor, Tensor]]:
    """Weight and gradient of every tensor of the largest network as a network of its own: q, k, v one after another."""
    network = supernet.extract(supernet.envelope)
    images, labels = batch()
    logits = network(images)
    (logits.sum() if of_logits else F.cross_entropy(logits, labels)).backward()
    return {name: (p.detach(), cast(Tensor, p.grad)) for name, p in network.named_parameters()}


def product(found: dict[str, tuple[Tensor, Tensor]], name: str) -> Tensor:
    weight, gradient = found[name]
    return (weight * gradient).abs()


def rows_of(heads: int, head_dim: int, most: int) -> list[int]:
    """Rows of q, k and v that the first heads have, where q, k and v follow one another."""
    return [
        kind * most * head_dim + head * head_dim + channel
        for kind in range(3)
        for head in range(heads)
        for channel in range(head_dim)
    ]


def block_snip(found: dict[str, tuple[Tensor, Tensor]], number: int, width: int, block: Attention) -> float:
    at = f"stages.0.blocks.{number}"
    most = max(SPACE.num_heads)
    rows, inner, hidden = rows_of(block.heads, block.head_dim, most), block.heads * block.head_dim, block.hidden
    total = 0.0
    for norm in ("norm1", "norm2"):
        total += float(
            product(found, f"{at}.{norm}.weight")[:width].sum() + product(found, f"{at}.{norm}.bias")[:width].sum()
        )
    total += float(product(found, f"{at}.attn.qkv.weight")[rows][:, :width].sum())
    total += float(product(found, f"{at}.attn.qkv.bias")[rows].sum())
    total += float(product(found, f"{at}.attn.proj.weight")[:width, :inner].sum())
    total += float(product(found, f"{at}.attn.proj.bias")[:width].sum())
    for table in ("key_rows", "key_columns", "value_rows", "value_columns"):
        total += float(product(found, f"{at}.attn.relative.{table}").sum())
    total += float(product(found, f"{at}.mlp.fc1.weight")[:hidden, :width].sum())
    total += float(product(found, f"{at}.mlp.fc1.bias")[:hidden].sum())
    total += float(product(found, f"{at}.mlp.fc2.weight")[:width, :hidden].sum())
    return total + float(product(found, f"{at}.mlp.fc2.bias")[:width].sum())


def frame_snip(found: dict[str, tuple[Tensor, Tensor]], width: int) -> float:
    total = sum(float(product(found, f"stages.0.entry.proj.{name}")[:width].sum()) for name in ("weight", "bias"))
    total += sum(float(product(found, name)[..., :width].sum()) for name in ("cls_token", "pos_embed"))
    total += sum(float(product(found, f"norm.{name}")[:width].sum()) for name in ("weight", "bias"))
    return total + float(product(found, "head.weight")[:, :width].sum() + product(found, "head.bias").sum())


def looked_up(tables: Tables, settings: Settings) -> float:
    width = SPACE.embed_dim.index(settings["embed_dim"])
    total = tables.frame[width]
    for number, (heads, ratio) in enumerate(zip(settings["num_heads"], settings["mlp_ratio"], strict=True)):
        total += tables.block[width, number]
        total += tables.heads[width, number, SPACE.num_heads.index(heads)]
        total += tables.ratios[width, number, SPACE.mlp_ratio.index(ratio)]
    return float(total)


def test_tables_are_the_sums_over_what_each_network_inherits() -> None:
    """All 160 networks, plain (Eq. 4) and normalised (Eq. 13), biases of q, k and v taking turns like their weights."""
    supernet = trained()
    tables, found = score_tables(supernet, batch()), gradients(supernet)
    largest = cast(list[Attention], list(supernet.envelope.stages[0].blocks))
    totals = [block_snip(found, number, max(SPACE.embed_dim), block) for number, block in enumerate(largest)]
    for settings in SPACE.region(geometry=GEOMETRY):
        plan, width = SPACE.decode(settings), settings["embed_dim"]
        blocks = [
            block_snip(found, number, width, cast(Attention, block))
            for number, block in enumerate(plan.stages[0].blocks)
        ]
        assert looked_up(tables.snip, settings) == pytest.approx(frame_snip(found, width) + sum(blocks), rel=1e-9)
        share = sum(block / total for block, total in zip(blocks, totals, strict=False))
        assert looked_up(tables.normalised, settings) == pytest.approx(share, rel=1e-9)


def test_the_bias_of_q_k_and_v_is_cut_like_their_weight() -> None:
    """With contiguous biases, as AutoFormer's code cuts them, the scores would differ: the test above can tell."""
    supernet = trained()
    found = gradients(supernet)
    bias = product(found, "stages.0.blocks.0.attn.qkv.bias")
    turns, contiguous = float(bias[rows_of(2, 16, 3)].sum()), float(bias[: 3 * 2 * 16].sum())
    assert abs(turns - contiguous) > 1e-3 * turns


def test_the_whole_of_every_block_counts_one() -> None:
    tables = score_tables(trained(), batch())
    largest = SPACE.region(geometry=GEOMETRY).largest()
    assert looked_up(tables.normalised, largest) == pytest.approx(largest["depth"], rel=1e-12)
    assert np.all(np.diff(tables.normalised.heads, axis=2) > 0) and np.all(np.diff(tables.snip.ratios, axis=2) > 0)


def test_the_scores_of_the_public_code() -> None:
    supernet = trained()
    tables, found = score_tables(supernet, batch(), "code"), gradients(supernet, of_logits=True)
    width = max(SPACE.embed_dim)

    def balanced(name: str) -> Tensor:
        weight, gradient = found[name]
        return (weight * gradient).abs() / weight.abs().sum() / gradient.abs().sum()

    for number in range(3):
        at = f"stages.0.blocks.{number}"
        third = sorted(set(rows_of(3, 16, 3)) - set(rows_of(2, 16, 3)))
        head = float(balanced(f"{at}.attn.qkv.weight")[third].sum())
        units = slice(2 * width, 3 * width)
        step = float(balanced(f"{at}.mlp.fc1.weight")[units].sum() + balanced(f"{at}.mlp.fc2.weight")[:, units].sum())
        for place in range(2):  # the same at every width
            assert tables.normalised.heads[place, number].tolist() == pytest.approx([0, head], rel=1e-9)
            assert tables.normalised.ratios[place, number].tolist() == pytest.approx([0, step], rel=1e-9)
    left_out = sum(
        float(product(found, name).sum()) for name in found if "relative" in name or name.endswith(("token", "embed"))
    )
    everything = sum(float(product(found, name).sum()) for name in found)
    largest = SPACE.region(geometry=GEOMETRY).largest()
    assert looked_up(tables.snip, largest) == pytest.approx(everything - left_out, rel=1e-9)


def one_pass(**changes: object) -> Pass:
    given = {"space": SPACE, "geometry": GEOMETRY, "variant": "paper", "source": open_data("noise"), "batch_size": 4}
    return Pass(**(given | {"seed": 5, "device": torch.device("cpu")} | changes))  # type: ignore[arg-type]


def test_the_first_draw_is_the_proxy_on_shared_weights() -> None:
    largest = SPACE.region(geometry=GEOMETRY).largest()
    evaluator = ProxyEvaluator(["snip"], geometry=GEOMETRY, seed=5, device="cpu", batch_size=4, weights="shared")
    found = looked_up(one_pass().tables(0).snip, largest)
    assert found == pytest.approx(evaluator.one(largest).scores["snip"], rel=1e-4)


def test_without_normalisation_both_steps_are_plain_snip() -> None:
    plain, paper = (score_tables(trained(), batch(), variant) for variant in ("snip", "paper"))
    assert plain.normalised.to_json() == plain.snip.to_json() == paper.snip.to_json() != paper.normalised.to_json()


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_a_draw_depends_on_seed_and_number_alone(variant: str) -> None:
    torch.manual_seed(1)
    first = [one_pass(variant=variant).tables(draw).to_json() for draw in (0, 1)]
    state = torch.get_rng_state()
    torch.manual_seed(2)
    assert [one_pass(variant=variant).tables(draw).to_json() for draw in (1, 0)] == first[::-1]
    assert first[0] != first[1] and first[0] != one_pass(variant=variant, seed=6).tables(0).to_json()
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())  # nobody else's random numbers are used up


def test_tables_survive_json_and_means_are_means_of_scores() -> None:
    draws = [one_pass().tables(draw) for draw in range(3)]
    assert ScoreTables.from_json(draws[0].to_json()).to_json() == draws[0].to_json()
    mean = ScoreTables.mean(draws)
    settings = SPACE.region(geometry=GEOMETRY)[77]
    expected = sum(looked_up(draw.normalised, settings) for draw in draws) / 3
    assert looked_up(mean.normalised, settings) == pytest.approx(expected, rel=1e-12)


def test_noise_of_the_public_code_has_the_mean_and_deviation_of_imagenet() -> None:
    images = code_images(open_data("noise").draw(8, Geometry(image_size=64), 0)).images
    assert images.mean((0, 2, 3)).tolist() == pytest.approx([0.485, 0.456, 0.406], abs=0.01)
    assert images.std((0, 2, 3)).tolist() == pytest.approx([0.229, 0.224, 0.225], abs=0.01)
