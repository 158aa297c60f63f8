from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from senteval_helpers import folds_alone, nested_alone, train_alone
from sklearn.metrics import f1_score

from hf_xlsr.evaluation.protocols.senteval import senteval
from hf_xlsr.evaluation.senteval import Schedule, relatedness

WIDTH = 24
FAST = Schedule(batch_size=128, passes_per_check=2, tenacity=3)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_xlsr.evaluation.senteval.FOLDS", 5)
    monkeypatch.setattr("hf_xlsr.evaluation.senteval.SCHEDULE", FAST)


class Words:
    """The mean of random vectors of the words; longer than 1, and of different lengths."""

    def encode(self, texts: Sequence[str], **options: Any) -> np.ndarray:
        assert not options["normalize_embeddings"]
        return np.array([self.vector(text) for text in texts], np.float32)

    @staticmethod
    def vector(text: str) -> np.ndarray:
        drawn = [np.random.default_rng(list(word.encode())).normal(size=WIDTH) for word in text.split() or "-"]
        return 2 * np.mean(drawn, axis=0).astype(np.float32)


def sentences(count: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(f"w{random.integers(40)}" for _ in range(random.integers(2, 6))) for _ in range(count)]


def labelled(count: int, *, splits: Sequence[str] = (), seed: int = 0) -> list[dict[str, Any]]:
    """Sentences whose label is mostly the sign of one number of their vectors."""
    random = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for number, text in enumerate(sentences(count, seed)):
        noisy = Words.vector(text)[:6].sum() + 0.5 * random.normal()
        rows.append({"text": text, "label": int(noisy > 0)})
        if splits:
            rows[-1]["split"] = splits[number % len(splits)]
    return rows


def pairs(count: int, *, splits: Sequence[str], seed: int = 0) -> list[dict[str, Any]]:
    """Pairs whose score falls, from 5 to 1, with how far the two vectors are apart."""
    rows = []
    for number, (one, other) in enumerate(zip(sentences(count, seed), sentences(count, seed + 1), strict=True)):
        second = one if number % 3 == 0 else " ".join([*one.split(), *other.split()][: 3 + number % 3])
        apart = float(np.abs(Words.vector(one) - Words.vector(second)).mean())
        score = float(np.clip(5 - 3 * apart, 1, 5))
        row = {"sentence1": one, "sentence2": second, "score": score, "label": int(score > 3.5)}
        rows.append({**row, "split": splits[number % len(splits)]})
    return rows


def in_order(rows: Sequence[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    """Rows as the toolkit sorts them: by the numbers of words, then by the last column."""
    *texts, gold = columns
    return sorted(rows, key=lambda row: (*(len(row[text].split()) for text in texts), row[gold]))


def vectors_of(rows: Sequence[dict[str, Any]], *columns: str) -> np.ndarray:
    sides = [np.array([Words.vector(row[column]) for row in rows]) for column in columns]
    if len(sides) == 1:
        return sides[0]
    return np.hstack([np.abs(sides[0] - sides[1]), sides[0] * sides[1]])


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
    learn, test = (
        in_order([row for row in rows if (row["split"] == "test") == tested], "sentence1", "sentence2", "label")
        for tested in (False, True)
    )
    options: dict[str, Any] = {"schedule": FAST, "seed": 4}
    features, labels = vectors_of(learn, "sentence1", "sentence2"), gold_of(learn)
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
    parts = [in_order([row for row in rows if row["split"] == split], "text", "label") for split in ("train", "dev")]
    (train, labels), dev = ((vectors_of(part, "text"), gold_of(part)) for part in parts)
    alone = [train_alone(train, labels, dev, decay=decay, schedule=FAST) for decay in (1e-5, 1e-4, 1e-3, 1e-2)]
    best = max(alone, key=lambda one: one.score)
    test = [row for row in rows if row["split"] == "test"]
    assert metrics["SST2-senteval/en/dev/accuracy"] == best.score
    expected = float((best.predict(vectors_of(test, "text")) == gold_of(test)).mean())
    assert metrics["SST2-senteval/en/test/accuracy"] == expected


def test_relatedness_of_sorted_pairs():
    rows = pairs(120, splits=["train", "trial", "test"])
    metrics = senteval(Words(), {"SICK-R": rows}, seed=2)
    ordered = in_order(rows, "sentence1", "sentence2", "score")
    parts = [np.array([n for n, row in enumerate(ordered) if row["split"] == s]) for s in ("train", "trial", "test")]
    features = vectors_of(ordered, "sentence1", "sentence2")
    dev, tested = relatedness(features, gold_of(ordered, "score"), *parts, seed=2)
    expected = {f"SICK-R-senteval/en/test/{name}": pytest.approx(value, abs=1e-4) for name, value in tested.items()}
    dev_key = "SICK-R-senteval/en/dev/pearson"
    assert metrics == {**expected, "SICK-R-senteval/en/test/pairs": 40, dev_key: pytest.approx(dev, abs=1e-4)}
    assert metrics["SICK-R-senteval/en/test/pearson"] > 0.3
