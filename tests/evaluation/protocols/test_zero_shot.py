from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hf_xlsr.evaluation.classifiers import MLDOC_MLP, fit_linear, fit_mlp
from hf_xlsr.evaluation.protocols.zero_shot import zero_shot

TOPICS = ("sport", "money", "weather")
FROZEN = ("linear", "mlp")


class TopicEncoder:
    """`en:sport:17` lies near the direction of its topic; an encoder that is not cross-lingual turns `fr` away."""

    def __init__(self, *, cross_lingual: bool = True, noise: float = 0.3):
        self.cross_lingual, self.noise = cross_lingual, noise
        self.seen = 0

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        self.seen += len(texts)
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
        **({"epochs": 60, "learning_rate": 0.01} if changes.get("head") == "mlp" else {}),
    }
    return zero_shot(encoder, **(arguments | changes))


@pytest.mark.parametrize("head", FROZEN)
@pytest.mark.parametrize("cross_lingual", [True, False])
def test_transfer_needs_a_cross_lingual_encoder(head: str, cross_lingual: bool):
    assert run(TopicEncoder(noise=0.1, cross_lingual=cross_lingual), head=head) == {
        f"topics-zero-shot-{head}/en-en/test/accuracy": 1.0,
        f"topics-zero-shot-{head}/en-en/test/documents": 60,
        f"topics-zero-shot-{head}/en-fr/test/accuracy": float(cross_lingual),
        f"topics-zero-shot-{head}/en-fr/test/documents": 61,
        f"topics-zero-shot-{head}/en-en/dev/accuracy": 1.0,
    }


@pytest.mark.parametrize("head", FROZEN)
def test_equals_the_head_on_embeddings(head: str):
    encoder = TopicEncoder(noise=0.9)
    metrics = run(encoder, head=head, **({"epochs": 3, "learning_rate": None, "seed": 4} if head == "mlp" else {}))

    def labelled(language: str, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = rows(language, start, count)
        vectors = encoder.encode([row["text"] for row in chosen]).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors, np.array([sorted(TOPICS).index(row["label"]) for row in chosen])

    train, dev, (vectors, truth) = labelled("en", 0, 90), labelled("en", 1000, 30), labelled("fr", 3000, 61)
    if head == "linear":
        predict, dev_accuracy = fit_linear(train, dev)
    else:
        predict, dev_accuracy = fit_mlp(train, dev, classes=3, settings=replace(MLDOC_MLP, epochs=3), seed=4)
    assert metrics[f"topics-zero-shot-{head}/en-en/dev/accuracy"] == dev_accuracy
    accuracy = float((predict(vectors) == truth).mean())
    assert metrics[f"topics-zero-shot-{head}/en-fr/test/accuracy"] == accuracy < 1
