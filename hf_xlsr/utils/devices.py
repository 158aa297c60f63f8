"""Devices by name, the precision that is fast on them, and sizes of memory."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import convert_file_size_to_int

from hf_xlsr.utils.errors import XlsrError, error_line, require_choice

# Up to this maximum length matrix products are faster on a CPU.
PLAIN_ATTENTION_TOKENS = 200
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
    if cpu is None:
        cpu = not torch.accelerator.is_available()
    if precision == "float16" and cpu:
        raise XlsrError("precision 'float16' needs a GPU. Use auto, bfloat16 or float32.")
    if precision != "auto":
        return precision
    if cpu:
        is_fast = cpu_has_fast_bfloat16()
    else:
        is_fast = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)

    return "bfloat16" if is_fast else "float32"


def autocast_dtype_of(arguments: Any) -> torch.dtype | None:
    """The precision of autocast that training arguments of transformers ask for; None without autocast."""
    if arguments.bf16:
        return torch.bfloat16
    return torch.float16 if arguments.fp16 else None


def precision_of(arguments: Any) -> str:
    """The name of the precision in which training arguments compute."""
    dtype = autocast_dtype_of(arguments) or torch.float32
    return str(dtype).removeprefix("torch.")


def hardware_name(device: torch.device) -> str:
    """The name of a GPU, or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    information = Path("/proc/cpuinfo")
    if information.is_file():
        model = re.search(r"^model name\s*: *(\S.*)$", information.read_text("utf-8"), re.MULTILINE)
        if model:
            return model[1].strip()
    return platform.processor() or platform.machine()


@contextmanager
def product_precision(name: str) -> Iterator[None]:
    """Sets the precision of float32 matrix products to `ieee` or `bf16` (CPU only), whatever the user's setting."""
    backends: Any = torch.backends
    cpu = backends.mkldnn.matmul
    cuda = backends.cuda.matmul
    cpu_before = cpu.fp32_precision
    cuda_before = cuda.fp32_precision
    try:
        cpu.fp32_precision = name
        cuda.fp32_precision = "ieee"
        yield
    finally:
        cpu.fp32_precision = cpu_before
        cuda.fp32_precision = cuda_before


def resolve_device(device: str) -> torch.device:
    """The device of a name such as `cpu` or `cuda:1`; an error if torch cannot allocate on it."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = error_line(str(error).partition("\n")[0], 100).rstrip(".")
        raise XlsrError(f"`device` must be available, got '{device}' ({reason}). Use cpu or the default.") from error
    return torch.device(device)


def parse_size(size: int | str | None) -> int | None:
    """Bytes of a size such as `512MB` (millions) or `4GiB` (powers of 1024); None stays None.

    Examples:
        >>> parse_size("512MB"), parse_size("4 GiB"), parse_size(1000), parse_size(None)
        (512000000, 4294967296, 1000, None)
    """
    if size is None:
        return None
    text = str(size).replace(" ", "").upper()  # accelerate reads Mb as megabits
    try:
        count: int = convert_file_size_to_int(int(text) if text.isdecimal() else text)
    except ValueError:
        count = 0

    if not count:
        raise XlsrError(f"`memory` must be a size above 0, such as 512MB or 4GiB, got {size!r}.")
    return count


def attention_for(implementation: str | None, device: str, dtype: torch.dtype | None, max_length: int) -> str | None:
    """The fastest attention implementation for training: `eager` on a CPU under bfloat16 up to 200 tokens.

    There the backward pass of torch's fused attention takes four times as long.
    """
    is_slow = implementation == "sdpa" and device == "cpu" and dtype == torch.bfloat16
    return "eager" if is_slow and max_length <= PLAIN_ATTENTION_TOKENS else implementation
