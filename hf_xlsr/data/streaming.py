"""Batches from streams of rows: shuffled, bucketed by length, as a function of seed and epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import IterableDataset

from hf_xlsr.data.preparation import Row, RowKind


@dataclass
class Stream:
    """Rows of a `datasets.IterableDataset`, tokenised when they are used.

    Args:
        data: Raw rows.
        read: Reads rows of text or token ids from batches of raw rows.
        encoder: Its `encode` makes columns of token ids from rows.
        kind: Columns of the rows.
        size: Number of raw rows, where known.
        ordered: Whether rows must be read in their order.
    """

    data: IterableDataset
    read: Callable[[Iterable[Any]], Iterator[Row]]
    encoder: Any
    kind: RowKind
    size: int | None = None
    ordered: bool = False


@dataclass
class StreamedRows:
    """What prepared rows are for streams: `StreamBatches` makes batches of it.

    Args:
        streams: Mixed with each other.
    """

    streams: Sequence[Stream]
