"""Training by conditional masked language modelling, bitext retrieval and natural language inference."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import Dataset

from hf_xlsr.data.collators.cmlm import CmlmCollator
from hf_xlsr.data.collators.dual_momentum import NliCollator
from hf_xlsr.data.collators.lightweight import PairCollator
from hf_xlsr.data.multitask import MultiTaskBatchSampler, MultiTaskCollator, MultiTaskDataset
from hf_xlsr.data.sampling import LengthBucketBatchSampler
from hf_xlsr.encoders.stock import max_positions
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.trainers.arguments import CmlmTrainingArguments, share_of_step
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.checks import check_arguments, given_tokenizer
from hf_xlsr.utils.errors import XlsrError

TEXT, RETRIEVAL, NLI = "text", "retrieval", "nli"
WEIGHTS = {TEXT: "cmlm_weight", RETRIEVAL: "retrieval_weight", NLI: "nli_weight"}

LAMB_VALUE = "grad_averaging"  # what LAMB's groups of parameters have, and AdamW's do not

logger = logging.getLogger(__name__)


def lamb_options(args: CmlmTrainingArguments) -> tuple[type, dict[str, Any]] | None:
    """The optimiser LAMB and its values, as Trainer takes them; None, with a warning, where its package is missing.

    Args:
        args: For learning rate, betas and epsilon. Weight decay comes with Trainer's groups of parameters.
    """
    try:
        lamb = _lamb_class()
    except ImportError:
        logger.warning(
            "optimizer lamb needs the package pytorch-optimizer, which is not installed; training goes on with %s, for "
            "which a learning rate of LAMB is high. Install it with `pip install 'hf-xlsr[lamb]'`.",
            _named(args),
        )
        return None
    betas = (args.adam_beta1, args.adam_beta2)
    # As in algorithm 2 of You et al. (2020): decay inside the update whose length the trust ratio sets. Its correction of
    # the averages' start cancels in the ratio; the package's own would stand outside of it.
    options = {"lr": args.learning_rate, "betas": betas, "eps": args.adam_epsilon}
    return lamb, {**options, "weight_decouple": False, "adam_debias": True}


def _named(args: CmlmTrainingArguments) -> str:
    return str(getattr(args.optim, "value", args.optim))


def _lamb_class() -> type:
    from pytorch_optimizer import Lamb

    class UnclampedLamb(Lamb):
        """The package counts no weight norm above 10, which those of most matrices of a large encoder are."""

        clamp = float("inf")

    return UnclampedLamb


class CmlmTrainer(XlsrTrainer):
    """`XlsrTrainer` for `CmlmModel`: a batch of every task in each step.

    The tasks are those that have data and, in the model, a weight; the first of running text, translations and inference
    sets the length of an epoch, and the others run on beside it.

    Args:
        model: The model, with adapters or without.
        args: `CmlmTrainingArguments`.
        train_dataset: `PreparedRunningText`, for conditional masked language modelling.
        retrieval_dataset: `PreparedPairs`, for bitext retrieval.
        nli_dataset: `PreparedRows` of `prepare_nli`; the model needs `nli_labels`.
        processing_class: The tokenizer.
        max_length: Sentences are cut here, in pieces.
        **kwargs: As for `XlsrTrainer`.

    Raises:
        XlsrError: no task has data and a weight, inference misses its classifier, a batch size does not fit, the
            encoder has no room for the places before a sentence, or the tokenizer has no mask, or more pieces than the
            model.

    Example:
        A script that trains on one's own text stands in `docs/train.md`.
    """

    def __init__(
        self,
        model: Any,
        args: Any,
        *,
        train_dataset: Any = None,
        retrieval_dataset: Any = None,
        nli_dataset: Any = None,
        max_length: int = 256,
        **kwargs: Any,
    ) -> None:
        check_arguments(args, CmlmTrainingArguments)
        ours = base_model(model)
        tokenizer = given_tokenizer(kwargs, ours.encoder)
        self.max_length, config = max_length, ours.config
        given = {TEXT: train_dataset, RETRIEVAL: retrieval_dataset, NLI: nli_dataset}
        self.datasets = {
            task: data for task, data in given.items() if data is not None and getattr(config, WEIGHTS[task])
        }
        if not self.datasets:
            raise XlsrError(
                "there is nothing to train on: of running text, translations and inference none has data and a weight; "
                "give data, or a cmlm_weight, retrieval_weight or nli_weight above 0."
            )
        room, before = max_positions(ours.encoder), config.positions_before if TEXT in self.datasets else 0
        if room is not None and max_length + before > room:
            raise XlsrError(
                f"max_length is {max_length} pieces and {before} places stand before a sentence but the encoder has "
                f"{room} positions; lower max_length to {room - before}, or use prefix_positions first."
            )
        if NLI in self.datasets and not config.nli_labels:
            raise XlsrError("inference has data but the model no classifier; set nli_labels to 3.")
        if args.ddp_find_unused_parameters is None:
            whole = set(given) if config.nli_labels else {TEXT, RETRIEVAL}
            args.ddp_find_unused_parameters = set(self.datasets) != whole or config.conditioning == "none"
        if kwargs.get("data_collator") is None:
            kwargs["data_collator"] = self._collator(tokenizer, config, args)
        if args.optimizer == "lamb" and (options := lamb_options(args)):
            kwargs["optimizer_cls_and_kwargs"] = options
        super().__init__(model, args, train_dataset=next(iter(self.datasets.values())), **kwargs)

    def _collator(self, tokenizer: Any, config: Any, args: Any) -> MultiTaskCollator:
        multiple = 8 if args.device.type == "cuda" else 1
        rounding: dict[str, Any] = {"pad_to_multiple_of": multiple, "max_length": self.max_length}
        collators: dict[str, Any] = {}
        if TEXT in self.datasets:
            collators[TEXT] = CmlmCollator(
                tokenizer,
                mlm_probability=config.mlm_probability,
                seed=args.seed if args.data_seed is None else args.data_seed,
                **rounding,
            )
        if RETRIEVAL in self.datasets:
            collators[RETRIEVAL] = PairCollator(tokenizer, masking="none", **rounding)
        if NLI in self.datasets:
            collators[NLI] = NliCollator(int(tokenizer.pad_token_id), **rounding)
        return MultiTaskCollator(collators)

    def train_batches(self) -> tuple[Dataset, Any]:
        """A batch of the first task, and one of each other beside it."""
        main, *others = (self._batches(task, number) for number, task in enumerate(self.datasets))
        names = list(self.datasets)[1:]
        return MultiTaskDataset(self.datasets), MultiTaskBatchSampler(main, dict(zip(names, others, strict=True)))

    def _batches(self, task: str, number: int) -> LengthBucketBatchSampler:
        args, data = self.args, self.datasets[task]
        name = f"{task}_batch_size"
        size = getattr(args, name, None)
        return LengthBucketBatchSampler(
            data.lengths,
            self._train_batch_size if size is None else share_of_step(name, size, args),
            groups=data.groups,
            mixing=args.mixing,
            exponent=args.mixing_exponent,
            homogeneous=args.homogeneous_batches,
            bucket=args.bucket_by_length,
            seed=self.data_seed + number,
            batch_option="per_device_train_batch_size" if size is None else name,
            num_processes=args.world_size,
            process_index=args.process_index,
            contrast=task == RETRIEVAL,
        )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        here = self.optimizer is not None and LAMB_VALUE in self.optimizer.defaults
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
            there = here if self.optimizer is None else LAMB_VALUE in self.optimizer.param_groups[0]  # as loaded
        except KeyError:  # AdamW misses in LAMB's state what it needs
            there = not here
        if there != here:
            names = {True: "LAMB", False: _named(self.args)}
            raise XlsrError(
                f"checkpoint '{checkpoint}' was trained by {names[there]} but this training goes on by {names[here]}; "
                "install or remove pytorch-optimizer, or set optimizer, as it was, or start a new run."
            )

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Hands each task its own part of the batch."""
        return super().compute_loss(model, self._by_task(inputs), *args, **kwargs)

    def _by_task(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        main, *others = self.datasets
        parts: dict[str, dict[str, torch.Tensor]] = {task: {} for task in self.datasets}
        for name, value in inputs.items():
            task = next((task for task in others if name.startswith(f"{task}_")), main)
            parts[task][name if task == main else name[len(task) + 1 :]] = value
        text = parts.pop(TEXT, {})
        return {**text, **parts}
