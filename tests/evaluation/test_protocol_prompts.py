"""Which prompts protocols use: the model's own by role and language, and those that a user gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import make_pairs
from protocol_cases import ALL, ENGLISH, GERMAN, OF_PAIRS, OF_TEXTS, SEARCHES, Prompted
from sentence_transformers import SentenceTransformer

from hf_xlsr.encoders.cache import CachedEncoder
from hf_xlsr.encoders.debias import DebiasedEncoder, fit_debias
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.evaluation import classifiers as classifiers_module
from hf_xlsr.evaluation import search, tatoeba
from hf_xlsr.evaluation.classifiers import fine_tune
from hf_xlsr.evaluation.rows import LabelledTexts, both_sides


@pytest.mark.parametrize("name", ALL)
def test_own_prompts_by_language(name: str):
    encoder = Prompted({"en": "E: ", "de": "D: "})
    ALL[name](encoder)
    assert encoder.by_language() == {"en": {"E: "}, "de": {"D: "}}


@pytest.mark.parametrize("name", ALL)
def test_given_prompts_by_language(name: str):
    encoder = Prompted({"deu": "D: ", "x": "X: "}, "x")
    ALL[name](encoder, prompt={"eng": "E: ", "deu": "F: "})
    assert encoder.by_language() == {"en": {"E: "}, "de": {"F: "}}


@pytest.mark.parametrize("name", OF_PAIRS | OF_TEXTS)
def test_default_prompt(name: str):
    encoder = Prompted({"x": "X: "}, "x")
    ALL[name](encoder)
    assert encoder.prompts_of("") == {"X: "}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("prompt", ["", "P: "])
def test_one_prompt_replaces_all(name: str, prompt: str):
    encoder = Prompted({"x": "X: ", "query": "Q: ", "passage": "Y: ", "de": "D: "}, "x")
    ALL[name](encoder, prompt=prompt)
    assert encoder.prompts_of("") == {prompt}


@pytest.mark.parametrize("name", OF_PAIRS | OF_TEXTS)
def test_prompts_of_roles_are_for_searches_only(name: str):
    encoder = Prompted({"query": "Q: ", "passage": "P: "})
    ALL[name](encoder)
    assert encoder.prompts_of("") == {""}


def test_roles_of_documents():
    encoder = Prompted({"query": "Q: ", "passage": "P: "})
    SEARCHES["search of documents"](encoder)
    assert encoder.by_language() == {"en": {"Q: "}, "de": {"P: "}}


def test_roles_of_parallel_texts():
    encoder = Prompted({"query": "Q: ", "passage": "P: "})
    SEARCHES["search"](encoder)
    for prompts in encoder.used.values():
        assert prompts == {"Q: ", "P: "}


@pytest.mark.parametrize("prompt", [{"source": "S: ", "target": "T: "}, {"query": "S: ", "document": "T: "}])
@pytest.mark.parametrize("name", OF_PAIRS)
def test_prompts_of_the_call_by_side(name: str, prompt: dict[str, str]):
    encoder = Prompted({})
    OF_PAIRS[name](encoder, prompt=prompt)
    assert encoder.by_language() == {"en": {"S: "}, "de": {"T: "}}


@pytest.mark.parametrize("name", ALL)
def test_texts_without_prompts_are_encoded_as_they_are(name: str):
    class Plain(Prompted):
        def encode(self, texts: list[str], **options: Any) -> np.ndarray:
            assert "prompt" not in options
            return super().encode(texts, **options)

    ALL[name](Plain({}))


def test_sides_of_one_language_with_two_prompts():
    encoder = Prompted({})
    prompt = {"source": "S: ", "target": ""}
    tatoeba(encoder, ["en 1", "en 2"], ["en 2", "en 3"], languages=("en", "en"), prompt=prompt)
    assert encoder.used == {"en 1": {"S: "}, "en 2": {"S: ", ""}, "en 3": {""}}


def test_encoder_without_prompts_gets_texts_with_them():
    class Plain:
        texts: list[str] = []

        def encode(self, texts: list[str], **options: Any) -> np.ndarray:
            self.texts += texts
            return np.stack([Prompted.vector_of(text) for text in texts])

    encoder = Plain()
    tatoeba(encoder, ["one", "two"], ["eins", "zwei"], languages=("en", "de"), prompt={"de": "D: "})
    assert encoder.texts == ["one", "two", "D: eins", "D: zwei"]


@pytest.mark.parametrize("wrap", [CachedEncoder, lambda encoder: _debiased(encoder)], ids=["cached", "debiased"])
def test_wrappers_pass_prompts_on(wrap: Callable[[Any], Any]):
    encoder = Prompted({"en": "E: ", "de": "D: "})
    OF_PAIRS["tatoeba"](wrap(encoder))
    assert encoder.by_language() == {"en": {"E: "}, "de": {"D: "}}


def _debiased(encoder: Any) -> DebiasedEncoder:
    return DebiasedEncoder(encoder, fit_debias(encoder, {"en": ENGLISH, "de": GERMAN}))


def test_search_takes_vectors_of_both_roles(tiny_export: str):
    """The same as a search written out with `encode_query` and `encode_document`."""
    model = SentenceTransformer(tiny_export, device="cpu", prompts={"query": "red red ", "document": "blue "})
    english, french = both_sides(make_pairs(20, seed=5))
    metrics = search(model, {"en": english, "fr": french}, name="x")

    pool = model.encode_document([*english, *french])
    for texts, languages, first_translation in ((english, "en-fr", 20), (french, "fr-en", 0)):
        scores = model.encode_query(texts) @ pool.T
        reciprocal_ranks = []
        for row in range(20):
            untranslated = [column for column in range(40) if column % 20 != row]
            score = scores[row, first_translation + row]
            rank = 1 + (scores[row, untranslated] > score - 1e-9).sum()
            reciprocal_ranks.append(1 / rank)
        assert metrics[f"x-search/{languages}/test/mrr"] == pytest.approx(np.mean(reciprocal_ranks))


def test_head_is_trained_with_the_prompt_of_its_language(tiny_export: str, monkeypatch: pytest.MonkeyPatch):
    """The vectors of training are those of `encode`: the prompt is read, and left out of the mean."""
    monkeypatch.setattr(classifiers_module, "choose_precision", lambda **_: "float32")
    model = SentenceTransformer(tiny_export, device="cpu", prompts={"en": "red blue ", "fr": "rouge "})
    model.set_pooling_include_prompt(False)
    texts = ["one two", "house tree", "red"]
    rows = LabelledTexts((texts,), np.array([0, 1, 0]))

    student: Any = fine_tune(copy.deepcopy(model), rows, rows, language="fra", classes=2, epochs=1).encoder
    student.eval()
    trained = student._vectors(texts).detach().numpy()

    np.testing.assert_allclose(trained, student.network.encode(texts, prompt="rouge "), atol=1e-6)
    np.testing.assert_allclose(trained, embed(student, texts, language="fr"), atol=1e-6)
    pooled_with_prompt = student.network.encode(["rouge " + text for text in texts])
    assert np.abs(trained - pooled_with_prompt).max() > 1e-3
