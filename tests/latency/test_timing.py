"""Measurement: turns, warm-up, engines, and times of a sane order."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from vitsearch.architecture import Architecture, Patch, Stage, attention
from vitsearch.cost import Geometry
from vitsearch.errors import VitsearchError
from vitsearch.latency import Candidate, Timing, check_engine, images_per_second, measure, timm_candidate
from vitsearch.latency.engines import ENGINES
from vitsearch.latency.fitting import lend_weights
from vitsearch.latency.timing import TURN, noise, take_turns
from vitsearch.models import VisionNetwork, build

SMALL = Geometry(image_size=32, classes=10)


def network(depth: int) -> VisionNetwork:
    blocks = (attention(3, 32, 384),) * depth
    stage = Stage(entry=Patch(size=4, stride=4), width=96, blocks=blocks)
    return build(Architecture(stages=(stage,)), SMALL, seed=0)


def test_all_take_turns_and_the_first_run_of_each_does_not_count() -> None:
    ran: list[str] = []
    timed: list[str] = []

    def timer(run: Any) -> float:
        before = len(ran)
        run()
        timed.extend(ran[before:])
        return float(len(timed))

    seen: list[tuple[int, int]] = []
    runs = [partial(ran.append, name) for name in "abc"]
    times = take_turns(runs, 7, timer, lambda done, total: seen.append((done, total)))
    assert [len(one) for one in times] == [7, 7, 7] and len(timed) == 21
    rounds = [ran[:12], ran[12:24], ran[24:]]
    assert [{name: part.count(name) for name in "abc"} for part in rounds] == [
        dict.fromkeys("abc", TURN + 1),
        dict.fromkeys("abc", TURN + 1),
        dict.fromkeys("abc", 2),
    ]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    for number in range(7):  # numbers of a round lie together, whoever was first
        values = [one[number] for one in times]
        assert max(values) - min(values) < 3 * TURN


def test_statistics_are_those_of_the_runs() -> None:
    timing = Timing(
        candidate=0, engine="eager", device="cpu", threads=1, batch=8, seconds=tuple(n / 100 for n in range(1, 102))
    )
    assert timing.latency_ms == pytest.approx(510) and timing.p95_ms == pytest.approx(960)
    assert timing.images_per_second == pytest.approx(8 / 0.51)


def test_six_times_the_depth_takes_longer() -> None:
    threads = torch.get_num_threads()
    candidates = [Candidate(network=network(depth), geometry=SMALL) for depth in (2, 12)]
    timings = measure(candidates, batch_sizes=[1, 16], threads=1, repeats=9)
    assert [(one.candidate, one.batch) for one in timings] == [(0, 1), (0, 16), (1, 1), (1, 16)]
    least = [min(one.seconds) for one in timings]
    assert least[2] > 1.5 * least[0] and least[3] > 1.5 * least[1] and least[3] > 1.5 * least[2]
    assert all(len(one.seconds) == 9 and one.threads == 1 and one.device == "cpu" for one in timings)
    assert torch.get_num_threads() == threads


def test_throughput_of_a_network_as_it_is() -> None:
    shallow, deep = network(1).train(), network(10)
    batch = noise(SMALL, 4, torch.device("cpu"))
    assert images_per_second(shallow, batch, repeats=6) > 1.5 * images_per_second(deep, batch, repeats=6) > 0
    assert shallow.training and not deep.training


def test_onnx_runs_the_same_network() -> None:
    pytest.importorskip("onnxruntime")
    made = network(1)
    images = noise(SMALL, 3, torch.device("cpu"))
    run = ENGINES["onnx"](made, SMALL, 1)(images)
    outputs: Any = run()
    with torch.no_grad():
        assert torch.allclose(torch.from_numpy(outputs[0]), made(images), atol=1e-4)


class Scaled(nn.Module):
    """Not one of torch's own modules: those it wraps in a function that they share."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.factor * images


def test_every_network_is_compiled_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch compiles one function for eight modules at most, and then runs it eagerly; timm.optim lifts that."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    counters.clear()
    candidates = [Candidate(network=Scaled(number), geometry=SMALL) for number in range(12)]
    with torch._dynamo.config.patch(recompile_limit=8):  # monkeypatch would hide the setting from all later tests
        measure(candidates, engines=["compile"], repeats=1)
    assert counters["stats"]["unique_graphs"] == 12


def test_a_model_of_timm_at_its_own_or_another_size() -> None:
    own = timm_candidate("vit_tiny_patch16_224")
    other = timm_candidate("vit_tiny_patch16_224", image_size=64, classes=7)
    assert (own.geometry.image_size, own.geometry.classes) == (224, 1000)
    assert other.network(noise(other.geometry, 1, torch.device("cpu"))).shape == (1, 7)
    with pytest.raises(VitsearchError, match="no timm model named 'vit_tiny_patch16_225'"):
        timm_candidate("vit_tiny_patch16_225")


def test_lent_weights_are_shared_between_networks_and_not_within() -> None:
    first, second = network(2), network(3)
    lend_weights([first, second], torch.device("cpu"))
    for made in (first, second):
        places = sorted((p.data_ptr(), p.numel() * 4) for p in made.parameters())
        assert all(start + size <= after for (start, size), (after, _) in pairwise(places))
        assert torch.isfinite(made(noise(SMALL, 1, torch.device("cpu")))).all()
    assert next(first.parameters()).data_ptr() == next(second.parameters()).data_ptr()


def test_bad_arguments_are_named() -> None:
    candidates = [Candidate(network=nn.Identity(), geometry=SMALL)]
    for options, words in (
        ({"repeats": 0}, "`repeats` must be"),
        ({"batch_sizes": [0]}, "`batch_size` must be"),
        ({"threads": 0}, "`threads` must be"),
        ({"engines": ["tensorrt"]}, "`engine` must be one of"),
        ({"device": "tpu"}, "`device` must be one of"),
    ):
        with pytest.raises(VitsearchError, match=words):
            measure(candidates, **options)  # type: ignore[arg-type]
    with pytest.raises(VitsearchError, match="`engine` onnx must go with `device` cpu, but got 'cuda'"):
        check_engine("onnx", torch.device("cuda"))
