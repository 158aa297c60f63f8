"""Vectors, sentences and bags of words of a tiny vocabulary, shared by tests."""

from __future__ import annotations

from typing import Any

import torch

from hf_xlsr.losses import bags_of_words, draw_negative_words

VOCABULARY, WIDTH, BATCH, COUNT, SPECIAL = 40, 6, 5, 7, [0, 1, 2, 39]


def vectors(dtype: torch.dtype = torch.float64, seed: int = 0) -> list[torch.Tensor]:
    """Queries and embeddings."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64).to(dtype) for rows in (BATCH, VOCABULARY)
    ]


def sentences(seed: int = 1) -> torch.Tensor:
    """Pieces of each row, with words that come twice; row 3 holds none."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY - 1, (BATCH, 9), generator=generator)
    ids[:, 0], ids[:, 5], ids[:, 8] = 0, 2, 2
    ids[:, 3] = ids[:, 1]
    ids[1, 6:] = 1
    ids[3, 1:] = 1
    return ids


def own_words(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    ids = sentences(seed)
    return bags_of_words(ids, (ids != 1).long(), SPECIAL)


def draw(queries: torch.Tensor, embeddings: torch.Tensor, seed: int = 0, **options: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    options = {"count": COUNT, "special_ids": SPECIAL, "chunk_size": 11} | options
    bags = options.pop("bags", None) or own_words()
    return draw_negative_words(queries, embeddings, bags, generator=generator, **options)


MANY, WIDE, HELD = 3000, 16, 12  # of a problem whose memory is looked at


def large_problem() -> tuple[list[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    inputs = [torch.randn(HELD, WIDE).requires_grad_(), torch.randn(MANY, WIDE).requires_grad_()]
    ids = torch.randint(3, MANY, (HELD, 10))
    return inputs, bags_of_words(ids, torch.ones_like(ids), [0, 1, 2])
