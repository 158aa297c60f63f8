"""Batches for conditional masked language modelling: a sentence, and its masked neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hf_xlsr.data.collators.masking import MaskDrawer, counter_uniform
from hf_xlsr.data.collators.padding import pad_rows, truncate_row
from hf_xlsr.utils.errors import XlsrError


class CmlmCollator:
    """Builds the inputs of `CmlmModel` from consecutive sentences: a sentence, and its masked neighbour.

    Features are those of `PreparedRunningText`. Half of the pairs are swapped, so that a sentence is predicted from the
    one before it or from the one after it (section 3).

    Args:
        mlm_probability: Share of the second sentence's tokens that are masked, exact but for rounding, at least one;
            80/10/10 as in BERT. Special tokens are never masked.
        seed: Determines order and masks, together with example and epoch.
        max_length: Sentences are truncated to this many tokens; the last token is kept.

    Returns:
        `first_input_ids`, `first_attention_mask`, `(batch, length)`; `second_input_ids`, `second_attention_mask` and
        `labels`, `(batch, second_length)`, -100 where nothing is masked; all int64.

    Examples:
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> tokenizer = train_tokenizer(["the cat sat", "the dog ran"] * 50, vocab_size=20, algorithm="bpe")
        >>> pair = {"first_ids": [5, 6], "second_ids": [7, 8, 9, 10], "index": 0, "epoch": 0}
        >>> batch = CmlmCollator(tokenizer, mlm_probability=0.5)([pair])
        >>> int((batch["labels"] != -100).sum()) in (1, 2)  # half of either side
        True
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        mlm_probability: float = 80 / 256,
        seed: int = 1,
        max_length: int = 256,
        pad_to_multiple_of: int = 1,
    ) -> None:
        self.masks = MaskDrawer(tokenizer, probability=mlm_probability, seed=seed, exact=True)
        self.special = np.array(sorted(tokenizer.all_special_ids))
        self.pad_id, self.seed, self.max_length = tokenizer.pad_token_id, seed, max_length
        self.pad_to_multiple_of = pad_to_multiple_of

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        epochs, examples = (np.array([feature[name] for feature in features]) for name in ("epoch", "index"))
        turned = counter_uniform(self.seed, epochs, examples, 0) < 0.5
        sides = [
            (feature["second_ids"], feature["first_ids"]) if turn else (feature["first_ids"], feature["second_ids"])
            for feature, turn in zip(features, turned, strict=True)
        ]
        batch: dict[str, np.ndarray] = {}
        for place, name in enumerate(("first", "second")):
            rows = [truncate_row(pair[place], self.max_length) for pair in sides]
            batch[f"{name}_input_ids"], batch[f"{name}_attention_mask"] = pad_rows(
                rows, self.pad_id, self.pad_to_multiple_of, self.max_length
            )
        ids = batch["second_input_ids"]
        allowed = (batch["second_attention_mask"] == 1) & ~np.isin(ids, self.special)
        if not allowed.any():
            raise XlsrError(
                "no token of a batch can be masked: all are special tokens. Check that the tokenizer supports the script "
                "of data.text."
            )
        # The first draw of an example is its order; three draws per position follow.
        positions = 1 + np.arange(ids.shape[1])[None, :]
        batch["second_input_ids"], batch["labels"] = self.masks(ids, allowed, epochs, examples, positions)
        return {name: torch.from_numpy(array) for name, array in batch.items()}
