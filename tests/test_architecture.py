from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitsearch.architecture import (
    Absent,
    Architecture,
    Attention,
    Merge,
    Patch,
    Pool,
    Stage,
    WindowAttention,
    hidden_ratio,
    hidden_width,
)
from vitsearch.errors import BadSettings

attention_blocks = st.builds(
    Attention,
    heads=st.integers(1, 16),
    head_dim=st.integers(1, 64),
    hidden=st.integers(1, 4096),
    relative_distance=st.integers(0, 14),
)
window_blocks = st.builds(
    WindowAttention,
    heads=st.integers(1, 16),
    head_dim=st.integers(1, 64),
    hidden=st.integers(1, 4096),
    window=st.integers(1, 28),
    shifted=st.booleans(),
)


def stages(entries: st.SearchStrategy, blocks: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(Stage, entry=entries, width=st.just(96), blocks=st.lists(blocks, max_size=4).map(tuple))


with_token = st.builds(
    lambda first, rest: Architecture(stages=(first, *rest)),
    stages(st.builds(Patch, size=st.integers(1, 32), stride=st.integers(1, 32)), attention_blocks),
    st.lists(stages(st.just(Pool()), st.one_of(attention_blocks, st.just(Absent()))), max_size=3),
)
windowed = st.builds(
    lambda first, rest: Architecture(stages=(first, *rest), class_token=False, position="none"),
    stages(st.builds(Patch, size=st.just(4), stride=st.just(4), norm=st.booleans()), window_blocks),
    st.lists(stages(st.just(Merge()), window_blocks), max_size=3),
)


@given(st.one_of(with_token, windowed))
def test_json_round_trip_and_key(architecture: Architecture) -> None:
    text = json.dumps(architecture.to_json())
    again = Architecture.from_json(json.loads(text))
    assert again == architecture
    assert again.key() == architecture.key()


def test_key_tells_blueprints_apart() -> None:
    def make(hidden: int) -> Architecture:
        block = Attention(heads=1, head_dim=8, hidden=hidden)
        return Architecture(stages=(Stage(entry=Patch(size=4, stride=4), width=8, blocks=(block,)),))

    assert make(16).key() != make(17).key()


@given(st.integers(1, 2000), st.integers(1, 20000))
def test_hidden_ratio_is_undone_by_hidden_width(width: int, hidden: int) -> None:
    assert hidden_width(width, hidden_ratio(width, hidden)) == hidden


def test_depth_and_mean_width_ignore_absent_blocks() -> None:
    block = Attention(heads=2, head_dim=4, hidden=16)
    architecture = Architecture(
        stages=(
            Stage(entry=Patch(size=4, stride=4), width=8, blocks=(block, Absent())),
            Stage(entry=Pool(), width=16, blocks=(block, block, block, Absent())),
        )
    )
    assert architecture.depth == 4
    assert architecture.mean_width == (8 + 3 * 16) / 4


@pytest.mark.parametrize(
    ("image_size", "patch", "stride", "sides"),
    [(224, 16, 8, [27, 14, 7]), (32, 16, 8, [3, 2, 1]), (223, 16, 16, [13, 7, 4]), (16, 16, 16, [1, 1, 1])],
)
def test_sides_follow_the_convolutions(image_size: int, patch: int, stride: int, sides: list[int]) -> None:
    import torch
    from torch import nn

    stages = (
        Stage(entry=Patch(size=patch, stride=stride), width=2, blocks=()),
        Stage(entry=Pool(), width=2, blocks=()),
        Stage(entry=Pool(), width=2, blocks=()),
    )
    assert Architecture(stages=stages).sides(image_size) == sides
    x = nn.Conv2d(1, 1, patch, stride)(torch.zeros(1, 1, image_size, image_size))
    assert [x.shape[-1], (y := nn.Conv2d(1, 1, 3, 2, 1)(x)).shape[-1], nn.Conv2d(1, 1, 3, 2, 1)(y).shape[-1]] == sides


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": []}, "first stage"),
        ({"stages": 3}, "`stages` must be a list"),
        ({"readout": "class", "class_token": False}, "needs `class_token` true"),
        ({"norm_eps": 0.0}, "`norm_eps`"),
        ({"class_token": 1}, "`class_token`"),
        ({"resolution": "224"}, "`resolution`"),
        ({"colour": "red"}, "no field 'colour'"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(change: dict[str, object], message: str) -> None:
    block = Attention(heads=1, head_dim=8, hidden=8)
    good = Architecture(stages=(Stage(entry=Patch(size=4, stride=4), width=8, blocks=(block,)),)).to_json()
    with pytest.raises(BadSettings, match=message):
        Architecture.from_json(good | change)


def test_pooling_needs_a_multiple_of_the_width() -> None:
    first = Stage(entry=Patch(size=4, stride=4), width=8, blocks=())
    with pytest.raises(BadSettings, match="got 12 after 8"):
        Architecture(stages=(first, Stage(entry=Pool(), width=12, blocks=())))


@pytest.mark.parametrize("entry", [Merge(), Pool()])
def test_windows_and_merging_take_no_class_token(entry: Merge | Pool) -> None:
    block = WindowAttention(heads=1, head_dim=8, hidden=8, window=7)
    blocks = (block,) if isinstance(entry, Pool) else ()
    first = Stage(entry=Patch(size=4, stride=4), width=8, blocks=())
    with pytest.raises(BadSettings, match="class token"):
        Architecture(stages=(first, Stage(entry=entry, width=8, blocks=blocks)))
