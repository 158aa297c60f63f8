"""Mixing of languages and tasks, and batching by length, as a function of seed and epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset, Sampler

from hf_xlsr.data.tokenization import smoothed_shares
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

MIXINGS = ("proportional", "equal", "temperature")
# Number of batches whose examples are sorted by length together: large for little padding, small for random batches.
BATCHES_PER_BUCKET = 50

MAIN = "main"
TASK = "task"

ExampleKey = tuple[int, int]


@dataclass(eq=False, repr=False)
class Batching:
    """How batches are made of rows, stored or streamed.

    Args:
        batch_size: Rows per batch and process; `batch_option` is its name in errors.
        mixing: `proportional` (each row once), `equal` (the same number from each group) or `temperature` (shares
            proportional to `n ** exponent`).
        homogeneous: Fill each global batch from one language pair or language; smaller ones are skipped, with a warning.
        bucket: Sort by length; otherwise batches are random.
        num_processes: Each takes its slice of every global batch: two of 64 see the batches of one process of 128.
        contrast: Whether a loss compares the rows of a batch. Then batches are full, since the loss depends on the
            number of rows. Otherwise an epoch ends with the rows that are left, which processes share equally.
    """

    batch_size: int
    _: KW_ONLY
    mixing: str = "proportional"
    exponent: float = 0.3
    homogeneous: bool = False
    bucket: bool = True
    seed: int = 1
    num_processes: int = 1
    process_index: int = 0
    batch_option: str = "per_device_train_batch_size"
    contrast: bool = True

    def num_batches(self, rows: int) -> int:
        """Batches of so many rows: full ones and, if no rows are compared, one of the rest that processes can share."""
        full_batches, rest = divmod(rows, self.global_batch)
        return full_batches + (not self.contrast and rest >= self.num_processes)

    @property
    def least_rows(self) -> int:
        """Rows that make a batch."""
        return self.global_batch if self.contrast else self.num_processes

    def __post_init__(self) -> None:
        self.global_batch = self.batch_size * self.num_processes
        start = self.process_index * self.batch_size
        self.own_rows = slice(start, start + self.batch_size)
        if self.contrast and self.global_batch < 2:
            raise XlsrError(f"{self.batch_option} must be above 1: a batch of one pair has no negatives.")


def mixing_power(mixing: str, exponent: float) -> float:
    """The power of a group's size to which its share is proportional."""
    return {"proportional": 1.0, "equal": 0.0, "temperature": exponent}[mixing]


def group_counts(
    sizes: Sequence[int],
    mixing: str = "proportional",
    exponent: float = 0.3,
) -> list[int]:
    """How many examples of each group an epoch draws; the sum is the number of all examples."""
    total = sum(sizes)
    shares = smoothed_shares(dict(enumerate(sizes)), mixing_power(mixing, exponent))
    exact = np.array(list(shares.values())) * total
    counts = exact.astype(int)
    # The largest remainders get the examples lost by rounding down.
    by_remainder = np.argsort(counts - exact, kind="stable")
    counts[by_remainder[: total - counts.sum()]] += 1
    rounded: list[int] = counts.tolist()
    return rounded


def balanced_length_order(
    lengths: np.ndarray,
    strata: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """An order by length, as indices `(n,)`, in which every stretch holds each stratum in its share.

    Examples are sorted by their rank by length within their stratum, as a share of the stratum. The strata in a stretch
    are thus at the same quantile of their lengths. `rng` breaks ties between strata.
    """
    order = np.argsort(lengths, kind="stable")
    _, strata, sizes = np.unique(strata[order], return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        return order

    ranks = np.empty(len(order))
    ranks[np.argsort(strata, kind="stable")] = np.concatenate([np.arange(size) for size in sizes])
    quantiles = (ranks + rng.random(len(order))) / sizes[strata]
    return order[np.argsort(quantiles, kind="stable")]


class LengthBucketBatchSampler(Batching, Sampler[list[ExampleKey]]):
    """Batches of `(epoch, index)` pairs of examples of similar length, in random order, split over processes.

    An epoch is a pure function of `(seed, epoch)`: examples are drawn (each group without repetition until it is used
    up), shuffled, split into buckets of 50 batches, sorted by length inside a bucket with every stratum in its share
    (`balanced_length_order`), split into global batches, which are shuffled. Skipping the first `n` batches resumes
    exactly. All random draws of an example (its mask) depend on its pair, not on the worker that loads it.

    Args:
        groups: Group of each example, `0 .. n - 1`, for `mixing` and `homogeneous`; one group when absent.
        strata: What every batch holds in its share, numbered; by default the groups.

    Examples:
        >>> sampler = LengthBucketBatchSampler([3, 9, 4, 8], batch_size=2, seed=1)
        >>> sorted(index for batch in sampler for _, index in batch)
        [0, 1, 2, 3]
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        batch_size: int,
        *,
        groups: Sequence[int] | np.ndarray | None = None,
        strata: np.ndarray | None = None,
        **options: Any,
    ) -> None:
        super().__init__(batch_size, **options)
        lengths = np.asarray(lengths)
        # Sorting is fastest for 16 bits.
        self.lengths = lengths.astype(np.min_scalar_type(lengths.max(initial=0)))
        self.drop_last = self.contrast
        self.epoch = 0

        if groups is None:
            groups = np.zeros(len(lengths), dtype=np.int8)
        groups = np.asarray(groups)
        self.strata = groups if strata is None else strata
        index_type = np.min_scalar_type(len(groups))
        numbers = range(groups.max(initial=-1) + 1)
        self.members = [np.flatnonzero(groups == number).astype(index_type) for number in numbers]

        self.counts = group_counts(list(map(len, self.members)), self.mixing, self.exponent)
        if self.homogeneous:
            self._skip_small()
        if not len(self):
            where = (
                "single language pairs of the training data do not" if self.homogeneous else "the training data do not"
            )
            raise XlsrError(f"{where} fill a batch of {self.least_rows:,} examples; lower {self.batch_option}.")

    def _skip_small(self) -> None:
        """Draws no example of the groups that fill no batch."""
        counts = np.array(self.counts)
        is_small = np.array([size > 0 and not self.num_batches(size) for size in self.counts])  # a group may be empty
        if is_small.any() and self.process_index == 0:
            logger.warning(
                "%d language pairs with %d examples are skipped: each has fewer than one batch.",
                is_small.sum(),
                counts[is_small].sum(),
            )
        self.counts = np.where(is_small, 0, counts).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch that the next iteration yields."""
        self.epoch = epoch

    def __len__(self) -> int:
        sizes = self.counts if self.homogeneous else [sum(self.counts)]
        return sum(map(self.num_batches, sizes))

    def __iter__(self) -> Iterator[list[ExampleKey]]:
        epoch = self.epoch
        rng = np.random.default_rng([self.seed, epoch])
        groups = np.flatnonzero(self.counts)
        groups_of_splits = groups[:, None] if self.homogeneous else groups[None]
        splits = [_Split(self, split_groups.tolist(), epoch, rng) for split_groups in groups_of_splits]
        ends = np.cumsum([len(split.orders) for split in splits])

        for position in rng.permutation(ends[-1]):
            number = int(np.searchsorted(ends, position, side="right"))
            batch = splits[number].batch(int(position - ends[number]))  # a negative number counts from the end
            own_rows = np.array_split(batch, self.num_processes)[self.process_index]
            yield [(epoch, index) for index in own_rows.tolist()]

    def length_order(self, examples: np.ndarray, epoch: int) -> np.ndarray:
        """An order of examples by length, with every stratum in its share."""
        rng = np.random.default_rng([self.seed, epoch, int(examples[0])])
        return balanced_length_order(self.lengths[examples], self.strata[examples], rng)

    def draw(self, groups: Sequence[int], epoch: int) -> np.ndarray:
        """The next `count` examples of each group's endless sequence of permutations.

        A group drawn less than once per epoch thus shows all its examples before it repeats one.
        """
        return np.concatenate([self._draw_group(group, epoch) for group in groups])

    def _draw_group(self, group: int, epoch: int) -> np.ndarray:
        members = self.members[group]
        size = len(members)
        first_turn, start = divmod(epoch * self.counts[group], size)
        end = start + self.counts[group]
        turns = range(first_turn, first_turn + (end - 1) // size + 1)
        orders = [np.random.default_rng([self.seed, group, 1, turn]).permutation(size) for turn in turns]
        drawn: np.ndarray = members[np.concatenate(orders)[start:end]]
        return drawn


class _Split:
    """The batches of one sequence of examples; buckets are sorted by length when a batch first needs them."""

    def __init__(
        self,
        sampler: LengthBucketBatchSampler,
        groups: Sequence[int],
        epoch: int,
        rng: np.random.Generator,
    ) -> None:
        self.sampler = sampler
        self.epoch = epoch
        examples = sampler.draw(groups, epoch)
        shuffled = examples.astype(np.intp)  # numpy shuffles other types more slowly
        rng.shuffle(shuffled)
        self.examples = shuffled.astype(examples.dtype)
        num_examples = len(self.examples)

        size = sampler.global_batch
        self.width = size * BATCHES_PER_BUCKET
        self.is_sorted = np.full(-(-num_examples // self.width), not sampler.bucket)

        # Drop random examples, not always the longest ones of the last bucket.
        self.num_batches = sampler.num_batches(num_examples)
        dropped = np.sort(rng.permutation(num_examples)[self.num_batches * size :])
        self.used_before = dropped - np.arange(len(dropped))  # examples used before each dropped one

        # Inside a batch the order is random again: processes must not get the short and the long half.
        self.orders = np.tile(np.arange(size, dtype=np.min_scalar_type(size)), (self.num_batches, 1))
        rng.permuted(self.orders, axis=1, out=self.orders)

    def batch(self, number: int) -> np.ndarray:
        """The examples of a batch."""
        number %= self.num_batches
        start = number * self.orders.shape[1]
        end = min(start + self.orders.shape[1], len(self.examples))
        order = self.orders[number]
        order = order[order < end - start]
        order = order[: len(order) - len(order) % self.sampler.num_processes]  # each process gets as many
        used = np.arange(start, end)
        positions = used + np.searchsorted(self.used_before, used, side="right")

        for bucket in range(positions[0] // self.width, positions[-1] // self.width + 1):
            if not self.is_sorted[bucket]:
                of_bucket = self.examples[bucket * self.width : (bucket + 1) * self.width]
                of_bucket[:] = of_bucket[self.sampler.length_order(of_bucket, self.epoch)]
                self.is_sorted[bucket] = True
        examples: np.ndarray = self.examples[positions[order]]
        return examples


class TaskKey(NamedTuple):
    """An example of one of several datasets: its task, and its key in the task's own sampler."""

    task: str
    key: Any


def endless_batches(sampler: LengthBucketBatchSampler, start: int = 0) -> Iterator[list[Any]]:
    """The batches of all epochs, from the one of number `start` on, counted from epoch 0."""
    first, skipped = divmod(start, len(sampler))
    for epoch in count(first):
        sampler.set_epoch(epoch)
        yield from islice(sampler, skipped, None)
        skipped = 0


class MultiTaskBatchSampler(Sampler[list[TaskKey]]):
    """Batches of several tasks: each has one batch of the main task, which sets the epoch, and one of every other.

    Batch `b` of epoch `e` takes batch `e * len(main) + b` of every other task, whose epochs are independent. It is thus a
    function of epoch and number: skipping the first `n` batches resumes exactly.
    """

    def __init__(self, main: LengthBucketBatchSampler, others: Mapping[str, LengthBucketBatchSampler]) -> None:
        self.main = main
        self.others = dict(others)
        self.batch_size = main.batch_size
        self.drop_last = main.drop_last
        self.epoch = 0

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


class MultiTaskDataset(Dataset[dict[str, Any]]):
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
        return fetch_by_group([task for task, _ in keys], [key for _, key in keys], self._fetch)

    def _fetch(self, task: str, keys: Sequence[Any]) -> list[dict[str, Any]]:
        """The features of one task."""
        return [{TASK: task, **feature} for feature in self.datasets[task].__getitems__(keys)]


def fetch_by_group(
    groups: Sequence[Hashable],
    items: Sequence[Any],
    fetch: Callable[[Any, list[Any]], Sequence[Any]],
) -> list[Any]:
    """What `fetch` returns for items, in their order; it is called once for each group, with the items of the group.

    Examples:
        >>> fetch_by_group(["en", "de", "en"], [1, 2, 3], lambda group, items: [f"{group} {item}" for item in items])
        ['en 1', 'de 2', 'en 3']
    """
    positions_of: dict[Hashable, list[int]] = {}
    for position, group in enumerate(groups):
        positions_of.setdefault(group, []).append(position)

    results: list[Any] = [None] * len(items)
    for group, positions in positions_of.items():
        fetched = fetch(group, [items[position] for position in positions])
        for position, result in zip(positions, fetched, strict=True):
            results[position] = result
    return results


class MultiTaskCollator:
    """Collates each task separately, the main one first; the tensors of all others are prefixed with `TASK_`."""

    def __init__(self, collators: Mapping[str, Callable[[list[dict[str, Any]]], Mapping[str, Any]]]) -> None:
        self.collators = _first_is_main(collators)

    @property
    def max_length(self) -> int:
        length: int = self.collators[MAIN].max_length
        return length

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, Any]:
        features_of: dict[str, list[dict[str, Any]]] = {}
        for feature in features:
            features_of.setdefault(feature[TASK], []).append(feature)

        batch: dict[str, Any] = {}
        for task, task_features in features_of.items():
            prefix = "" if task == MAIN else f"{task}_"
            for name, value in self.collators[task](task_features).items():
                batch[f"{prefix}{name}"] = value
        return batch


def _first_is_main(tasks: Mapping[str, Any]) -> dict[str, Any]:
    """The first task under `MAIN`, the others under their names."""
    first, *others = tasks.items()
    return {MAIN: first[1], **dict(others)}
