"""`zero_shot` and `nli` on encoders whose vectors carry the label: in one language and in others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression

from hf_xlsr.evaluation import nli, zero_shot

LABELS = ("entailment", "neutral", "contradiction")
TOPICS = ("sport", "money", "weather")
Rows = list[dict[str, Any]]


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


def documents(language: str, start: int, count: int) -> Rows:
    return [
        {"text": f"{language}:{TOPICS[number % 3]}:{number}", "label": TOPICS[number % 3]}
        for number in range(start, start + count)
    ]


def classify(encoder: Any, head: str, **options: Any) -> dict[str, float]:
    tests = {"en": documents("en", 2000, 60), "fr": documents("fr", 3000, 61)}
    rows = documents("en", 0, 90), documents("en", 1000, 30), tests
    return zero_shot(encoder, *rows, train_language="en", name="topics", head=head, **options)


@pytest.mark.parametrize(("head", "options"), [("linear", {}), ("mlp", {"epochs": 60, "learning_rate": 0.01})])
@pytest.mark.parametrize("cross_lingual", [True, False])
def test_transfer_needs_a_cross_lingual_encoder(head: str, options: dict[str, Any], cross_lingual: bool):
    assert classify(TopicEncoder(noise=0.1, cross_lingual=cross_lingual), head, **options) == {
        f"topics-zero-shot-{head}/en-en/test/accuracy": 1.0,
        f"topics-zero-shot-{head}/en-en/test/documents": 60,
        f"topics-zero-shot-{head}/en-fr/test/accuracy": float(cross_lingual),
        f"topics-zero-shot-{head}/en-fr/test/documents": 61,
        f"topics-zero-shot-{head}/en-en/dev/accuracy": 1.0,
    }


class RelationEncoder:
    """Vectors of `LANGUAGE:NUMBER:RELATION`: entailment is near the premise, contradiction opposite, neutral random.

    `turned` languages have entailment and contradiction the other way round.
    """

    def __init__(self, turned: tuple[str, ...] = (), noise: float = 0.2, routes: tuple[str, ...] = ()):
        self.turned, self.noise, self.routes = turned, noise, routes
        self.seen: list[tuple[str | None, str]] = []  # task and text

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        self.seen += [(kwargs.get("task"), text) for text in texts]
        rows = []
        for text in texts:
            language, number, relation = text.split(":")
            vector = np.random.default_rng(int(number)).choice([-1.0, 1.0], 6)
            if relation == "neutral":
                vector = np.random.default_rng(10_000 + int(number)).choice([-1.0, 1.0], 6)
            elif relation and (relation == "contradiction") != (language in self.turned):
                vector = -vector
            rows.append(vector + self.noise * np.random.default_rng(len(text) + int(number)).normal(size=6))
        return np.array(rows)


def relations(language: str, start: int, count: int, numbers: bool = False) -> Rows:
    return [
        {
            "premise": f"{language}:{number}:",
            "hypothesis": f"{language}:{number}:{LABELS[number % 3]}",
            "label": number % 3 if numbers else LABELS[number % 3],
        }
        for number in range(start, start + count)
    ]


def infer(encoder: Any, **changes: Any) -> dict[str, float]:
    arguments: dict[str, Any] = {
        "train": relations("en", 0, 300),
        "dev": relations("en", 1000, 60),
        "tests": {language: relations(language, 2000, 60) for language in ("en", "de")},
        "train_language": "en",
        "name": "xnli",
        "head": "linear",
    }
    return nli(encoder, **(arguments | changes))


def test_linear_equals_scikit_learn():
    encoder = RelationEncoder(noise=0.8)
    metrics = infer(encoder)

    def features(*place: Any) -> tuple[np.ndarray, np.ndarray]:
        chosen = relations(*place, numbers=True)
        u, v = (encoder.encode([row[side] for row in chosen]).astype(np.float32) for side in ("premise", "hypothesis"))
        u, v = (side / np.sqrt((side**2).sum(1))[:, None] for side in (u, v))
        return np.hstack([u, v, np.abs(u - v), u * v]), np.array([row["label"] for row in chosen])

    train, dev, test = features("en", 0, 300), features("en", 1000, 60), features("de", 2000, 60)
    models = [LogisticRegression(C=strength, max_iter=1000).fit(*train) for strength in (0.1, 1, 10, 100)]
    best = max(models, key=lambda model: model.score(*dev))
    assert metrics["xnli-nli-linear/en-en/dev/accuracy"] == best.score(*dev)
    assert metrics["xnli-nli-linear/en-de/test/accuracy"] == best.score(*test) < 1


def test_spellings_of_labels():
    spelled = [
        {**row, "label": {"contradiction": "contradictory"}.get(row["label"], row["label"].upper())}
        for row in relations("en", 0, 300)
    ]
    dev = [{**row, "label": str(row["label"])} for row in relations("en", 1000, 60, numbers=True)]
    tests = {"en": relations("en", 2000, 60, numbers=True), "de": relations("de", 2000, 60)}
    assert infer(RelationEncoder(), train=spelled, dev=dev, tests=tests) == infer(RelationEncoder())


def test_trained_encoder(tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu")
    learn, dev, tests = relations("en", 0, 12), relations("en", 12, 6), {"en": relations("en", 18, 6)}
    metrics = infer(model, train=learn, dev=dev, tests=tests, head="trained", epochs=1)
    assert {key.rpartition("/")[0] for key in metrics} == {"xnli-nli-trained/en-en/dev", "xnli-nli-trained/en-en/test"}
