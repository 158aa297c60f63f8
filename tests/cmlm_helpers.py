"""Tiny CMLM models and batches for the tests."""

from __future__ import annotations

from typing import Any

import torch
from conftest import make_pairs, tiny_encoder

from hf_xlsr.data.collators import CmlmCollator
from hf_xlsr.modeling.cmlm import CmlmConfig, CmlmModel


def tiny_cmlm(
    vocab_size: int, *, dropout: float = 0.0, encoder: dict[str, Any] | None = None, **options: Any
) -> CmlmModel:
    """A random model of two layers."""
    torch.manual_seed(0)
    text_config = {
        **tiny_encoder(vocab_size),
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "initializer_range": 0.2,  # so that the vectors before a sentence matter
        **(encoder or {}),
    }
    return CmlmModel(CmlmConfig(text_config=text_config, **{"projections": 3, **options}))


def tiny_text(tokenizer: Any, count: int = 6) -> list[dict[str, Any]]:
    """Consecutive sentences as `PreparedRunningText` gives them."""
    pairs = make_pairs(count, seed=5)
    return [
        {
            "first_ids": tokenizer(pair["source"])["input_ids"],
            "second_ids": tokenizer(pair["target"])["input_ids"],
            "lang": "en",
            "index": index,
            "epoch": 0,
        }
        for index, pair in enumerate(pairs)
    ]


def tiny_batch(tokenizer: Any, count: int = 6) -> dict[str, torch.Tensor]:
    """What the trainer gives to the model."""
    return CmlmCollator(tokenizer, max_length=20)(tiny_text(tokenizer, count))


def tiny_pairs_batch(tokenizer: Any, count: int = 4) -> dict[str, torch.Tensor]:
    """Sentences over their translations."""
    pairs = make_pairs(count, seed=7)
    rows = [pair[side] for side in ("source", "target") for pair in pairs]
    batch = tokenizer(rows, padding=True, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def tiny_nli_batch(tokenizer: Any, count: int = 5) -> dict[str, torch.Tensor]:
    """Premises, hypotheses and labels."""
    pairs, batch = make_pairs(count, seed=9), {"labels": torch.arange(count) % 3}
    for side, column in (("premise", "source"), ("hypothesis", "target")):
        encoded = tokenizer([pair[column] for pair in pairs], padding=True, return_tensors="pt")
        batch |= {f"{side}_{name}": encoded[name] for name in ("input_ids", "attention_mask")}
    return batch
