"""Graphs of exports, of ONNX and OpenVINO: the vectors of torch in float32, nearly so in int8, in batches of any size."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_encoder
from routed_helpers import CHINESE, ENGLISH, MAX_LENGTH, Parts, with_dense
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import AutoConfig, AutoModel

sys.path.append(str(Path(__file__).parents[1] / "encoders"))
from given_encoders import GIVEN, SENTENCES, build  # noqa: E402

from hf_xlsr.data.sample_sentences import SENTENCES as SAMPLE_SENTENCES
from hf_xlsr.encoders.encoding import embed, routes_of
from hf_xlsr.export import save_export, to_sentence_transformer
from hf_xlsr.export.onnx_files import graph_file
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import write_json

onnx = pytest.importorskip("onnx")

from graph_kinds import KINDS, WRITERS, cases, exact_encoder  # noqa: E402

LONG = " ".join(ENGLISH)
CONVERTED = ["bert_prompts", "word_weights", "gemma", "t5"]


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts()


@pytest.fixture(scope="module")
def exports(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`single` (MPNet, whose positions begin behind the padding, with a linear projection) and `routed`."""
    home = tmp_path_factory.mktemp("onnx")
    torch.manual_seed(3)
    values = tiny_encoder(len(parts.tokenizers["en"])) | {"model_type": "mpnet", "pad_token_id": 0}
    encoder = AutoModel.from_config(AutoConfig.for_model(**values, initializer_range=0.3))
    options: dict[str, Any] = {"pooling": "max", "normalize": False, "max_length": MAX_LENGTH}
    single = to_sentence_transformer(encoder, parts.tokenizers["en"], **options)
    save_export(with_dense(single, nn.Linear(16, 16)), home / "single")
    save_export(parts.model().to_sentence_transformer(parts.tokenizers), home / "routed")
    return home


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def reports(exports: Path, kind: str) -> dict[str, Any]:
    return {name: WRITERS[kind](exports / name, int8=True) for name in ("single", "routed")}


@pytest.mark.slow
def test_written_files(exports: Path, reports: dict[str, Any]) -> None:
    assert list(reports["single"]) == [""] and list(reports["routed"]) == ["en", "zh"]
    for report in reports.values():
        for numbers in report.values():
            assert 0 <= numbers["difference"] < 1e-5
            assert 0.98 < numbers["cosine_int8"]["lowest"] <= numbers["cosine_int8"]["mean"] <= 1.0001


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["onnx"], indirect=True)
def test_weights_in_onnx_have_seven_bits(exports: Path, reports: dict[str, Any]) -> None:
    # Eight signed bits overflow on processors without VNNI, which the cosines above show on those alone.
    weights = onnx.load(exports / "single" / "onnx" / "model_quantized.onnx").graph.initializer
    matrices = [weight for weight in weights if weight.data_type == onnx.TensorProto.INT8 and len(weight.dims) > 1]
    assert matrices
    for matrix in matrices:
        assert abs(onnx.numpy_helper.to_array(matrix).astype(int)).max() <= 64


@pytest.mark.slow
def test_cosines_of_int8_are_those_of_the_sentences(exports: Path, kind: str, reports: dict[str, Any]) -> None:
    for name, languages in (("single", {"": ["en", "fr"]}), ("routed", {"en": ["en"], "zh": ["zh"]})):
        exact = SentenceTransformer(str(exports / name), device="cpu")
        encoder = exact_encoder(exports / name, f"{kind}-int8")
        for route, numbers in reports[name].items():
            assert set(languages[route]) <= set(numbers["languages"])
            assert route == "" or numbers["languages"] == languages[route]
            sentences = [text for language in numbers["languages"] for text in SAMPLE_SENTENCES[language]]
            vectors = embed(encoder, sentences, language=route or None)
            cosines = (embed(exact, sentences, language=route or None) * vectors).sum(1)
            assert numbers["texts"] == len(sentences)
            assert numbers["cosine_int8"]["lowest"] == pytest.approx(cosines.min(), abs=1e-3)
            assert numbers["cosine_int8"]["mean"] == pytest.approx(cosines.mean(), abs=1e-3)


@pytest.mark.slow
def test_vectors_equal_torch(exports: Path, kind: str, reports: dict[str, Any]) -> None:
    folder = exports / "single"
    model = SentenceTransformer(str(folder), device="cpu")
    encoder = exact_encoder(folder, kind)
    int8_encoder = exact_encoder(folder, f"{kind}-int8")
    for texts in (["Tea."], ENGLISH, [LONG], [*ENGLISH, LONG, "garden"] * 3):
        expected = model.encode(texts)
        for batch_size in (1, 2, 64):
            np.testing.assert_allclose(encoder.encode(texts, batch_size=batch_size), expected, rtol=0, atol=1e-4)
        cosines = nn.functional.cosine_similarity(*map(torch.tensor, (expected, int8_encoder.encode(texts))))
        assert cosines.min() > 0.98

    vector = encoder.encode("Tea.")
    assert vector.shape == expected.shape[1:]
    np.testing.assert_allclose(vector, model.encode("Tea."), rtol=0, atol=1e-4)
    assert encoder.encode([]).shape == model.encode([]).shape


@pytest.mark.slow
def test_options_of_encode(exports: Path, kind: str, reports: dict[str, Any]) -> None:
    model = SentenceTransformer(str(exports / "single"), device="cpu")
    encoder = exact_encoder(exports / "single", kind)
    model.prompts = encoder.prompts = {"query": "garden tea "}
    model.default_prompt_name = encoder.default_prompt_name = "query"
    options: dict[str, Any]
    for options in ({}, {"prompt": ""}):
        np.testing.assert_allclose(
            encoder.encode(ENGLISH, **options), model.encode(ENGLISH, **options), rtol=0, atol=1e-4
        )

    encoder.default_prompt_name = None
    assert np.isfinite(encoder.encode(["", "Tea."])).all()  # this tokenizer makes no token of an empty text
    unit = encoder.encode(ENGLISH, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-5)


@pytest.mark.slow
def test_routes(exports: Path, kind: str, reports: dict[str, Any]) -> None:
    model = SentenceTransformer(str(exports / "routed"), device="cpu")
    encoder = exact_encoder(exports / "routed", kind)
    assert routes_of(encoder) == ("en", "zh")
    for language, texts in (("en", ENGLISH), ("zh", CHINESE)):
        expected = embed(model, texts, language=language)
        np.testing.assert_allclose(embed(encoder, texts, language=language), expected, rtol=0, atol=1e-4)
    with pytest.raises(XlsrError, match="en, zh"):
        encoder.encode(ENGLISH)
    with pytest.raises(XlsrError, match="language"):
        embed(encoder, ENGLISH)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), cases(GIVEN, CONVERTED), indirect=["kind"])
def test_given_encoders_are_equal_or_refused(name: str, kind: str, tmp_path: Path) -> None:
    model = save_export(build(name, tmp_path / "raw"), tmp_path / "export")
    try:
        WRITERS[kind](tmp_path / "export")
    except XlsrError as error:
        assert name in ("chat", "static", "static_words", "t5")
        assert "\n" not in str(error)
        return
    encoder = exact_encoder(tmp_path / "export", kind)
    for language in routes_of(model) or (None,):
        expected = embed(model, SENTENCES, language=language, normalize=False)
        vectors = embed(encoder, SENTENCES, language=language, normalize=False)
        np.testing.assert_allclose(vectors, expected, rtol=1e-6, atol=2e-6)  # some poolings give long vectors


@pytest.mark.slow
def test_truncated_vectors(exports: Path, kind: str, reports: Any, tmp_path: Path) -> None:
    home = Path(shutil.copytree(exports / "single", tmp_path / "copy"))
    settings = json.loads((home / "config_sentence_transformers.json").read_text("utf-8"))
    write_json(home / "config_sentence_transformers.json", {**settings, "truncate_dim": 6})
    expected = SentenceTransformer(str(home), device="cpu").encode(ENGLISH)
    encoder = exact_encoder(home, kind)
    assert expected.shape[1] == encoder.get_embedding_dimension() == 6
    np.testing.assert_allclose(encoder.encode(ENGLISH), expected, atol=1e-4)


@pytest.mark.slow
def test_letters_are_lowered(parts: Parts, kind: str, tmp_path: Path) -> None:
    """A folder of an older sentence-transformers says so in its settings, not in its tokenizer."""
    encoder = AutoModel.from_config(AutoConfig.for_model(**tiny_encoder(len(parts.tokenizers["en"]))))
    save_export(to_sentence_transformer(encoder, parts.tokenizers["en"], max_length=MAX_LENGTH), tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    write_json(tmp_path / "tokenizer.json", {**tokenizer, "normalizer": {"type": "NFKC"}})
    settings = json.loads((tmp_path / "sentence_bert_config.json").read_text("utf-8"))
    write_json(tmp_path / "sentence_bert_config.json", {**settings, "do_lower_case": True})
    WRITERS[kind](tmp_path)

    texts = [text.upper() for text in ENGLISH]
    expected = SentenceTransformer(str(tmp_path), device="cpu").encode(texts)
    np.testing.assert_allclose(exact_encoder(tmp_path, kind).encode(texts), expected, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_single_token_type(parts: Parts, kind: str, tmp_path: Path) -> None:
    values = tiny_encoder(len(parts.tokenizers["en"])) | {"type_vocab_size": 1}
    encoder = AutoModel.from_config(AutoConfig.for_model(**values))
    save_export(to_sentence_transformer(encoder, parts.tokenizers["en"], max_length=MAX_LENGTH), tmp_path)
    report = WRITERS[kind](tmp_path, int8=True)
    assert report[""]["cosine_int8"]["lowest"] > 0.98


def test_missing_weights_are_refused(parts: Parts, kind: str, tmp_path: Path) -> None:
    encoder = AutoModel.from_config(AutoConfig.for_model(**tiny_encoder(len(parts.tokenizers["en"]))))
    model = to_sentence_transformer(encoder, parts.tokenizers["en"], max_length=MAX_LENGTH)
    save_export(model, tmp_path / "export")
    weights = load_file(tmp_path / "export" / "model.safetensors")
    save_file({f"other.{name}": value for name, value in weights.items()}, tmp_path / "export" / "model.safetensors")
    with pytest.raises(XlsrError, match="weights"):
        WRITERS[kind](tmp_path / "export")


@pytest.mark.slow
def test_missing_files_are_refused(exports: Path, kind: str, reports: Any, tiny_export: str, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(exports / "single", tmp_path / "copy"))
    graph_file(copy, f"{kind}-int8").unlink()
    for folder, dtype, key in (
        (Path(tiny_export), kind, f"--{kind}"),
        (copy, f"{kind}-int8", f"--{kind} --int8"),
        (tmp_path, kind, tmp_path.name),
    ):
        with pytest.raises(XlsrError, match=key):
            exact_encoder(folder, dtype)
