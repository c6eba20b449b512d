from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vitsearch.ranking import pareto_front

points = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=40)


@given(points)
def test_front_equals_brute_force(found: list[tuple[int, int, int]]) -> None:
    def beaten(point: tuple[int, ...]) -> bool:
        return any(all(o >= p for o, p in zip(other, point, strict=True)) and other != point for other in found)

    assert pareto_front(found) == [index for index, point in enumerate(found) if not beaten(point)]
