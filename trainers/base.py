"""The shared trainer: our batches, named loss parts, protocols as evaluation, checkpoints that are whole."""

from __future__ import annotations

import json
import pickle
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import EarlyStoppingCallback, Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import seed_worker

from hf_xlsr.data.sampling import LengthBucketBatchSampler
from hf_xlsr.errors import XlsrError
from hf_xlsr.export.hub_trainer import SlimPushes
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.trainers.callbacks import GracefulStopCallback, SamplerEpochCallback
from hf_xlsr.trainers.live_encoder import LiveEncoder
from hf_xlsr.trainers.sharding import check_sharding, fit_sharded, set_up_sharding

Evaluation = Callable[[LiveEncoder], Mapping[str, float]]
# Up to this length matrix products win on a processor; beyond it their score matrices cost more than they save. Most
# sentences are far shorter than the longest, by which it is decided.
PLAIN_ATTENTION_PIECES = 200


# Arguments of `Trainer` that would be passed over, or would change the step in silence.
REFUSED = {
    "compute_loss_func": "the model computes its own loss, which it would only unscale",
    "compute_metrics": "protocols measure here (evaluations=[...])",
    "model_init": "searches for hyperparameters are not for trainers whose state is more than weights",
}


def last_whole_checkpoint(folder: str | Path, processes: int = 1) -> Path | None:
    """The newest checkpoint that was written to its end; a killed process may leave a torn one behind.

    The first process writes `trainer_state.json` last, and every process its random state: a checkpoint that has them
    all is whole.

    Args:
        folder: `output_dir` of the training.
        processes: Processes that train together.

    Returns:
        Its path, or None when there is none.
    """
    candidates = [path for path in Path(folder).glob("checkpoint-*") if path.name.rsplit("-", 1)[1].isdigit()]
    for path in sorted(candidates, key=lambda path: int(path.name.rsplit("-", 1)[1]), reverse=True):
        try:
            json.loads((path / TRAINER_STATE_NAME).read_text("utf-8"))
        except (OSError, ValueError):
            continue
        states = [f"rng_state_{rank}.pth" for rank in range(processes)] if processes > 1 else ["rng_state.pth"]
        if all((path / name).is_file() for name in states):
            return path
    return None


def attention_for(implementation: str, device: str, dtype: torch.dtype | None, max_length: int) -> str:
    """How attention is computed fastest in training.

    The backward pass of torch's fused attention on a processor takes most of a step under bfloat16: through a 12-layer
    encoder of width 384 it needed 1.6 s for 256 sentences of 16 pieces, where plain matrix products needed 0.4 s, forward
    passes being equal (`python -m benchmarks attention`). Attention dropout makes torch fall back to products by itself.

    Args:
        implementation: What the model uses, in the words of transformers.
        device: Type of the device.
        dtype: Precision of autocast.
        max_length: Of sentences, in pieces.

    Returns:
        `eager` in place of `sdpa` on a processor under bfloat16 for sentences of up to 200 pieces, else `implementation`.

    Example:
        >>> attention_for("sdpa", "cpu", torch.bfloat16, 128)
        'eager'
    """
    slow = implementation == "sdpa" and device == "cpu" and dtype == torch.bfloat16
    return "eager" if slow and max_length <= PLAIN_ATTENTION_PIECES else implementation


def _start_worker(worker_id: int, num_workers: int, rank: int) -> None:
    """Seeds a process that loads batches as Trainer does, and leaves the signals that stop a training to the training.

    A terminal's Ctrl-C, launchers and schedulers signal every process. Workers that ended by it would end the training
    before its checkpoint is saved; without it they still end with the process that they load for.

    Args:
        worker_id: Number of the worker.
        num_workers: Of a training process.
        rank: Of the training process.
    """
    for number in GracefulStopCallback.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    seed_worker(worker_id, num_workers=num_workers, rank=rank)


class XlsrTrainer(SlimPushes, Trainer):
    """`transformers.Trainer` for models that return `losses` by name and data sets of prepared pairs.

    - Batches come from `LengthBucketBatchSampler`, already split over processes.
    - Each loss part is logged as `loss/NAME`, averaged since the last log and over processes, and so are the model's
      `statistics` under their own names.
    - `evaluate` runs protocols on the live model; metrics come back as `eval_NAME`, so that early stopping and
      `metric_for_best_model` work.
    - On a processor under bfloat16, attention is computed by plain matrix products (see `attention_for`).
    - Ctrl-C saves a checkpoint; `stopped_early` says so.

    Args:
        evaluations: Functions from an encoder to named numbers, run by `evaluate`.
        **kwargs: As for `Trainer`; `processing_class` is the tokenizer.

    Raises:
        XlsrError: training without a data set; or an argument of `Trainer` is given that has no place here.
    """

    # Whether the examples of a batch are compared with each other.
    contrast = True
    # Why weights cannot be sharded over processes, the first half of a sentence; empty where they can.
    no_sharding = ""
    # What gives the model's outputs for given sentences.
    predicts_by = "vectors of live_encoder()"
    # What Trainer declares more widely than our trainers take.
    args: Any
    model: Any
    processing_class: Any
    train_dataset: Any

    def __init__(self, *args: Any, evaluations: Sequence[Evaluation] = (), **kwargs: Any) -> None:
        self.evaluations = list(evaluations)
        if self.evaluations:
            # Trainer wants an eval_dataset with an eval_strategy; protocols bring their own text.
            kwargs.setdefault("eval_dataset", self.evaluations)
        for name, instead in REFUSED.items():
            if kwargs.get(name) is not None:
                raise XlsrError(f"{name} is given, but {instead}; leave it out.")
        super().__init__(*args, **kwargs)
        model = self.accelerator.unwrap_model(self.model)
        check_sharding(self.args, refusal=self.no_sharding, adapters=base_model(model) is not model)
        if self.is_fsdp_enabled:
            set_up_sharding(self)
        self._choose_attention()
        self._part_sums: dict[str, torch.Tensor] = {}
        self._part_count = 0
        if patience := getattr(self.args, "early_stopping_patience", 0):
            self.add_callback(EarlyStoppingCallback(patience, self.args.early_stopping_threshold))
        self._graceful_stop = GracefulStopCallback()
        self.add_callback(SamplerEpochCallback())
        self.add_callback(self._graceful_stop)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As of any trainer.

        Raises:
            XlsrError: a file of the checkpoint holds more than tensors and numbers, which may be code.
        """
        if resume_from_checkpoint is True:  # not one that a killed process left torn
            newest = last_whole_checkpoint(self.args.output_dir, self.args.world_size)
            resume_from_checkpoint = str(newest) if newest else True
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        except pickle.UnpicklingError as error:
            raise XlsrError(
                f"checkpoint '{resume_from_checkpoint}' holds more than tensors and numbers in its state, which "
                "is not loaded since it may run code; take it from whom you trust, or remove it to start before it."
            ) from error
        finally:
            self._graceful_stop.restore()

    def _load_callback_state(self) -> None:
        super()._load_callback_state()
        patience = getattr(self.args, "early_stopping_patience", 0)
        # The count of evaluations goes on; when to stop is for these arguments to say, not for the checkpoint's.
        for callback in self.callback_handler.callbacks if patience else ():
            if isinstance(callback, EarlyStoppingCallback):
                callback.early_stopping_patience = patience
                callback.early_stopping_threshold = self.args.early_stopping_threshold

    def _determine_best_metric(self, *args: Any, **kwargs: Any) -> bool:
        # With save_strategy="best" Trainer saves by this alone, also where a signal asked for a checkpoint.
        return super()._determine_best_metric(*args, **kwargs) or self.stopped_early

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        limit = self.args.save_total_limit
        if self.stopped_early:
            # At the end of a training Trainer keeps the best checkpoint alone where the limit is 1; one that was stopped
            # goes on from its last.
            self.args.save_total_limit = None
        try:
            return super()._finalize_training(*args, **kwargs)
        finally:
            self.args.save_total_limit = limit

    def _choose_attention(self) -> None:
        model = base_model(self.accelerator.unwrap_model(self.model))
        length = getattr(self.data_collator, "max_length", PLAIN_ATTENTION_PIECES)
        now = model.config._attn_implementation
        chosen = attention_for(now, self.args.device.type, self.autocast_dtype, length)
        if chosen != now:
            model.set_attn_implementation(chosen)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        self._part_sums, self._part_count = {}, 0  # an earlier training may have ended between two logs
        prepared = super()._prepare_for_training(*args, **kwargs)
        if self.is_fsdp_enabled:
            fit_sharded(self.model, self.accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap)
        return prepared

    @property
    def stopped_early(self) -> bool:
        """Whether a signal ended the last training."""
        return self._graceful_stop.stopped

    def get_train_dataloader(self) -> DataLoader:
        """Length-bucketed batches. The loader is not wrapped by accelerate: the sampler knows the processes itself."""
        args = self.args
        if self.train_dataset is None:
            raise XlsrError("training needs a train_dataset; give the trainer a PreparedPairs.")
        data, sampler = self.train_batches()
        workers = args.dataloader_num_workers
        return DataLoader(
            data,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=workers,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=partial(_start_worker, num_workers=workers, rank=args.process_index),
        )

    @property
    def data_seed(self) -> int:
        """Seed of everything that is drawn for the data."""
        return self.args.data_seed if self.args.data_seed is not None else self.args.seed

    def train_batches(self) -> tuple[Dataset, Any]:
        """The training data, and a sampler of the batches of keys that it is asked for.

        Trainers with more streams override it.
        """
        data, args = self.train_dataset, self.args
        if not hasattr(data, "lengths"):
            raise XlsrError(
                f"train_dataset is of the class {type(data).__name__}, which does not tell the lengths of its examples; "
                "give what hf_xlsr.data.prepared makes of tokenised rows, such as PreparedPairs."
            )
        return data, LengthBucketBatchSampler(
            data.lengths,
            self._train_batch_size,
            groups=data.groups,
            mixing=args.mixing,
            exponent=args.mixing_exponent,
            homogeneous=args.homogeneous_batches,
            bucket=args.bucket_by_length,
            seed=self.data_seed,
            num_processes=args.world_size,
            process_index=args.process_index,
            contrast=self.contrast,
        )

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The model's loss; its parts and statistics are kept for the next log."""
        outputs = model(**inputs)
        if model.training:
            parts = {f"loss/{name}": value for name, value in outputs.losses.items()}
            for name, value in {**parts, **(outputs.get("statistics") or {})}.items():
                value = value.detach().float()
                if self.args.logging_nan_inf_filter:  # as Trainer does with the loss itself
                    value = torch.where(torch.isfinite(value), value, torch.zeros_like(value))
                self._part_sums[name] = self._part_sums[name] + value if name in self._part_sums else value
            self._part_count += 1
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the loss parts to each training log."""
        if "loss" in logs and self._part_count:
            names = list(self._part_sums)
            means = torch.stack([self._part_sums[name] for name in names]) / self._part_count
            means = self.accelerator.gather(means.unsqueeze(0)).mean(0)
            logs.update(zip(names, means.tolist(), strict=True))
            self._part_sums, self._part_count = {}, 0
        super().log(logs, start_time)

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """Precision of the forward pass where it is not that of the weights."""
        return torch.bfloat16 if self.args.bf16 else torch.float16 if self.args.fp16 else None

    def live_encoder(self) -> LiveEncoder:
        """The model as it stands, as something that evaluation and mining take."""
        tokenizer = self.processing_class
        limit = min(getattr(self.data_collator, "max_length", 200), tokenizer.model_max_length)
        model = self.accelerator.unwrap_model(self.model)
        return LiveEncoder(model, tokenizer, max_length=limit, autocast_dtype=self.autocast_dtype)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Runs the protocols on the live model.

        Raises:
            XlsrError: the trainer was given none, or is given a data set now.
        """
        if eval_dataset is not None and eval_dataset is not self.evaluations:
            raise XlsrError(
                "evaluate measures what the trainer was given as evaluations=[...]; make one of this data set, too, or "
                "measure the exported model."
            )
        if not self.evaluations:
            raise XlsrError("evaluation needs protocols; give the trainer evaluations=[...].")
        encoder, metrics = self.live_encoder(), {}
        for evaluation in self.evaluations:
            metrics.update({f"{metric_key_prefix}_{name}": value for name, value in evaluation(encoder).items()})
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """As of any trainer, of models that give outputs by row, for rows as the collator takes them.

        Raises:
            XlsrError: the model's outputs are losses of whole batches, or the data are prepared for training.
        """
        if not self.args.evaluates_rows or hasattr(test_dataset, "lengths"):
            raise XlsrError(f"predict does not take these data; take {self.predicts_by} instead.")
        return super().predict(test_dataset, *args, **kwargs)
