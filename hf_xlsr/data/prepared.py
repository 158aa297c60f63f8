"""Tokenised pairs on disk, memory-mapped: what the trainers read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf
from datasets.exceptions import DatasetGenerationError
from torch.utils.data import Dataset as TorchDataset

from hf_xlsr.data.sampling import ExampleKey
from hf_xlsr.errors import XlsrError

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

    def generate() -> Iterator[dict[str, str]]:
        for row in rows:
            yield {name: row.get(name) or "" for name in TEXT_FEATURES}

    stream = generate()
    first = next(stream, None)
    if first is None:
        raise XlsrError(
            "the training corpus is empty: no pair was read, or cleaning dropped every one; check data.train and the "
            "counts of data.cleaning."
        )

    def whole() -> Iterator[dict[str, str]]:
        yield first
        yield from stream

    # The fingerprint is of no use here: the run's folder says what the data was made of.
    try:
        return Dataset.from_generator(
            whole, features=TEXT_FEATURES, cache_dir=str(cache_dir), fingerprint="pairs", keep_in_memory=False
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, XlsrError):  # a mistake that shows only further down the file
            raise error.__cause__ from None
        raise


def tokenize_pairs(pairs: Dataset, tokenizer: Any, *, max_length: int = 200) -> tuple[Dataset, dict[str, int]]:
    """Tokenises both sides, cut at `max_length` pieces.

    Args:
        pairs: From `store_pairs`.
        tokenizer: A fast tokenizer.
        max_length: Longest sentence kept whole, in pieces.

    Returns:
        The data set with `source_ids`, `target_ids`, `length` (of the longer side) and `group` (one number a language
        pair), and counts: `pairs`, `truncated_sides`, `pieces`.

    Raises:
        XlsrError: both sides of a pair are in one language.
    """
    groups = {key: number for number, key in enumerate(language_pairs(pairs))}
    counts = {"pairs": len(pairs), "truncated_sides": 0, "pieces": 0}

    def encode(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        result: dict[str, list[Any]] = {}
        for side in ("source", "target"):
            full = tokenizer(batch[side], add_special_tokens=True, return_attention_mask=False, verbose=False)
            counts["truncated_sides"] += sum(len(ids) > max_length for ids in full["input_ids"])
            result[f"{side}_ids"] = [ids[:max_length] for ids in full["input_ids"]]
        both = list(zip(result["source_ids"], result["target_ids"], strict=True))
        counts["pieces"] += sum(len(source) + len(target) for source, target in both)
        result["length"] = [max(len(source), len(target)) for source, target in both]
        result["group"] = [groups[key] for key in zip(batch["source_lang"], batch["target_lang"], strict=True)]
        return result

    ids = ListOf(Value("int32"))
    features = Features({"source_ids": ids, "target_ids": ids, "length": Value("int32"), "group": Value("int32")})
    tokenised = pairs.map(
        encode,
        batched=True,
        remove_columns=pairs.column_names,
        features=features,
        new_fingerprint="tokenised",
        load_from_cache_file=False,
        desc="tokenising",
    )
    return tokenised, counts


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

    Args:
        tokenised: From `tokenize_pairs`.

    Example:
        >>> rows = {"source_ids": [[4, 5]], "target_ids": [[6]], "length": [2], "group": [0]}
        >>> PreparedPairs(Dataset.from_dict(rows))[3, 0]["epoch"]
        3
    """

    def __init__(self, tokenised: Dataset) -> None:
        self.rows = tokenised.select_columns(["source_ids", "target_ids"]).with_format(None)
        columns = tokenised.select_columns(["length", "group"]).with_format("arrow")[:]
        self.lengths = np.asarray(columns["length"])
        self.groups = np.asarray(columns["group"])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, key: ExampleKey) -> dict[str, Any]:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
        batch = self.rows[[index for _, index in keys]]
        return [
            {"source_ids": source, "target_ids": target, "index": index, "epoch": epoch}
            for source, target, (epoch, index) in zip(batch["source_ids"], batch["target_ids"], keys, strict=True)
        ]
