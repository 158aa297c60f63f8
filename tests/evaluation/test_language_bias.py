"""Languages retrieved, against a count by plain NumPy, and what the removal does to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitext_helpers import LANGUAGES, TableEncoder, world
from conftest import make_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.encoders.debias import DebiasedEncoder, DebiasFitter, fit_debias
from hf_xlsr.evaluation import language_bias, tatoeba


def by_hand(encoder: TableEncoder, texts: dict[str, list[str]], k: int) -> dict[str, float]:
    """The metrics one query at a time, from the definition."""
    pool = [(language, row) for language in texts for row in range(len(texts[language]))]
    vectors = np.array([encoder.table[texts[language][row]] for language, row in pool])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found: dict[str, list[str]] = {language: [] for language in texts}
    all_found: dict[str, list[str]] = {language: [] for language in texts}
    for query, (language, row) in enumerate(pool):
        order = np.argsort(-(vectors @ vectors[query]), kind="stable")
        found[language] += [pool[i][0] for i in order if pool[i][1] != row][:k]
        all_found[language] += [pool[i][0] for i in order if i != query][:k]
    metrics = {}
    for language in texts:
        shares = {other: found[language].count(other) / len(found[language]) for other in texts}
        metrics |= {f"{language}/share_{other}": share for other, share in shares.items()}
        count = len(texts[language])
        metrics[f"{language}/bias"] = shares[language] / ((count - 1) / (len(pool) - len(texts)))
        own = all_found[language].count(language) / len(all_found[language])
        metrics[f"{language}/with_translations_bias"] = own / ((count - 1) / (len(pool) - 1))
        metrics[f"{language}/queries"] = count
    return metrics


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 12), st.integers(2, 4), st.floats(0, 4), st.integers(0, 1000), st.data())
def test_equals_naive_count(rows: int, count: int, offset: float, seed: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, count * (rows - 1)))
    encoder, texts = world(rows, offset, seed=seed, languages=LANGUAGES[:count])
    metrics = language_bias(encoder, texts, name="w", k=k)
    protocol = "w-language-bias" if k == count else f"w-language-bias-k{k}"
    ours = {}
    for key, value in metrics.items():
        front, language, split, metric = key.split("/")
        assert front == protocol and split == "test"
        if not language.startswith("mean-of-"):
            ours[f"{language}/{metric}"] = value
    assert ours == pytest.approx(by_hand(encoder, texts, k))


def test_removal() -> None:
    encoder, texts = world()
    metrics = language_bias(encoder, texts, name="w", debias="self")
    before, after = (metrics[f"w-language-bias{kind}/mean-of-4/test/bias"] for kind in ("", "-pcr1-self"))
    assert before > 3.5 and 0.8 < after < 1.2
    # What was fitted elsewhere does it too, and bears no -self; so does the control.
    other, fitting = world(rows=400, seed=0)
    fitter = DebiasFitter()
    for language, rows in fitting.items():
        fitter.partial_fit(language, np.array([other.table[text] for text in rows]))
    for debias in (fitter.finish(), fitter.finish(method="mean")):
        same_world, _ = world(rows=400, seed=0)
        held = {language: rows[300:] for language, rows in fitting.items()}
        metrics = language_bias(same_world, held, name="w", debias=debias)
        assert 0.85 < metrics[f"w-language-bias-{debias.variant}/mean-of-4/test/bias"] < 1.15
        assert metrics["w-language-bias/mean-of-4/test/bias"] > 3.5


def test_retrieval_protocols_take_the_removal(tiny_export: str, tmp_path: Path) -> None:
    output, wide, folder = tmp_path / "results.json", tmp_path / "wide.tsv", str(tmp_path / "fit")
    rows = make_pairs(40, seed=3)
    wide.write_text("en\tfr\n" + "".join(f"{row['source']}\t{row['target']}\n" for row in rows), "utf-8")
    texts = ["--texts", str(wide), str(wide), "--columns", "text={lang}", "--languages", "en,fr"]
    assert main(["debias", "fit", tiny_export, *texts, "--output", folder]) == 0

    def evaluated(debias: str) -> dict[str, float]:
        data = ["--data", str(wide), "--columns", "source=en,target=fr", "--output", str(output)]
        assert main(["evaluate", tiny_export, "--protocol", "tatoeba,xsim", *data, "--debias", debias]) == 0
        return json.loads(output.read_text())["metrics"]

    of_themselves, fitted = evaluated("self"), evaluated(folder)
    sides: Any = [[row[side] for row in rows] for side in ("source", "target")]
    model = SentenceTransformer(tiny_export, device="cpu")
    distinct = {language: list(dict.fromkeys(side)) for language, side in zip(("en", "fr"), sides, strict=True)}
    wrapped = DebiasedEncoder(model, fit_debias(model, distinct))
    for key, value in tatoeba(wrapped, *sides, languages=("en", "fr"), name="wide-pcr1-self").items():
        assert of_themselves[key] == value
        assert fitted[key.replace("-self", "")] == value  # both languages from both files
    assert "wide-pcr1-self-xsim/en-fr/test/error" in of_themselves
