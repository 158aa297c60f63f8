"""Each of the seven trainers on tiny models and plain rows, made by one function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from conftest import make_pairs, tiny_encoder
from hictl_helpers import framed_tokenizer
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig

from hf_xlsr import trainers
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.export import to_sentence_transformer
from hf_xlsr.modeling.cmlm import CmlmModel
from hf_xlsr.modeling.dual_momentum import DualMomentumModel
from hf_xlsr.modeling.hictl import HictlForPreTraining
from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification
from hf_xlsr.modeling.hictl.modeling_generation import HictlForConditionalGeneration
from hf_xlsr.modeling.lightweight import DistillationModel, LightweightDualTransformer

TINY = {
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "max_length": 24,
    "max_steps": 4,
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "per_device_train_batch_size": 8,
    "precision": "float32",
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "use_cpu": True,
    "seed": 3,
}


def encoder(seed: int = 0, dropout: float = 0.1) -> SentenceTransformer:
    """A tiny encoder of random weights whose tokenizer frames sentences."""
    tokenizer = framed_tokenizer()
    sizes = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    torch.manual_seed(seed)
    made = encoder_from_config(AutoConfig.for_model(**{**tiny_encoder(len(tokenizer)), **sizes}))
    return to_sentence_transformer(made, tokenizer, max_length=32)


def labelled_rows(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Sentences with the parity of their number of words as the label."""
    return [{"text": row["source"], "label": len(row["source"].split()) % 2} for row in make_pairs(count, seed)]


def documents(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Sentences, of which four follow each other."""
    rows = make_pairs(count, seed)
    return [{"text": row["source"], "document": number // 4, "lang": "en"} for number, row in enumerate(rows)]


def model_of(kind: str, **options: Any) -> Any:
    """A new model of a kind, with dropout; `options` are values of its configuration."""
    given = encoder()
    if kind == "DualMomentum":
        return DualMomentumModel.from_encoders(given, languages=["en", "fr"], **{"queue_size": 64, **options})
    if kind == "Hictl":
        return HictlForPreTraining.from_encoder(given, **{"negative_words": 8, **options})
    if kind == "Cmlm":
        return CmlmModel.from_encoder(given, **{"projections": 2, **options})
    if kind == "FineTune":
        return HictlForSequenceClassification.from_encoder(given, num_labels=2, **options)
    if kind == "Translation":
        return HictlForConditionalGeneration.from_encoder(given, tokenizer=given.tokenizer, **options)
    if kind == "Distillation":
        return DistillationModel.from_encoder(given, **{"teacher_dim": 16, "queue_size": 64, **options})
    return LightweightDualTransformer.from_encoder(given, **options)


def rows_of(kind: str, count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Training or evaluation rows of a kind."""
    return labelled_rows(count, seed) if kind == "FineTune" else make_pairs(count, seed)


def distinct_rows(kind: str, count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Rows to train on, each with a text of its own; of CMLM, sentences of documents."""
    rows = documents(2 * count, seed) if kind == "Cmlm" else rows_of(kind, 2 * count, seed)
    row_of_text = {row.get("source") or row["text"]: row for row in rows}
    return list(row_of_text.values())[:count]


def tokenizers_of(kind: str) -> Any:
    tokenizer = framed_tokenizer()
    return {"en": tokenizer, "fr": tokenizer} if kind == "DualMomentum" else tokenizer


def arguments_of(kind: str, folder: Path, **options: Any) -> Any:
    name = "Lightweight" if kind == "Distillation" else kind
    arguments = getattr(trainers, f"{name}TrainingArguments")
    return arguments(str(folder), **{**TINY, **options})


KINDS = ("Lightweight", "Distillation", "DualMomentum", "Hictl", "Cmlm", "FineTune", "Translation")


def trainer_of(
    kind: str,
    folder: Path,
    *,
    model: Any = None,
    rows: Any = None,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A trainer of a kind; `settings` are training arguments, `options` further arguments of the trainer."""
    data: dict[str, Any] = {"train_dataset": rows_of(kind, 64) if rows is None else rows}
    if kind == "Cmlm" and rows is None:
        data = {"train_dataset": documents(64), "retrieval_dataset": make_pairs(64)}
    if kind == "Distillation":
        data["teacher"] = encoder(seed=5)
    data["tokenizers" if kind == "DualMomentum" else "processing_class"] = tokenizers_of(kind)
    make: Callable[..., Any] = getattr(trainers, f"{kind}Trainer")
    return make(
        model_of(kind) if model is None else model,
        arguments_of(kind, folder, **(settings or {})),
        **{**data, **options},
    )
