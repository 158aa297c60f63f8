"""Pretraining of HICTL."""

from __future__ import annotations

from typing import Any

import torch

from hf_xlsr.data.collators.hictl import HictlCollator
from hf_xlsr.encoders.stock import check_token_ids, vocab_size_of
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.trainers.base import XlsrTrainer, usable_length


class HictlTrainer(XlsrTrainer):
    """`XlsrTrainer` for `HictlForPreTraining`: batches of several languages, masked and joined as the model needs.

    Args:
        model: The model, with or without adapters.
        args: `HictlTrainingArguments`.
        train_dataset: `PreparedPairs`, `PreparedRows` of sentences, or both as `ConcatenatedRows`.
        processing_class: The tokenizer.
        max_length: Sentences, and joined pairs, are truncated to this many tokens.
        **kwargs: As for `XlsrTrainer`.

    Raises:
        XlsrError: the tokenizer has no special tokens around sentences, no mask token or more tokens than the model, or
            the encoder has fewer positions than two sentences together have tokens.

    Example:
        `docs/train.md` has a complete script.
    """

    def __init__(self, model: Any, args: Any, *, processing_class: Any, max_length: int = 128, **kwargs: Any) -> None:
        tokenizer, ours = processing_class, base_model(model)
        check_token_ids(tokenizer, vocab_size_of(ours.encoder))
        if kwargs.get("data_collator") is None:
            kwargs["data_collator"] = HictlCollator(
                tokenizer,
                mlm_probability=ours.config.mlm_probability,
                seed=args.data_seed if args.data_seed is not None else args.seed,
                max_length=usable_length([ours.encoder], max_length, kwargs.get("train_dataset"), together=2),
                pad_to_multiple_of=8 if args.device.type == "cuda" else 1,
            )
        super().__init__(model, args, processing_class=tokenizer, **kwargs)
        rows = len(ours.encoder.get_input_embeddings().weight)
        spare = torch.arange(min(len(tokenizer), rows), rows)  # if the table is larger than the vocabulary
        self._special_ids = torch.cat([torch.tensor(tokenizer.all_special_ids, dtype=torch.long), spare])

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Adds the rows of the embedding table that are not words."""
        special_ids = self._special_ids.to(inputs["input_ids"].device)
        return super().compute_loss(model, {**inputs, "special_ids": special_ids}, *args, **kwargs)
