"""Batches of labelled rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hf_xlsr.data.collators.padding import pad_rows


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
