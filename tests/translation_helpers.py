"""A tokenizer with special pieces around each sentence, tiny translation models and their data, shared by tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from conftest import make_pairs, texts_of
from transformers import AutoConfig

from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.stock import DROPOUTS, encoder_from_config
from hf_xlsr.modeling.hictl.configuration_hictl import HictlConfig
from hf_xlsr.modeling.hictl.modeling_generation import HictlForConditionalGeneration

# Of one architecture each: how positions, embeddings and dropout are called differs.
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {"max_position_embeddings": 40},
    "xlm-roberta": {"max_position_embeddings": 42},
    "distilbert": {"max_position_embeddings": 40},
    "mpnet": {"max_position_embeddings": 42},
    "modernbert": {"global_attn_every_n_layers": 1, "layer_types": ["full_attention"] * 2},
}
# Ids of the special pieces around a sentence.
START = 1
END = 2


@cache
def translation_tokenizer(vocab_size: int = 130, algorithm: str = "bpe") -> Any:
    """`<s> ... </s>` around each sentence, as XLM-R has it; padding is piece 0."""
    texts = texts_of(make_pairs(200))
    return train_tokenizer(texts, vocab_size=vocab_size, algorithm=algorithm, max_length=32, frame=True)


def small_encoder(model_type: str = "bert", vocab_size: int = 30, dropout: float = 0.0, **values: Any) -> Any:
    """The configuration of an encoder of width 8; pieces 1 and 2 begin and end a sentence, 0 is padding."""
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_dim" if model_type == "distilbert" else "intermediate_size": 16,
        "pad_token_id": 0,
        "bos_token_id": START,
        "eos_token_id": END,
        **ENCODERS[model_type],
    }
    default = AutoConfig.for_model(model_type)
    for name in DROPOUTS:
        if hasattr(default, name):
            settings[name] = dropout
    return AutoConfig.for_model(model_type, **(settings | values))


def words_model(*, dropout: float = 0.0, **options: Any) -> HictlForConditionalGeneration:
    """A new model of width 16 for the words of `make_pairs`."""
    torch.manual_seed(0)
    tokenizer = translation_tokenizer()
    encoder = small_encoder(vocab_size=len(tokenizer), hidden_size=16, dropout=dropout)
    encoder.bos_token_id = tokenizer.bos_token_id
    encoder.eos_token_id = tokenizer.eos_token_id
    return HictlForConditionalGeneration(HictlConfig(text_config=encoder, **{"decoder_layers": 1, **options}))


def small_model(model_type: str = "bert", *, seed: int = 0, **options: Any) -> HictlForConditionalGeneration:
    """A random model whose weights are large enough for its choices to differ, in evaluation mode."""
    torch.manual_seed(seed)
    encoder = {name: options.pop(name) for name in ("vocab_size", "dropout", "hidden_size") if name in options}
    config = HictlConfig(text_config=small_encoder(model_type, **encoder), **{"decoder_layers": 2, **options})
    model = HictlForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.4)
    return model


def small_batch(seed: int = 0, vocab_size: int = 30) -> dict[str, torch.Tensor]:
    """Three pairs of different lengths; each side ends with piece 2."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocab_size, (3, 7), generator=generator)
    labels = torch.randint(3, vocab_size, (3, 6), generator=generator)
    ids[:, 0] = 1
    for row, length in zip(ids, (7, 5, 3), strict=True):
        row[length - 1] = 2
        row[length:] = 0
    for row, length in zip(labels, (4, 6, 2), strict=True):
        row[length - 1] = 2
        row[length:] = -100
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def translation_pairs(count: int = 96, seed: int = 1) -> PreparedPairs:
    return DataConverter(translation_tokenizer(), max_length=32).pairs(make_pairs(count, seed))


def encoder_folder(folder: Path, algorithm: str = "bpe", **values: Any) -> str:
    """A pretrained encoder as folders of the Hub hold them, with a tokenizer for translation."""
    torch.manual_seed(0)
    tokenizer = translation_tokenizer(algorithm=algorithm)
    config = small_encoder(vocab_size=len(tokenizer), hidden_size=16, **values)
    config.bos_token_id = config.eos_token_id = None  # as of BERT
    encoder_from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
