"""Removal of evaluation texts from training data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, compress
from typing import Any, ClassVar

from hf_xlsr.data.cleaning.steps import Step, texts_of
from hf_xlsr.data.columns import Row
from hf_xlsr.data.normalization import match_key
from hf_xlsr.data.seen import SeenHashes


def evaluation_keys(rows: Iterable[Mapping[str, Any]]) -> SeenHashes:
    """The match keys of all text columns of evaluation rows, for `RemoveEvaluation`."""
    texts = chain.from_iterable(map(texts_of, rows))
    return SeenHashes(filter(None, map(match_key, texts)))


class RemoveEvaluation(Step):
    """Removes rows with a side that occurs, by `match_key`, in an evaluation set: texts, or their `evaluation_keys`."""

    name: ClassVar[str] = "remove_evaluation"

    def __init__(self, texts: Iterable[str] | SeenHashes) -> None:
        if not isinstance(texts, SeenHashes):
            texts = evaluation_keys({"text": text} for text in texts)
        self._keys = texts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._keys.digest()})"

    def apply(self, rows: list[Row]) -> list[Row | None]:
        keys_by_row = [list(map(match_key, texts_of(row))) for row in rows]
        keys = list(chain.from_iterable(keys_by_row))
        # An empty key never counts, even if the given set of keys contains one.
        held_out_keys = set(compress(keys, self._keys.contains_many(keys))) - {""}

        results: list[Row | None] = []
        for row, row_keys in zip(rows, keys_by_row, strict=True):
            is_training = held_out_keys.isdisjoint(row_keys)
            results.append(row if is_training else None)
        return results


class RemoveEvaluationRows(RemoveEvaluation):
    """Removes rows whose `row_text` is among the evaluation texts, or one of whose texts is."""

    def apply(self, rows: list[Row]) -> list[Row | None]:
        """Held-out sources are removed text by text, evaluation sets row by row."""
        results = super().apply([{**row, "text": row_text(row)} for row in rows])
        for number, row in enumerate(rows):
            if results[number] is not None:
                results[number] = row
        return results


def row_text(row: Mapping[str, Any]) -> str:
    """The texts of a labelled row joined by a tab."""
    return "\t".join(texts_of(row))
