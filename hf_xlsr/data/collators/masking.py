"""BERT's masking as a function of each example's coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np

from hf_xlsr.data.collators.counter_random import counter_uniform
from hf_xlsr.losses.masked_lm import IGNORE
from hf_xlsr.utils.errors import XlsrError


class MaskDrawer:
    """Selects tokens to predict: 80 % become the mask token, 10 % a random token, 10 % are kept.

    Args:
        tokenizer: Gives the ids of the mask token and of ordinary tokens.
        probability: Share of the tokens; at least one token of each row that has any is selected.
        seed: Seed of the run.
        exact: Select exactly that share of each row's tokens, rounded, instead of each token by its own draw.

    Raises:
        XlsrError: the tokenizer has no mask token.
    """

    def __init__(self, tokenizer: Any, *, probability: float = 0.15, seed: int = 1, exact: bool = False) -> None:
        if tokenizer.mask_token_id is None:
            raise XlsrError("masking needs a tokenizer with a mask token.")
        self.mask_id = int(tokenizer.mask_token_id)
        self.ordinary = np.setdiff1d(np.arange(len(tokenizer)), tokenizer.all_special_ids)
        self.probability, self.seed, self.exact = probability, seed, exact

    def __call__(
        self, ids: np.ndarray, allowed: np.ndarray, epochs: np.ndarray, examples: np.ndarray, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Masks rows of ids.

        Args:
            ids: `(rows, length)`.
            allowed: Which of them may be selected, `(rows, length)`, boolean.
            epochs: Epoch of each row, `(rows,)`.
            examples: Number of each row's example, `(rows,)`.
            positions: A number per position, unique for one example and epoch; broadcasts to `(rows, length)`.

        Returns:
            The masked ids, and labels: the original token where one is selected, -100 elsewhere.
        """
        epoch, example = epochs[:, None], examples[:, None]
        first = np.asarray(positions) * 3  # three numbers per position, none shared
        draw = np.where(allowed, counter_uniform(self.seed, epoch, example, first), 2.0)
        if self.exact:
            wanted = np.rint(self.probability * allowed.sum(1)).clip(1)
            chosen = draw.argsort(1).argsort(1) < wanted[:, None]
        else:
            chosen = (draw < self.probability) | (draw == draw.min(1, keepdims=True))
        chosen &= allowed
        kind = counter_uniform(self.seed, epoch, example, first + 1)
        pick = counter_uniform(self.seed, epoch, example, first + 2)
        random_token = self.ordinary[(pick * len(self.ordinary)).astype(np.int64)]
        masked = np.where(kind < 0.8, self.mask_id, np.where(kind < 0.9, random_token, ids))
        return np.where(chosen, masked, ids), np.where(chosen, ids, IGNORE)
