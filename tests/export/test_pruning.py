"""Pruned encoders: equal embeddings where tokens are equal, the chosen layers, the chosen languages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import FRENCH as WORDS
from conftest import make_pairs
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig

sys.path.append(str(Path(__file__).parents[1] / "encoders"))
from given_encoders import GIVEN, SENTENCES, build, named, vectors  # noqa: E402

from hf_xlsr.cli import main
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.assembly import EncoderSettings
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.export import pruning, to_sentence_transformer
from hf_xlsr.export.pruning import prune
from hf_xlsr.utils.errors import XlsrError

ROWS = make_pairs(300)
ENGLISH, FRENCH = ([row[side] for row in ROWS] for side in ("source", "target"))
KINDS = {
    "bert": {"intermediate_size": 32, "max_position_embeddings": 40},
    "xlm-roberta": {"intermediate_size": 32, "max_position_embeddings": 42},
    "distilbert": {"dim": 16, "hidden_dim": 32, "n_layers": 4, "n_heads": 2, "max_position_embeddings": 40},
    "modernbert": {"intermediate_size": 32, "max_position_embeddings": 40, "global_attn_every_n_layers": 2},
}


def make_encoder(kind: str = "bert", algorithm: str = "unigram") -> SentenceTransformer:
    torch.manual_seed(0)
    tokenizer = train_tokenizer([*ENGLISH, *FRENCH], vocab_size=110, algorithm=algorithm, frame=True, max_length=32)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
    special = {name: getattr(tokenizer, name) for name in names}
    if kind == "distilbert":
        sizes = {"vocab_size": len(tokenizer)}
    config = AutoConfig.for_model(kind, **{**sizes, **special, **KINDS[kind]})
    return to_sentence_transformer(encoder_from_config(config), tokenizer, max_length=32)


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_of_the_kept_languages_are_equal(kind: str, algorithm: str) -> None:
    model = make_encoder(kind, algorithm)
    pruned, report = prune(model, ENGLISH)
    np.testing.assert_allclose(pruned.encode(ENGLISH[:40]), model.encode(ENGLISH[:40]), atol=1e-5)
    assert report["tokens"][1] < report["tokens"][0]
    assert report["parameters"][1] < report["parameters"][0]
    assert report["same_tokens"] == 1.0
    assert report["unknown_tokens"] == 0
    assert report["cosine"] == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
def test_chosen_layers_are_kept(kind: str, tmp_path: Path) -> None:
    model = make_encoder(kind)
    pruned, report = prune(model, [*ENGLISH, *FRENCH], layers=[0, 3])
    assert report["layers"] == [4, 2]
    pruned.save(str(tmp_path))
    loaded = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_allclose(loaded.encode(FRENCH[:5]), pruned.encode(FRENCH[:5]), atol=1e-6)

    # The same layers of the original give the same.
    encoder: Any = model[0].model
    layer_lists = [module for module in encoder.modules() if isinstance(module, torch.nn.ModuleList)]
    layers = next(module for module in layer_lists if len(module) == 4)
    del layers[1:3]
    encoder.config.num_hidden_layers = 2
    np.testing.assert_allclose(model.encode(FRENCH[:5]), pruned.encode(FRENCH[:5]), atol=1e-5)


def test_held_out_texts_choose_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "HELD_OUT_SHARE", 0.5)
    _, report = prune(make_encoder(), WORDS)  # each word occurs once
    assert 0 < report["held_out_texts"] < len(WORDS)
    assert report["same_tokens"] < 0.9


KNOWN = sorted(set("".join(ENGLISH)) - {" "})


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
@pytest.mark.parametrize(("letters", "is_known"), [(KNOWN, True), (list("☀☁☂☃☄★☆☎"), False)])
def test_unknown_letters_are_counted_if_the_original_knows_them(
    letters: list[str], is_known: bool, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "HELD_OUT_SHARE", 0.5)
    _, report = prune(make_encoder(algorithm=algorithm), letters)  # each once, so that no held-out letter is kept
    assert report["held_out_texts"] > 1
    assert report["unknown_tokens"] == (report["held_out_texts"] if is_known else 0)
    assert (report["same_tokens"] < 1) == is_known


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_encoder().save(str(tmp_path / "model"))
    for language, texts in (("en", ENGLISH), ("fr", FRENCH)):
        (tmp_path / f"{language}.txt").write_text("\n".join(texts), "utf-8")
    output = str(tmp_path / "small")
    arguments = ["--texts", f"{tmp_path}/{{lang}}.txt", "--languages", "en", "--layers", "0,3", "--limit", "200"]
    assert main(["prune", str(tmp_path / "model"), "--output", output, *arguments]) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["layers"] == [4, 2]
    assert SentenceTransformer(output, device="cpu").encode(["one bird"]).shape == (1, 16)
    card = (tmp_path / "small" / "README.md").read_text("utf-8")
    expected = ("language:\n- en\n", "2 of 4 layers", f"{report['tokens'][1]} of", "/model`", "SentenceTransformer(")
    for text in expected:
        assert text in card
    assert str(tmp_path) not in card
    assert main(["prune", str(tmp_path / "model"), "--output", str(tmp_path / "other")]) == 1


@pytest.mark.parametrize("vocab_size", [None, 60])
def test_tokens_of_the_prompt_are_kept(vocab_size: int | None) -> None:
    model = make_encoder()
    model.prompts = {"french": f"{FRENCH[0]} "}
    model.default_prompt_name = "french"
    pruned, report = prune(model, ["one two"] * 100, vocab_size=vocab_size)
    assert report["same_tokens"] == 1.0
    assert report["cosine"] == pytest.approx(1)
    np.testing.assert_allclose(pruned.encode("one two"), model.encode("one two"), atol=1e-5)


def test_settings_are_kept() -> None:
    model = make_encoder()
    model.similarity_fn_name = "dot"
    model.truncate_dim = 8
    model.set_pooling_include_prompt(False)
    pruned, _ = prune(model, ["one two"] * 100)
    assert pruned.similarity_fn_name == "dot"
    expected = model.encode("one two", prompt="two ")
    assert len(expected) == 8
    np.testing.assert_allclose(pruned.encode("one two", prompt="two "), expected, atol=1e-5)


REFUSED = {"static": "StaticEmbedding", "routed": "routes"}


@pytest.mark.parametrize("name", named(name for name in GIVEN if name not in REFUSED))
def test_given_encoders_keep_all_but_the_tokens(name: str, tmp_path: Path) -> None:
    model = build(name, tmp_path / "raw")
    expected = vectors(model)
    pruned, report = prune(model, [*ENGLISH, *SENTENCES])
    assert report["tokens"][1] < report["tokens"][0]
    np.testing.assert_allclose(vectors(pruned), expected, atol=1e-5)
    assert list(map(type, pruned)) == list(map(type, model))
    assert EncoderSettings.of(pruned) == EncoderSettings.of(model)
    for attribute in ("padding_side", "truncation_side", "chat_template"):
        assert getattr(pruned.tokenizer, attribute) == getattr(model.tokenizer, attribute)
    np.testing.assert_array_equal(vectors(model), expected)


@pytest.mark.parametrize("name", REFUSED)
def test_encoders_that_cannot_be_pruned_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=REFUSED[name]):
        prune(build(name, tmp_path / "raw"), ENGLISH)


def test_layers_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(XlsrError, match="layer 0"):  # ModernBERT's first layer has one normalisation less
        prune(make_encoder("modernbert"), ENGLISH, layers=[1, 3])
    with pytest.raises(XlsrError, match="from 0 to 3"):
        prune(make_encoder(), ENGLISH, layers=[0, 4])
