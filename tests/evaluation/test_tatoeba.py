"""`tatoeba` and its variants against naive twins and mteb."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bitext_helpers import TableEncoder, cosines, noisy, word_model, word_pairs
from datasets import Dataset

from hf_xlsr.evaluation import tatoeba, tatoeba_laser, tatoeba_mteb, tatoeba_xtreme

PROTOCOLS = (tatoeba, tatoeba_laser, tatoeba_xtreme, tatoeba_mteb)
LANGUAGES = ("en", "de")


def test_all_equal_the_naive_twin():
    encoder, sources, targets = noisy(200, noise=1.2)
    similarities = cosines(encoder, sources, targets)
    rows = np.arange(200)
    forward = np.mean(similarities.argmax(axis=1) == rows)
    backward = np.mean(similarities.argmax(axis=0) == rows)
    assert 0.2 < forward < 0.95
    assert forward != backward

    metrics: dict[str, float] = {}
    for protocol in PROTOCOLS:
        results = protocol(encoder, sources, targets, languages=LANGUAGES, name="toy")
        for key, value in results.items():
            metrics[key.replace("/en-de/test", "")] = value

    assert metrics.pop("toy-tatoeba-mteb/f1") < forward
    assert metrics.pop("toy-tatoeba-mteb/precision") < 1
    assert metrics == pytest.approx(
        {
            "toy-tatoeba/source_to_target_accuracy": forward,
            "toy-tatoeba/target_to_source_accuracy": backward,
            "toy-tatoeba/accuracy": (forward + backward) / 2,
            "toy-tatoeba/pairs": 200,
            "toy-tatoeba-laser/source_to_target_error": 1 - forward,
            "toy-tatoeba-laser/target_to_source_error": 1 - backward,
            "toy-tatoeba-laser/error": 1 - (forward + backward) / 2,
            "toy-tatoeba-laser/pairs": 200,
            "toy-tatoeba-xtreme/accuracy": forward,
            "toy-tatoeba-xtreme/pairs": 200,
            "toy-tatoeba-mteb/accuracy": forward,
            "toy-tatoeba-mteb/recall": forward,
            "toy-tatoeba-mteb/pairs": 200,
        }
    )


def test_mteb_equals_mteb():
    mteb = pytest.importorskip("mteb")
    from mteb.models import SentenceTransformerEncoderWrapper

    model = word_model()
    sources, targets = word_pairs(150)
    targets[100:130] = targets[:30]
    metrics = tatoeba_mteb(model, sources, targets, languages=("de", "en"), name="toy")

    task = mteb.get_task("Tatoeba", languages=["deu"])
    rows = Dataset.from_dict({"sentence1": sources, "sentence2": targets})
    task.dataset = {"deu-eng": {"test": rows}}
    task.data_loaded = True
    wrapped = SentenceTransformerEncoderWrapper(model)
    options = {"batch_size": 32, "show_progress_bar": False}
    expected = task.evaluate(wrapped, "test", subsets_to_run=["deu-eng"], encode_kwargs=options)["deu-eng"]
    assert 0.3 < expected["f1"] < 0.95
    for metric in ("f1", "precision", "recall", "accuracy"):
        assert metrics[f"toy-tatoeba-mteb/de-en/test/{metric}"] == pytest.approx(expected[metric], abs=1e-9)


@pytest.mark.parametrize(
    ("protocol", "metric", "expected"),
    [
        (tatoeba, "tatoeba/en-de/test/source_to_target_accuracy", 2 / 3),
        (tatoeba_laser, "tatoeba-laser/en-de/test/source_to_target_error", 1 / 3),
        (tatoeba_xtreme, "tatoeba-xtreme/en-de/test/accuracy", 2 / 3),
        (tatoeba_mteb, "tatoeba-mteb/en-de/test/accuracy", 2 / 3),
    ],
)
def test_sentences_are_compared_by_number(protocol: Any, metric: str, expected: float):
    vectors = {"a": [1.0, 0.0], "b": [0.9, 0.1], "c": [0.0, 1.0], "same": [1.0, 0.05], "C": [0.0, 1.0]}
    encoder = TableEncoder(vectors)
    metrics = protocol(encoder, ["a", "b", "c"], ["same", "same", "C"], languages=LANGUAGES, name="toy")
    assert metrics[f"toy-{metric}"] == pytest.approx(expected)
