"""A block's weights cut out at once, beside one by one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vitsearch.cost import Geometry
from vitsearch.models.cutting import Cut, Part
from vitsearch.models.skeleton import Skeleton
from vitsearch.models.super_transformer import Sharing, supernet_for
from vitsearch.spaces import SPACES

GEOMETRY = Geometry(image_size=32, classes=10)
SPACES_AND_SHARING = [
    ("autoformer-micro", None),
    ("pit-tiny", None),
    ("s3:depth=1+2/1+2/1+2/1", None),
    *[("vitas-micro", Sharing(share=share)) for share in ("v", "qkv", "qk", "none")],
    ("vitas-micro", Sharing(share="v", widths="two-sided")),
    ("autoformer-micro", Sharing(widths="two-sided")),
]


def blocks_of(space_name: str, sharing: Sharing | None, count: int = 4) -> list[tuple[nn.Module, Skeleton]]:
    """Blocks of some networks, each with the layer of the supernet that it is cut from."""
    space = SPACES[space_name]
    supernet = supernet_for(space, GEOMETRY, sharing=sharing, seed=0)
    region, random = space.region(geometry=GEOMETRY), Random(3)
    found = []
    for _ in range(count):
        plan = space.decode(region.sample(random))
        for side in supernet.sides:
            sources, parts = supernet._sources(plan), supernet._parts(plan, side)
            for (_, layers), (_, blocks) in zip(sources, parts, strict=True):
                found += [(layer, block) for layer, block in zip(layers, blocks, strict=False) if block is not None]
    return found


@pytest.mark.parametrize(("space", "sharing"), SPACES_AND_SHARING, ids=str)
@pytest.mark.parametrize("half", [False, True])
def test_parts_and_gradients_are_those_of_slices(space: str, sharing: Sharing | None, half: bool) -> None:
    """To the last bit; in half precision what goes into products is rounded, as autocast rounds it."""
    seen = set()
    for layer, block in blocks_of(space, sharing):
        places, _ = block.places(layer)
        whole: dict[str, Any] = {name: held[key] for name, held, key in places}
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            plain, quick = block.slices(whole), block.given(whole)
        assert quick.keys() == plain.keys() == block.shapes.keys()
        generator = torch.Generator().manual_seed(0)
        wanted = []
        for name, part in quick.items():
            product = half and name.startswith(("attn.qkv.", "attn.proj.", "mlp.fc"))
            assert part.dtype == (torch.bfloat16 if product else plain[name].dtype)
            assert torch.equal(part, plain[name].to(part.dtype))
            wanted.append(torch.randn(part.shape, generator=generator).to(part.dtype))
            seen.add(name)
        tensors = list(whole.values())
        ours = torch.autograd.grad(list(quick.values()), tensors, wanted, allow_unused=True)
        alike = [plain[name] for name in quick]
        same = [one.to(part.dtype) for one, part in zip(wanted, alike, strict=True)]
        theirs = torch.autograd.grad(alike, tensors, same, allow_unused=True)
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)
    assert {"attn.qkv.weight", "attn.qkv.bias", "norm1.weight", "mlp.fc2.bias"} <= seen


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_rows_that_take_turns(turns: int, rows: int, columns: int, below: int, beside: int, last: bool) -> None:
    """Row t i + k of the part cut out is row i of group k; outside of it the gradient is zero."""
    height, width = turns * (rows + below), columns + beside
    whole = torch.arange(float(height * width)).view(height, width).requires_grad_()
    part = Part((turns * rows + rows, columns), (turns, 1), None)
    second = torch.arange(1000.0, 1000.0 + (rows + 1) * width).view(rows + 1, width).requires_grad_()
    (found,) = Cut.apply([part], last, whole, second)
    top, left = (height - turns * rows, beside) if last else (0, 0)
    expected = torch.empty_like(found)
    touched = torch.zeros_like(whole)
    for group in range(turns):
        for row in range(rows):
            for column in range(columns):
                at = top + turns * row + group, left + column
                expected[group * rows + row, column] = whole[at]
                touched[at] = group * rows + row + 1
    expected[turns * rows :] = second[1:, left : left + columns] if last else second[:rows, :columns]
    assert torch.equal(found, expected)
    numbers = torch.arange(1.0, len(found) + 1)[:, None].expand_as(found)
    gradients = torch.autograd.grad(found, [whole, second], numbers)
    assert torch.equal(gradients[0], touched)
    assert gradients[1].count_nonzero() == rows * columns


def test_a_part_without_gradient_leaves_its_tensors_without() -> None:
    tensors = [torch.ones(3, 2, requires_grad=True) for _ in range(2)]
    used, _ = Cut.apply([Part((2, 2), (1,), None), Part((1, 2), (1,), None)], False, *tensors)
    used.sum().backward()
    assert torch.equal(tensors[0].grad, torch.tensor([[1.0, 1], [1, 1], [0, 0]])) and tensors[1].grad is None


def test_gradients_of_a_block_take_one_fill_and_a_copy_for_each_tensor() -> None:
    """torch's slices take a fill and a copy for every axis, and a cast beside that."""
    layer, block = blocks_of("vitas-micro", Sharing())[0]
    places, _ = block.places(layer)
    whole: dict[str, Any] = {name: held[key] for name, held, key in places}
    with torch.autocast("cpu", torch.bfloat16):
        parts = block.given(whole)
    used = [tensor for name, tensor in whole.items() if not name.startswith("attn.v") or name.endswith("all.weight")]
    called: list[str] = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            called.append(str(function))
            return function(*arguments, **(options or {}))

    wanted: list[Tensor] = [torch.ones_like(part) for part in parts.values()]
    with Listening():
        torch.autograd.grad(list(parts.values()), used, wanted, allow_unused=True)
    assert called.count("aten._foreach_zero_.default") == 1 and not any("slice_backward" in name for name in called)
    assert called.count("aten.copy_.default") == len(whole)


def test_gradients_on_the_meta_device_and_those_of_functions() -> None:
    """Neither autocast nor the transforms of torch.func know everything that a step's gradients do."""
    space = SPACES["autoformer-micro"]
    supernet = supernet_for(space, GEOMETRY, seed=0)
    images, plan = torch.ones(2, 3, 32, 32), supernet.envelope
    given = dict(supernet.named_parameters())
    found = torch.func.grad(lambda own: torch.func.functional_call(supernet, own, (images, plan)).sum())(given)
    supernet(images, plan).sum().backward()
    for name, parameter in given.items():
        torch.testing.assert_close(found[name], parameter.grad)
    supernet.to("meta")(images.to("meta"), plan).sum().backward()
