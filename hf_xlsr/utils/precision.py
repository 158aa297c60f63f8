"""Precision of training."""

from __future__ import annotations

import os

import torch

from hf_xlsr.utils.errors import XlsrError, require_choice

PRECISIONS = ("auto", "float32", "bfloat16", "float16")
# These variables may restrict oneDNN to older instruction sets, without which bfloat16 is emulated and slow.
_BF16_ISAS = ("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX512_CORE_AMX", "AVX10", "DEFAULT", "ALL", "BEST")


def cpu_has_fast_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware (AMX or AVX512-BF16) and oneDNN may use it."""
    limit = (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "DEFAULT").upper()
    if not limit.startswith(_BF16_ISAS):
        return False
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, check, bool)() for check in checks)


def choose_precision(precision: str = "auto", *, cpu: bool | None = None) -> str:
    """Resolves `auto` to `bfloat16` if the device computes it fast, else `float32`.

    Autocast uses this precision; weights stay float32. By default, `cpu` is true without an accelerator.
    """
    require_choice("precision", precision, PRECISIONS)
    cpu = not torch.accelerator.is_available() if cpu is None else cpu
    if precision == "float16" and cpu:
        raise XlsrError("precision 'float16' needs a GPU. Use auto, bfloat16 or float32.")
    if precision != "auto":
        return precision
    cuda = torch.cuda.is_available()
    fast = cpu_has_fast_bfloat16() if cpu else cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if fast else "float32"
