"""Batches for hierarchical contrast: sentences alone, both together, and the language model's masked input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hf_xlsr.data.collators.masking import MaskDrawer, counter_uniform
from hf_xlsr.data.collators.padding import negatives_of, pad_rows, truncate_row
from hf_xlsr.utils.errors import XlsrError

# Draws of an example below this number order its tokens; those above choose masks.
_FIRST_MASK_DRAW = 4096


def join_sides(source: Sequence[int], target: Sequence[int], max_length: int) -> list[int]:
    """`[CLS] x [SEP] y [SEP]` of `[CLS] x [SEP]` and `[CLS] y [SEP]`.

    If both do not fit, tokens are removed one by one from the end of the longer one, before its last.
    """
    first, second = list(source), list(target[1:])
    surplus = len(first) + len(second) - max_length
    while surplus > 0 and max(len(first), len(second)) > 2:
        longer = first if len(first) >= len(second) else second
        longer.pop(-2)
        surplus -= 1
    return first + second


class HictlCollator:
    """Builds the inputs of `HictlForPreTraining` from pairs and single sentences (features with `text_ids`).

    Section 3.1: for a pair, y is the translation; for a single sentence it is x with its tokens in another order (the
    paper does not say how far they move; here all orders are equally likely). The language model sees
    `[CLS] x [SEP] y [SEP]` of a pair (TLM) and `[CLS] x [SEP]` of a single sentence (MLM), since the reordering would
    show the masked tokens. Everything random follows from seed, epoch and example.

    Args:
        tokenizer: Frames a sentence by a special token on each side.
        mlm_probability: Share of masked tokens, 80/10/10 as in BERT; special tokens are never masked.
        max_length: Sentences, and both together, are truncated to this many tokens.

    Returns:
        `input_ids` and `attention_mask`, `(2 * batch, length)`, all x and then all y; `lm_input_ids`,
        `lm_attention_mask` and `lm_labels`, `(batch, lm_length)`; and `joint_input_ids` and
        `joint_attention_mask`, both sentences unmasked, whose tokens are the bag of words, `(batch, joint_length)`. If
        rows have hard negatives (`negative_ids`), also `negative_input_ids` and `negative_attention_mask`,
        `(negatives, negative_length)`.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        mlm_probability: float = 0.15,
        seed: int = 1,
        max_length: int = 128,
        pad_to_multiple_of: int = 1,
    ) -> None:
        framed = tokenizer("a")["input_ids"]
        special = set(tokenizer.all_special_ids)
        if len(framed) < 3 or framed[0] not in special or framed[-1] not in special:
            raise XlsrError(
                "hierarchical contrast needs a tokenizer that puts special tokens around a sentence; set "
                "tokenizer.frame to true."
            )
        self.masks = MaskDrawer(tokenizer, probability=mlm_probability, seed=seed)
        self.special = np.array(sorted(special))
        self.pad_id, self.seed, self.max_length = tokenizer.pad_token_id, seed, max_length
        self.pad_to_multiple_of = pad_to_multiple_of

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        first, second, both, seen = [], [], [], []
        for feature in features:
            paired = "target_ids" in feature
            x = list(truncate_row(feature["source_ids"] if paired else feature["text_ids"], self.max_length))
            y = list(truncate_row(feature["target_ids"], self.max_length)) if paired else self._reordered(x, feature)
            first.append(x)
            second.append(y)
            both.append(join_sides(x, y, self.max_length))
            seen.append(both[-1] if paired else x)
        batch: dict[str, np.ndarray] = {}
        batch["input_ids"], batch["attention_mask"] = self._pad(first + second)
        batch["joint_input_ids"], batch["joint_attention_mask"] = self._pad(both)
        ids, batch["lm_attention_mask"] = self._pad(seen)
        allowed = (batch["lm_attention_mask"] == 1) & ~np.isin(ids, self.special)
        numbers = {name: np.array([feature[name] for feature in features]) for name in ("epoch", "index")}
        batch["lm_input_ids"], batch["lm_labels"] = self.masks(
            ids, allowed, numbers["epoch"], numbers["index"], _FIRST_MASK_DRAW + np.arange(ids.shape[1])[None, :]
        )
        if negatives := [truncate_row(ids, self.max_length) for ids in negatives_of(features)]:
            batch["negative_input_ids"], batch["negative_attention_mask"] = self._pad(negatives)
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def _pad(self, rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        return pad_rows(rows, self.pad_id, self.pad_to_multiple_of, self.max_length)

    def _reordered(self, ids: list[int], feature: dict[str, Any]) -> list[int]:
        """The tokens between the special ones in an order that depends on the example and the epoch."""
        inner = np.array(ids[1:-1])
        draws = counter_uniform(self.seed, feature["epoch"], np.array(feature["index"]), np.arange(len(inner)))
        return [ids[0], *inner[np.argsort(draws)].tolist(), ids[-1]]
