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
    matryoshka_mean,
    queue_info_nce,
    sentence_contrast_loss,
    similarity_loss,
    teacher_loss,
    weighted_sum,
)
from hf_xlsr.modeling.lightweight.labels import generative_labels
from hf_xlsr.utils.errors import XlsrError

EYE = torch.eye(3, 4)
IDS = torch.tensor([[0, 5, 6, 2]] * 3)
BAGS = bags_of_words(IDS, torch.ones_like(IDS), [0, 1, 2])
TABLE = torch.eye(8, 4)


def queue(**changes: Any) -> Any:
    arguments: dict[str, Any] = {"queries": EYE, "positive_keys": EYE, "queue": torch.eye(5, 4)}
    return queue_info_nce(**(arguments | changes))


def labels(**options: Any) -> Any:
    return generative_labels(IDS[:2], torch.ones(2, 4), torch.tensor([5, -100]), **options)


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: weighted_sum({}, {"a": 1.0}), "weight"),
        (lambda: additive_margin_loss(EYE, EYE[:1]), "target"),
        (lambda: sentence_contrast_loss(EYE, EYE[:, :3]), "target"),
        (lambda: queue(temperature=-1.0), "temperature"),
        (lambda: queue(temperature=math.nan), "temperature"),
        (lambda: queue(temperature=math.inf), "temperature"),
        (lambda: matryoshka_mean(similarity_loss, [2, 5], EYE, EYE), "matryoshka_dims"),
        (lambda: teacher_loss(EYE, EYE, kind="l1"), "kind"),
        (lambda: similarity_loss(EYE, EYE, reduction="mean"), "reduction"),
        (lambda: labels(task="mlm"), "task"),
        (lambda: labels(label_mode="set"), "mask_token_id"),
        (lambda: draw_negative_words(EYE, TABLE, BAGS, special_ids=[0, 1, 2], count=4), "count"),
        (lambda: queue(positive_keys=EYE[:1]), "positive_keys"),
    ],
)
def test_invalid_argument(call: Callable[[], Any], key: str) -> None:
    with pytest.raises(XlsrError, match=key):
        call()
