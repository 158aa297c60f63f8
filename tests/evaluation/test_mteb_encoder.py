"""Exports as encoders of mteb: their hash, their metadata, and which route each column takes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mteb_helpers import ENGLISH, FRENCH, routed_model, shaken
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from hf_xlsr.encoders.encoding import embed
from hf_xlsr.utils.errors import XlsrError

mteb = pytest.importorskip("mteb")

from mteb.models import EncoderProtocol  # noqa: E402
from mteb.types import PromptType  # noqa: E402

from hf_xlsr.evaluation.mteb.evaluate import as_mteb_encoder, content_hash  # noqa: E402


@pytest.fixture
def folder(tiny_export: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_export, tmp_path / "copy"))


@pytest.fixture(scope="module")
def routed(tiny_export: str) -> SentenceTransformer:
    return routed_model(tiny_export)


def encoded(model: Any, texts: list[str], subset: str, task: str = "Tatoeba", **options: Any) -> np.ndarray:
    """What mteb would get for a column."""
    call = {key: options.pop(key) for key in ("prompt_type", "batch_size", "precision") if key in options}
    batches = [{"text": texts[:4]}, {"text": texts[4:]}]
    metadata = mteb.get_task(task).metadata
    encoder = as_mteb_encoder(model, **options)
    return encoder.encode(batches, task_metadata=metadata, hf_split="test", hf_subset=subset, **call)


def test_what_does_not_decide_the_vectors_does_not_change_the_hash(folder: Path, tiny_export: str):
    before = content_hash(tiny_export)
    (folder / "README.md").write_text("# Another card")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("")
    (folder / "curve.png").write_bytes(b"picture")
    for file in folder.rglob("*"):
        file.touch()
    assert content_hash(folder) == content_hash(str(folder)) == before
    assert len(before) == 64


def change_a_weight(folder: Path) -> None:
    file = next(folder.rglob("model.safetensors"))
    weights = load_file(file)
    next(iter(weights.values())).view(-1)[0] += 1e-3
    save_file(weights, file, {"format": "pt"})


def change_the_pooling(folder: Path) -> None:
    file = folder / "1_Pooling" / "config.json"
    file.write_text(file.read_text().replace("mean", "cls"))


def change_the_tokenizer(folder: Path) -> None:
    file = next(folder.rglob("tokenizer.json"))
    file.write_text(file.read_text().replace('"one"', '"oné"', 1) + " ")


def move_a_file(folder: Path) -> None:
    (folder / "1_Pooling").rename(folder / "2_Pooling")


@pytest.mark.parametrize("change", [change_a_weight, change_the_pooling, change_the_tokenizer, move_a_file])
def test_what_decides_the_vectors_changes_the_hash_of_a_folder(change: Any, folder: Path):
    before = content_hash(folder)
    change(folder)
    assert content_hash(folder) != before


def test_a_loaded_model_keeps_its_hash_over_loads_and_use(tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu")
    before = content_hash(model)
    model.encode(["one two", "three " * 50])
    assert content_hash(model) == before == content_hash(SentenceTransformer(tiny_export, device="cpu"))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: next(model.parameters()).data.view(-1)[0].add_(1e-6),
        lambda model: model.half(),
        lambda model: setattr(model[0], "max_seq_length", 5),
        lambda model: model.prompts.update(query="query: "),
        lambda model: setattr(model, "truncate_dim", 8),
        lambda model: setattr(model[0].model.config, "hidden_act", "relu"),
        lambda model: model.tokenizer.add_tokens(["xyzzy"]),
        lambda model: model.__delitem__(2),
    ],
)
def test_what_decides_the_vectors_changes_the_hash_of_a_loaded_model(change: Any, tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu")
    before = content_hash(model)
    change(model)
    assert content_hash(model) != before


def test_a_hash_needs_a_model(tmp_path: Path):
    with pytest.raises(XlsrError, match="no model files"):
        content_hash(tmp_path)
    for name in ("nobody/has-this", "no such folder"):
        with pytest.raises(XlsrError, match=name):
            content_hash(name)


def test_mteb_is_told_what_a_model_is(folder: Path):
    card = "---\nlanguage:\n- en\n- fr\n- multilingual\nlicense: apache-2.0\n---\n# Card\n"
    (folder / "README.md").write_text(card)
    encoder = as_mteb_encoder(folder, training_datasets=["XNLI"])
    meta = encoder.mteb_model_meta
    weights = load_file(next(folder.rglob("model.safetensors")))
    embeddings = next(weight for name, weight in weights.items() if "word_embeddings" in name)
    assert isinstance(encoder, EncoderProtocol)
    assert (meta.name, meta.revision) == ("local/copy", content_hash(folder))
    assert (meta.n_parameters, meta.n_embedding_parameters) == (
        sum(weight.numel() for weight in weights.values()),
        embeddings.numel(),
    )
    assert (meta.embed_dim, meta.max_tokens, meta.similarity_fn_name.value) == (16, 32, "cosine")
    assert (meta.languages, meta.license, meta.open_weights) == (["eng-Latn", "fra-Latn"], "apache-2.0", True)
    assert (meta.training_datasets, meta.use_instructions, meta.experiment_kwargs) == ({"XNLI"}, False, None)
    assert meta.memory_usage_mb == pytest.approx(4 * meta.n_parameters / 2**20)


def test_names_and_languages_can_be_given(routed: SentenceTransformer):
    meta = as_mteb_encoder(routed, name="me/routed", languages=["de", "zh-Hant"]).mteb_model_meta
    assert (meta.name, meta.languages) == ("me/routed", ["deu-Latn", "zho-Hant"])
    assert as_mteb_encoder(routed, name="routed").mteb_model_meta.name == "local/routed"
    assert as_mteb_encoder(routed).mteb_model_meta.languages == ["eng-Latn", "fra-Latn"]
    with pytest.raises(XlsrError, match="languages has 'klingonese', which mteb does not know"):
        as_mteb_encoder(routed, languages=["en", "klingonese"])


def test_prompts_that_look_alike_in_file_names_are_filed_apart(tiny_export: str):
    metas = [as_mteb_encoder(tiny_export, prompt=prompt).mteb_model_meta for prompt in ("", "query: ", "query_ ")]
    assert len({meta.revision for meta in metas}) == 1
    assert len({meta.experiment_name for meta in metas}) == 3


def test_a_plain_model_encodes_as_it_does_itself(tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu")
    del model[2]  # without Normalize: vectors keep their lengths
    texts = ["one two", "three", "one two", "four five six", "seven"]
    found = encoded(model, texts, "deu-eng", prompt="red ", batch_size=2)
    expected = model.encode(["red " + text for text in texts], batch_size=2)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.dtype == np.float32
    assert not np.allclose(np.linalg.norm(found, axis=1), 1)


@pytest.mark.parametrize(
    ("texts", "subset", "task", "route"),
    [
        (FRENCH, "fra-eng", "Tatoeba", "fr"),
        (ENGLISH, "fra-eng", "Tatoeba", "en"),
        (ENGLISH, "fr-en", "BUCC.v2", "en"),
        (FRENCH, "fra_Latn", "FloresBitextMining", "fr"),
        (ENGLISH, "fra_Latn", "FloresBitextMining", "fr"),  # a column's name is believed
        (FRENCH, "fr", "XNLI", "fr"),
        (ENGLISH, "default", "STSBenchmark", "en"),
        (FRENCH, "fr-en", "STS17", "fr"),
    ],
)
def test_each_column_takes_the_route_of_its_language(
    texts: list[str], subset: str, task: str, route: str, routed: SentenceTransformer
):
    found = encoded(routed, texts, subset, task)
    np.testing.assert_allclose(found, embed(routed, texts, language=route, normalize=False), atol=1e-6)
    other = routed.encode(texts, task={"en": "fr", "fr": "en"}[route])
    assert not np.allclose(found, other, atol=1e-2)


def test_routes_that_bear_other_names(tiny_export: str):
    model = routed_model(tiny_export, ("source", "target"))
    routes = {"eng": "source", "fr": "target"}
    found = encoded(model, FRENCH, "fra-eng", routes=routes)
    np.testing.assert_allclose(found, model.encode(FRENCH, task="target"), atol=1e-6)
    with pytest.raises(XlsrError, match="routes source, target, and Tatoeba does not say which to take"):
        encoded(model, FRENCH, "fra-eng")
    with pytest.raises(XlsrError, match="middle"):
        as_mteb_encoder(model, routes={"en": "middle"})


def test_languages_of_one_route_need_no_telling_apart(tiny_export: str):
    model = routed_model(tiny_export, ("source", "target"))
    texts = ["12", "34", "56", "78", "90"]
    found = encoded(model, texts, "fra-eng", routes={"en": "target", "fr": "target"})
    np.testing.assert_allclose(found, model.encode(texts, task="target"), atol=1e-6)


@pytest.mark.parametrize(
    ("texts", "subset", "task", "options", "says"),
    [
        (FRENCH, "deu-eng", "Tatoeba", {}, "'de'"),
        (FRENCH, "no-such-subset", "Tatoeba", {}, "subset 'no-such-subset', is in a language that neither"),
        (FRENCH, "fra-eng", "Tatoeba", {"identify": False}, "mteb does not say which; allow identify"),
        (FRENCH[:3] + ENGLISH[:3], "fra-eng", "Tatoeba", {}, "cannot be told to be in fr or en: 50% of its 6 texts"),
        (["1", "2", "3", "4", "5"], "fra-eng", "Tatoeba", {}, "0 texts with letters"),
    ],
)
def test_a_router_never_guesses(
    texts: list[str], subset: str, task: str, options: dict[str, Any], says: str, routed: SentenceTransformer
):
    with pytest.raises(XlsrError, match=says):
        encoded(routed, texts, subset, task, **options)


def test_subsets_of_many_languages_are_refused(tiny_export: str):
    model = routed_model(tiny_export, ("da", "no", "nb", "nn"))
    with pytest.raises(XlsrError, match="one or more of da, no, nn, nb.*choose subsets of one or two languages"):
        encoded(model, FRENCH, "dan-nor", "WebFAQBitextMiningQuestions")


def test_queries_and_documents_take_their_own_sides(tiny_export: str):
    model = routed_model(tiny_export, ("query", "document"))
    for side in ("query", "document"):
        found = encoded(model, ENGLISH, "default", prompt_type=PromptType(side))
        np.testing.assert_allclose(found, model.encode(ENGLISH, task=side), atol=1e-6)


def test_a_models_own_prompts_are_used_unless_another_is_given(tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu", prompts={"query": "red ", "document": "blue "})
    for prompt, expected in (("", "blue "), ("green ", "green ")):
        found = encoded(model, ENGLISH, "default", prompt_type=PromptType.document, prompt=prompt)
        np.testing.assert_allclose(found, model.encode([expected + text for text in ENGLISH]), atol=1e-6)


@pytest.mark.parametrize("side", [None, PromptType.query, PromptType.document])
def test_a_models_own_prompt_is_the_one_that_mteb_would_take(side: PromptType | None, tiny_export: str):
    from mteb.models.abs_encoder import get_prompt_name

    names = ["Tatoeba-query", "Tatoeba", "BitextMining-document", "BitextMining", "query", "document", "STS"]
    metadata = mteb.get_task("Tatoeba").metadata
    plain = SentenceTransformer(tiny_export, device="cpu")
    for first in range(len(names)):
        prompts = {name: f"{name} " for name in names[first:]}
        model = SentenceTransformer(tiny_export, device="cpu", prompts=prompts)
        expected = model.prompts.get(get_prompt_name(model.prompts, metadata, side), "")
        found = encoded(model, ENGLISH, "fra-eng", prompt_type=side)
        np.testing.assert_allclose(found, plain.encode([expected + text for text in ENGLISH]), atol=1e-6)


def test_a_prompt_of_a_side_stands_in_place_of_the_default_one(tiny_export: str):
    prompts = {"query": "red ", "document": "blue "}
    plain = SentenceTransformer(tiny_export, device="cpu")
    model = SentenceTransformer(tiny_export, device="cpu", prompts=prompts, default_prompt_name="document")
    found = encoded(model, ENGLISH, "default", prompt_type=PromptType.query)
    np.testing.assert_allclose(found, plain.encode([f"red {text}" for text in ENGLISH]), atol=1e-6)
    routed = routed_model(tiny_export, ("query", "document"))
    routed.prompts, routed.default_prompt_name = prompts, "document"
    found = encoded(routed, ENGLISH, "default", prompt_type=PromptType.query)
    expected = routed.encode([f"red {text}" for text in ENGLISH], task="query", prompt="")
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_similarity_is_the_cosine(tiny_export: str):
    encoder = as_mteb_encoder(shaken(SentenceTransformer(tiny_export, device="cpu"), 3))
    one, other = np.array([[3.0, 4.0]]), np.array([[1.0, 0.0]])
    assert float(torch.as_tensor(encoder.similarity(one, other))[0, 0]) == pytest.approx(0.6)
    assert float(torch.as_tensor(encoder.similarity_pairwise(one, other))[0]) == pytest.approx(0.6)


def test_options_that_would_be_lost_are_refused(tiny_export: str):
    with pytest.raises(XlsrError, match="encode_kwargs has 'precision'; known are batch_size, show_progress_bar"):
        encoded(tiny_export, ENGLISH, "default", precision="int8")


def test_a_model_that_is_not_there(tmp_path: Path):
    with pytest.raises(XlsrError, match="'.*missing'"):
        as_mteb_encoder(tmp_path / "missing")


def test_without_mteb_the_mend_is_named(monkeypatch: pytest.MonkeyPatch, tiny_export: str):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(XlsrError, match=r"mteb is not installed; install it with `pip install 'hf-xlsr\[mteb\]'`"):
        as_mteb_encoder(tiny_export)
