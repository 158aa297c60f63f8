"""Sentences of one side: from any source, cleaned, to disk; deduplicated by hash, accessed by row."""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tqdm import tqdm

from hf_xlsr.data.cleaning import Cleaner, build_text_steps
from hf_xlsr.data.formats.content import refuse_markup
from hf_xlsr.data.formats.documents import text_lines
from hf_xlsr.data.formats.lines import BadLine, BrokenFile, decode, format_suffix, open_binary
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import SUFFIXES
from hf_xlsr.data.seen import hash64
from hf_xlsr.data.sentences import split_sentences
from hf_xlsr.data.sources import Source, open_texts
from hf_xlsr.mining.work_folder import save_rows
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import disk_errors
from hf_xlsr.utils.hashing import data_hash, file_sha256

DUPLICATES = ("merge", "keep")
TEXTS = "texts.bin"
ROWS = "rows.npy"
HASHES = "hashes.bin"
SKIPPED = "skipped.jsonl"
SPAN = struct.Struct("=qq")
HASH = struct.Struct("=Q")
ROWS_AT_ONCE = 1 << 16
PAIRS_AT_ONCE = 1 << 12
BYTES_PER_HASH = 96  # memory for finding equal hashes
SMALLEST_MEMORY = 1 << 24  # that is used for it


# A file, or texts that can be iterated more than once.
Sentences = str | os.PathLike[str] | Iterable[str]


def file_of(sentences: Sentences) -> str | None:
    """The file; None for texts."""
    return os.fspath(sentences) if isinstance(sentences, (str, os.PathLike)) else None


def input_hash(sentences: Sentences) -> str:
    """SHA-256 of a file's bytes, or of a list's texts (`data_hash`)."""
    if isinstance(sentences, (str, os.PathLike)):
        return file_sha256(Path(sentences).expanduser())
    return data_hash(sentences)


def read_texts(
    sentences: Sentences,
    folder: Path,
    name: str,
    duplicates: str = "merge",
    hidden: Sequence[str] = (),
    *,
    memory: int | None = None,
    show_progress_bar: bool = False,
) -> dict[str, Any]:
    """Copies the sentences of one side into a folder, for `TextStore`; `hidden` ones are numbered after the others.

    Lines that are blank, not UTF-8, contain NUL or exceed 1 MiB are skipped and written to `skipped.jsonl`. Memory grows
    by 1 byte per line, in addition to `memory` for finding equal lines.

    Returns `lines`, `skipped` (count by reason), `duplicates` (lines that do not count) and `sentences`.
    """
    spans = folder / "spans.tmp"
    lines = 0
    end = 0
    with disk_errors(folder), ExitStack() as stack:
        quarantine = stack.enter_context(Quarantine(folder / SKIPPED))
        texts_file = stack.enter_context((folder / TEXTS).open("wb"))
        spans_file = stack.enter_context(spans.open("wb"))
        hashes_file = stack.enter_context((folder / HASHES).open("wb"))
        all_lines = chain(_raw_lines(sentences, name, stack), map(_to_bytes, hidden))
        for line in tqdm(all_lines, f"reading {name}", unit=" lines", unit_scale=True, disable=not show_progress_bar):
            lines += 1
            text = line.removesuffix(b"\r")
            try:
                if not decode(text).strip():
                    raise BadLine("blank")
            except BadLine as bad:
                quarantine.reject(name, lines, str(bad), line)
                continue

            end += len(text)
            texts_file.write(text)
            spans_file.write(SPAN.pack(end, lines - 1))
            hashes_file.write(HASH.pack(hash64(text)))

    is_sentence = _sentence_lines(folder / HASHES, duplicates, memory)
    rows = int(is_sentence.sum())
    if not rows:
        raise XlsrError(f"{name} has no sentences: it is empty, or all lines are skipped, see {folder / SKIPPED}.")
    save_rows(folder / ROWS, _rows(spans, is_sentence), (rows, 3), np.int64)
    spans.unlink()

    usable = len(is_sentence) - len(hidden)  # lines that were not skipped
    distinct = int(is_sentence[:usable].sum())
    return {
        "lines": lines - len(hidden),
        "skipped": quarantine.counts,
        "duplicates": usable - distinct,
        "sentences": distinct,
    }


def counted(skipped: Mapping[str, int]) -> str:
    """Reasons for which lines were skipped, with their numbers."""
    return ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())


def on_one_line(text: str) -> str:
    """A sentence as files of pairs hold it, without tabs and line breaks."""
    return re.sub("[\t\n\r]+", " ", text)


def _to_bytes(text: str) -> bytes:
    """A text as UTF-8; a lone surrogate becomes bytes that are not UTF-8, and the line is skipped as such."""
    return text.encode("utf-8", "surrogatepass")


def _raw_lines(sentences: Sentences, name: str, stack: ExitStack) -> Iterator[bytes]:
    if not isinstance(sentences, (str, os.PathLike)):
        yield from map(_to_bytes, sentences)
        return
    file = Path(sentences).expanduser()
    refuse_markup(file)
    try:
        yield from text_lines(file, stack.enter_context(open_binary(file)))
    except BrokenFile as error:
        raise XlsrError(f"{name} cannot be read to its end: {error}.") from error


def _sentence_lines(hashes: Path, duplicates: str, memory: int | None) -> np.ndarray:
    """Which lines become sentences, bool; equal hashes are found in one residue class at a time, to save memory."""
    is_sentence = np.ones(hashes.stat().st_size // 8, bool)
    if duplicates == "keep":
        return is_sentence

    for class_hashes, lines in _residue_classes(hashes, memory):
        _, first = np.unique(class_hashes, return_index=True)
        is_sentence[lines] = False
        is_sentence[lines[first]] = True
    return is_sentence


def _residue_classes(hashes: Path, memory: int | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Hashes in a file with their numbers, ascending: equal ones together, and as many at a time as fit the memory."""
    total = hashes.stat().st_size // 8
    classes = min(1, total)
    if memory is not None:
        classes = math.ceil(total * BYTES_PER_HASH / max(SMALLEST_MEMORY, memory))
    for residue in range(classes):
        class_hashes = []
        class_numbers = []
        for start, block in _hash_blocks(hashes):
            members = np.flatnonzero(block % np.uint64(classes) == residue)
            class_hashes.append(block[members])
            class_numbers.append(members + start)
        yield np.concatenate(class_hashes), np.concatenate(class_numbers)


def _hash_blocks(hashes: Path) -> Iterator[tuple[int, np.ndarray]]:
    """Hashes in a file, block by block, with the number of the first one."""
    for start in range(0, hashes.stat().st_size // 8, ROWS_AT_ONCE):
        yield start, np.fromfile(hashes, np.uint64, ROWS_AT_ONCE, offset=8 * start)


def _rows(spans: Path, is_sentence: np.ndarray) -> Iterator[np.ndarray]:
    """`start`, `stop` (bytes) and `line` (from 0) of each row, block by block: `(rows, 3)`, int64."""
    previous_end = 0
    for start in range(0, len(is_sentence), ROWS_AT_ONCE):
        numbers = np.fromfile(spans, np.int64, 2 * ROWS_AT_ONCE, offset=SPAN.size * start)
        ends, lines = numbers.reshape(-1, 2).T
        starts = np.append(previous_end, ends[:-1])
        rows = np.stack([starts, ends, lines], axis=1)
        yield rows[is_sentence[start : start + ROWS_AT_ONCE]]
        previous_end = ends[-1]


class TextStore:
    """Sentences written by `read_texts`, by row."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self._rows = np.load(folder / ROWS, mmap_mode="r")
        file = folder / TEXTS
        self._file: BinaryIO = file.open("rb")
        if file.stat().st_size < self._rows[-1, 1]:  # other texts would be paired
            raise XlsrError(f"'{file}' is shorter than written; remove the folder '{folder.parent}'.")

    def __reduce__(self) -> tuple[Any, ...]:
        return TextStore, (self.folder, self.name)

    def __len__(self) -> int:
        return len(self._rows)

    def texts(self, rows: np.ndarray) -> list[str]:
        """The sentences of some rows, in the order of the rows."""
        starts, stops = self._rows[rows, :2].T
        sizes = stops - starts
        texts = [""] * len(starts)
        for number in np.argsort(starts, kind="stable"):  # forwards through the file
            self._file.seek(starts[number])
            texts[number] = self._file.read(sizes[number]).decode("utf-8")
        return texts

    def holds(self, texts: Iterable[str]) -> np.ndarray:
        """Whether each text is one of the sentences, bool."""
        wanted = np.array([hash64(_to_bytes(text)) for text in texts], np.uint64)
        is_held = np.zeros(len(wanted), bool)
        for _, block in _hash_blocks(self.folder / HASHES):
            is_held |= np.isin(wanted, block)
        return is_held

    def rows_of_lines(self, memory: int | None = None) -> np.ndarray:
        """Row of each line that was not skipped, in the order of the file, if equal lines were merged; int64.

        Takes 24 bytes a line in addition to `memory`, which finds equal lines.
        """
        hashes = self.folder / HASHES
        first_lines = np.empty(hashes.stat().st_size // 8, np.int64)
        for class_hashes, lines in _residue_classes(hashes, memory):
            _, first, group = np.unique(class_hashes, return_index=True, return_inverse=True)
            first_lines[lines] = lines[first][group]

        is_first = first_lines == np.arange(len(first_lines))
        row_numbers = np.cumsum(is_first) - 1
        rows: np.ndarray = row_numbers[first_lines]
        return rows

    def lines(self, rows: np.ndarray) -> np.ndarray:
        """Line of each row in the file, from 0; int64."""
        return np.array(self._rows[rows, 2])

    def shards(self, rows: int, size: int) -> list[tuple[int, int]]:
        """Ranges of consecutive rows, each of at most `rows` rows and, if it has more than one, `size` bytes."""
        ranges: list[tuple[int, int]] = []
        start = 0
        while start < len(self):
            starts, stops = self._rows[start : start + rows, :2].T
            fitting = int(np.searchsorted(stops, starts[0] + size, side="right"))
            stop = start + max(fitting, 1)
            ranges.append((start, stop))
            start = stop
        return ranges


def pair_rows(
    stores: Sequence[TextStore], rows: Sequence[np.ndarray], **columns: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Pairs with their texts and other columns, for `write_pairs`."""
    names = [*columns, "source", "target"]
    for start in range(0, len(rows[0]), PAIRS_AT_ONCE):
        chunk = slice(start, start + PAIRS_AT_ONCE)
        lists: list[list[Any]] = [values[chunk].tolist() for values in columns.values()]
        for store, side_rows in zip(stores, rows, strict=True):
            lists.append(store.texts(side_rows[chunk]))
        for pair in zip(*lists, strict=True):
            yield dict(zip(names, pair, strict=True))


def is_plain(path: str) -> bool:
    """Whether mining reads a file line by line: any that is not a table, a translation memory or a dataset."""
    file = Path(path).expanduser()
    suffix = format_suffix(file)
    if suffix in SUFFIXES:
        return SUFFIXES[suffix] == "moses"
    return file.is_file()  # else an id on the Hub


@dataclass
class SourceTexts:
    """The sentences of a source (as in a recipe), read anew in each iteration; `report` is of the last one.

    Cleaning steps that compare two sides are ignored here.
    """

    source: str | Mapping[str, Any]
    language: str | None = None
    split: bool = False
    cleaning: Sequence[Any] = ()
    report: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)  # rows by reason

    def __iter__(self) -> Iterator[str]:
        language = self.language or "und"
        quarantine = Quarantine()
        cleaner = Cleaner(build_text_steps(self.cleaning, [language]))
        rows = open_texts(Source.parse(self.source), ("text",), languages=[language], quarantine=quarantine)
        if self.split:
            rows = _split_rows(rows)

        for row in cleaner(rows):
            yield " ".join(row["text"].split())
        self.report = {"cleaning": cleaner.counts, "bad_lines": quarantine.report()}
        self.skipped = dict(quarantine.counts)


def _split_rows(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each sentence of each text."""
    for row in rows:
        for sentence in split_sentences(row["text"], row["lang"]):
            yield {**row, "text": sentence}
