"""From the data that users give to the batches of a trainer."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from datasets import Dataset, DatasetDict
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import seed_worker

from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.raw_rows import has_stream, read_once
from hf_xlsr.data.sampling import LengthBucketBatchSampler, MultiTaskBatchSampler, MultiTaskDataset
from hf_xlsr.data.streaming import FeatureBatches, KeyedBatches, MultiTaskBatches, StreamBatches, StreamedRows
from hf_xlsr.trainers.callbacks import GracefulStopCallback
from hf_xlsr.utils.errors import XlsrError

# Training arguments that count or draw the rows of all training data.
NEEDS_STORED = {"queue_prefill": True, "trainable_rows": True, "optimization": "released"}


def _start_worker(worker_id: int, num_workers: int, rank: int) -> None:
    """Seeds a data loader worker as Trainer does, and makes it ignore the signals that stop a training.

    If workers ended with the signal, the training would fail before it saves its checkpoint.
    """
    for number in GracefulStopCallback.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    seed_worker(worker_id, num_workers=num_workers, rank=rank)


def inputs_by_task(inputs: Mapping[str, Any], others: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits a batch into the inputs of the main task and those of other tasks, whose names start with the task."""
    of_tasks: dict[str, dict[str, Any]] = {}
    of_main_task = dict(inputs)
    for task in others:
        prefix = f"{task}_"
        names = [name for name in inputs if name.startswith(prefix)]
        if names:
            of_tasks[task] = {name.removeprefix(prefix): of_main_task.pop(name) for name in names}
    return of_main_task, of_tasks


@dataclass(frozen=True)
class GivenData:
    """What a user gives to a trainer, which reads it again for each model of `model_init`. The rows are by task."""

    rows: dict[str, Any]
    processing_class: Any
    eval_dataset: Any
    data_collator: Any
    guards: dict[str, Any]


class DataFlow(Trainer):
    """`Trainer` with data in any form, split over processes by their own batches."""

    # Whether the examples of a batch are compared with each other.
    contrast = True
    args: Any
    data_collator: Any
    train_dataset: Any
    converter: DataConverter

    def convert(self, task: str, rows: Any) -> Any:
        """The features of the rows of a task, by the methods of `DataConverter`."""
        return self.converter.pairs(rows)

    def convert_eval(self, rows: Any) -> Any:
        """The features of evaluation rows."""
        return self.converter.pairs(rows, "eval_dataset")

    def converted_sets(self, data: Any) -> dict[str, Any]:
        """Evaluation data by name, converted; the name of a single dataset is empty."""
        if data is None:
            return {}
        sets: dict[str, Any] = {}
        for name, rows in data.items() if isinstance(data, Mapping) else [("", data)]:
            rows = Dataset.from_list(rows) if isinstance(rows, list) else read_once(rows)
            if name and isinstance(rows, Dataset):
                rows = DatasetDict({name: rows})  # the name may name the languages of the rows
            with self.args.main_process_first(desc="tokenising"):
                sets[name] = self.convert_eval(rows)
        return sets

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Length-bucketed batches. accelerate does not wrap the loader, since the batches are split over processes."""
        args = self.args
        data, sampler = self.train_batches()
        workers = args.dataloader_num_workers
        batching: dict[str, Any] = {"batch_size": None} if sampler is None else {"batch_sampler": sampler}
        return DataLoader(
            data,
            **batching,
            collate_fn=self.data_collator,
            num_workers=workers,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=partial(_start_worker, num_workers=workers, rank=args.process_index),
        )

    def batches(self, data: Any, batch_size: int | None = None, **options: Any) -> Any:
        """Batches of a dataset as the arguments say: of keys, or of features if it is streamed."""
        args = self.args
        options = {
            "mixing": args.mixing,
            "exponent": args.mixing_exponent,
            "homogeneous": args.homogeneous_batches,
            "bucket": args.bucket_by_length,
            "seed": args.seed_of_data,
            "num_processes": args.world_size,
            "process_index": args.process_index,
            "contrast": self.contrast,
            **options,
        }
        size = self._train_batch_size if batch_size is None else batch_size
        if isinstance(data, StreamedRows):
            # One endless epoch, as max_steps ends training.
            return StreamBatches(data, size, epochs=None, buffer_size=args.shuffle_buffer_size, **options)
        strata = getattr(data, "strata", None)
        return LengthBucketBatchSampler(data.lengths, size, groups=data.groups, strata=strata, **options)

    def train_batches(self) -> tuple[Any, Any]:
        """The training data and a batch sampler of its keys, or streamed batches and None."""
        batches = self.batches(self.train_dataset)
        return (batches, None) if isinstance(batches, FeatureBatches) else (self.train_dataset, batches)

    @staticmethod
    def join_tasks(datasets: Mapping[str, Any], batches: Mapping[str, Any]) -> tuple[Any, Any]:
        """As `train_batches`, with a batch of every task; the first task sets the epoch."""
        main, *other_tasks = batches
        if not any(isinstance(task_batches, FeatureBatches) for task_batches in batches.values()):
            other_batches = {task: batches[task] for task in other_tasks}
            return MultiTaskDataset(datasets), MultiTaskBatchSampler(batches[main], other_batches)

        streams: dict[str, FeatureBatches] = {}
        for task, task_batches in batches.items():
            if not isinstance(task_batches, FeatureBatches):
                task_batches = KeyedBatches(datasets[task], task_batches, epochs=None)
            streams[task] = task_batches
        return MultiTaskBatches(streams[main], {task: streams[task] for task in other_tasks}, epochs=None), None


def check_stored(args: Any, rows: Mapping[str, Any]) -> None:
    """Raises an error for streams where a training argument needs stored rows."""
    for name, value in NEEDS_STORED.items():
        is_set = getattr(args, name, None) == value
        if is_set and any(has_stream(data) for data in rows.values()):
            raise XlsrError(f"`{name}` must not be {value} for a stream, whose rows are not known in advance.")
