"""Trainers: the Hugging Face Trainer with our batching, loss parts, protocols and exact resume."""

from __future__ import annotations

from hf_xlsr.trainers.arguments import LightweightTrainingArguments, XlsrTrainingArguments
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.lightweight import LightweightTrainer

__all__ = ["LightweightTrainer", "LightweightTrainingArguments", "XlsrTrainer", "XlsrTrainingArguments"]
