"""Truncation and padding of rows of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def truncate_row(ids: Sequence[int], max_length: int) -> Sequence[int]:
    """A row of at most `max_length` ids that keeps its last id."""
    return ids if len(ids) <= max_length else [*ids[: max_length - 1], ids[-1]]


def negatives_of(features: Sequence[Mapping[str, Any]], column: str = "negative_ids") -> list[Any]:
    """The hard negatives of all rows, row by row; rows may have any number of them."""
    return [negative for feature in features for negative in feature.get(column) or ()]


def pad_rows(
    rows: Sequence[Sequence[int]], pad_id: int, multiple_of: int = 1, limit: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Pads rows of ids on the right: ids and attention mask, both `(rows, length)`, int64.

    The rounded length is at most `limit`, unless a row is longer: an encoder may have no more positions.
    """
    lengths = np.array([len(row) for row in rows])
    longest = max(1, int(lengths.max(initial=1)))
    width = -(-longest // multiple_of) * multiple_of
    if limit is not None:
        width = max(longest, min(width, limit))
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    ids[mask.astype(bool)] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return ids, mask
