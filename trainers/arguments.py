"""Training arguments: additions to `transformers.TrainingArguments` and changed defaults."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field, fields

import torch
from langcodes import tag_is_valid
from transformers import TrainingArguments

from hf_xlsr.data.prompts import DEFAULT, ROLES, SIDES
from hf_xlsr.data.sampling import MIXINGS
from hf_xlsr.evaluation.report import higher_is_better
from hf_xlsr.utils.devices import PRECISIONS, choose_precision
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.extras import require_package

logger = logging.getLogger(__name__)

GUARD_ACTIONS = ("warn", "stop")
_RESUME = "a resumed training would see other data; remove it"
_SAMPLER = "batches are drawn as `bucket_by_length`, `mixing` and `homogeneous_batches` say; remove it"
# Training arguments that would be ignored, or corrupt a training or its checkpoints -> the fix. Recipes refuse them too.
REFUSED: dict[str, str] = {
    "ignore_data_skip": _RESUME,
    "dataloader_in_order": _RESUME,
    "remove_unused_columns": "the collators need all columns; remove it",
    "parallelism_config": "each process trains on its share of a batch, with whole sentences; remove it",
    **dict.fromkeys(("train_sampling_strategy", "length_column_name", "dataloader_drop_last"), _SAMPLER),
}
# The largest with which every training of 50 steps or more logs its loss 50 times.
LOGGED_SHARE = 0.01


@dataclass
class XlsrTrainingArguments(TrainingArguments):
    """Arguments of every trainer of this package, in addition to those of `transformers.TrainingArguments`.

    Args:
        precision: `auto` is bfloat16 autocast where the device computes it fast, float32 elsewhere, and `bf16` or `fp16`
            if one of them is true; other values set these two.
        bucket_by_length: Batch examples of similar length.
        homogeneous_batches: Fill each batch from one language pair.
        mixing: How language pairs of different sizes are mixed: `proportional`, `equal` or `temperature`.
        mixing_exponent: Smoothing exponent of `temperature`.
        early_stopping_patience: Stop after this many evaluations without a better `metric_for_best_model`, and load the
            best checkpoint; 0 disables it. It sets `load_best_model_at_end`.
        early_stopping_threshold: Minimum improvement.
        guard_limit: How far a metric of a guard may fall, 0.01 being one point: beyond it is a fall whose 95 % interval
            lies below the limit. 0 is any significant fall.
        guard_action: What happens beyond the limit: `warn`, or `stop` the training and load the best checkpoint of those
            evaluated before, which sets `load_best_model_at_end`.
        max_length: Sentences are truncated to this many tokens, special tokens included; by default the encoder's own
            length. It is lowered to the positions of the encoder.
        prompts: Text before every sentence, or none if it is empty; or by role (`source`, `target`), language or
            `default`, for the others. By default the encoder's own default prompt, or those of its languages.
        matryoshka_dims: Widths to which sentence embeddings can be truncated after training: the loss of sentence
            embeddings is the mean over these widths.
        cache_batch_size: Sentences encoded at a time: a large `per_device_train_batch_size` needs the memory of this many
            sentences; the forward pass is computed twice (gradient cache). Losses do not change.
        trainable_rows: Train only those token embeddings whose tokens are in the training data, or special. The others
            are frozen, and need no gradient, optimiser state or momentum copy; saved models have all. Not for language
            models, whose softmax reads the whole table, streams, adapters and FSDP.
        num_proc: Processes that tokenise stored datasets; or `ray`, `ray:HOST:PORT`: a Ray cluster.
        shuffle_buffer_size: Rows of a stream that are in memory, shuffled and sorted by length together.
        logging_steps: Steps of which the mean loss is logged, or below 1 their share of all steps: by default 50 to 100
            times. Without `eval_steps`, an `eval_strategy` of `steps` evaluates every `logging_steps` if you set them,
            else every 500.

    Attributes:
        smooths_labels: Whether the loss supports `label_smoothing_factor`.
        evaluates_rows: Whether evaluation batches have `per_device_eval_batch_size` rows; protocols have their own
            batch size.
        trains_embeddings: Whether the model makes sentence embeddings.
    """

    smooths_labels = False  # class attributes, not fields
    evaluates_rows = False
    trains_embeddings = True

    precision: str = field(default="auto", metadata={"choices": PRECISIONS})
    bucket_by_length: bool = True
    homogeneous_batches: bool = False
    mixing: str = field(default="proportional", metadata={"choices": MIXINGS})
    mixing_exponent: float = 0.3
    early_stopping_patience: int = 0
    early_stopping_threshold: float = 0.0
    guard_limit: float = 0.0
    guard_action: str = field(default="warn", metadata={"choices": GUARD_ACTIONS})
    max_length: int | None = None
    prompts: str | dict[str, str] | None = None
    matryoshka_dims: list[int] | None = None
    cache_batch_size: int | None = None
    trainable_rows: bool = False
    num_proc: int | str | None = None
    shuffle_buffer_size: int = 10_000
    logging_steps: float = LOGGED_SHARE
    remove_unused_columns: bool = field(default=False, metadata={"help": "the collator needs columns forward lacks"})
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "every parameter of our models gets a gradient in every step"}
    )
    ddp_broadcast_buffers: bool | None = field(default=False, metadata={"help": "buffers are equal on all ranks"})

    @property
    def seed_of_data(self) -> int:
        data_seed: int | None = self.data_seed
        return self.seed if data_seed is None else data_seed

    @property
    def padding_multiple(self) -> int:
        """Lengths of batches are multiples of 8 on a GPU, for its tensor cores."""
        return 8 if self.device.type == "cuda" else 1

    @property
    def n_gpu(self) -> int:
        """At most 1: Trainer's `DataParallel` would split stacks of sources and targets in the middle."""
        devices: int = super().n_gpu
        return min(devices, 1)

    def __post_init__(self) -> None:
        self._check_values()
        if "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
            logger.warning(
                "Training runs in one process: MASTER_ADDR is set, but WORLD_SIZE is not. On CPUs accelerate launch "
                "starts one, whatever is asked for; torchrun starts several."
            )

        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        if self.precision != "auto" or not (self.bf16 or self.fp16):
            dtype = choose_precision(self.precision, cpu=self.use_cpu)
            self.bf16 = dtype == "bfloat16"
            self.fp16 = dtype == "float16"

        if self.logging_steps == LOGGED_SHARE and not self.eval_steps:
            self.eval_steps = TrainingArguments.logging_steps  # else it would be that of the loss
        if self.metric_for_best_model is not None and self.greater_is_better is None:
            self.greater_is_better = self._direction(self.metric_for_best_model)

        if self.guard_action == "stop":
            self.load_best_model_at_end = True
        if self.early_stopping_patience:
            self.load_best_model_at_end = True
            # A resume needs the number of evaluations without improvement.
            self.restore_callback_states_from_checkpoint = True

        super().__post_init__()  # type: ignore[no-untyped-call]
        if getattr(self.accelerator_config, "split_batches", False):
            raise XlsrError("`split_batches` is not supported: `per_device_train_batch_size` counts for each process.")

    def _direction(self, metric: str) -> bool:
        """Whether a higher value of a metric is better, by its name."""
        higher = higher_is_better(metric)
        if higher is None:
            chooses = self.load_best_model_at_end or self.early_stopping_patience or self.save_strategy == "best"
            if chooses:
                logger.warning(
                    "Checkpoints are chosen by the highest `%s`, whose direction is not known. Set `greater_is_better`.",
                    metric,
                )
            return True
        return higher

    def _check_values(self) -> None:
        """Checks that values are valid and supported, and have an effect on the loss."""
        for item in fields(self):
            value = getattr(self, item.name)
            choices = item.metadata.get("choices")
            if choices and value is not None and value not in choices:
                raise XlsrError(f"Invalid {item.name} '{value}'; {did_you_mean(str(value), choices)}")
            if item.name in REFUSED and value != item.default:
                raise XlsrError(f"`{item.name}` is not supported: {REFUSED[item.name]}.")

        without_effect = [] if self.trains_embeddings else ["matryoshka_dims", "cache_batch_size", "prompts"]
        if not self.smooths_labels:
            without_effect.append("label_smoothing_factor")
        for name in without_effect:
            if getattr(self, name):
                raise XlsrError(f"{name} has no effect on this loss. Remove it.")

        if isinstance(self.prompts, dict):
            known_names = (*SIDES, *ROLES, DEFAULT)
            for name in self.prompts:
                if name not in known_names and not tag_is_valid(name):
                    raise XlsrError(f"prompts: '{name}' must be {', '.join(known_names)} or a language.")


def share_of_step(name: str, size: int, args: TrainingArguments) -> int:
    """Examples of a task in each micro-batch of each process."""
    steps = args.gradient_accumulation_steps
    shares: int = args.world_size * steps
    if size % shares or size < 2 * shares:
        raise XlsrError(
            f"`{name}` must be a multiple of {shares} ({args.world_size} process(es) x {steps} micro-batch(es)) and at "
            f"least {2 * shares}, got {size}."
        )
    return size // shares


@dataclass
class LightweightTrainingArguments(XlsrTrainingArguments):
    """Arguments of `LightweightTrainer`.

    Args:
        optimization: `trainer` uses `optim` and `lr_scheduler_type`. `released` is the optimiser of the paper's released
            code: Adam with AMSGrad and coupled weight decay; the learning rate rises over `2 / (1 - beta2)` steps and
            drops to a tenth at the start of epoch `decay_epoch`.
        decay_epoch: Epoch of that drop: 3, for Italian 6.
    """

    optimization: str = field(default="trainer", metadata={"choices": ("trainer", "released")})
    decay_epoch: int = 3


@dataclass
class DualMomentumTrainingArguments(XlsrTrainingArguments):
    """Arguments of `DualMomentumTrainer`. Each batch contains one language pair.

    As in `DualMomentumConfig`, the defaults suit some thousands of translation pairs: batches are small, for many steps,
    and the learning rate rises during the first tenth of them. The paper's values are in the recipe `moco_bert_en_zh`.

    Args:
        learning_rate: The highest; 4e-5 in the paper, for batches of 1,024.
        warmup_steps: Steps in which the learning rate rises, or below 1 their share of all steps; 400 in the paper.
        weight_decay: Of AdamW; 1e-4 in the paper.
        queue_prefill: Fill the queues with keys of random training sentences before the first step.
        nli_batch_size: Pairs of the auxiliary task in an optimiser step, in all micro-batches and processes.
    """

    homogeneous_batches: bool = True
    learning_rate: float = 2e-4
    warmup_steps: float = 0.1
    weight_decay: float = 0.01
    queue_prefill: bool = False
    nli_batch_size: int = 128
    ddp_find_unused_parameters: bool | None = field(
        default=None, metadata={"help": "by default true with more than two encoders"}
    )


@dataclass
class HictlTrainingArguments(XlsrTrainingArguments):
    """Arguments of `HictlTrainer`. Languages are mixed equally, as in the paper."""

    mixing: str = field(default="equal", metadata={"choices": MIXINGS})


@dataclass
class CmlmTrainingArguments(XlsrTrainingArguments):
    """Arguments of `CmlmTrainer`.

    Args:
        optimizer: `trainer` uses `optim`; `lamb` is the paper's, from the package pytorch-optimizer (the extra `lamb`).
        mixing: How languages of different sizes are mixed; smoothed, as the paper does for its vocabulary.
        pack_sentences: Joins consecutive sentences up to `max_length` tokens, as the paper's sequences. Not for streams.
        retrieval_batch_size: Translation pairs in an optimiser step, in all micro-batches and processes; by default as
            many as `per_device_train_batch_size` of running text. The pairs of one micro-batch, gathered over the
            processes, are each other's negatives: accumulation makes a larger batch, but no more negatives.
        nli_batch_size: Pairs of natural language inference in an optimiser step, likewise.
    """

    optimizer: str = field(default="trainer", metadata={"choices": ("trainer", "lamb")})
    mixing: str = field(default="temperature", metadata={"choices": MIXINGS})
    pack_sentences: bool = False
    retrieval_batch_size: int | None = None
    nli_batch_size: int | None = None
    ddp_find_unused_parameters: bool | None = field(
        default=None, metadata={"help": "by default true if a part of the model has no task"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer == "lamb":
            require_package("pytorch_optimizer")
