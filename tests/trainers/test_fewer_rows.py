"""Trainings that compare no rows use every row, also fewer than a batch; those that compare rows need a full batch."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from seven_trainers import KINDS, distinct_rows, trainer_of

from hf_xlsr.utils.errors import XlsrError

COMPARING_NOTHING = ("FineTune", "Translation")


def streamed(rows: list[dict[str, Any]]) -> Any:
    return Dataset.from_list(rows).to_iterable_dataset()


@pytest.mark.sample(3)
@pytest.mark.parametrize("count", [10, 63])
@pytest.mark.parametrize(
    ("kind", "form"),
    [*product(COMPARING_NOTHING, (list, streamed)), ("Cmlm", list)],  # of which only running text is given
)
def test_every_row_is_trained_on_once_an_epoch(kind: str, count: int, form: Any, tmp_path: Path) -> None:
    settings = {"per_device_train_batch_size": 32, "max_steps": 2 * -(-count // 32)}
    trainer = trainer_of(kind, tmp_path, rows=form(distinct_rows(kind, count)), settings=settings)
    collate = trainer.data_collator
    seen: list[int] = []

    def watch(features: list[dict[str, Any]]) -> Any:
        seen.extend(feature["index"] for feature in features)
        return collate(features)

    trainer.data_collator = watch
    trainer.train()
    assert set(Counter(seen).values()) == {2}
    if kind != "Cmlm":  # whose rows are pairs of sentences
        assert len(seen) == 2 * count


def test_sentences_of_a_stream_are_fewer_than_a_batch(tmp_path: Path) -> None:
    settings = {"per_device_train_batch_size": 32}
    trainer = trainer_of("Cmlm", tmp_path, rows=streamed(distinct_rows("Cmlm", 20)), settings=settings)
    trainer.train()
    assert trainer.state.global_step == 4


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", [list, streamed])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in (*COMPARING_NOTHING, "Cmlm")])
def test_fewer_pairs_than_a_batch_are_refused_where_they_are_compared(kind: str, form: Any, tmp_path: Path) -> None:
    settings = {"per_device_train_batch_size": 32}
    with pytest.raises(XlsrError, match="32 .*per_device_train_batch_size"):
        trainer_of(kind, tmp_path, rows=form(distinct_rows(kind, 10)), settings=settings).train()
