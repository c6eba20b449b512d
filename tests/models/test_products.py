"""Products by oneDNN are those of torch, and are taken where they were found to be faster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from vitsearch.models import products


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.fixture(params=["onednn", "torch"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "onednn" and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    calls: list[int] = []
    real = products._by_onednn

    def counted(*given: Tensor | None) -> Tensor:
        calls.append(1)
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(products, "_by_onednn", counted)
    monkeypatch.setattr(products, "prefers_onednn", lambda: request.param == "onednn")
    yield request.param
    assert bool(calls) == (request.param == "onednn")


def test_linear(library: str) -> None:
    """Of any strides and leading dimensions, of one row, and of a transposed weight, as the way back has it."""
    weight, bias = drawn(7, 5), drawn(7)
    for x in (drawn(4, 5), drawn(2, 3, 4, 5), drawn(5, 6).T, drawn(2, 1, 4, 5).expand(2, 3, 4, 5), drawn(1, 5)):
        expected = x.double() @ weight.double().T
        torch.testing.assert_close(products.linear(x, weight).double(), expected, rtol=1e-5, atol=1e-5)
        found = products.linear(x, weight, bias).double()
        torch.testing.assert_close(found, expected + bias.double(), rtol=1e-5, atol=1e-5)
        assert found.shape == (*x.shape[:-1], 7)
    back = products.linear(drawn(4, 7), weight.T).double()
    torch.testing.assert_close(back, drawn(4, 7).double() @ weight.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("left", [3, 9])
def test_over_tokens(library: str, left: int) -> None:
    """Whichever side is larger, and where one is the same for all networks."""
    for x, y in (
        (drawn(2, 4, 6, left), drawn(2, 4, 6, 5)),
        (drawn(2, 4, 6, left), drawn(4, 6, 5)),
        (drawn(2, 6, left)[:, :4], drawn(1, 4, 5)),
    ):
        expected = x.double().mT @ y.double()
        torch.testing.assert_close(products.over_tokens(x, y).double(), expected, rtol=1e-5, atol=1e-5)


def test_nothing_but_float32_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    monkeypatch.setattr(products, "_by_onednn", lambda *_: pytest.fail("not of these"))
    x, weight = drawn(4, 5, dtype=torch.float64), drawn(3, 5, dtype=torch.float64)
    torch.testing.assert_close(products.linear(x, weight), x @ weight.T)
    torch.testing.assert_close(products.over_tokens(x, x), x.T @ x)
    assert products.linear(drawn(0, 5), drawn(3, 5)).shape == (0, 3)


def test_other_processors_and_other_torches_keep_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(products, "made_by_amd", lambda: True)
    fresh = products.prefers_onednn.__wrapped__
    if torch._C._has_mkldnn:
        assert fresh()
    for name, instead in (("made_by_amd", lambda: False), ("_by_onednn", lambda x, w, _: x @ w.T + 1)):
        with monkeypatch.context() as patch:
            patch.setattr(products, name, instead)
            assert not fresh()

    def changed(*_: object) -> Tensor:
        raise TypeError("another signature")

    monkeypatch.setattr(products, "_by_onednn", changed)
    assert not fresh()
