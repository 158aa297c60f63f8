"""BERT's masking as a function of each example's coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np

from hf_xlsr.data.collators.counter_random import counter_uniform
from hf_xlsr.losses.masked_lm import IGNORE
from hf_xlsr.utils.errors import XlsrError


class MaskDrawer:
    """Chooses pieces to be predicted: most become the mask, some a random piece, some stay (80/10/10).

    Args:
        tokenizer: For the ids of the mask and of the pieces that may stand in.
        probability: Share of the pieces; at least one piece of each row that has any is chosen.
        seed: Seed of the run.
        exact: Choose just that share of each row's pieces, rounded, instead of each piece by its own draw.

    Raises:
        XlsrError: the tokenizer has no mask.
    """

    def __init__(self, tokenizer: Any, *, probability: float = 0.15, seed: int = 1, exact: bool = False) -> None:
        if tokenizer.mask_token_id is None:
            raise XlsrError("masking needs a tokenizer with a mask token. Take another.")
        self.mask_id = int(tokenizer.mask_token_id)
        self.ordinary = np.setdiff1d(np.arange(len(tokenizer)), tokenizer.all_special_ids)
        self.probability, self.seed, self.exact = probability, seed, exact

    def __call__(
        self, ids: np.ndarray, allowed: np.ndarray, epochs: np.ndarray, examples: np.ndarray, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Masks rows of ids.

        Args:
            ids: `(rows, length)`.
            allowed: Which of them may be chosen, `(rows, length)`, boolean.
            epochs: Epoch of each row, `(rows,)`.
            examples: Number of each row's example, `(rows,)`.
            positions: A number for each place, no two of them alike for one example and epoch; broadcasts to
                `(rows, length)`.

        Returns:
            The masked ids, and labels: the hidden piece where one was chosen, -100 elsewhere.
        """
        epoch, example = epochs[:, None], examples[:, None]
        first = np.asarray(positions) * 3  # three numbers a place, none shared
        draw = np.where(allowed, counter_uniform(self.seed, epoch, example, first), 2.0)
        if self.exact:
            wanted = np.rint(self.probability * allowed.sum(1)).clip(1)
            chosen = draw.argsort(1).argsort(1) < wanted[:, None]
        else:
            chosen = (draw < self.probability) | (draw == draw.min(1, keepdims=True))
        chosen &= allowed
        kind = counter_uniform(self.seed, epoch, example, first + 1)
        pick = counter_uniform(self.seed, epoch, example, first + 2)
        random_piece = self.ordinary[(pick * len(self.ordinary)).astype(np.int64)]
        masked = np.where(kind < 0.8, self.mask_id, np.where(kind < 0.9, random_piece, ids))
        return np.where(chosen, masked, ids), np.where(chosen, ids, IGNORE)
