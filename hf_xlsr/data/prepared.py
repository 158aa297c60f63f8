"""Tokenised rows on disk, memory-mapped: what trainers read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from torch.utils.data import Dataset as TorchDataset

from hf_xlsr.data.sampling import ExampleKey

LANGUAGE_COLUMNS = (("source_lang", "target_lang"), ("lang",))


class PreparedRows(TorchDataset):
    """Tokenised rows, fetched by the `(epoch, index)` keys of `LengthBucketBatchSampler`.

    An example is a mapping with the columns of its row but `length`, and its `index` and `epoch`. Groups are languages or
    language pairs; they come from the rows, so that datasets can be concatenated.

    Args:
        rows: Columns of token ids, `length` (tokens of the longest text), and `lang` or `source_lang` and
            `target_lang`.
        report: Counts of the preparation.

    Attributes:
        lengths: Length of each example in tokens, `(n,)`.
        groups: Group of each example, `(n,)`.
        languages: Language of each group, sorted; of a language pair, the target language.

    Examples:
        >>> rows = {"text_ids": [[4, 5], [6]], "length": [2, 1], "lang": ["sw", "en"]}
        >>> data = PreparedRows(Dataset.from_dict(rows))
        >>> data[3, 0]
        {'text_ids': [4, 5], 'lang': 'sw', 'index': 0, 'epoch': 3}
        >>> data.languages, data.groups.tolist(), data.lengths.tolist()
        (['en', 'sw'], [1, 0], [2, 1])
    """

    def __init__(self, rows: Dataset, report: Mapping[str, Any] | None = None) -> None:
        self.report = dict(report or {})
        self.rows = rows.remove_columns("length").with_format(None)
        self.lengths = np.asarray(rows.select_columns("length").with_format("arrow")[:]["length"])
        names = next(names for names in LANGUAGE_COLUMNS if names[-1] in rows.column_names)
        columns = rows.select_columns(list(names)).with_format("arrow")[:]
        self.group_names, self.groups = _grouped([columns[name] for name in names])
        self.languages = [names[-1] for names in self.group_names]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, key: ExampleKey) -> dict[str, Any]:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
        return examples_of(self.rows[[index for _, index in keys]], keys)


class PreparedPairs(PreparedRows):
    """Tokenised translation pairs.

    Attributes:
        language_pairs: Source and target language of each group, sorted.

    Examples:
        >>> rows = {"source_ids": [[4, 5]], "target_ids": [[6]], "length": [2]}
        >>> rows |= {"source_lang": ["en"], "target_lang": ["fr"]}
        >>> pairs = PreparedPairs(Dataset.from_dict(rows))
        >>> pairs[3, 0]["target_ids"], pairs.language_pairs, pairs.languages
        ([6], [('en', 'fr')], ['fr'])
    """

    @property
    def language_pairs(self) -> list[tuple[str, str]]:
        return [(source, target) for source, target in self.group_names]


class ConcatenatedRows(TorchDataset):
    """Several datasets one after the other; groups are the languages of all of them.

    Args:
        parts: The datasets in order. The index of an example counts over all of them.

    Attributes:
        languages: Language of each group, sorted.
        lengths: Length of each example in tokens, `(n,)`.
        groups: Group of each example, `(n,)`.

    Examples:
        >>> rows = {"text_ids": [[4, 5], [6]], "length": [2, 1], "lang": ["en", "sw"]}
        >>> texts = PreparedRows(Dataset.from_dict(rows))
        >>> both = ConcatenatedRows([texts, texts])
        >>> len(both), both.groups.tolist(), both[0, 3]["text_ids"], both[0, 3]["index"]
        (4, [0, 1, 0, 1], [6], 3)
    """

    def __init__(self, parts: Sequence[PreparedRows]) -> None:
        self.parts = list(parts)
        self.starts = np.cumsum([0, *map(len, self.parts)])
        self.lengths = np.concatenate([part.lengths for part in self.parts])
        self.languages = sorted({language for part in self.parts for language in part.languages})
        numbers = [[self.languages.index(language) for language in part.languages] for part in self.parts]
        self.groups = np.concatenate(
            [np.array(of_part)[part.groups] for of_part, part in zip(numbers, self.parts, strict=True)]
        )

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, key: ExampleKey) -> dict[str, Any]:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
        part_of = np.searchsorted(self.starts, [index for _, index in keys], side="right") - 1
        examples: list[dict[str, Any]] = [{} for _ in keys]
        for number in np.unique(part_of):
            places, start = np.flatnonzero(part_of == number).tolist(), int(self.starts[number])
            found = self.parts[number].__getitems__([(keys[place][0], keys[place][1] - start) for place in places])
            for place, example in zip(places, found, strict=True):
                examples[place] = {**example, "index": example["index"] + start}
        return examples


def examples_of(batch: Mapping[str, Sequence[Any]], keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
    """Columns of a batch as one mapping per example, with its `index` and `epoch`."""
    return [
        {**dict(zip(batch, values, strict=True)), "index": index, "epoch": epoch}
        for (epoch, index), *values in zip(keys, *batch.values(), strict=True)
    ]


def _grouped(columns: Sequence[pa.ChunkedArray]) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """The distinct rows of some columns, sorted, and the number of each row's."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        names = pa.array(sorted(column.unique().to_pylist()))
        code = code * len(names) + np.asarray(pc.index_in(column, value_set=names))
    _, first, groups = np.unique(code, return_index=True, return_inverse=True)
    return [tuple(column[place].as_py() for column in columns) for place in first.tolist()], groups
