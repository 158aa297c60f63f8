from __future__ import annotations

from typing import Any

import yaml
from huggingface_hub import ModelCard

from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.runs.card import render_card
from hf_xlsr.runs.recipe import load_runs

METRICS = measured("bible", "tatoeba", ("en", "fr"), "test", {"accuracy": 0.875, "pairs": 1005})
SETTINGS: dict[str, Any] = {
    "data": {"pairs": 27609, "vocab_size": 15389},
    "parameters": 5_100_000,
    "steps": 645,
    "dimension": 256,
    "seconds": {"training": 290.4},
    "device": "cpu",
    "processes": 1,
    "threads": 2,
    "precision": "bfloat16",
}


def test_metadata_of_the_hub() -> None:
    card = ModelCard(render_card(load_runs("quickstart")[0], METRICS, SETTINGS))
    assert card.data.language == ["en", "fr"] and card.data.library_name == "sentence-transformers"
    (result,) = card.data.eval_results
    assert (result.dataset_type, result.metric_type, result.metric_value) == ("bible-tatoeba", "accuracy", 0.875)


def test_numbers_and_facts() -> None:
    text = render_card(load_runs("quickstart")[0], METRICS, SETTINGS)
    assert "| `bible-tatoeba/en-fr/test/accuracy` | 87.5 % |" in text and "| 1,005 |" in text
    assert "27,609" in text and "290 s on cpu" in text and "GPL-3" in text and "mao2021lightweight" in text


def test_run_without_a_test_set() -> None:
    card = ModelCard(render_card(load_runs("quickstart")[0], Results(), SETTINGS))
    assert card.data.eval_results is None and "Not measured" in card.text
    assert "model-index" not in yaml.safe_load(card.data.to_yaml())
