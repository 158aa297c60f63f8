"""One model with an encoder for each language: vectors, routes, files, and loading where this package is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from routed_helpers import CHINESE, ENGLISH, MAX_LENGTH, Parts
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.encoders.assembly import SentenceEncoder
from hf_xlsr.encoders.encoding import embed, routes_of
from hf_xlsr.export import save_export, to_sentence_transformer


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts()


@pytest.fixture(scope="module")
def folder(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("routed") / "model"
    save_export(parts.model().to_sentence_transformer(parts.tokenizers), path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu")


def assert_close(vectors: Any, expected: np.ndarray) -> None:
    assert np.shape(vectors) == expected.shape
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-6)


def number_of_weights(folder: Path) -> int:
    num_weights = 0
    for path in folder.rglob("*"):
        if path.suffix in (".safetensors", ".bin", ".pt"):
            num_weights += sum(weight.numel() for weight in load_file(path).values())
    return num_weights


def test_vectors_of_each_encoder(model: SentenceTransformer, parts: Parts):
    english = parts.by_hand(ENGLISH, "en")
    assert_close(model.encode(ENGLISH, task="en"), english)
    assert_close(model.encode(CHINESE, task="zh"), parts.by_hand(CHINESE, "zh"))
    assert_close(model.encode_query(ENGLISH), english)
    assert_close(model.encode_document(ENGLISH), english)
    assert not np.allclose(model.encode(ENGLISH, task="zh"), english, atol=0.1)


def test_shared_encoder_needs_no_router(parts: Parts, tmp_path: Path):
    model = parts.model({"shared": "en"})

    shared = save_export(model.to_sentence_transformer(parts.tokenizers["en"]), tmp_path / "model")

    assert [type(module).__name__ for module in shared] == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert routes_of(shared) == ()
    expected = parts.by_hand(ENGLISH, "en")
    assert_close(shared.encode(ENGLISH), expected)
    assert_close(shared.encode(ENGLISH, task="de"), expected)
    assert_close(embed(shared, ENGLISH, language="de"), expected)


def test_shared_parts_are_stored_once(parts: Parts, tmp_path: Path):
    english = parts.encoder_part("en")
    by_language = {"en": english, "fr": replace(english), "zh": parts.encoder_part("zh")}

    shared = save_export(SentenceEncoder(by_language).detached().assemble(), tmp_path / "model")

    routes = shared[0].sub_modules
    assert routes["en"][0] is routes["fr"][0]
    assert routes["en"][2] is routes["fr"][2]
    assert number_of_weights(tmp_path / "model") == sum(weight.numel() for weight in shared.parameters())
    assert_close(shared.encode(CHINESE, task="zh"), parts.by_hand(CHINESE, "zh"))
    np.testing.assert_array_equal(shared.encode(ENGLISH, task="fr"), shared.encode(ENGLISH, task="en"))


def test_plain_encoders_by_language(parts: Parts):
    model = to_sentence_transformer(parts.encoders, parts.tokenizers, max_length=MAX_LENGTH)
    for language, texts in (("en", ENGLISH), ("zh", CHINESE)):
        assert_close(model.encode(texts, task=language), parts.by_hand(texts, language, projected=False))
    with pytest.raises(ValueError, match="task='en', task='zh'"):
        model.encode(ENGLISH)


def test_one_plain_encoder_for_all_languages_has_no_routes(parts: Parts):
    encoders = dict.fromkeys(("en", "fr"), parts.encoders["en"])
    tokenizers = dict.fromkeys(("en", "fr"), parts.tokenizers["en"])
    model = to_sentence_transformer(encoders, tokenizers, max_length=MAX_LENGTH)
    assert routes_of(model) == ()
    assert_close(model.encode(ENGLISH), parts.by_hand(ENGLISH, "en", projected=False))


@pytest.mark.parametrize(("route", "texts"), [("en", ENGLISH), ("zh", CHINESE)])
def test_one_route_is_a_model_of_its_own(
    folder: Path, model: Any, route: str, texts: list[str], tmp_path: Path
) -> None:
    output = str(tmp_path / "one")
    assert main(["export", str(folder), "--route", route, "--output", output]) == 0

    single = SentenceTransformer(output, device="cpu")
    assert routes_of(single) == ()
    assert_close(single.encode(texts), model.encode(texts, task=route))


def test_unknown_route(folder: Path, tmp_path: Path) -> None:
    assert main(["export", str(folder), "--route", "fr", "--output", str(tmp_path / "other")]) == 1


def contents(folder: Path, pattern: str) -> list[Any]:
    return [json.loads(file.read_text("utf-8")) for file in folder.rglob(pattern)]


def test_pooling_and_length_have_their_older_names_too(folder: Path) -> None:
    """text-embeddings-inference reads `pooling_mode_*` of `1_Pooling/config.json` and `max_seq_length`."""
    poolings = contents(folder, "*Pooling/config.json")
    assert len(poolings) == 2
    for pooling in poolings:
        assert pooling["pooling_mode_mean_tokens"] is True
        assert pooling["pooling_mode_cls_token"] is False
        assert pooling["pooling_mode_max_tokens"] is False

    transformers = contents(folder, "sentence_bert_config.json")
    assert [transformer["max_seq_length"] for transformer in transformers] == [MAX_LENGTH, MAX_LENGTH]
