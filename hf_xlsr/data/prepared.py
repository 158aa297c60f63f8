"""Tokenised rows on disk, memory-mapped: what trainers read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from torch.utils.data import Dataset as TorchDataset

from hf_xlsr.data.sampling import ExampleKey

LANGUAGE_COLUMNS = (("source_lang", "target_lang"), ("lang",))


class _KeyedRows(TorchDataset):
    """Rows that are fetched by keys; `lengths` has one number each."""

    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, key: ExampleKey) -> dict[str, Any]:
        return self.__getitems__([key])[0]

    @abstractmethod
    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[dict[str, Any]]: ...


class PreparedRows(_KeyedRows):
    """Tokenised rows, fetched by the `(epoch, index)` keys of `LengthBucketBatchSampler`.

    An example has the columns of its row but `length` (tokens of the longest text), and its `index` and `epoch`. Groups
    are languages, or language pairs; `languages` has that of each group, sorted: of a pair the target language.

    Examples:
        >>> rows = {"text_ids": [[4, 5], [6]], "length": [2, 1], "lang": ["sw", "en"]}
        >>> data = PreparedRows(Dataset.from_dict(rows))
        >>> data[3, 0], data.languages, data.groups.tolist()
        ({'text_ids': [4, 5], 'lang': 'sw', 'index': 0, 'epoch': 3}, ['en', 'sw'], [1, 0])
    """

    def __init__(self, rows: Dataset, report: Mapping[str, Any] | None = None) -> None:
        self.report = dict(report or {})
        self.rows = rows.remove_columns("length").with_format(None)
        self.lengths = np.asarray(rows.select_columns("length").with_format("arrow")[:]["length"])
        names = next(names for names in LANGUAGE_COLUMNS if names[-1] in rows.column_names)
        columns = rows.select_columns(list(names)).with_format("arrow")[:]
        self.group_names, self.groups = _grouped([columns[name] for name in names])
        self.languages = [names[-1] for names in self.group_names]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
        return examples_of(self.rows[[index for _, index in keys]], keys)


class PreparedPairs(PreparedRows):
    """Tokenised translation pairs; `language_pairs` are the source and target language of each group, sorted."""

    @property
    def language_pairs(self) -> list[tuple[str, str]]:
        return [(source, target) for source, target in self.group_names]


class ConcatenatedRows(_KeyedRows):
    """Several datasets one after the other; groups are the languages of all of them.

    The index of an example counts over all parts. `strata` number each example's dataset and group, `(n,)`.
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
        number = np.repeat(np.arange(len(self.parts)), [len(part) for part in self.parts])
        self.strata = number * len(self.languages) + self.groups

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
        part_of = np.searchsorted(self.starts, [index for _, index in keys], side="right") - 1
        examples: list[dict[str, Any]] = [{} for _ in keys]
        for number in np.unique(part_of):
            places, start = np.flatnonzero(part_of == number).tolist(), int(self.starts[number])
            found = self.parts[number].__getitems__([(keys[place][0], keys[place][1] - start) for place in places])
            for place, example in zip(places, found, strict=True):
                examples[place] = {**example, "index": example["index"] + start}
        return examples


class PreparedRunningText(PreparedRows):
    """Pairs of consecutive sentences, with `first_ids`, `second_ids`, `lang`, `index` and `epoch`.

    Each sentence is stored once, though most are the second of one pair and the first of the next. `lengths` and `groups`
    are those of the pairs, `row_lengths`, `row_groups` and `continues` those of the sentences.

    Args:
        rows: Sentences in document order: `text_ids`, `length` (0 is a gap), `lang` and `continues` (whether the next row
            is the next sentence of the document).
        tokenizer: The tokenizer of all languages; None where each has its own.

    Examples:
        >>> rows = {"text_ids": [[4], [5, 6], [7], [8], [9]], "length": [1, 2, 1, 1, 1]}
        >>> rows |= {"lang": ["en", "en", "en", "sw", "sw"], "continues": [True, True, False, True, False]}
        >>> PreparedRunningText(Dataset.from_dict(rows))[0, 1]
        {'first_ids': [5, 6], 'second_ids': [7], 'lang': 'en', 'index': 1, 'epoch': 0}
    """

    def __init__(self, rows: Dataset, report: Mapping[str, Any] | None = None, tokenizer: Any = None) -> None:
        super().__init__(rows, report)
        self.tokenizer = tokenizer
        follows = np.asarray(rows.select_columns("continues").with_format("arrow")[:]["continues"])
        self.continues = np.append(follows[:-1] & (self.lengths[:-1] > 0) & (self.lengths[1:] > 0), False)
        self.row_lengths, self._places = self.lengths, np.flatnonzero(self.continues)
        self.lengths = np.maximum(self.lengths[self._places], self.lengths[self._places + 1])
        self.row_groups, self.groups = self.groups, self.groups[self._places]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
        places = self._places[[index for _, index in keys]]
        rows = self.rows[np.stack([places, places + 1], axis=1).ravel().tolist()]
        ids, langs = rows["text_ids"], rows["lang"]
        return examples_of({"first_ids": ids[::2], "second_ids": ids[1::2], "lang": langs[::2]}, keys)


class PackedRunningText(_KeyedRows):
    """Pairs of consecutive sequences, each of as many consecutive sentences as `max_length` has room for.

    A document that fits into one sequence is split in the middle, so that it makes a pair. A sequence has the special
    tokens around a sentence once; a prompt stays before every sentence. Examples are those of `PreparedRunningText`.
    """

    def __init__(self, text: PreparedRunningText, tokenizer: Any, max_length: int) -> None:
        special = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
        self.text, self.before, self.after = text, special.index(0), special[::-1].index(0)
        frame = self.before + self.after
        tokens = np.concatenate([[0], np.cumsum(np.maximum(text.row_lengths - frame, 0), dtype=np.int64)])
        breaks = np.flatnonzero(~text.continues) + 1  # where documents end
        ends, start, room = [], 0, max_length - frame
        for end in breaks.tolist():
            if tokens[end] - tokens[start] <= room and end - start > 1:
                middle = int(np.searchsorted(tokens, (tokens[start] + tokens[end]) / 2))
                ends += [min(middle, end - 1), end]
                start = end
            while start < end:
                fitting = int(np.searchsorted(tokens, tokens[start] + room, side="right")) - 1
                start = min(max(fitting, start + 1), end)
                ends.append(start)
        self.bounds = np.array([0, *ends])
        self._places = np.flatnonzero(text.continues[self.bounds[1:] - 1])
        lengths = np.diff(tokens[self.bounds]) + frame
        self.lengths = np.maximum(lengths[self._places], lengths[self._places + 1])
        self.groups = text.row_groups[self.bounds[self._places]]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
        spans = [range(*self.bounds[place : place + 2]) for key in keys for place in self._places[key[1]] + (0, 1)]
        rows = self.text.rows[[row for span in spans for row in span]]
        ids, langs = iter(rows["text_ids"]), iter(rows["lang"])
        joined = [self._joined(list(islice(ids, len(span)))) for span in spans]
        of_spans = [list(islice(langs, len(span)))[0] for span in spans]
        return examples_of({"first_ids": joined[::2], "second_ids": joined[1::2], "lang": of_spans[::2]}, keys)

    def _joined(self, rows: Sequence[Sequence[int]]) -> list[int]:
        inner = [token for row in rows for token in row[self.before : len(row) - self.after]]
        return [*rows[0][: self.before], *inner, *rows[-1][len(rows[-1]) - self.after :]]


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
