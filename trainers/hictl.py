"""Pretraining of HICTL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from hf_xlsr.data.collators import HictlCollator
from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.prepared import ConcatenatedRows, PreparedRows
from hf_xlsr.encoders.stock import vocab_size_of
from hf_xlsr.export.model_card import MethodFacts
from hf_xlsr.modeling import citations
from hf_xlsr.modeling.hictl import HictlForPreTraining
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.trainers.base import PairTrainer

STEPS = 100  # optimiser steps that are remembered


class RecentContrastCallback(TrainerCallback, ExportableState):
    """Remembers how easy the contrast of sentences was in the last steps; Trainer stores it in every checkpoint."""

    def __init__(self) -> None:
        self.probabilities: list[float] = []  # mean probability of the translation in each of the last steps
        self.step_losses: list[float] = []  # of the sentences in the micro-batches of this step

    @property
    def mean_probability(self) -> float:
        """Mean probability of the translation over the last steps; 0 before the first."""
        return sum(self.probabilities) / max(len(self.probabilities), 1)

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores, taken at the end of a step."""
        return {"args": {}, "attributes": {"probabilities": list(self.probabilities)}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restores the steps before a checkpoint, which Trainer does only when an argument asks for it."""
        self.probabilities = []
        self.step_losses = []
        if state.global_step:
            # A checkpoint of a training without this callback has no entry, which Trainer needs to save the next one.
            stored = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
            self.probabilities = list(stored["attributes"]["probabilities"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Adds the mean probability of this step."""
        if not self.step_losses:
            return
        # Half of equation 4 is the mean over the sentences of both languages.
        mean_loss = sum(self.step_losses) / len(self.step_losses) / 2
        if math.isfinite(mean_loss):
            self.probabilities.append(math.exp(-mean_loss))
        del self.probabilities[:-STEPS]
        self.step_losses.clear()


class HictlTrainer(PairTrainer):
    """`XlsrTrainer` for `HictlForPreTraining`: batches of several languages, masked and joined as the model needs.

    `docs/train.md` has a complete script.

    Args:
        model: The model, with or without adapters; or, with default settings, an encoder in any form that
            `hf_xlsr.encoders.reading.read_encoder` takes.
        args: `HictlTrainingArguments`.
        train_dataset: Translation pairs, sentences, or a dict with both; see `DataConverter.pairs_and_texts`.
        processing_class: The tokenizer; by default that of the model's place.
    """

    method = MethodFacts(
        citations.HICTL_PAPER,
        citations.HICTL,
        settings=(
            *("sentence_temperature", "negative_interpolation", "word_temperature", "sampling_temperature"),
            *("negative_words", "word_query", "lm_weight", "sentence_weight", "word_weight", "mlm_probability"),
            "logits_chunk_size",
        ),
    )
    token_labels = "lm_labels"

    model_class = HictlForPreTraining

    def make_collator(self, model: Any) -> HictlCollator:
        """Masks and joins sentences."""
        return HictlCollator(
            self.tokenizers,
            mlm_probability=model.config.mlm_probability,
            seed=self.args.seed_of_data,
            **self.padding(self.args),
        )

    def convert(self, task: str, rows: Any) -> Any:
        """Pairs and sentences, grouped by language instead of language pair."""
        features = self.converter.pairs_and_texts(rows)
        if features is rows or not isinstance(features, PreparedRows):
            return features
        return ConcatenatedRows([features])

    def make_converter(self, model: Any, rows: Mapping[str, Any]) -> DataConverter:
        """As the base, and finds the rows of the embedding table that are not words."""
        converter = super().make_converter(model, rows)
        tokenizer = self.tokenizers
        vocab_size = vocab_size_of(model.encoder) or 0
        spare = torch.arange(min(len(tokenizer), vocab_size), vocab_size)  # if it is larger than the vocabulary
        self._special_ids = torch.cat([torch.tensor(tokenizer.all_special_ids, dtype=torch.long), spare])
        return converter

    def make_callbacks(self) -> list[TrainerCallback]:
        """Also remembers the contrast of the last steps, if negative sentences depend on it."""
        callbacks = super().make_callbacks()
        if base_model(self.model).config.negative_interpolation:
            callbacks.append(RecentContrastCallback())
        return callbacks

    @property
    def _recent_contrast(self) -> RecentContrastCallback | None:
        # Not an attribute of the trainer: Trainer makes a new callback when an argument asks it to restore callbacks.
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, RecentContrastCallback):
                return callback
        return None

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        """Adds the rows of the embedding table that are not words, and how easy the contrast of sentences was."""
        inputs = {**inputs, "special_ids": self._special_ids.to(inputs["input_ids"].device)}
        recent_contrast = self._recent_contrast
        if recent_contrast is None:
            return super().compute_loss(model, inputs, return_outputs, *args, **kwargs)

        inputs["positive_probability"] = recent_contrast.mean_probability
        loss, outputs = super().compute_loss(model, inputs, True, *args, **kwargs)
        if model.training and "sentence" in outputs.losses:
            recent_contrast.step_losses.append(outputs.losses["sentence"].item())
        return (loss, outputs) if return_outputs else loss
