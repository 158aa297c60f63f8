"""Tokenised rows on disk, memory-mapped: what trainers read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from torch.utils.data import Dataset as TorchDataset

from hf_xlsr.data.encoding import RowEncoder, column_rows
from hf_xlsr.data.raw_rows import RowReader
from hf_xlsr.data.sampling import ExampleKey, fetch_by_group
from hf_xlsr.data.transforms import BATCH_ROWS, draw_columns

Example = dict[str, Any]


class _KeyedRows(TorchDataset[Example]):
    """Rows that are fetched by keys; `lengths` has one number each."""

    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, key: ExampleKey) -> Example:
        return self.__getitems__([key])[0]

    @abstractmethod
    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[Example]: ...


class LiveRows:
    """Rows of a dataset whose transform is applied, and whose texts are tokenised, at each access.

    Args:
        data: The dataset with its transform.
        first_draw: Its rows as they were tokenised, see `hf_xlsr.data.transforms.first_draw`.
        reader: Reads the texts of both.
        encoder: Tokenises texts.
    """

    def __init__(
        self,
        data: Dataset,
        first_draw: Dataset,
        reader: RowReader,
        encoder: RowEncoder,
    ) -> None:
        self.data = data
        self.reader = reader
        self.encoder = encoder

        raw_numbers: list[int] = []  # of each tokenised row
        for start in range(0, len(first_draw), BATCH_ROWS):
            batch = first_draw[start : start + BATCH_ROWS]
            raw_numbers += [start + number for number, _ in reader.numbered(batch)]
        self.raw_numbers = np.array(raw_numbers)

    def draw(self, numbers: Sequence[int]) -> list[Example]:
        """Columns of some tokenised rows as they are now; none for a row without a text, which keeps those it has."""
        if not numbers:
            return []
        batch = draw_columns(self.data, self.raw_numbers[numbers].tolist())
        texts = dict(self.reader.numbered(batch))
        columns = self.encoder.encode(list(texts.values()))
        columns.pop("length")

        drawn = dict(zip(texts, column_rows(columns), strict=True))
        return [drawn.get(position, {}) for position in range(len(numbers))]


class PreparedRows(_KeyedRows):
    """Tokenised rows, fetched by the `(epoch, index)` keys of `LengthBucketBatchSampler`.

    An example has the columns of its row but `length` (tokens of the longest text), and its `index` and `epoch`. Groups
    are languages, or language pairs; `languages` has that of each group, sorted: of a pair the target language. Rows in
    the ranges of `live` are made anew at each access.

    Examples:
        >>> rows = {"text_ids": [[4, 5], [6]], "length": [2, 1], "lang": ["sw", "en"]}
        >>> data = PreparedRows(Dataset.from_dict(rows))
        >>> data[3, 0], data.languages, data.groups.tolist()
        ({'text_ids': [4, 5], 'lang': 'sw', 'index': 0, 'epoch': 3}, ['en', 'sw'], [1, 0])
    """

    def __init__(
        self,
        rows: Dataset,
        report: Mapping[str, Any] | None = None,
        live: Mapping[range, LiveRows] | None = None,
    ) -> None:
        self.report = dict(report or {})
        self.live = dict(live or {})
        self.rows = rows.remove_columns("length").with_format(None)
        self.lengths = np.asarray(_column(rows, "length"))

        languages = [_column(rows, name) for name in ("lang", "source_lang", "target_lang") if name in rows.features]
        self.group_names, self.groups = _grouped(languages)
        self.languages = [group[-1] for group in self.group_names]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[Example]:
        numbers = [index for _, index in keys]
        examples = examples_of(self.rows[numbers], keys)
        for live_range, live in self.live.items():
            positions = [position for position, number in enumerate(numbers) if number in live_range]
            drawn = live.draw([numbers[position] - live_range.start for position in positions])
            for position, columns in zip(positions, drawn, strict=True):
                examples[position] |= columns
        return examples


class PreparedPairs(PreparedRows):
    """Tokenised translation pairs; `language_pairs` are the source and target language of each group, sorted."""

    @property
    def language_pairs(self) -> list[tuple[str, str]]:
        return [(source, target) for source, target in self.group_names]


class ConcatenatedRows(_KeyedRows):
    """Several datasets one after the other; groups are the languages of all of them.

    The index of an example counts over all datasets. `strata` number each example's dataset and group, `(n,)`.
    """

    def __init__(self, datasets: Sequence[PreparedRows]) -> None:
        self.datasets = list(datasets)
        self.starts = np.cumsum([0, *map(len, self.datasets)])
        self.lengths = np.concatenate([data.lengths for data in self.datasets])

        languages: set[str] = set()
        for data in self.datasets:
            languages.update(data.languages)
        self.languages = sorted(languages)

        groups = []
        strata = []
        for number, data in enumerate(self.datasets):
            group_numbers = np.array(list(map(self.languages.index, data.languages)))
            groups.append(group_numbers[data.groups])
            strata.append(groups[-1] + number * len(self.languages))
        self.groups = np.concatenate(groups)
        self.strata = np.concatenate(strata)

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[Example]:
        numbers = [index for _, index in keys]
        dataset_of = np.searchsorted(self.starts, numbers, side="right") - 1
        return fetch_by_group(dataset_of.tolist(), keys, self._fetch)

    def _fetch(self, number: int, keys: Sequence[ExampleKey]) -> list[Example]:
        """The examples of one dataset."""
        start = int(self.starts[number])
        own_keys = [(epoch, index - start) for epoch, index in keys]
        examples = self.datasets[number].__getitems__(own_keys)
        for example in examples:
            example["index"] += start
        return examples


class PreparedRunningText(PreparedRows):
    """Pairs of consecutive sentences, with `first_ids`, `second_ids`, `lang`, `index` and `epoch`.

    Each sentence is stored once, though most are the second of one pair and the first of the next. `lengths` and `groups`
    are those of the pairs, `row_lengths`, `row_groups` and `continues` those of the sentences.

    Args:
        rows: Sentences in document order: `text_ids`, `length` (0 is a gap), `lang` and `continues` (whether the next row
            is the next sentence of the document).

    Examples:
        >>> rows = {"text_ids": [[4], [5, 6], [7], [8], [9]], "length": [1, 2, 1, 1, 1]}
        >>> rows |= {"lang": ["en", "en", "en", "sw", "sw"], "continues": [True, True, False, True, False]}
        >>> PreparedRunningText(Dataset.from_dict(rows))[0, 1]
        {'first_ids': [5, 6], 'second_ids': [7], 'lang': 'en', 'index': 1, 'epoch': 0}
    """

    def __init__(
        self,
        rows: Dataset,
        report: Mapping[str, Any] | None = None,
        live: Mapping[range, LiveRows] | None = None,
    ) -> None:
        super().__init__(rows, report, live)
        self.row_lengths = self.lengths
        self.row_groups = self.groups

        has_text = self.lengths > 0
        follows = np.asarray(_column(rows, "continues"))
        self.continues = np.append(follows[:-1] & has_text[:-1] & has_text[1:], False)
        self._first_rows = np.flatnonzero(self.continues)
        self.lengths = _longer_of_pairs(self.row_lengths, self._first_rows)
        self.groups = self.row_groups[self._first_rows]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[Example]:
        rows = self.rows[_with_next(self._first_rows, keys)]
        return _pairs_of(rows["text_ids"], rows["lang"], keys)


class PackedRunningText(_KeyedRows):
    """Pairs of consecutive sequences, each of as many consecutive sentences as `max_length` has room for.

    A document that fits into one sequence is split in the middle, so that it makes a pair. A sequence has the special
    tokens around a sentence once; a prompt stays before every sentence. Examples are those of `PreparedRunningText`.
    """

    def __init__(
        self,
        text: PreparedRunningText,
        tokenizer: Any,
        max_length: int,
    ) -> None:
        self.text = text
        special = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
        self.before = special.index(0)
        self.after = special[::-1].index(0)
        frame = self.before + self.after

        row_tokens = np.maximum(text.row_lengths - frame, 0)
        tokens_before = np.append(0, np.cumsum(row_tokens, dtype=np.int64))
        document_ends = np.flatnonzero(~text.continues) + 1
        self.bounds = _sequence_bounds(tokens_before, document_ends, max_length - frame)

        self._first_sequences = np.flatnonzero(text.continues[self.bounds[1:] - 1])
        sequence_lengths = np.diff(tokens_before[self.bounds]) + frame
        self.lengths = _longer_of_pairs(sequence_lengths, self._first_sequences)
        self.groups = text.row_groups[self.bounds[self._first_sequences]]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[Example]:
        numbers: list[int] = []
        sizes: list[int] = []
        for sequence in _with_next(self._first_sequences, keys):
            start, end = self.bounds[sequence : sequence + 2]
            numbers += range(start, end)
            sizes.append(end - start)

        rows = self.text.rows[numbers]
        ids = []
        languages = []
        start = 0
        for size in sizes:
            ids.append(self._joined(rows["text_ids"][start : start + size]))
            languages.append(rows["lang"][start])
            start += size

        return _pairs_of(ids, languages, keys)

    def _joined(self, rows: Sequence[list[int]]) -> list[int]:
        """The tokens of sentences as one sequence, with the special tokens around all of them."""
        ids = rows[0][: self.before]
        for row in rows:
            ids += row[self.before : len(row) - self.after]
        return ids + rows[-1][len(rows[-1]) - self.after :]


def _sequence_bounds(tokens_before: np.ndarray, document_ends: np.ndarray, room: int) -> np.ndarray:
    """The first row of each packed sequence, and the number of all rows.

    Args:
        tokens_before: Tokens before each row, and of all rows; special tokens do not count.
        document_ends: The row after the last one of each document.
        room: Tokens of a sequence; a longer sentence is a sequence of its own.
    """
    bounds = [0]
    for end in document_ends.tolist():
        start = bounds[-1]
        first_token = tokens_before[start]
        end_token = tokens_before[end]
        if end_token - first_token <= room and end - start > 1:
            middle = np.searchsorted(tokens_before, (first_token + end_token) / 2)
            bounds += [min(int(middle), end - 1), end]

        while bounds[-1] < end:
            start = bounds[-1]
            last_token = tokens_before[start] + room
            fitting = int(np.searchsorted(tokens_before, last_token, side="right")) - 1
            bounds.append(min(max(fitting, start + 1), end))
    return np.array(bounds)


def _with_next(first: np.ndarray, keys: Sequence[ExampleKey]) -> list[int]:
    """The numbers of both members of each pair: `first` has that of a pair's first, and the second follows it."""
    pairs: list[int] = []
    for _, index in keys:
        number = int(first[index])
        pairs += [number, number + 1]
    return pairs


def _longer_of_pairs(lengths: np.ndarray, first: np.ndarray) -> np.ndarray:
    longer: np.ndarray = np.maximum(lengths[first], lengths[first + 1])
    return longer


def _pairs_of(ids: Sequence[list[int]], languages: Sequence[str], keys: Sequence[ExampleKey]) -> list[Example]:
    """One example for every two of consecutive texts."""
    return examples_of({"first_ids": ids[::2], "second_ids": ids[1::2], "lang": languages[::2]}, keys)


def examples_of(columns: Mapping[str, Sequence[Any]], keys: Sequence[ExampleKey]) -> list[Example]:
    """Columns of a batch as one mapping per example, with its `index` and `epoch`."""
    rows = zip(column_rows(columns), keys, strict=True)
    return [{**row, "index": index, "epoch": epoch} for row, (epoch, index) in rows]


def _column(rows: Dataset, name: str) -> pa.ChunkedArray:
    """The values of one column in all rows."""
    return rows.select_columns(name).with_format("arrow")[:][name]


def _grouped(columns: Sequence[pa.ChunkedArray]) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """The distinct rows of some columns, sorted, and the number of each row's."""
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        names = column.unique().sort()
        codes = codes * len(names) + np.asarray(pc.index_in(column, value_set=names))
    _, first_rows, groups = np.unique(codes, return_index=True, return_inverse=True)
    names_by_column = [column.take(first_rows).to_pylist() for column in columns]
    return list(zip(*names_by_column, strict=True)), groups
