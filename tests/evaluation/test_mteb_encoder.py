"""Exports as encoders of mteb: metadata, the route of each column, prompts, and registration among mteb's models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from mteb_helpers import ENGLISH, FRENCH, routed_model
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch.utils.data import DataLoader

from hf_xlsr.encoders.encoding import embed
from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.utils.errors import XlsrError

mteb = pytest.importorskip("mteb")

from mteb.models import EncoderProtocol, SentenceTransformerEncoderWrapper  # noqa: E402
from mteb.models.model_implementations import MODEL_REGISTRY  # noqa: E402
from mteb.types import PromptType  # noqa: E402

from hf_xlsr.evaluation.mteb.encoder import as_mteb_encoder, register_model  # noqa: E402


@pytest.fixture
def folder(tiny_export: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_export, tmp_path / "copy"))


@pytest.fixture(scope="module")
def routed(tiny_export: str) -> SentenceTransformer:
    return routed_model(tiny_export)


def encoded(model: Any, texts: list[str], subset: str, task: str = "Tatoeba", **options: Any) -> np.ndarray:
    """What mteb would get for a column."""
    call: dict[str, Any] = {"task_metadata": mteb.get_task(task).metadata, "hf_split": "test", "hf_subset": subset}
    for name in ("prompt_type", "batch_size"):
        if name in options:
            call[name] = options.pop(name)

    encoder = as_mteb_encoder(model, **options)
    batches = [{"text": texts[:4]}, {"text": texts[4:]}]
    return encoder.encode(batches, **call)


def test_metadata_of_a_folder(folder: Path):
    card = "---\nlanguage:\n- en\n- fr\n- multilingual\nlicense: apache-2.0\n---\n# Card\n"
    (folder / "README.md").write_text(card)
    encoder = as_mteb_encoder(folder)
    meta = encoder.mteb_model_meta
    weights = load_file(next(folder.rglob("model.safetensors")))

    assert isinstance(encoder, EncoderProtocol)
    assert meta.name == "local/copy"
    assert meta.revision == content_hash(folder)
    assert meta.languages == ["eng-Latn", "fra-Latn"]
    assert meta.license == "apache-2.0"
    assert meta.open_weights
    assert meta.n_parameters == sum(weight.numel() for weight in weights.values())
    assert meta.embed_dim == 16
    assert meta.max_tokens == 32
    assert meta.similarity_fn_name.value == "cosine"


@pytest.mark.parametrize(
    ("own", "prompt", "expected"),
    [({}, None, False), ({"query": "q: "}, None, True), ({"query": "q: "}, "", False), ({}, {"en": "e: "}, True)],
)
def test_metadata_says_whether_texts_get_prompts(own: Any, prompt: Any, expected: bool, tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu", prompts=own)
    assert as_mteb_encoder(model, prompt=prompt).mteb_model_meta.use_instructions == expected


def test_card_in_norwegian(folder: Path):
    """YAML 1.1 would read `no` as false."""
    (folder / "README.md").write_text("---\nlanguage: no\n---\n")
    assert as_mteb_encoder(folder).mteb_model_meta.languages == ["nor-Latn"]


@pytest.mark.parametrize(
    "options",
    [
        {"normalize_embeddings": True},
        {"truncate_dim": 8},
        {"truncate_dim": 8, "normalize_embeddings": True},
        {"precision": "float32"},
        {"precision": "int8"},
        {"precision": "ubinary"},
        {"convert_to_tensor": True},
        {"convert_to_numpy": False},
        {"device": "cpu"},
    ],
    ids=str,
)
def test_options_of_encode_are_those_of_mteb(options: dict[str, Any], tiny_export: str):
    stock = SentenceTransformer(tiny_export, device="cpu")
    encoders = (SentenceTransformerEncoderWrapper(stock), as_mteb_encoder(stock))
    task = {"task_metadata": mteb.get_task("Tatoeba").metadata, "hf_split": "test", "hf_subset": "fra-eng"}
    batches = DataLoader(Dataset.from_dict({"text": ENGLISH}), batch_size=6)

    expected, vectors = (encoder.encode(batches, **task, **options) for encoder in encoders)
    np.testing.assert_allclose(vectors, np.asarray(expected, np.float32), atol=1e-6)


def test_metadata_of_a_model(routed: SentenceTransformer):
    meta = as_mteb_encoder(routed, name="me/routed", languages=["de", "zh-Hant"]).mteb_model_meta
    assert meta.name == "me/routed"
    assert meta.languages == ["deu-Latn", "zho-Hant"]


def test_each_prompt_has_results_of_its_own(folder: Path):
    metas = [as_mteb_encoder(folder, prompt=prompt).mteb_model_meta for prompt in (None, "", "query: ", "query_ ")]
    assert len({meta.revision for meta in metas}) == 1
    assert len({meta.experiment_name for meta in metas}) == 4


def test_plain_model_encodes_as_itself(tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu")
    del model[2]  # without Normalize: vectors keep their lengths
    texts = ["one two", "three", "one two", "four five six", "seven"]

    vectors = encoded(model, texts, "deu-eng", prompt="red ", batch_size=2)

    expected = model.encode(["red " + text for text in texts], batch_size=2)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert vectors.dtype == np.float32
    assert not np.allclose(np.linalg.norm(vectors, axis=1), 1)


@pytest.mark.parametrize(
    ("texts", "subset", "task", "route"),
    [
        (FRENCH, "fra-eng", "Tatoeba", "fr"),
        (ENGLISH, "fra-eng", "Tatoeba", "en"),
        (ENGLISH, "fra_Latn", "FloresBitextMining", "fr"),  # the name of a column decides
        (FRENCH, "fr", "XNLI", "fr"),
        (ENGLISH, "default", "STSBenchmark", "en"),
    ],
)
def test_column_takes_the_route_of_its_language(
    texts: list[str], subset: str, task: str, route: str, routed: SentenceTransformer
):
    vectors = encoded(routed, texts, subset, task)
    np.testing.assert_allclose(vectors, embed(routed, texts, language=route, normalize=False), atol=1e-6)
    wrong_route = {"en": "fr", "fr": "en"}[route]
    assert not np.allclose(vectors, routed.encode(texts, task=wrong_route), atol=1e-2)


def test_named_routes(tiny_export: str):
    model = routed_model(tiny_export, ("source", "target"))
    vectors = encoded(model, FRENCH, "fra-eng", routes={"eng": "source", "fr": "target"})
    np.testing.assert_allclose(vectors, model.encode(FRENCH, task="target"), atol=1e-6)


@pytest.mark.parametrize(
    ("routes", "texts", "subset", "task", "key"),
    [
        (("en", "fr"), FRENCH, "deu-eng", "Tatoeba", "'de'"),
        (("en", "fr"), FRENCH[:3] + ENGLISH[:3], "fra-eng", "Tatoeba", "50%"),
    ],
)
def test_routes_are_never_guessed(
    routes: tuple[str, ...], texts: list[str], subset: str, task: str, key: str, tiny_export: str
):
    with pytest.raises(XlsrError) as error:
        encoded(routed_model(tiny_export, routes), texts, subset, task)
    assert key in str(error.value)


@pytest.mark.parametrize("side", ["query", "document"])
@pytest.mark.parametrize(("prompts", "default"), [({}, None), ({"query": "red ", "document": "blue "}, "document")])
def test_queries_and_documents_take_their_routes_and_prompts(
    prompts: dict[str, str], default: str | None, side: str, tiny_export: str
):
    model = routed_model(tiny_export, ("query", "document"))
    model.prompts = prompts
    model.default_prompt_name = default

    vectors = encoded(model, ENGLISH, "default", prompt_type=PromptType(side))

    texts = [prompts.get(side, "") + text for text in ENGLISH]
    np.testing.assert_allclose(vectors, model.encode(texts, task=side, prompt=""), atol=1e-6)


@pytest.mark.parametrize(
    ("prompts", "default", "side", "expected"),
    [
        ({"query": "red ", "passage": "blue "}, None, "query", "red "),
        ({"query": "red ", "passage": "blue "}, None, "document", "blue "),
        ({"query": "red ", "corpus": "blue "}, "query", "document", "blue "),
        ({"query": "", "x": "blue "}, "x", "query", ""),
        ({"x": "blue "}, "x", None, "blue "),
        ({"STSBenchmark": "red ", "STS": "blue ", "query": "one "}, None, "query", "red "),
        ({"STSBenchmark-query": "two ", "STSBenchmark": "red "}, None, "query", "two "),
        ({"en": "red ", "x": "blue "}, "x", None, "red "),
    ],
)
def test_own_prompt_of_a_column(
    prompts: dict[str, str], default: str | None, side: str | None, expected: str, tiny_export: str
):
    model = SentenceTransformer(tiny_export, device="cpu", prompts=prompts, default_prompt_name=default)
    prompt_type = None if side is None else PromptType(side)
    vectors = encoded(model, ENGLISH, "default", "STSBenchmark", name="me/x", prompt_type=prompt_type)
    np.testing.assert_allclose(vectors, model.encode(ENGLISH, prompt=expected), atol=1e-6)


@pytest.mark.parametrize(
    ("prompt", "side", "expected"),
    [
        ("blue ", "query", "blue "),
        ("", "query", ""),
        ({"document": "blue "}, "document", "blue "),
        ({"document": "blue "}, "query", "red "),
    ],
)
def test_prompts_of_the_call_replace_those_of_the_model(prompt: Any, side: str, expected: str, tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu", prompts={"query": "red ", "document": "red "})
    vectors = encoded(model, ENGLISH, "default", name="me/x", prompt=prompt, prompt_type=PromptType(side))
    np.testing.assert_allclose(vectors, model.encode(ENGLISH, prompt=expected), atol=1e-6)


def test_prompt_of_the_language_of_a_column(tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu", prompts={"fr": "rouge ", "en": "red "})
    for texts, prompt in ((ENGLISH, "red "), (FRENCH, "rouge ")):
        vectors = encoded(model, texts, "fra-eng", name="me/x")
        np.testing.assert_allclose(vectors, model.encode(texts, prompt=prompt), atol=1e-6)


def test_prompt_outside_of_the_pooling(tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu", prompts={"query": "red blue "})
    model.set_pooling_include_prompt(False)
    vectors = encoded(model, ENGLISH, "default", name="me/x", prompt_type=PromptType.query)
    np.testing.assert_allclose(vectors, model.encode_query(ENGLISH), atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"normalize_embeddings": True},
        {"truncate_dim": 8},
        {"precision": "int8"},
        {"precision": "binary"},
        {"convert_to_tensor": True},
        {"convert_to_numpy": False},
        {"device": "cpu", "show_progress_bar": False},
    ],
    ids=str,
)
def test_options_of_the_model(options: dict[str, Any], tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu")
    del model[2]
    encoder = as_mteb_encoder(model, name="me/x")
    texts = [*ENGLISH, ENGLISH[0]]
    call: dict[str, Any] = {"task_metadata": mteb.get_task("Tatoeba").metadata, "hf_split": "test"}

    vectors = encoder.encode([{"text": texts}], **call, hf_subset="deu-eng", **options)

    expected = [np.asarray(row, np.float32) for row in model.encode(texts, **options)]
    np.testing.assert_allclose(vectors, expected, atol=1 if "precision" in options else 1e-6)


def test_the_bridge_decides_the_prompt(tiny_export: str):
    encoder = as_mteb_encoder(SentenceTransformer(tiny_export, device="cpu"), name="me/x")
    metadata = mteb.get_task("Tatoeba").metadata
    with pytest.raises(XlsrError, match="`prompt_name`"):
        encoder.encode(
            [{"text": ENGLISH}],
            task_metadata=metadata,
            hf_split="test",
            hf_subset="deu-eng",
            prompt_name="query",
        )


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that is free in mteb's registry, also after the test."""
    monkeypatch.setitem(MODEL_REGISTRY, "me/model", None)
    del MODEL_REGISTRY["me/model"]
    return "me/model"


def test_registered_export_is_one_of_mtebs_models(name: str, folder: Path):
    for _ in range(2):
        meta = register_model(folder, name=name, prompt="red ", languages=["en", "fr"])
    assert meta.revision == content_hash(folder)
    assert mteb.get_model_meta(name).revision == meta.revision
    assert name in meta.to_python()

    model = mteb.get_model(name, device="cpu")
    assert model.mteb_model_meta.name == name
    assert model.prompt == "red "

    (folder / "config_sentence_transformers.json").write_text("{}")
    with pytest.raises(XlsrError, match=name):
        mteb.get_model(name)
