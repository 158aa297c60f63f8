"""Mixing of languages and batching by length, as a function of seed and epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from hf_xlsr.data.tokenization import smoothed_shares
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

MIXINGS = ("proportional", "equal", "temperature")
# Number of batches whose examples are sorted by length together: large for little padding, small for random batches.
BATCHES_PER_BUCKET = 50

ExampleKey = tuple[int, int]


class Batching:
    """How batches are made of rows, stored or streamed.

    Args:
        batch_size: Rows per batch and process; `batch_option` is its name in errors.
        mixing: `proportional` (each row once), `equal` (the same number from each group) or `temperature` (shares
            proportional to `n ** exponent`).
        homogeneous: Fill each global batch from one language pair or language; smaller ones are skipped, with a warning.
        bucket: Sort by length; otherwise batches are random.
        num_processes: Each takes its slice of every global batch: two of 64 see the batches of one process of 128.
        contrast: Whether a loss compares the rows of a batch, which needs two.
    """

    def __init__(
        self,
        batch_size: int,
        *,
        mixing: str = "proportional",
        exponent: float = 0.3,
        homogeneous: bool = False,
        bucket: bool = True,
        seed: int = 1,
        num_processes: int = 1,
        process_index: int = 0,
        batch_option: str = "per_device_train_batch_size",
        contrast: bool = True,
    ) -> None:
        self.batch_size, self.global_batch = batch_size, batch_size * num_processes
        self.mixing, self.exponent, self.homogeneous = mixing, exponent, homogeneous
        self.bucket, self.seed = bucket, seed
        self.num_processes, self.process_index, self.batch_option = num_processes, process_index, batch_option
        self.own = slice(process_index * batch_size, (process_index + 1) * batch_size)
        if contrast and self.global_batch < 2:
            raise XlsrError(f"{batch_option} must be above 1: a batch of one pair has no negatives.")


def mixing_power(mixing: str, exponent: float) -> float:
    """The power of a group's size to which its share is proportional."""
    return {"proportional": 1.0, "equal": 0.0, "temperature": exponent}[mixing]


def group_counts(sizes: Sequence[int], mixing: str = "proportional", exponent: float = 0.3) -> list[int]:
    """How many examples of each group an epoch draws; the sum is the number of all examples."""
    total = sum(sizes)
    shares = smoothed_shares({str(index): size for index, size in enumerate(sizes)}, mixing_power(mixing, exponent))
    exact = [shares[str(index)] * total for index in range(len(sizes))]
    counts = [int(value) for value in exact]
    # The largest remainders get the examples lost by rounding down.
    for index in sorted(range(len(sizes)), key=lambda i: exact[i] - counts[i], reverse=True)[: total - sum(counts)]:
        counts[index] += 1
    return counts


def balanced_length_order(
    lengths: np.ndarray, strata: np.ndarray, rng: Callable[[], np.random.Generator]
) -> np.ndarray:
    """An order by length, as indices `(n,)`, in which every stretch holds each stratum in its share.

    The place of an example is its rank by length within its stratum, as a share of the stratum. The strata in a stretch
    are thus at the same quantile of their lengths. `rng` gives the generator that breaks ties between strata.
    """
    order = np.argsort(lengths, kind="stable")
    _, strata, sizes = np.unique(strata[order], return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        return order
    ranks = np.empty(len(order))
    ranks[np.argsort(strata, kind="stable")] = np.concatenate([np.arange(size) for size in sizes])
    return order[np.argsort((ranks + rng().random(len(order))) / sizes[strata], kind="stable")]


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
        self.drop_last = True  # every batch is full: the in-batch losses compare rows over processes
        self.epoch = 0
        if len(self.lengths) < self.global_batch:
            raise XlsrError(
                f"the training data has {len(self.lengths):,} examples, fewer than one batch of {self.global_batch:,}; "
                f"lower {self.batch_option}."
            )
        groups = np.zeros(len(lengths), dtype=np.int8) if groups is None else np.asarray(groups)
        self.strata = groups if strata is None else strata
        index_type = np.int32 if len(groups) < 2**31 else np.int64
        self.members = [np.flatnonzero(groups == group).astype(index_type) for group in range(groups.max() + 1)]
        self.counts = group_counts([len(members) for members in self.members], self.mixing, self.exponent)
        if self.homogeneous:
            self._skip_small()

    def _skip_small(self) -> None:
        """Draws no example of the groups that fill no batch."""
        filled = [group for group, count in enumerate(self.counts) if count]  # a group may have no examples
        small = [group for group in filled if self.counts[group] < self.global_batch]
        lost = sum(self.counts[group] for group in small)
        if small == filled:
            raise XlsrError(
                f"homogeneous_batches: no language pair has the {self.global_batch:,} examples per epoch of one batch; "
                f"lower {self.batch_option} or use another mixing."
            )
        for group in small:
            self.counts[group] = 0
        if small and self.process_index == 0:
            logger.warning(
                "%d of %d language pairs (%s examples) are skipped: each has fewer than the %s of one batch.",
                len(small),
                len(filled),
                f"{lost:,}",
                f"{self.global_batch:,}",
            )

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch that the next iteration yields."""
        self.epoch = epoch

    def __len__(self) -> int:
        if self.homogeneous:
            return sum(count // self.global_batch for count in self.counts)
        return sum(self.counts) // self.global_batch

    def __iter__(self) -> Iterator[list[ExampleKey]]:
        epoch = self.epoch
        rng = np.random.default_rng([self.seed, epoch])
        drawn = [group for group, count in enumerate(self.counts) if count]
        order = partial(self._order, epoch) if self.bucket else None
        splits = [
            _Split(partial(self._draw, groups, epoch), order, self.global_batch, rng)
            for groups in ([[group] for group in drawn] if self.homogeneous else [drawn])
        ]
        ends = np.cumsum([len(split.orders) for split in splits])
        for position in rng.permutation(ends[-1]):
            part = int(np.searchsorted(ends, position, side="right"))
            batch = splits[part].batch(int(position - ends[part]))  # a negative number counts from the end
            yield [(epoch, index) for index in batch[self.own].tolist()]

    def _order(self, epoch: int, examples: np.ndarray) -> np.ndarray:
        """The order by length of a bucket's examples."""
        seed = partial(np.random.default_rng, [self.seed, epoch, int(examples[0])])
        return balanced_length_order(self.lengths[examples], self.strata[examples], seed)

    def _draw(self, groups: Sequence[int], epoch: int) -> np.ndarray:
        """The next `count` examples of each group's endless sequence of permutations.

        A group drawn less than once per epoch thus shows all its examples before it repeats one.
        """
        drawn = []
        for group in groups:
            members, count = self.members[group], self.counts[group]
            start, size = epoch * count, len(members)
            rounds = range(start // size, (start + count - 1) // size + 1)
            orders = [np.random.default_rng([self.seed, group, 1, turn]).permutation(size) for turn in rounds]
            order = orders[0] if len(orders) == 1 else np.concatenate(orders)
            drawn.append(members[order[start % size : start % size + count]])
        return drawn[0] if len(drawn) == 1 else np.concatenate(drawn)


class _Split:
    """The batches of one sequence of examples; buckets are sorted by length when a batch first needs them.

    All random numbers are drawn at once, so that the order of use does not matter.
    """

    def __init__(
        self,
        draw: Callable[[], np.ndarray],
        order: Callable[[np.ndarray], np.ndarray] | None,
        size: int,
        rng: np.random.Generator,
    ) -> None:
        examples = draw()
        kept_type, examples = examples.dtype, examples.astype(np.intp)  # numpy shuffles other types more slowly
        rng.shuffle(examples)
        self.examples, self.order, self.size = examples.astype(kept_type), order, size
        del examples
        self.width = size * BATCHES_PER_BUCKET
        self.sorted = np.zeros(-(-len(self.examples) // self.width), dtype=bool)
        whole = len(self.examples) // size
        # Drop from random places, not always the longest examples of the last bucket.
        dropped = np.sort(rng.permutation(len(self.examples))[whole * size :])
        self.kept_before = dropped - np.arange(len(dropped))  # examples kept before each dropped one
        # Inside a batch the order is random again: processes must not get the short and the long half.
        self.orders = np.tile(np.arange(size, dtype=np.min_scalar_type(size)), (whole, 1))
        rng.permuted(self.orders, axis=1, out=self.orders)

    def batch(self, number: int) -> np.ndarray:
        """The examples of a batch."""
        kept = np.arange(self.size) + number % len(self.orders) * self.size
        places = kept + np.searchsorted(self.kept_before, kept, side="right")
        for bucket in range(places[0] // self.width, places[-1] // self.width + 1):
            if self.order is not None and not self.sorted[bucket]:
                examples = self.examples[bucket * self.width : (bucket + 1) * self.width]
                examples[:] = examples[self.order(examples)]
                self.sorted[bucket] = True
        return self.examples[places[self.orders[number]]]
