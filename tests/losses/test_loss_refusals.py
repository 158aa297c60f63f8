"""Invalid arguments of losses: each error names the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hf_xlsr.losses import (
    additive_margin_loss,
    bags_of_words,
    draw_negative_words,
    generative_labels,
    matryoshka_mean,
    queue_info_nce,
    sentence_contrast_loss,
    similarity_loss,
    weighted_sum,
    word_contrast_loss,
)
from hf_xlsr.losses.biased_cross_entropy import biased_cross_entropy
from hf_xlsr.losses.sparse_targets import sparse_target_cross_entropy
from hf_xlsr.utils.errors import XlsrError

EYE = torch.eye(3, 4)
IDS = torch.tensor([[0, 5, 6, 2]] * 3)
BAGS = bags_of_words(IDS, torch.ones_like(IDS), [0, 1, 2])
TABLE = torch.eye(8, 4)


def queue(**changes: Any) -> Any:
    given: dict[str, Any] = {"queries": EYE, "positive_keys": EYE, "queue": torch.eye(5, 4), **changes}
    return queue_info_nce(**given)


def masked(rows: list[int], columns: list[int]) -> Any:
    return queue(masked=(torch.tensor(rows), torch.tensor(columns)))


def draw(**changes: Any) -> Any:
    given: dict[str, Any] = {"special_ids": [0, 1, 2], "count": 3, **changes}
    return draw_negative_words(EYE, TABLE, BAGS, **given)


def words(negatives: int = 3, **options: Any) -> Any:
    return word_contrast_loss(EYE, TABLE, BAGS, torch.zeros(negatives, 2, dtype=torch.long), **options)


def biased(**options: Any) -> Any:
    labels = torch.zeros(2, 3, dtype=torch.long)
    return biased_cross_entropy(torch.zeros(2, 3, 4), labels, torch.zeros(9, 4), torch.zeros(9), **options)


def sparse(**options: Any) -> Any:
    ids, mass = torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1)
    hidden, weight, bias = torch.zeros(2, 4), torch.zeros(9, 4), torch.zeros(9)
    return sparse_target_cross_entropy(hidden, weight, bias, ids, mass, torch.ones(2), **options)


def labels(**options: Any) -> Any:
    return generative_labels(IDS[:2], torch.ones(2, 4), torch.tensor([5, -100]), **options)


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: weighted_sum({}, {"a": 1.0}), "weight"),
        (lambda: additive_margin_loss(EYE, EYE[:1]), "target"),
        (lambda: additive_margin_loss(EYE[:1], EYE[:1]), "2 rows"),
        (lambda: sentence_contrast_loss(EYE, EYE[:2]), "target"),
        (lambda: sentence_contrast_loss(EYE, EYE[:, :3]), "target"),
        (lambda: sentence_contrast_loss(EYE[:1], EYE[:1]), "2 rows"),
        *(
            (lambda value=value: sentence_contrast_loss(EYE, EYE, temperature=value), "temperature")
            for value in (0, -1)
        ),
        *((lambda value=value: queue(temperature=value), "temperature") for value in (0.0, -1.0, math.nan, math.inf)),
        *(
            (lambda dims=dims: matryoshka_mean(similarity_loss, dims, EYE, EYE), "matryoshka_dims")
            for dims in ([2, 5], [0])
        ),
        (lambda: similarity_loss(EYE, EYE, reduction="mean"), "reduction"),
        (lambda: biased(label_smoothing=1.0), "label_smoothing"),
        (lambda: biased(chunk_size=0), "chunk_size"),
        (lambda: sparse(chunk_size=-1), "chunk_size"),
        (lambda: queue(chunk_size=0), "chunk_size"),
        (lambda: labels(task="mlm"), "task"),
        (lambda: labels(label_mode="add"), "label_mode"),
        (lambda: labels(label_mode="set"), "mask_token_id"),
        (lambda: draw(count=4), "count"),
        (lambda: draw(temperature=math.nan), "temperature"),
        (lambda: words(negatives=2), "negatives"),
        (lambda: words(temperature=-0.5), "temperature"),
        (lambda: queue(precision="bfloat"), "bfloat16"),
        (lambda: queue(positive_keys=EYE[:1]), "positive_keys"),
        (lambda: queue(queue=torch.ones(5, 4, dtype=torch.int8)), "queue"),
        (lambda: masked([3], [0]), "query"),
        (lambda: masked([0], [5]), "column"),
        (lambda: masked([0], [-1]), "column"),
    ],
)
def test_invalid_argument(call: Callable[[], Any], key: str) -> None:
    with pytest.raises(XlsrError, match=key):
        call()
