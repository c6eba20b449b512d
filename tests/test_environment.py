"""What the machine under a run can do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vitsearch import environment
from vitsearch.environment import products_in, usable_precision

CPU = torch.device("cpu")
NEITHER, ZEN4 = {"avx512_bf16": False, "avx512_fp16": False}, {"avx512_bf16": True, "avx512_fp16": False}
RAPIDS, ARM = {"avx512_bf16": True, "avx512_fp16": True}, {"bf16": True, "fp16_arith": True}


@pytest.mark.parametrize(
    ("facts", "usable"),
    [
        (NEITHER, ("float32", "float32")),
        (ZEN4, ("bfloat16", "float32")),
        (RAPIDS, ("bfloat16", "float16")),
        (ARM, ("bfloat16", "float16")),
        ({}, ("bfloat16", "float16")),
        ({"architecture": "ppc64le"}, ("bfloat16", "float16")),
    ],
    ids=["AVX2", "Zen 4", "Sapphire Rapids", "ARM", "a torch that does not tell", "a processor of which it does not"],
)
def test_half_precision_is_for_processors_with_units_for_it(
    facts: dict[str, Any], usable: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "processor_facts", lambda: facts)
    assert (usable_precision(CPU, "bfloat16"), usable_precision(CPU, "float16")) == usable
    assert usable_precision(CPU, "float32") == "float32"


@pytest.mark.parametrize(("facts", "dtype"), [(NEITHER, torch.float32), (RAPIDS, torch.bfloat16)])
def test_products_have_that_precision(
    facts: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "processor_facts", lambda: facts)
    with products_in(CPU, "bfloat16"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_torch_names_units_as_we_do() -> None:
    """An x86 processor of which torch tells has an entry for each of ours, be it False."""
    facts = environment.processor_facts()
    if facts.get("architecture") != "x86_64":
        pytest.skip("not an x86 processor, or a torch that does not tell")
    assert {"avx512_bf16", "amx_bf16", "avx512_fp16", "amx_fp16"} <= set(facts)
