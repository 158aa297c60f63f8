"""A model in training measured: as an encoder, by its loss, and by the accuracy of translations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize
from torch.utils.data import Dataset

from hf_xlsr.data.collators import pad_rows, truncate_row
from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.data.sampling import MAIN, TASK
from hf_xlsr.encoders.encoding import BATCH_SIZE
from hf_xlsr.evaluation.pairs import right_texts_both_ways
from hf_xlsr.evaluation.results import Results
from hf_xlsr.utils.distributed import computed_apart


class MeasuredTrainer(Protocol):
    """What the functions of this file need of a trainer."""

    args: Any
    model: Any
    accelerator: Any
    data_collator: Any
    max_length: int

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """Precision of the forward pass, if it is not that of the weights."""

    def tokenizer_of(self, language: str) -> tuple[Any, dict[str, Any]]:
        """The tokenizer of a language's sentences, and the options with which the model encodes them."""

    def compute_loss(self, model: Any, inputs: Any) -> Any:
        """The loss of a batch."""

    def compute_loss_context_manager(self) -> Any:
        """Where the loss is computed: under autocast."""

    def _prepare_inputs(self, inputs: Any) -> Any:
        """A batch on the device of the model."""


@contextmanager
def evaluating(model: Any, autocast_dtype: torch.dtype | None) -> Iterator[torch.device]:
    """Runs a model in evaluation mode, by default in the precision of its weights, and restores the mode of each module.

    Sharded weights are gathered.
    """
    device = model.device
    autocast = torch.autocast(device.type, autocast_dtype, autocast_dtype is not None)
    with evaluation_mode(model), whole_weights(model), autocast:
        yield device


@contextmanager
def encoding_under_autocast(encoder: Any, autocast_dtype: torch.dtype | None) -> Iterator[None]:
    """Computes the embeddings of a live encoder under autocast, and what evaluators make of them in float32.

    Under autocast their similarities would be rounded to bfloat16, which numpy does not have.
    """
    if autocast_dtype is None:
        yield
        return

    forward = encoder.forward

    def forward_under_autocast(*args: Any, **options: Any) -> dict[str, Any]:
        with torch.autocast(encoder.device.type, autocast_dtype):
            features: dict[str, Any] = forward(*args, **options)
        features["sentence_embedding"] = features["sentence_embedding"].float()
        return features

    encoder.forward = forward_under_autocast
    try:
        yield
    finally:
        del encoder.forward


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Sets a model to evaluation mode, and restores the mode of each module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        model.eval()
        for module in training:
            module.training = True


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Gathers the weights of a model that is sharded by FSDP2; encoding calls parts of it without the whole."""
    from torch.distributed.fsdp import FSDPModule

    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.reshard()


def run_evaluations(
    evaluations: Iterable[Callable[[Any], Mapping[str, float]]], encoder: Any
) -> tuple[dict[str, float], Results]:
    """The metrics of all evaluations by name, and those of them that are `Results`."""
    metrics: dict[str, float] = {}
    results = Results()
    for evaluation in evaluations:
        measured = evaluation(encoder)
        metrics |= measured
        if isinstance(measured, Results):
            results |= measured
    return metrics, results


def batches_by_length(ids: Sequence[Sequence[int]], batch_size: int) -> list[list[int]]:
    """Batches of row numbers; the rows of a batch have similar lengths."""
    order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


@dataclass(eq=False, repr=False)
class LiveModel:
    """A model in training for evaluation, with its current weights; the model keeps its mode."""

    model: Any
    tokenizer: Any
    _: KW_ONLY
    max_length: int = 128
    autocast_dtype: torch.dtype | None = None
    progress: bool = False


class EvaluationRows(Dataset[dict[str, Any]]):
    """Converted rows, or a list of features, as the examples of one task."""

    def __init__(self, data: Any, task: str = MAIN) -> None:
        self.data = data
        self.task = task

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> dict[str, Any]:
        example = self.data[0, number] if hasattr(self.data, "lengths") else self.data[number]
        return {TASK: self.task, **example}

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        if hasattr(self.data, "lengths"):
            return np.asarray(self.data.lengths)
        return np.array([len(row["input_ids"]) for row in self.data])

    def batches(self, batch_size: int, *, homogeneous: bool = False) -> list[list[int]]:
        """Row numbers in batches: rows of similar length, at most `batch_size`, each batch of about the same size.

        `homogeneous` batches have one language pair each.
        """
        groups = np.asarray(self.data.groups) if homogeneous else np.zeros(len(self), dtype=np.int64)
        batches: list[list[int]] = []
        for group in np.unique(groups):
            rows = np.flatnonzero(groups == group)
            rows = rows[np.argsort(self.lengths[rows], kind="stable")]
            batches += [batch.tolist() for batch in np.array_split(rows, -(-len(rows) // batch_size))]
        return batches


@torch.no_grad()
def evaluation_loss(trainer: MeasuredTrainer, data: EvaluationRows) -> float:
    """Mean loss of the rows, in batches of `per_device_eval_batch_size`.

    It measures the model alone: losses see the rows of a batch, but no queue, no momentum encoder and no rows of other
    processes. A process computes whole batches, so that their number does not change the loss. It draws no random numbers
    from those of training.
    """
    args = trainer.args
    model = trainer.model
    batches = data.batches(args.per_device_eval_batch_size, homogeneous=args.homogeneous_batches)
    row_losses = torch.zeros(len(batches), dtype=torch.float64)  # of each batch, summed over its rows
    devices = [args.device] if args.device.type == "cuda" else []
    with torch.random.fork_rng(devices), evaluation_mode(model), computed_apart():
        for first in range(0, len(batches), args.world_size):
            # Sharded weights need a forward pass of all processes: those without a batch repeat the last one.
            number = first + args.process_index
            rows = batches[min(number, len(batches) - 1)]
            torch.manual_seed(args.seed_of_data + number)
            batch = trainer.data_collator([data[row] for row in rows])
            inputs = trainer._prepare_inputs(batch)  # noqa: SLF001  # Trainer has no public name
            with trainer.compute_loss_context_manager():
                loss = trainer.compute_loss(model, inputs)
            if number < len(batches):
                row_losses[number] = float(loss) * len(rows)

    if args.world_size > 1:
        shared = row_losses.to(args.device, torch.float32 if args.device.type == "mps" else torch.float64)
        row_losses = trainer.accelerator.reduce(shared).double().cpu()
    return float(row_losses.sum() / len(data))


@torch.no_grad()
def encode_ids(
    trainer: MeasuredTrainer, ids: Sequence[Sequence[int]], language: str, batch_size: int = BATCH_SIZE
) -> np.ndarray:
    """Unit sentence embeddings of token ids by the model in training, `(sentences, width)`, float32."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    tokenizer, options = trainer.tokenizer_of(language)
    result = np.empty((len(ids), model.config.hidden_size), dtype=np.float32)
    with evaluating(model, trainer.autocast_dtype) as device:
        for numbers in batches_by_length(ids, batch_size):
            rows = [truncate_row(ids[number], trainer.max_length) for number in numbers]
            batch = [torch.from_numpy(array).to(device) for array in pad_rows(rows, tokenizer.pad_token_id)]
            embeddings = model.encode_sentences(*batch, **options).float()
            result[numbers] = normalize(embeddings, dim=-1).cpu().numpy()
    return result


def pair_embeddings(trainer: MeasuredTrainer, pairs: PreparedPairs) -> tuple[np.ndarray, np.ndarray]:
    """Unit sentence embeddings of all sources and all targets, each `(pairs, width)`."""
    shape = (len(pairs), trainer.accelerator.unwrap_model(trainer.model).config.hidden_size)
    sources = np.empty(shape, dtype=np.float32)
    targets = np.empty(shape, dtype=np.float32)
    for group, languages in enumerate(pairs.language_pairs):
        numbers = np.flatnonzero(pairs.groups == group)
        rows = pairs.rows.select(numbers)
        source_language, target_language = languages
        sources[numbers] = encode_ids(trainer, rows["source_ids"][:], source_language)
        targets[numbers] = encode_ids(trainer, rows["target_ids"][:], target_language)
    return sources, targets


def translation_accuracy(trainer: MeasuredTrainer, pairs: PreparedPairs) -> dict[str, float]:
    """Share of sentences whose nearest sentence of the other language, by cosine, is their translation.

    Equal sentences count as translations of each other's partners, as in `TranslationEvaluator` of
    sentence-transformers, whose names these are: `SOURCE-TARGET_src2trg_accuracy`, `..._trg2src_accuracy` and
    `..._mean_accuracy` of each language pair, and `accuracy`, the mean of the language pairs.
    """
    sources, targets = pair_embeddings(trainer, pairs)
    metrics: dict[str, float] = {}
    for group, languages in enumerate(pairs.language_pairs):
        numbers = np.flatnonzero(pairs.groups == group)
        rows = pairs.rows.select(numbers)
        texts = (rows["source_text"][:], rows["target_text"][:])
        right = right_texts_both_ways(sources[numbers], targets[numbers], *texts)
        forward, backward = (float(np.mean(direction)) for direction in right)
        name = "-".join(languages)
        metrics[f"{name}_src2trg_accuracy"] = forward
        metrics[f"{name}_trg2src_accuracy"] = backward
        metrics[f"{name}_mean_accuracy"] = (forward + backward) / 2
    means = [value for key, value in metrics.items() if key.endswith("_mean_accuracy")]
    return {"accuracy": float(np.mean(means)), **metrics}
