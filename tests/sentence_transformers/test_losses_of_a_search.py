"""Our losses with `model_init`: each training has a new model, and its loss starts anew with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from st_helpers import arguments, queue_loss, rows, shared_model
from torch import nn
from transformers import TrainerCallback

from hf_xlsr.sentence_transformers import (
    AdditiveMarginLoss,
    AlignmentSimilarityLoss,
    DualMomentumCallback,
    DualMomentumLoss,
    SentenceContrastLoss,
)

QUEUED = 8  # pairs that the queues are filled with


def filled_loss(model: Any) -> DualMomentumLoss:
    loss = queue_loss(model)
    data = rows(QUEUED, 7)
    loss.fill_queues(list(data["en"]), list(data["fr"]))
    return loss


LOSSES: dict[str, Callable[[Any], nn.Module]] = {
    "queue": queue_loss,
    "filled queue": filled_loss,
    "queue of truncated embeddings": lambda model: MatryoshkaLoss(model, queue_loss(model), [16, 8]),
    "margin": AdditiveMarginLoss,
    "contrast": SentenceContrastLoss,
    "structure": AlignmentSimilarityLoss,
}
QUEUES = [name for name in LOSSES if "queue" in name]


def queue_loss_of(loss: Any) -> Any:
    """The `DualMomentumLoss` that a loss is or has, or None."""
    return next((module for module in loss.modules() if isinstance(module, DualMomentumLoss)), None)


class States(TrainerCallback):
    """What each training starts and ends with: the weights of model and loss."""

    def __init__(self) -> None:
        self.started: list[dict[str, torch.Tensor]] = []
        self.ended: list[dict[str, torch.Tensor]] = []
        self.trainer: Any = None

    def state(self) -> dict[str, torch.Tensor]:
        loss = self.trainer.loss
        assert loss.model is self.trainer.model
        return {name: value.detach().clone() for name, value in loss.state_dict().items()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started.append(self.state())

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ended.append(self.state())


def trainer_of(make_loss: Any, folder: Path, *, model_init: Any = None, **options: Any) -> tuple[Any, States]:
    """A trainer with `model_init`, and the states of its trainings."""
    states = States()
    callbacks = options.pop("callbacks", [DualMomentumCallback()])
    trainer = SentenceTransformerTrainer(
        model_init=model_init or (lambda: shared_model(folder)),
        args=arguments(folder / "out", **options),
        train_dataset=rows(),
        eval_dataset=rows(8, 9),
        loss=make_loss,
        callbacks=[*callbacks, states],
    )
    states.trainer = trainer
    return trainer, states


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def callbacks_of(name: str) -> list[Any]:
    return [DualMomentumCallback()] if name in QUEUES else []


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LOSSES)
def test_equal_trainings_are_equal(name: str, tmp_path: Path) -> None:
    trainer, states = trainer_of(LOSSES[name], tmp_path, callbacks=callbacks_of(name))
    results = []
    for _ in range(2):
        trainer.train()
        results.append(trainer.evaluate()["eval_loss"])

    assert results[0] == results[1]
    assert_equal(*states.started)
    assert_equal(*states.ended)
    changed = [name for name, value in states.ended[0].items() if not torch.equal(value, states.started[0][name])]
    assert changed


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_a_second_training_is_the_first_of_another_trainer(name: str, tmp_path: Path) -> None:
    """Also where the user made the loss, and the trainer replaces its model."""
    trainer, states = trainer_of(LOSSES[name], tmp_path, callbacks=callbacks_of(name))
    trainer.train()
    loss = LOSSES[name](shared_model(tmp_path))
    other, other_states = trainer_of(loss, tmp_path, callbacks=callbacks_of(name))
    other.train()
    assert_equal(states.ended[0], other_states.ended[0])


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", QUEUES)
def test_momentum_and_queues_start_with_the_new_model(name: str, tmp_path: Path) -> None:
    """Each model is wider than the one before, so that nothing of an old one fits."""
    made: list[SentenceTransformer] = []

    def model_init() -> SentenceTransformer:
        made.append(wider_model(tmp_path, 16 + 8 * len(made)))
        return made[-1]

    trainer, _ = trainer_of(LOSSES[name], tmp_path, model_init=model_init)
    for _ in range(2):
        trainer.train()
        loss = queue_loss_of(trainer.loss)
        queue = loss.queues["source"]
        assert loss.model is made[-1]
        assert queue.values.shape[1] == made[-1].get_embedding_dimension()
        assert queue.count == 4 * 8 + (QUEUED if name == "filled queue" else 0)


def wider_model(folder: Path, width: int) -> SentenceTransformer:
    transformer = shared_model(folder)[0]
    torch.manual_seed(0)
    modules = [transformer, Pooling(16, pooling_mode="mean"), Dense(16, width, activation_function=nn.Identity())]
    return SentenceTransformer(modules=modules, device="cpu")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", QUEUES)
def test_without_a_callback_the_loss_follows_the_model(name: str, tmp_path: Path) -> None:
    trainer, states = trainer_of(LOSSES[name], tmp_path, callbacks=[])
    trainer.train()
    trainer.train()
    assert_equal(*states.ended)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUEUES)
def test_a_training_goes_on_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}
    whole, states = trainer_of(LOSSES[name], tmp_path, **options)
    whole.train()

    checkpoint = str(tmp_path / "out" / "checkpoint-2")
    resumed, resumed_states = trainer_of(LOSSES[name], tmp_path, resume_from_checkpoint=checkpoint, **options)
    resumed.train(checkpoint)
    assert_equal(states.ended[0], resumed_states.ended[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_equal_trials_have_equal_results(name: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    trainer, states = trainer_of(
        LOSSES[name], tmp_path, model_init=lambda trial: shared_model(tmp_path), callbacks=callbacks_of(name)
    )
    objectives = []

    def objective(metrics: dict[str, float]) -> float:
        objectives.append(metrics["eval_loss"])
        return metrics["eval_loss"]

    def space(trial: Any) -> dict[str, Any]:
        return {"learning_rate": trial.suggest_categorical("learning_rate", [1e-2])}

    trainer.hyperparameter_search(space, objective, n_trials=2, backend="optuna", direction="minimize")
    assert len(objectives) == 2
    assert objectives[0] == objectives[1]
    assert_equal(*states.ended)
