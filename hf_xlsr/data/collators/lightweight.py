"""Batches of translation pairs with masks for the lightweight model's generative tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hf_xlsr.data.collators.masking import MaskDrawer, counter_uniform, mask_token_id
from hf_xlsr.data.collators.padding import negatives_of, pad_rows, truncate_row
from hf_xlsr.data.tokenization import punctuation_ids
from hf_xlsr.losses.vocabulary import IGNORE
from hf_xlsr.utils.errors import require_choice

MASKINGS = ("none", "single", "mlm")


class PairCollator:
    """Stacks the sources of a batch over its targets and masks them for the generative task.

    Features need `source_ids`, `target_ids`, `index` and `epoch`; with `identities` also `source_text` and `target_text`.

    Args:
        masking: `none`; `single`, one token on one side of each pair (SMLM, UGT); or `mlm`, 15 % of the tokens of both
            sides, at least one of each, 80 % of them replaced by `<mask>`, 10 % by a random token, 10 % kept.
        mask_punctuation: Whether `single` may mask punctuation, which it always does in a sentence of nothing else. The
            special tokens around a sentence are only masked if there are no others.
        max_length: Sentences are truncated to this many tokens; a special last token is kept.
        pad_to_multiple_of: Rounds the length up; 8 suits tensor cores.

    Returns:
        `input_ids`, `attention_mask`, `original_ids`, each `(2 * batch, length)`; with `single` also `masked_ids`
        `(2 * batch,)`, with `mlm` also `mlm_labels` `(2 * batch, length)`; -100 where nothing is masked. If rows have
        hard negatives (`negative_ids`), also `negative_input_ids` and `negative_attention_mask`, `(negatives, length)`,
        unmasked. With `identities` also `identities` `(2, batch)`. The text `source` of the rows, if they have it, is
        `source_texts`, a list.

    Examples:
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> tokenizer = train_tokenizer(["the cat sat", "le chat dort"] * 50, vocab_size=20, algorithm="bpe")
        >>> pair = {"source_ids": [5, 6, 7], "target_ids": [8, 9], "index": 0, "epoch": 0}
        >>> batch = PairCollator(tokenizer, masking="single")([pair])
        >>> batch["input_ids"].shape, int((batch["masked_ids"] != -100).sum())
        (torch.Size([2, 3]), 1)
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        masking: str = "single",
        mask_punctuation: bool = False,
        mlm_probability: float = 0.15,
        seed: int = 1,
        max_length: int = 200,
        pad_to_multiple_of: int = 1,
        identities: bool = False,
    ) -> None:
        require_choice("masking", masking, MASKINGS)
        self.pad_id, self.vocab_size = tokenizer.pad_token_id, len(tokenizer)
        self.mask_id = None if masking == "none" else mask_token_id(tokenizer)
        self.masking, self.seed = masking, seed
        self.max_length, self.pad_to_multiple_of, self.identities = max_length, pad_to_multiple_of, identities
        # The unknown token represents text, the other special tokens frame it.
        self.around = np.isin(
            np.arange(self.vocab_size), list({*tokenizer.all_special_ids} - {tokenizer.unk_token_id})
        )
        self.avoided = self.around if mask_punctuation else punctuation_ids(tokenizer)
        if masking == "mlm":
            self.masks = MaskDrawer(tokenizer, probability=mlm_probability, seed=seed)

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, Any]:
        sides = [self._truncate(feature[side]) for side in ("source_ids", "target_ids") for feature in features]
        ids, mask = pad_rows(sides, self.pad_id, self.pad_to_multiple_of, self.max_length)
        examples = np.array([feature["index"] for feature in features])
        epochs = np.array([feature["epoch"] for feature in features])
        batch = {"original_ids": ids, "attention_mask": mask, "input_ids": ids}
        if self.masking == "single":
            batch["input_ids"], batch["masked_ids"] = self._mask_single(ids, mask, epochs, examples)
        elif self.masking == "mlm":
            batch["input_ids"], batch["mlm_labels"] = self._mask_many(ids, mask, epochs, examples)
        if negatives := [self._truncate(ids) for ids in negatives_of(features)]:
            rows = pad_rows(negatives, self.pad_id, self.pad_to_multiple_of, self.max_length)
            batch["negative_input_ids"], batch["negative_attention_mask"] = rows
        if self.identities:
            both = ("source_text", "target_text")
            batch["identities"] = np.array([[feature[name] for feature in features] for name in both])
        texts = {"source_texts": [feature["source"] for feature in features]} if "source" in features[0] else {}
        return {**{name: torch.from_numpy(array) for name, array in batch.items()}, **texts}

    def _truncate(self, ids: Sequence[int]) -> Sequence[int]:
        ends = len(ids) > 0 and self.around[ids[-1]]
        return truncate_row(ids, self.max_length) if ends else ids[: self.max_length]

    def _mask_single(
        self, ids: np.ndarray, mask: np.ndarray, epochs: np.ndarray, examples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Masks one token on one side of each pair, side and position drawn uniformly."""
        pairs = len(examples)
        side = counter_uniform(self.seed, epochs, examples, 0) < 0.5
        rows = np.arange(pairs) + np.where(side, 0, pairs)
        there = mask[rows] == 1
        candidates = there & ~self.avoided[ids[rows]]
        for more in (there & ~self.around[ids[rows]], there):
            candidates = np.where(candidates.any(1, keepdims=True), candidates, more)
        counts = candidates.sum(1)
        chosen = (counter_uniform(self.seed, epochs, examples, 1) * counts).astype(np.int64)
        column = (candidates.cumsum(1) == (chosen + 1)[:, None]).argmax(1)
        hidden = np.full(len(ids), IGNORE, dtype=np.int64)
        hidden[rows] = ids[rows, column]
        masked = ids.copy()
        masked[rows, column] = self.mask_id
        return masked, hidden

    def _mask_many(
        self, ids: np.ndarray, mask: np.ndarray, epochs: np.ndarray, examples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """BERT's masking of both sides."""
        rows, width = ids.shape
        side = np.repeat([0, 1], rows // 2)[:, None]
        # The first two draws of an example belong to `single`.
        position = 2 + np.arange(width)[None, :] * 2 + side
        allowed = (mask == 1) & ~self.around[ids]
        return self.masks(ids, allowed, np.tile(epochs, 2), np.tile(examples, 2), position)
