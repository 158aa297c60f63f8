"""Tiny CMLM models and batches for the tests."""

from __future__ import annotations

from typing import Any

import torch
from conftest import make_pairs, tiny_encoder

from hf_xlsr.data.collators import CmlmCollator
from hf_xlsr.evaluation.rows import both_sides
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
    rows = []
    for index, pair in enumerate(make_pairs(count, seed=5)):
        row = {
            "first_ids": tokenizer(pair["source"])["input_ids"],
            "second_ids": tokenizer(pair["target"])["input_ids"],
            "lang": "en",
            "index": index,
            "epoch": 0,
        }
        rows.append(row)
    return rows


def tiny_batch(tokenizer: Any, count: int = 6) -> dict[str, torch.Tensor]:
    """What the trainer gives to the model."""
    return CmlmCollator(tokenizer, max_length=20)(tiny_text(tokenizer, count))


def tiny_pairs_batch(tokenizer: Any, count: int = 4) -> dict[str, torch.Tensor]:
    """Sentences over their translations."""
    sources, targets = both_sides(make_pairs(count, seed=7))
    return padded(tokenizer, sources + targets)


def padded(tokenizer: Any, texts: list[str], prefix: str = "") -> dict[str, torch.Tensor]:
    """Ids and mask of texts."""
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    return {
        f"{prefix}input_ids": batch["input_ids"],
        f"{prefix}attention_mask": batch["attention_mask"],
    }


def tiny_nli_batch(tokenizer: Any, count: int = 5) -> dict[str, torch.Tensor]:
    """Premises, hypotheses and labels."""
    premises, hypotheses = both_sides(make_pairs(count, seed=9))
    return {
        **padded(tokenizer, premises, "premise_"),
        **padded(tokenizer, hypotheses, "hypothesis_"),
        "labels": torch.arange(count) % 3,
    }
