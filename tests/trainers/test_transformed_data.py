"""Trainers read a dataset as `datasets` has it: with its transform, in its format, and mapped as a stream."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from seven_trainers import KINDS, distinct_rows, trainer_of

Rows = list[dict[str, Any]]

ID_COLUMNS = ("source_ids", "first_ids", "input_ids")


def looked_up(rows: Rows) -> tuple[Dataset, Callable[[Any], Any]]:
    """A dataset of numbers, and the transform that finds their rows."""

    def find(batch: dict[str, Any]) -> dict[str, list[Any]]:
        return {name: [rows[number][name] for number in batch["number"]] for name in rows[0]}

    return Dataset.from_list([{"number": number} for number in range(len(rows))]), find


def with_transform(rows: Rows) -> Any:
    data, find = looked_up(rows)
    return data.with_transform(find)


def set_transform(rows: Rows) -> Any:
    data, find = looked_up(rows)
    data.set_transform(find)
    return data


def transform_of_a_column(rows: Rows) -> Any:
    """The transform gets one column; another one is kept."""
    data, find = looked_up(rows)
    kept = next(iter(rows[0]))

    def find_others(batch: dict[str, Any]) -> dict[str, list[Any]]:
        assert list(batch) == ["number"]
        return {name: values for name, values in find(batch).items() if name != kept}

    data = data.add_column(kept, [row[kept] for row in rows])
    return data.with_transform(find_others, columns=["number"], output_all_columns=True)


def with_format(rows: Rows) -> Any:
    """The format hides columns that would be read."""
    hidden = {"negative": "king king", "document": "1", "text_pair": "king"}
    data = Dataset.from_list([{**hidden, **row} for row in rows])
    return data.with_format("numpy", columns=list(rows[0]))


def next_to_plain_rows(rows: Rows) -> Any:
    half = len(rows) // 2
    return {"en-fr": with_transform(rows[:half]), "more": {"en-fr": Dataset.from_list(rows[half:])}}


def mapped_stream(rows: Rows) -> Any:
    data, find = looked_up(rows)
    return data.to_iterable_dataset().map(find, batched=True, remove_columns=["number"])


FORMS = (with_transform, set_transform, transform_of_a_column, with_format, next_to_plain_rows, mapped_stream)


def plain(form: Any, rows: Rows) -> Any:
    """The same data without a transform or format."""
    whole = Dataset.from_list(rows)
    if form is next_to_plain_rows:
        return {"en-fr": whole}
    return whole.to_iterable_dataset() if form is mapped_stream else whole


def batches_of(trainer: Any) -> list[dict[str, Any]]:
    """What the model gets in the first batches."""
    batches = []
    for batch in islice(trainer.get_train_dataloader(), 3):
        batches.append({name: value.tolist() for name, value in batch.items() if torch.is_tensor(value)})
    return batches


@pytest.mark.sample(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_trainer_reads_the_rows_that_a_dataset_gives(kind: str, form: Any, tmp_path: Path) -> None:
    rows = distinct_rows(kind, 32)
    expected = batches_of(trainer_of(kind, tmp_path, rows=plain(form, rows)))
    batches = batches_of(trainer_of(kind, tmp_path, rows=form(rows)))
    assert len(batches) == 3
    assert batches == expected


@pytest.mark.sample(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_reads_the_rows_that_a_dataset_gives(kind: str, form: Any, tmp_path: Path) -> None:
    rows = distinct_rows(kind, 24)
    trainer = trainer_of(kind, tmp_path, rows=rows, eval_dataset={"dev": form(rows)})
    metrics = trainer.evaluate()
    assert metrics["eval_dev_loss"] > 0
    assert metrics == trainer.evaluate({"dev": plain(form, rows)})


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_an_augmentation_draws_anew_in_every_epoch(kind: str, tmp_path: Path) -> None:
    rows = distinct_rows(kind, 32)
    column = "text" if "text" in rows[0] else "source"
    words = cycle(["king", "king king", "king king king"])
    augmented = Dataset.from_list(rows).with_transform(
        lambda batch: {**batch, column: [f"{text} {next(words)}" for text in batch[column]]}
    )
    trainer = trainer_of(kind, tmp_path, rows=augmented)
    trainer.data_collator = list

    draws: dict[int, set[str]] = {}
    for feature in chain.from_iterable(chain(*(trainer.get_train_dataloader() for _ in range(4)))):
        ids = [feature[name] for name in ID_COLUMNS if name in feature]
        draws.setdefault(feature["index"], set()).add(str(ids))
    draws_anew = any(len(texts) > 1 for texts in draws.values())
    assert draws_anew == (kind != "Cmlm")  # of running text there is one draw
