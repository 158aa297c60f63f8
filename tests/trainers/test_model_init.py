"""`model_init` and hyperparameter search: each training starts from a new model, and everything follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from conftest import make_pairs
from seven_trainers import KINDS, arguments_of, documents, encoder, model_of, rows_of, trainer_of
from transformers import TrainerCallback, set_seed

from hf_xlsr import trainers
from hf_xlsr.modeling.dual_momentum import DualMomentumModel
from hf_xlsr.modeling.hictl import HictlForPreTraining
from hf_xlsr.trainers import add_adapters
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.utils.errors import XlsrError

QUEUE = {"queue_size": 24, "in_batch_negatives": True, "momentum": 0.5}


def initialised(kind: str, folder: Path, model_init: Callable[..., Any], **options: Any) -> Any:
    """A trainer of a kind that makes its own models, and finds their tokenizers."""
    data: dict[str, Any] = {"train_dataset": rows_of(kind, 64)}
    if kind == "Cmlm":
        data = {"train_dataset": documents(64), "retrieval_dataset": make_pairs(64)}
    if kind == "Distillation":
        data["teacher"] = encoder(seed=5)
    arguments = arguments_of(kind, folder, **options.pop("settings", {}))
    make: Any = getattr(trainers, f"{kind}Trainer")
    return make(args=arguments, model_init=model_init, **{**data, **options})


def weights_of(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    different = [name for name, value in one.items() if not torch.equal(value, other[name])]
    assert not different


def losses_of(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_trains_as_with_the_model(kind: str, tmp_path: Path) -> None:
    set_seed(3)
    expected = trainer_of(kind, tmp_path, model=model_of(kind))
    start = weights_of(expected)
    expected.train()

    trainer = initialised(kind, tmp_path, lambda: model_of(kind))
    assert_equal(weights_of(trainer), start)
    for _ in range(2):  # a second training starts anew
        trainer.train()
        assert losses_of(trainer) == losses_of(expected)
        assert_equal(weights_of(trainer), weights_of(expected))
    assert trainer.model.config.to_dict() == expected.model.config.to_dict()


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["DualMomentum", "FineTune"])
def test_encoders_in_any_form(kind: str, tmp_path: Path) -> None:
    expected = trainer_of(kind, tmp_path, model=encoder())
    expected.train()
    trainer = initialised(kind, tmp_path, lambda: encoder())
    trainer.train()
    assert losses_of(trainer) == losses_of(expected)
    assert_equal(weights_of(trainer), weights_of(expected))


def test_adapters(tmp_path: Path) -> None:
    trainer = initialised("DualMomentum", tmp_path, lambda: add_adapters(model_of("DualMomentum", **QUEUE)))
    ends = []
    for _ in range(2):
        trainer.train()
        ends.append(weights_of(trainer))
    assert_equal(*ends)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["DualMomentum", "Distillation"])
def test_queue_momentum_and_live_encoder_are_those_of_the_new_model(kind: str, tmp_path: Path) -> None:
    trainer = initialised(kind, tmp_path, lambda: model_of(kind, queue_size=24))
    models = []
    for _ in range(2):
        trainer.evaluate(make_pairs(8))
        trainer.train()
        model = base_model(trainer.model)
        models.append(model)
        queues = model.queues.values() if kind == "DualMomentum" else [model.queue]
        assert all(queue.count == 24 for queue in queues)
        assert trainer.live_encoder()[0].model is (
            model.encoders["shared"] if kind == "DualMomentum" else model.encoder
        )
        if kind == "DualMomentum":
            assert any(not torch.equal(trained, average) for trained, average in model.momentum_pairs())
    assert models[0] is not models[1]


def test_user_callbacks_run_once_and_see_the_new_model(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Watch(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            seen.append(model)

    trainer = initialised("DualMomentum", tmp_path, lambda: model_of("DualMomentum"), callbacks=[Watch()])
    before = [type(callback) for callback in trainer.callback_handler.callbacks]
    for _ in range(2):
        trainer.train()
        assert seen[-1] is trainer.model
    assert [type(callback) for callback in trainer.callback_handler.callbacks] == before
    assert len(seen) == 2


class Measured(TrainerCallback):
    def __init__(self, entries: list[dict[str, float]]) -> None:
        self.entries = entries

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self.entries.append(metrics)


def trials(first: Any, second: Any) -> Callable[[Any], Any]:
    """A model that depends on the trial: `first` outside of a search and in its first trial."""

    def make(trial: Any) -> Any:
        return second() if trial is not None and trial.number else first()

    return make


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Searches over learning rates that are given one by one."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def run(trainer: Any, rates: list[float], name: str = "learning_rate", **options: Any) -> tuple[Any, list[Any]]:
        """The best run, and the losses and weights of each trial."""
        outcomes: list[Any] = []

        class Keep(TrainerCallback):
            def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                outcomes.append((losses_of(trainer), weights_of(trainer)))

        trainer.add_callback(Keep())

        def space(trial: Any) -> dict[str, Any]:
            number = trial.suggest_int("number", trial.number, trial.number)
            return {name: rates[number]}

        return trainer.hyperparameter_search(space, backend="optuna", n_trials=len(rates), **options), outcomes

    yield run


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DualMomentum", "Distillation", "Hictl"])
def test_trials_with_equal_parameters_are_equal(kind: str, search: Any, tmp_path: Path) -> None:
    options = {"Hictl": {"negative_interpolation": 0.9}, "DualMomentum": QUEUE}.get(kind, {"queue_size": 24})
    trainer = initialised(kind, tmp_path, lambda: model_of(kind, **options), eval_dataset=make_pairs(16, seed=2))
    evaluations: list[dict[str, float]] = []
    trainer.add_callback(Measured(evaluations))
    best, outcomes = search(trainer, [1e-2, 0.0, 1e-2])
    (losses, weights), (other_losses, _), (equal_losses, equal_weights) = outcomes
    assert losses == equal_losses != other_losses
    assert_equal(weights, equal_weights)

    expected = trainer_of(kind, tmp_path, model=model_of(kind, **options), settings={"learning_rate": 1e-2})
    expected.train()
    assert losses == losses_of(expected)
    assert_equal(weights, weights_of(expected))
    measured = [entry["eval_loss"] for entry in evaluations]
    assert measured[0] == measured[2] != measured[1]
    assert best.objective == min(measured)


@pytest.mark.parametrize(
    ("metric", "options", "direction"),
    [
        pytest.param("accuracy", {}, max, marks=pytest.mark.slow),
        pytest.param(None, {}, min, marks=pytest.mark.slow),
        pytest.param("toy_error", {}, min, marks=pytest.mark.slow),
        pytest.param("toy_quality", {"greater_is_better": False}, min, marks=pytest.mark.slow),
    ],
)
def test_default_objective(
    metric: str | None, options: dict[str, Any], direction: Any, search: Any, tmp_path: Path
) -> None:
    values: list[float] = []

    def measure(live: Any) -> dict[str, float]:
        values.append([0.5, 0.25, 0.75][len(values)])
        return {"toy_error": values[-1], "toy_quality": values[-1]}

    settings = {"metric_for_best_model": metric, **options} if metric else {}
    trainer = initialised(
        "DualMomentum",
        tmp_path,
        lambda: model_of("DualMomentum", **QUEUE),
        settings=settings,
        eval_dataset=make_pairs(16, seed=2),
        evaluations=[measure],
    )
    measured: list[dict[str, float]] = []
    trainer.add_callback(Measured(measured))
    best, _ = search(trainer, [1e-2, 0.0, 1e-3])
    assert best.objective == direction(entry[f"eval_{metric or 'loss'}"] for entry in measured)


@pytest.mark.slow
def test_given_objective_and_direction_win(search: Any, tmp_path: Path) -> None:
    settings = {"metric_for_best_model": "accuracy"}
    options: dict[str, Any] = {"settings": settings, "eval_dataset": make_pairs(16, seed=2)}
    rates = [1e-2, 0.0]

    def loss(metrics: dict[str, float]) -> float:
        return metrics["eval_loss"]

    measured: list[dict[str, float]] = []
    trainer = initialised("DualMomentum", tmp_path, lambda: model_of("DualMomentum", **QUEUE), **options)
    trainer.add_callback(Measured(measured))
    for direction, choose in ((None, min), ("maximize", max)):
        given = {"direction": direction} if direction else {}
        measured.clear()
        best, _ = search(trainer, rates, compute_objective=loss, **given)
        assert best.objective == choose(entry["eval_loss"] for entry in measured)
    measured.clear()
    best, _ = search(trainer, rates, direction="minimize")
    assert best.objective == min(entry["eval_accuracy"] for entry in measured)


@pytest.mark.slow
def test_model_and_data_read_the_arguments_of_a_trial(search: Any, tmp_path: Path) -> None:
    trainer = initialised("Lightweight", tmp_path, lambda: encoder(), eval_dataset=make_pairs(16, seed=2))
    lengths: list[int] = []

    class Length(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            lengths.append(trainer.data_collator.max_length)
            assert trainer.model.config.transformer_options["max_seq_length"] == lengths[-1]

    trainer.add_callback(Length())
    search(trainer, [5, 20], name="max_length")
    assert lengths == [5, 20]


@pytest.mark.slow
def test_model_of_a_trial(search: Any, tmp_path: Path) -> None:
    def interpolating() -> Any:
        return HictlForPreTraining.from_encoder(encoder(), negative_words=8, negative_interpolation=0.9)

    model_init = trials(lambda: model_of("Hictl"), interpolating)
    trainer = initialised("Hictl", tmp_path, model_init, eval_dataset=make_pairs(16, seed=2))
    _, ((plain, _), (moved, _)) = search(trainer, [1e-2, 1e-2])
    expected = trainer_of("Hictl", tmp_path, model=interpolating())
    expected.train()
    assert moved == losses_of(expected) != plain


@pytest.mark.slow
def test_tokenizer_of_a_trial(search: Any, tmp_path: Path) -> None:
    def cased() -> Any:
        other = encoder(seed=1)
        other.tokenizer.add_tokens(["rouge"])
        other[0].model.resize_token_embeddings(len(other.tokenizer))
        return DualMomentumModel.from_encoders(other, languages=["en", "fr"], **QUEUE)

    model_init = trials(lambda: model_of("DualMomentum", **QUEUE), cased)
    trainer = initialised("DualMomentum", tmp_path, model_init, eval_dataset=make_pairs(16, seed=2))
    _, outcomes = search(trainer, [1e-2, 1e-2])
    set_seed(3)
    expected = initialised("DualMomentum", tmp_path, cased)
    expected.train()
    assert outcomes[1][0] == losses_of(expected)
    assert len(trainer.tokenizers["fr"]) == len(expected.tokenizers["fr"]) > len(encoder().tokenizer)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"model": encoder}, "model_init"),
        ({"model_init": None}, "model_init"),
        ({"optimizers": (torch.optim.SGD([torch.ones(1, requires_grad=True)]), None)}, "optimizer_cls_and_kwargs"),
    ],
)
def test_refusals(options: dict[str, Any], match: str, tmp_path: Path) -> None:
    arguments = arguments_of("Lightweight", tmp_path)
    with pytest.raises(XlsrError, match=match):
        trainers.LightweightTrainer(args=arguments, train_dataset=make_pairs(16), **{"model_init": encoder, **options})


def test_metric_that_nothing_measures(search: Any, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="eval_dataset"):
        search(initialised("Lightweight", tmp_path, lambda: encoder()), [1e-2])
    settings = {"metric_for_best_model": "web_error"}
    trainer = initialised(
        "Lightweight", tmp_path, lambda: encoder(), settings=settings, eval_dataset=make_pairs(16, seed=2)
    )
    with pytest.raises(XlsrError, match="web_error.*eval_accuracy"):
        search(trainer, [1e-2])
