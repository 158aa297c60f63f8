"""A tiny lightweight model with its trainer, for tests of what all trainers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from conftest import tiny_encoder

from hf_xlsr import LightweightConfig, LightweightDualTransformer
from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.trainers import LightweightTrainer, LightweightTrainingArguments

TINY: dict[str, Any] = {
    "precision": "float32",
    "use_cpu": True,
    "max_length": 32,
    "per_device_train_batch_size": 16,
    "learning_rate": 1e-2,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}


def arguments(folder: Path, **options: Any) -> LightweightTrainingArguments:
    return LightweightTrainingArguments(str(folder), **{**TINY, "max_steps": 12, "logging_steps": 4, **options})


def model_of(tokenizer: Any, dropout: float = 0.0, **options: Any) -> LightweightDualTransformer:
    torch.manual_seed(0)
    encoder = {**tiny_encoder(len(tokenizer)), "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return LightweightDualTransformer(LightweightConfig(text_config=encoder, **options))


def trainer_of(tokenizer: Any, prepared: PreparedPairs, folder: Path, **options: Any) -> LightweightTrainer:
    config = {key: options.pop(key) for key in list(options) if key in ("dropout", "generative_task")}
    evaluations = options.pop("evaluations", ())
    return LightweightTrainer(
        model_of(tokenizer, **config),
        arguments(folder, **options),
        train_dataset=prepared,
        processing_class=tokenizer,
        evaluations=evaluations,
    )
