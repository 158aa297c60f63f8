"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

from hf_xlsr.utils.errors import XlsrError

UNITS = {"": 1, "B": 1}
UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}
UNITS |= {letter: 1000**power for power, letter in enumerate("KMGT", 1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Z]*)", re.IGNORECASE | re.ASCII)


def parse_size(size: int | str | None, name: str = "memory") -> int | None:
    """Bytes of a size such as `512MB` (millions) or `4GiB` (powers of 1024); None stays None.

    Args:
        size: A number of bytes, or a text with a unit.
        name: What the caller's argument is called, for the error sentence.

    Raises:
        XlsrError: it is no size, or not above 0.

    Example:
        >>> parse_size("512MB"), parse_size("4 GiB"), parse_size(1000), parse_size(None)
        (512000000, 4294967296, 1000, None)
    """
    if size is None:
        return None
    match = _SIZE.fullmatch(str(size).strip())
    factor = UNITS.get(match[2].upper()) if match else None
    if match is None or factor is None or not (count := int(float(match[1]) * factor)):
        raise XlsrError(f"{name} is {size!r}; give a size above 0, such as 512MB or 4GiB.")
    return count


def readable_size(count: float) -> str:
    """A number of bytes with a unit of thousands.

    Example:
        >>> readable_size(512_000_000), readable_size(999)
        ('512.0 MB', '999 B')
    """
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("KB", "MB", "GB", "TB"):
        count /= 1000
        if count < 1000 or unit == "TB":
            break
    return f"{count:.1f} {unit}"
