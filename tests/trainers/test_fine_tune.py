"""`FineTuneTrainer`: metrics, and evaluation on one and two processes."""

from __future__ import annotations

import random
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ENGLISH, FRENCH, tiny_encoder
from datasets import Dataset

from hf_xlsr import HictlConfig
from hf_xlsr.data.encoding import encode_texts
from hf_xlsr.data.label_tasks import LabelledSet, LabelledTask
from hf_xlsr.data.prepared import PreparedRows
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification
from hf_xlsr.trainers.fine_tune import METRICS, LiveClassifier, evaluate_sets, metric_keys

TASK = LabelledTask(texts="single", labels=("calm", "red"), metrics=("accuracy", "f1"))
PAIRS = LabelledTask(labels=("other", "same", "unknown"))


@cache
def tokenizer() -> Any:
    rng = random.Random(1)
    texts = [" ".join(rng.choices(words, k=5)) for words in (ENGLISH, FRENCH) for _ in range(100)]
    return train_tokenizer(texts, vocab_size=90, algorithm="bpe", frame=True, max_length=32)


def make_rows(count: int, seed: int = 1, task: LabelledTask = TASK) -> list[dict[str, Any]]:
    """Texts whose label hangs on the first word, in two languages."""
    rng, rows = random.Random(seed), []
    for number in range(count):
        words = ENGLISH if number % 2 else FRENCH
        texts = [" ".join(rng.choices(words, k=rng.randint(2, 6))) for _ in task.columns]
        label = int(words.index(texts[0].split()[0]) < 10)
        row = dict(zip(task.columns, texts, strict=True))
        rows.append({**row, "lang": "en" if number % 2 else "fr", "label": label})
    return rows


def make_data() -> PreparedRows:
    rows = make_rows(96, seed=5)
    columns, _ = encode_texts([[row["text"] for row in rows]], tokenizer(), 32)
    table = {
        **columns,
        "label": [row["label"] for row in rows],
        "length": [len(ids) for ids in columns["input_ids"]],
        "lang": [row["lang"] for row in rows],
    }
    return PreparedRows(Dataset.from_dict(table), {"languages": ["en", "fr"], "labels": dict.fromkeys(TASK.labels, 1)})


def make_model(num_labels: int = 2, dropout: float = 0.1) -> HictlForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    encoder = {**tiny_encoder(len(tokenizer())), **sizes}
    return HictlForSequenceClassification(HictlConfig(text_config=encoder, num_labels=num_labels))


def test_metrics_hand_worked() -> None:
    logits = np.array([[2, 1], [0, 1], [0, 3], [5, 4], [0, 1]], dtype=np.float32)  # predicts 0 1 1 0 1
    gold = np.array([0, 1, 0, 1, 1])
    assert METRICS["accuracy"](logits, gold) == 0.6
    assert METRICS["f1"](logits, gold) == pytest.approx(2 / 3)  # two right of three predicted and three there
    assert METRICS["matthews"](logits, gold) == pytest.approx((2 * 1 - 1 * 1) / (3 * 3 * 2 * 2) ** 0.5)
    scores, of = np.array([[1.0], [2.0], [3.0]], dtype=np.float32), np.array([1.0, 5.0, 3.0])
    assert METRICS["pearson"](scores, of) == pytest.approx(0.5)
    assert METRICS["spearman"](scores, of) == pytest.approx(0.5)


def test_metrics_by_language() -> None:
    rows = [
        {"first": "", "second": "", "lang": lang, "label": label}
        for lang, label in (("en", 0), ("de", 1), ("en", 2), ("de", 0), ("de", 2), ("zh", 1))
    ]
    sets = [LabelledSet("xnli", "test", rows, PAIRS), LabelledSet("anli", "dev", rows[:1], PAIRS)]
    # Right are: en both, de one of three, zh none.
    logits = [[9, 0, 0], [9, 0, 0], [0, 0, 9], [0, 9, 0], [0, 0, 9], [0, 0, 9]]
    given = {"xnli": logits, "anli": [[0, 0, 9]]}
    classifier: Any = SimpleNamespace(logits=lambda data: np.array(given[data.name], dtype=np.float32))
    metrics = evaluate_sets(classifier, sets, protocol="translate-train-all")
    assert metrics == {
        "xnli-translate-train-all/en/test/accuracy": 1.0,
        "xnli-translate-train-all/en/test/rows": 2,
        "xnli-translate-train-all/de/test/accuracy": pytest.approx(1 / 3),
        "xnli-translate-train-all/de/test/rows": 3,
        "xnli-translate-train-all/zh/test/accuracy": 0.0,
        "xnli-translate-train-all/zh/test/rows": 1,
        "anli-translate-train-all/en/dev/accuracy": 0.0,
        "anli-translate-train-all/en/dev/rows": 1,
        "xnli-translate-train-all/mean-of-3/test/accuracy": pytest.approx(4 / 9),
    }
    scores = {key for key in metrics if not key.endswith("/rows")}
    assert set(metric_keys(sets, protocol="translate-train-all")) == scores


@pytest.mark.parametrize("task", [TASK, PAIRS])
def test_logits_are_those_of_each_row_alone(task: LabelledTask) -> None:
    model = make_model(task.num_labels).double().train()
    data = LabelledSet("toy", "dev", make_rows(21, seed=9, task=task), task)
    classifier = LiveClassifier(model, tokenizer(), max_length=40, batch_size=4)
    logits = classifier.logits(data)
    assert logits.shape == (21, task.num_labels) and model.training
    model.eval()
    for row, got in zip(data.rows, logits, strict=True):
        ids = tokenizer()(*(row[name] for name in task.columns), return_tensors="pt")["input_ids"]
        np.testing.assert_allclose(got, model(ids).logits[0].detach().numpy(), rtol=1e-5, atol=1e-6)
    # Rows are cut to the length asked for.
    short = LiveClassifier(model, tokenizer(), max_length=6).logits(data)
    assert not np.allclose(short, logits)
