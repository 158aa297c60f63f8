"""Bias removal and every other export: stock modules with equal embeddings, also where this package is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cmlm_helpers import tiny_cmlm
from conftest import ENGLISH, FRENCH, tiny_encoder
from sentence_transformers import SentenceTransformer

from hf_xlsr import (
    DualMomentumConfig,
    DualMomentumModel,
    HictlConfig,
    HictlForPreTraining,
    LightweightConfig,
    LightweightDualTransformer,
)
from hf_xlsr.encoders.debias import Debias, fit_debias
from hf_xlsr.encoders.encoding import routes_of
from hf_xlsr.export import debias_sentence_transformer, save_export
from hf_xlsr.utils.errors import XlsrError

TEXTS = {"en": [f"{first} {second}" for first, second in pairwise(ENGLISH)], "fr": FRENCH}


@pytest.fixture(scope="module")
def model(tiny_export: str) -> SentenceTransformer:
    return SentenceTransformer(tiny_export, device="cpu", prompts={"query": "red "}, similarity_fn_name="dot")


@pytest.fixture(scope="module")
def debias(model: SentenceTransformer) -> Debias:
    return fit_debias(model, TEXTS)


@pytest.mark.parametrize("method", ["components", "mean", "whitening"])
@pytest.mark.parametrize("normalize", [False, True])
def test_removal_by_task(model: SentenceTransformer, method: str, normalize: bool) -> None:
    fitted = fit_debias(model, TEXTS, method=method)
    before = model.encode(TEXTS["fr"])

    debiased = debias_sentence_transformer(model, fitted, normalize=normalize)

    embeddings = debiased.encode(TEXTS["fr"], task="fr")
    np.testing.assert_allclose(embeddings, fitted.apply(before, "fr", normalize=normalize), atol=1e-5)
    # The original stays as it is, and the new model has its settings.
    np.testing.assert_array_equal(model.encode(TEXTS["fr"]), before)
    assert debiased.prompts["query"] == "red "
    assert debiased.similarity_fn_name == "dot"
    assert debiased.get_embedding_dimension() == fitted.dimension


def test_texts_without_a_language(model: SentenceTransformer, debias: Debias) -> None:
    debiased = debias_sentence_transformer(model, debias)
    assert routes_of(debiased) == ("en", "fr", "und")
    np.testing.assert_allclose(debiased.encode("one"), model.encode("one"))
    np.testing.assert_allclose(debiased.encode_document("one"), model.encode_document("one"))

    again = debias_sentence_transformer(debiased, debias)
    np.testing.assert_allclose(again.encode("one"), model.encode("one"))


def dual(tokenizer: Any) -> Any:
    configs = {name: tiny_encoder(len(tokenizer)) for name in ("en", "fr")}
    config = DualMomentumConfig(languages=["en", "fr"], queue_size=8, encoder_configs=configs, projection_dim=8)
    return DualMomentumModel(config).to_sentence_transformer(tokenizer)


def debiased(model: Any) -> Any:
    return debias_sentence_transformer(model, fit_debias(model, TEXTS), normalize=True)


def lightweight(tokenizer: Any) -> Any:
    config = LightweightConfig(text_config=tiny_encoder(len(tokenizer)))
    return LightweightDualTransformer(config).to_sentence_transformer(tokenizer)


def hictl(tokenizer: Any) -> Any:
    config = HictlConfig(text_config=tiny_encoder(len(tokenizer)))
    return HictlForPreTraining(config).to_sentence_transformer(tokenizer)


EXPORTS: dict[str, Callable[[Any], Any]] = {
    "lightweight": lightweight,
    "hictl": hictl,
    "cmlm": lambda tokenizer: tiny_cmlm(len(tokenizer)).to_sentence_transformer(tokenizer),
    "routed": dual,
    "debiased": lambda tokenizer: debiased(lightweight(tokenizer)),
    "routed-debiased": lambda tokenizer: debiased(dual(tokenizer)),
}
LOAD = """
import json, sys
sys.modules["hf_xlsr"] = None  # an import of it would fail
import numpy as np
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

home, texts = sys.argv[1], json.loads(sys.argv[2])
for name, routes in json.loads(sys.argv[3]).items():
    model = SentenceTransformer(f"{home}/{name}", device="cpu", trust_remote_code=False)
    np.savez(f"{home}/{name}.npz", **{route or "all": model.encode(texts, task=route or None) for route in routes})
AutoModel.from_pretrained(f"{home}/debiased/en_0_Transformer")
"""


@pytest.mark.slow
def test_every_export_loads_without_this_package(tokenizer: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    models = {}
    routes = {}
    for name, make in EXPORTS.items():
        model = models[name] = make(tokenizer)
        routes[name] = list(routes_of(model)) or [""]
        save_export(model, tmp_path / name)
        for module in json.loads((tmp_path / name / "modules.json").read_text("utf-8")):
            assert module["type"].startswith("sentence_transformers.")

    arguments = [str(tmp_path), json.dumps(TEXTS["fr"]), json.dumps(routes)]
    subprocess.run([sys.executable, "-c", LOAD, *arguments], check=True, cwd=tmp_path)

    for name, model in models.items():
        vectors = np.load(tmp_path / f"{name}.npz")
        for route in routes[name]:
            expected = model.encode(TEXTS["fr"], task=route or None)
            np.testing.assert_allclose(vectors[route or "all"], expected, atol=1e-6, err_msg=f"{name} {route}")


def test_projected_sentence_vectors_are_not_exported(tokenizer: Any) -> None:
    with pytest.raises(XlsrError, match="sentence_vector"):
        tiny_cmlm(len(tokenizer), sentence_vector="projected").to_sentence_transformer(tokenizer)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("fitted_on", ["truncated", "whole"])
def test_a_model_that_truncates(tiny_export: str, fitted_on: str, normalize: bool, tmp_path: Path) -> None:
    whole = SentenceTransformer(tiny_export, device="cpu")
    truncated = SentenceTransformer(tiny_export, device="cpu", truncate_dim=6)
    fitted = fit_debias(truncated if fitted_on == "truncated" else whole, TEXTS)

    debias_sentence_transformer(truncated, fitted, normalize=normalize).save(str(tmp_path))

    debiased_model = SentenceTransformer(str(tmp_path), device="cpu")
    vectors = debiased_model.encode(FRENCH, task="fr")
    encoded = whole.encode(FRENCH)[:, : fitted.dimension]
    np.testing.assert_allclose(vectors, fitted.apply(encoded, "fr", normalize=normalize)[:, :6], atol=1e-5)
    if not normalize:
        np.testing.assert_allclose(debiased_model.encode("one"), truncated.encode("one"), atol=1e-6)


def test_a_debias_of_another_width(tiny_export: str) -> None:
    fitted = fit_debias(SentenceTransformer(tiny_export, device="cpu", truncate_dim=6), TEXTS)
    with pytest.raises(XlsrError, match="fitted on 6"):
        debias_sentence_transformer(SentenceTransformer(tiny_export, device="cpu", truncate_dim=7), fitted)
