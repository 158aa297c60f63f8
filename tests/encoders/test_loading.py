"""Loading encoders: device, precision, damaged folders."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_encoder

from hf_xlsr import LightweightConfig, LightweightDualTransformer
from hf_xlsr.encoders import loading
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.encoders.graph_sessions import FORMATS
from hf_xlsr.encoders.loading import encoder_facts, fastest_dtype, load_encoder
from hf_xlsr.utils.errors import XlsrError


def test_dtype_of_weights(tiny_export: str):
    half = load_encoder(tiny_export, "cpu", "bfloat16")
    full = load_encoder(tiny_export, "cpu")
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}
    assert encoder_facts(half)["precision"] == ["bfloat16"]
    assert encoder_facts(full)["precision"] == ["float32"]

    texts = ["one two three", "red house"]
    half_vectors = embed(half, texts)
    full_vectors = embed(full, texts)
    assert ((half_vectors * full_vectors).sum(axis=1) > 0.99).all()
    assert not np.array_equal(half_vectors, full_vectors)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"dtype": "bf16"}, "dtype"),
        ({"device": "cuda:99"}, "device"),
        ({"dtype": "onnx-int8"}, "--int8"),
        ({"dtype": "openvino-int8"}, "openvino"),
    ],
)
def test_invalid_options(options: Any, key: str, tiny_export: str):
    with pytest.raises(XlsrError, match=key):
        load_encoder(tiny_export, **options)


@pytest.mark.parametrize(
    ("missing", "fastest"),
    [([], "openvino"), (["openvino"], "onnx"), (["openvino", "onnxruntime"], "float32")],
    ids=str,
)
def test_auto_is_the_fastest_with_equal_embeddings(
    missing: list[str], fastest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for graph in FORMATS.values():
        file = tmp_path / graph.folder / graph.file
        file.parent.mkdir(exist_ok=True)
        file.touch()
    seconds = {"float32": 4.0, "bfloat16": 5.0, "onnx": 3.0, "onnx-int8": 1.0, "openvino": 2.0, "openvino-int8": 1.5}

    def timed(dtype: str) -> tuple[np.ndarray, float]:
        vector = [0.6, 0.8] if dtype.endswith("int8") else [0.0, 1.0]
        return np.array([vector]), seconds[dtype]

    monkeypatch.setattr(loading, "_timed", timed)
    monkeypatch.setattr(loading, "load_encoder", lambda model, device, dtype: dtype)
    monkeypatch.setattr(loading, "find_spec", lambda package: package not in missing)
    assert fastest_dtype(str(tmp_path), "cpu") == fastest


def test_missing_folder():
    with pytest.raises(XlsrError, match="./none"):
        load_encoder("./none")


def test_model_of_training(tokenizer: Any, tmp_path: Path):
    config = LightweightConfig(text_config=tiny_encoder(len(tokenizer)))
    LightweightDualTransformer(config).save_pretrained(tmp_path)
    with pytest.raises(XlsrError, match="--tokenizer"):
        load_encoder(str(tmp_path))


def test_torn_weights(tiny_export: str, tmp_path: Path):
    folder = Path(shutil.copytree(tiny_export, tmp_path / "torn"))
    (weights,) = folder.rglob("model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(XlsrError, match="torn"):
        load_encoder(str(folder))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modules.json", "[{"),
        ("modules.json", '[{"idx": 0, "name": "0", "path": "", "type": "no_such_package.Module"}]'),
        ("tokenizer.json", '{"version": "1.0", "model"'),
    ],
)
def test_damaged_folder(name: str, content: str, tiny_export: str, tmp_path: Path):
    folder = Path(shutil.copytree(tiny_export, tmp_path / "damaged"))
    file = next(folder.rglob(name))
    file.write_text(content, "utf-8")
    with pytest.raises(XlsrError, match="damaged") as raised:
        load_encoder(str(folder))
    assert "\n" not in str(raised.value)
