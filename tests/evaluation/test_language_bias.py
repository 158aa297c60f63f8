"""Languages retrieved, against a count by plain NumPy, and what the removal does to them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bitext_helpers import LANGUAGES, TableEncoder, unit, world
from conftest import make_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from input_helpers import write_tsv
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.encoders.debias import DebiasedEncoder, DebiasFitter, fit_debias
from hf_xlsr.evaluation import language_bias, tatoeba
from hf_xlsr.evaluation.rows import both_sides


def by_hand(encoder: TableEncoder, texts: dict[str, list[str]], k: int) -> dict[str, float]:
    """The metrics one query at a time, from the definition."""
    count = len(next(iter(texts.values())))
    pool_texts: list[str] = []
    pool_languages: list[str] = []
    for language, sentences in texts.items():
        pool_texts += sentences
        pool_languages += [language] * count
    vectors = unit(np.array([encoder.table[text] for text in pool_texts]))

    neighbours: dict[str, list[str]] = {language: [] for language in texts}
    with_translations: dict[str, list[str]] = {language: [] for language in texts}
    for query, language in enumerate(pool_languages):
        order = np.argsort(-(vectors @ vectors[query]), kind="stable")
        is_translation = order % count == query % count  # and the query itself
        neighbours[language] += [pool_languages[i] for i in order[~is_translation]][:k]
        with_translations[language] += [pool_languages[i] for i in order[order != query]][:k]

    unbiased_share = 1 / len(texts)
    unbiased_share_with_translations = (count - 1) / (len(pool_texts) - 1)
    metrics: dict[str, float] = {}
    for language in texts:
        for other_language in texts:
            share = np.mean(np.array(neighbours[language]) == other_language)
            metrics[f"{language}/share_{other_language}"] = share
        metrics[f"{language}/bias"] = metrics[f"{language}/share_{language}"] / unbiased_share

        share = np.mean(np.array(with_translations[language]) == language)
        metrics[f"{language}/with_translations_bias"] = share / unbiased_share_with_translations
        metrics[f"{language}/queries"] = count
    return metrics


@settings(max_examples=15)
@given(
    rows=st.integers(2, 12),
    count=st.integers(2, 4),
    offset=st.floats(0, 4),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_equals_naive_count(rows: int, count: int, offset: float, seed: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, count * (rows - 1)))
    encoder, texts = world(rows, offset, seed=seed, languages=LANGUAGES[:count])

    results = language_bias(encoder, texts, name="w", k=k)

    protocol = "language-bias" if k == count else f"language-bias-k{k}"
    metrics = {}
    for record in results.records.values():
        assert (record.dataset, record.protocol, record.split) == ("w", protocol, "test")
        if not record.is_mean:
            metrics[f"{record.languages}/{record.metric}"] = record.value
    assert metrics == pytest.approx(by_hand(encoder, texts, k))


def test_removal_of_what_is_fitted_on_the_same_sentences() -> None:
    encoder, texts = world()
    metrics = language_bias(encoder, texts, name="w", debias="self")
    assert metrics["w-language-bias/mean-of-4/test/bias"] > 3.5
    assert 0.8 < metrics["w-language-bias-pcr1-self/mean-of-4/test/bias"] < 1.2


@pytest.mark.parametrize("method", ["components", "mean"])
def test_removal_of_what_is_fitted_elsewhere(method: str) -> None:
    encoder, texts = world(rows=400, seed=0)
    fitter = DebiasFitter()
    for language, rows in texts.items():
        fitter.partial_fit(language, np.array([encoder.table[text] for text in rows]))
    debias = fitter.finish(method=method)

    held_out = {language: rows[300:] for language, rows in texts.items()}
    metrics = language_bias(encoder, held_out, name="w", debias=debias)
    assert metrics["w-language-bias/mean-of-4/test/bias"] > 3.5
    # Its name has no -self.
    assert 0.85 < metrics[f"w-language-bias-{debias.variant}/mean-of-4/test/bias"] < 1.15


def test_retrieval_protocols_take_the_removal(tiny_export: str, tmp_path: Path) -> None:
    sources, targets = both_sides(make_pairs(40, seed=3))
    folder = str(tmp_path / "fit")
    output = tmp_path / "results.json"
    lines = [f"{source}\t{target}" for source, target in zip(sources, targets, strict=True)]
    wide = write_tsv(tmp_path / "wide.tsv", ["en\tfr", *lines])
    texts = ["--texts", wide, wide, "--columns", "text={lang}", "--languages", "en,fr"]
    assert main(["debias", "fit", tiny_export, *texts, "--output", folder]) == 0

    def evaluated(debias: str) -> dict[str, float]:
        data = ["--data", wide, "--columns", "source=en,target=fr", "--output", str(output)]
        assert main(["evaluate", tiny_export, "--protocol", "tatoeba,xsim", *data, "--debias", debias]) == 0
        return json.loads(output.read_text())["metrics"]

    fitted_on_itself = evaluated("self")
    fitted = evaluated(folder)

    model = SentenceTransformer(tiny_export, device="cpu")
    distinct_texts = {"en": list(dict.fromkeys(sources)), "fr": list(dict.fromkeys(targets))}
    debiased = DebiasedEncoder(model, fit_debias(model, distinct_texts))
    expected = tatoeba(debiased, sources, targets, languages=("en", "fr"), name="wide-pcr1-self")
    for key, value in expected.items():
        assert fitted_on_itself[key] == value
        assert fitted[key.replace("-self", "")] == value  # both languages from both files
    assert "wide-pcr1-self-xsim/en-fr/test/error" in fitted_on_itself
