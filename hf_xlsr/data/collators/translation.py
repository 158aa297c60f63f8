"""Batches of translation: sources to read, targets to predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hf_xlsr.data.collators.padding import pad_rows, truncate_row
from hf_xlsr.losses.masked_lm import IGNORE


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
