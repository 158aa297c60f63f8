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
    forward = np.mean([np.argmax(row) == i for i, row in enumerate(similarities)])
    backward = np.mean([np.argmax(column) == i for i, column in enumerate(similarities.T)])
    assert 0.2 < forward < 0.95 and forward != backward
    found: dict[str, float] = {}
    for protocol in PROTOCOLS:
        found |= protocol(encoder, sources, targets, languages=LANGUAGES, name="toy")
    found = {key.replace("/en-de/test", ""): value for key, value in found.items()}
    assert found.pop("toy-tatoeba-mteb/f1") < forward and found.pop("toy-tatoeba-mteb/precision") < 1
    assert {key: value for key, value in found.items() if not key.endswith("/pairs")} == pytest.approx(
        {
            "toy-tatoeba/source_to_target_accuracy": forward,
            "toy-tatoeba/target_to_source_accuracy": backward,
            "toy-tatoeba/accuracy": (forward + backward) / 2,
            "toy-tatoeba-laser/source_to_target_error": 1 - forward,
            "toy-tatoeba-laser/target_to_source_error": 1 - backward,
            "toy-tatoeba-laser/error": 1 - (forward + backward) / 2,
            "toy-tatoeba-xtreme/accuracy": forward,
            "toy-tatoeba-mteb/accuracy": forward,
            "toy-tatoeba-mteb/recall": forward,
        }
    )


def test_mteb_equals_mteb():
    mteb = pytest.importorskip("mteb")
    from mteb.models import SentenceTransformerEncoderWrapper

    model, (sources, targets) = word_model(), word_pairs(150)
    targets[100:130] = targets[:30]
    task = mteb.get_task("Tatoeba", languages=["deu"])
    rows = Dataset.from_dict({"sentence1": sources, "sentence2": targets})
    task.dataset, task.data_loaded = {"deu-eng": {"test": rows}}, True
    wrapped = SentenceTransformerEncoderWrapper(model)
    options = {"batch_size": 32, "show_progress_bar": False}
    theirs = task.evaluate(wrapped, "test", subsets_to_run=["deu-eng"], encode_kwargs=options)["deu-eng"]
    ours = tatoeba_mteb(model, sources, targets, languages=("de", "en"), name="toy")
    assert 0.3 < theirs["f1"] < 0.95
    for metric in ("f1", "precision", "recall", "accuracy"):
        assert ours[f"toy-tatoeba-mteb/de-en/test/{metric}"] == pytest.approx(theirs[metric], abs=1e-9)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sentences_are_compared_by_number(protocol: Any):
    encoder = TableEncoder({"a": [1.0, 0.0], "b": [0.9, 0.1], "c": [0.0, 1.0], "same": [1.0, 0.05], "C": [0.0, 1.0]})
    metrics = protocol(encoder, ["a", "b", "c"], ["same", "same", "C"], languages=LANGUAGES, name="toy")
    prefix = f"toy-{protocol.__name__.replace('_', '-')}/en-de/test"
    metric, right = {
        tatoeba: ("source_to_target_accuracy", 2 / 3),
        tatoeba_laser: ("source_to_target_error", 1 / 3),
    }.get(protocol, ("accuracy", 2 / 3))
    assert metrics[f"{prefix}/{metric}"] == pytest.approx(right)
