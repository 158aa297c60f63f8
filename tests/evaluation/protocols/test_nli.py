"""`nli` on an encoder whose vectors carry the relation, in one language, in all, and across two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression

from hf_xlsr.evaluation.protocols.nli import nli

LABELS = ("entailment", "neutral", "contradiction")


class RelationEncoder:
    """The hypothesis `en:7:entailment` lies beside the premise `en:7:`, the contradiction opposite, neutral elsewhere.

    `turned` languages have entailment and contradiction the other way round.
    """

    def __init__(self, turned: tuple[str, ...] = (), noise: float = 0.2, routes: tuple[str, ...] = ()):
        self.turned, self.noise, self.routes = turned, noise, routes
        self.routed: list[tuple[str | None, str]] = []  # task and language of each call
        self.seen: list[str] = []

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        self.routed.append((kwargs.get("task"), texts[0][:2]))
        self.seen += texts
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


def rows(language: str, start: int, count: int, numbers: bool = False) -> list[dict[str, Any]]:
    return [
        {
            "premise": f"{language}:{number}:",
            "hypothesis": f"{language}:{number}:{LABELS[number % 3]}",
            "label": number % 3 if numbers else LABELS[number % 3],
        }
        for number in range(start, start + count)
    ]


def run(encoder: Any, **changes: Any) -> dict[str, float]:
    arguments: dict[str, Any] = {
        "train": rows("en", 0, 300),
        "dev": rows("en", 1000, 60),
        "tests": {"en": rows("en", 2000, 60), "de": rows("de", 2000, 60)},
        "train_language": "en",
        "name": "xnli",
        "head": "linear",
    }
    return nli(encoder, **(arguments | changes))


@pytest.mark.parametrize(("head", "options"), [("linear", {}), ("mlp", {"epochs": 12})])
def test_cross_lingual_encoder_transfers(head: str, options: dict[str, Any]):
    metrics = run(RelationEncoder(), head=head, **options)
    assert set(metrics) == {
        f"xnli-nli-{head}/en-en/dev/accuracy",
        f"xnli-nli-{head}/en-en/test/accuracy",
        f"xnli-nli-{head}/en-en/test/pairs",
        f"xnli-nli-{head}/en-de/test/accuracy",
        f"xnli-nli-{head}/en-de/test/pairs",
    }
    assert metrics[f"xnli-nli-{head}/en-de/test/pairs"] == 60
    # A random hypothesis sometimes happens to lie beside or opposite its premise.
    for languages in ("en-en", "en-de"):
        assert metrics[f"xnli-nli-{head}/{languages}/test/accuracy"] > 0.85


def test_linear_equals_scikit_learn():
    encoder = RelationEncoder(noise=0.8)
    metrics = run(encoder)

    def features(language: str, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = rows(language, start, count, numbers=True)
        u, v = (encoder.encode([row[side] for row in chosen]).astype(np.float32) for side in ("premise", "hypothesis"))
        u, v = (side / np.sqrt((side**2).sum(1))[:, None] for side in (u, v))
        return np.hstack([u, v, np.abs(u - v), u * v]), np.array([row["label"] for row in chosen])

    train, dev, test = features("en", 0, 300), features("en", 1000, 60), features("de", 2000, 60)
    models = [LogisticRegression(C=strength, max_iter=1000).fit(*train) for strength in (0.1, 1, 10, 100)]
    best = max(models, key=lambda model: model.score(*dev))
    assert metrics["xnli-nli-linear/en-en/dev/accuracy"] == best.score(*dev)
    assert metrics["xnli-nli-linear/en-de/test/accuracy"] == best.score(*test) < 1


def test_cross_tests_all_pairs_of_languages():
    tests = {language: rows(language, 2000, 60) for language in ("en", "de", "sw")}
    metrics = run(RelationEncoder(turned=("sw",)), tests=tests, cross=True)
    accuracies = {key.split("/")[1][3:]: value for key, value in metrics.items() if key.endswith("test/accuracy")}
    assert set(accuracies) == {"en", "de", "sw", "en_de", "en_sw", "de_en", "de_sw", "sw_en", "sw_de"}
    # The encoder turns the hypotheses of `sw`, whatever the premise: only the neutral ones are then right.
    assert {name for name, value in accuracies.items() if value < 0.4} == {"sw", "en_sw", "de_sw"}
    assert all(value > 0.85 for name, value in accuracies.items() if not name.endswith("sw"))
    alone = run(RelationEncoder(turned=("sw",)), tests=tests)
    assert {key: metrics[key] for key in alone} == alone


def test_cross_encodes_each_side_once_by_its_route():
    encoder = RelationEncoder(routes=("en", "de"))
    run(encoder, cross=True)
    tested = [text for text in encoder.seen if int(text.split(":")[1]) >= 2000]
    assert len(tested) == len(set(tested)) == 240
    assert sorted(encoder.routed[-4:]) == [("de", "de")] * 2 + [("en", "en")] * 2


def test_spellings_of_labels():
    expected = run(RelationEncoder())
    spelled = [
        {**row, "label": {"contradiction": "contradictory"}.get(row["label"], row["label"].upper())}
        for row in rows("en", 0, 300)
    ]
    dev = [{**row, "label": str(row["label"])} for row in rows("en", 1000, 60, numbers=True)]
    tests = {"en": rows("en", 2000, 60, numbers=True), "de": rows("de", 2000, 60)}
    assert run(RelationEncoder(), train=spelled, dev=dev, tests=tests) == expected


def test_trained_encoder(tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu")
    learn, dev, tests = rows("en", 0, 12), rows("en", 12, 6), {"en": rows("en", 18, 6)}
    metrics = run(model, train=learn, dev=dev, tests=tests, head="trained", epochs=1, cross=True)
    assert set(metrics) == {
        "xnli-nli-trained/en-en/dev/accuracy",
        "xnli-nli-trained/en-en/test/accuracy",
        "xnli-nli-trained/en-en/test/pairs",
    }
