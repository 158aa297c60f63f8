"""From the data that users have to what trainers read: columns found, texts tokenised, languages named row by row."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, IterableDataset, concatenate_datasets

from hf_xlsr.data.encoding import (
    CONSECUTIVE,
    NLI,
    PAIRS,
    SENTENCES,
    TAUGHT_PAIRS,
    TEXTS,
    UNDETERMINED,
    Prompts,
    RowEncoder,
    RowKind,
    check_tokenizers,
)
from hf_xlsr.data.plain_rows import UNNAMED, Reader, StoredRows, open_reader
from hf_xlsr.data.prepared import ConcatenatedRows, PreparedPairs, PreparedRows, PreparedRunningText
from hf_xlsr.data.streaming import Stream, StreamedRows
from hf_xlsr.data.tokenization import tokenizer_hash
from hf_xlsr.utils.cache import address_of
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

# Changes with the columns or values that a conversion writes, so that no older cache is read.
_VERSION = 1
_SHARDS = 64  # of a stored dataset that is mixed with streams
_SPLITS = {"train", "training", "validation", "valid", "val", "dev", "eval", "test"}
_KINDS = {"pairs": PAIRS, "taught pairs": TAUGHT_PAIRS, "texts": TEXTS, "inference": NLI, "running text": SENTENCES}
_PREPARED = {"pairs": PreparedPairs, "taught pairs": PreparedPairs, "running text": PreparedRunningText}
_Part = tuple[str, Dataset | IterableDataset, Reader | StoredRows]


class DataConverter:
    """Converts the data that users have to what trainers read.

    Each method takes a `datasets.Dataset`, a list of dicts, a `datasets.IterableDataset` (streamed: nothing is written
    to disk), or a `DatasetDict` or dict of these, whose rows are mixed. Data that is converted or prepared already is
    returned as it is. Stored datasets are tokenised by `Dataset.map`, whose cache depends on the data, the tokenizers,
    `max_length` and `prompts`.

    Languages are stored row by row. They come from, in this order: the rows (`source_lang` and `target_lang`, or
    `lang`; names of columns; keys of `translation`); the key of the dataset in its dict (`en-de`, or `en`); `languages`.

    Rows with an empty text are skipped, with a warning that counts them.

    Args:
        tokenizers: One tokenizer, or a mapping from language to tokenizer.
        languages: Languages of the model. Of two, the first is that of sources, and the second that of targets.
        max_length: Longer texts are truncated to this many tokens, special tokens included.
        prompts: Text before every text; or by role (`source`, `target`, `text`, `premise`, `hypothesis`) or language.
        num_proc: Processes of `Dataset.map`.

    Examples:
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> tokenizer = train_tokenizer(["the cat sat", "die Katze lag"] * 50, vocab_size=30, algorithm="bpe")
        >>> convert = DataConverter(tokenizer, languages=("en", "de"), max_length=32)
        >>> pairs = convert.pairs([{"anchor": "the cat", "positive": "die Katze", "negative": "lag"}])
        >>> pairs.language_pairs, tokenizer.decode(pairs[0, 0]["negative_ids"][0])
        ([('en', 'de')], 'lag')
    """

    def __init__(
        self,
        tokenizers: Any,
        *,
        languages: Sequence[str] | None = None,
        max_length: int = 200,
        prompts: Prompts = None,
        num_proc: int | None = None,
    ) -> None:
        self.tokenizers, self.max_length, self.prompts, self.num_proc = tokenizers, max_length, prompts, num_proc
        self.languages = tuple(languages or (tokenizers if isinstance(tokenizers, Mapping) else ()))

    def pairs(self, data: Any, name: str = "train_dataset") -> Any:
        """Translation pairs: `PreparedPairs`, or `StreamedRows` of streams; errors name `name`.

        Columns: `source` and `target`, `anchor` and `positive`, or `english` and `non_english` (with `source_lang` and
        `target_lang`); `translation`, a dict from language to text; or two columns named by languages. Columns
        `negative`, `negative_1`, ... are hard negatives in the language of the target; rows may lack some.
        """
        return self._convert(data, name, "pairs")

    def taught_pairs(self, data: Any, name: str = "train_dataset") -> Any:
        """As `pairs`, with the text of the source in a column `source`."""
        return self._convert(data, name, "taught pairs")

    def texts(self, data: Any, name: str = "train_dataset") -> Any:
        """Single sentences: `PreparedRows` or `StreamedRows`. Columns: `text` (and `lang`)."""
        return self._convert(data, name, "texts")

    def pairs_and_texts(self, data: Any, name: str = "train_dataset") -> Any:
        """Translation pairs, single sentences, or a dict with both: also `ConcatenatedRows`, pairs first."""
        return self._convert(data, name, "pairs", "texts")

    def inference(self, data: Any, name: str = "nli_dataset") -> Any:
        """Natural language inference: `PreparedRows` or `StreamedRows`.

        Columns: `premise`, `hypothesis` and `label`, or `sentence1`, `sentence2` and `label` (with `lang`). Labels are 0
        entailment, 1 neutral, 2 contradiction, these words, or numbers of a `ClassLabel` with these names in any order.
        Rows without a label (-1) are skipped.
        """
        return self._convert(data, name, "inference")

    def running_text(self, data: Any, name: str = "train_dataset") -> Any:
        """Pairs of consecutive sentences: `PreparedRunningText` or `StreamedRows`.

        Columns: `text` with a document, which is split into sentences; or `text` with a sentence and `document`, in order
        or, unless streamed, sorted by `position`; either with `lang`. Numbers missing in `position` and empty sentences
        are gaps.
        """
        return self._convert(data, name, "running text")

    def pairs_or_running_text(self, data: Any, name: str = "eval_dataset") -> Any:
        """Translation pairs or running text."""
        return self._convert(data, name, "pairs", "running text")

    def _convert(self, data: Any, name: str, *forms: str) -> Any:
        if hasattr(data, "lengths") or isinstance(data, StreamedRows):
            return data
        parts = [self._open(key, part, forms, name) for key, part in _parts(data, name)]
        if any(isinstance(part, IterableDataset) for _, part, _ in parts):
            return StreamedRows([self._stream(part, reader) for _, part, reader in parts])
        found: list[Any] = []
        for form in forms:
            rows = [self._stored(part, reader) for own, part, reader in parts if own == form]
            kind: Any = _PREPARED.get(form, PreparedRows)
            if sum(map(len, rows)) and len(data := kind(concatenate_datasets(rows))):
                found.append(data)
        if not found:
            raise XlsrError(f"no row of `{name}` is usable: {' or '.join(forms)} have empty texts or no label.")
        return found[0] if len(found) == 1 else ConcatenatedRows(found)

    def _open(self, key: str, data: Any, forms: Sequence[str], name: str) -> _Part:
        """The form of a dataset, its rows without a format, and a reader of them."""
        place = f"`{name}`" + (f" ('{key}')" if key else "")
        first = next(iter(data), None)
        if first is None:
            raise XlsrError(f"{place} is empty.")
        features = data.features or {}
        label = features.get("label")
        labels = label.names if isinstance(label, ClassLabel) else ()
        for form in forms:
            reader = open_reader(_KINDS[form], first, key=key, languages=self.languages, labels=labels)
            if reader:
                self._check_languages(reader, data, first, place)
                return form, data, reader
        expected = " or: ".join(_KINDS[form].accepted for form in forms)
        raise XlsrError(f"{place} has the columns {', '.join(first)}; expected {expected}.")

    def _check_languages(self, reader: Any, data: Any, first: Mapping[str, Any], place: str) -> None:
        if not isinstance(self.tokenizers, Mapping) or getattr(reader, "columns", ()) == ("translation",):
            return
        for column, default in zip(reader.kind.languages, reader.languages, strict=True):
            if column in first:
                known = data.unique(column) if isinstance(data, Dataset) else [first[column]]
                check_tokenizers(self.tokenizers, filter(None, known))
            elif default in (*UNNAMED, UNDETERMINED):
                raise XlsrError(
                    f"{place} names no languages, but each has its own tokenizer. Add the columns "
                    f"{' and '.join(reader.kind.languages)}, or use a dict such as {{'en-de': dataset}}."
                )
            else:
                check_tokenizers(self.tokenizers, [default])

    def _stored(self, data: Dataset, reader: Reader | StoredRows) -> Dataset:
        """A dataset with the columns of its kind, tokenised in the cache of `datasets`."""
        encoder = self._encoder(reader, reader.kind)
        if isinstance(reader, StoredRows) and set(encoder.features) <= set(data.column_names):
            data = data.select_columns(list(encoder.features))
            return data if data.features == encoder.features else data.cast(encoder.features)
        if "document" in data.column_names and reader.kind == SENTENCES:
            data = _with_neighbours(data)
        settings = [_VERSION, data._fingerprint, repr(reader), self._identity, self.max_length, self.prompts]
        tokenised = data.map(
            lambda batch: encoder.encode(list(reader(batch))),
            batched=True,
            remove_columns=data.column_names,
            features=encoder.features,
            num_proc=self.num_proc,
            new_fingerprint=address_of(settings),
            desc="tokenising",
        )
        if (skipped := len(data) - len(tokenised)) > 0:
            logger.warning("%d of %d rows are skipped: an empty text, or no label.", skipped, len(data))
        return tokenised

    def _stream(self, data: Dataset | IterableDataset, reader: Reader | StoredRows) -> Stream:
        kind = CONSECUTIVE if reader.kind == SENTENCES else reader.kind
        size = None if isinstance(data, IterableDataset) else len(data)
        if not isinstance(data, IterableDataset):
            data = data.to_iterable_dataset(min(len(data), _SHARDS))
        return Stream(data, reader.stream, self._encoder(reader, kind), kind, size, reader.ordered)

    def _encoder(self, reader: Reader | StoredRows, kind: RowKind) -> RowEncoder | StoredRows:
        if isinstance(reader, StoredRows):
            return replace(reader, kind=kind)
        return RowEncoder(kind, self.tokenizers, self.max_length, self.prompts, bool(reader.negatives))

    @cached_property
    def _identity(self) -> str | None:
        """What the token ids of a text depend on."""
        return tokenizer_hash(self.tokenizers)


def _parts(data: Any, name: str, key: str = "") -> Iterator[tuple[str, Any]]:
    """The datasets of nested dicts, each with its key."""
    if isinstance(data, Mapping):
        splits = [inner for inner in data if str(inner).lower() in _SPLITS]
        if len(splits) > 1:
            raise XlsrError(
                f"`{name}` has the splits {', '.join(splits)}; choose one, such as dataset['{splits[0]}']."
            )
        for inner, part in data.items():
            yield from _parts(part, name, key if inner in splits else str(inner))
    elif isinstance(data, ConcatenatedRows):
        for part in data.parts:
            yield key, part.rows
    elif isinstance(data, PreparedRows):
        yield key, data.rows
    elif isinstance(data, Dataset | IterableDataset):
        yield key, data.with_format(None)
    elif isinstance(data, list | tuple) and all(isinstance(row, Mapping) for row in data):
        columns = dict.fromkeys(chain.from_iterable(data))
        yield key, Dataset.from_dict({column: [row.get(column) for row in data] for column in columns})
    else:
        raise XlsrError(
            f"`{name}` must be a Dataset or IterableDataset of `datasets`, a list of dicts, or a dict of these, got "
            f"{type(data).__name__}."
        )


def _with_neighbours(data: Dataset) -> Dataset:
    """Sentences with `continues`: whether the next row is the next sentence of the document."""
    order = [name for name in ("lang", "document", "position") if name in data.column_names]
    if "position" in order:
        data = data.sort(order)
    columns = data.select_columns(order).with_format("arrow")[:]
    follows = np.ones(len(data) - 1, dtype=bool)
    for name in order:
        before, after = columns[name][:-1], columns[name][1:]
        equal = pc.equal(pc.add(before.cast(pa.int64()), 1) if name == "position" else before, after)
        follows &= np.asarray(equal.fill_null(False))
    return data.add_column("continues", [*follows.tolist(), False])
