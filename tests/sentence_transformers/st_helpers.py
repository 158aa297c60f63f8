"""Tiny sentence-transformers models and trainers."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch
from conftest import make_pairs, tiny_encoder
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.modules import Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoConfig

from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.sentence_transformers import DualMomentumCallback, DualMomentumLoss

QUEUE = 64


def encoder_folder(folder: Path, seed: int = 0) -> str:
    """An encoder without dropout, as folders of the Hub hold them; two processes may ask for it at once."""
    if not folder.is_dir():
        begun = folder.with_name(f"{folder.name}-{os.getpid()}")
        texts = [pair[side] for pair in make_pairs(200) for side in ("source", "target")]
        tokenizer = train_tokenizer(texts, vocab_size=80, algorithm="bpe", max_length=32)
        torch.manual_seed(seed)
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        encoder_from_config(AutoConfig.for_model(**tiny_encoder(len(tokenizer)), **dropout)).save_pretrained(begun)
        tokenizer.save_pretrained(str(begun))
        with contextlib.suppress(OSError):  # the other process was first
            begun.rename(folder)
    return str(folder)


def seed_unused_weights() -> None:
    """Transformers adds a random pooler, another one in each process."""
    torch.manual_seed(int(os.environ.get("RANK", "0")))


def shared_model(folder: Path) -> SentenceTransformer:
    path = encoder_folder(folder / "encoder")
    seed_unused_weights()
    modules = [Transformer(path), Pooling(16, pooling_mode="mean"), Normalize()]
    return SentenceTransformer(modules=modules, device="cpu")


def routed_model(folder: Path) -> SentenceTransformer:
    paths = {name: encoder_folder(folder / name, seed) for seed, name in enumerate(("en", "fr"))}
    seed_unused_weights()
    routes: dict[str, Any] = {
        name: [Transformer(path), Pooling(16, pooling_mode="mean")] for name, path in paths.items()
    }
    return SentenceTransformer(modules=[Router(routes, default_route="en"), Normalize()], device="cpu")


def rows(count: int = 64, seed: int = 1, *names: str) -> Dataset:
    """Pairs, and with more column names hard negatives."""
    pairs, others = make_pairs(count, seed), make_pairs(count, seed + 1)
    columns = {"en": [pair["source"] for pair in pairs], "fr": [pair["target"] for pair in pairs]}
    return Dataset.from_dict(columns | {name: [pair["target"] for pair in others] for name in names})


def arguments(folder: Path, **options: Any) -> SentenceTransformerTrainingArguments:
    given: dict[str, Any] = {"max_steps": 4, "per_device_train_batch_size": 8, "learning_rate": 1e-2, "seed": 3}
    given |= {"save_strategy": "no", "logging_steps": 1, "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    return SentenceTransformerTrainingArguments(output_dir=str(folder), **{**given, **options})


def trainer_of(
    model: Any, loss: Any, folder: Path, data: Any = None, *, evaluator: Any = None, **options: Any
) -> SentenceTransformerTrainer:
    """A trainer of a loss, with our callback."""
    callbacks = [DualMomentumCallback(loss), *options.pop("callbacks", [])]
    data = rows() if data is None else data
    return SentenceTransformerTrainer(
        model, arguments(folder, **options), train_dataset=data, loss=loss, evaluator=evaluator, callbacks=callbacks
    )


def queue_loss(model: Any, **options: Any) -> DualMomentumLoss:
    return DualMomentumLoss(model, **{"queue_size": QUEUE, "momentum": 0.9, **options})


def features_of(model: Any, data: Dataset, tasks: Any = None) -> list[dict[str, Any]]:
    """The batches of all columns, as the trainer makes them."""
    columns = []
    for name in data.column_names:
        task = {} if tasks is None else {"task": tasks[name]}
        columns.append({**model.preprocess(list(data[name]), **task), **task})
    return columns
