from __future__ import annotations

import pytest

from hf_xlsr.utils.devices import parse_size
from hf_xlsr.utils.errors import XlsrError


@pytest.mark.parametrize(
    ("text", "size"),
    [("512mb", 512_000_000), ("1.5 GB", 1_500_000_000), ("4GiB", 4 * 2**30), ("7", 7), (7, 7), (None, None)],
)
def test_sizes(text: str | int | None, size: int | None):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "4 apples", "-1GB", "0", 0, "1e9", "4 G"])
def test_invalid_size(text: str | int):
    with pytest.raises(XlsrError, match="--memory"):
        parse_size(text, "--memory")
