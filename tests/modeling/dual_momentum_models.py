"""Tiny dual momentum models and batches, shared by tests."""

from __future__ import annotations

from typing import Any

import torch

from hf_xlsr import DualMomentumConfig, DualMomentumModel


def small_encoder(**overrides: Any) -> dict[str, Any]:
    values = {
        "model_type": "bert",
        "vocab_size": 40,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 40,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return {**values, **overrides}


def small_model(encoders: dict[str, dict[str, Any]] | None = None, **options: Any) -> DualMomentumModel:
    torch.manual_seed(0)
    values: dict[str, Any] = {"languages": ["en", "fr"], "queue_size": 32, **options}
    values["encoder_configs"] = encoders or {language: small_encoder() for language in values["languages"]}
    return DualMomentumModel(DualMomentumConfig(**values))


def small_batch(count: int = 4, seed: int = 0, languages: tuple[str, str] = ("en", "fr")) -> dict[str, Any]:
    """Random pairs of ragged length, numbered from 100 * seed."""
    generator = torch.Generator().manual_seed(seed)
    batch: dict[str, Any] = {"source_lang": languages[0], "target_lang": languages[1]}
    for side, first in (("source", 1000), ("target", 2000)):
        lengths = torch.randint(2, 7, (count, 1), generator=generator)
        mask = (torch.arange(6) < lengths).long()
        batch[f"{side}_input_ids"] = torch.randint(3, 40, (count, 6), generator=generator) * mask
        batch[f"{side}_attention_mask"] = mask
        batch[f"{side}_texts"] = first + 100 * seed + torch.arange(count)
    batch["examples"] = 100 * seed + torch.arange(count)
    return batch


def enqueue_keys(model: DualMomentumModel, batch: dict[str, Any]) -> None:
    """What the trainer does at the end of a step."""
    with torch.no_grad():
        output = model(**batch)
    model.enqueue(batch["source_lang"], output.source_keys, batch["source_texts"], batch["examples"])
    model.enqueue(batch["target_lang"], output.target_keys, batch["target_texts"], batch["examples"])
