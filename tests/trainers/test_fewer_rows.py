"""Trainings that compare no rows use every row, also fewer than a batch; those that compare rows need a full batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import make_pairs
from seven_trainers import KINDS, documents, labelled_rows, trainer_of

from hf_xlsr.utils.errors import XlsrError

COMPARING_NOTHING = ("FineTune", "Translation")


def distinct_rows(kind: str, count: int) -> Any:
    if kind == "FineTune":
        return labelled_rows(count)
    return documents(count) if kind == "Cmlm" else make_pairs(count)


@pytest.mark.parametrize("count", [10, 63])
@pytest.mark.parametrize("kind", [*COMPARING_NOTHING, "Cmlm"])  # of which only running text is given
def test_every_row_is_trained_on_once_an_epoch(kind: str, count: int, tmp_path: Path) -> None:
    settings = {"per_device_train_batch_size": 32, "max_steps": -1, "num_train_epochs": 2}
    trainer = trainer_of(kind, tmp_path, rows=distinct_rows(kind, count), settings=settings)
    collate = trainer.data_collator
    expected = [*range(len(trainer.train_dataset))] * 2
    seen: list[int] = []

    def watch(features: list[dict[str, Any]]) -> Any:
        seen.extend(feature["index"] for feature in features)
        return collate(features)

    trainer.data_collator = watch
    trainer.train()
    assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in (*COMPARING_NOTHING, "Cmlm")])
def test_fewer_pairs_than_a_batch_are_refused_where_they_are_compared(kind: str, tmp_path: Path) -> None:
    settings = {"per_device_train_batch_size": 32}
    with pytest.raises(XlsrError, match="per_device_train_batch_size"):
        trainer_of(kind, tmp_path, rows=distinct_rows(kind, 10), settings=settings).train()
