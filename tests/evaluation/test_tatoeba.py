from __future__ import annotations

import numpy as np
import pytest
from bitext_helpers import TableEncoder, cosines, noisy, word_model, word_pairs
from sentence_transformers.sentence_transformer.evaluation import TranslationEvaluator

from hf_xlsr.evaluation import tatoeba
from hf_xlsr.utils.errors import XlsrError


def test_hand_example():
    # b is nearest to B, but so is a; B's nearest is b and A's is b as well.
    encoder = TableEncoder({"a": [0.8, 0.6], "b": [0.9, 0.45], "A": [1.0, 0.3], "B": [0.85, 0.55]})
    assert tatoeba(encoder, ["a", "b"], ["A", "B"]) == {
        "tatoeba/en-fr/test/source_to_target_accuracy": 0.5,
        "tatoeba/en-fr/test/target_to_source_accuracy": 0.0,
        "tatoeba/en-fr/test/accuracy": 0.25,
        "tatoeba/en-fr/test/pairs": 2,
    }


def test_equals_the_naive_twin():
    encoder, sources, targets = noisy(200, noise=1.2)
    similarities = cosines(encoder, sources, targets)
    forward = np.mean([np.argmax(row) == i for i, row in enumerate(similarities)])
    backward = np.mean([np.argmax(column) == i for i, column in enumerate(similarities.T)])
    assert 0.2 < forward < 0.95 and forward != backward
    metrics = tatoeba(encoder, sources, targets)
    assert metrics["tatoeba/en-fr/test/source_to_target_accuracy"] == pytest.approx(forward)
    assert metrics["tatoeba/en-fr/test/target_to_source_accuracy"] == pytest.approx(backward)
    assert metrics["tatoeba/en-fr/test/accuracy"] == pytest.approx((forward + backward) / 2)


def test_perfect_encoder_and_unrelated_vectors():
    encoder, sources, targets = noisy(300, noise=0.0)
    assert tatoeba(encoder, sources, targets)["tatoeba/en-fr/test/accuracy"] == 1.0
    encoder, sources, targets = noisy(300, noise=1e6)
    assert tatoeba(encoder, sources, targets)["tatoeba/en-fr/test/accuracy"] < 0.03


def test_order_of_the_pairs_does_not_matter():
    encoder, sources, targets = noisy(150, noise=1.0)
    order = np.random.default_rng(1).permutation(150)
    shuffled = tatoeba(encoder, [sources[i] for i in order], [targets[i] for i in order])
    assert shuffled == tatoeba(encoder, sources, targets)


def test_sentences_are_compared_by_number():
    encoder = TableEncoder({"a": [1.0, 0.0], "b": [0.9, 0.1], "c": [0.0, 1.0], "same": [1.0, 0.05], "C": [0.0, 1.0]})
    metrics = tatoeba(encoder, ["a", "b", "c"], ["same", "same", "C"])
    assert metrics["tatoeba/en-fr/test/source_to_target_accuracy"] == pytest.approx(2 / 3)


def test_agrees_with_translation_evaluator_when_no_text_repeats():
    model, (source_texts, target_texts) = word_model(), word_pairs(120)
    theirs = TranslationEvaluator(source_texts, target_texts, write_csv=False)(model)
    ours = tatoeba(model, source_texts, target_texts, languages=("en", "de"), name="toy", split="dev")
    assert 0.3 < theirs["src2trg_accuracy"] < 1
    assert ours["toy-tatoeba/en-de/dev/source_to_target_accuracy"] == pytest.approx(theirs["src2trg_accuracy"])
    assert ours["toy-tatoeba/en-de/dev/target_to_source_accuracy"] == pytest.approx(theirs["trg2src_accuracy"])
    assert ours["toy-tatoeba/en-de/dev/accuracy"] == pytest.approx(theirs["mean_accuracy"])


def test_prompt_and_routes_reach_the_encoder():
    encoder = TableEncoder({"query: a": [1.0, 0.0], "query: A": [1.0, 0.0]})
    encoder.routes = ("source", "target")
    routes = {"en": "source", "fr": "target"}
    tatoeba(encoder, ["a"], ["A"], prompt="query: ", routes=routes)
    assert encoder.tasks == ["source", "target"]


def test_mistakes_are_named():
    encoder, sources, targets = noisy(3, noise=0.0)
    with pytest.raises(XlsrError, match="3 sources and 2 targets"):
        tatoeba(encoder, sources, targets[:2])
    with pytest.raises(XlsrError, match="texts"):
        tatoeba(encoder, [], [])
    encoder.table["s0"] = np.zeros(16)
    with pytest.raises(XlsrError, match=r"a vector of zeros for 's0' \(1 such sentences\)"):
        tatoeba(encoder, sources, targets)
