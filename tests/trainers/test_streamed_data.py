"""Streams in trainers: what they hold out, what the memory queue knows of their rows, and rows that fill no batch."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from seven_trainers import KINDS, distinct_rows, trainer_of

ID_COLUMNS = ("source_ids", "first_ids", "input_ids")


def token_ids(features: Any) -> set[str]:
    """The first text of each feature."""
    texts = set()
    for feature in features:
        (name,) = set(ID_COLUMNS) & set(feature)
        texts.add(str(feature[name]))
    return texts


def one_text_a_row(kind: str, count: int) -> list[dict[str, Any]]:
    """As `distinct_rows`, but a document of two sentences is one row."""
    rows = distinct_rows(kind, count)
    if kind != "Cmlm":
        return rows
    return [{"text": f"{row['text']}\n\n{row['text']}", "lang": "en"} for row in rows]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_a_stream_holds_out_stay_held_out(kind: str, workers: int, tmp_path: Path) -> None:
    rows = Dataset.from_list(one_text_a_row(kind, 64))
    shuffled = rows.to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=16)
    trainer = trainer_of(
        kind,
        tmp_path,
        rows=shuffled.skip(16),
        eval_dataset=shuffled.take(16),
        settings={"dataloader_num_workers": workers},
    )
    held_out = trainer.eval_sets[""]
    if kind != "FineTune":
        held_out = [held_out[0, number] for number in range(len(held_out))]

    trainer.data_collator = list
    batches = islice(trainer.get_train_dataloader(), 5 * 6)  # five epochs
    seen = token_ids(chain.from_iterable(batches))
    assert len(seen) == 48
    assert not seen & token_ids(held_out)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mapped", [False, True])
def test_the_queue_knows_the_rows_of_earlier_passes(workers: int, mapped: bool, tmp_path: Path) -> None:
    stream: Any = Dataset.from_list(distinct_rows("DualMomentum", 16)).to_iterable_dataset(num_shards=2)
    if mapped:
        stream = stream.map(lambda row: {"source": f"{row['source']} king"}).shuffle(seed=3)
    settings = {"max_steps": 6, "dataloader_num_workers": workers}
    trainer = trainer_of("DualMomentum", tmp_path, rows=stream, settings=settings)
    trainer.train()

    shares = [entry["queue/stale"] for entry in trainer.state.log_history if "queue/stale" in entry]
    assert shares == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]


def test_the_queue_knows_the_rows_of_a_stream_after_a_resume(tmp_path: Path) -> None:
    rows = Dataset.from_list(distinct_rows("DualMomentum", 16))
    for steps in (2, 4):
        settings = {"max_steps": steps, "save_strategy": "steps", "save_steps": 2}
        trainer = trainer_of("DualMomentum", tmp_path, rows=rows.to_iterable_dataset(), settings=settings)
        trainer.train(resume_from_checkpoint=steps > 2)

    shares = [entry["queue/stale"] for entry in trainer.state.log_history if "queue/stale" in entry]
    assert shares == [0.0, 0.0, 1.0, 1.0]
