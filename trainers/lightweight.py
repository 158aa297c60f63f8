"""Training the lightweight dual transformer, and a student with its losses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from hf_xlsr.data.collators import PairCollator
from hf_xlsr.data.streaming import StreamedRows
from hf_xlsr.encoders.teacher import Teacher
from hf_xlsr.evaluation.before_after import measure_rows
from hf_xlsr.evaluation.results import Results
from hf_xlsr.export.model_card import MethodFacts
from hf_xlsr.modeling import citations
from hf_xlsr.modeling.lightweight import DistillationModel, LightweightDualTransformer
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.trainers.base import Evaluation, PairTrainer
from hf_xlsr.trainers.dual_momentum import MemoryQueueCallback
from hf_xlsr.trainers.step_keys import SoundStepCallback, StepKeys
from hf_xlsr.utils.errors import XlsrError

STREAMED_TEXTS = 20_000  # first texts of all streams, whose mean embedding is the centre


def released_learning_rate(step: int, *, beta2: float, decay_step: int) -> float:
    """Learning rate factor of the released code: untuned linear warm-up, then a tenth from `decay_step`."""
    warm_up = min(1.0, (step + 1) * (1 - beta2) / 2)
    return warm_up * 0.1 if step >= decay_step else warm_up


class LightweightTrainer(PairTrainer):
    """`XlsrTrainer` for `LightweightDualTransformer`: masks tokens for the generative task.

    `docs/train.md` has a complete script.

    Args:
        model: The model, whose configuration names the generative task; or, with default settings, an encoder in any
            form that `hf_xlsr.encoders.reading.read_encoder` takes.
        args: `LightweightTrainingArguments`.
        train_dataset: Translation pairs, see `DataConverter.pairs`.
        processing_class: The tokenizer; by default that of the model's place.
    """

    method = MethodFacts(citations.LIGHTWEIGHT_PAPER, citations.LIGHTWEIGHT)
    token_labels = "mlm_labels"
    model_class: Any = LightweightDualTransformer

    def make_collator(self, model: Any) -> PairCollator:
        """Masks as the generative task of the model needs."""
        config = model.config
        return PairCollator(
            self.tokenizers,
            masking=config.masking,
            mlm_probability=config.mlm_probability,
            mask_punctuation=config.mask_punctuation,
            identities=config.alignment_mask_duplicates or getattr(config, "queue_size", 0) > 0,
            seed=self.args.seed_of_data,
            **self.padding(self.args),
        )

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Adds the id of `<mask>` for label mode `set`."""
        inputs = {**inputs, "mask_token_id": self.processing_class.mask_token_id}
        return super().compute_loss(model, inputs, *args, **kwargs)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Trainer's optimiser, or the released code's Adam with AMSGrad and coupled weight decay."""
        if self.args.optimization == "released" and self.optimizer is None:
            trained = self.model if model is None else model
            parameters = [parameter for parameter in trained.parameters() if parameter.requires_grad]
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
            scheduled: Any = self.optimizer if optimizer is None else optimizer
            rate = partial(released_learning_rate, beta2=self.args.adam_beta2, decay_step=decay_step)
            self.lr_scheduler = LambdaLR(scheduled, rate)
            self._created_lr_scheduler = True
            return self.lr_scheduler
        return super().create_scheduler(num_training_steps, optimizer)


class DistillationTrainer(LightweightTrainer):
    """`LightweightTrainer` for `DistillationModel`: a teacher embeds the sources.

    The embeddings of stored data are computed before the first step, and kept on disk for later runs; those of streams
    in each step. `docs/distill.md` has a complete script.

    Args:
        model: The model; or, with default settings and no dropout, an encoder in any form that
            `hf_xlsr.encoders.reading.read_encoder` takes.
        args: `LightweightTrainingArguments`.
        teacher: A `Teacher`, or an encoder for one with default settings: a folder, Hub id or `SentenceTransformer`.
    """

    method = MethodFacts(citations.DISTILLATION_PAPER, citations.DISTILLATION)
    model_class = DistillationModel

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        model_init: Callable[..., Any] | None = None,
        teacher: Any,
        train_dataset: Any = None,
        processing_class: Any = None,
        eval_dataset: Any = None,
        evaluations: Sequence[Evaluation] = (),
        evaluator: Any = None,
        guards: Mapping[str, Any] | None = None,
        data_collator: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type, dict[str, Any]] | None = None,
    ) -> None:
        self.teacher = teacher if isinstance(teacher, Teacher) else Teacher(teacher)
        self.step_keys = StepKeys()

        super().__init__(
            model,
            args,
            model_init=model_init,
            train_dataset=train_dataset,
            processing_class=processing_class,
            eval_dataset=eval_dataset,
            evaluations=evaluations,
            evaluator=evaluator,
            guards=guards,
            data_collator=data_collator,
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
        )

    def make_callbacks(self) -> list[TrainerCallback]:
        """Also puts the teacher's embeddings of a step into the queue, if the model has one."""
        callbacks = super().make_callbacks()
        model = base_model(self.model)
        if model.config.queue_size:
            if model is not self.model:
                raise XlsrError("`queue_size` must be 0 with adapters, whose checkpoints do not contain the queue.")
            callbacks += [SoundStepCallback(self.step_keys), MemoryQueueCallback(self.step_keys)]
        return callbacks

    def new_model_options(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """The width of the teacher, and no dropout, which only keeps a student from its teacher."""
        return {"teacher_dim": self.teacher.dim, "dropout": 0.0}

    def convert(self, task: str, rows: Any) -> Any:
        """Pairs with the text of the source."""
        return self.converter.taught_pairs(rows)

    def convert_eval(self, rows: Any) -> Any:
        """Pairs with the text of the source."""
        return self.converter.taught_pairs(rows, "eval_dataset")

    @cached_property
    def prepared_teacher(self) -> Teacher:
        """A teacher that knows the embeddings of stored training data, or the centre of streams.

        It is not the given one, which another trainer may use too.
        """
        teacher = copy.copy(self.teacher)
        if self.train_dataset is None:
            teacher.check_centre()
            return teacher
        with self.args.main_process_first(desc="teacher"):
            teacher.prepare(_sources(self.train_dataset))
        return teacher

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As `XlsrTrainer.train`, after the teacher has embedded the training data."""
        _ = self.prepared_teacher
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def measure_teacher(self) -> Results:
        """What the guards measure of the teacher."""
        results = Results()
        for name, rows in self.guards.items():
            results |= measure_rows(self.teacher.encoder, rows, name=name, prompt=self.teacher.prompt)
        return results

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Adds the teacher's embeddings of the sources."""
        inputs = {**inputs}
        keys = self.prepared_teacher(inputs.pop("source_texts")).to(self.args.device)
        inputs["teacher_embeds"] = keys
        if model.training and base_model(self.model).config.queue_size:
            texts = inputs["identities"][0]
            self.step_keys.waiting.append(("source", keys, texts, texts))
        return super().compute_loss(model, inputs, *args, **kwargs)


def _sources(data: Any) -> Iterator[str]:
    """The texts of the sources; of a stream, enough for the centre."""
    if isinstance(data, StreamedRows):
        for stream in data.streams:
            rows = islice(stream.read(stream.data.iter(100)), STREAMED_TEXTS // len(data.streams))
            yield from (row["source"] for row in rows)
    elif data is not None:
        for batch in data.rows.select_columns(["source"]).iter(batch_size=1000):
            yield from batch["source"]
