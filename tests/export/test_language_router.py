"""Routing by detected language: mixed batches, explicit tasks, saving, and what is asked of the installation."""

from __future__ import annotations

import importlib.util
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from routed_helpers import CHINESE, ENGLISH, MAX_LENGTH, Parts, run_elsewhere
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router

from hf_xlsr.encoders.encoding import embed
from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.encoders.routing import routes_of
from hf_xlsr.export import LanguageRouter, export_routed_sentence_transformer, to_routed_sentence_transformer
from hf_xlsr.utils.errors import XlsrError

needs_langid = pytest.mark.skipif(importlib.util.find_spec("py3langid") is None, reason="needs the extra langid")

FRENCH = ["Les enfants jouent dans le jardin derrière la maison.", "Où as-tu laissé les clés de la voiture ?"]
TEXTS = [text for pair in zip(ENGLISH, CHINESE, strict=True) for text in pair]


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts()


@pytest.fixture(scope="module")
def expected(parts: Parts) -> dict[str, np.ndarray]:
    vectors = {}
    for language, texts in (("en", ENGLISH), ("zh", CHINESE)):
        vectors.update(zip(texts, parts.by_hand(texts, language), strict=True))
    return vectors


@pytest.fixture(scope="module")
def folder(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("detecting") / "model"
    export_routed_sentence_transformer(
        parts.encoders,
        parts.tokenizers,
        path,
        projections=parts.projections,
        max_length=MAX_LENGTH,
        detect_language=True,
    )
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)


@pytest.fixture
def without_langid(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "py3langid" else found(name))


def close(found: Any, expected: Any) -> bool:
    return np.shape(found) == np.shape(expected) and np.allclose(found, expected, rtol=0, atol=1e-6)


def named(parts: Parts, *names: str, **options: Any) -> SentenceTransformer:
    """The two encoders in turn under these names, detecting."""
    of = [("en", "zh")[position % 2] for position in range(len(names))]
    return to_routed_sentence_transformer(
        {name: parts.encoders[part] for name, part in zip(names, of, strict=True)},
        {name: parts.tokenizers[part] for name, part in zip(names, of, strict=True)},
        {name: parts.projections[part] for name, part in zip(names, of, strict=True)},
        max_length=MAX_LENGTH,
        detect_language=True,
        **options,
    )


@given(order=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=9), batch_size=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_each_text_takes_its_own_route_in_any_batch(
    model: SentenceTransformer, expected: dict[str, np.ndarray], order: list[str], batch_size: int
):
    assert close(model.encode(order, batch_size=batch_size), [expected[text] for text in order])


def test_a_task_counts_more_than_what_the_text_looks_like(model: SentenceTransformer, parts: Parts):
    assert close(model.encode(TEXTS, task="zh"), parts.by_hand(TEXTS, "zh"))
    assert close(embed(model, ENGLISH, language="cmn"), parts.by_hand(ENGLISH, "zh"))
    assert routes_of(model) == ("en", "zh")
    with pytest.raises(ValueError, match="No route found for task type 'fr'"):
        model.encode(TEXTS, task="fr")


def test_queries_and_documents_are_detected_unless_they_have_a_route(
    model: SentenceTransformer, expected: dict[str, np.ndarray], parts: Parts
):
    vectors = [expected[text] for text in TEXTS]
    assert close(model.encode_query(TEXTS), vectors) and close(model.encode_document(TEXTS), vectors)
    router = LanguageRouter(dict(model[0].sub_modules), route_mappings={("query", None): "zh"})
    mapped = SentenceTransformer(modules=[router, model[1]], device="cpu")
    assert close(mapped.encode_query(TEXTS), parts.by_hand(TEXTS, "zh"))
    assert close(mapped.encode_document(TEXTS), vectors)


def test_what_letters_say(model: SentenceTransformer):
    router = model[0]
    # A quarter as many letters in another script settle a text beside Latin ones; digits say nothing.
    texts = ["茶", "Tea", "用 Python 写代码", "China (中国) is a country in East Asia.", "8:30 – 42 %", ""]
    assert router.detect(texts) == ["en" if text != "茶" and "Python" not in text else "zh" for text in texts]


def test_texts_that_say_nothing_take_the_default_route(model: SentenceTransformer, parts: Parts):
    assert close(model.encode(["2024", "茶。"]), [parts.by_hand(["2024"], "en")[0], parts.by_hand(["茶。"], "zh")[0]])
    reverse = named(parts, "zh", "en")
    assert reverse[0].default_route == "zh" and reverse[0].detect(["2024"]) == ["zh"]
    refusing = LanguageRouter(dict(model[0].sub_modules), allow_empty_key=False).eval()
    with pytest.raises(ValueError, match="Could not determine route"):
        refusing.detect(["2024"])


@needs_langid
def test_languages_of_one_script_are_told_by_the_identifier(parts: Parts):
    several = named(parts, "en", "zh", "fr", "ru")
    texts = [*ENGLISH[:3], *CHINESE[:3], *FRENCH, "Где ты оставил ключи от машины?"]
    assert several[0].detect(texts) == ["en"] * 3 + ["zh"] * 3 + ["fr"] * 2 + ["ru"]
    # German is none of them: still only their names come back.
    assert several[0].detect(["Wo hast du die Schlüssel gelassen?"])[0] in ("en", "fr")


def test_the_identifier_is_asked_for_only_where_letters_do_not_do(
    parts: Parts, model: SentenceTransformer, expected: dict[str, np.ndarray], without_langid: None, tmp_path: Path
):
    assert close(model.encode(TEXTS), [expected[text] for text in TEXTS])
    says = (
        r"to tell whether a text without a task is in en or fr, the package py3langid is needed; install it with `pip"
    )
    with pytest.raises(XlsrError, match=says):
        named(parts, "en", "fr")
    router = LanguageRouter({name: [*model[0].sub_modules[part]] for name, part in (("en", "en"), ("fr", "zh"))})
    loaded = SentenceTransformer(modules=[router, model[1]], device="cpu")
    assert close(loaded.encode(CHINESE, task="fr"), [expected[text] for text in CHINESE])
    with pytest.raises(XlsrError, match=says):
        loaded.encode(ENGLISH)


@needs_langid
def test_languages_that_nothing_tells_apart_are_refused_at_export(parts: Parts):
    with pytest.raises(
        XlsrError, match=r"is in nb or nn, which py3langid cannot tell apart; say which with task='nb'\."
    ):
        named(parts, "nb", "nn")


def test_names_are_languages(model: SentenceTransformer):
    with pytest.raises(XlsrError, match="route 'query' is no language tag"):
        LanguageRouter({"query": [*model[0].sub_modules["en"]]})


def test_saved_again_it_is_the_same(model: SentenceTransformer, tmp_path: Path):
    model.save(str(tmp_path / "again"))
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu", trust_remote_code=True)
    assert type(again[0]).__name__ == "LanguageRouter" and again[0].get_config_dict() == model[0].get_config_dict()
    assert (again.encode(TEXTS) == model.encode(TEXTS)).all()
    assert "model.encode(sentences)" in (tmp_path / "again" / "README.md").read_text("utf-8")


def test_it_loads_in_a_clean_process_with_trust(folder: Path, expected: dict[str, np.ndarray], tmp_path: Path):
    code = """
import sys
import numpy as np
from sentence_transformers import SentenceTransformer
assert "hf_xlsr" not in sys.modules
texts = open(sys.argv[2], encoding="utf-8").read().splitlines()
try:
    SentenceTransformer(sys.argv[1], device="cpu")
except ValueError as error:
    assert "trust_remote_code=True" in str(error)
else:
    raise SystemExit("loaded without trust")
np.save(sys.argv[3], SentenceTransformer(sys.argv[1], device="cpu", trust_remote_code=True).encode(texts))
"""
    texts, found = tmp_path / "texts.txt", tmp_path / "found.npy"
    texts.write_text("\n".join(TEXTS), "utf-8")
    ran = run_elsewhere(code, folder, texts, found)
    assert ran.returncode == 0, ran.stderr
    assert close(np.load(found), [expected[text] for text in TEXTS])


def test_everything_that_encode_takes(model: SentenceTransformer, expected: dict[str, np.ndarray], parts: Parts):
    vectors = np.stack([expected[text] for text in TEXTS])
    assert close(model.encode("茶。"), expected["茶。"])
    assert len(model.encode([])) == 0 and model.preprocess([]) == {}
    tensor = model.encode(TEXTS, convert_to_tensor=True, normalize_embeddings=True)
    assert isinstance(tensor, torch.Tensor) and close(tensor, vectors)
    assert close(model.similarity(tensor, tensor), vectors @ vectors.T)
    assert close(model.encode(TEXTS, truncate_dim=3), vectors[:, :3])
    # The prompt is no part of what is looked at.
    prompted = [parts.by_hand(["Query: " + text], "zh" if text in CHINESE else "en")[0] for text in TEXTS]
    assert close(model.encode(TEXTS, prompt="Query: "), prompted)


def test_texts_in_dictionaries_and_pairs(model: SentenceTransformer, expected: dict[str, np.ndarray]):
    assert close(model.encode([{"text": text} for text in TEXTS]), [expected[text] for text in TEXTS])
    assert close(model.encode([{"zh": text} for text in CHINESE]), [expected[text] for text in CHINESE])
    pairs = [("a house", "a garden"), ("房子", "花园"), ("Python", "写代码")]
    found = model[0].preprocess(pairs)["language_rows"]
    assert found == {"en": [0], "zh": [1, 2]}


def test_token_states_of_a_mixed_batch(parts: Parts):
    torch.manual_seed(1)
    other = type(parts.encoders["en"])(parts.encoders["en"].config)
    model = to_routed_sentence_transformer(
        {"en": parts.encoders["en"], "ru": other},
        dict.fromkeys(("en", "ru"), parts.tokenizers["en"]),
        max_length=MAX_LENGTH,
        detect_language=True,
    )
    texts = {ENGLISH[0]: "en", "Где ключи?": "ru", ENGLISH[3]: "en"}
    mixed = model.encode(list(texts), output_value="token_embeddings")
    for states, (text, language) in zip(mixed, texts.items(), strict=True):
        alone = model.encode(text, task=language, output_value="token_embeddings")
        assert states.shape == alone.shape and torch.allclose(states, alone, rtol=0, atol=1e-5)
    everything = model.encode(list(texts), output_value=None)
    assert close([item["sentence_embedding"] for item in everything], model.encode(list(texts)))


def test_gradients_reach_every_route(parts: Parts):
    model = named(parts, "en", "zh").train()
    vectors = model(model.preprocess(TEXTS))["sentence_embedding"]
    (vectors[0] @ vectors[3]).backward()
    layers = [model[0].sub_modules[name][2].linear.weight for name in ("en", "zh")]
    assert all(layer.grad is not None and layer.grad.abs().sum() > 0 for layer in layers)


def test_it_goes_to_other_processes(model: SentenceTransformer):
    model.encode(TEXTS)
    router = pickle.loads(pickle.dumps(model[0]))
    assert isinstance(router, Router) and router.detect(TEXTS) == ["en", "zh"] * 4


def test_evaluation_loads_it_but_no_folder_with_code_of_its_own(folder: Path, tmp_path: Path):
    encoder = load_encoder(str(folder))
    assert routes_of(encoder) == ("en", "zh")
    assert embed(encoder, ENGLISH, language="en").shape == (4, 8)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "helper.py").write_text("raise SystemExit('ran')\n", "utf-8")
    with pytest.raises(XlsrError, match="brings code that is not of this package"):
        load_encoder(str(copy))
