"""How many networks an evaluator is given at a time, which is what a stopped search can lose, and in which parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitsearch.cost import Geometry
from vitsearch.records import Journal, Trial
from vitsearch.scoring import (
    CHUNK_ALONE,
    CHUNK_OF_MIXED,
    CHUNK_OF_SLOW,
    CHUNK_ON_CPU,
    CHUNK_ON_GPU,
    ProxyEvaluator,
    evenly,
    in_full,
)
from vitsearch.spaces import sample
from vitsearch.study import run_search

SMALL_S3 = "s3:depth=1+2/1/1/1,embed_dim=16+24,num_heads=2,mlp_ratio=1,window_size=2"


@pytest.mark.parametrize(
    ("proxies", "space", "on_cpu", "on_gpu"),
    [
        ("dss", "autoformer-tiny", CHUNK_ON_CPU, CHUNK_ON_GPU),
        ("dss,params", "pit", CHUNK_ON_CPU, CHUNK_ON_GPU),
        ("params,macs", SMALL_S3, CHUNK_ON_CPU, CHUNK_ON_GPU),
        ("dss,snip", "autoformer-tiny", CHUNK_OF_SLOW, CHUNK_ON_GPU),
        ("dss,zen", "pit", CHUNK_OF_SLOW, CHUNK_OF_MIXED),
        ("zen", "mobilenetv2", CHUNK_ALONE, CHUNK_ALONE),
        ("synflow", "vitas", CHUNK_ON_CPU, CHUNK_ON_GPU),
        ("plain", "vitas", CHUNK_OF_SLOW, CHUNK_ON_GPU),
        ("dss", SMALL_S3, CHUNK_ALONE, CHUNK_ALONE),  # windows do not go together
        ("zico:batches=8", "pit", CHUNK_ALONE, CHUNK_ALONE),  # of one image each there is no deviation
    ],
)
def test_many_go_together_where_that_gains(proxies: str, space: str, on_cpu: int, on_gpu: int) -> None:
    (settings,) = sample(space, 1, seed=0)
    for device, expected in (("cpu", on_cpu), ("cuda", on_gpu)):
        evaluator = ProxyEvaluator(
            proxies.split(","), geometry=Geometry(image_size=32), device=torch.device(device), memory=1 << 30
        )
        assert evaluator.chunk(settings) == expected


def test_slow_networks_are_written_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    append = Journal.append

    def noted(self: Journal, trials: Sequence[Trial]) -> None:
        written.append(len(trials))
        append(self, trials)

    monkeypatch.setattr(Journal, "append", noted)
    geometry = Geometry(image_size=32, classes=10)
    run_search(
        SMALL_S3, objective="synflow", trials=10, geometry=geometry, patch_size=4, device="cpu", out=tmp_path / "run"
    )
    assert written == [CHUNK_ALONE, 10 - CHUNK_ALONE]


@given(size=st.integers(1, 300), most=st.integers(1, 64))
def test_parts_are_even(size: int, most: int) -> None:
    """All networks in order, in as few parts as there can be, of sizes that differ by one at most; or full but one."""
    group = list(range(size))
    parts = evenly(group, most)
    assert [number for part in parts for number in part] == group
    assert len(parts) == math.ceil(size / most)
    sizes = {len(part) for part in parts}
    assert max(sizes) <= most and max(sizes) - min(sizes) <= 1
    full = in_full(group, most)
    assert [number for part in full for number in part] == group
    assert {len(part) for part in full[:-1]} <= {most} and 0 < len(full[-1]) <= most
