"""Tiny HICTL models and batches for the tests."""

from __future__ import annotations

from typing import Any

import torch
from conftest import ENGLISH, FRENCH, make_pairs, texts_of, tiny_encoder

from hf_xlsr.data.collators import HictlCollator
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.modeling.hictl import HictlConfig, HictlForPreTraining


def framed_tokenizer() -> Any:
    """A tokenizer with special pieces around sentences, over the words of the tiny pairs."""
    texts = [*texts_of(make_pairs(200)), *ENGLISH, *FRENCH]
    return train_tokenizer(texts, vocab_size=90, algorithm="bpe", max_length=32, frame=True)


def tiny_hictl(vocab_size: int, *, dropout: float = 0.0, **options: Any) -> HictlForPreTraining:
    """A random model of two layers."""
    torch.manual_seed(0)
    encoder = {**tiny_encoder(vocab_size), "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return HictlForPreTraining(HictlConfig(text_config=encoder, **{"negative_words": 8, **options}))


def tiny_batch(tokenizer: Any, count: int = 6) -> dict[str, torch.Tensor]:
    """Pairs and a few single sentences, as the trainer gives them to the model."""
    features: list[dict[str, Any]] = []
    for index, pair in enumerate(make_pairs(count, seed=5)):
        source_ids = tokenizer(pair["source"])["input_ids"]
        target_ids = tokenizer(pair["target"])["input_ids"]
        row = {"source_ids": source_ids, "target_ids": target_ids}
        if index % 3 == 2:
            row = {"text_ids": source_ids}
        features.append({**row, "index": index, "epoch": 0})

    batch = HictlCollator(tokenizer, max_length=32)(features)
    return {**batch, "special_ids": torch.tensor(tokenizer.all_special_ids)}
