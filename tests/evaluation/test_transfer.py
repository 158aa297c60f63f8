"""`zero_shot` and `nli` on encoders whose vectors carry the label: in one language and in others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bitext_helpers import unit
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression

from hf_xlsr.evaluation import nli, zero_shot
from hf_xlsr.utils.errors import XlsrError

LABELS = ("entailment", "neutral", "contradiction")
TOPICS = ("sport", "money", "weather")
Rows = list[dict[str, Any]]


class TopicEncoder:
    """`en:sport:17` lies near the direction of its topic; an encoder that is not cross-lingual turns `fr` away."""

    def __init__(self, *, cross_lingual: bool = True, noise: float = 0.3):
        self.cross_lingual = cross_lingual
        self.noise = noise

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        rows = []
        for text in texts:
            language, topic, number = text.split(":")
            direction = TOPICS.index(topic)
            if language != "en" and not self.cross_lingual:
                direction = (direction + 1) % len(TOPICS)
            noise = np.random.default_rng(int(number)).normal(size=8)
            rows.append(np.eye(8)[direction] + self.noise * noise)
        return np.array(rows)


def documents(language: str, start: int, count: int) -> Rows:
    rows = []
    for number in range(start, start + count):
        topic = TOPICS[number % 3]
        rows.append({"text": f"{language}:{topic}:{number}", "label": topic})
    return rows


def classify(encoder: Any, head: str, **options: Any) -> dict[str, float]:
    train = documents("en", 0, 90)
    dev = documents("en", 1000, 30)
    tests = {"en": documents("en", 2000, 60), "fr": documents("fr", 3000, 61)}
    return zero_shot(encoder, train, dev, tests, train_language="en", name="topics", head=head, **options)


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
        self.turned = turned
        self.noise = noise
        self.routes = routes

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        rows = []
        for text in texts:
            language, digits, relation = text.split(":")
            number = int(digits)
            if relation == "neutral":
                number += 10_000
            vector = np.random.default_rng(number).choice([-1.0, 1.0], 6)
            if relation == ("entailment" if language in self.turned else "contradiction"):
                vector = -vector
            noise = np.random.default_rng(len(text) + number).normal(size=6)
            rows.append(vector + self.noise * noise)
        return np.array(rows)


def relations(language: str, start: int, count: int, numbers: bool = False) -> Rows:
    rows = []
    for number in range(start, start + count):
        label = LABELS[number % 3]
        row = {
            "premise": f"{language}:{number}:",
            "hypothesis": f"{language}:{number}:{label}",
            "label": number % 3 if numbers else label,
        }
        rows.append(row)
    return rows


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

    def features(language: str, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        rows = relations(language, start, count, numbers=True)
        u = unit_vectors(encoder, [row["premise"] for row in rows])
        v = unit_vectors(encoder, [row["hypothesis"] for row in rows])
        return np.hstack([u, v, np.abs(u - v), u * v]), np.array([row["label"] for row in rows])

    train = features("en", 0, 300)
    dev = features("en", 1000, 60)
    test = features("de", 2000, 60)
    models = [LogisticRegression(C=strength, max_iter=1000).fit(*train) for strength in (0.1, 1, 10, 100)]
    best = max(models, key=lambda model: model.score(*dev))
    accuracy = best.score(*test)
    assert accuracy < 1
    assert metrics["xnli-nli-linear/en-de/test/accuracy"] == accuracy
    assert metrics["xnli-nli-linear/en-en/dev/accuracy"] == best.score(*dev)


def unit_vectors(encoder: RelationEncoder, texts: list[str]) -> np.ndarray:
    return unit(encoder.encode(texts).astype(np.float32))


def test_spellings_of_labels():
    spellings = {"entailment": "ENTAILMENT", "neutral": "NEUTRAL", "contradiction": "contradictory"}
    train = relations("en", 0, 300)
    for row in train:
        row["label"] = spellings[row["label"]]
    dev = relations("en", 1000, 60, numbers=True)
    for row in dev:
        row["label"] = str(row["label"])
    tests = {"en": relations("en", 2000, 60, numbers=True), "de": relations("de", 2000, 60)}

    metrics = infer(RelationEncoder(), train=train, dev=dev, tests=tests)
    assert metrics == infer(RelationEncoder())


@pytest.mark.parametrize("label", ["-", -1, "-1", -1.0, "", " ", None, float("nan")])
def test_rows_without_a_label_are_dropped_and_counted(label: Any, caplog: pytest.LogCaptureFixture):
    rows = {"train": relations("en", 0, 300), "dev": relations("en", 1000, 60)}
    tests = {language: relations(language, 2000, 60) for language in ("en", "de")}
    for labelled in (*rows.values(), tests["de"]):
        labelled[7:7] = [{**labelled[7], "label": label}] * 2

    metrics = infer(RelationEncoder(), tests=tests, **rows)
    assert metrics.pop("xnli-nli-linear/en-de/test/dropped") == 2
    assert metrics == infer(RelationEncoder())
    assert "tests['de']: 2 of 62 rows have no label and are skipped" in caplog.text

    unlabelled = [{**row, "label": label} for row in tests["en"]]
    with pytest.raises(XlsrError, match=r"tests\['de'\] has no row with a label"):
        infer(RelationEncoder(), tests={"de": unlabelled})


def test_trained_encoder(tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu")
    rows: dict[str, Any] = {
        "train": relations("en", 0, 12),
        "dev": relations("en", 12, 6),
        "tests": {"en": relations("en", 18, 6)},
    }
    metrics = infer(model, **rows, head="trained", epochs=1)
    splits = {key.rpartition("/")[0] for key in metrics}
    assert splits == {"xnli-nli-trained/en-en/dev", "xnli-nli-trained/en-en/test"}
