"""Training arguments: what our trainers add to `transformers.TrainingArguments`, or set by default otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from hf_xlsr.data.sampling import MIXINGS
from hf_xlsr.data.sources import as_list
from hf_xlsr.trainers.momentum_callbacks import MOMENTUM_SCHEDULES
from hf_xlsr.utils.errors import XlsrError, nearest
from hf_xlsr.utils.precision import PRECISIONS, choose_precision

OPTIMIZATIONS = ("trainer", "released")
OPTIMIZERS = ("trainer", "lamb")
# Reporters that transformers does not count among those that are there, or not always.
UNLISTED = ("azure_ml", "comet_ml", "flyte", "kubeflow")


@dataclass
class XlsrTrainingArguments(TrainingArguments):
    """Arguments of every trainer of this package; all of `transformers.TrainingArguments` besides.

    Args:
        precision: `auto` takes bfloat16 autocast where the device computes it fast and float32 elsewhere, unless `bf16`
            or `fp16` is true; any but `from_flags` sets these two.
        bucket_by_length: Batch examples of like length.
        homogeneous_batches: Fill each batch from one language pair.
        mixing: How language pairs of different sizes are mixed: `proportional`, `equal` or `temperature`.
        mixing_exponent: Smoothing exponent of `temperature`.
        early_stopping_patience: Stop after so many evaluations without a better `metric_for_best_model`, and end with the
            best checkpoint; 0 never does. It sets `load_best_model_at_end`.
        early_stopping_threshold: What counts as better is better by more than this.

    Attributes:
        smooths_labels: Whether the loss has a use for `label_smoothing_factor`.
        evaluates_rows: Whether `per_device_eval_batch_size` rows go through the model together in an evaluation; the
            protocols have a batch size of their own.
    """

    smooths_labels = False  # no fields: they belong to the class
    evaluates_rows = False

    precision: str = field(
        default="auto", metadata={"help": "of forward passes", "choices": (*PRECISIONS, "from_flags")}
    )
    bucket_by_length: bool = field(default=True, metadata={"help": "batch examples of like length"})
    homogeneous_batches: bool = field(default=False, metadata={"help": "fill each batch from one language pair"})
    mixing: str = field(default="proportional", metadata={"help": "of language pairs", "choices": MIXINGS})
    mixing_exponent: float = field(default=0.3, metadata={"help": "smoothing exponent of mixing 'temperature'"})
    early_stopping_patience: int = field(default=0, metadata={"help": "evaluations without improvement; 0 is never"})
    early_stopping_threshold: float = field(default=0.0, metadata={"help": "less than this is no improvement"})
    remove_unused_columns: bool = field(default=False, metadata={"help": "the collator needs columns forward lacks"})
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "every parameter of our models gets a gradient in every step"}
    )
    ddp_broadcast_buffers: bool | None = field(default=False, metadata={"help": "buffers are equal on all ranks"})

    @property
    def n_gpu(self) -> int:
        """At most 1. `DataParallel`, which Trainer would wrap around several GPUs, cuts the stack of sources over targets
        in the middle and pairs the wrong rows; several GPUs take several processes (torchrun, accelerate)."""
        return min(super().n_gpu, 1)

    def __post_init__(self) -> None:
        if self.precision != "from_flags":
            self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
            chosen = choose_precision(self._named_precision(), cpu=self.use_cpu)
            self.bf16, self.fp16 = chosen == "bfloat16", chosen == "float16"
        if self.label_smoothing_factor and not self.smooths_labels:
            raise XlsrError(
                f"label_smoothing_factor is {self.label_smoothing_factor}, but this loss has none; leave it out."
            )
        if self.mixing not in MIXINGS:
            raise XlsrError(f"mixing is '{self.mixing}'; use one of {', '.join(MIXINGS)}.")
        self._check_workers()
        self._check_early_stopping()
        check_reporters(self.report_to)
        super().__post_init__()

    def _named_precision(self) -> str:
        """`precision`; in place of `auto`, what `bf16` or `fp16` asks for.

        Raises:
            XlsrError: both ask.
        """
        if self.precision != "auto" or not (self.bf16 or self.fp16):
            return self.precision
        if self.bf16 and self.fp16:
            raise XlsrError("bf16 and fp16 are both true; leave one of them out, or give precision.")
        return "bfloat16" if self.bf16 else "float16"

    def _check_workers(self) -> None:
        if self.dataloader_num_workers:
            return
        for name in ("multiprocessing_context", "persistent_workers", "prefetch_factor"):
            if value := getattr(self, f"dataloader_{name}"):
                raise XlsrError(
                    f"dataloader_{name} is {value}, but no workers load; set dataloader_num_workers, or leave it out."
                )

    def _check_early_stopping(self) -> None:
        if self.early_stopping_patience < 0:
            raise XlsrError(f"early_stopping_patience is {self.early_stopping_patience}; use 0 (never) or more.")
        if not self.early_stopping_patience:
            return
        if not self.metric_for_best_model:
            raise XlsrError(
                "early_stopping_patience needs metric_for_best_model; name the metric that is to get better."
            )
        if getattr(self.eval_strategy, "value", self.eval_strategy) == "no":
            raise XlsrError("early_stopping_patience needs evaluations; set eval_strategy to steps or epoch.")
        self.load_best_model_at_end = True
        # The count of evaluations without improvement belongs to the state that resuming needs.
        self.restore_callback_states_from_checkpoint = True


def check_reporters(names: Any) -> None:
    """Refuses what `report_to` cannot be, before a long preparation.

    Args:
        names: As `transformers.TrainingArguments` takes it.

    Raises:
        XlsrError: transformers knows no such reporter, its package is not installed or not set up, or `all` or `none`
            stands beside others.

    Example:
        >>> check_reporters("tensorbord")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: report_to has 'tensorbord'; did you mean 'tensorboard'?
    """
    available = get_available_reporting_integrations()
    whole = {"all", "none"} & set(map(str, as_list(names)))
    if whole and len(as_list(names)) > 1:
        raise XlsrError(f"report_to has '{min(whole)}' beside others; give it alone, or leave it out.")
    for name in as_list(names):
        if name not in (*INTEGRATION_TO_CALLBACK, "all", "none"):
            raise XlsrError(f"report_to has '{name}'; {nearest(str(name), [*INTEGRATION_TO_CALLBACK, 'all', 'none'])}")
        if name not in (*available, *UNLISTED, "all", "none"):
            raise XlsrError(
                f"report_to has '{name}', which is not installed or not set up; install it with `pip install {name}`, or "
                "leave it out."
            )


def share_of_step(name: str, size: int, args: TrainingArguments) -> int:
    """How many examples of a task each micro-batch of each process holds, of those of an optimiser step.

    Args:
        name: What users call the size.
        size: Examples in a step.
        args: For processes and micro-batches.

    Raises:
        XlsrError: they do not share it evenly, or get fewer than two examples each.
    """
    parts = args.world_size * args.gradient_accumulation_steps
    if size % parts or size < 2 * parts:
        raise XlsrError(
            f"{name} is {size}, which {args.world_size} process(es) with {args.gradient_accumulation_steps} "
            f"micro-batch(es) cannot share; use {2 * parts} or a larger multiple of {parts}."
        )
    return size // parts


@dataclass
class LightweightTrainingArguments(XlsrTrainingArguments):
    """Arguments of `LightweightTrainer`.

    Args:
        optimization: `trainer` uses `optim` and `lr_scheduler_type` as any Trainer does. `released` is what the
            released code of the lightweight paper does: Adam with AMSGrad and coupled weight decay, the learning rate
            rising over `2 / (1 - beta2)` steps and cut to a tenth at the start of epoch `decay_epoch`.
        decay_epoch: Epoch of that cut: 3, for Italian 6.
    """

    optimization: str = field(default="trainer", metadata={"help": "optimiser", "choices": OPTIMIZATIONS})
    decay_epoch: int = field(default=3, metadata={"help": "epoch of the tenfold cut under optimization 'released'"})

    def __post_init__(self) -> None:
        if self.optimization not in OPTIMIZATIONS:
            raise XlsrError(f"optimization is '{self.optimization}'; use one of {', '.join(OPTIMIZATIONS)}.")
        super().__post_init__()


@dataclass
class DualMomentumTrainingArguments(XlsrTrainingArguments):
    """Arguments of `DualMomentumTrainer`. Batches hold one language pair.

    Args:
        momentum_schedule: `constant` (the paper), or `linear` or `cosine`, which raise the momentum to 1 by the end.
        queue_prefill: Fill the queues with keys of random training sentences before the first step.
        nli_batch_size: Pairs of the auxiliary task in an optimiser step, over all micro-batches and processes.
    """

    homogeneous_batches: bool = field(default=True, metadata={"help": "fill each batch from one language pair"})
    momentum_schedule: str = field(
        default="constant", metadata={"help": "of the momentum encoders", "choices": MOMENTUM_SCHEDULES}
    )
    queue_prefill: bool = field(default=False, metadata={"help": "fill the queues before the first step"})
    nli_batch_size: int = field(default=128, metadata={"help": "inference pairs in an optimiser step"})
    ddp_find_unused_parameters: bool | None = field(
        default=None, metadata={"help": "found out: true with more than two encoders"}
    )

    def __post_init__(self) -> None:
        if not self.homogeneous_batches:
            raise XlsrError("homogeneous_batches is false; dual momentum contrast needs batches of one language pair.")
        if self.momentum_schedule not in MOMENTUM_SCHEDULES:
            raise XlsrError(
                f"momentum_schedule is '{self.momentum_schedule}'; {nearest(self.momentum_schedule, MOMENTUM_SCHEDULES)}"
            )
        if self.nli_batch_size < 1:
            raise XlsrError(f"nli_batch_size is {self.nli_batch_size}; use 1 or more.")
        super().__post_init__()


@dataclass
class HictlTrainingArguments(XlsrTrainingArguments):
    """Arguments of `HictlTrainer`. "A training batch covers 15 languages with equal probability": they are mixed so."""

    mixing: str = field(default="equal", metadata={"help": "of languages", "choices": MIXINGS})
    homogeneous_batches: bool = field(default=False, metadata={"help": "fill each batch from one language"})


@dataclass
class CmlmTrainingArguments(XlsrTrainingArguments):
    """Arguments of `CmlmTrainer`.

    Args:
        optimizer: `trainer` uses `optim` as any Trainer does; `lamb` is the paper's, from the package
            pytorch-optimizer (the extra `lamb`), and without the package it is `trainer` again, which is said.
        mixing: How languages of different sizes are mixed; the paper smooths them for its vocabulary, and so are they
            here.
        retrieval_batch_size: Translation pairs in an optimiser step, over all micro-batches and processes; as many as
            `per_device_train_batch_size` makes of running text when absent. Those of one micro-batch, gathered over the
            processes, are each other's negatives: accumulation makes a larger batch, but no more of them.
        nli_batch_size: Pairs of natural language inference in an optimiser step, likewise.
    """

    optimizer: str = field(default="trainer", metadata={"help": "optimiser", "choices": OPTIMIZERS})
    mixing: str = field(default="temperature", metadata={"help": "of languages", "choices": MIXINGS})
    retrieval_batch_size: int | None = field(default=None, metadata={"help": "translation pairs in an optimiser step"})
    nli_batch_size: int | None = field(default=None, metadata={"help": "inference pairs in an optimiser step"})
    ddp_find_unused_parameters: bool | None = field(
        default=None, metadata={"help": "found out: true where a part of the model has no task"}
    )

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise XlsrError(f"optimizer is '{self.optimizer}'; {nearest(self.optimizer, OPTIMIZERS)}")
        super().__post_init__()
