"""Heads on fixed vectors: the hand-written network against PyTorch, choices on dev, seeds, options."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import nn

from hf_xlsr.evaluation import heads
from hf_xlsr.evaluation.heads import (
    MLDOC_MLP,
    XNLI_MLP,
    MlpSettings,
    TanhNetwork,
    check_head,
    features_of,
    fit_linear,
    fit_mlp,
    learn_classifier,
)
from hf_xlsr.evaluation.rows import LabelledTexts
from hf_xlsr.utils.errors import XlsrError

Labelled = tuple[np.ndarray, np.ndarray]


def data(count: int, width: int, classes: int, seed: int, dtype: Any = np.float64) -> Labelled:
    """Clusters that overlap."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    centres = np.random.default_rng(99).normal(size=(classes, width))
    return (centres[labels] + rng.normal(size=(count, width))).astype(dtype), labels


def settings(**changes: Any) -> MlpSettings:
    return MlpSettings(
        **{"hidden": (10, 8), "dropout": 0.2, "batch_size": 12, "epochs": 10, "learning_rate": 0.01, **changes}
    )


class TorchTwin:
    """The same network and optimiser in PyTorch, started from the same weights."""

    def __init__(self, network: TanhNetwork, learning_rate: float):
        self.layers = [
            nn.Linear(*shape).double() for shape in zip(network.widths[:-1], network.widths[1:], strict=True)
        ]
        with torch.no_grad():
            for layer, (weight, bias) in zip(self.layers, network.layers, strict=True):
                layer.weight.copy_(torch.from_numpy(weight.T.copy()))
                layer.bias.copy_(torch.from_numpy(bias.copy()))
        self.optimizer = torch.optim.Adam([p for layer in self.layers for p in layer.parameters()], lr=learning_rate)

    def logits(self, inputs: Any, masks: Any = None) -> torch.Tensor:
        hidden = torch.as_tensor(inputs)
        for number, layer in enumerate(self.layers):
            hidden = hidden * torch.as_tensor(masks[number]) if masks else hidden
            hidden = layer(hidden) if number == len(self.layers) - 1 else torch.tanh(layer(hidden))
        return hidden

    def learn(self, inputs: Any, labels: Any, masks: Any) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.logits(inputs, masks), torch.as_tensor(labels)).backward()
        self.optimizer.step()

    def weights(self) -> np.ndarray:
        parts = [(layer.weight.T, layer.bias) for layer in self.layers]
        return np.concatenate([part.detach().numpy().ravel() for pair in parts for part in pair])


@pytest.mark.parametrize("hidden", [(), (6,), (10, 8), (5, 4, 3)])
@pytest.mark.parametrize(("epochs", "dropout", "count"), [(6, 0.3, 50), (3, 0.0, 24)])
def test_mlp_equals_pytorch(hidden: tuple[int, ...], epochs: int, dropout: float, count: int):
    train, dev = data(count, 7, 3, seed=1), data(40, 7, 3, seed=2)
    chosen = settings(hidden=hidden, dropout=dropout, epochs=epochs)
    predict, accuracy = fit_mlp(train, dev, classes=3, settings=chosen, seed=5)

    rng = np.random.default_rng(5)
    twin = TorchTwin(TanhNetwork((7, *hidden, 3), rng, np.dtype(np.float64)), chosen.learning_rate)
    best = -1.0, np.empty(0)
    for _ in range(epochs):
        order = rng.permutation(count)
        masks = [(rng.random((count, width)) >= 1 - dropout) for width in (7, *hidden)]
        kept = [np.where(mask, 0, 1 / (1 - dropout)) for mask in masks]
        for start in range(0, count, 12):
            rows = order[start : start + 12]
            twin.learn(train[0][rows], train[1][rows], [mask[start : start + 12] for mask in kept])
        right = float((twin.logits(dev[0]).argmax(1).numpy() == dev[1]).mean())
        if right >= best[0]:
            best = right, twin.weights()
    assert accuracy == best[0]
    np.testing.assert_allclose(predict.__self__.weights, best[1], atol=1e-9)  # type: ignore[attr-defined]


def test_weights_start_as_pytorchs_do():
    network = TanhNetwork((400, 100, 5), np.random.default_rng(0), np.dtype(np.float32))
    assert network.weights.size == 400 * 100 + 100 + 100 * 5 + 5
    for (weight, bias), wide in zip(network.layers, (400, 100), strict=True):
        for part in (weight, bias):
            assert np.abs(part).max() <= wide**-0.5
        torchs = nn.Linear(wide, weight.shape[1]).weight
        assert weight.std() == pytest.approx(float(torchs.detach().std()), rel=0.1)
        weight[0, 0] = 7  # a view, not a copy
        assert (network.weights == 7).sum() == 1
        weight[0, 0] = 0


def test_lasers_settings():
    assert MLDOC_MLP == MlpSettings((10, 8), dropout=0.2, batch_size=12, epochs=500, learning_rate=1e-3)
    assert XNLI_MLP == MlpSettings((512, 384), dropout=0.3, batch_size=128, epochs=200, learning_rate=1e-3)


def test_masks_drawn_in_blocks_change_nothing_else(monkeypatch: pytest.MonkeyPatch):
    train, dev = data(50, 7, 3, seed=1), data(40, 7, 3, seed=2)
    runs = []
    for at_once in (2**22, 250, 1):
        monkeypatch.setattr(heads, "NUMBERS_AT_ONCE", at_once)
        predict, _ = fit_mlp(train, dev, classes=3, settings=settings(dropout=0.0, epochs=1))
        runs.append(predict.__self__.weights)  # type: ignore[attr-defined]
    assert (runs[0] == runs[1]).all() and (runs[0] == runs[2]).all()


def test_dropout_keeps_the_share_that_it_should(monkeypatch: pytest.MonkeyPatch):
    seen: list[np.ndarray] = []
    monkeypatch.setattr(TanhNetwork, "learn", lambda self, inputs, *rest: seen.append(inputs))
    ones = np.ones((600, 50), np.float32), np.arange(600) % 2
    fit_mlp(ones, ones, classes=2, settings=settings(dropout=0.3, epochs=1))
    inputs = np.concatenate(seen)
    assert set(np.unique(inputs)) == {0, np.float32(1 / 0.7)}
    assert (inputs > 0).mean() == pytest.approx(0.7, abs=0.01)
    assert inputs.shape == (600, 50)


def test_mlp_learns_and_works_in_the_precision_of_its_features():
    train, dev = data(300, 20, 4, seed=1, dtype=np.float32), data(100, 20, 4, seed=2, dtype=np.float32)
    predict, accuracy = fit_mlp(train, dev, classes=4, settings=settings(epochs=30))
    assert accuracy > 0.9
    assert predict.__self__.weights.dtype == np.float32  # type: ignore[attr-defined]
    assert float((predict(dev[0]) == dev[1]).mean()) == accuracy


def test_mlp_repeats_with_its_seed_and_leaves_global_randomness_alone():
    train, probe = data(60, 6, 2, seed=0), data(50, 6, 2, seed=1)[0]
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    predictions: dict[int, Any] = {}
    for seed in (1, 1, 2):
        predict, accuracy = fit_mlp(train, train, classes=2, settings=settings(epochs=5), seed=seed)
        got = accuracy, predict.__self__.weights.tolist(), predict(probe).tolist()  # type: ignore[attr-defined]
        assert predictions.setdefault(seed, got) == got
    assert predictions[1] != predictions[2]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index]
    assert random.getstate() == states[2]


def test_mlp_keeps_the_epoch_that_is_best_on_dev():
    # Dev holds the opposite of what is learnt: the first epochs are best, later ones only get worse.
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(120, 4)).astype(np.float32)
    labels = (vectors[:, 0] > 0).astype(np.int64)

    def fit(dev: np.ndarray, epochs: int) -> tuple[Any, float]:
        return fit_mlp((vectors, labels), (vectors, dev), classes=2, settings=settings(epochs=epochs))

    accuracies = [fit(1 - labels, epochs)[1] for epochs in (1, 5, 60)]
    assert accuracies == sorted(accuracies)  # more epochs to choose from never make the choice worse
    predict, kept = fit(1 - labels, 60)
    assert float((predict(vectors) == 1 - labels).mean()) == kept
    learnt, _ = fit(labels, 60)
    assert float((learnt(vectors) == labels).mean()) > 0.95
    assert float((learnt(vectors) == 1 - labels).mean()) < kept


def test_mlp_ties_go_to_the_later_epoch():
    # Every epoch is equally good on one dev row that is always wrong, so the last weights have to be the ones kept.
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(90, 4)).astype(np.float32)
    labels = (vectors[:, 0] + vectors[:, 1] > 0).astype(np.int64)
    always_wrong = vectors[:1], np.array([5])
    predict, accuracy = fit_mlp((vectors, labels), always_wrong, classes=2, settings=settings(epochs=80))
    assert accuracy == 0.0
    assert float((predict(vectors) == labels).mean()) > 0.9


def test_linear_strength_is_chosen_on_dev():
    rng = np.random.default_rng(4)
    vectors = (0.05 * rng.normal(size=(200, 3))).astype(np.float32)
    labels = (vectors[:, 0] > 0.03).astype(np.int64)  # rare positives: strong regularisation never predicts them
    predict, accuracy = fit_linear((vectors, labels), (vectors, labels))
    assert accuracy == float((predict(vectors) == labels).mean()) > 0.95
    strongest = LogisticRegression(C=0.1).fit(vectors, labels)
    predict, on_majority = fit_linear((vectors, labels), (vectors, np.zeros_like(labels)))
    assert on_majority == 1.0  # the same head would be wrong here: another strength was taken
    assert (predict(vectors) == strongest.predict(vectors)).all()


class WordEncoder:
    """Length and first letter."""

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        return np.array([[len(text), ord(text[0]) - 100.5, 1] for text in texts], np.float32)


def test_features_of_texts_and_of_pairs():
    texts = features_of(WordEncoder(), (["abc", "z"],), ("en",))
    np.testing.assert_allclose(np.linalg.norm(texts, axis=1), 1, rtol=1e-6)
    u, v = texts
    pairs = features_of(WordEncoder(), (["abc"], ["z"]), ("en", "en"))
    np.testing.assert_allclose(pairs, [np.concatenate([u, v, abs(u - v), u * v])], rtol=1e-6)


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_learn_classifier_gives_the_head_and_the_encoder(head: str):
    texts = [letter * length for letter in "aaaazzzz" for length in range(1, 6)]
    labels = np.array([int(text[0] == "z") for text in texts])
    rows = LabelledTexts((texts,), labels)
    encoder = WordEncoder()
    options: dict[str, Any] = {"epochs": 30, "learning_rate": 0.02} if head == "mlp" else {}
    classifier = learn_classifier(encoder, rows, rows, language="en", head=head, mlp=settings(), **options)
    assert classifier.encoder is encoder
    assert classifier.dev_accuracy == 1.0
    assert classifier.predict(features_of(encoder, (["zz", "a"],), ("en",))).tolist() == [1, 0]
    if head == "mlp":
        direct = learn_classifier(
            encoder, rows, rows, language="en", head=head, mlp=settings(epochs=30, learning_rate=0.02)
        )
        ours, theirs = classifier.predict.__self__, direct.predict.__self__  # type: ignore[attr-defined]
        assert (ours.weights == theirs.weights).all()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("liner",), "head is 'liner'; did you mean 'linear'?"),
        (("mlp", 0), "epochs is 0; head 'mlp' needs 1 or more."),
        (("linear", 5), "epochs is 5, but head 'linear' has none; leave it out or take head 'mlp'."),
        (("linear", None, 0.1), "learning_rate is 0.1, but head 'linear' has none"),
        (("trained", None, 0.0), "learning_rate is 0.0; give a number above 0."),
        (("trained", 2, float("nan")), "learning_rate is nan"),
    ],
)
def test_mistakes_are_named(arguments: Any, says: str):
    with pytest.raises(XlsrError, match=says.replace("?", r"\?")):
        check_head(*arguments)
    check_head("linear")
    check_head("mlp", 1, 1e-3)


def test_no_epochs_are_refused():
    rows = data(10, 3, 2, seed=0)
    with pytest.raises(XlsrError, match="epochs is 0; the mlp head needs 1 or more"):
        fit_mlp(rows, rows, classes=2, settings=settings(epochs=0))
