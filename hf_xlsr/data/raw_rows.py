"""Raw rows as users have them: which columns hold the texts, in which languages, with which labels and neighbours."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any

import langcodes
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, IterableDataset

from hf_xlsr.data.columns import Row
from hf_xlsr.data.encoding import NLI, PAIRS, UNDETERMINED, RowKind, column_rows
from hf_xlsr.data.label_tasks import NLI_TASK
from hf_xlsr.data.languages import language_of_name, nearest_tag
from hf_xlsr.data.sentences import split_sentences
from hf_xlsr.data.transforms import first_draw, has_transform
from hf_xlsr.utils.errors import XlsrError

SPLITS = {"train", "training", "validation", "valid", "val", "dev", "eval", "test"}
STREAMED_ROWS = 1000
"""First rows of all streams, of which the languages are those of a new model."""
NO_CLASS = {"", "-", "-1"}
"""Labels of text that stand for none."""
NEGATIVE_COLUMN = re.compile(r"negatives?(_\d+)?")
UNNAMED = ("source", "target")
"""Languages of pairs whose rows, dataset and model name none."""


Batch = Mapping[str, Sequence[Any]]


def open_datasets(
    data: Any,
    name: str,
    key: str = "",
) -> Iterator[tuple[str, Dataset | IterableDataset]]:
    """The datasets of a dataset, a list of dicts, or nested dicts of these, each with its key; errors name `name`.

    Rows have Python values, of the columns of their format. Those that a transform makes are its `first_draw`.
    """
    for dataset_key, dataset in unread_datasets(data, name, key):
        yield dataset_key, first_draw(dataset)


def unread_datasets(
    data: Any,
    name: str,
    key: str = "",
) -> Iterator[tuple[str, Dataset | IterableDataset]]:
    """As `open_datasets`, but a dataset keeps its transform."""
    if isinstance(data, Mapping):
        splits = [inner_key for inner_key in data if str(inner_key).lower() in SPLITS]
        if len(splits) > 1:
            raise XlsrError(f"`{name}` has the splits {', '.join(splits)}; choose one.")
        for inner_key, dataset in data.items():
            yield from unread_datasets(dataset, name, key if inner_key in splits else str(inner_key))
    elif has_transform(data):
        yield key, data
    elif isinstance(data, Dataset):
        plain = data.with_format(None)
        has_hidden_columns = set(data.format["columns"]) < set(data.column_names)
        if has_hidden_columns and not data.format["output_all_columns"]:
            plain = plain.select_columns(data.format["columns"])
        yield key, plain
    elif isinstance(data, IterableDataset):
        yield key, data.with_format(None)
    elif isinstance(data, list | tuple) and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(chain.from_iterable(data))
        yield key, Dataset.from_dict({name: [row.get(name) for row in data] for name in names})
    else:
        raise XlsrError(f"`{name}` must be datasets, a list of dicts, or a dict of these, got {type(data).__name__}.")


def read_once(data: Any) -> Any:
    """Data of users with fixed rows: streams are read into memory, transforms applied once, also in dicts."""
    if isinstance(data, Mapping):
        return {key: read_once(dataset) for key, dataset in data.items()}
    if isinstance(data, IterableDataset):
        return Dataset.from_list(list(data.with_format(None)), features=data.features)
    return first_draw(data)


def has_stream(data: Any) -> bool:
    """Whether data of users, in any form, or converted data has a stream."""
    if isinstance(data, Mapping):
        return any(has_stream(inner) for inner in data.values())
    return isinstance(data, IterableDataset) or hasattr(data, "streams")


def class_names(data: Any, name: str = "train_dataset", known: Sequence[str] = ()) -> list[str]:
    """Names of the classes of labelled data of users, or of converted data, in the order of their numbers.

    They are those of a `ClassLabel`, or labels of text, sorted; of numbers without names the numbers; none for scores.
    `known` are names that a model has, which also give labels of text their order.

    Raises:
        XlsrError: Names of a `ClassLabel` differ from each other or from those of the model; a label of text is unknown.
    """
    if hasattr(data, "lengths"):
        return _agreeing(list(data.report.get("labels", {})), known, name)

    names: list[str] = list(known)
    numbers_or_texts: set[Any] = set()
    for _, dataset in open_datasets(data, name):
        label = (dataset.features or {}).get("label")
        if isinstance(label, ClassLabel):
            names = _agreeing(list(label.names), names, name)
        else:
            numbers_or_texts |= _distinct_labels(dataset)

    texts = {label for label in numbers_or_texts if isinstance(label, str)}
    numbers = numbers_or_texts - texts
    if any(isinstance(number, float) for number in numbers):
        return []

    texts -= NO_CLASS
    names = names or sorted(texts)
    unknown = sorted(texts.difference(names))
    if unknown:
        raise XlsrError(f"`{name}` has the label '{unknown[0]}'; the classes are {', '.join(names)}.")
    highest = max(numbers, default=-1)
    return names if highest < len(names) else list(map(str, range(highest + 1)))


def _distinct_labels(dataset: Dataset | IterableDataset) -> set[Any]:
    """The labels of a dataset; of scores, those of the first rows."""
    if "label" in (dataset.features or {}):
        dataset = dataset.select_columns(["label"])
    labels: set[Any] = set()
    for batch in dataset.iter(batch_size=1000):
        labels.update(batch.get("label", ()))
        if any(isinstance(label, float) for label in labels):
            break
    return labels - {None}


def _agreeing(names: list[str], known: Sequence[str], data_name: str) -> list[str]:
    """Names of classes, which must be the known ones in the same order, unless they are just numbers."""
    if is_numbered(names):
        return list(known) if 0 < len(names) <= len(known) else names
    if known and names != list(known):
        raise XlsrError(
            f"`{data_name}` has the classes {', '.join(names)}, but they must be {', '.join(known)}, in this order. Use "
            "dataset.align_labels_with_mapping, or a model without names."
        )
    return names


def is_numbered(names: Sequence[str]) -> bool:
    """Whether classes have no names, only their numbers."""
    return list(names) == list(map(str, range(len(names))))


def pair_languages(data: Any) -> list[str]:
    """The languages of pairs of users, or of converted pairs, as they first appear; of a stream, of its first rows."""
    if hasattr(data, "language_pairs"):
        return list(dict.fromkeys(chain.from_iterable(data.language_pairs)))

    readers: list[tuple[Any, Callable[[Iterable[Any]], Iterator[Row]]]] = []
    if hasattr(data, "streams"):
        for stream in data.streams:
            readers.append((stream.data, stream.read))
    else:
        for key, dataset in open_datasets(data, "train_dataset"):
            reader = open_reader(PAIRS, next(iter(dataset), {}), key=key)
            if reader is not None:
                readers.append((dataset, reader.stream))

    languages: dict[str, None] = {}
    for dataset, read in readers:
        rows = read(dataset.iter(batch_size=1000))
        if not isinstance(dataset, Dataset):
            rows = islice(rows, STREAMED_ROWS // len(readers))
        for row in rows:
            languages |= dict.fromkeys((row["source_lang"], row["target_lang"]))

    return list(languages)


def continues_after(rows: Dataset) -> np.ndarray:
    """Whether the next row is the next sentence of the document, `(rows,)`; rows are sorted by document and position."""
    names = _order_columns(rows, "place", "lang", "document", "position")
    columns = rows.select_columns(names).with_format("arrow")[:]
    follows = np.ones(max(len(rows) - 1, 0), dtype=bool)
    for name in names:
        expected = columns[name][:-1]
        if name in ("place", "position"):
            expected = pc.add(expected.cast(pa.int64()), 1)
        follows &= np.asarray(pc.equal(expected, columns[name][1:]).fill_null(False))
    return np.append(follows, False)[: len(rows)]


def _order_columns(rows: Dataset, *names: str) -> list[str]:
    return [name for name in names if name in rows.column_names]


def _in_order(rows: Dataset) -> bool:
    """Whether the rows of each document follow each other, by position."""
    names = _order_columns(rows, "lang", "document")
    frame = rows.select_columns([*names, "position"]).to_pandas()
    starts = (frame[names] != frame[names].shift()).any(axis=1)
    is_grouped = int(starts.sum()) == len(frame[names].drop_duplicates())
    return is_grouped and bool(((frame["position"].diff() > 0) | starts).all())


def with_neighbours(rows: Dataset) -> Dataset:
    """Sentences that have a neighbour, with `continues`: whether the next row is the next sentence of the document."""
    if "position" in rows.column_names and not _in_order(rows):
        rows = rows.sort(_order_columns(rows, "lang", "document", "position"))
    continues = continues_after(rows)
    has_neighbour = continues.copy()
    has_neighbour[1:] |= continues[:-1]
    if not has_neighbour.all():
        rows = rows.select(np.flatnonzero(has_neighbour))
    return rows.add_column("continues", continues[has_neighbour])


@dataclass(frozen=True)
class RowReader:
    """Reads the texts of raw rows as rows of `kind`.

    Args:
        columns: Columns of the texts in the raw rows.
        languages: Languages of the texts where rows name none.
        negatives: Columns of hard negatives, one text or a list of texts each.
        label_names: Names of the raw labels' numbers, where the dataset has names; or the classes of labels of text.
        documents: Whether a text of running text is a document to split.
        keeps_unlabelled: Whether rows without a label are kept, with the label -1, or NaN as a score.
    """

    kind: RowKind
    columns: tuple[str, ...]
    languages: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()
    documents: bool = False
    keeps_unlabelled: bool = False

    def __call__(self, batch: Batch) -> Iterator[Row]:
        """Rows of text; rows with an empty text, or without a label, are skipped."""
        for _, row in self.numbered(batch):
            yield row

    def numbered(self, batch: Batch) -> Iterator[tuple[int, Row]]:
        """The rows of text, each with the number of its raw row in the batch."""
        for number, row in enumerate(self._rows(batch)):
            if self.is_running_text:
                for sentence in self._sentences(row, batch.get("continues"), number):
                    yield number, sentence
                continue

            texts = {name: row[name] or "" for name in self.kind.texts}
            row |= texts
            if not self.kind.is_sequence and not all(map(str.strip, texts.values())):
                continue

            if self.negatives:
                row["negatives"] = list(_negatives(batch[name][number] for name in self.negatives))
            if "label" in self.kind.kept:
                row["label"] = self._label(batch["label"][number])
                if row["label"] is None:
                    continue
            yield number, row

    @property
    def is_running_text(self) -> bool:
        return "continues" in self.kind.kept

    @property
    def ordered(self) -> bool:
        """Whether rows must be read in their order."""
        return self.is_running_text and not self.documents

    def stream(self, batches: Iterable[Batch]) -> Iterator[Row]:
        """Rows of all batches; of running text, pairs of consecutive sentences."""
        if self.ordered:
            return self._consecutive(batches)
        rows = chain.from_iterable(map(self, batches))
        return _consecutive_rows(rows) if self.is_running_text else rows

    def _rows(self, batch: Batch) -> Iterator[Row]:
        if self.columns == ("translation",):
            yield from map(self._translation, batch["translation"])
            return

        columns: dict[str, Sequence[Any]] = {}
        for name, column in zip(self.kind.texts, self.columns, strict=True):
            columns[name] = batch[column]
        for name, default in zip(self.kind.languages, self.languages, strict=True):
            languages = batch.get(name) or [None] * len(batch[self.columns[0]])
            columns[name] = [language or default for language in languages]
        yield from column_rows(columns)

    def _translation(self, texts: Mapping[str, Any] | None) -> Row:
        filled_texts = {}
        for language, text in (texts or {}).items():
            if text:
                filled_texts[language] = text

        languages = self.languages
        if not set(languages) <= set(filled_texts):
            languages = tuple(filled_texts)
        if len(languages) < 2:
            return dict.fromkeys((*PAIRS.texts, *PAIRS.languages))
        if len(languages) > 2:
            raise XlsrError(f"`translation` has the languages {', '.join(languages)}; choose two with `languages`.")

        source, target = languages
        return {
            "source": filled_texts[source],
            "target": filled_texts[target],
            "source_lang": source,
            "target_lang": target,
        }

    def _label(self, label: Any) -> int | float | None:
        if self.kind == NLI:
            if self.label_names and isinstance(label, int) and label >= 0:
                label = self.label_names[label]
            return NLI_TASK.value(label)

        is_class = self.kind.kept["label"] == "int32"
        if isinstance(label, str):
            label = None if label in NO_CLASS else self.label_names.index(label)
        if is_class and label is not None and label < 0:
            label = None
        if label is None and self.keeps_unlabelled:
            label = -1 if is_class else math.nan
        number: int | float | None = label
        return number

    def _sentences(self, row: Row, continues: Any, number: int) -> Iterator[Row]:
        text = row["text"] if _is_filled(row["text"]) else ""
        if not self.documents:
            yield {**row, "text": text, "continues": bool(continues[number])}
            return
        sentences = split_sentences(text, row["lang"])
        for position, sentence in enumerate(sentences, 1):
            yield {**row, "text": sentence, "continues": position < len(sentences)}

    def _consecutive(self, batches: Iterable[Batch]) -> Iterator[Row]:
        text_before = None
        expected: tuple[Any, ...] = ()  # document, language and position of the next sentence
        for batch in batches:
            missing = [None] * len(batch["text"])
            columns = [batch.get(name, missing) for name in ("text", "document", "lang", "position")]
            for text, document, row_language, position in zip(*columns, strict=True):
                language = row_language or self.languages[0]
                next_position = None
                if position is not None:
                    position = int(position)
                    next_position = position + 1

                follows = document is not None and expected == (document, language, position)
                if follows and _is_filled(text_before) and _is_filled(text):
                    yield {"first": text_before, "second": text, "lang": language}
                text_before = text
                expected = (document, language, next_position)


def open_reader(
    kind: RowKind,
    first_row: Mapping[str, Any],
    *,
    key: str = "",
    languages: Sequence[str] | None = None,
    label_names: Sequence[str] = (),
    keeps_unlabelled: bool = False,
) -> RowReader | None:
    """A reader for rows like the first one; None if they lack the columns of the kind."""
    languages = tuple(languages or ())
    columns = kind.columns_of(first_row)
    if kind.texts == PAIRS.texts:
        pair = _key_languages(key, languages)
        if pair is None and len(languages) == 2:
            pair = languages
        if columns is None and isinstance(first_row.get("translation"), Mapping):
            columns = ("translation",)
        if columns is None:
            columns = _language_columns(first_row, pair or languages)
            pair = columns

        negatives = tuple(filter(NEGATIVE_COLUMN.fullmatch, first_row))
        return RowReader(kind, columns, pair or UNNAMED, negatives) if columns else None

    if columns is None:
        return None
    language = UNDETERMINED
    if langcodes.tag_is_valid(key):
        language = key
    elif len(languages) == 1:
        language = languages[0]

    return RowReader(
        kind,
        columns,
        (language,),
        label_names=tuple(label_names),
        documents="document" not in first_row and "place" not in first_row,
        keeps_unlabelled=keeps_unlabelled,
    )


def _key_languages(key: str, languages: Sequence[str]) -> tuple[str, ...] | None:
    """The two languages in the name of a dataset, such as `en-de` or `eng_Latn-zho_Hans`."""
    valid_pairs: list[tuple[str, ...]] = []
    for hyphen in re.finditer("-", key):
        pair = (key[: hyphen.start()], key[hyphen.end() :])
        if set(pair).issubset(languages):
            return pair
        if all(map(langcodes.tag_is_valid, pair)):
            valid_pairs.append(pair)
    return valid_pairs[0] if len(valid_pairs) == 1 else None


def _language_columns(first_row: Mapping[str, Any], wanted: Sequence[str]) -> tuple[str, ...] | None:
    """The two columns of text that are named by the languages wanted, in their order, or by any languages."""
    tags = []
    for name, value in first_row.items():
        if isinstance(value, str | None) and langcodes.tag_is_valid(name):
            tags.append(name)

    if len(wanted) > 1:
        nearest = [nearest_tag(language, tags) for language in wanted]
        tags = list(dict.fromkeys(filter(None, nearest)))
    else:
        tags = list(filter(language_of_name, tags))
        if len(tags) == 3 and "id" in tags:
            tags.remove("id")  # Indonesian, or a number
    return tuple(tags) if len(tags) == 2 else None


def _consecutive_rows(rows: Iterable[Row]) -> Iterator[Row]:
    for row, following in pairwise(rows):
        if row["continues"]:
            yield {"first": row["text"], "second": following["text"], "lang": row["lang"]}


def _is_filled(text: str | None) -> bool:
    return bool(text and text.strip())


def _negatives(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        texts = [value] if isinstance(value, str | None) else value
        yield from filter(_is_filled, texts)
