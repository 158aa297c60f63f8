"""Rows as users have them: which columns hold the texts and languages, and their tokenisation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import langcodes
from datasets import Features

from hf_xlsr.data.encoding import PAIRS, UNDETERMINED, Row, RowKind, lengths_of, text_identities
from hf_xlsr.data.nli import label_number
from hf_xlsr.data.running_text import split_sentences
from hf_xlsr.utils.errors import XlsrError

UNNAMED = ("source", "target")
"""Languages of pairs whose rows, dataset and model name none."""

Batch = Mapping[str, Sequence[Any]]


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
            named = [batch[name] if name in batch else None for name in self.kind.languages]
            texts = zip(*(batch[name] for name in self.columns), strict=True)
            rows = (
                dict(zip((*self.kind.texts, *self.kind.languages), (*some, *languages), strict=True))
                for some, languages in zip(texts, self._languages(named, len(batch[self.columns[0]])), strict=True)
            )
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
        if "continues" in self.kind.kept:
            return self._consecutive(batches)
        return chain.from_iterable(map(self, batches))

    def _consecutive(self, batches: Iterable[Batch]) -> Iterator[Row]:
        before: tuple[Any, ...] = ()
        for batch in batches:
            if self.documents:
                for row, following in pairwise(chain(self(batch), [{}])):
                    if row["continues"]:
                        yield {"first": row["text"], "second": following["text"], "lang": row["lang"]}
                continue
            nothing = [None] * len(batch["text"])
            columns = [batch[name] if name in batch else nothing for name in ("text", "document", "lang", "position")]
            for text, document, lang, position in zip(*columns, strict=True):
                lang, position = lang or self.languages[0], None if position is None else int(position)
                expected = (document, lang, None if position is None else position - 1)
                if document is not None and before[1:] == expected and _filled(text) and _filled(before[0]):
                    yield {"first": before[0], "second": text, "lang": lang}
                before = (text, document, lang, position)

    def _languages(self, named: Sequence[Sequence[Any] | None], count: int) -> Iterator[tuple[str, ...]]:
        columns = [
            [default] * count if names is None else [name or default for name in names]
            for names, default in zip(named, self.languages, strict=True)
        ]
        return zip(*columns, strict=True)

    def _translation(self, texts: Mapping[str, Any] | None) -> Row:
        filled = {language: text for language, text in (texts or {}).items() if text}
        if set(self.languages) <= set(filled):
            source, target = self.languages
        elif len(filled) == 2:
            source, target = filled
        elif len(filled) < 2:
            return dict.fromkeys((*PAIRS.texts, *PAIRS.languages))
        else:
            raise XlsrError(
                f"`translation` has the languages {', '.join(filled)}; give `languages` the two to train on."
            )
        return {"source": filled[source], "target": filled[target], "source_lang": source, "target_lang": target}

    def _label(self, label: Any) -> int | None:
        try:
            named = self.labels[label] if self.labels and isinstance(label, int) and label >= 0 else label
            return None if label is None else label_number(named)
        except (ValueError, IndexError):
            raise XlsrError(
                f"`label` must be 0 (entailment), 1 (neutral) or 2 (contradiction), or these words, got {label!r}."
            ) from None

    def _sentences(self, row: Row, continues: Any, place: int) -> Iterator[Row]:
        text = row["text"] if _filled(row["text"]) else ""
        if self.documents:
            sentences = split_sentences(text, row["lang"])
            for number, sentence in enumerate(sentences, 1):
                yield {**row, "text": sentence, "continues": number < len(sentences)}
        else:
            yield {**row, "text": text, "continues": bool(continues[place])}


@dataclass(frozen=True)
class StoredRows:
    """Rows that are tokenised already, whose missing columns are filled."""

    kind: RowKind
    languages: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    ordered: bool = False

    @property
    def features(self) -> Features:
        """Columns of a complete row."""
        return self.kind.token_features(bool(self.negatives))

    def __call__(self, batch: Batch) -> Iterator[Row]:
        """The rows of a batch."""
        languages = dict(zip(self.kind.languages, self.languages, strict=True))
        for values in zip(*batch.values(), strict=True):
            yield {**languages, **dict(zip(batch, values, strict=True))}

    def stream(self, batches: Iterable[Batch]) -> Iterator[Row]:
        """The rows of all batches; of running text, pairs of consecutive sentences."""
        rows = chain.from_iterable(map(self, batches))
        if "continues" not in self.kind.kept:
            return rows
        pairs = ((row, following) for row, following in pairwise(rows) if row["continues"])
        return (
            {"first_ids": row["text_ids"], "second_ids": following["text_ids"], "lang": row["lang"]}
            for row, following in pairs
        )

    def encode(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Columns of `features`."""
        columns: dict[str, Any] = {}
        for name in self.features:
            values: list[Any] = [row.get(name) for row in rows]
            if name == "length":
                values = lengths_of(*([row[f"{text}_ids"] for row in rows] for text in self.kind.texts))
            elif name.endswith("_text") and name not in rows[0]:  # equal ids instead of equal texts
                ids = name.replace("_text", "_ids")
                values = text_identities([str(list(row[ids])) for row in rows]).tolist()
            columns[name] = values
        return columns


def open_reader(
    kind: RowKind,
    first: Mapping[str, Any],
    *,
    key: str = "",
    languages: Sequence[str] | None = None,
    labels: Sequence[str] = (),
) -> Reader | StoredRows | None:
    """A reader for rows like the first one; None if they lack the columns of the kind.

    The key of the dataset in its dict, such as `en-de`, has the languages of rows that name none, else `languages`.
    """
    pair = _key_languages(key, languages) or (tuple(languages) if languages and len(languages) == 2 else None)
    one = key if langcodes.tag_is_valid(key) else languages[0] if languages and len(languages) == 1 else UNDETERMINED
    if all(name in first for name in (*(f"{text}_ids" for text in kind.texts), *kind.kept)):
        named = (one,) if len(kind.languages) == 1 else pair or UNNAMED
        return StoredRows(kind, named, ("negative_ids",) if "negative_ids" in first else (), "continues" in kind.kept)
    columns = kind.columns_of(first)
    if kind.texts != PAIRS.texts:
        documents = "document" not in first
        return Reader(kind, columns, (one,), labels=tuple(labels), documents=documents) if columns else None
    if columns is None and isinstance(first.get("translation"), Mapping):
        columns = ("translation",)
    if columns is None:
        pair = columns = _language_columns(first, pair or languages or ())
    negatives = tuple(name for name in first if re.fullmatch(r"negatives?(_\d+)?", name))
    return Reader(kind, columns, pair or UNNAMED, negatives) if columns else None


def _key_languages(key: str, languages: Sequence[str] | None) -> tuple[str, ...] | None:
    """The two languages in the name of a dataset, such as `en-de` or `eng_Latn-zho_Hans`."""
    parts = key.split("-")
    splits = [("-".join(parts[:place]), "-".join(parts[place:])) for place in range(1, len(parts))]
    known = [pair for pair in splits if set(pair) <= set(languages or ())]
    valid = [pair for pair in splits if all(map(langcodes.tag_is_valid, pair))]
    return next(iter(known or (valid if len(valid) == 1 else ())), None)


def _language_columns(first: Mapping[str, Any], wanted: Sequence[str]) -> tuple[str, ...] | None:
    """The two columns of text that are named by languages, if there are two, in the order of those wanted."""
    found = [name for name, value in first.items() if isinstance(value, str | None) and langcodes.tag_is_valid(name)]
    found = [name for name in wanted if name in found] if len(set(wanted) & set(found)) == 2 else found
    return tuple(found) if len(found) == 2 else None


def _filled(text: Any) -> bool:
    if text is not None and not isinstance(text, str):
        raise XlsrError(f"texts must be strings, got {text!r:.60}.")
    return bool(text and text.strip())


def _negatives(values: Iterable[Any]) -> Iterator[str]:
    """The texts of a row's negatives; a row may lack some."""
    for value in values:
        yield from filter(_filled, [value] if isinstance(value, str | None) else value)
