from __future__ import annotations

import numpy as np
import pytest

from hf_xlsr.evaluation.averages import mean_over_languages


def test_hand_example():
    metrics = {
        "tatoeba/en-fr/test/accuracy": 0.9,
        "tatoeba/en-fr/test/pairs": 1000,
        "tatoeba/en-de/test/accuracy": 0.6,
        "tatoeba/en-de/test/pairs": 800,
        "tatoeba/en-sw/test/accuracy": 0.3,
        "tatoeba/en-sw/test/pairs": 390,
    }
    averaged = mean_over_languages(metrics)
    assert averaged == metrics | {"tatoeba/mean-of-3/test/accuracy": pytest.approx(0.6)}  # not weighted by pairs
    assert list(averaged)[:6] == list(metrics)


def test_training_language_and_mixed_pairs_are_excluded():
    cells = {"en-en": 0.9, "en-de": 0.5, "en-fr": 0.7, "en-de_fr": 0.1}
    metrics = {f"xnli-nli-mlp/{pair}/test/accuracy": value for pair, value in cells.items()}
    averaged = mean_over_languages(metrics)
    assert averaged == metrics | {"xnli-nli-mlp/mean-of-2/test/accuracy": pytest.approx(0.6)}
    cells = {"zho-Hans-zho-Hans": 0.9, "zho-Hans-zho-Hant": 0.4, "zho-Hans-en": 0.2}
    metrics = {f"sib-zero-shot/{pair}/test/accuracy": value for pair, value in cells.items()}
    averaged = mean_over_languages(metrics)
    assert averaged == metrics | {"sib-zero-shot/mean-of-2/test/accuracy": pytest.approx(0.3)}


def test_counts_and_thresholds_have_no_mean():
    metrics = {
        "news-bucc-k4-ratio/de-en/test/threshold": 1.08,
        "news-bucc-k4-ratio/fr-en/test/threshold": 1.10,
        "news-bucc-k4-ratio/de-en/test/pairs": 10,
        "news-bucc-k4-ratio/fr-en/test/pairs": np.int64(20),
        "eval_loss": 0.5,
        "eval/loss": 0.25,
    }
    assert mean_over_languages(metrics) == metrics
