from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vitsearch.data.splits import TEST, VALIDATION, hold_out, some_of_each_class


@given(st.lists(st.integers(0, 6), min_size=1, max_size=120), st.sampled_from([VALIDATION, TEST, 0.5]))
def test_held_out_is_disjoint_complete_and_stratified(values: list[int], fraction: float) -> None:
    labels = torch.tensor(values)
    kept, held = hold_out(labels, fraction, "test")
    assert sorted(kept.tolist() + held.tolist()) == list(range(len(values)))
    assert kept.tolist() == sorted(kept.tolist()) and held.tolist() == sorted(held.tolist())
    for label in set(values):
        count, out = values.count(label), int((labels[held] == label).sum())
        if count == 1:
            assert out == 0
        else:
            assert 1 <= out < count and (out == 1 or abs(out - fraction * count) <= 0.5)
    again = hold_out(labels, fraction, "test")
    assert torch.equal(kept, again[0]) and torch.equal(held, again[1])


def test_not_always_the_first_ones() -> None:
    labels = torch.zeros(1000, dtype=torch.int64)
    _, held = hold_out(labels, 0.1, "validation")
    assert len(held) == 100 and 400 < float(held.double().mean()) < 600
    assert not torch.equal(held, hold_out(labels, 0.1, "other")[1])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
def test_some_of_each_class_are_as_even_as_can_be(labels: list[int], data: st.DataObject) -> None:
    class Labelled:
        def __init__(self) -> None:
            self.labels = torch.tensor(labels)

        def __len__(self) -> int:
            return len(labels)

        def read(self, index: int) -> Tensor:
            return torch.full((1, 1, 1), index, dtype=torch.uint8)

    count = data.draw(st.integers(1, len(labels)))
    chosen = some_of_each_class(Labelled(), count)
    assert len(chosen) == len(set(chosen.indices)) == count
    assert chosen.labels.tolist() == [labels[index] for index in chosen.indices]
    taken, there = (torch.bincount(torch.as_tensor(of), minlength=5) for of in (chosen.labels, labels))
    fewest = min((int(t) for t, h in zip(taken, there, strict=True) if t < h), default=count)
    assert int(taken.max()) <= fewest + 1  # no class has more while another has some left
    if count > 1:
        assert set(some_of_each_class(Labelled(), count - 1).indices) < set(chosen.indices)
