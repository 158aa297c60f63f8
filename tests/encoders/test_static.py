"""Static embeddings as encoders: tokens, vectors and gradients are those of `StaticEmbedding`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_pairs, texts_of
from given_encoders import SENTENCES, WIDTH, assembled, tiny_tokenizer
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoModel

from hf_xlsr import DistillationModel, DualMomentumModel
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.assembly import SentenceEncoder, text_tokenizer
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.export import save_export
from hf_xlsr.utils.errors import XlsrError

TEXTS = [*SENTENCES, "", " ", "☃", "red ☃ red", "<pad> <s> red </s>", "[PAD] [CLS] red", "Red BLEU", "one two " * 40]
WORDS = sorted({word for text in texts_of(make_pairs(200)) for word in text.split()})


def bert_like() -> Tokenizer:
    """As those of models of model2vec: lower-cased words between special tokens, with padding."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, "##s"]
    tokenizer = Tokenizer(models.WordPiece({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    return tokenizer


def byte_level() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def unigram() -> Any:
    return train_tokenizer(texts_of(make_pairs(200)), vocab_size=90, frame=True).backend_tokenizer


def words(max_length: int = 0, direction: str = "right") -> Tokenizer:
    """Words alone, of which none is special; perhaps truncated."""
    vocabulary = {word: number for number, word in enumerate(["?", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if max_length:
        tokenizer.enable_truncation(max_length, direction=direction)
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "bpe": lambda: tiny_tokenizer().backend_tokenizer,
    "bert": bert_like,
    "bytes": byte_level,
    "unigram": unigram,
    "words": words,
    "truncated": lambda: words(3),
    "truncated_left": lambda: words(3, "left"),
}


def static_model(kind: str, *behind: Any) -> SentenceTransformer:
    torch.manual_seed(0)
    return assembled([StaticEmbedding(TOKENIZERS[kind](), embedding_dim=WIDTH), *behind])


def encode(model: Any) -> torch.Tensor:
    return torch.as_tensor(model.encode(TEXTS))


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_vectors_survive_training_and_every_save(kind: str, tmp_path: Path) -> None:
    given = static_model(kind, Normalize())
    model = DistillationModel.from_encoder(given)
    model.save_pretrained(tmp_path / "saved")
    model.given_tokenizer.save_pretrained(str(tmp_path / "saved"))
    exported = save_export(model.to_sentence_transformer(model.given_tokenizer), tmp_path / "export")

    expected = encode(given)
    assert type(exported[0]) is StaticEmbedding
    assert torch.equal(encode(exported), expected)
    assert torch.equal(encode(read_encoder(tmp_path / "saved").assemble()), expected)
    assert torch.equal(encode(read_encoder(tmp_path / "export").assemble()), expected)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokens_of_training_are_those_of_the_module(kind: str) -> None:
    given = static_model(kind)
    part = read_encoder(given).single()
    max_length = int(min(part.options["max_seq_length"], 1000))

    ids = part.tokenizer(TEXTS, truncation=True, max_length=max_length)["input_ids"]

    expected = given[0].tokenizer.encode_batch(TEXTS, add_special_tokens=False)
    assert ids == [encoding.ids for encoding in expected]


def test_a_tokenizer_with_special_tokens_reads_as_the_module() -> None:
    """Also one that a user gives to a trainer instead of the encoder's."""
    part = replace(read_encoder(static_model("bpe")).single(), tokenizer=tiny_tokenizer())

    ids = text_tokenizer(part)(TEXTS)["input_ids"]

    expected = SentenceEncoder({"": part}).assemble().preprocess(TEXTS)["input_ids"]
    assert sum(ids, []) == expected.tolist()


def test_gradients_are_those_of_the_module() -> None:
    given = static_model("bert").double()
    model = DistillationModel.from_encoder(given, teacher_dim=WIDTH).double()
    texts = ["red red blue ☃", "", "one"]
    factors = torch.randn(3, WIDTH, dtype=torch.float64)
    batch = model.given_tokenizer(texts, padding=True, return_tensors="pt")

    (model.encode_sentences(batch["input_ids"], batch["attention_mask"]) * factors).sum().backward()

    (given(given.preprocess(texts))["sentence_embedding"] * factors).sum().backward()
    gradient = model.encoder.embedding.weight.grad
    torch.testing.assert_close(gradient, given[0].embedding.weight.grad, rtol=0, atol=1e-14)


def test_a_table_of_model2vec_is_read(tmp_path: Path) -> None:
    """Its rows are shared by tokens, and have weights."""
    tokenizer = bert_like()
    size = tokenizer.get_vocab_size()
    weights = {
        "embeddings": torch.randn(9, 4).half(),
        "mapping": torch.arange(size) % 9,
        "weights": torch.linspace(0.5, 1.5, size),
    }
    save_file(weights, tmp_path / "model.safetensors")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    module = {"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}
    (tmp_path / "modules.json").write_text(json.dumps([module]), "utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}), "utf-8")

    part = read_encoder(tmp_path).single()

    table = weights["embeddings"].float()[weights["mapping"]] * weights["weights"][:, None]
    torch.testing.assert_close(part.encoder.embedding.weight, table.half().float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("pooling", ["cls", "max", ["mean", "max"]])
def test_a_static_embedding_has_no_other_pooling(pooling: Any) -> None:
    given = static_model("bpe")
    with pytest.raises(XlsrError, match=r"`pooling`.*static"):
        DistillationModel.from_encoder(given, pooling=pooling)
    with pytest.raises(XlsrError, match=r"`pooling`.*static"):
        DualMomentumModel.from_encoders(given, languages=["en", "fr"], pooling=pooling)


def test_a_longer_list_of_tokens_is_cut_in_use_as_in_training() -> None:
    read = read_encoder(static_model("bpe"))
    read.single().options["max_seq_length"] = 4
    shortened = read.assemble()
    texts = ["one two red blue", "one"]
    ids = shortened.preprocess(texts)["input_ids"]
    expected = read.single().tokenizer(texts, truncation=True, max_length=4)["input_ids"]
    assert ids.tolist() == sum(expected, [])


def test_live_vectors_follow_the_weights() -> None:
    model = DistillationModel.from_encoder(static_model("words"))
    live = model.sentence_encoder(model.given_tokenizer).assemble()
    before = encode(live)
    with torch.no_grad():
        model.encoder.embedding.weight.mul_(2)
    assert torch.equal(encode(live), before * 2)


def test_auto_model_knows_the_architecture(tmp_path: Path) -> None:
    encoder: Any = read_encoder(static_model("words")).single().encoder
    encoder.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(loaded.embedding.weight, encoder.embedding.weight)


def test_languages_that_share_a_table_share_its_module() -> None:
    part = read_encoder(static_model("words")).single()
    model = SentenceEncoder({"en": part, "fr": part}).assemble()
    routes: Any = model[0]
    assert routes.sub_modules["en"][0] is routes.sub_modules["fr"][0]
