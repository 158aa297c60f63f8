"""Training the lightweight dual transformer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from hf_xlsr.data.collators import PairCollator
from hf_xlsr.encoders.stock import check_token_ids, vocab_size_of
from hf_xlsr.modeling.lightweight import LightweightDualTransformer
from hf_xlsr.trainers.base import XlsrTrainer, converter_of, usable_length
from hf_xlsr.trainers.pretrained import model_and_tokenizer

MASKING_OF_TASK = {"ugt": "single", "smlm": "single", "xtr": "none", "mlm": "mlm", "mlm+xtr": "mlm"}


def released_learning_rate(step: int, *, beta2: float, decay_step: int) -> float:
    """Learning rate factor of the released code: untuned linear warm-up, then a tenth from `decay_step`."""
    return min(1.0, (step + 1) * (1 - beta2) / 2) * (0.1 if step >= decay_step else 1.0)


class LightweightTrainer(XlsrTrainer):
    """`XlsrTrainer` for `LightweightDualTransformer`: masks tokens for the generative task.

    `docs/train.md` has a complete script.

    Args:
        model: The model, whose configuration names the generative task; or, with default settings, an encoder: a folder,
            Hub id or `SentenceTransformer`.
        args: `LightweightTrainingArguments`.
        train_dataset: Translation pairs, see `DataConverter.pairs`.
        processing_class: The tokenizer; by default that of the model's place.
        **kwargs: As for `XlsrTrainer`.
    """

    token_labels = "mlm_labels"
    model_class: Any = LightweightDualTransformer

    def __init__(
        self,
        model: Any,
        args: Any,
        *,
        train_dataset: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        model, processing_class = self.model_and_tokenizer(model, processing_class, args)
        check_token_ids(processing_class, vocab_size_of(model.encoder))
        self.converter = converter_of(args, processing_class, [model.encoder])
        train_dataset = self.converted(train_dataset, args)
        self.max_length = usable_length([model.encoder], args.max_length, train_dataset)
        if kwargs.get("data_collator") is None:
            config = model.config
            kwargs["data_collator"] = PairCollator(
                processing_class,
                masking=MASKING_OF_TASK[config.generative_task] if config.generative_weight else "none",
                mask_punctuation=config.mask_punctuation,
                mlm_probability=config.mlm_probability,
                seed=args.seed_of_data,
                max_length=self.max_length,
                pad_to_multiple_of=args.padding_multiple,
                identities=config.alignment_mask_duplicates,
            )
        super().__init__(model, args, processing_class=processing_class, train_dataset=train_dataset, **kwargs)

    def model_and_tokenizer(self, model: Any, tokenizer: Any, args: Any) -> tuple[Any, Any]:
        return model_and_tokenizer(self.model_class, model, tokenizer, seed=args.seed)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Adds the id of `<mask>` for label mode `set`."""
        return super().compute_loss(
            model, {**inputs, "mask_token_id": self.processing_class.mask_token_id}, *args, **kwargs
        )

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Trainer's optimiser, or the released code's Adam with AMSGrad and coupled weight decay."""
        if self.args.optimization == "released" and self.optimizer is None:
            parameters = [p for p in (self.model if model is None else model).parameters() if p.requires_grad]
            self.optimizer = torch.optim.Adam(
                parameters,
                lr=self.args.learning_rate,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
                weight_decay=self.args.weight_decay,
                amsgrad=True,
            )
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.args.optimization == "released" and self.lr_scheduler is None:
            updates = -(-len(self.get_train_dataloader()) // self.args.gradient_accumulation_steps)
            decay_step = updates * self.args.decay_epoch
            beta2 = self.args.adam_beta2
            chosen: Any = self.optimizer if optimizer is None else optimizer
            rate = partial(released_learning_rate, beta2=beta2, decay_step=decay_step)
            self.lr_scheduler = LambdaLR(chosen, rate)
            self._created_lr_scheduler = True
            return self.lr_scheduler
        return super().create_scheduler(num_training_steps, optimizer)
