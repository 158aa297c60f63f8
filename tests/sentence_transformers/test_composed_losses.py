"""Our losses inside the losses of sentence-transformers, in sums, and made by the trainer: values by hand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.losses import (
    AdaptiveLayerLoss,
    Matryoshka2dLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from st_helpers import arguments, features_of, queue_loss, rows, shared_model, trainer_of
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from hf_xlsr.sentence_transformers import (
    AdditiveMarginLoss,
    AlignmentSimilarityLoss,
    DualMomentumCallback,
    DualMomentumLoss,
    SentenceContrastLoss,
)
from hf_xlsr.sentence_transformers.losses import LossParts
from hf_xlsr.utils.errors import XlsrError

LOSSES: dict[str, Callable[[Any], nn.Module]] = {
    "queue": queue_loss,
    "margin": AdditiveMarginLoss,
    "contrast": SentenceContrastLoss,
    "structure": AlignmentSimilarityLoss,
}
EVERY_LOSS = pytest.mark.parametrize("name", LOSSES)


def scalar(loss: Any) -> float:
    """What the trainer of sentence-transformers makes of a loss."""
    return sum(float(value) for value in loss.values()) if isinstance(loss, dict) else float(loss)


class Weighted(nn.Module):
    """A sum of losses as users write it."""

    def __init__(self, first: nn.Module, second: nn.Module, combine: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.first = first
        self.second = second
        self.combine = combine

    def forward(self, features: Any, labels: Any = None) -> Any:
        features = list(features)
        return self.combine(self.first(features, labels), self.second(features, labels))


COMBINATIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[float, float], float]]] = {
    "0.5 a + b": (lambda a, b: 0.5 * a + b, lambda a, b: 0.5 * a + b),
    "b + 0.5 a": (lambda a, b: b + 0.5 * a, lambda a, b: b + 0.5 * a),
    "sum": (lambda a, b: sum([a, b]) / 2, lambda a, b: (a + b) / 2),
    "a - b": (lambda a, b: a - b * 0.1, lambda a, b: a - b * 0.1),
    "b - a": (lambda a, b: b - a / 3, lambda a, b: b - a / 3),
    "tensors": (lambda a, b: torch.tensor(0.5) * a + b * torch.tensor(2.0), lambda a, b: 0.5 * a + 2 * b),
}


@EVERY_LOSS
@pytest.mark.parametrize("other", ["ranking", "structure", "queue"])
def test_sums(name: str, other: str, tmp_path: Path) -> None:
    model = shared_model(tmp_path).train()
    first = LOSSES[name](model)
    second = LOSSES[other](model) if other in LOSSES else MultipleNegativesRankingLoss(model)
    features = features_of(model, rows(8))
    values = scalar(first(features, None)), scalar(second(features, None))
    for how, (combine, expected) in COMBINATIONS.items():
        value = Weighted(first, second, combine)(features)
        assert scalar(value) == pytest.approx(expected(*values), rel=1e-5), how


def test_gradients_of_a_sum(tmp_path: Path) -> None:
    model = shared_model(tmp_path).train()
    features = features_of(model, rows(8))
    weight = next(model.parameters())

    def gradient(value: Any) -> torch.Tensor:
        model.zero_grad()
        value.backward()
        assert weight.grad is not None
        return weight.grad.clone()

    structure = AlignmentSimilarityLoss(model)
    ranking = MultipleNegativesRankingLoss(model)
    parts = structure(features)
    assert isinstance(parts, LossParts)
    expected = 0.5 * gradient(parts) + gradient(ranking(features, None))
    torch.testing.assert_close(
        gradient(0.5 * structure(features) + ranking(features, None)), expected, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "queue"])
def test_matryoshka_is_the_sum_over_truncated_embeddings(name: str, tmp_path: Path) -> None:
    """A loss sees each width as if the model had it."""
    model = shared_model(tmp_path).train()
    value = MatryoshkaLoss(model, LOSSES[name](model), [16, 8], [1, 0.5])(features_of(model, rows(8)), None)

    whole = LOSSES[name](model)(features_of(model, rows(8)))
    truncated = LOSSES[name](Truncated(model, 8))(features_of(model, rows(8)))
    assert scalar(value) == pytest.approx(scalar(whole) + 0.5 * scalar(truncated), rel=1e-5)


class Truncated(nn.Module):
    """A model whose embeddings are cut after some dimensions, as `MatryoshkaLoss` cuts them."""

    def __init__(self, model: Any, width: int) -> None:
        super().__init__()
        self.inner = model
        self.width = width

    def forward(self, features: Any) -> Any:
        output = self.inner(dict(features))
        return {**output, "sentence_embedding": normalize(output["sentence_embedding"][:, : self.width], dim=-1)}


def test_matryoshka_truncates_the_queue(tmp_path: Path) -> None:
    """Each width by hand, with a filled queue; and the keys of a batch enter the queue once."""
    model = shared_model(tmp_path).train()
    loss = queue_loss(model)
    old = rows(8, 7)
    loss.fill_queues(list(old["en"]), list(old["fr"]))
    data = rows(8, 2)
    value = MatryoshkaLoss(model, loss, [16, 8])(features_of(model, data), None)

    def vectors(texts: Any, width: int) -> torch.Tensor:
        return normalize(torch.from_numpy(model.encode(list(texts)))[:, :width].double(), dim=-1)

    expected = 0.0
    for width in (16, 8):
        for side, other in (("en", "fr"), ("fr", "en")):
            queries = vectors(data[side], width)
            positives = (queries * vectors(data[other], width)).sum(1, keepdim=True)
            negatives = queries @ vectors(old[other], width).T
            logits = torch.cat([positives, negatives], 1) / loss.config.temperature
            expected += float(cross_entropy(logits, torch.zeros(8, dtype=torch.long)))
    assert scalar(value) == pytest.approx(expected, rel=1e-4)
    assert len(loss.waiting) == 1
    loss.finish_step()
    assert loss.queues["source"].count == 16


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "queue"])
def test_adaptive_layers_are_a_weighted_sum_over_layers(name: str, tmp_path: Path) -> None:
    """Without the divergence between layers: the loss of the last layer, and half the mean of those before."""
    model = shared_model(tmp_path).train()
    options: Any = {"n_layers_per_step": -1, "kl_temperature": 0, "prior_layers_weight": 0.5}
    value = AdaptiveLayerLoss(model, LOSSES[name](model), **options)(features_of(model, rows(8)), None)

    last = LOSSES[name](model)(features_of(model, rows(8)))
    encoder: Any = model[0].auto_model.encoder
    layers = encoder.layer
    before = []
    for count in range(len(layers)):
        encoder.layer = layers[:count]
        before.append(scalar(LOSSES[name](model)(features_of(model, rows(8)))))
    encoder.layer = layers
    assert scalar(value) == pytest.approx(scalar(last) + 0.5 * sum(before) / len(before), rel=1e-5)


WRAPPERS: dict[str, Callable[[Any, nn.Module], nn.Module]] = {
    "matryoshka": lambda model, loss: MatryoshkaLoss(model, loss, [16, 8]),
    "layers": AdaptiveLayerLoss,
    "both": lambda model, loss: Matryoshka2dLoss(model, loss, [16, 8]),
    "weighted": lambda model, loss: Weighted(loss, MultipleNegativesRankingLoss(model), lambda a, b: 0.5 * a + b),
}


@pytest.mark.sample(4)
@EVERY_LOSS
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_wrapper_trains_and_evaluates(name: str, wrapper: str, tmp_path: Path) -> None:
    model = shared_model(tmp_path)
    inner = LOSSES[name](model)
    before = next(model.parameters()).detach().clone()
    watched = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 2}
    loss = WRAPPERS[wrapper](model, inner)
    trainer = trainer_of(model, loss, tmp_path, eval_dataset=rows(8, 9), **watched)
    trainer.train()
    assert not torch.equal(next(model.parameters()), before)
    if isinstance(inner, DualMomentumLoss):
        assert inner.queues["source"].count == 16  # once a step, however often the loss was called


# --- Who ends the steps --------------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("given", [None, queue_loss, {"pairs": queue_loss}], ids=["none", "function", "functions"])
def test_the_callback_finds_the_loss_that_the_trainer_makes(given: Any, tmp_path: Path) -> None:
    made: list[DualMomentumLoss] = []

    def make(model: Any) -> DualMomentumLoss:
        made.append(queue_loss(model))
        return made[-1]

    model = shared_model(tmp_path)
    trainer = SentenceTransformerTrainer(
        model, arguments(tmp_path), train_dataset=rows(), loss=make, callbacks=[DualMomentumCallback(given)]
    )
    trainer.train()
    assert made[0].queues["source"].count == 32


def test_the_callback_takes_the_losses_of_its_own_model(tmp_path: Path) -> None:
    other = queue_loss(shared_model(tmp_path))
    model = shared_model(tmp_path)
    loss = queue_loss(model)
    callback = DualMomentumCallback()
    SentenceTransformerTrainer(
        model, arguments(tmp_path), train_dataset=rows(), loss=loss, callbacks=[callback]
    ).train()
    assert list(callback.losses.values()) == [loss]
    assert other.queues["source"].count == 0


def test_a_callback_without_a_loss_is_refused(tmp_path: Path) -> None:
    model = shared_model(tmp_path)
    trainer = SentenceTransformerTrainer(
        model,
        arguments(tmp_path),
        train_dataset=rows(),
        loss=AdditiveMarginLoss(model),
        callbacks=[DualMomentumCallback()],
    )
    with pytest.raises(XlsrError, match="DualMomentumLoss"):
        trainer.train()


def test_without_a_callback_the_loss_ends_its_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only the last step is not ended; queues and momentum encoder are as with the callback one step before."""
    states = []
    for callbacks, steps in (([DualMomentumCallback()], 3), ([], 4)):
        model = shared_model(tmp_path)
        loss = queue_loss(model)
        options = {"max_steps": steps, "lr_scheduler_type": "constant"}
        with caplog.at_level(logging.WARNING):
            SentenceTransformerTrainer(
                model, arguments(tmp_path, **options), train_dataset=rows(), loss=loss, callbacks=callbacks
            ).train()
        states.append({name: value.clone() for name, value in loss.training_state().items()})
    assert "DualMomentumCallback()" in caplog.text
    with_callback, without = states
    for name, value in with_callback.items():
        torch.testing.assert_close(without[name], value)


@pytest.mark.parametrize("name", ["structure", "queue"])
def test_old_fit_trains(name: str, tmp_path: Path) -> None:
    from sentence_transformers import InputExample
    from torch.utils.data import DataLoader

    model = shared_model(tmp_path)
    loss = LOSSES[name](model)
    before = next(model.parameters()).detach().clone()
    data = rows(32)
    examples = [InputExample(texts=[source, target]) for source, target in zip(data["en"], data["fr"], strict=True)]
    loader = DataLoader(examples, batch_size=8)  # type: ignore[arg-type]
    model.old_fit([(loader, loss)], epochs=1, warmup_steps=0, show_progress_bar=False)
    assert not torch.equal(next(model.parameters()), before)
    if isinstance(loss, DualMomentumLoss):
        assert loss.queues["source"].count == 24


def test_tokens_added_after_the_loss_are_named(tmp_path: Path) -> None:
    model = shared_model(tmp_path)
    loss = queue_loss(model)
    model.tokenizer.add_tokens(["zzz"])
    model[0].auto_model.resize_token_embeddings(len(model.tokenizer))
    with pytest.raises(XlsrError, match=r"word_embeddings.*\(81, 16\)"):
        trainer_of(model, loss, tmp_path).train()
