"""Trainers: the Hugging Face Trainer with our batching, loss parts, protocols and exact resume."""

from __future__ import annotations

from hf_xlsr.trainers.adapters import add_adapters
from hf_xlsr.trainers.arguments import (
    CmlmTrainingArguments,
    DualMomentumTrainingArguments,
    HictlTrainingArguments,
    LightweightTrainingArguments,
    XlsrTrainingArguments,
)
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.cmlm import CmlmTrainer
from hf_xlsr.trainers.dual_momentum import DualMomentumTrainer, MemoryQueueCallback, MomentumCallback
from hf_xlsr.trainers.fine_tune import FineTuneTrainer, FineTuneTrainingArguments
from hf_xlsr.trainers.hictl import HictlTrainer
from hf_xlsr.trainers.lightweight import DistillationTrainer, LightweightTrainer
from hf_xlsr.trainers.translation import TranslationTrainer, TranslationTrainingArguments

__all__ = [
    "CmlmTrainer",
    "CmlmTrainingArguments",
    "DistillationTrainer",
    "DualMomentumTrainer",
    "DualMomentumTrainingArguments",
    "FineTuneTrainer",
    "FineTuneTrainingArguments",
    "HictlTrainer",
    "HictlTrainingArguments",
    "LightweightTrainer",
    "LightweightTrainingArguments",
    "MemoryQueueCallback",
    "MomentumCallback",
    "TranslationTrainer",
    "TranslationTrainingArguments",
    "XlsrTrainer",
    "XlsrTrainingArguments",
    "add_adapters",
]
