"""The removal as a module of sentence-transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ENGLISH, FRENCH
from sentence_transformers import SentenceTransformer

from hf_xlsr.encoders.debias import Debias, fit_debias
from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.export.debias_module import DebiasModule, debias_sentence_transformer
from hf_xlsr.utils.errors import XlsrError

TEXTS = {"en": [f"{a} {b}" for a, b in zip(ENGLISH, ENGLISH[3:], strict=False)], "fr": FRENCH}


@pytest.fixture(scope="module")
def model(tiny_export: str) -> SentenceTransformer:
    return SentenceTransformer(tiny_export, device="cpu", prompts={"query": "red "}, similarity_fn_name="dot")


@pytest.fixture(scope="module")
def debias(model: SentenceTransformer) -> Debias:
    return fit_debias(model, TEXTS)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_language_goes_into_task(model: SentenceTransformer, debias: Debias, normalize: bool) -> None:
    before = model.encode(TEXTS["fr"])
    with_removal = debias_sentence_transformer(model, debias, normalize=normalize)
    for language in ("fr", "fra"):
        vectors = with_removal.encode(TEXTS["fr"], task=language)
        np.testing.assert_allclose(vectors, debias.apply(before, "fr", normalize=normalize), atol=1e-6)
    lengths = np.linalg.norm(vectors, axis=1)
    assert np.allclose(lengths, 1) == normalize and (lengths < 1 + 1e-6).all()
    # The model itself stays as it is; the new one has its settings.
    assert (model.encode(TEXTS["fr"]) == before).all() and len(model) == len(with_removal) - 1
    assert with_removal.prompts["query"] == "red " and with_removal.similarity_fn_name == "dot"
    assert with_removal.get_embedding_dimension() == debias.dimension


def test_without_a_language(model: SentenceTransformer, debias: Debias) -> None:
    strict = debias_sentence_transformer(model, debias)
    for encode in (strict.encode, strict.encode_query, strict.encode_document):
        with pytest.raises(XlsrError, match=r"language .* not given; say encode\(texts, task='en'\), one of en, fr"):
            encode(["one"])
    with pytest.raises(XlsrError, match="language 'sw' was not fitted, only en, fr"):
        strict.encode(["one"], task="sw")
    lenient = debias_sentence_transformer(model, debias, pass_through=True)
    np.testing.assert_allclose(lenient.encode(["one"]), model.encode(["one"]))
    with pytest.raises(XlsrError, match="language 'sw' was not fitted"):
        lenient.encode(["one"], task="sw")
    unit = DebiasModule(debias, normalize=True, pass_through=True)
    vectors = unit({"sentence_embedding": 3 * torch.ones(1, debias.dimension)})["sentence_embedding"]
    assert vectors.norm().item() == pytest.approx(1)


def test_features_that_came_in_are_not_changed(debias: Debias) -> None:
    features = {"sentence_embedding": torch.ones(1, debias.dimension), "token_embeddings": torch.ones(1)}
    out = DebiasModule(debias)(features, task="fr")
    assert (features["sentence_embedding"] == 1).all() and (out["sentence_embedding"] != 1).any()
    assert set(out) == set(features)


def test_a_model_of_another_width(model: SentenceTransformer) -> None:
    other = Debias(means={"fr": np.ones(5)}, counts={"fr": 9}, shares={"fr": 0.5})
    with pytest.raises(XlsrError, match="the model's vectors are 16 wide and those that the debias was fitted on 5"):
        debias_sentence_transformer(model, other)


LOAD = """
import sys
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu", trust_remote_code=True)
np.save(sys.argv[2], model.encode(["un deux", "roi"], task="fr"))
try:
    model.encode(["un"])
except ValueError as error:
    print(error)
"""


def test_loaded_in_a_process_of_its_own(model: SentenceTransformer, debias: Debias, tmp_path: Path) -> None:
    saved = debias_sentence_transformer(model, debias, normalize=True)
    saved.save(str(tmp_path / "model"), create_model_card=False)
    modules = json.loads((tmp_path / "model" / "modules.json").read_text())
    assert modules[-1]["type"] == "hf_xlsr.export.debias_module.DebiasModule"
    assert not list((tmp_path / "model").rglob("*.py")) and not list((tmp_path / "model").rglob("*.bin"))
    done: Any = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "model"), str(tmp_path / "vectors.npy")],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "say encode(texts, task='en')" in done.stdout
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), saved.encode(["un deux", "roi"], task="fr"))


def test_what_is_removed_decides_the_hash_and_where_it_came_from_does_not(model: SentenceTransformer) -> None:
    one, four = (fit_debias(model, TEXTS, components=count) for count in (1, 4))
    mean = fit_debias(model, TEXTS, method="mean")
    hashes = [content_hash(debias_sentence_transformer(model, fitted)) for fitted in (one, four, mean)]
    assert len(set(hashes)) == 3
    again = replace(one, encoder="another name", counts=dict.fromkeys(one.counts, 7))
    assert content_hash(debias_sentence_transformer(model, again)) == hashes[0]
    components = {language: one.components["fr"] for language in one.components}
    assert content_hash(debias_sentence_transformer(model, replace(one, components=components))) != hashes[0]


def test_vectors_that_are_cut_behind_the_removal_are_refused(tiny_export: str) -> None:
    cut = SentenceTransformer(tiny_export, device="cpu", truncate_dim=4)
    with pytest.raises(XlsrError, match="cuts its vectors to truncate_dim 4, behind all modules; load it without"):
        debias_sentence_transformer(cut, fit_debias(cut, TEXTS))
