from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from model_cases import assert_same_gradients
from sentence_transformers import SentenceTransformer
from translation_helpers import (
    ENCODERS,
    END,
    START,
    encoder_folder,
    small_batch,
    small_encoder,
    small_model,
    translation_tokenizer,
)

from hf_xlsr.modeling.base import attention_of
from hf_xlsr.modeling.hictl.configuration_hictl import HictlConfig
from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification
from hf_xlsr.modeling.hictl.modeling_generation import HictlForConditionalGeneration
from hf_xlsr.utils.errors import XlsrError


@pytest.mark.parametrize("model_type", ENCODERS)
def test_logits(model_type: str) -> None:
    model = small_model(model_type)
    batch = small_batch()
    del batch["labels"]
    targets = torch.tensor([[START, 5, 6], [START, 7, 8], [START, 9, 9]])
    output = model(**batch, decoder_input_ids=targets)

    states = model.encoder(**batch).last_hidden_state
    table = model.get_input_embeddings().weight
    decoder_output = model.decoder(
        inputs_embeds=table[targets],
        encoder_hidden_states=states,
        encoder_attention_mask=batch["attention_mask"],
    )
    hidden = decoder_output.last_hidden_state

    for row in range(3):
        cosine = F.cosine_similarity(states[row, 0], table)
        expected = hidden[row] @ table.T + model.output_bias.bias + cosine
        torch.testing.assert_close(output.logits[row], expected, rtol=1e-5, atol=1e-5)
    assert output.logits.shape == (3, 3, 30)


@pytest.mark.parametrize("word_similarity", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_equals_cross_entropy(word_similarity: bool, smoothing: float) -> None:
    model = small_model(word_similarity=word_similarity, logits_chunk_size=3).double()
    batch = small_batch()
    loss = model(**batch, label_smoothing=smoothing).loss

    labels = batch.pop("labels")
    starts = torch.full((3, 1), START)
    targets = torch.cat([starts, labels[:, :-1]], 1).clamp(min=0)
    logits = model(**batch, decoder_input_ids=targets).logits
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    assert_same_gradients(model, loss, expected, rtol=1e-8, atol=1e-12)


def test_decoder_of_another_size() -> None:
    model = small_model(decoder_layers=3)
    assert model.config.get_text_config().num_hidden_layers == 2
    decoder = model.config.get_text_config(decoder=True)
    assert decoder.num_hidden_layers == 3
    assert len(model.decoder.encoder.layer) == 3
    assert decoder.num_attention_heads == model.decoder.config.num_attention_heads

    default = HictlConfig(text_config=small_encoder())
    assert default.get_text_config(decoder=True).num_hidden_layers == 2


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_cache_of_a_decoder_of_another_size(kind: str) -> None:
    model = small_model(decoder_layers=3)
    batch = small_batch()
    del batch["labels"]
    uncached = model.generate(**batch, num_beams=3, max_new_tokens=5, use_cache=False)
    cached = model.generate(**batch, num_beams=3, max_new_tokens=5, cache_implementation=kind)
    assert torch.equal(cached, uncached)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return encoder_folder(tmp_path_factory.mktemp("encoder"))


def test_from_encoder(folder: str) -> None:
    model = HictlForConditionalGeneration.from_encoder(folder, decoder_layers=1, dropout=0.2)
    classifier = HictlForSequenceClassification.from_encoder(folder)
    assert_same_weights(model.encoder, classifier.encoder)

    tokenizer = translation_tokenizer()
    for config in (model.config.get_text_config(), model.generation_config):
        assert config.bos_token_id == tokenizer.bos_token_id
        assert config.eos_token_id == tokenizer.eos_token_id
    assert model.config.get_text_config().pad_token_id == tokenizer.pad_token_id

    assert len(model.decoder.encoder.layer) == 1
    assert (model.output_bias.bias == 0).all()
    for config in (model.encoder.config, model.decoder.config):
        assert config.hidden_dropout_prob == 0.2
        assert attention_of(config) == "sdpa"


def assert_same_weights(first: torch.nn.Module, second: torch.nn.Module) -> None:
    torch.testing.assert_close(dict(first.state_dict()), dict(second.state_dict()), rtol=0, atol=0)


def test_from_an_object(folder: str, tmp_path: Path) -> None:
    path = str(tmp_path / "given")
    SentenceTransformer(folder, device="cpu").save(path)
    of_object = HictlForConditionalGeneration.from_encoder(SentenceTransformer(path, device="cpu"))
    of_path = HictlForConditionalGeneration.from_encoder(path)

    assert_same_weights(of_object.encoder, of_path.encoder)
    assert of_object.generation_config.eos_token_id == of_path.generation_config.eos_token_id


def test_smaller_vocabulary(folder: str) -> None:
    small = translation_tokenizer(60)
    tokens = [0, 5, 7, *range(9, 9 + len(small) - 3)]
    whole = HictlForConditionalGeneration.from_encoder(folder)
    model = HictlForConditionalGeneration.from_encoder(folder, tokenizer=small, tokens=tokens)

    table = model.get_input_embeddings()
    whole_table = whole.get_input_embeddings()
    assert torch.equal(table.weight, whole_table.weight[tokens])
    assert table.padding_idx == whole_table.padding_idx
    config = model.config.get_text_config()
    assert config.vocab_size == len(small)
    assert len(model.output_bias.bias) == len(small)
    assert config.eos_token_id == small.eos_token_id

    ids = torch.tensor([[4, 5, 2]])
    original_ids = torch.tensor(tokens)[ids]
    states = model.eval().encode(ids).last_hidden_state
    expected = whole.eval().encode(original_ids).last_hidden_state
    torch.testing.assert_close(states, expected)


@pytest.mark.parametrize("model_type", ["bert", "xlm-roberta"])
def test_sizes_beyond_the_positions(model_type: str) -> None:
    model = small_model(model_type)
    most = model.decoder.config.max_position_embeddings
    ids = torch.tensor([[START, 5, 6, END]])
    assert model.generate(input_ids=ids, max_new_tokens=most, eos_token_id=-1).shape == (1, most + 1)
    with pytest.raises(XlsrError, match=rf"decoder_input_ids.*{most}.*max_new_tokens"):
        model.generate(input_ids=ids, max_new_tokens=most + 1, eos_token_id=-1)
    with pytest.raises(XlsrError, match=rf"decoder_input_ids.*{most}.*got {most + 1}"):
        model(input_ids=ids, labels=torch.full((1, most + 1), 5))
    with pytest.raises(XlsrError, match=rf"`input_ids`.*{most}.*got 44"):
        model.generate(input_ids=ids.repeat(1, 11), max_new_tokens=2)
