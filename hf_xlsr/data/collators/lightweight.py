"""Batches of tokenised examples, masked by the coordinates of each example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hf_xlsr.data.collators.counter_random import counter_uniform
from hf_xlsr.data.collators.masking import MaskDrawer
from hf_xlsr.data.tokenization import punctuation_ids
from hf_xlsr.losses.masked_lm import IGNORE
from hf_xlsr.utils.errors import XlsrError

MASKINGS = ("none", "single", "mlm")


def cut_row(ids: Sequence[int], max_length: int) -> Sequence[int]:
    """A row of ids of at most `max_length`, which keeps its last one.

    Example:
        >>> cut_row([101, 7, 8, 9, 102], 3)
        [101, 7, 102]
    """
    return ids if len(ids) <= max_length else [*ids[: max_length - 1], ids[-1]]


def pad_rows(
    rows: Sequence[Sequence[int]], pad_id: int, multiple_of: int = 1, limit: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Pads rows of ids on the right: ids and attention mask, both `(rows, length)`, int64.

    Args:
        rows: Of ids.
        pad_id: What stands behind them.
        multiple_of: Rounds the length up.
        limit: But not above this one, where no row is longer: an encoder may have no position there.

    Example:
        >>> pad_rows([[5, 6], [7]], 0)[0].tolist()
        [[5, 6], [7, 0]]
        >>> pad_rows([[5, 6]], 0, multiple_of=4, limit=3)[0].tolist()
        [[5, 6, 0]]
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


class PairCollator:
    """Stacks the sources of a batch over its targets and masks them for the generative task.

    Features need `source_ids`, `target_ids` (lists of piece ids), `index` and `epoch`.

    Args:
        tokenizer: For the ids of padding and mask, and for which pieces are punctuation.
        masking: `none`; `single`, one piece on one side of each pair (SMLM, UGT); or `mlm`, 15 % of the pieces of both
            sides, 80 % of them replaced by `<mask>`, 10 % by a random piece, 10 % kept.
        mask_punctuation: Whether `single` may hide punctuation. A sentence of nothing else has no choice. The special
            pieces around a sentence are never hidden where it has others.
        mlm_probability: Share for `mlm`; at least one piece of each sentence is masked.
        seed: Seed of the run.
        max_length: Sentences are cut here; a last piece that is a special one stays.
        pad_to_multiple_of: Rounds the length up; 8 suits the matrix units of GPUs.

    Returns:
        `input_ids`, `attention_mask`, `original_ids`, each `(2 * batch, length)`; with `single` also `masked_ids`
        `(2 * batch,)`, with `mlm` also `mlm_labels` `(2 * batch, length)`; -100 where nothing was hidden.

    Example:
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
    ) -> None:
        if masking not in MASKINGS:
            raise ValueError(f"masking is '{masking}'; use one of {', '.join(MASKINGS)}.")
        self.pad_id, self.mask_id, self.vocab_size = tokenizer.pad_token_id, tokenizer.mask_token_id, len(tokenizer)
        if masking != "none" and self.mask_id is None:
            raise XlsrError(f"masking '{masking}' needs a tokenizer with a mask token. Take another.")
        self.masking, self.seed = masking, seed
        self.max_length, self.pad_to_multiple_of = max_length, pad_to_multiple_of
        # A piece that is unknown stands for text, the other special ones around it.
        self.around = np.isin(
            np.arange(self.vocab_size), list({*tokenizer.all_special_ids} - {tokenizer.unk_token_id})
        )
        self.avoided = self.around if mask_punctuation else punctuation_ids(tokenizer)
        if masking == "mlm":
            self.masks = MaskDrawer(tokenizer, probability=mlm_probability, seed=seed)

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        sides = [self._cut(feature[side]) for side in ("source_ids", "target_ids") for feature in features]
        ids, mask = pad_rows(sides, self.pad_id, self.pad_to_multiple_of, self.max_length)
        examples = np.array([feature["index"] for feature in features])
        epochs = np.array([feature["epoch"] for feature in features])
        batch = {"original_ids": ids, "attention_mask": mask, "input_ids": ids}
        if self.masking == "single":
            batch["input_ids"], batch["masked_ids"] = self._mask_single(ids, mask, epochs, examples)
        elif self.masking == "mlm":
            batch["input_ids"], batch["mlm_labels"] = self._mask_many(ids, mask, epochs, examples)
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def _cut(self, ids: Sequence[int]) -> Sequence[int]:
        ends = len(ids) > 0 and self.around[ids[-1]]
        return cut_row(ids, self.max_length) if ends else ids[: self.max_length]

    def _mask_single(
        self, ids: np.ndarray, mask: np.ndarray, epochs: np.ndarray, examples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Hides one piece on one side of each pair, side and position drawn uniformly."""
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
        """BERT's masking, of the pieces of both sides."""
        rows, width = ids.shape
        side = np.repeat([0, 1], rows // 2)[:, None]
        # The first two draws of an example belong to `single`.
        position = 2 + np.arange(width)[None, :] * 2 + side
        allowed = (mask == 1) & ~self.around[ids]
        return self.masks(ids, allowed, np.tile(epochs, 2), np.tile(examples, 2), position)
