"""Choosing the precision of training by what the machine computes fast."""

from __future__ import annotations

import os

import torch

from hf_xlsr.utils.errors import XlsrError

PRECISIONS = ("auto", "float32", "bfloat16", "float16")
# oneDNN may be told to pretend that the processor is older; then bfloat16 falls back to slow emulation.
_BF16_ISAS = ("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX512_CORE_AMX", "AVX10", "DEFAULT", "ALL", "BEST")


def cpu_has_fast_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 in hardware (AMX or AVX512-BF16) and oneDNN may use it."""
    limit = (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "DEFAULT").upper()
    if not limit.startswith(_BF16_ISAS):
        return False
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, check, bool)() for check in checks)


def choose_precision(precision: str = "auto", *, cpu: bool | None = None) -> str:
    """Turns `auto` into `bfloat16` where the device computes it fast, else `float32`.

    Args:
        precision: `auto`, `float32`, `bfloat16` or `float16`.
        cpu: Whether training runs on the processor; found out when absent.

    Returns:
        `float32`, `bfloat16` or `float16`: the precision of autocast; weights stay float32.

    Raises:
        XlsrError: the name is unknown, or float16 is asked for on a processor.

    Example:
        >>> choose_precision("float32")
        'float32'
    """
    if precision not in PRECISIONS:
        raise XlsrError(f"precision is '{precision}'; use one of {', '.join(PRECISIONS)}.")
    cpu = not torch.accelerator.is_available() if cpu is None else cpu
    if precision == "float16" and cpu:
        raise XlsrError("precision float16 needs a GPU; use auto, bfloat16 or float32 on a processor.")
    if precision != "auto":
        return precision
    cuda = torch.cuda.is_available()
    fast = cpu_has_fast_bfloat16() if cpu else cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if fast else "float32"
