"""Headers of cards: what the Hub lists and searches models by."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router

from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.runs.card import card_of_model, render_card
from hf_xlsr.runs.methods import METHODS, Method
from hf_xlsr.runs.recipe import load_runs

sys.path.append(str(Path(__file__).resolve().parents[1] / "encoders"))
from given_encoders import build  # noqa: E402

SETTINGS: dict[str, Any] = {
    "data": {"pairs": 1, "labels": {}, "languages": ["en"], "language_pairs": [["en", "fr"]]},
    "parameters": 3,
    "steps": 4,
    "dimension": 5,
    "max_length": 32,
    "seconds": {"training": 6.0},
    "device": "cpu",
    "processes": 1,
    "threads": 1,
    "precision": "float32",
}
SENTENCES = ["sentence-transformers", "feature-extraction", "cross-lingual", "bitext-mining"]
TAGS = {
    **dict.fromkeys(METHODS, SENTENCES),
    "classification": ["text-classification", "cross-lingual"],
    "translation": ["translation", "cross-lingual"],
}


def run_of(method: str) -> Method:
    """A run of a method on own data."""
    name = "finetune" if method == "dual_momentum" else f"start_{method}"
    words = ["--encoder", "some/encoder", "--languages", "en,fr", "--train", "train.tsv"]
    (run,) = load_runs(name, words)
    assert run.name == method
    return run


def header(text: str) -> Any:
    return ModelCard(text).data


@pytest.mark.parametrize("method", METHODS)
def test_tags_name_task_package_and_method(method: str) -> None:
    text = render_card(run_of(method), Results(), SETTINGS)
    expected = dict.fromkeys([*TAGS[method], "hf-xlsr", method])
    assert header(text).tags == list(expected)


@pytest.mark.parametrize(("value", "is_share"), [(0.0, True), (1.0, True), (1.5, False)])
def test_results_of_the_header_are_shares(value: float, is_share: bool) -> None:
    """The Hub shows a value without its unit: BLEU of 1.5 is not 150 %."""
    metrics = measured("news", "bleu", ("en", "fr"), "test", {"bleu": value, "sentences": 1})
    text = render_card(run_of("translation"), metrics, SETTINGS)
    results = header(text).eval_results or []
    assert [result.metric_value for result in results] == [value] * is_share


def test_languages_of_routes(tmp_path: Path) -> None:
    """Without the route of all other languages."""
    routes = build("routed", tmp_path / "parts")[0].sub_modules
    router = Router({"en": list(routes["en"]), "und": list(routes["fr"])}, default_route="und")
    SentenceTransformer(modules=[router], device="cpu").save(str(tmp_path / "routed"))
    assert header(card_of_model(str(tmp_path / "routed"))).language == ["en"]
