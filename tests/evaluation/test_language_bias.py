"""Languages retrieved, against a count by plain NumPy, and what the removal does to them."""

from __future__ import annotations

import json
import shutil
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


def test_worked_example() -> None:
    """Two languages on two axes: queries find their own only; without a language they find both alike."""
    table = {"e0": [9, 1, 0], "e1": [9, 0, 2], "e2": [9, 1, 1], "f0": [1, 9, 0], "f1": [0, 9, 2], "f2": [1, 9, 1]}
    texts = {"en": ["e0", "e1", "e2"], "fr": ["f0", "f1", "f2"]}
    metrics = language_bias(TableEncoder({text: np.array(v, float) for text, v in table.items()}), texts, name="two")
    assert metrics["two-language-bias/en/test/share_en"] == 1 and metrics["two-language-bias/en/test/share_fr"] == 0
    assert metrics["two-language-bias/en/test/bias"] == 2  # 1 over 2 of 4
    assert metrics["two-language-bias/en/test/with_translations_bias"] == 2.5  # 1 over 2 of 5
    assert metrics["two-language-bias/mean-of-2/test/bias"] == 2
    same = {text: np.array(table[f"e{text[1]}"], float) for text in table}
    metrics = language_bias(TableEncoder(same), texts, name="two")
    assert metrics["two-language-bias/mean-of-2/test/bias"] == 1
    assert metrics["two-language-bias/mean-of-2/test/share_en"] == 0.5


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


def test_random_and_perfect_vectors_are_neutral() -> None:
    for offset, noise in ((0.0, 0.0), (0.0, 30.0)):
        encoder, texts = world(200, offset, noise)
        metrics = language_bias(encoder, texts, name="w")
        assert metrics["w-language-bias/mean-of-4/test/bias"] == pytest.approx(1, abs=0.06)
    # Perfect vectors find translations, of which the own language has none: this figure says nothing of that kind.
    encoder, texts = world(200, 0.0, 0.1)
    assert language_bias(encoder, texts, name="w")["w-language-bias/mean-of-4/test/with_translations_bias"] < 0.5


def test_repeated_sentences_count_once_in_a_fit() -> None:
    encoder, texts = world(20)
    texts["en"][5] = texts["en"][4]
    metrics = language_bias(encoder, texts, name="w", debias="self")
    distinct = {language: list(dict.fromkeys(rows)) for language, rows in texts.items()}
    expected = language_bias(encoder, texts, name="w", debias=fit_debias(encoder, distinct))
    for key in ("bias", "share_en"):
        ours = metrics[f"w-language-bias-pcr1-self/en/test/{key}"]
        assert ours == expected[f"w-language-bias-pcr1/en/test/{key}"]


@pytest.fixture
def wide(tmp_path: Path) -> str:
    rows = make_pairs(40, seed=3)
    lines = [f"{row['source']}\t{row['target']}\t{row['source'][::-1]}" for row in rows]
    (tmp_path / "wide.tsv").write_text("\n".join(["en\tfr\tde", *lines]) + "\n", "utf-8")
    return str(tmp_path / "wide.tsv")


def fit(model: str, wide: str, languages: str, output: Path, *options: str) -> None:
    texts = ["--texts", wide, "--columns", "text={lang}", "--languages", languages]
    assert main(["debias", "fit", model, *texts, "--output", str(output), *options]) == 0


def test_command(tiny_export: str, wide: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "results.json"
    data = ["--data", wide, "--columns", "text={lang}", "--languages", "en,fr,de", "--output", str(output)]
    fit(tiny_export, wide, "en,fr,de", tmp_path / "fit", "--components", "2")
    debias = ["--debias", str(tmp_path / "fit")]
    assert main(["evaluate", tiny_export, "--protocol", "language-bias", *data, *debias]) == 0
    assert "share_" not in capsys.readouterr().out.replace(" ", "_").replace("share_of", "")
    results = json.loads(output.read_text())
    assert "wide-language-bias-pcr2/mean-of-3/test/bias" in results["metrics"]
    assert results["settings"]["debias"]["components"] == 2
    picture = tmp_path / "languages.png"
    assert main(["plot", "languages", str(output), "--output", str(picture)]) == 0 and picture.is_file()


def test_retrieval_protocols_take_the_removal(
    tiny_export: str, wide: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output, folder = tmp_path / "results.json", str(tmp_path / "fit")
    fit(tiny_export, wide, "en,fr", tmp_path / "fit")

    def evaluated(model: str, *options: str) -> dict[str, float]:
        data = ["--data", wide, "--columns", "source=en,target=fr", "--output", str(output)]
        assert main(["evaluate", model, "--protocol", "tatoeba,xsim", *data, *options]) == 0
        return json.loads(output.read_text())["metrics"]

    of_themselves, fitted = evaluated(tiny_export, "--debias", "self"), evaluated(tiny_export, "--debias", folder)
    sides: Any = [[row[side] for row in make_pairs(40, seed=3)] for side in ("source", "target")]
    model = SentenceTransformer(tiny_export, device="cpu")
    distinct = {language: list(dict.fromkeys(side)) for language, side in zip(("en", "fr"), sides, strict=True)}
    wrapped = DebiasedEncoder(model, fit_debias(model, distinct))
    for key, value in tatoeba(wrapped, *sides, languages=("en", "fr"), name="wide-pcr1-self").items():
        assert of_themselves[key] == value
        assert key.replace("-self", "") in fitted
    assert "wide-pcr1-self-xsim/en-fr/test/error" in of_themselves
    # A prompt or an encoder other than in the fit is warned about.
    another = str(shutil.copytree(tiny_export, tmp_path / "another"))
    evaluated(another, "--debias", folder, "--prompt", "red ")
    assert "'red '" in caplog.text and another in caplog.text
