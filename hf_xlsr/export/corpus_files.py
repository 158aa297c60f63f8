"""Pairs as Parquet files of a dataset: which columns it has, and its rows, read and written in bounded memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features, Value
from tqdm import tqdm

from hf_xlsr.data.columns import Row
from hf_xlsr.data.formats.headers import our_columns
from hf_xlsr.data.formats.input_file import InputFile
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import column_names, read_rows
from hf_xlsr.data.languages import contradict, language_code
from hf_xlsr.data.seen import SeenHashes, hash_keys
from hf_xlsr.utils.errors import XlsrError

SIDES = ("source", "target")
LANGUAGE_COLUMNS = ("source_lang", "target_lang")
FINDING = ("mine", "mine_bitext")  # steps before which there are no pairs
# What the verbs write beside the texts: column -> what it is, and the verbs that write it.
MEANINGS = {
    "probability": ("probability of the pair to be good, by the classifier of `filter`", ("filter",)),
    "score": ("margin score of the pair", (*FINDING, "score", "filter")),
    "cosine": ("cosine of both embeddings", ("score", "filter")),
    "source_line": ("line of the source in its file, from 1", FINDING),
    "target_line": ("line of the target in its file, from 1", FINDING),
}
WHOLE = {"source_line", "target_line"}
LARGEST_WHOLE = 1 << 53  # up to which a float holds every whole number
TEXT = "string"
SPLIT = "train"
GROUP_ROWS = 1 << 15
GROUP_BYTES = 1 << 26  # of texts in one row group, which is in memory
SHARD_BYTES = 500 << 20  # of values in one file, as `datasets` writes them


@dataclass
class CorpusRows:
    """Rows of pairs that are to be published.

    Attributes:
        features: Column -> `string`, `float64` or `int64`, in order.
        rows: The rows, to be read once.
        left_out: Columns of the file that are not published.
        skipped: Lines that could not be read, by reason; complete when the rows are read.
    """

    features: dict[str, str]
    rows: Iterator[Row]
    left_out: list[str] = field(default_factory=list)
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Written:
    """What was written.

    Attributes:
        files: Path in the repository -> file.
        rows: Their number.
        size: Bytes of the values in memory.
        repeated: Pairs that are equal to an earlier one.
        distinct: Number of distinct texts of each side.
        language_pairs: Each source and target language that rows have in columns; None where one names none.
    """

    files: dict[str, Path] = field(default_factory=dict)
    rows: int = 0
    size: int = 0
    repeated: int = 0
    distinct: dict[str, int] = field(default_factory=dict)
    language_pairs: list[tuple[str | None, str | None]] = field(default_factory=list)


def open_rows(
    pairs: str | Path | Iterable[Row],
    languages: Sequence[str] | None,
    numbers: Collection[str] = (),
) -> CorpusRows:
    """The rows of a file of pairs, or given ones, in the columns of the dataset.

    With two languages the columns of the texts have their names, as every reader of this package finds them; else they
    are `source` and `target`, with `source_lang` and `target_lang` where rows have these.

    Args:
        pairs: A file in any format of pairs, or rows with `source`, `target` and what `mine` writes beside them.
        languages: Source and target; None if unknown.
        numbers: Further columns of numbers.

    Raises:
        XlsrError: There are no pairs; while rows are read, one is in other languages or has a text for a number.
    """
    published = list(dict.fromkeys([*MEANINGS, *numbers]))
    quarantine = Quarantine()
    if isinstance(pairs, (str, Path)):
        name = str(pairs)
        columns = column_names(pairs)
        text_inputs = _text_inputs(columns, languages or ())
        rows = _file_rows(pairs, languages, [figure for figure in published if figure in columns], quarantine)
    else:
        name = "`pairs`"
        columns = []
        text_inputs = set(SIDES)
        rows = (dict(row) for row in pairs)

    first_row = next(rows, None)
    if first_row is None:
        raise XlsrError(f"{name} has no pairs: {quarantine.report() or 'it is empty.'}")
    columns = columns or list(first_row)
    figures = [figure for figure in published if figure in columns]

    text_columns = SIDES
    more_texts: tuple[str, ...] = tuple(column for column in LANGUAGE_COLUMNS if column in first_row)
    if languages and len(set(languages)) == 2 and not set(languages) & {*published, *SIDES}:
        text_columns = (languages[0], languages[1])
        more_texts = ()

    features = dict.fromkeys([*text_columns, *more_texts], TEXT)
    for figure in figures:
        features[figure] = "int64" if figure in WHOLE else "float64"
    read = {*text_inputs, *LANGUAGE_COLUMNS, *figures}
    left_out = [column for column in columns if column not in read]
    reader = _Reader(name, languages, text_columns, more_texts, figures)
    return CorpusRows(features, map(reader, chain([first_row], rows)), left_out, quarantine.counts)


def _file_rows(
    pairs: str | Path,
    languages: Sequence[str] | None,
    figures: Sequence[str],
    quarantine: Quarantine,
) -> Iterator[Row]:
    """The pairs of a file with their languages, where it has them, and its columns of numbers."""
    rows = read_rows(pairs, languages=languages, optional=LANGUAGE_COLUMNS, selecting=figures, quarantine=quarantine)
    for row in rows:
        for figure in figures:
            row[figure] = row.pop(f"_{figure}")
        yield row


def _text_inputs(columns: Sequence[str], languages: Sequence[str]) -> set[str]:
    """The columns of a file that are read as its texts; all of a table whose columns have no known names."""
    if set(SIDES) <= set(columns):
        return set(SIDES)
    file = InputFile("", (), (), {}, SIDES, languages, None, None, Quarantine())
    by_language = file.columns_of_languages(columns)
    if by_language:
        return set(by_language.values())
    by_name = our_columns(columns)
    if set(SIDES) <= set(by_name):
        return {by_name[side] for side in SIDES}
    return set(columns)


@lru_cache(maxsize=4096)
def are_other_languages(first: str, second: str) -> bool:
    """Whether two tags are of different languages, or say different scripts or regions.

    Examples:
        >>> are_other_languages("zh", "cmn_Hant"), are_other_languages("zh-Hans", "zh-Hant")
        (False, True)
    """
    return language_code(first) != language_code(second) or contradict(first, second)


@dataclass
class _Reader:
    """Makes a row of the dataset of a row that was read; its number is for errors."""

    name: str
    languages: Sequence[str] | None
    text_columns: Sequence[str]
    more_texts: Sequence[str]
    figures: Sequence[str]
    number: int = 0

    def __call__(self, row: Row) -> Row:
        self.number += 1
        if self.languages:
            self._check_languages(row, self.languages)
        result: Row = {}
        for column, side in zip(self.text_columns, SIDES, strict=True):
            result[column] = self._text(side, row)
        for column in self.more_texts:
            result[column] = self._language(column, row)
        for figure in self.figures:
            result[figure] = self._number(figure, row.get(figure))
        return result

    def _check_languages(self, row: Row, languages: Sequence[str]) -> None:
        for column, language in zip(LANGUAGE_COLUMNS, languages, strict=True):
            named = self._language(column, row)
            if named and are_other_languages(named, language):
                raise XlsrError(
                    f"Pair {self.number:,} of {self.name} has the {column} '{named}', but the dataset is in "
                    f"{'-'.join(languages)}. Push each language pair by itself."
                )

    def _language(self, column: str, row: Row) -> str | None:
        """The language that a row names, if it does."""
        return self._text(column, row) if row.get(column) else None

    def _text(self, column: str, row: Row) -> str:
        if column not in row:
            raise XlsrError(
                f"Pair {self.number:,} of {self.name} has no '{column}'. Name its columns so, got {', '.join(row)}."
            )
        value = row[column]
        if not isinstance(value, str):
            raise XlsrError(f"Pair {self.number:,} of {self.name} must have a text as its {column}, got {value!r}.")
        return value

    def _number(self, figure: str, value: Any) -> float | int | None:
        if value is None or value == "":
            return None
        try:
            number = float(value)
        except (OverflowError, TypeError, ValueError):
            raise XlsrError(
                f"Pair {self.number:,} of {self.name} has the {figure} '{value}', which is no number."
            ) from None
        if figure not in WHOLE:
            return number
        if not (number.is_integer() and abs(number) <= LARGEST_WHOLE):
            raise XlsrError(
                f"Pair {self.number:,} of {self.name} has the {figure} '{value}', which is no line number."
            )
        return int(number)


def write_shards(folder: Path, corpus: CorpusRows) -> Written:
    """Writes rows to `data/train-*.parquet` in a folder that is new; a group of rows at a time is in memory.

    Besides it 24 bytes a pair are, to count what is repeated. Equal rows give equal files.
    """
    schema = Features({name: Value(kind) for name, kind in corpus.features.items()}).arrow_schema
    text_columns = list(corpus.features)[: len(SIDES)]
    seen = {name: SeenHashes() for name in ("pair", *SIDES)}
    written = Written()
    parts: list[Path] = []
    shard_size = SHARD_BYTES
    (folder / "data").mkdir(parents=True)
    rows = tqdm(
        corpus.rows, "writing pairs", unit=" pairs", unit_scale=True, disable=None
    )  # unless this is no terminal
    with ExitStack() as open_files:
        for group in row_groups(rows, text_columns):
            table = pa.Table.from_pylist(group, schema)
            if shard_size >= SHARD_BYTES:
                open_files.close()
                parts.append(folder / "data" / f"part-{len(parts)}.parquet")
                writer = open_files.enter_context(pq.ParquetWriter(parts[-1], schema, compression="zstd"))
                shard_size = 0
            writer.write_table(table, row_group_size=len(group))
            shard_size += table.nbytes
            written.size += table.nbytes
            written.rows += len(group)
            written.repeated += _count_repeated(group, text_columns, seen)
            if set(LANGUAGE_COLUMNS) <= corpus.features.keys():
                named = [(row["source_lang"], row["target_lang"]) for row in group]
                written.language_pairs = list(dict.fromkeys([*written.language_pairs, *named]))

    for number, part in enumerate(parts):
        name = f"data/{SPLIT}-{number:05d}-of-{len(parts):05d}.parquet"
        written.files[name] = folder / name
        part.rename(written.files[name])
    written.distinct = {side: len(seen[side]) for side in SIDES}
    return written


def row_groups(rows: Iterable[Row], text_columns: Sequence[str]) -> Iterator[list[Row]]:
    """Rows in groups of at most `GROUP_ROWS`, whose texts end a group of `GROUP_BYTES` or more."""
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += sum(len(row[column].encode("utf-8", "surrogatepass")) for column in text_columns)
        if len(group) >= GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group = []
            size = 0
    if group:
        yield group


def _count_repeated(group: Sequence[Row], text_columns: Sequence[str], seen: Mapping[str, SeenHashes]) -> int:
    """Adds the texts of rows to those seen before; returns how many of the pairs were seen before."""
    source, target = text_columns
    keys = {
        "pair": [f"{row[source]}\0{row[target]}" for row in group],
        "source": [row[source] for row in group],
        "target": [row[target] for row in group],
    }
    is_new = {name: seen[name].add_hashes(hash_keys(texts)) for name, texts in keys.items()}
    return int(np.count_nonzero(~is_new["pair"]))
