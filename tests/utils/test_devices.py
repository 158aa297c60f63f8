"""Precision by the hardware, and sizes of memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_xlsr.utils.devices import choose_precision, parse_size
from hf_xlsr.utils.errors import XlsrError


@pytest.mark.parametrize(
    ("limit", "supported", "expected"),
    [
        (None, True, "bfloat16"),
        (None, False, "float32"),
        ("AVX512_CORE_VNNI", True, "float32"),
        ("avx512_core_amx", True, "bfloat16"),
    ],
)
def test_bfloat16_where_it_is_fast(limit: str | None, supported: bool, expected: str, monkeypatch: Any) -> None:
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    if limit:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)

    for check in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, check, lambda: supported, raising=False)
    assert choose_precision("auto", cpu=True) == expected


def test_given_precision() -> None:
    assert choose_precision("bfloat16", cpu=True) == "bfloat16"
    assert choose_precision("float16", cpu=False) == "float16"
    with pytest.raises(XlsrError, match="float16"):
        choose_precision("float16", cpu=True)
    with pytest.raises(XlsrError, match="half"):
        choose_precision("half")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1.5 GB", 1_500_000_000), ("4GiB", 4 * 2**30), (7, 7), (None, None)],
)
def test_sizes(text: str | int | None, size: int | None):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "4 apples", "-1GB", 0])
def test_invalid_size(text: str | int):
    with pytest.raises(XlsrError, match="memory"):
        parse_size(text)
