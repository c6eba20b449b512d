from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from vitsearch.data.splits import TEST, VALIDATION, hold_out


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
