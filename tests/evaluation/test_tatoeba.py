"""`tatoeba` and its variants: by hand, against naive twins, sentence-transformers and mteb."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bitext_helpers import TableEncoder, cosines, noisy, word_model, word_pairs
from datasets import Dataset
from sentence_transformers.sentence_transformer.evaluation import TranslationEvaluator

from hf_xlsr.evaluation import tatoeba, tatoeba_laser, tatoeba_mteb, tatoeba_xtreme

PROTOCOLS = (tatoeba, tatoeba_laser, tatoeba_xtreme, tatoeba_mteb)
LANGUAGES = ("en", "de")


def test_hand_example():
    # b is nearest to B, but so is a; B's nearest is b and A's is b as well.
    encoder = TableEncoder({"a": [0.8, 0.6], "b": [0.9, 0.45], "A": [1.0, 0.3], "B": [0.85, 0.55]})
    assert tatoeba(encoder, ["a", "b"], ["A", "B"]) == {
        "tatoeba/en-fr/test/source_to_target_accuracy": 0.5,
        "tatoeba/en-fr/test/target_to_source_accuracy": 0.0,
        "tatoeba/en-fr/test/accuracy": 0.25,
        "tatoeba/en-fr/test/pairs": 2,
    }


def test_equals_translation_evaluator():
    model, (source_texts, target_texts) = word_model(), word_pairs(120)
    theirs = TranslationEvaluator(source_texts, target_texts, write_csv=False)(model)
    ours = tatoeba(model, source_texts, target_texts, languages=("en", "de"), name="toy", split="dev")
    assert 0.3 < theirs["src2trg_accuracy"] < 1
    assert ours["toy-tatoeba/en-de/dev/source_to_target_accuracy"] == pytest.approx(theirs["src2trg_accuracy"])
    assert ours["toy-tatoeba/en-de/dev/target_to_source_accuracy"] == pytest.approx(theirs["trg2src_accuracy"])
    assert ours["toy-tatoeba/en-de/dev/accuracy"] == pytest.approx(theirs["mean_accuracy"])


def test_hand_example_of_mteb():
    # Both sources choose A: class A has precision 1/2 and recall 1, class B nothing; the mean is weighted 1 to 1.
    encoder = TableEncoder({"a": [1.0, 0.0], "b": [0.8, 0.6], "A": [0.96, 0.28], "B": [0.0, 1.0]})
    assert tatoeba_mteb(encoder, ["a", "b"], ["A", "B"], languages=LANGUAGES, name="toy") == {
        "toy-tatoeba-mteb/en-de/test/f1": pytest.approx((2 / 3 + 0) / 2),
        "toy-tatoeba-mteb/en-de/test/precision": 0.25,
        "toy-tatoeba-mteb/en-de/test/recall": 0.5,
        "toy-tatoeba-mteb/en-de/test/accuracy": 0.5,
        "toy-tatoeba-mteb/en-de/test/pairs": 2,
    }


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


@pytest.mark.parametrize("repeat", [0, 30], ids=["distinct", "equal targets"])
def test_mteb_equals_mteb(repeat: int):
    mteb = pytest.importorskip("mteb")
    from mteb.models import SentenceTransformerEncoderWrapper

    model, (sources, targets) = word_model(), word_pairs(150)
    targets[100 : 100 + repeat] = targets[:repeat]
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
    assert theirs["main_score"] == theirs["f1"]


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


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_prompt_and_routes(protocol: Any):
    encoder = TableEncoder({"query: a": [1.0, 0.0], "query: A": [1.0, 0.0]})
    encoder.routes = ("first", "second")
    routes = {"en": "first", "de": "second"}
    protocol(encoder, ["a"], ["A"], languages=LANGUAGES, name="toy", prompt="query: ", routes=routes)
    assert encoder.tasks == ["first", "second"]
