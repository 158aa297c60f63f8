"""Several streams of examples in one batch: a main task that sets the epoch, and others that run on beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Sampler

from hf_xlsr.utils.errors import XlsrError, nearest

MAIN = "main"
TASK = "task"


class TaskKey(NamedTuple):
    """Names an example of one of several data sets.

    Attributes:
        task: Name of the task; `MAIN` for the main one, whatever others call it.
        key: What the task's own sampler calls the example.
    """

    task: str
    key: Any


class EpochBatchSampler(Protocol):
    """Batches of keys whose order is a function of the epoch alone, such as `LengthBucketBatchSampler`."""

    batch_size: int
    drop_last: bool

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch that the next iteration yields."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[list[Any]]: ...


def endless_batches(sampler: EpochBatchSampler, start: int = 0) -> Iterator[list[Any]]:
    """The batches of one epoch after the other, from any of them on; an epoch is drawn once and kept while it lasts.

    Args:
        sampler: With at least one batch an epoch.
        start: Number of the first batch, counted from that of epoch 0.

    Yields:
        Batch `start`, `start + 1`, and so on.

    Example:
        >>> from hf_xlsr.data.sampling import LengthBucketBatchSampler
        >>> sampler = LengthBucketBatchSampler([3, 9, 4, 8], batch_size=2)
        >>> [batch[0][0] for batch in islice(endless_batches(sampler, start=3), 4)]  # the epochs
        [1, 2, 2, 3]
    """
    epoch, skipped = divmod(start, len(sampler))
    while True:
        sampler.set_epoch(epoch)
        yield from islice(sampler, skipped, None)
        epoch, skipped = epoch + 1, 0


class MultiTaskBatchSampler(Sampler[list[TaskKey]]):
    """Batches of several tasks: each holds one batch of the main task and one of every other.

    Batch `b` of epoch `e` takes batch `e * len(main) + b` of every other stream, whose epochs roll over on their own.
    It is thus a function of epoch and number: skipping the first `n` batches resumes exactly.

    Args:
        main: Sets the length of the epoch.
        others: Name -> sampler of each other task; its process arguments have to be those of `main`.

    Attributes:
        batch_size: Examples of the main task in a batch.

    Raises:
        XlsrError: a task bears the name of the main one, or gives no batch.

    Example:
        >>> from hf_xlsr.data.sampling import LengthBucketBatchSampler
        >>> main, nli = LengthBucketBatchSampler([5] * 8, 4), LengthBucketBatchSampler([5] * 6, 2)
        >>> sampler = MultiTaskBatchSampler(main, {"nli": nli})
        >>> [[key.task for key in batch] for batch in sampler]
        [['main', 'main', 'main', 'main', 'nli', 'nli'], ['main', 'main', 'main', 'main', 'nli', 'nli']]
    """

    def __init__(self, main: EpochBatchSampler, others: Mapping[str, EpochBatchSampler]) -> None:
        self.main, self.others = main, dict(others)
        self.batch_size, self.drop_last = main.batch_size, main.drop_last
        self.epoch = 0
        # The streams as the last whole epoch left them, with the number of their next batch. Going on with them spares
        # each epoch of the main task the search for its place in a longer one of another.
        self._waiting: dict[str, tuple[int, Iterator[list[Any]]]] = {}
        if MAIN in self.others:
            raise XlsrError(f"a task beside the main one is called '{MAIN}'; give it another name.")
        for name, sampler in self.others.items():
            if not len(sampler):
                raise XlsrError(f"the data of task '{name}' is fewer than one batch; give more, or smaller batches.")

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch that the next iteration yields."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.main)

    def __iter__(self) -> Iterator[list[TaskKey]]:
        self.main.set_epoch(self.epoch)
        start = self.epoch * len(self.main)
        streams = {name: self._stream(name, start) for name in self.others}
        for number, batch in enumerate(self.main, start + 1):
            keys = [TaskKey(MAIN, key) for key in batch]
            for name, stream in streams.items():
                keys += [TaskKey(name, key) for key in next(stream)]
            if number == start + len(self.main):  # before the last yield, behind which nobody may ask again
                self._waiting = {name: (number, stream) for name, stream in streams.items()}
            yield keys

    def _stream(self, name: str, start: int) -> Iterator[list[Any]]:
        # Taken out, so that two iterations at a time never share a stream.
        position, stream = self._waiting.pop(name, (-1, iter(())))
        return stream if position == start else endless_batches(self.others[name], start)


class MultiTaskDataset(TorchDataset):
    """The data sets of several tasks, fetched by the keys of `MultiTaskBatchSampler`.

    Its length is that of the main task. Each feature names its task under `TASK`.

    Args:
        datasets: Name -> data set of each task, that of the main task first; their features are mappings.

    Raises:
        XlsrError: there is none, or a key is of another task.

    Example:
        >>> data = MultiTaskDataset({"pairs": [{"x": 1}, {"x": 2}], "nli": [{"y": 3}]})
        >>> data.__getitems__([TaskKey(MAIN, 1), TaskKey("nli", 0)])
        [{'task': 'main', 'x': 2}, {'task': 'nli', 'y': 3}]
    """

    def __init__(self, datasets: Mapping[str, Any]) -> None:
        self.datasets = _first_is_main(datasets, "data sets")

    def __len__(self) -> int:
        return len(self.datasets[MAIN])

    def __getitem__(self, key: TaskKey) -> dict[str, Any]:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[TaskKey]) -> list[dict[str, Any]]:
        features: list[dict[str, Any]] = [{} for _ in keys]
        for task in dict.fromkeys(task for task, _ in keys):
            if task not in self.datasets:
                raise XlsrError(f"there is no data set for task '{task}'; {nearest(task, self.datasets)}")
            places = [place for place, key in enumerate(keys) if key.task == task]
            data, wanted = self.datasets[task], [keys[place].key for place in places]
            found = data.__getitems__(wanted) if hasattr(data, "__getitems__") else [data[key] for key in wanted]
            for place, feature in zip(places, found, strict=True):
                features[place] = {TASK: task, **feature}
        return features


class MultiTaskCollator:
    """Collates each task by itself; the tensors of every task but the main one get its name and `_` in front.

    Args:
        collators: Name -> collator of each task, that of the main task first; they give mappings.

    Returns:
        One mapping, of the tasks that the batch holds.

    Raises:
        XlsrError: there is none, or a feature is of another task.

    Example:
        >>> collate = MultiTaskCollator({"pairs": lambda rows: {"x": len(rows)}, "nli": lambda rows: {"x": len(rows)}})
        >>> collate([{"task": "main"}, {"task": "nli"}, {"task": "nli"}])
        {'x': 1, 'nli_x': 2}
    """

    def __init__(self, collators: Mapping[str, Callable[[list[dict[str, Any]]], Mapping[str, Any]]]) -> None:
        self.collators = _first_is_main(collators, "collators")

    @property
    def max_length(self) -> int:
        """Where the main task's sentences are cut, which trainers ask for."""
        return self.collators[MAIN].max_length

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, Any]:
        parts: dict[str, list[dict[str, Any]]] = {}
        for feature in features:
            parts.setdefault(feature[TASK], []).append(feature)
        batch: dict[str, Any] = {}
        for task, part in parts.items():
            if task not in self.collators:
                raise XlsrError(f"there is no collator for task '{task}'; {nearest(task, self.collators)}")
            prefix = "" if task == MAIN else f"{task}_"
            batch.update({f"{prefix}{name}": value for name, value in self.collators[task](part).items()})
        return batch


def _first_is_main(parts: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The first one under `MAIN`, whatever the caller calls it."""
    if not parts or MAIN in list(parts)[1:]:
        raise XlsrError(
            f"the {what} of the tasks are {', '.join(parts) or 'none'}; that of the main task comes first."
        )
    first, *others = parts.items()
    return {MAIN: first[1], **dict(others)}
