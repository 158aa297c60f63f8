"""Tiny sentence-transformers models and trainers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_pairs, texts_of, tiny_encoder
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.modules import Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from transformers import AutoConfig, DataCollatorWithFlattening

from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.evaluation.rows import both_sides
from hf_xlsr.sentence_transformers import DualMomentumCallback, DualMomentumLoss, dual_momentum

QUEUE = 64


def encoder_folder(folder: Path, seed: int = 0) -> str:
    """An encoder without dropout, as folders of the Hub hold them; two processes may ask for it at once."""
    if folder.is_dir():
        return str(folder)

    unfinished = folder.with_name(f"{folder.name}-{os.getpid()}")
    tokenizer = train_tokenizer(texts_of(make_pairs(200)), vocab_size=80, algorithm="bpe", max_length=32)
    tokenizer.save_pretrained(str(unfinished))

    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = AutoConfig.for_model(**tiny_encoder(len(tokenizer)), **dropout)
    torch.manual_seed(seed)
    encoder_from_config(config).save_pretrained(unfinished)
    with contextlib.suppress(OSError):  # the other process was first
        unfinished.rename(folder)
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
    english = encoder_folder(folder / "en", seed=0)
    french = encoder_folder(folder / "fr", seed=1)
    seed_unused_weights()
    routes: dict[str, Any] = {
        "en": [Transformer(english), Pooling(16, pooling_mode="mean")],
        "fr": [Transformer(french), Pooling(16, pooling_mode="mean")],
    }
    return SentenceTransformer(modules=[Router(routes, default_route="en"), Normalize()], device="cpu")


class PositionWise(Transformer):
    """Embeds each token by itself, so that texts may share a row, as FlashAttention lets them share it."""

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        embeddings: Any = self.model.embeddings
        states = embeddings(features["input_ids"], position_ids=features.get("position_ids"))
        return {**features, "token_embeddings": states}


def position_wise_model(folder: Path, module: type[PositionWise] = PositionWise) -> SentenceTransformer:
    path = encoder_folder(folder / "encoder")
    seed_unused_weights()
    modules = [module(path), Pooling(16, pooling_mode="mean"), Normalize()]
    return SentenceTransformer(modules=modules, device="cpu")


def flatten_inputs(model: SentenceTransformer) -> None:
    """Makes the features of a model flat, as sentence-transformers does for FlashAttention."""
    encoder: Any = model[0]
    encoder.can_flatten_inputs = True
    encoder.data_collator = DataCollatorWithFlattening(
        return_flash_attn_kwargs=True, return_seq_idx=True, return_position_ids=True
    )
    encoder._flatten_position_offset = 0


def static_model(folder: Path) -> SentenceTransformer:
    tokenizer = Transformer(encoder_folder(folder / "encoder")).tokenizer
    torch.manual_seed(0)
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu")


def rows(count: int = 64, seed: int = 1, *names: str) -> Dataset:
    """Pairs, and with more column names hard negatives."""
    english, french = both_sides(make_pairs(count, seed))
    _, negatives = both_sides(make_pairs(count, seed + 1))
    return Dataset.from_dict({"en": english, "fr": french} | dict.fromkeys(names, negatives))


def arguments(folder: Path, **options: Any) -> SentenceTransformerTrainingArguments:
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "seed": 3,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return SentenceTransformerTrainingArguments(**(defaults | options))


def trainer_of(
    model: Any,
    loss: Any,
    folder: Path,
    data: Any = None,
    *,
    evaluator: Any = None,
    eval_dataset: Any = None,
    **options: Any,
) -> SentenceTransformerTrainer:
    """A trainer of a loss, with our callback."""
    callbacks = [DualMomentumCallback(loss), *options.pop("callbacks", [])]
    return SentenceTransformerTrainer(
        model,
        arguments(folder, **options),
        train_dataset=rows() if data is None else data,
        eval_dataset=eval_dataset,
        evaluator=evaluator,
        loss=loss,
        callbacks=callbacks,
    )


def queue_loss(model: Any, **options: Any) -> DualMomentumLoss:
    queue_alone = {"in_batch_negatives": False, "mask_stale_keys": False, "mask_duplicates": False}
    return DualMomentumLoss(model, **{"queue_size": QUEUE, "momentum": 0.9, **queue_alone, **options})


def features_of(model: Any, data: Dataset, tasks: Any = None) -> list[dict[str, Any]]:
    """The batches of all columns, as the trainer makes them."""
    columns = []
    for name in data.column_names:
        task = {} if tasks is None else {"task": tasks[name]}
        columns.append({**model.preprocess(list(data[name]), **task), **task})
    return columns


def gradients_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the gradient of each parameter that has one."""
    gradients = {}
    for name, weight in module.named_parameters():
        if weight.grad is not None:
            gradients[name] = weight.grad.clone()
    return gradients


def logged(trainer: SentenceTransformerTrainer, metric: str) -> list[float]:
    """The values of a metric in the log of a training."""
    return [entry[metric] for entry in trainer.state.log_history if metric in entry]


@contextlib.contextmanager
def recorded_statistics() -> Iterator[list[dict[str, float]]]:
    """What the masks of `DualMomentumLoss` find, of each batch first to the target, then to the source."""
    recorded: list[dict[str, float]] = []
    direction_loss = dual_momentum.direction_loss

    def recording(*arguments: Any, **options: Any) -> Any:
        value, statistics = direction_loss(*arguments, **options)
        recorded.append({name: float(number) for name, number in statistics.items()})
        return value, statistics

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dual_momentum, "direction_loss", recording)
        yield recorded
