"""Tiny models and batches for the tests of the lightweight dual transformer."""

from __future__ import annotations

from typing import Any

import torch

from hf_xlsr import LightweightConfig, LightweightDualTransformer

VOCABULARY, WIDTH, PAIRS, LENGTH, MASK = 40, 16, 4, 6, 3
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "pad_token_id": 0}
BERT = {
    "model_type": "bert",
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "type_vocab_size": 1,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    **SIZES,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "xlm-roberta": {**BERT, "model_type": "xlm-roberta", "pad_token_id": 1, "max_position_embeddings": 20},
    "mpnet": {**BERT, "model_type": "mpnet", "pad_token_id": 1, "max_position_embeddings": 20},
    "distilbert": {
        "model_type": "distilbert",
        "dim": WIDTH,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 32,
        "max_position_embeddings": 16,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        **SIZES,
    },
    "modernbert": {
        "model_type": "modernbert",
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 16,
        "local_attention": 8,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
        **SIZES,
    },
}


def config(encoder: dict[str, Any] = BERT, **kwargs: Any) -> LightweightConfig:
    return LightweightConfig(text_config=dict(encoder), **kwargs)


def build(encoder: dict[str, Any] = BERT, seed: int = 0, **kwargs: Any) -> LightweightDualTransformer:
    torch.manual_seed(seed)
    return LightweightDualTransformer(config(encoder, **kwargs))


def make_batch(task: str = "ugt", pad: int = 0, seed: int = 0) -> dict[str, Any]:
    """Pairs of unequal length, masked as `task` wants."""
    generator = torch.Generator().manual_seed(seed)
    rows = 2 * PAIRS
    lengths = torch.randint(2, LENGTH + 1, (rows,), generator=generator)
    lengths[0] = LENGTH
    mask = (torch.arange(LENGTH) < lengths.unsqueeze(1)).long()
    ids = torch.randint(4, VOCABULARY, (rows, LENGTH), generator=generator)
    original = torch.where(mask == 1, ids, pad)
    batch: dict[str, Any] = {"input_ids": original.clone(), "attention_mask": mask, "original_ids": original}
    if task in ("ugt", "smlm"):
        batch["masked_ids"] = torch.full((rows,), -100)
        for pair in range(PAIRS):
            row = pair if pair % 2 else pair + PAIRS
            batch["masked_ids"][row] = original[row, 1]
            batch["input_ids"][row, 1] = MASK
    elif task.startswith("mlm"):
        batch["mlm_labels"] = torch.full((rows, LENGTH), -100)
        batch["mlm_labels"][:, 0] = original[:, 0]
        batch["input_ids"][:, 0] = MASK
    return batch


def gradients(model: LightweightDualTransformer, batch: dict[str, Any]) -> dict[str, torch.Tensor | None]:
    model.zero_grad()
    model(**batch).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def without_gradient(model: LightweightDualTransformer, batch: dict[str, Any]) -> list[str]:
    return [name for name, gradient in gradients(model, batch).items() if gradient is None]
