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
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.encoders.loading import encoder_facts, load_encoder
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
    ],
)
def test_invalid_options(options: Any, key: str, tiny_export: str):
    with pytest.raises(XlsrError, match=key):
        load_encoder(tiny_export, **options)


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
