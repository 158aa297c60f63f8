"""Several tasks in one batch: a main task that sets the epoch, and others that continue over epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Sampler

from hf_xlsr.data.sampling import LengthBucketBatchSampler
from hf_xlsr.utils.errors import XlsrError

MAIN = "main"
TASK = "task"


class TaskKey(NamedTuple):
    """An example of one of several datasets: its task, and its key in the task's own sampler."""

    task: str
    key: Any


def endless_batches(sampler: LengthBucketBatchSampler, start: int = 0) -> Iterator[list[Any]]:
    """The batches of all epochs, from the one of number `start` on, counted from epoch 0."""
    epoch, skipped = divmod(start, len(sampler))
    while True:
        sampler.set_epoch(epoch)
        yield from islice(sampler, skipped, None)
        epoch, skipped = epoch + 1, 0


class MultiTaskBatchSampler(Sampler[list[TaskKey]]):
    """Batches of several tasks: each has one batch of the main task, which sets the epoch, and one of every other.

    Batch `b` of epoch `e` takes batch `e * len(main) + b` of every other task, whose epochs are independent. It is thus a
    function of epoch and number: skipping the first `n` batches resumes exactly.
    """

    def __init__(self, main: LengthBucketBatchSampler, others: Mapping[str, LengthBucketBatchSampler]) -> None:
        self.main, self.others = main, dict(others)
        self.batch_size, self.drop_last = main.batch_size, main.drop_last
        self.epoch = 0
        for name, sampler in self.others.items():
            if not len(sampler):
                raise XlsrError(f"task '{name}' has fewer examples than one batch; use smaller batches.")

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch that the next iteration yields."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.main)

    def __iter__(self) -> Iterator[list[TaskKey]]:
        self.main.set_epoch(self.epoch)
        start = self.epoch * len(self.main)
        streams = {name: endless_batches(sampler, start) for name, sampler in self.others.items()}
        for batch in self.main:
            keys = [TaskKey(MAIN, key) for key in batch]
            for name, stream in streams.items():
                keys += [TaskKey(name, key) for key in next(stream)]
            yield keys


class MultiTaskDataset(TorchDataset):
    """The datasets of several tasks, the main one first, fetched by the keys of `MultiTaskBatchSampler`.

    Its length is that of the main task. Each feature has its task under `TASK`.
    """

    def __init__(self, datasets: Mapping[str, Any]) -> None:
        self.datasets = _first_is_main(datasets)

    def __len__(self) -> int:
        return len(self.datasets[MAIN])

    def __getitem__(self, key: TaskKey) -> dict[str, Any]:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[TaskKey]) -> list[dict[str, Any]]:
        features: list[dict[str, Any]] = [{} for _ in keys]
        for task in dict.fromkeys(task for task, _ in keys):
            places = [place for place, key in enumerate(keys) if key.task == task]
            data, wanted = self.datasets[task], [keys[place].key for place in places]
            found = data.__getitems__(wanted) if hasattr(data, "__getitems__") else [data[key] for key in wanted]
            for place, feature in zip(places, found, strict=True):
                features[place] = {TASK: task, **feature}
        return features


class MultiTaskCollator:
    """Collates each task separately, the main one first; the tensors of all others are prefixed with `TASK_`."""

    def __init__(self, collators: Mapping[str, Callable[[list[dict[str, Any]]], Mapping[str, Any]]]) -> None:
        self.collators = _first_is_main(collators)

    @property
    def max_length(self) -> int:
        """Maximum length of the main task's sentences."""
        return self.collators[MAIN].max_length

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, Any]:
        parts: dict[str, list[dict[str, Any]]] = {}
        for feature in features:
            parts.setdefault(feature[TASK], []).append(feature)
        batch: dict[str, Any] = {}
        for task, part in parts.items():
            prefix = "" if task == MAIN else f"{task}_"
            batch.update({f"{prefix}{name}": value for name, value in self.collators[task](part).items()})
        return batch


def _first_is_main(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The first part under `MAIN`, the others under their names."""
    first, *others = parts.items()
    return {MAIN: first[1], **dict(others)}
