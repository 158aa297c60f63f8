"""Tiny trainings of dual momentum contrast, shared by tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from conftest import ENGLISH, FRENCH, tiny_encoder
from lightweight_trainers import TINY

from hf_xlsr import DualMomentumConfig, DualMomentumModel
from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.trainers import DualMomentumTrainer, DualMomentumTrainingArguments

LANGUAGES = ("en", "fr")
WORDS = {"en": ENGLISH, "fr": FRENCH, "de": [word[::-1] for word in ENGLISH]}


@cache
def tokenizer_of(language: str) -> Any:
    rng = random.Random(language)
    texts = [" ".join(rng.choices(WORDS[language], k=5)) for _ in range(200)]
    return train_tokenizer(texts, vocab_size=50, algorithm="bpe", max_length=32)


def tokenizers_of(languages: Sequence[str]) -> dict[str, Any]:
    return {language: tokenizer_of(language) for language in languages}


def pairs_data(language_pairs: Sequence[tuple[str, str]] = (LANGUAGES,), count: int = 192) -> PreparedPairs:
    rng = random.Random(5)
    rows = []
    for index in range(count):
        sides = dict(zip(("source", "target"), language_pairs[index % len(language_pairs)], strict=True))
        numbers = [rng.randrange(20) for _ in range(rng.randint(2, 7))]
        row = {side: " ".join(WORDS[language][number] for number in numbers) for side, language in sides.items()}
        rows.append({**row, **{f"{side}_lang": language for side, language in sides.items()}})
    languages = sorted({language for pair in language_pairs for language in pair})
    return DataConverter(tokenizers_of(languages), max_length=32).pairs(rows)


def tiny_dual(dropout: float = 0.0, shared: bool = False, **options: Any) -> DualMomentumModel:
    torch.manual_seed(0)
    queue_alone = {"in_batch_negatives": False, "mask_stale_keys": False, "mask_duplicates": False}
    values: dict[str, Any] = {
        "languages": list(LANGUAGES),
        "queue_size": 64,
        "momentum": 0.9,
        **queue_alone,
        **options,
    }
    encoder = {**tiny_encoder(50), "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    names = ["shared"] if shared else values["languages"]
    configs = {name: dict(encoder) for name in names}
    return DualMomentumModel(DualMomentumConfig(encoder_configs=configs, **values))


def arguments(folder: Path, **options: Any) -> DualMomentumTrainingArguments:
    steps = {
        "max_steps": 4,
        "logging_steps": 1000,
        "save_strategy": "steps",
        "save_steps": 1000,
        "max_grad_norm": 10.0,
        "warmup_steps": 0,
        "weight_decay": 0.0,
    }
    return DualMomentumTrainingArguments(str(folder), **{**TINY, **steps, **options})


def trainer_of(
    folder: Path, *, model: Any = None, languages: Sequence[str] = LANGUAGES, **options: Any
) -> DualMomentumTrainer:
    """A trainer; other options than its own are training arguments."""
    names = ("tokenizers", "train_dataset", "nli_dataset", "evaluations")
    given = {name: options.pop(name) for name in names if name in options}
    given = {"tokenizers": tokenizers_of(languages), "train_dataset": pairs_data(), **given}
    return DualMomentumTrainer(tiny_dual() if model is None else model, arguments(folder, **options), **given)
