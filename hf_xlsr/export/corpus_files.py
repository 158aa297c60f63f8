"""Pairs as Parquet files of a dataset: which columns it has, and its rows, read and written in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features, Value
from tqdm import tqdm

from hf_xlsr.data.columns import Row
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import column_names, read_rows
from hf_xlsr.data.languages import is_language_code, language_code
from hf_xlsr.data.seen import SeenHashes, hash_keys
from hf_xlsr.utils.errors import XlsrError

SIDES = ("source", "target")
LANGUAGE_COLUMNS = ("source_lang", "target_lang")
# What the verbs write beside the texts.
MEANINGS = {
    "probability": "probability of the pair to be good, by the classifier of `filter`",
    "score": "margin score of the pair",
    "cosine": "cosine of both embeddings",
    "source_line": "line of the source in its file, from 1",
    "target_line": "line of the target in its file, from 1",
}
WHOLE = {"source_line", "target_line"}
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
    """

    files: dict[str, Path] = field(default_factory=dict)
    rows: int = 0
    size: int = 0
    repeated: int = 0
    distinct: dict[str, int] = field(default_factory=dict)


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
    published = [*MEANINGS, *(name for name in numbers if name not in MEANINGS)]
    quarantine = Quarantine()
    if isinstance(pairs, (str, Path)):
        name = str(pairs)
        names = column_names(pairs)
        figures = [figure for figure in published if figure in names]
        rows = read_rows(
            pairs, languages=languages, optional=LANGUAGE_COLUMNS, selecting=figures, quarantine=quarantine
        )
        key = "_{}".format
    else:
        name = "`pairs`"
        rows = (dict(row) for row in pairs)
        names = []
        figures = published
        key = "{}".format

    first_row = next(rows, None)
    if first_row is None:
        raise XlsrError(f"{name} has no pairs: {quarantine.report() or 'it is empty.'}")
    if not names:
        names = list(first_row)
        figures = [figure for figure in figures if figure in names]

    text_columns = SIDES
    more_texts: tuple[str, ...] = tuple(column for column in LANGUAGE_COLUMNS if column in first_row)
    if languages and len(set(languages)) == 2 and not set(languages) & {*published, *SIDES}:
        text_columns = (languages[0], languages[1])
        more_texts = ()

    features = dict.fromkeys([*text_columns, *more_texts], TEXT)
    for figure in figures:
        features[figure] = "int64" if figure in WHOLE else "float64"
    known = {*SIDES, *LANGUAGE_COLUMNS, *figures}
    left_out = [column for column in names if column not in known and not is_language_code(column)]
    reader = _Reader(name, languages, text_columns, more_texts, figures, key)
    return CorpusRows(features, map(reader, chain([first_row], rows)), left_out, quarantine.counts)


@dataclass
class _Reader:
    """Makes a row of the dataset of a row that was read; its number is for errors."""

    name: str
    languages: Sequence[str] | None
    text_columns: Sequence[str]
    more_texts: Sequence[str]
    figures: Sequence[str]
    key: Callable[[str], str]
    number: int = 0

    def __call__(self, row: Row) -> Row:
        self.number += 1
        if self.languages:
            self._check_languages(row, self.languages)
        result: Row = {column: row[side] for column, side in zip(self.text_columns, SIDES, strict=True)}
        for column in self.more_texts:
            result[column] = row[column]
        for figure in self.figures:
            result[figure] = self._number(figure, row.get(self.key(figure)))
        return result

    def _check_languages(self, row: Row, languages: Sequence[str]) -> None:
        for column, language in zip(LANGUAGE_COLUMNS, languages, strict=True):
            named = row.get(column)
            if named and language_code(named) != language_code(language):
                raise XlsrError(
                    f"Pair {self.number:,} of {self.name} has the {column} '{named}', but the dataset is in "
                    f"{'-'.join(languages)}. Push each language pair by itself."
                )

    def _number(self, figure: str, value: Any) -> float | int | None:
        if value is None or value == "":
            return None
        try:
            return int(value) if figure in WHOLE else float(value)
        except ValueError:
            raise XlsrError(
                f"Pair {self.number:,} of {self.name} has the {figure} '{value}', which is no number."
            ) from None


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
