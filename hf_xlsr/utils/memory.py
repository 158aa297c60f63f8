"""Sizes in bytes with units."""

from __future__ import annotations

from accelerate.utils import convert_file_size_to_int

from hf_xlsr.utils.errors import XlsrError


def parse_size(size: int | str | None, name: str = "memory") -> int | None:
    """Bytes of a size such as `512MB` (millions) or `4GiB` (powers of 1024); None stays None.

    Examples:
        >>> parse_size("512MB"), parse_size("4 GiB"), parse_size(1000), parse_size(None)
        (512000000, 4294967296, 1000, None)
    """
    if size is None:
        return None
    text = str(size).replace(" ", "").upper()  # accelerate reads Mb as megabits
    try:
        count = convert_file_size_to_int(int(text) if text.isdecimal() else text)
    except ValueError:
        count = 0
    if not count:
        raise XlsrError(f"`{name}` must be a size above 0, such as 512MB or 4GiB, got {size!r}.")
    return count


def readable_size(count: float) -> str:
    """A number of bytes with a unit of thousands.

    Examples:
        >>> readable_size(512_000_000), readable_size(999)
        ('512.0 MB', '999 B')
    """
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
