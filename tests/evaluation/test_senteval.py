from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from senteval_helpers import folds_alone, nested_alone, train_alone
from sklearn.metrics import f1_score

from hf_xlsr.evaluation.protocols.senteval import senteval
from hf_xlsr.evaluation.senteval_classifiers import Schedule, relatedness

WIDTH = 24
FAST = Schedule(batch_size=128, passes_per_check=2, tenacity=3)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_xlsr.evaluation.senteval_classifiers.FOLDS", 5)
    monkeypatch.setattr("hf_xlsr.evaluation.senteval_classifiers.SCHEDULE", FAST)


class Words:
    """The mean of random vectors of the words; longer than 1, and of different lengths."""

    def encode(self, texts: Sequence[str], **options: Any) -> np.ndarray:
        assert not options["normalize_embeddings"]
        return np.array([self.vector(text) for text in texts], np.float32)

    @staticmethod
    def vector(text: str) -> np.ndarray:
        seeds = [list(word.encode()) for word in text.split() or "-"]
        vectors = [np.random.default_rng(seed).normal(size=WIDTH) for seed in seeds]
        return 2 * np.mean(vectors, axis=0).astype(np.float32)


def sentences(count: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        words = [f"w{random.integers(40)}" for _ in range(random.integers(2, 6))]
        texts.append(" ".join(words))
    return texts


def labelled(count: int, *, splits: Sequence[str] = (), seed: int = 0) -> list[dict[str, Any]]:
    """Sentences whose label is mostly the sign of one number of their vectors."""
    random = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for number, text in enumerate(sentences(count, seed)):
        noisy_sum = Words.vector(text)[:6].sum() + 0.5 * random.normal()
        row = {"text": text, "label": int(noisy_sum > 0)}
        if splits:
            row["split"] = splits[number % len(splits)]
        rows.append(row)
    return rows


def pairs(count: int, *, splits: Sequence[str], seed: int = 0) -> list[dict[str, Any]]:
    """Pairs whose score falls, from 5 to 1, with how far the two vectors are apart."""
    rows = []
    more_texts = sentences(count, seed + 1)
    for number, first in enumerate(sentences(count, seed)):
        second = first
        if number % 3:
            words = [*first.split(), *more_texts[number].split()]
            second = " ".join(words[: 3 + number % 3])

        distance = np.abs(Words.vector(first) - Words.vector(second)).mean()
        score = float(np.clip(5 - 3 * distance, 1, 5))
        row = {
            "sentence1": first,
            "sentence2": second,
            "score": score,
            "label": int(score > 3.5),
            "split": splits[number % len(splits)],
        }
        rows.append(row)
    return rows


def in_order(rows: Sequence[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """Rows as the toolkit sorts them: by the numbers of words, then by the last column."""
    *texts, gold = columns

    def key(row: dict[str, Any]) -> tuple[float, ...]:
        counts = [len(row[text].split()) for text in texts]
        return (*counts, row[gold])

    return sorted(rows, key=key)


def of_splits(rows: Sequence[dict[str, Any]], *splits: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["split"] in splits]


def vectors_of(rows: Sequence[dict[str, Any]], *columns: str) -> np.ndarray:
    sides = []
    for column in columns:
        sides.append(np.array([Words.vector(row[column]) for row in rows]))
    if len(sides) == 1:
        return sides[0]

    u, v = sides
    return np.hstack([np.abs(u - v), u * v])


def gold_of(rows: Sequence[dict[str, Any]], column: str = "label") -> np.ndarray:
    return np.array([row[column] for row in rows])


def test_nested_task_equals_the_toolkit():
    rows = labelled(140)
    metrics = senteval(Words(), {"MR": rows})

    ordered = in_order(rows, "text", "label")
    assert ordered != rows
    dev, test = nested_alone(vectors_of(ordered, "text"), gold_of(ordered), 5, schedule=FAST)
    assert metrics == {
        "MR-senteval/en/test/accuracy": pytest.approx(test),
        "MR-senteval/en/test/sentences": 140,
        "MR-senteval/en/dev/accuracy": pytest.approx(dev),
    }
    assert 0.5 < test < 1


def test_mrpc_equals_the_toolkit():
    rows = pairs(160, splits=["train", "test", "train", "val"])
    metrics = senteval(Words(), {"MRPC": rows}, seed=4)

    train = in_order(of_splits(rows, "train", "val"), "sentence1", "sentence2", "label")
    test = in_order(of_splits(rows, "test"), "sentence1", "sentence2", "label")
    options: dict[str, Any] = {"schedule": FAST, "seed": 4}
    features = vectors_of(train, "sentence1", "sentence2")
    labels = gold_of(train)
    decay, dev = folds_alone(features, labels, 5, 4, **options)
    final = train_alone(features, labels, None, decay=decay, **options)
    predicted = final.predict(vectors_of(test, "sentence1", "sentence2"))

    assert metrics == {
        "MRPC-senteval/en/test/accuracy": pytest.approx((predicted == gold_of(test)).mean()),
        "MRPC-senteval/en/test/f1": pytest.approx(f1_score(gold_of(test), predicted)),
        "MRPC-senteval/en/test/pairs": 40,
        "MRPC-senteval/en/dev/accuracy": pytest.approx(dev),
    }
    assert 0 < metrics["MRPC-senteval/en/test/f1"] < 1


def test_fixed_dev_equals_the_toolkit():
    rows = labelled(200, splits=["train", "train", "dev", "test"])
    metrics = senteval(Words(), {"SST2": rows})

    train = in_order(of_splits(rows, "train"), "text", "label")
    features = vectors_of(train, "text")
    labels = gold_of(train)
    dev_rows = in_order(of_splits(rows, "dev"), "text", "label")
    dev = vectors_of(dev_rows, "text"), gold_of(dev_rows)
    classifiers = []
    for decay in (1e-5, 1e-4, 1e-3, 1e-2):
        classifiers.append(train_alone(features, labels, dev, decay=decay, schedule=FAST))
    best = max(classifiers, key=lambda classifier: classifier.score)

    test = of_splits(rows, "test")
    is_right = best.predict(vectors_of(test, "text")) == gold_of(test)
    assert metrics["SST2-senteval/en/dev/accuracy"] == best.score
    assert metrics["SST2-senteval/en/test/accuracy"] == is_right.mean()


def test_relatedness_of_sorted_pairs():
    rows = pairs(120, splits=["train", "trial", "test"])
    metrics = senteval(Words(), {"SICK-R": rows}, seed=2)

    ordered = in_order(rows, "sentence1", "sentence2", "score")
    splits = gold_of(ordered, "split")
    numbers = [np.flatnonzero(splits == split) for split in ("train", "trial", "test")]
    features = vectors_of(ordered, "sentence1", "sentence2")
    dev, tested, _ = relatedness(features, gold_of(ordered, "score"), *numbers, seed=2)

    expected = {
        "SICK-R-senteval/en/test/pearson": tested["pearson"],
        "SICK-R-senteval/en/test/spearman": tested["spearman"],
        "SICK-R-senteval/en/test/mse": tested["mse"],
        "SICK-R-senteval/en/test/pairs": 40,
        "SICK-R-senteval/en/dev/pearson": dev,
    }
    assert metrics == pytest.approx(expected, abs=1e-4)
    assert metrics["SICK-R-senteval/en/test/pearson"] > 0.3
