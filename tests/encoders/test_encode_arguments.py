"""Encoders of this package take the arguments of `SentenceTransformer.encode`, with the same result, or refuse them."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_pairs
from sentence_transformers import SentenceTransformer

from hf_xlsr.encoders import graph_sessions
from hf_xlsr.encoders.cache import CachedEncoder
from hf_xlsr.encoders.debias import Debias, DebiasedEncoder
from hf_xlsr.encoders.graphs import GraphEncoder
from hf_xlsr.utils.errors import XlsrError

TEXTS = [pair["source"] for pair in make_pairs(7, seed=4)]
WIDTH = 16
PROMPTS = {"query": "red ", "passage": "blue ", "fr": "stone bird "}
GRAPHS = ("onnx", "openvino")
KINDS = ("cached", "stored", "debiased", *(pytest.param(graph, marks=pytest.mark.slow) for graph in GRAPHS))


@pytest.fixture(scope="module")
def folder(tiny_export: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with prompts, whose embeddings do not have length 1."""
    model = SentenceTransformer(tiny_export, device="cpu", prompts=PROMPTS, default_prompt_name="passage")
    del model[2]
    path = tmp_path_factory.mktemp("arguments") / "model"
    model.save(str(path), create_model_card=False)
    return path


@pytest.fixture(scope="module")
def loaded(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu")


@pytest.fixture
def plain(loaded: SentenceTransformer) -> SentenceTransformer:
    return copy.deepcopy(loaded)


@pytest.fixture(scope="module")
def graph_folder(folder: Path) -> Path:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    from hf_xlsr.export.onnx_files import write_onnx
    from hf_xlsr.export.openvino_files import write_openvino

    write_onnx(folder)
    if find_spec("openvino"):
        write_openvino(folder)
    return folder


def graph_encoder(folder: Path, dtype: str) -> Any:
    if dtype == "openvino":
        pytest.importorskip("openvino")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_sessions, "cpu_has_fast_bfloat16", lambda: False)
        return GraphEncoder(folder, dtype, threads=1)


@pytest.fixture(params=KINDS)
def encoder(request: pytest.FixtureRequest, plain: SentenceTransformer) -> Any:
    if request.param in GRAPHS:
        return graph_encoder(request.getfixturevalue("graph_folder"), request.param)
    if request.param == "debiased":
        nothing = Debias({"en": np.zeros((WIDTH, 1))})
        return Languageless(plain, nothing)
    cached = CachedEncoder(plain)
    if request.param == "stored":
        cached.encode(TEXTS)
    return cached


class Languageless(DebiasedEncoder):
    """A removal of nothing, so that its vectors are those of the model; all texts are English."""

    def encode(self, *args: Any, **options: Any) -> Any:
        return super().encode(*args, **{**options, "task": "en"})


def assert_same(embeddings: Any, expected: Any) -> None:
    """Type, shape and values; a number of eight bits may be rounded the other way."""
    assert type(embeddings) is type(expected)
    if isinstance(expected, list) and expected:
        embeddings = torch.stack(embeddings)
        expected = torch.stack(expected)
    assert np.shape(embeddings) == np.shape(expected)
    if not len(expected):
        return

    assert embeddings.dtype == expected.dtype
    numbers = np.asarray(embeddings, float)
    expected_numbers = np.asarray(expected, float)
    tolerance = 1e-5 if np.asarray(expected).dtype.kind == "f" else 1
    np.testing.assert_allclose(numbers, expected_numbers, rtol=0, atol=tolerance)


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"prompt": "green "},
    {"prompt": ""},
    {"prompt_name": "query"},
    {"prompt_name": "fr"},
    {"prompt": "green ", "prompt_name": "query"},
    {"batch_size": 2},
    {"show_progress_bar": False},
    {"output_value": "sentence_embedding"},
    {"normalize_embeddings": True},
    {"truncate_dim": 5},
    {"truncate_dim": 5, "normalize_embeddings": True},
    {"precision": "float32"},
    {"precision": None},
    {"precision": "int8"},
    {"precision": "uint8"},
    {"precision": "binary"},
    {"precision": "ubinary", "truncate_dim": 8},
    {"convert_to_numpy": False},
    {"convert_to_tensor": True},
    {"convert_to_tensor": True, "precision": "int8"},
    {"device": "cpu"},
    {"pool": None, "chunk_size": None},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_argument_gives_what_the_model_gives(encoder: Any, plain: SentenceTransformer, arguments: dict[str, Any]):
    assert_same(encoder.encode(TEXTS, **arguments), plain.encode(TEXTS, **arguments))


INPUTS: list[Any] = [TEXTS[0], "", [], [TEXTS[1]], tuple(TEXTS), np.array(TEXTS)]


@pytest.mark.parametrize("inputs", INPUTS, ids=["text", "empty text", "empty list", "list", "tuple", "array"])
@pytest.mark.parametrize("more", [{}, {"convert_to_tensor": True}, {"convert_to_numpy": False}], ids=str)
def test_input_gives_what_the_model_gives(encoder: Any, plain: SentenceTransformer, inputs: Any, more: dict[str, Any]):
    assert_same(encoder.encode(inputs, **more), plain.encode(inputs, **more))


def test_arguments_by_position(encoder: Any, plain: SentenceTransformer):
    assert_same(encoder.encode(TEXTS, "query", None, 2), plain.encode(TEXTS, "query", None, 2))


def test_old_name_of_the_input(encoder: Any, plain: SentenceTransformer):
    assert_same(encoder.encode(sentences=TEXTS), plain.encode(TEXTS))


@pytest.mark.parametrize("method", ["encode_query", "encode_document"])
@pytest.mark.parametrize("arguments", [{}, {"prompt": ""}, {"prompt_name": "fr"}, {"truncate_dim": 4}], ids=str)
def test_roles_give_what_the_model_gives(
    encoder: Any, plain: SentenceTransformer, method: str, arguments: dict[str, Any]
):
    embeddings = getattr(encoder, method)(TEXTS, **arguments)
    assert_same(embeddings, getattr(plain, method)(TEXTS, **arguments))


def test_settings_are_those_of_the_model(encoder: Any, plain: SentenceTransformer):
    for name in ("prompts", "default_prompt_name", "truncate_dim", "max_seq_length"):
        assert getattr(encoder, name) == getattr(plain, name)


@pytest.mark.parametrize(
    "refused",
    [
        {"output_value": "token_embeddings"},
        {"output_value": None},
        {"precision": "int4"},
        {"prompt_name": "passages"},
        {"batch_size": 0},
        {"pool": {"processes": []}},
        {"chunk_size": 2},
        {"processing_kwargs": {"text": {}}},
        {"trunkate_dim": 8},
    ],
    ids=str,
)
def test_argument_is_refused_by_name(encoder: Any, refused: dict[str, Any]):
    (name,) = refused
    with pytest.raises(XlsrError, match=name):
        encoder.encode(TEXTS, **refused)


@pytest.mark.parametrize("inputs", [None, 5, [TEXTS[0], 5], [{"image": "a.png"}]], ids=str)
def test_inputs_other_than_texts_are_refused(encoder: Any, inputs: Any):
    with pytest.raises((XlsrError, TypeError), match="inputs|iterable"):
        encoder.encode(inputs)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", GRAPHS)
def test_graphs_refuse_another_device(graph_folder: Path, dtype: str):
    with pytest.raises(XlsrError, match="device"):
        graph_encoder(graph_folder, dtype).encode(TEXTS, device="cuda:0")


def test_width_of_the_model_is_the_default(encoder: Any, plain: SentenceTransformer):
    plain.truncate_dim = 6
    if not hasattr(encoder, "encoder"):
        encoder.truncate_dim = 6
    if isinstance(encoder, DebiasedEncoder):
        encoder.debias = Debias({"en": np.zeros((6, 1))})
    for arguments in ({}, {"truncate_dim": 4}):
        expected = plain.encode(TEXTS[::-1], prompt="tree ", **arguments)
        assert_same(encoder.encode(TEXTS[::-1], prompt="tree ", **arguments), expected)


def test_wrapper_of_an_encoder_without_prompts_has_none():
    class Lengths:
        def encode(self, texts: list[str], **options: Any) -> np.ndarray:
            assert "prompt" not in options
            return np.array([[len(text), 1.0] for text in texts])

    encoder = CachedEncoder(Lengths())
    assert not hasattr(encoder, "prompts")
    assert encoder.encode(["a"], prompt="q: ").tolist() == [[4, 1]]


# --- What a cache keeps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spellings",
    [
        [{}, {"prompt_name": "passage"}, {"prompt": "blue "}],
        [{"prompt": "red "}, {"prompt_name": "query"}],
        [{"prompt": ""}, {"prompt_name": "document"}],
    ],
    ids=str,
)
def test_spellings_of_one_prompt_are_encoded_once(plain: SentenceTransformer, spellings: list[dict[str, Any]]):
    encoder = CachedEncoder(plain)
    for arguments in spellings:
        encoder.encode(TEXTS, **arguments)
    assert encoder.encoded == len(TEXTS)


def test_prompts_are_kept_apart(plain: SentenceTransformer):
    encoder = CachedEncoder(plain)
    for arguments in ({}, {"prompt": ""}, {"prompt_name": "query"}):
        assert_same(encoder.encode(TEXTS, **arguments), plain.encode(TEXTS, **arguments))
    assert encoder.encoded == 3 * len(TEXTS)


def test_changed_default_prompt_is_another_one(plain: SentenceTransformer):
    encoder = CachedEncoder(plain)
    encoder.encode(TEXTS)
    plain.default_prompt_name = "query"
    assert_same(encoder.encode(TEXTS), plain.encode(TEXTS))


def test_width_precision_and_length_come_after_the_cache(plain: SentenceTransformer):
    encoder = CachedEncoder(plain)
    for arguments in ({"truncate_dim": 4}, {"precision": "binary"}, {"normalize_embeddings": True}, {}):
        assert_same(encoder.encode(TEXTS, **arguments), plain.encode(TEXTS, **arguments))
    assert encoder.encoded == len(TEXTS)


# --- Removal of language bias ---------------------------------------------------------------------------------------


def test_removal_comes_before_width_and_length(plain: SentenceTransformer):
    mean = plain.encode(TEXTS).mean(0)
    encoder = DebiasedEncoder(plain, Debias({"en": mean}, method="mean"))
    expected = (plain.encode(TEXTS) - mean)[:, :5]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    embeddings = encoder.encode(TEXTS, task="en", truncate_dim=5, normalize_embeddings=True)
    np.testing.assert_allclose(embeddings, expected, atol=1e-5)


def test_language_of_queries_without_bias(plain: SentenceTransformer):
    encoder = DebiasedEncoder(plain, Debias({"en": np.zeros((WIDTH, 1))}))
    assert_same(encoder.encode_query(TEXTS, task="en"), plain.encode_query(TEXTS))
    with pytest.raises(XlsrError, match="language"):
        encoder.encode_query(TEXTS)
