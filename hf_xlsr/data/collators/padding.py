"""Truncation and padding of rows of token ids, and the collators that do nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hf_xlsr.losses.vocabulary import IGNORE


def truncate_row(ids: Sequence[int], max_length: int) -> Sequence[int]:
    """A row of at most `max_length` ids that keeps its last id."""
    return ids if len(ids) <= max_length else [*ids[: max_length - 1], ids[-1]]


def negatives_of(features: Sequence[Mapping[str, Any]], column: str = "negative_ids") -> list[Any]:
    """The hard negatives of all rows, row by row; rows may have any number of them."""
    return [negative for feature in features for negative in feature.get(column) or ()]


def pad_rows(
    rows: Sequence[Sequence[int]], pad_id: int, multiple_of: int = 1, limit: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Pads rows of ids on the right: ids and attention mask, both `(rows, length)`, int64.

    The rounded length is at most `limit`, unless a row is longer: an encoder may have no more positions.
    """
    lengths = np.array([len(row) for row in rows])
    longest = max(1, int(lengths.max(initial=1)))
    width = -(-longest // multiple_of) * multiple_of
    if limit is not None:
        width = max(longest, min(width, limit))
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    ids[mask.astype(bool)] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return ids, mask


class LabelledCollator:
    """Pads rows on the right, to a multiple of `pad_to_multiple_of` but at most `max_length` tokens.

    Returns:
        `input_ids`, `attention_mask` and, if the rows have them, `token_type_ids`, each `(batch, length)`, int64; if the
        rows have labels also `labels`, `(batch,)`, int64 for classes and float32 for scores.
    """

    def __init__(self, pad_id: int, *, max_length: int = 128, pad_to_multiple_of: int = 1) -> None:
        self.pad_id, self.max_length, self.pad_to_multiple_of = pad_id, max_length, pad_to_multiple_of

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        rounding = self.pad_to_multiple_of, self.max_length
        ids, mask = pad_rows([feature["input_ids"] for feature in features], self.pad_id, *rounding)
        batch = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        if "token_type_ids" in features[0]:
            types, _ = pad_rows([feature["token_type_ids"] for feature in features], 0, *rounding)
            batch["token_type_ids"] = torch.from_numpy(types)
        if "label" in features[0]:
            batch["labels"] = torch.tensor([feature["label"] for feature in features])
        return batch


class TranslationCollator:
    """Pads sources and targets of pairs, each side separately.

    Features are those of `PreparedPairs`, tokenised with a special token before and after each sentence. The first token
    of a target is not a label: the decoder starts with it.

    Returns:
        `input_ids` and `attention_mask`, `(batch, length)`; `labels`, `(batch, target length)`, -100 on padding; int64.
    """

    def __init__(self, pad_id: int, *, max_length: int = 128, pad_to_multiple_of: int = 1) -> None:
        self.pad_id, self.max_length, self.pad_to_multiple_of = pad_id, max_length, pad_to_multiple_of

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        sources, targets = (
            [truncate_row(feature[side], self.max_length) for feature in features]
            for side in ("source_ids", "target_ids")
        )
        ids, mask = pad_rows(sources, self.pad_id, self.pad_to_multiple_of, self.max_length)
        labels, _ = pad_rows([target[1:] for target in targets], IGNORE, self.pad_to_multiple_of, self.max_length)
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "labels": torch.from_numpy(labels),
        }
