"""From the data that users have to what trainers read: columns found, texts tokenised, languages named row by row."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise, repeat
from typing import Any

import langcodes
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, IterableDataset, concatenate_datasets

from hf_xlsr.data.encoding import (
    CONSECUTIVE,
    LABELLED,
    NLI,
    PAIRS,
    SENTENCES,
    TAUGHT_PAIRS,
    TEXTS,
    UNDETERMINED,
    Row,
    RowEncoder,
    RowKind,
    check_tokenizers,
)
from hf_xlsr.data.labelled import NLI_TASK, LabelledEncoder
from hf_xlsr.data.languages import language_of_name, nearest_tag
from hf_xlsr.data.prepared import ConcatenatedRows, PreparedPairs, PreparedRows, PreparedRunningText
from hf_xlsr.data.prompts import Prompts, PromptTable
from hf_xlsr.data.running_text import split_sentences
from hf_xlsr.data.streaming import Stream, StreamedRows
from hf_xlsr.data.tokenization import tokenizer_hash
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import address_of

logger = logging.getLogger(__name__)

# Changes with the columns or values that a conversion writes, so that no older cache is read.
_VERSION = 1
_SHARDS = 64  # of a stored dataset that is mixed with streams
_SPLITS = {"train", "training", "validation", "valid", "val", "dev", "eval", "test"}
_KINDS = {"pairs": PAIRS, "taught pairs": TAUGHT_PAIRS, "texts": TEXTS, "inference": NLI, "running text": SENTENCES}
_PREPARED = {"pairs": PreparedPairs, "taught pairs": PreparedPairs, "running text": PreparedRunningText}
# Languages of pairs whose rows, dataset and model name none.
_UNNAMED = ("source", "target")

Batch = Mapping[str, Sequence[Any]]


class DataConverter:
    """Converts the data that users have to what trainers read.

    Each method takes a `Dataset`, a list of dicts, an `IterableDataset` (nothing is written to disk), or a dict of
    these, whose rows are mixed; converted or prepared data is returned as it is. The cache of `Dataset.map` depends on
    data, tokenizers, `max_length` and `prompts`. Rows with an empty text are skipped, with a warning that counts them.

    The language of a row comes from, in this order: the row (`source_lang` and `target_lang`, or `lang`; names of
    columns; keys of `translation`); the key of the dataset in its dict (`en-de`, or `en`); `languages`.

    Args:
        tokenizers: One tokenizer, or a mapping from language to tokenizer.
        languages: Languages of the model. Of two, the first is that of sources, and the second that of targets.
        max_length: Longer texts are truncated to this many tokens, special tokens included.
        prompts: Text before every text; or by role (`source`, `target`, `text`, `premise`, `hypothesis`) or language; or
            the prompts of an encoder.
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
        prompts: PromptTable | Prompts = None,
        num_proc: int | None = None,
    ) -> None:
        self.tokenizers, self.max_length, self.num_proc = tokenizers, max_length, num_proc
        self.prompts = prompts if isinstance(prompts, PromptTable) else PromptTable().given(prompts)
        self.languages = tuple(languages or (tokenizers if isinstance(tokenizers, Mapping) else ()))

    def pairs(self, data: Any, name: str = "train_dataset") -> Any:
        """Translation pairs: `PreparedPairs`, or `StreamedRows` of streams; errors name `name`.

        Columns: `source` and `target`, `anchor` and `positive`, or `english` and `non_english` (with `source_lang` and
        `target_lang`); `translation`, a dict from language to text; or two named by languages. Columns `negative`,
        `negative_1`, ... are hard negatives in the language of the target; rows may lack some.
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

        Columns: `premise` and `hypothesis`, or `sentence1` and `sentence2`; `label` (and `lang`). Labels are 0
        entailment, 1 neutral, 2 contradiction, these words, or numbers of a `ClassLabel` with these names; rows with -1
        are skipped.
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

    def _open(
        self, key: str, data: Any, forms: Sequence[str], name: str
    ) -> tuple[str, Dataset | IterableDataset, Reader]:
        """The form of a dataset, its rows, and a reader of them."""
        place = f"`{name}`" + (f" ('{key}')" if key else "")
        first: Mapping[str, Any] = next(iter(data), {})
        label = (data.features or {}).get("label")
        labels = label.names if isinstance(label, ClassLabel) else ()
        for form in forms:
            reader = open_reader(_KINDS[form], first, key=key, languages=self.languages, labels=labels)
            if reader:
                self._check_languages(reader, data, first, place)
                return form, data, reader
        expected = " or: ".join(_KINDS[form].accepted for form in forms)
        raise XlsrError(f"{place} has the columns {', '.join(first) or '(none: it is empty)'}; expected {expected}.")

    def _check_languages(self, reader: Reader, data: Any, first: Mapping[str, Any], place: str) -> None:
        if not isinstance(self.tokenizers, Mapping) or reader.columns == ("translation",):
            return
        for column, default in zip(reader.kind.languages, reader.languages, strict=True):
            if column in first:
                known = data.unique(column) if isinstance(data, Dataset) else [first[column]]
                check_tokenizers(self.tokenizers, filter(None, known))
            elif default in (*_UNNAMED, UNDETERMINED) and default not in self.tokenizers:
                raise XlsrError(
                    f"{place} names no languages, but each has its own tokenizer. Add the columns "
                    f"{' and '.join(reader.kind.languages)}, or use a dict such as {{'en-de': dataset}}."
                )
            else:
                check_tokenizers(self.tokenizers, [default])

    def _stored(self, data: Dataset, reader: Reader) -> Dataset:
        """A dataset with the columns of its kind, tokenised in the cache of `datasets`."""
        encoder = self._encoder(reader, reader.kind)
        if "document" in data.column_names and reader.kind == SENTENCES:
            data = _with_neighbours(data)
        prompts = [dict(self.prompts.texts), self.prompts.default]
        settings = [_VERSION, data._fingerprint, repr(reader), self._identity, self.max_length, prompts]
        tokenised = data.map(
            lambda batch: encoder.encode(list(reader(batch))),
            batched=True,
            remove_columns=data.column_names,
            features=encoder.features,
            num_proc=self.num_proc,
            new_fingerprint=address_of(settings),
            desc="tokenising",
        )
        _warn_of_skipped(len(data) - len(tokenised), len(data))
        return tokenised

    def _stream(self, data: Dataset | IterableDataset, reader: Reader) -> Stream:
        kind = CONSECUTIVE if reader.kind == SENTENCES else reader.kind
        size = None if isinstance(data, IterableDataset) else len(data)
        if not isinstance(data, IterableDataset):
            data = data.to_iterable_dataset(min(len(data), _SHARDS))
        return Stream(data, reader.stream, self._encoder(reader, kind), kind, size, reader.ordered)

    def _encoder(self, reader: Reader, kind: RowKind) -> RowEncoder:
        return RowEncoder(kind, self.tokenizers, self.max_length, self.prompts, bool(reader.negatives))

    @cached_property
    def _identity(self) -> str | None:
        return tokenizer_hash(self.tokenizers)


def convert_labelled(
    data: Any, tokenizer: Any, max_length: int, name: str, num_proc: int | None = None, *, unlabelled: bool = False
) -> PreparedRows:
    """Tokenises labelled texts that users have, as `prepare_labelled`; `name` is that of the argument in errors.

    Rows without a label, or of class -1, are skipped. `unlabelled` keeps them; if there are any, all labels are dropped.
    """
    rows = concatenate_datasets([_with_language(key, part) for key, part in _parts(data, name)])
    if unlabelled and "label" not in rows.column_names:
        rows = rows.add_column("label", [-1] * len(rows))
    found = ((kind, kind.columns_of(rows.column_names)) for kind in LABELLED.values())
    kind, columns = next(((kind, columns) for kind, columns in found if columns), (None, None))
    if not len(rows) or kind is None or columns is None:
        expected = " or: ".join(kind.accepted for kind in LABELLED.values())
        raise XlsrError(f"`{name}` must have rows of {expected}, got {len(rows)} of {', '.join(rows.column_names)}.")
    label = rows.features["label"]
    if label.dtype == "string":
        raise XlsrError(f"`{name}` has labels of text. Number them: dataset.class_encode_column('label').")
    classes = not label.dtype.startswith("float")

    def has_label(label: Any) -> bool:
        return label is not None and (not classes or label >= 0)

    labelled = rows.filter(has_label, input_columns="label")
    names = getattr(label, "names", None) or (range(max(labelled.unique("label"), default=-1) + 1) if classes else [])
    encoder = LabelledEncoder(replace(kind, kept={"label": "int32" if classes else "float32"}), tokenizer, max_length)
    ours = (*kind.texts, "label", "lang")

    def encode(batch: Batch) -> dict[str, Any]:
        languages = batch.get("lang") or [UNDETERMINED] * len(batch["label"])
        values = zip(*(batch[column] for column in (*columns, "label")), languages, strict=True)
        return encoder.encode([dict(zip(ours, row, strict=True)) for row in values])

    options: dict[str, Any] = {"remove_columns": rows.column_names, "features": encoder.features}
    kept = rows if unlabelled else labelled
    tokenised = kept.map(encode, batched=True, num_proc=num_proc, desc="tokenising", **options)
    _warn_of_skipped(len(rows) - len(tokenised), len(rows))
    if len(labelled) < len(kept):
        tokenised = tokenised.remove_columns("label")
    return PreparedRows(tokenised, {"labels": dict.fromkeys(names, 0)})


def _parts(data: Any, name: str, key: str = "") -> Iterator[tuple[str, Any]]:
    """The datasets of nested dicts, each with its key."""
    if isinstance(data, Mapping):
        splits = [inner for inner in data if str(inner).lower() in _SPLITS]
        if len(splits) > 1:
            raise XlsrError(f"`{name}` has the splits {', '.join(splits)}; choose one: dataset['{splits[0]}'].")
        for inner, part in data.items():
            yield from _parts(part, name, key if inner in splits else str(inner))
    elif isinstance(data, Dataset | IterableDataset):
        yield key, data.with_format(None)
    elif isinstance(data, list | tuple) and all(isinstance(row, Mapping) for row in data):
        columns = dict.fromkeys(chain.from_iterable(data))
        yield key, Dataset.from_dict({column: [row.get(column) for row in data] for column in columns})
    else:
        raise XlsrError(f"`{name}` must be datasets, a list of dicts, or a dict of these, got {type(data).__name__}.")


def _warn_of_skipped(skipped: int, rows: int) -> None:
    if skipped > 0:
        logger.warning("%d of %d rows are skipped: an empty text, or no label.", skipped, rows)


def _with_language(key: str, data: Dataset | IterableDataset) -> Dataset:
    """Stored rows, whose language may be the key of their dataset."""
    rows = data if isinstance(data, Dataset) else Dataset.from_list(list(data), features=data.features)
    named = "lang" in rows.column_names or not langcodes.tag_is_valid(key)
    return rows if named else rows.add_column("lang", [key] * len(rows))


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


@dataclass(frozen=True)
class Reader:
    """Reads the texts of raw rows as rows of `kind`.

    Args:
        columns: Columns of the texts in the raw rows.
        languages: Languages of the texts where rows name none.
        negatives: Columns of hard negatives, one text or a list of texts each.
        labels: Names of the raw labels' numbers, where the dataset has names.
        documents: Whether a text of running text is a document to split.
    """

    kind: RowKind
    columns: tuple[str, ...]
    languages: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    documents: bool = False

    def __call__(self, batch: Batch) -> Iterator[Row]:
        """Rows of text; rows with an empty text, or without a label, are skipped."""
        if self.columns == ("translation",):
            rows: Iterable[Row] = map(self._translation, batch["translation"])
        else:
            names = (*self.kind.texts, *self.kind.languages)
            texts = [batch[name] for name in self.columns]
            languages: list[Iterable[str]] = [
                [name or default for name in batch[column]] if column in batch else repeat(default)
                for column, default in zip(self.kind.languages, self.languages, strict=True)
            ]
            rows = (dict(zip(names, values, strict=True)) for values in zip(*texts, *languages, strict=False))
        for place, row in enumerate(rows):
            if "continues" in self.kind.kept:
                yield from self._sentences(row, batch.get("continues"), place)
            elif all([_filled(row[text]) for text in self.kind.texts]):
                if self.negatives:
                    row["negatives"] = list(_negatives(batch[name][place] for name in self.negatives))
                if "label" in self.kind.kept:
                    row["label"] = self._label(batch["label"][place])
                    if row["label"] is None:
                        continue
                yield row

    @property
    def ordered(self) -> bool:
        """Whether rows must be read in their order."""
        return "continues" in self.kind.kept and not self.documents

    def stream(self, batches: Iterable[Batch]) -> Iterator[Row]:
        """Rows of all batches; of running text, pairs of consecutive sentences."""
        if self.ordered:
            return self._consecutive(batches)
        rows = chain.from_iterable(map(self, batches))
        return _neighbours(rows) if "continues" in self.kind.kept else rows

    def _consecutive(self, batches: Iterable[Batch]) -> Iterator[Row]:
        before: tuple[Any, ...] = ()
        for batch in batches:
            nothing = [None] * len(batch["text"])
            columns = [batch[name] if name in batch else nothing for name in ("text", "document", "lang", "position")]
            for text, document, lang, position in zip(*columns, strict=True):
                lang, position = lang or self.languages[0], None if position is None else int(position)
                expected = (document, lang, None if position is None else position - 1)
                if document is not None and before[1:] == expected and _filled(text) and _filled(before[0]):
                    yield {"first": before[0], "second": text, "lang": lang}
                before = (text, document, lang, position)

    def _translation(self, texts: Mapping[str, Any] | None) -> Row:
        filled = {language: text for language, text in (texts or {}).items() if text}
        if set(self.languages) <= set(filled):
            source, target = self.languages
        elif len(filled) == 2:
            source, target = filled
        elif len(filled) < 2:
            return dict.fromkeys((*PAIRS.texts, *PAIRS.languages))
        else:
            raise XlsrError(f"`translation` has the languages {', '.join(filled)}; choose two with `languages`.")
        return {"source": filled[source], "target": filled[target], "source_lang": source, "target_lang": target}

    def _label(self, label: Any) -> int | float | None:
        return NLI_TASK.value(self.labels[label] if self.labels and isinstance(label, int) and label >= 0 else label)

    def _sentences(self, row: Row, continues: Any, place: int) -> Iterator[Row]:
        text = row["text"] if _filled(row["text"]) else ""
        if self.documents:
            sentences = split_sentences(text, row["lang"])
            for number, sentence in enumerate(sentences, 1):
                yield {**row, "text": sentence, "continues": number < len(sentences)}
        else:
            yield {**row, "text": text, "continues": bool(continues[place])}


def open_reader(
    kind: RowKind,
    first: Mapping[str, Any],
    *,
    key: str = "",
    languages: Sequence[str] | None = None,
    labels: Sequence[str] = (),
) -> Reader | None:
    """A reader for rows like the first one; None if they lack the columns of the kind."""
    pair = _key_languages(key, languages) or (tuple(languages) if languages and len(languages) == 2 else None)
    one = key if langcodes.tag_is_valid(key) else languages[0] if languages and len(languages) == 1 else UNDETERMINED
    columns = kind.columns_of(first)
    if kind.texts != PAIRS.texts:
        documents = "document" not in first
        return Reader(kind, columns, (one,), labels=tuple(labels), documents=documents) if columns else None
    if columns is None and isinstance(first.get("translation"), Mapping):
        columns = ("translation",)
    if columns is None:
        pair = columns = _language_columns(first, pair or languages or ())
    negatives = tuple(name for name in first if re.fullmatch(r"negatives?(_\d+)?", name))
    return Reader(kind, columns, pair or _UNNAMED, negatives) if columns else None


def _key_languages(key: str, languages: Sequence[str] | None) -> tuple[str, ...] | None:
    """The two languages in the name of a dataset, such as `en-de` or `eng_Latn-zho_Hans`."""
    parts = key.split("-")
    splits = [("-".join(parts[:place]), "-".join(parts[place:])) for place in range(1, len(parts))]
    known = [pair for pair in splits if set(pair) <= set(languages or ())]
    valid = [pair for pair in splits if all(map(langcodes.tag_is_valid, pair))]
    return next(iter(known or (valid if len(valid) == 1 else ())), None)


def _language_columns(first: Mapping[str, Any], wanted: Sequence[str]) -> tuple[str, ...] | None:
    """The two columns of text that are named by the languages wanted, in their order, or by any languages."""
    found = [name for name, value in first.items() if isinstance(value, str | None) and langcodes.tag_is_valid(name)]
    if len(wanted) > 1:
        found = list(dict.fromkeys(tag for language in wanted if (tag := nearest_tag(language, found))))
    else:
        found = list(filter(language_of_name, found))
        found = [name for name in found if name != "id"] if len(found) == 3 else found  # Indonesian, or a number
    return tuple(found) if len(found) == 2 else None


def _neighbours(rows: Iterable[Row]) -> Iterator[Row]:
    for row, following in pairwise(rows):
        if row["continues"]:
            yield {"first": row["text"], "second": following["text"], "lang": row["lang"]}


def _filled(text: str | None) -> bool:
    return bool(text and text.strip())


def _negatives(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        yield from filter(_filled, [value] if isinstance(value, str | None) else value)
