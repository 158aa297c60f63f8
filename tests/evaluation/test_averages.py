from __future__ import annotations

import numpy as np
import pytest

from hf_xlsr.evaluation import tatoeba
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


def test_what_belongs_together():
    metrics = {
        "tatoeba/en-fr/test/accuracy": 0.5,
        "tatoeba/en-de/test/accuracy": 0.7,
        "tatoeba/en-de/dev/accuracy": 0.1,  # another split, alone
        "tico19-tatoeba/en-de/test/accuracy": 0.2,  # another dataset, alone
        "tatoeba-laser/en-fr/test/error": 0.5,
        "tatoeba-laser/en-de/test/error": 0.25,
        "tatoeba-laser/en-ru/test/error": 0.0,
        "tatoeba/en-fr/test/source_to_target_accuracy": 0.4,  # another metric, alone
    }
    means = {key: value for key, value in mean_over_languages(metrics).items() if key not in metrics}
    assert means == {
        "tatoeba/mean-of-2/test/accuracy": pytest.approx(0.6),
        "tatoeba-laser/mean-of-3/test/error": pytest.approx(0.25),
    }


def test_the_language_of_training_and_mixed_pairs_are_left_out():
    cells = {"en-en": 0.9, "en-de": 0.5, "en-fr": 0.7, "en-de_fr": 0.1}
    metrics = {f"xnli-nli-mlp/{pair}/test/accuracy": value for pair, value in cells.items()}
    averaged = mean_over_languages(metrics)
    assert averaged == metrics | {"xnli-nli-mlp/mean-of-2/test/accuracy": pytest.approx(0.6)}
    cells = {"zho-Hans-zho-Hans": 0.9, "zho-Hans-zho-Hant": 0.4, "zho-Hans-en": 0.2}
    metrics = {f"sib-zero-shot/{pair}/test/accuracy": value for pair, value in cells.items()}
    averaged = mean_over_languages(metrics)
    assert averaged == metrics | {"sib-zero-shot/mean-of-2/test/accuracy": pytest.approx(0.3)}


def test_counts_thresholds_and_other_keys_stay_as_they_are():
    metrics = {
        "news-bucc-k4-ratio/de-en/test/threshold": 1.08,
        "news-bucc-k4-ratio/fr-en/test/threshold": 1.10,
        "news-bucc-k4-ratio/de-en/test/pairs": 10,
        "news-bucc-k4-ratio/fr-en/test/pairs": np.int64(20),
        "eval_loss": 0.5,
        "eval/loss": 0.25,
    }
    assert mean_over_languages(metrics) == metrics


def test_of_a_protocol():
    class Angles:
        def encode(self, texts: list[str], **kwargs: object) -> np.ndarray:
            degrees = np.deg2rad([float(text) for text in texts])
            return np.stack([np.cos(degrees), np.sin(degrees)], axis=1)

    metrics = tatoeba(Angles(), ["0", "90"], ["1", "89"], languages=("en", "fr"))
    metrics |= tatoeba(Angles(), ["0", "90"], ["89", "1"], languages=("en", "de"))
    averaged = mean_over_languages(metrics)
    assert {key: averaged[key] for key in averaged if "mean-of" in key} == {
        "tatoeba/mean-of-2/test/source_to_target_accuracy": 0.5,
        "tatoeba/mean-of-2/test/target_to_source_accuracy": 0.5,
        "tatoeba/mean-of-2/test/accuracy": 0.5,
    }
    assert mean_over_languages({}) == {}
