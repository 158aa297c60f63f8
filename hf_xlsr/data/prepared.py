"""Tokenised pairs on disk, memory-mapped: what the trainers read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf
from datasets.exceptions import DatasetGenerationError
from torch.utils.data import Dataset as TorchDataset

from hf_xlsr.data.piece_counts import PieceCounts
from hf_xlsr.data.sampling import ExampleKey
from hf_xlsr.data.seen import hash64
from hf_xlsr.utils.errors import XlsrError, nearest

SIDES = ("source", "target")
TEXT_FEATURES = Features({name: Value("string") for name in ("source", "target", "source_lang", "target_lang")})


def store_pairs(rows: Iterable[dict[str, Any]], cache_dir: str | Path) -> Dataset:
    """Writes parallel rows to an Arrow file as they come, and maps it: memory stays flat.

    Args:
        rows: With `source`, `target`, `source_lang`, `target_lang`; other columns are dropped.
        cache_dir: Where the Arrow file goes.

    Returns:
        The rows as a `datasets.Dataset`.

    Raises:
        XlsrError: there is no row.
    """
    return store_rows(
        ({name: row.get(name) or "" for name in TEXT_FEATURES} for row in rows),
        TEXT_FEATURES,
        cache_dir,
        empty="the training corpus is empty: no pair was read, or cleaning dropped every one; check data.train and "
        "the counts of data.cleaning.",
    )


def store_rows(rows: Iterable[dict[str, Any]], features: Features, cache_dir: str | Path, *, empty: str) -> Dataset:
    """Writes rows to an Arrow file as they come, and maps it.

    Args:
        rows: With the columns of `features` and no others.
        features: Columns and their types.
        cache_dir: Where the Arrow file goes.
        empty: The error sentence when there is no row.

    Raises:
        XlsrError: there is no row, or what `rows` raises.
    """
    stream = iter(rows)
    first = next(stream, None)
    if first is None:
        raise XlsrError(empty)

    def whole() -> Iterator[dict[str, Any]]:
        yield first
        yield from stream

    # The fingerprint is of no use here: the run's folder says what the data was made of.
    try:
        return Dataset.from_generator(
            whole, features=features, cache_dir=str(cache_dir), fingerprint="rows", keep_in_memory=False
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, XlsrError):  # a mistake that shows only further down the file
            raise error.__cause__ from None
        raise


def check_tokenizers(tokenizer: Any, languages: Iterable[str]) -> None:
    """Refuses languages without a tokenizer, where there is one for each language.

    Args:
        tokenizer: One for all languages, or a mapping from language to tokenizer.
        languages: Those of the data.

    Raises:
        XlsrError: as said.

    Example:
        >>> check_tokenizers({"en": "a tokenizer"}, ["en", "fr"])
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: the training data is also in 'fr', which has no tokenizer; known are en.
    """
    for language in languages if isinstance(tokenizer, Mapping) else ():
        if language not in tokenizer:
            raise XlsrError(
                f"the training data is also in '{language}', which has no tokenizer; {nearest(language, tokenizer)}"
            )


def tokenize_pairs(pairs: Dataset, tokenizer: Any, *, max_length: int = 200) -> tuple[Dataset, dict[str, Any]]:
    """Tokenises both sides, cut at `max_length` pieces.

    Args:
        pairs: From `store_pairs`.
        tokenizer: A tokenizer, or a mapping from language to tokenizer.
        max_length: Longest sentence kept whole, in pieces.

    Returns:
        The data set with `source_ids`, `target_ids`, `length` (of the longer side), `group` (one number a language
        pair), `source_text` and `target_text` (see `text_identities`), and counts: `pairs`, `truncated_sides`,
        `pieces` and `language_pairs`, source and target of each group.

    Raises:
        XlsrError: both sides of a pair are in one language, or a language has no tokenizer.
    """
    found = language_pairs(pairs)
    check_tokenizers(tokenizer, dict.fromkeys(language for pair in found for language in pair))
    groups = {key: number for number, key in enumerate(found)}
    counts = PieceCounts(tokenizer, max_length)

    def encode(batch: dict[str, list[str]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for side in SIDES:
            result[f"{side}_ids"] = counts.tokenize(batch[side], batch[f"{side}_lang"])
            result[f"{side}_text"] = text_identities(batch[side])
        both = list(zip(result["source_ids"], result["target_ids"], strict=True))
        result["length"] = [max(len(source), len(target)) for source, target in both]
        result["group"] = [groups[key] for key in zip(batch["source_lang"], batch["target_lang"], strict=True)]
        return result

    tokenised = map_rows(
        pairs,
        encode,
        {
            **{f"{side}_ids": ListOf(Value("int32")) for side in SIDES},
            **{f"{side}_text": Value("int64") for side in SIDES},
            "length": Value("int32"),
            "group": Value("int32"),
        },
    )
    return tokenised, {"pairs": len(pairs), **counts.report(), "language_pairs": [list(pair) for pair in found]}


def map_rows(rows: Dataset, encode: Any, features: Mapping[str, Any]) -> Dataset:
    """Replaces the columns of stored rows by those that `encode` makes of batches of them, on disk."""
    return rows.map(
        encode,
        batched=True,
        remove_columns=rows.column_names,
        features=Features(features),
        new_fingerprint="tokenised",
        load_from_cache_file=False,
        desc="tokenising",
    )


def text_identities(texts: Sequence[str]) -> np.ndarray:
    """`hash64` of each text as a signed number, `(len(texts),)`, int64: equal for equal texts, for finding duplicates.

    Example:
        >>> first, second, third = text_identities(["yes", "no", "yes"])
        >>> bool(first == third), bool(first == second)
        (True, False)
    """
    return np.array([hash64(text) for text in texts], dtype=np.uint64).view(np.int64)


def language_pairs(pairs: Dataset) -> list[tuple[str, str]]:
    """The language pairs of a data set, sorted.

    Raises:
        XlsrError: both sides of a pair are in one language.
    """
    found: dict[tuple[str, str], None] = {}
    for batch in pairs.select_columns(["source_lang", "target_lang"]).iter(batch_size=10_000):
        found.update(dict.fromkeys(zip(batch["source_lang"], batch["target_lang"], strict=True)))
    for source_lang, target_lang in found:
        if source_lang == target_lang:
            raise XlsrError(
                f"the training corpus is in one language ({source_lang or 'unnamed'}); a cross-lingual encoder needs "
                "pairs of two: give data.languages and data.train of two languages."
            )
    return sorted(found)


class PreparedPairs(TorchDataset):
    """Tokenised pairs, fetched by the `(epoch, index)` keys of `LengthBucketBatchSampler`.

    Each is a mapping with `source_ids` and `target_ids`, `source_text` and `target_text` (numbers that are equal for
    equal texts), `index` and `epoch`; where the language pairs are given, also `source_lang` and `target_lang`.

    Args:
        tokenised: From `tokenize_pairs`.
        language_pairs: Source and target language of each group, from the counts of `tokenize_pairs`.

    Raises:
        XlsrError: the data was tokenised by a version that kept less of it.

    Example:
        >>> rows = {"source_ids": [[4, 5]], "target_ids": [[6]], "length": [2], "group": [0]}
        >>> rows |= {"source_text": [71], "target_text": [72]}
        >>> pair = PreparedPairs(Dataset.from_dict(rows), [("en", "fr")])[3, 0]
        >>> pair["epoch"], pair["target_ids"], pair["target_lang"]
        (3, [6], 'fr')
    """

    def __init__(self, tokenised: Dataset, language_pairs: Sequence[Sequence[str]] | None = None) -> None:
        names = [f"{side}_{column}" for side in SIDES for column in ("ids", "text")]
        self.rows = kept_columns(tokenised, names).with_format(None)
        columns = tokenised.select_columns(["length", "group"]).with_format("arrow")[:]
        self.lengths = np.asarray(columns["length"])
        self.groups = np.asarray(columns["group"])
        self.language_pairs = None if language_pairs is None else [tuple(pair) for pair in language_pairs]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, key: ExampleKey) -> dict[str, Any]:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
        batch = self.rows[[index for _, index in keys]]
        features = features_of(batch, keys)
        if self.language_pairs is not None:
            for feature in features:
                feature["source_lang"], feature["target_lang"] = self.language_pairs[self.groups[feature["index"]]]
        return features


class PreparedByLanguage(TorchDataset):
    """Tokenised rows that are each in one language, fetched by the `(epoch, index)` keys of `LengthBucketBatchSampler`.

    Each is a mapping with the columns that are kept, `lang`, `index` and `epoch`.

    Args:
        tokenised: With the columns, `length` (in pieces) and `group` (number of the language).
        report: Its counts, `languages` among them: the language of each group.
        columns: Those kept.

    Attributes:
        report: The counts.
        languages: Language of each group.
        lengths: Length of each row, in pieces, `(n,)`.
        groups: Group of each row, `(n,)`.

    Raises:
        XlsrError: the data was tokenised by a version that kept less of it.

    Example:
        >>> rows = {"text_ids": [[4, 5]], "length": [2], "group": [0]}
        >>> PreparedByLanguage(Dataset.from_dict(rows), {"languages": ["sw"]}, ["text_ids"])[3, 0]
        {'text_ids': [4, 5], 'index': 0, 'epoch': 3, 'lang': 'sw'}
    """

    def __init__(self, tokenised: Dataset, report: Mapping[str, Any], columns: Sequence[str]) -> None:
        self.report = dict(report)
        self.languages: list[str] = list(report["languages"])
        self.rows = kept_columns(tokenised, columns).with_format(None)
        numbers = tokenised.select_columns(["length", "group"]).with_format("arrow")[:]
        self.lengths, self.groups = np.asarray(numbers["length"]), np.asarray(numbers["group"])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, key: ExampleKey) -> dict[str, Any]:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
        features = features_of(self.rows[[index for _, index in keys]], keys)
        for feature in features:
            feature["lang"] = self.languages[self.groups[feature["index"]]]
        return features


def kept_columns(tokenised: Dataset, names: Sequence[str]) -> Dataset:
    """Some columns of tokenised data.

    Raises:
        XlsrError: it lacks one, as a folder of an older version does.
    """
    for name in names:
        if name not in tokenised.column_names:
            raise XlsrError(
                f"the training data, which lacks '{name}', was prepared by an older version; start anew with "
                "--overwrite true."
            )
    return tokenised.select_columns(list(names))


def features_of(batch: Mapping[str, Sequence[Any]], keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
    """Columns of a batch as one mapping an example, with its `index` and `epoch`."""
    return [
        {**dict(zip(batch, values, strict=True)), "index": index, "epoch": epoch}
        for (epoch, index), *values in zip(keys, *batch.values(), strict=True)
    ]
