from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hf_xlsr.errors import XlsrError
from hf_xlsr.evaluation import zero_shot
from hf_xlsr.evaluation.zero_shot import HEADS, fit_linear, fit_mlp

TOPICS = ("sport", "money", "weather")


class TopicEncoder:
    """`en:sport:17` lies near the direction of its topic; an encoder that is not cross-lingual turns `fr` away."""

    def __init__(self, *, cross_lingual: bool = True, noise: float = 0.3):
        self.cross_lingual, self.noise = cross_lingual, noise

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        rows = []
        for text in texts:
            language, topic, number = text.split(":")
            shift = 0 if self.cross_lingual or language == "en" else 1
            vector = np.eye(8)[(TOPICS.index(topic) + shift) % len(TOPICS)]
            rows.append(vector + self.noise * np.random.default_rng(int(number)).normal(size=8))
        return np.array(rows)


def rows(language: str, start: int, count: int) -> list[dict[str, Any]]:
    return [
        {"text": f"{language}:{TOPICS[number % 3]}:{number}", "label": TOPICS[number % 3]}
        for number in range(start, start + count)
    ]


def run(encoder: Any, **changes: Any) -> dict[str, float]:
    arguments: dict[str, Any] = {
        "train": rows("en", 0, 90),
        "dev": rows("en", 1000, 30),
        "tests": {"en": rows("en", 2000, 60), "fr": rows("fr", 3000, 61)},
        "train_language": "en",
        "name": "topics",
        "epochs": 40,
    }
    return zero_shot(encoder, **(arguments | changes))


@pytest.mark.parametrize("head", HEADS)
def test_a_cross_lingual_encoder_transfers(head: str):
    metrics = run(TopicEncoder(noise=0.1), head=head)
    assert metrics == {
        "topics-zero-shot/en-en/test/accuracy": 1.0,
        "topics-zero-shot/en-en/test/documents": 60,
        "topics-zero-shot/en-fr/test/accuracy": 1.0,
        "topics-zero-shot/en-fr/test/documents": 61,
        "topics-zero-shot/en-en/dev/accuracy": 1.0,
    }


@pytest.mark.parametrize("head", HEADS)
def test_an_encoder_that_shifts_the_other_language_does_not(head: str):
    metrics = run(TopicEncoder(noise=0.1, cross_lingual=False), head=head)
    assert metrics["topics-zero-shot/en-en/test/accuracy"] == 1.0
    assert metrics["topics-zero-shot/en-fr/test/accuracy"] == 0.0


@pytest.mark.parametrize("head", HEADS)
def test_labels_without_meaning_give_chance(head: str):
    rng = np.random.default_rng(0)
    shuffled = {
        name: [{**row, "label": str(rng.integers(2))} for row in rows("en", start, 300)]
        for name, start in (("train", 0), ("dev", 1000), ("test", 2000))
    }
    metrics = run(
        TopicEncoder(), train=shuffled["train"], dev=shuffled["dev"], tests={"en": shuffled["test"]}, head=head
    )
    assert 0.4 < metrics["topics-zero-shot/en-en/test/accuracy"] < 0.6


def test_labels_may_be_numbers_in_any_order():
    def numbered(language: str, start: int, count: int) -> list[dict[str, Any]]:
        return [{**row, "label": 7 - 3 * TOPICS.index(row["label"])} for row in rows(language, start, count)]

    metrics = run(
        TopicEncoder(noise=0.1),
        train=numbered("en", 0, 90),
        dev=numbered("en", 1000, 30),
        tests={"fr": numbered("fr", 1, 9)},
    )
    assert metrics["topics-zero-shot/en-fr/test/accuracy"] == 1.0


def test_mlp_repeats_with_its_seed_and_leaves_global_randomness_alone():
    rng = np.random.default_rng(0)
    train = rng.normal(size=(60, 6)).astype(np.float32), rng.integers(0, 2, 60)
    probe = rng.normal(size=(50, 6)).astype(np.float32)
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    predictions = {}
    for seed in (1, 1, 2):
        predict, accuracy = fit_mlp(train, train, classes=2, epochs=15, seed=seed)
        got = accuracy, predict(probe).tolist()
        assert predictions.setdefault(seed, got) == got
    assert predictions[1] != predictions[2]
    torch.testing.assert_close(torch.rand(3), expected)


def test_mlp_keeps_the_epoch_that_is_best_on_dev():
    # Dev holds the opposite of what is learnt: the first epochs are best, later ones only get worse.
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(120, 4)).astype(np.float32)
    labels = (vectors[:, 0] > 0).astype(np.int64)
    accuracies = [
        fit_mlp((vectors, labels), (vectors, 1 - labels), classes=2, epochs=epochs, learning_rate=0.01)[1]
        for epochs in (1, 5, 60)
    ]
    predict, kept = fit_mlp((vectors, labels), (vectors, 1 - labels), classes=2, epochs=60, learning_rate=0.01)
    assert accuracies == sorted(accuracies)  # more epochs to choose from never make the choice worse
    assert float((predict(vectors) == 1 - labels).mean()) == kept
    learnt, _ = fit_mlp((vectors, labels), (vectors, labels), classes=2, epochs=60, learning_rate=0.01)
    assert float((learnt(vectors) == labels).mean()) > 0.95
    assert float((learnt(vectors) == 1 - labels).mean()) < kept


def test_mlp_ties_go_to_the_later_epoch():
    # Every epoch is equally good on one dev row that is always right, so the last weights have to be the ones kept.
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(90, 4)).astype(np.float32)
    labels = (vectors[:, 0] + vectors[:, 1] > 0).astype(np.int64)
    always_wrong = vectors[:1], np.array([5])
    predict, accuracy = fit_mlp((vectors, labels), always_wrong, classes=2, epochs=80, learning_rate=0.01)
    assert accuracy == 0.0
    assert float((predict(vectors) == labels).mean()) > 0.9


def test_mlp_has_lasers_shape(monkeypatch: pytest.MonkeyPatch):
    built = []
    sequential = torch.nn.Sequential
    monkeypatch.setattr(torch.nn, "Sequential", lambda *layers: built.append(layers) or sequential(*layers))
    rng = np.random.default_rng(3)
    data = rng.normal(size=(24, 6)).astype(np.float32), rng.integers(0, 4, 24)
    fit_mlp(data, data, classes=4, epochs=1)
    (layers,) = built
    assert [type(layer).__name__ for layer in layers] == ["Dropout", "Linear", "Tanh"] * 2 + ["Dropout", "Linear"]
    assert [layer.out_features for layer in layers if isinstance(layer, torch.nn.Linear)] == [10, 8, 4]
    assert {layer.p for layer in layers if isinstance(layer, torch.nn.Dropout)} == {0.2}


def test_linear_strength_is_chosen_on_dev():
    rng = np.random.default_rng(4)
    vectors = (0.05 * rng.normal(size=(200, 3))).astype(np.float32)
    labels = (vectors[:, 0] > 0.03).astype(np.int64)  # rare positives: strong regularisation never predicts them
    predict, accuracy = fit_linear((vectors, labels), (vectors, labels))
    assert accuracy == float((predict(vectors) == labels).mean()) > 0.95
    _, on_majority = fit_linear((vectors, labels), (vectors, np.zeros_like(labels)))
    assert on_majority == 1.0  # the same head would be wrong here: another strength was taken


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "liner"}, "head is 'liner'; did you mean 'linear'"),
        ({"head": "mlp", "epochs": 0}, "epochs is 0"),
        ({"train": [{"text": "en:sport:1"}]}, "row 0 of train has no column 'label'"),
        ({"train": rows("en", 0, 1)}, r"train has 1 different label\(s\)"),
        ({"dev": []}, "dev has no rows"),
        (
            {"tests": {"fr": [*rows("fr", 0, 2), {"text": "fr:sport:5", "label": "Sport"}]}},
            r"row 2 of tests\['fr'\] has label 'Sport', which train does not have",
        ),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str):
    with pytest.raises(XlsrError, match=message):
        run(TopicEncoder(), **changes)
