"""One name for each split, whatever a benchmark calls it."""

from __future__ import annotations

_DEV = frozenset({"dev", "development", "trial", "val", "valid", "validation"})


def split_name(name: str) -> str:
    """`dev` for all that means it; any other name as it is, in lower case and without spaces around.

    Example:
        >>> [split_name(name) for name in ("validation", "trial", "Test", "test_2016")]
        ['dev', 'dev', 'test', 'test_2016']
    """
    plain = str(name).strip().lower()
    return "dev" if plain in _DEV else plain
