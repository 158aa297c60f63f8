"""Pretraining of HICTL."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch

from hf_xlsr.data.collators import HictlCollator
from hf_xlsr.data.prepared import ConcatenatedRows, PreparedRows
from hf_xlsr.encoders.stock import vocab_size_of
from hf_xlsr.modeling.hictl import HictlForPreTraining
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.trainers.base import PairTrainer

RECENT = "RecentContrast"  # name in the trainer's state
STEPS = 100  # optimiser steps that are remembered


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

    @cached_property
    def _special_ids(self) -> torch.Tensor:
        """Rows of the embedding table that are not words."""
        tokenizer = self.processing_class
        rows = vocab_size_of(base_model(self.model).encoder) or 0
        spare = torch.arange(min(len(tokenizer), rows), rows)  # if the table is larger than the vocabulary
        return torch.cat([torch.tensor(tokenizer.all_special_ids, dtype=torch.long), spare])

    @cached_property
    def _step_losses(self) -> list[float]:
        """Losses of the sentences in the micro-batches of this step."""
        return []

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        """Adds the rows of the embedding table that are not words, and how easy the contrast of sentences was."""
        inputs = {**inputs, "special_ids": self._special_ids.to(inputs["input_ids"].device)}
        if not base_model(self.model).config.negative_interpolation:
            return super().compute_loss(model, inputs, return_outputs, *args, **kwargs)

        # The trainer's state is part of every checkpoint.
        stored_states: Any = self.state.stateful_callbacks
        recent = stored_states.setdefault(RECENT, {"args": {}, "attributes": {"probabilities": []}})
        probabilities = recent["attributes"]["probabilities"]
        inputs["positive_probability"] = sum(probabilities) / max(len(probabilities), 1)
        loss, outputs = super().compute_loss(model, inputs, True, *args, **kwargs)
        if model.training and "sentence" in outputs.losses:
            self._remember(outputs.losses["sentence"].item(), probabilities)
        return (loss, outputs) if return_outputs else loss

    def _remember(self, sentence_loss: float, probabilities: list[float]) -> None:
        """Adds the mean probability of the translation to those of the last steps, at the end of each step."""
        self._step_losses.append(sentence_loss)
        if len(self._step_losses) < self.current_gradient_accumulation_steps:
            return
        # Half of equation 4 is the mean over the sentences of both languages.
        mean = sum(self._step_losses) / len(self._step_losses) / 2
        if math.isfinite(mean):
            probabilities.append(math.exp(-mean))
        del probabilities[:-STEPS]
        self._step_losses.clear()
