"""`read_encoder`: what is given is read whole, and stays as it was."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from given_encoders import GIVEN, SENTENCES, build, named, tiny_tokenizer, vectors
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel

from hf_xlsr import DistillationModel
from hf_xlsr.encoders.assembly import EncoderSettings
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.utils.errors import XlsrError

SERVED = sorted(GIVEN)


def facts(model: Any) -> dict[str, Any]:
    """Everything that must not change of a model that is given."""
    return {
        "modules": [(name, type(module).__name__, module.training) for name, module in model.named_modules()],
        "weights": copy.deepcopy(model.state_dict()),
        "gradients": [weight.requires_grad for weight in model.parameters()],
        "settings": EncoderSettings.of(model) if isinstance(model, SentenceTransformer) else None,
        "length": getattr(model, "max_seq_length", None),
    }


def assert_unchanged(model: Any, before: dict[str, Any]) -> None:
    after = facts(model)
    torch.testing.assert_close(after.pop("weights"), before.pop("weights"), rtol=0, atol=0)
    assert after == before


def build_and_save(name: str, tmp_path: Path) -> tuple[SentenceTransformer, Path]:
    """An encoder, and the folder `given` that holds it."""
    original = build(name, tmp_path / "raw")
    folder = tmp_path / "given"
    original.save(str(folder))
    return original, folder


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", SERVED)
def test_a_folder_is_read_whole(name: str, tmp_path: Path) -> None:
    original, folder = build_and_save(name, tmp_path)
    encoder = read_encoder(str(folder)).assemble()
    assert torch.equal(vectors(encoder), vectors(original))


@pytest.mark.parametrize("name", named(SERVED))
def test_an_object_is_read_whole_and_stays_as_it_was(name: str, tmp_path: Path) -> None:
    original = build(name, tmp_path / "raw")
    before = facts(original)
    expected = vectors(original)

    encoder = read_encoder(original).assemble()
    for weight in encoder.parameters():
        weight.data.zero_()

    assert_unchanged(original, before)
    assert torch.equal(vectors(original), expected)


@pytest.mark.parametrize("name", named(SERVED))
def test_settings_are_read(name: str, tmp_path: Path) -> None:
    original = build(name, tmp_path / "raw")
    encoder = read_encoder(original).assemble()
    assert EncoderSettings.of(encoder) == EncoderSettings.of(original)
    np.testing.assert_array_equal(encoder.encode_query(SENTENCES), original.encode_query(SENTENCES))
    np.testing.assert_array_equal(encoder.encode_document(SENTENCES), original.encode_document(SENTENCES))


@pytest.mark.parametrize("name", named(sorted(GIVEN)))
def test_every_encoder_is_loaded_for_encoding(name: str, tmp_path: Path) -> None:
    original, folder = build_and_save(name, tmp_path)
    encoder = load_encoder(str(folder), "cpu")
    assert torch.equal(vectors(encoder), vectors(original))


@pytest.mark.parametrize("name", ["roberta_no_limit", "xlmr_no_limit"])
def test_long_texts_are_truncated_to_the_positions_after_the_padding_index(name: str, tmp_path: Path) -> None:
    original, folder = build_and_save(name, tmp_path)
    encoder = load_encoder(str(folder), "cpu")
    # The first position is behind the padding index.
    first_position = original[0].model.config.pad_token_id + 1
    assert encoder.max_seq_length == 42 - first_position

    long_text = "red house " * 200
    expected = read_encoder(original).assemble().encode(long_text)
    np.testing.assert_array_equal(encoder.encode(long_text), expected)


def test_a_missing_pad_token_is_replaced(tmp_path: Path) -> None:
    _, folder = build_and_save("qwen", tmp_path)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text("utf-8"))
    del config["pad_token"]
    file.write_text(json.dumps(config), "utf-8")

    encoder = load_encoder(str(folder), "cpu")
    assert encoder.tokenizer.pad_token == encoder.tokenizer.eos_token
    assert encoder.encode(SENTENCES).shape == (len(SENTENCES), 16)


def test_a_plain_encoder_is_read_with_its_tokenizer(tmp_path: Path) -> None:
    original = build("bert_mean", tmp_path / "raw")
    loaded = BertModel.from_pretrained(tmp_path / "raw")
    before = facts(loaded)

    encoder_part = read_encoder(loaded).single()
    assert encoder_part.head is None
    token_ids = encoder_part.tokenizer("one two")["input_ids"]
    assert token_ids == original.tokenizer("one two")["input_ids"]

    encoder_part.encoder.embeddings.word_embeddings.weight.data.zero_()
    assert_unchanged(loaded, before)


def test_an_encoder_without_a_tokenizer_can_be_trained_with_another_one() -> None:
    size = BertConfig(hidden_size=8, num_attention_heads=1, num_hidden_layers=1, vocab_size=99)
    read = read_encoder(BertModel(size))
    with pytest.raises(XlsrError, match="tokenizer"):
        read.single().required_tokenizer()
    model = DistillationModel.from_encoder(read, generative_weight=0.0)
    assert model.to_sentence_transformer(tiny_tokenizer()).encode("red").shape == (8,)


def test_languages_get_their_own_copies(tmp_path: Path) -> None:
    original = build("bert_cls", tmp_path / "raw")
    read = read_encoder({"en": original, "de": original})
    assert list(read.parts) == ["en", "de"]
    assert read.parts["en"].encoder is not read.parts["de"].encoder


def test_default_prompts_become_those_of_the_languages(tmp_path: Path) -> None:
    with_prompt = build("bert_prompts", tmp_path / "a")
    without = build("bert_cls", tmp_path / "b")
    settings = read_encoder({"en": without, "de": with_prompt}).settings
    assert settings.prompts["en"] == ""
    assert settings.prompts["de"] == "one two: "
    assert settings.default_prompt_name is None


def test_joined_encoders_keep_the_prompt_of_each_language(tmp_path: Path) -> None:
    original = build("bert_prompts", tmp_path / "raw")
    original.prompts = {"query": "one two: ", "fr": "quatre: "}
    settings = read_encoder({"en": original, "fr": original}).settings
    assert settings.prompts["en"] == "one two: "
    assert settings.prompts["fr"] == "quatre: "


def test_a_wider_pooling_is_refused_before_a_dense_layer(tmp_path: Path) -> None:
    original = build("labse", tmp_path / "raw")
    del original[-1]  # no normalisation at the end
    with pytest.raises(XlsrError, match="width"):
        DistillationModel.from_encoder(original, pooling=["cls", "mean"])


@pytest.mark.parametrize("pooling", ["mean", "max", "weightedmean", "lasttoken"])
def test_a_text_without_tokens_is_a_vector_of_zeros(pooling: str, tmp_path: Path) -> None:
    original = build("bert_cls", tmp_path / "raw")
    model = DistillationModel.from_encoder(original, pooling=pooling).eval()
    ids = torch.tensor([[5, 6, 7], [0, 0, 0]])
    embeddings = model.encode_sentences(ids, (ids != 0).long())
    assert torch.equal(embeddings[1], torch.zeros_like(embeddings[1]))
    assert embeddings[0].isfinite().all()


# --- Damaged folders -----------------------------------------------------------------------------------------------


def damage(folder: Path, kind: str) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    name = "encoder.layer.0.attention.self.query.weight"
    if kind == "missing":
        del weights[name]
    elif kind == "renamed":
        weights["encoder.layer.0.attention.self.renamed.weight"] = weights.pop(name)
    elif kind == "misshapen":
        weights[name] = torch.zeros(3, 3)
    elif kind == "no weights":
        file.unlink()
        return
    elif kind == "no tokenizer":
        for tokenizer_file in folder.glob("tokenizer*"):
            tokenizer_file.unlink()
        return
    save_file(weights, file, metadata={"format": "pt"})


KINDS = ("missing", "renamed", "misshapen", "no weights", "no tokenizer")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plain", [False, True])
def test_damaged_folders_are_refused_in_one_sentence(kind: str, plain: bool, tmp_path: Path) -> None:
    _, folder = build_and_save("bert_cls", tmp_path)
    if plain:
        folder = tmp_path / "raw"
    damage(folder, kind)

    for read in (lambda path: read_encoder(path).assemble(), load_encoder):
        with pytest.raises(XlsrError) as raised:
            read(str(folder))
        message = str(raised.value)
        assert str(folder) in message or "no tokenizer" in message
        assert "\n" not in message


def test_weights_of_a_dense_layer_must_be_there(tmp_path: Path) -> None:
    _, folder = build_and_save("labse", tmp_path)
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(XlsrError, match="given"):
        load_encoder(str(folder), "cpu")


def test_weights_behind_a_router_must_be_there(tmp_path: Path) -> None:
    _, folder = build_and_save("routed", tmp_path)
    damage(folder / "fr_0_Transformer", "missing")
    with pytest.raises(XlsrError, match="query.weight"):
        load_encoder(str(folder), "cpu")


def test_a_missing_pooler_is_no_damage(tmp_path: Path) -> None:
    original, folder = build_and_save("bert_cls", tmp_path)
    file = folder / "model.safetensors"
    weights = {name: value for name, value in load_file(file).items() if "pooler" not in name}
    save_file(weights, file, metadata={"format": "pt"})

    encoder = load_encoder(str(folder), "cpu")
    assert torch.equal(vectors(encoder), vectors(original))


@pytest.mark.parametrize("value", [None, 3, ["a", "b"]])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(XlsrError, match=type(value).__name__):
        read_encoder(value)


def test_embeddings_by_language_of_a_mapping(tmp_path: Path) -> None:
    original = build("routed", tmp_path / "raw")
    encoder = read_encoder(original).assemble()
    vectors_of_french = embed(encoder, SENTENCES, language="fr")
    assert np.array_equal(vectors_of_french, embed(original, SENTENCES, language="fr"))


def test_copies_share_no_tokenizer_state(tmp_path: Path) -> None:
    original = build("bert_cls", tmp_path / "raw")
    before = copy.deepcopy(original.tokenizer.backend_tokenizer.to_str())
    encoder = read_encoder(original).assemble()
    encoder.max_seq_length = 5
    encoder.encode(SENTENCES)
    assert original.max_seq_length == 32
    assert original.tokenizer.backend_tokenizer.to_str() == before
    assert tiny_tokenizer().model_max_length == 32
    shutil.rmtree(tmp_path / "raw")
