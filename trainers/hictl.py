"""Pre-training by hierarchical contrast."""

from __future__ import annotations

from typing import Any

import torch

from hf_xlsr.data.collators.hictl import HictlCollator
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.trainers.arguments import HictlTrainingArguments
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.checks import check_arguments, given_tokenizer, usable_length


class HictlTrainer(XlsrTrainer):
    """`XlsrTrainer` for `HictlForPreTraining`: each batch in several languages, masked and joined as the model wants.

    Args:
        model: The model, with adapters or without.
        args: `HictlTrainingArguments`.
        train_dataset: `PreparedPairs`, `PreparedRows` of sentences, or both as `ConcatenatedRows`.
        processing_class: The tokenizer.
        max_length: Sentences, and two of them together, are cut here, in pieces.
        **kwargs: As for `XlsrTrainer`.

    Raises:
        XlsrError: the tokenizer puts no special pieces around sentences, has no mask or more pieces than the model;
            arguments are of another kind; or the encoder has fewer positions than two sentences together have pieces.

    Example:
        A script that trains on one's own pairs stands in `docs/train.md`.
    """

    def __init__(self, model: Any, args: Any = None, *, max_length: int = 128, **kwargs: Any) -> None:
        check_arguments(args, HictlTrainingArguments)
        ours = base_model(model)
        tokenizer = given_tokenizer(kwargs, ours.encoder)
        if kwargs.get("data_collator") is None:
            kwargs["data_collator"] = HictlCollator(
                tokenizer,
                mlm_probability=ours.config.mlm_probability,
                seed=args.data_seed if args.data_seed is not None else args.seed,
                max_length=usable_length([ours.encoder], max_length, kwargs.get("train_dataset"), together=2),
                pad_to_multiple_of=8 if args.device.type == "cuda" else 1,
            )
        super().__init__(model, args, **kwargs)
        rows = len(ours.encoder.get_input_embeddings().weight)
        spare = torch.arange(min(len(tokenizer), rows), rows)  # of a table that is larger than its vocabulary
        self._special_ids = torch.cat([torch.tensor(tokenizer.all_special_ids, dtype=torch.long), spare])

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Adds the rows of the table that are no words."""
        special_ids = self._special_ids.to(inputs["input_ids"].device)
        return super().compute_loss(model, {**inputs, "special_ids": special_ids}, *args, **kwargs)
