"""Networks against timm's own implementations with the same weights, and the methods that timm's models have."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch
from timm.models import group_parameters
from timm.models.vision_transformer import VisionTransformer
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import vitsearch.models
from vitsearch import architecture
from vitsearch.architecture import Architecture, Merge, Patch, Stage, WindowAttention
from vitsearch.cost import Geometry
from vitsearch.errors import BadSettings
from vitsearch.models import VisionNetwork, build, layers
from vitsearch.models.skeleton import Skeletons
from vitsearch.spaces import SPACES, decode, sample

SMALL = Geometry(image_size=32, classes=10)
MICRO = SPACES["autoformer-micro"].region().largest()


def images(geometry: Geometry, count: int = 2) -> Tensor:
    side = geometry.image_size
    return torch.randn(count, geometry.channels, side, side, generator=torch.Generator().manual_seed(0))


def copy_weights(source: nn.Module, target: nn.Module, rename: dict[str, str], reshape: tuple[str, ...] = ()) -> None:
    """Load `source`'s weights into `target`, all of them, under other names."""
    state = {}
    for name, value in source.state_dict().items():
        new = name
        for old, fresh in rename.items():
            new = new.replace(old, fresh)
        state[new] = value.flatten(2).transpose(1, 2) if name in reshape else value
    wanted = target.state_dict()
    target.load_state_dict({name: value for name, value in state.items() if name in wanted}, strict=True)


def random_weights(network: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.data.normal_(0, 0.1, generator=generator)
    return network.eval()


@torch.no_grad()
def test_plain_autoformer_equals_timms_vision_transformer() -> None:
    settings = SPACES["autoformer-tiny-plain"].settings(
        embed_dim=192, depth=12, num_heads=[4] * 12, mlp_ratio=[3.5] * 12
    )
    theirs = random_weights(
        VisionTransformer(
            img_size=64,
            num_classes=7,
            embed_dim=192,
            depth=12,
            num_heads=4,
            mlp_ratio=3.5,
            global_pool="avg",
            fc_norm=False,
        )
    )
    ours = build(settings, Geometry(image_size=64, classes=7))
    copy_weights(theirs, ours, {"patch_embed": "stages.0.entry", "blocks.": "stages.0.blocks."})
    x = images(Geometry(image_size=64))
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_pit_equals_timms_pit() -> None:
    theirs = random_weights(timm.create_model("pit_ti_224", num_classes=9))
    settings = {"space": "pit-tiny", "base_dim": 32, "mlp_ratio": 4, "depth": [2, 6, 4], "num_heads": [2, 4, 8]}
    ours = build(settings, Geometry(classes=9))
    rename = {"patch_embed.conv": "stages.0.entry.proj", "transformers.": "stages.", ".pool.": ".entry."}
    copy_weights(theirs, ours, rename, reshape=("pos_embed",))
    x = images(Geometry())
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_windowed_network_equals_timms_swin_s3() -> None:
    stages = []
    plan = zip((96, 192, 384, 768), (2, 2, 6, 2), (3, 6, 12, 24), (7, 7, 14, 7), strict=True)
    for index, (width, depth, heads, window) in enumerate(plan):
        blocks = tuple(
            WindowAttention(heads=heads, head_dim=32, hidden=4 * width, window=window, shifted=bool(j % 2))
            for j in range(depth)
        )
        stages.append(Stage(entry=Merge() if index else Patch(size=4, stride=4, norm=True), width=width, blocks=blocks))
    blueprint = Architecture(stages=tuple(stages), class_token=False, position="none", norm_eps=1e-5)
    theirs = random_weights(timm.create_model("swin_s3_tiny_224", num_classes=9))
    ours = build(blueprint, Geometry(classes=9))
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    rename = {"patch_embed": "stages.0.entry", "layers.": "stages.", "downsample.norm": "entry.norm_corners"}
    rename |= {".downsample.": ".entry.", "head.fc": "head"}
    copy_weights(theirs, ours, rename)
    x = images(Geometry())
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", SPACES)
def test_fused_and_explicit_attention_agree(name: str) -> None:
    network = build(SPACES[name].region().smallest(), SMALL, seed=0).double()
    x = images(SMALL).double()
    with torch.no_grad():
        torch.testing.assert_close(network(x), network.set_fused_attention(False)(x), rtol=1e-9, atol=1e-9)


def test_seed_gives_what_manual_seed_gives_and_leaves_torch_alone() -> None:
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    ours = build(MICRO, SMALL, seed=5)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(5)
    theirs = timm.create_model("vitsearch_net", settings=MICRO, img_size=32, num_classes=10)
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True))
    other = build(MICRO, SMALL, seed=6)
    assert not torch.equal(ours.state_dict()["head.weight"], other.state_dict()["head.weight"])


@torch.no_grad()
def statistics(network: VisionNetwork) -> dict[str, tuple[float, float]]:
    large = {name: p for name, p in network.named_parameters() if p.numel() > 500 and p.ndim > 1}
    return {name: (float(p.mean()), float(p.std())) for name, p in large.items()}


@pytest.mark.parametrize(
    ("space", "scheme"), [("autoformer-tiny", "autoformer"), ("pit", "autoprox"), ("pit-xs", "tftas-pit")]
)
def test_initialisation_is_as_documented(space: str, scheme: str) -> None:
    plan = decode(SPACES[space].region().smallest())
    assert plan.initialisation == scheme
    network = build(plan, seed=0)
    for name, (mean, std) in statistics(network).items():
        parameter = network.get_parameter(name)
        fan_in = parameter[0].numel()
        convolution = parameter.ndim == 4
        expected = 0.02
        if convolution and scheme == "tftas-pit":
            expected = 1.0
        elif (convolution or (scheme == "autoprox" and parameter.ndim == 2)) and "token" not in name:
            expected = fan_in**-0.5 / 3**0.5
        assert abs(mean) < 0.2 * expected, name
        assert abs(std / expected - 1) < 0.15, (name, std, expected)
    for module in network.modules():
        if isinstance(module, nn.LayerNorm):
            assert module.weight.eq(1).all() and module.bias.eq(0).all()
        if isinstance(module, nn.Linear) and scheme != "autoprox":
            assert module.bias.eq(0).all()


@pytest.mark.parametrize("name", SPACES)
def test_methods_of_timms_models(name: str) -> None:
    settings = SPACES[name].region().smallest()
    network = timm.create_model("vitsearch_net", settings=settings, img_size=32, num_classes=10).eval()
    x, depth = images(SMALL), sum(len(stage.blocks) for stage in decode(settings).stages)  # empty slots too
    features = network.forward_features(x)
    torch.testing.assert_close(network.forward_head(features), network(x))
    assert network.forward_head(features, pre_logits=True).shape == (2, network.num_features)

    final, maps = network.forward_intermediates(x)
    torch.testing.assert_close(final, features)
    assert len(maps) == depth
    for found, info in zip(maps, network.feature_info, strict=True):
        assert found.shape[1] == info["num_chs"] and found.shape[2] == found.shape[3] == 32 / info["reduction"]
    _, early = network.forward_intermediates(x, indices=[0], stop_early=True)
    torch.testing.assert_close(early[0], maps[0])
    only = network.forward_intermediates(x, indices=[0], stop_early=True, intermediates_only=True, output_fmt="NLC")
    torch.testing.assert_close(only[0], maps[0].flatten(2).transpose(1, 2))
    network.reset_classifier(3)
    assert network(x).shape == (2, 3) and network.get_classifier().out_features == 3
    if not network.num_prefix_tokens:
        with pytest.raises(ValueError, match="`global_pool` must be"):
            network.reset_classifier(0, "token")
        return
    _, with_tokens = network.forward_intermediates(x, indices=1, norm=True, return_prefix_tokens=True)
    torch.testing.assert_close(with_tokens[0][1], features[:, :1])
    network.reset_classifier(0, "token")
    torch.testing.assert_close(network(x), features[:, 0])


def test_features_only_and_other_channels() -> None:
    settings = sample("pit", 1, seed=0)[0]
    extractor = timm.create_model(
        "vitsearch_net", settings=settings, img_size=64, in_chans=1, features_only=True, out_indices=[0, -1]
    )
    found = extractor(torch.zeros(1, 1, 64, 64))
    assert [f.shape[1] for f in found] == extractor.feature_info.channels()
    shallow = timm.create_model(
        "vitsearch_net", settings=SPACES["autoformer-micro"].region().smallest(), features_only=True
    )
    assert len(shallow.feature_info.channels()) == 2


def test_no_weight_decay_covers_tokens_and_tables() -> None:
    network = build(MICRO, SMALL)
    names = network.no_weight_decay()
    assert {"cls_token", "pos_embed", "stages.0.blocks.0.attn.relative.key_rows"} <= names
    assert all(network.get_parameter(name) is not None for name in names)
    assert not any("qkv" in name or "mlp" in name for name in names)


def test_layer_decay_groups_follow_the_depth() -> None:
    network = build(MICRO, SMALL)
    groups = param_groups_layer_decay(network, weight_decay=0.1, layer_decay=0.5)
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    assert len(scale) == len(list(network.parameters()))
    blocks = [scale[id(network.get_parameter(f"stages.0.blocks.{i}.mlp.fc1.weight"))] for i in range(3)]
    stem = scale[id(network.get_parameter("stages.0.entry.proj.weight"))]
    head = scale[id(network.get_parameter("head.weight"))]
    assert stem < blocks[0] < blocks[1] < blocks[2] < head


@pytest.mark.parametrize("coarse", [False, True])
def test_layer_decay_reaches_every_parameter_of_a_pooled_network(coarse: bool) -> None:
    network = build(SPACES["pit"].region().smallest(), SMALL)
    groups = group_parameters(network, network.group_matcher(coarse=coarse), reverse=True)
    assert set(groups) == {name for name, _ in network.named_parameters()}
    first = groups["stages.0.blocks.0.mlp.fc1.weight"]
    assert groups["stages.0.entry.proj.weight"] < first <= groups["stages.1.entry.conv.weight"] <= groups["norm.weight"]
    assert param_groups_layer_decay(network, weight_decay=0.05, layer_decay=0.75)


def test_gradient_checkpointing_changes_nothing() -> None:
    network = build(MICRO, SMALL, seed=0).train()
    plain = torch.autograd.grad(network(images(SMALL)).pow(2).sum(), list(network.parameters()))
    network.set_grad_checkpointing()
    again = torch.autograd.grad(network(images(SMALL)).pow(2).sum(), list(network.parameters()))
    for ours, theirs in zip(plain, again, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_drop_path_grows_over_the_blocks_and_sleeps_in_evaluation() -> None:
    network = build(MICRO, SMALL, seed=0, drop_path_rate=0.3)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in network.stages[0].blocks]
    assert rates == pytest.approx([0.0, 0.15, 0.3])
    assert torch.equal(network(images(SMALL)), build(MICRO, SMALL, seed=0)(images(SMALL)))


def test_wrong_input_and_missing_settings_are_named() -> None:
    with pytest.raises(ValueError, match=r"input must be \[batch, 3, 32, 32\], but got \[1, 3, 33, 33\]"):
        build(MICRO, SMALL)(torch.zeros(1, 3, 33, 33))
    with pytest.raises(BadSettings, match="`settings` must be given"):
        timm.create_model("vitsearch_net")
    with pytest.raises(BadSettings, match="`image_size` must be at least the patch size 16, but got 8"):
        build(MICRO, Geometry(image_size=8))
    with pytest.raises(ValueError, match="`img_size` must be square"):
        timm.create_model("vitsearch_net", settings=MICRO, img_size=(32, 64))


def test_networks_can_be_copied_and_moved_to_other_types() -> None:
    network = build(MICRO, SMALL, seed=0)
    twin: Any = copy.deepcopy(network)
    assert torch.equal(twin(images(SMALL)), network(images(SMALL)))
    assert twin.to(torch.bfloat16)(images(SMALL).bfloat16()).dtype == torch.bfloat16
    assert vitsearch.models.vitsearch_net is not None


@pytest.mark.parametrize("space", ["autoformer-tiny", "pit"])
def test_compiled_layers_change_nothing_and_are_shared(space: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    skeletons = Skeletons(entangled=False, compiling={"backend": counter, "fullgraph": True, "dynamic": False})
    geometry = Geometry(image_size=40, classes=5)
    settings = SPACES[space].region().smallest()
    networks = [build(settings, geometry, seed=seed, drop_path_rate=0.4).double().train() for seed in (0, 1)]
    x = torch.randn(3, 3, 40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for network in networks:
        found = []
        for compiled in (None, skeletons):
            network.compile_layers(compiled)
            network.zero_grad()
            torch.manual_seed(3)
            network(x).square().sum().backward()
            found.append({name: parameter.grad for name, parameter in network.named_parameters()})
        torch.testing.assert_close(*found)
    stages = enumerate(networks[0].architecture.stages)
    shapes = {(block, stage.width, number) for number, stage in stages for block in stage.blocks}  # a side for each
    assert counter.frame_count == len(shapes)
    copied = copy.deepcopy(networks[0]).eval()
    assert torch.equal(copied(x), networks[0].eval()(x))


def test_compiled_forms_equal_the_plain_ones() -> None:
    """Hidden units filled up to whole eights, patches as a product, the rearrangement's own gradient."""
    block = architecture.Attention(heads=3, head_dim=16, hidden=60, relative_distance=2)
    layer = layers.TransformerBlock(layers.Attention(36, block, 5), 36, 60, 1e-6, 0.0).double()
    patches = layers.PatchEmbed(Patch(size=4, stride=4), 3, 36, 1e-6).double()
    for parameter in [*layer.parameters(), *patches.parameters()]:
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    network = torch.nn.Sequential(patches, torch.nn.ZeroPad2d((0, 0, 1, 0)), layer)
    x = torch.randn(2, 3, 22, 22, dtype=torch.float64, requires_grad=True)
    found = []
    for forward, fused in ((torch.compile(network, backend="aot_eager"), True), (network, False)):
        layer.attn.fused = fused
        network.zero_grad()
        x.grad = None
        forward(x).sin().sum().backward()
        found.append([x.grad, *(parameter.grad for parameter in network.parameters())])
    torch.testing.assert_close(*found)
