"""A tiny lightweight model with its trainer, for tests of what all trainers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from conftest import tiny_encoder

from hf_xlsr import LightweightConfig, LightweightDualTransformer
from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.trainers import LightweightTrainer, LightweightTrainingArguments


def arguments(folder: Path, **options: Any) -> LightweightTrainingArguments:
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 12,
        "per_device_train_batch_size": 16,
        "learning_rate": 1e-2,
        "logging_steps": 4,
        "save_strategy": "no",
        "precision": "float32",
        "max_length": 32,
        "disable_tqdm": True,
        "report_to": "none",
        **options,
    }
    return LightweightTrainingArguments(**values)


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
