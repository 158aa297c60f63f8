"""Cosine similarities of sentence embeddings and the vocabulary."""

from __future__ import annotations

import torch

from hf_xlsr.losses.sentence_contrast import row_lengths
from hf_xlsr.utils.pooling import normalize


def word_similarities(queries: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Cosine of each sentence embedding and each row of the embedding table, with gradient to both.

    The products are divided by the rows' lengths, which avoids a normalised copy of a large table. A row of zeros, such
    as padding in a new table, has similarity 0.

    Args:
        queries: Sentence embeddings, `(batch, width)`.
        table: Word embeddings, `(vocabulary, width)`.

    Returns:
        `(batch, vocabulary)`, between -1 and 1.

    Examples:
        >>> word_similarities(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0], [0.0, 5.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000, 0.0000]])
    """
    return normalize(queries).to(table.dtype) @ table.T / row_lengths(table)
