"""Datasets whose transform makes their rows at each access: `with_transform` and `set_transform` of `datasets`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from datasets import ClassLabel, Dataset, IterableDataset, Value
from datasets.exceptions import DatasetGenerationError
from datasets.features.features import cast_to_python_objects

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import address_of_rows, cache_folder

BATCH_ROWS = 1000

Columns = dict[str, list[Any]]


def has_transform(data: Any) -> bool:
    """Whether a transform makes the rows of a dataset at each access."""
    return isinstance(data, Dataset) and data.format["type"] == "custom"


def first_draw(data: Dataset) -> Dataset:
    """The rows of a dataset with its transform applied once, stored in the cache; other datasets as they are.

    The address of a dataset depends on its transform, so that all processes and later runs read the same draw.
    """
    if not has_transform(data) or not len(data):
        return data
    folder = str(cache_folder() / "transformed")
    try:
        drawn = Dataset.from_generator(partial(_draw, data), fingerprint=address_of_rows(data), cache_dir=folder)
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None

    for name, feature in data.features.items():
        if isinstance(feature, ClassLabel) and drawn.features.get(name) == Value("int64"):
            drawn = drawn.cast_column(name, feature)
    return drawn


def _draw(data: Dataset) -> Iterator[dict[str, Any]]:
    for start in range(0, len(data), BATCH_ROWS):
        columns = draw_columns(data, range(start, min(start + BATCH_ROWS, len(data))))
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def draw_columns(data: Dataset, numbers: Sequence[int]) -> Columns:
    """Some rows of a dataset as its transform makes them now, by column, with Python values."""
    columns: Columns = {}
    for name, values in cast_to_python_objects(dict(data[numbers])).items():
        columns[name] = pa.array(values).to_pylist()
        if len(values) != len(numbers):
            raise XlsrError(
                f"A transform must return a row for each row, got {len(values)} of '{name}' for {len(numbers)}. Use map."
            )
    return columns


def transformed_stream(data: Dataset, num_shards: int) -> IterableDataset:
    """A dataset as a stream, to which its transform is applied as it is read."""
    stream = data.with_format(None).to_iterable_dataset(num_shards)
    if not has_transform(data):
        return stream
    names = data.format["columns"]
    if not data.format["output_all_columns"]:
        stream = stream.select_columns(names)
    apply = partial(_apply, data.format["format_kwargs"]["transform"], names)
    return stream.map(apply, batched=True, batch_size=BATCH_ROWS, remove_columns=stream.column_names)


def _apply(
    transform: Callable[[Columns], Columns],
    names: Sequence[str],
    batch: Columns,
) -> Columns:
    """The columns of a batch that a transform returns for those that it gets, and the others."""
    read = {name: batch[name] for name in names}
    others = {name: values for name, values in batch.items() if name not in names}
    return {**transform(read), **others}
