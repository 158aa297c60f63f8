"""BERT's masking, drawn from random numbers that are a function of (seed, epoch, example, draw).

A resumed run thus masks exactly what the uninterrupted run masks, with any number of worker processes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hf_xlsr.losses.cross_entropy import IGNORE
from hf_xlsr.utils.errors import XlsrError

_ONE = np.uint64(1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Shifts and factors of SplitMix64.
_MIXING = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)


def _mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64."""
    for shift, factor in _MIXING:
        values = (values ^ (values >> shift)) * factor
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def counter_uniform(
    seed: int,
    epochs: np.ndarray | int,
    examples: np.ndarray,
    draw: np.ndarray | int = 0,
) -> np.ndarray:
    """Uniform numbers in [0, 1), one per element of the broadcast arguments, float64."""
    first = np.uint64(seed & 0xFFFFFFFFFFFFFFFF)
    with np.errstate(over="ignore"):
        state = _mix(first * _GOLDEN + _ONE)
        for number in (epochs, examples, draw):
            counter = np.asarray(number).astype(np.uint64)
            state = _mix((state + counter + _ONE) * _GOLDEN)

    bits = state >> np.uint64(11)
    uniform: np.ndarray = bits.astype(np.float64) / float(1 << 53)
    return uniform


def mask_token_id(tokenizer: Any) -> int:
    """The id of the mask token; an error if the tokenizer has none."""
    if tokenizer.mask_token_id is None:
        raise XlsrError("masking needs a tokenizer with a mask token.")
    return int(tokenizer.mask_token_id)


class MaskDrawer:
    """Selects tokens to predict: 80 % become the mask token, 10 % a random token, 10 % are kept.

    At least one token of each row is selected; with `exact`, that share of each row's tokens, rounded, instead of each
    token by its own draw.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        probability: float = 0.15,
        seed: int = 1,
        exact: bool = False,
    ) -> None:
        self.mask_id = mask_token_id(tokenizer)
        self.special = np.array(sorted(tokenizer.all_special_ids))
        self.ordinary = np.setdiff1d(np.arange(len(tokenizer)), self.special)
        self.probability = probability
        self.seed = seed
        self.exact = exact

    def __call__(
        self,
        ids: np.ndarray,
        allowed: np.ndarray,
        epochs: np.ndarray,
        examples: np.ndarray,
        positions: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The masked ids, and labels: the original token where one is selected, -100 elsewhere; both `(rows, length)`.

        `positions` broadcast to `(rows, length)`: a number per position, unique for one example and epoch.
        """
        uniform = partial(counter_uniform, self.seed, epochs[:, None], examples[:, None])
        first = np.asarray(positions) * 3  # three numbers per position, none shared

        draws = np.where(allowed, uniform(first), 2.0)
        if self.exact:
            num_selected = np.rint(self.probability * allowed.sum(1)).clip(1)
            ranks = draws.argsort(1).argsort(1)
            selected = ranks < num_selected[:, None]
        else:
            is_lowest = draws == draws.min(1, keepdims=True)
            selected = is_lowest | (draws < self.probability)
        selected &= allowed

        kind = uniform(first + 1)
        random_index = (uniform(first + 2) * len(self.ordinary)).astype(np.int64)
        random_tokens = self.ordinary[random_index]
        masked = np.where(kind < 0.9, random_tokens, ids)
        masked[kind < 0.8] = self.mask_id

        masked_ids = np.where(selected, masked, ids)
        labels = np.where(selected, ids, IGNORE)
        return masked_ids, labels
