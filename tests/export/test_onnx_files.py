"""ONNX files of exports: the vectors of torch whatever the size of a batch, in float32 and nearly so in int8."""

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

from hf_xlsr.encoders.encoding import embed, routes_of
from hf_xlsr.export import save_export, to_sentence_transformer
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import write_json

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")

from hf_xlsr.encoders.onnx import OnnxEncoder  # noqa: E402
from hf_xlsr.export.onnx_files import write_onnx  # noqa: E402

LONG = " ".join(ENGLISH)


def assert_near(vectors: Any, expected: Any) -> None:
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-4)


def random_encoder(tokenizer: Any, **values: Any) -> Any:
    return AutoModel.from_config(AutoConfig.for_model(**{**tiny_encoder(len(tokenizer)), **values}))


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts()


@pytest.fixture(scope="module")
def exports(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`single` (MPNet, whose positions begin behind the padding, with a linear projection) and `routed`."""
    home = tmp_path_factory.mktemp("onnx")
    torch.manual_seed(3)
    tokenizer = parts.tokenizers["en"]
    encoder = random_encoder(tokenizer, model_type="mpnet", pad_token_id=0, initializer_range=0.3)
    single = to_sentence_transformer(encoder, tokenizer, pooling="max", normalize=False, max_length=MAX_LENGTH)
    save_export(with_dense(single, nn.Linear(16, 16)), home / "single")
    save_export(parts.model().to_sentence_transformer(parts.tokenizers), home / "routed")
    return home


@pytest.fixture(scope="module")
def reports(exports: Path) -> dict[str, Any]:
    return {name: write_onnx(exports / name, int8=True) for name in ("single", "routed")}


@pytest.mark.slow
def test_written_files(exports: Path, reports: dict[str, Any]) -> None:
    assert list(reports["single"]) == [""]
    assert list(reports["routed"]) == ["en", "zh"]
    for report in reports.values():
        for numbers in report.values():
            assert 0 <= numbers["difference"] < 1e-5
            assert 0.98 < numbers["cosine_int8"] <= 1.0001

    # Eight signed bits overflow on processors without VNNI, which the cosines above show on those alone.
    weights = onnx.load(exports / "single" / "onnx" / "model_quantized.onnx").graph.initializer
    matrices = [weight for weight in weights if weight.data_type == onnx.TensorProto.INT8 and len(weight.dims) > 1]
    assert matrices
    for matrix in matrices:
        assert abs(onnx.numpy_helper.to_array(matrix).astype(int)).max() <= 64


@pytest.mark.slow
def test_vectors_equal_torch(exports: Path, reports: dict[str, Any]) -> None:
    folder = exports / "single"
    model = SentenceTransformer(str(folder), device="cpu")
    encoder = OnnxEncoder(folder, threads=1)
    int8_encoder = OnnxEncoder(folder, int8=True, threads=1)
    for texts in (["Tea."], ENGLISH, [LONG], [*ENGLISH, LONG, "garden"] * 3):
        expected = model.encode(texts)
        for batch_size in (1, 2, 64):
            assert_near(encoder.encode(texts, batch_size=batch_size), expected)

        vectors = torch.tensor(int8_encoder.encode(texts))
        cosines = nn.functional.cosine_similarity(vectors, torch.tensor(expected))
        assert cosines.min() > 0.98

    vector = encoder.encode("Tea.")
    assert vector.shape == expected.shape[1:]
    assert_near(vector, model.encode("Tea."))
    assert encoder.encode([]).shape == model.encode([]).shape


@pytest.mark.slow
def test_options_of_encode(exports: Path, reports: dict[str, Any]) -> None:
    model = SentenceTransformer(str(exports / "single"), device="cpu")
    encoder = OnnxEncoder(exports / "single", threads=1)
    model.prompts = encoder.prompts = {"query": "garden tea "}
    model.default_prompt_name = encoder.default_prompt_name = "query"
    assert_near(encoder.encode(ENGLISH), model.encode(ENGLISH))
    assert_near(encoder.encode(ENGLISH, prompt=""), model.encode(ENGLISH, prompt=""))

    encoder.default_prompt_name = None
    assert np.isfinite(encoder.encode(["", "Tea."])).all()  # this tokenizer makes no token of an empty text
    unit = encoder.encode(ENGLISH, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-5)


@pytest.mark.slow
def test_routes(exports: Path, reports: dict[str, Any]) -> None:
    model = SentenceTransformer(str(exports / "routed"), device="cpu")
    encoder = OnnxEncoder(exports / "routed", threads=1)
    assert routes_of(encoder) == ("en", "zh")
    for language, texts in (("en", ENGLISH), ("zh", CHINESE)):
        assert_near(embed(encoder, texts, language=language), embed(model, texts, language=language))

    with pytest.raises(XlsrError, match="en, zh"):
        encoder.encode(ENGLISH)
    with pytest.raises(XlsrError, match="language"):
        embed(encoder, ENGLISH)


@pytest.mark.slow
@pytest.mark.parametrize("name", GIVEN)
def test_given_encoders_are_equal_or_refused(name: str, tmp_path: Path) -> None:
    model = save_export(build(name, tmp_path / "raw"), tmp_path / "export")
    try:
        write_onnx(tmp_path / "export")
    except XlsrError as error:
        assert name in ("chat", "layer_norm", "prompt_left_out", "static", "t5", "word_weights")
        assert "\n" not in str(error)
        return

    encoder = OnnxEncoder(tmp_path / "export", threads=1)
    for language in routes_of(model) or (None,):
        expected = embed(model, SENTENCES, language=language, normalize=False)
        vectors = embed(encoder, SENTENCES, language=language, normalize=False)
        assert_near(vectors, expected)


@pytest.mark.slow
def test_truncated_vectors(exports: Path, reports: Any, tmp_path: Path) -> None:
    home = Path(shutil.copytree(exports / "single", tmp_path / "copy"))
    settings_path = home / "config_sentence_transformers.json"
    settings = json.loads(settings_path.read_text("utf-8"))
    write_json(settings_path, {**settings, "truncate_dim": 6})

    encoder = OnnxEncoder(home)
    assert encoder.get_embedding_dimension() == 6
    assert_near(encoder.encode(ENGLISH), SentenceTransformer(str(home), device="cpu").encode(ENGLISH))


@pytest.fixture
def plain(parts: Parts) -> SentenceTransformer:
    tokenizer = parts.tokenizers["en"]
    return to_sentence_transformer(random_encoder(tokenizer), tokenizer, max_length=MAX_LENGTH)


def test_pooling_without_prompts_is_refused(plain: SentenceTransformer, tmp_path: Path) -> None:
    plain.set_pooling_include_prompt(False)
    save_export(plain, tmp_path / "export")
    with pytest.raises(XlsrError, match="prompt"):
        write_onnx(tmp_path / "export")


def test_missing_weights_are_refused(plain: SentenceTransformer, tmp_path: Path) -> None:
    save_export(plain, tmp_path / "export")
    path = tmp_path / "export" / "model.safetensors"
    weights = load_file(path)
    save_file({f"other.{name}": value for name, value in weights.items()}, path)
    with pytest.raises(XlsrError, match="weights"):
        write_onnx(tmp_path / "export")


def test_missing_files_are_refused(tiny_export: str, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="--onnx"):
        OnnxEncoder(tiny_export)
    with pytest.raises(XlsrError, match=tmp_path.name):
        OnnxEncoder(tmp_path)


@pytest.mark.slow
def test_missing_int8_file_is_refused(exports: Path, reports: Any, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(exports / "single", tmp_path / "copy"))
    (copy / "onnx" / "model_quantized.onnx").unlink()
    with pytest.raises(XlsrError, match="--int8"):
        OnnxEncoder(copy, int8=True)
