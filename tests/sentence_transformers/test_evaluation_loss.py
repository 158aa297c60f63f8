"""What chooses a checkpoint inside `SentenceTransformerTrainer` measures the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from st_helpers import features_of, logged, queue_loss, rows, shared_model, trainer_of
from torch.nn.functional import cross_entropy

from hf_xlsr.sentence_transformers import LanguageBiasEvaluator, XsimEvaluator

WATCHED = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}


def test_a_model_that_stands_still_keeps_its_loss(tmp_path: Path) -> None:
    """The queue fills, but is not what is measured."""
    model = shared_model(tmp_path)
    loss = queue_loss(model)
    trainer = trainer_of(model, loss, tmp_path, eval_dataset=rows(24, 9), learning_rate=0.0, **WATCHED)
    trainer.train()

    losses = logged(trainer, "eval_loss")
    assert loss.queues["source"].count == 32
    assert len(losses) == 4
    assert losses == [losses[0]] * 4
    assert losses[0] > 0


@pytest.mark.parametrize("negatives", [(), ("negative",)], ids=["pairs", "triples"])
def test_the_loss_is_that_of_the_batch_alone(negatives: tuple[str, ...], tmp_path: Path) -> None:
    """InfoNCE both ways over the batch, by hand, after a training in which the momentum encoder fell behind."""
    model = shared_model(tmp_path)
    loss = queue_loss(model, momentum=0.999)
    trainer_of(model, loss, tmp_path, rows(64, 1, *negatives)).train()
    model.eval()
    data = rows(8, 9, *negatives)

    with torch.no_grad():
        measured = loss(features_of(model, data))

    source, target, *hard_negatives = [model.encode(data[name], convert_to_tensor=True) for name in data.column_names]
    candidates = torch.cat([target, *hard_negatives])
    temperature = loss.config.temperature
    gold = torch.arange(8)
    expected = {
        "source_to_target": cross_entropy(source @ candidates.T / temperature, gold),
        "target_to_source": cross_entropy(target @ source.T / temperature, gold),
    }
    torch.testing.assert_close(measured, expected, rtol=1e-5, atol=0)


EVALUATORS: dict[str, Any] = {
    "error": lambda data: XsimEvaluator(data["en"], data["fr"], "dev"),
    "bias": lambda data: LanguageBiasEvaluator({"en": data["en"], "fr": data["fr"]}, "dev"),
}


@pytest.mark.parametrize("metric", EVALUATORS)
def test_higher_is_better_of_every_primary_metric(metric: str, tmp_path: Path) -> None:
    evaluator = EVALUATORS[metric](rows(24, 9).to_dict())
    model = shared_model(tmp_path)
    metrics = evaluator(model)
    assert evaluator.greater_is_better
    assert evaluator.primary_metric == f"dev_negative_{metric}"
    assert metrics[evaluator.primary_metric] == -metrics[f"dev_{metric}"]


def test_an_error_chooses_the_best_checkpoint(tmp_path: Path) -> None:
    """Transformers takes the highest value of a metric whose name does not end in loss."""
    data = rows(24, 9)
    evaluator = XsimEvaluator(data["en"], data["fr"], "dev")
    model = shared_model(tmp_path)
    trainer = trainer_of(
        model,
        queue_loss(model),
        tmp_path,
        evaluator=evaluator,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model=evaluator.primary_metric,
        **WATCHED,
    )
    trainer.train()

    errors = logged(trainer, "eval_dev_error")
    assert len(set(errors)) > 1
    assert trainer.state.best_global_step == 1 + errors.index(min(errors))
