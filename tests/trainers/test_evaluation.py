"""Loss and accuracy on evaluation data: means over rows, and the same numbers on two processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_pairs
from dual_momentum_runs import tiny_dual, trainer_of
from lightweight_trainers import trainer_of as lightweight_trainer_of
from sentence_transformers.sentence_transformer.evaluation import TranslationEvaluator
from two_processes import run_on_two_processes


def measured(folder: Path, batch: int) -> dict[str, float]:
    """Metrics of a trained model on plain pairs."""
    rows = make_pairs(24, seed=8)
    sides = [{"fr": row["target"], "en": row["source"]} for row in rows[16:]]
    options = {"per_device_eval_batch_size": 8, "max_steps": 2, "per_device_train_batch_size": 2 * batch}
    trainer = trainer_of(folder, model=tiny_dual(in_batch_negatives=True), **options)
    trainer.train()
    metrics = trainer.evaluate({"en-fr": rows[:16], "mixed": {"fr-en": sides, "other": rows[:4]}})
    if torch.distributed.is_initialized() and torch.distributed.get_rank() == 0:
        (folder / "metrics.json").write_text(json.dumps(metrics))
    return metrics


def test_two_processes_measure_the_same(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    run_on_two_processes(measured, tmp_path / "two", 4, folder=tmp_path)
    one = measured(tmp_path / "one", 8)
    assert {"eval_en-fr_loss", "eval_mixed_en-fr_mean_accuracy", "eval_mixed_fr-en_src2trg_accuracy"} <= set(one)
    assert json.loads((tmp_path / "two" / "metrics.json").read_text()) == pytest.approx(one, abs=2e-5)


def test_loss_is_the_mean_over_rows_of_batches_of_different_size(
    tokenizer: Any, prepared: Any, tmp_path: Path
) -> None:
    options = {"generative_task": "xtr", "per_device_eval_batch_size": 4}
    trainer = lightweight_trainer_of(tokenizer, prepared, tmp_path, **options)
    rows = sorted(make_pairs(40, seed=8), key=lambda row: len(row["source"].split()))[::8]

    three, two = (trainer.evaluate(part)["eval_loss"] for part in (rows[:3], rows[3:]))

    assert abs(three - two) > 0.1
    assert trainer.evaluate(rows)["eval_loss"] == pytest.approx((3 * three + 2 * two) / 5, rel=1e-5)


def test_accuracy_of_each_direction_is_that_of_sentence_transformers(
    tokenizer: Any, prepared: Any, tmp_path: Path
) -> None:
    trainer = lightweight_trainer_of(tokenizer, prepared, tmp_path)
    rows = list({row["source"]: row for row in make_pairs(60, seed=5)}.values())
    evaluator = TranslationEvaluator([row["source"] for row in rows], [row["target"] for row in rows])

    measured = trainer.evaluate(rows)
    expected = evaluator(trainer.live_encoder())

    assert expected["src2trg_accuracy"] != expected["trg2src_accuracy"]
    for direction in ("src2trg", "trg2src"):
        assert measured[f"eval_en-fr_{direction}_accuracy"] == pytest.approx(expected[f"{direction}_accuracy"])
