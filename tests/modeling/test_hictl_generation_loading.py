from __future__ import annotations

from pathlib import Path

import pytest
import torch
from translation_helpers import (
    encoder_folder,
    translation_tokenizer,
)

from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification
from hf_xlsr.modeling.hictl.modeling_generation import HictlForConditionalGeneration

# From an encoder, and back


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return encoder_folder(tmp_path_factory.mktemp("encoder"))


def test_from_encoder(folder: str) -> None:
    model = HictlForConditionalGeneration.from_encoder(folder, decoder_layers=1, dropout=0.2)
    stored = HictlForSequenceClassification.from_encoder(folder).encoder.state_dict()
    for name, value in model.encoder.state_dict().items():
        assert torch.equal(value, stored[name]), name
    tokenizer = translation_tokenizer()
    config = model.config.get_text_config()
    ends = config.bos_token_id, config.eos_token_id, config.pad_token_id
    assert ends == (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert model.generation_config.bos_token_id == tokenizer.bos_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.encoder.config.hidden_dropout_prob == model.decoder.config.hidden_dropout_prob == 0.2
    assert len(model.decoder.encoder.layer) == 1 and (model.output_bias.bias == 0).all()
    assert model.encoder.config._attn_implementation == model.decoder.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "modernbert"])
def test_dropout_of_both_sides(model_type: str, tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path, model_type=model_type, dropout=0.1)
    model = HictlForConditionalGeneration.from_encoder(folder, decoder_layers=1, dropout=0.3)
    layers = {name: module.p for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout)}
    assert layers and set(layers.values()) == {0.3}
    own = HictlForConditionalGeneration.from_encoder(folder, decoder_layers=1).decoder
    assert {module.p for module in own.modules() if isinstance(module, torch.nn.Dropout)} == {0.1}


def test_from_another_hictl_model(folder: str, tmp_path: Path) -> None:
    other = HictlForSequenceClassification.from_encoder(folder, num_labels=5)
    with torch.no_grad():
        other.encoder.get_input_embeddings().weight.add_(1)
    other.save_pretrained(tmp_path)
    translation_tokenizer().save_pretrained(tmp_path)
    model = HictlForConditionalGeneration.from_encoder(tmp_path, decoder_layers=1)
    assert torch.equal(model.get_input_embeddings().weight, other.get_input_embeddings().weight)


def test_smaller_vocabulary(folder: str) -> None:
    small = translation_tokenizer(60)
    pieces = [0, 5, 7, *range(9, 9 + len(small) - 3)]
    whole = HictlForConditionalGeneration.from_encoder(folder)
    model = HictlForConditionalGeneration.from_encoder(folder, tokenizer=small, tokens=pieces)
    table = model.get_input_embeddings()
    assert torch.equal(table.weight, whole.get_input_embeddings().weight[pieces])
    assert model.config.get_text_config().vocab_size == len(pieces) == len(model.output_bias.bias) == len(small)
    assert table.padding_idx == whole.get_input_embeddings().padding_idx
    assert model.config.get_text_config().eos_token_id == small.eos_token_id
    ids = torch.tensor([[4, 5, 2]])
    original = torch.tensor([[pieces[4], pieces[5], pieces[2]]])
    torch.testing.assert_close(
        model.eval().encode(ids).last_hidden_state, whole.eval().encode(original).last_hidden_state
    )
