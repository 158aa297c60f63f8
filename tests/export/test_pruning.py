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
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AlbertConfig,
    AutoConfig,
    BertConfig,
    ElectraConfig,
    GPT2Config,
    PreTrainedTokenizerFast,
    XLMConfig,
    XLMRobertaTokenizer,
)

sys.path.append(str(Path(__file__).parents[1] / "encoders"))
from given_encoders import (  # noqa: E402
    BERT_SIZE,
    CHAT_TEMPLATE,
    GIVEN,
    SENTENCES,
    assembled,
    build,
    named,
    of_config,
    qwen,
    tiny_tokenizer,
    tiny_transformer,
    vectors,
)

from hf_xlsr.cli import main
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.assembly import EncoderSettings
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.export import pruning, save_export, to_sentence_transformer
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

MORE: dict[str, Any] = {
    "albert": of_config(AlbertConfig(**BERT_SIZE, embedding_size=8), "mean"),
    "electra": of_config(ElectraConfig(**BERT_SIZE, embedding_size=8), "mean"),
    "gpt2": of_config(GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=40), "lasttoken", mask_token=None),
    "xlm": of_config(XLMConfig(emb_dim=16, n_layers=2, n_heads=2, max_position_embeddings=40, pad_index=0), "mean"),
}
ENCODERS = {**GIVEN, **MORE}
REFUSED = {"routed": "routes"}
WITHOUT_LAYERS = {**REFUSED, "static": "`layers`", "static_words": "`layers`", "albert": "`layers`"}


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


def layer_lists(encoder: Any) -> list[torch.nn.ModuleList]:
    """The lists of an encoder that have an entry for each layer, without lists inside of them."""
    count = encoder.config.num_hidden_layers
    lists: list[torch.nn.ModuleList] = []
    for module in encoder.modules():
        is_inside = any(module in layers.modules() for layers in lists)
        if isinstance(module, torch.nn.ModuleList) and len(module) == count and not is_inside:
            lists.append(module)
    return lists


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
    for layers in layer_lists(encoder):
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


def test_command_on_a_static_embedding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = build("static", tmp_path / "raw")
    model.save(str(tmp_path / "model"))
    (tmp_path / "en.txt").write_text("\n".join(SENTENCES * 5), "utf-8")
    output = tmp_path / "small"
    command = ["prune", str(tmp_path / "model"), "--texts", f"en={tmp_path}/en.txt", "--output", str(output)]

    assert main(command) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["layers"] == [0, 0]
    assert "layers" not in (output / "README.md").read_text("utf-8")
    loaded = SentenceTransformer(str(output), device="cpu")
    np.testing.assert_allclose(loaded.encode(SENTENCES), model.encode(SENTENCES), atol=1e-6)
    assert main([*command, "--layers", "0"]) == 1


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


@pytest.mark.parametrize("name", named(name for name in ENCODERS if name not in REFUSED))
def test_all_is_kept_but_the_tokens(name: str, tmp_path: Path) -> None:
    model = ENCODERS[name](tmp_path / "raw")
    expected = vectors(model)

    pruned, report = prune(model, [*ENGLISH, *SENTENCES])

    assert report["tokens"][1] < report["tokens"][0]
    assert report["layers"][1] == report["layers"][0]
    np.testing.assert_allclose(vectors(pruned), expected, atol=1e-5)
    np.testing.assert_array_equal(vectors(model), expected)
    assert list(map(type, pruned)) == list(map(type, model))
    assert EncoderSettings.of(pruned) == EncoderSettings.of(model)
    assert pruned.max_seq_length == model.max_seq_length or "no_limit" in name
    assert type(pruned.tokenizer) is type(model.tokenizer)
    for attribute in ("padding_side", "truncation_side", "chat_template", "model_input_names"):
        assert getattr(pruned.tokenizer, attribute, None) == getattr(model.tokenizer, attribute, None)


@pytest.mark.parametrize("name", named(name for name in ENCODERS if name not in WITHOUT_LAYERS))
def test_the_first_layer_is_kept_with_the_tokens(name: str, tmp_path: Path) -> None:
    model = ENCODERS[name](tmp_path / "raw")
    pruned, report = prune(model, [*ENGLISH, *SENTENCES], layers=[0])

    encoder: Any = model[0].model
    for layers in layer_lists(encoder):
        del layers[1:]
    encoder.config.num_hidden_layers = 1
    encoder.n_layers = 1

    assert report["layers"] == [2, 1]
    np.testing.assert_allclose(vectors(pruned), vectors(model), atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_encoders_that_cannot_be_pruned_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=REFUSED[name]):
        prune(build(name, tmp_path / "raw"), ENGLISH)


@pytest.mark.parametrize("name", WITHOUT_LAYERS)
def test_layers_of_encoders_without_a_list_of_them_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=WITHOUT_LAYERS[name]):
        prune(ENCODERS[name](tmp_path / "raw"), ENGLISH, layers=[0])


def test_every_list_of_layers_is_reduced(tmp_path: Path) -> None:
    """XLM has a list of attentions, one of feed-forward layers and two of normalisations."""
    model = MORE["xlm"](tmp_path)
    pruned, _ = prune(model, [*ENGLISH, *SENTENCES], layers=[1])

    pairs = list(zip(layer_lists(model[0].model), layer_lists(pruned[0].model), strict=True))
    assert len(pairs) == 4
    for before, after in pairs:
        for name, weight in after[0].state_dict().items():
            torch.testing.assert_close(weight, before[1].state_dict()[name])


@pytest.mark.parametrize("tokenizer_class", [PreTrainedTokenizerFast, XLMRobertaTokenizer])
def test_letters_are_lowered_as_before(tokenizer_class: Any, tmp_path: Path) -> None:
    tokenizer = cased_tokenizer(tokenizer_class)
    raw = tmp_path / "raw"
    tiny_transformer(raw, BertConfig(**BERT_SIZE), tokenizer)
    transformer = Transformer(str(raw), do_lower_case=True)
    model = assembled([transformer, Pooling(16, "mean")])
    texts = [text.upper() for text in ENGLISH[:40]]

    pruned, _ = prune(model, [*ENGLISH, *texts])
    loaded = save_export(pruned, tmp_path / "export")

    for smaller in (pruned, loaded):
        assert smaller[0].do_lower_case
        np.testing.assert_allclose(smaller.encode(texts), model.encode(texts), atol=1e-5)


def cased_tokenizer(tokenizer_class: Any) -> Any:
    """A tokenizer that knows lower letters only, and does not lower them."""
    words = train_tokenizer([*ENGLISH, *FRENCH], vocab_size=110, algorithm="unigram", lowercase=False, frame=True)
    tokens = json.loads(words.backend_tokenizer.to_str())["model"]["vocab"]
    special = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    vocab = [*special, *map(tuple, tokens[5:]), ("<mask>", 0.0)]
    tokenizer = XLMRobertaTokenizer(vocab=vocab, model_max_length=32)
    if tokenizer_class is XLMRobertaTokenizer:
        return tokenizer
    names = tokenizer.special_tokens_map
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, model_max_length=32, **names)


def test_tokens_of_the_template_of_a_chat_are_kept(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(chat_template=CHAT_TEMPLATE.replace("one", "water"), padding_side="left")
    transformer = tiny_transformer(tmp_path, qwen(), tokenizer)
    model = assembled([transformer, Pooling(16, "lasttoken")])
    texts = ["two"] * 60

    pruned, _ = prune(model, texts)

    np.testing.assert_allclose(pruned.encode(texts[:2]), model.encode(texts[:2]), atol=1e-5)


def test_first_words_behind_a_prompt_are_kept(tmp_path: Path) -> None:
    """In byte-level vocabularies such as Qwen's, a space before a word is a part of its token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<pad>", "</s>"], initial_alphabet=alphabet)
    backend.train_from_iterator([*ENGLISH, *FRENCH], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", model_max_length=32
    )
    modules = [tiny_transformer(tmp_path, qwen(), tokenizer), Pooling(16, "lasttoken")]
    model = assembled(modules, prompts={"query": "find: "}, default_prompt_name="query")

    pruned, report = prune(model, WORDS * 20)

    assert report["same_tokens"] == 1
    np.testing.assert_allclose(pruned.encode(WORDS), model.encode(WORDS), atol=1e-5)


def test_layers_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(XlsrError, match="layer 0"):  # ModernBERT's first layer has one normalisation less
        prune(make_encoder("modernbert"), ENGLISH, layers=[1, 3])


@pytest.mark.parametrize("layers", [[0, 4], [2, 1], [1, 1], []])
def test_numbers_of_layers_increase(layers: list[int]) -> None:
    with pytest.raises(XlsrError, match="from 0 to 3"):
        prune(make_encoder(), ENGLISH, layers=layers)
