from __future__ import annotations

import pytest
import torch

from hf_xlsr.utils.devices import choose_precision, cpu_has_fast_bfloat16
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture
def bf16_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)


@pytest.mark.usefixtures("bf16_cpu")
@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, "bfloat16"),
        ("AVX2", "float32"),
        ("AVX512_CORE_VNNI", "float32"),
        ("avx512_core_amx", "bfloat16"),
        ("AVX512_CORE_BF16", "bfloat16"),
        ("ALL", "bfloat16"),
    ],
)
def test_onednn_limit(limit: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if limit:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert choose_precision("auto", cpu=True) == expected


@pytest.mark.usefixtures("bf16_cpu")
def test_old_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for check in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, check, lambda: False, raising=False)
    assert not cpu_has_fast_bfloat16()
    assert choose_precision("auto", cpu=True) == "float32"


def test_given_precision() -> None:
    assert (choose_precision("bfloat16", cpu=True), choose_precision("float16", cpu=False)) == ("bfloat16", "float16")
    with pytest.raises(XlsrError, match="float16"):
        choose_precision("float16", cpu=True)
    with pytest.raises(XlsrError, match="half"):
        choose_precision("half")
