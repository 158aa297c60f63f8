"""Mixing of languages and batching by length, as a function of seed and epoch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from hf_xlsr.data.tokenization import smoothed_shares
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

MIXINGS = ("proportional", "equal", "temperature")
# Number of batches whose examples are sorted by length together: large for little padding, small for random batches.
BATCHES_PER_BUCKET = 50

ExampleKey = tuple[int, int]


def group_counts(sizes: Sequence[int], mixing: str = "proportional", exponent: float = 0.3) -> list[int]:
    """How many examples of each group an epoch draws; the sum is the number of all examples.

    Args:
        sizes: Examples in each group (language or language pair).
        mixing: `proportional` (each example once), `equal` (the same number from each group) or `temperature` (shares
            proportional to `n ** exponent`).
        exponent: Exponent of `temperature`.

    Example:
        >>> group_counts([900, 100], "equal")
        [500, 500]
    """
    power = {"proportional": 1.0, "equal": 0.0, "temperature": exponent}[mixing]
    total = sum(sizes)
    shares = smoothed_shares({str(index): size for index, size in enumerate(sizes)}, power)
    exact = [shares[str(index)] * total for index in range(len(sizes))]
    counts = [int(value) for value in exact]
    # The largest remainders get the examples lost by rounding down.
    for index in sorted(range(len(sizes)), key=lambda i: exact[i] - counts[i], reverse=True)[: total - sum(counts)]:
        counts[index] += 1
    return counts


class LengthBucketBatchSampler(Sampler[list[ExampleKey]]):
    """Batches of examples of similar length, in random order, split over processes.

    An epoch is a pure function of `(seed, epoch)`: examples are drawn (each group without repetition until it is used
    up), shuffled, split into buckets of 50 batches, sorted by length inside a bucket, split into global batches, which
    are shuffled. Each process takes its slice of every global batch, so two processes of 64 see the batches of one
    process of 128. There is no other state: skipping the first `n` batches resumes exactly.

    It yields `(epoch, index)` pairs, so that all random draws of an example (its mask) depend on the example and the
    epoch, not on the worker that loads it.

    Args:
        lengths: Length of each example in tokens.
        batch_size: Examples per batch and process.
        groups: Group of each example, `0 .. n - 1`; one group when absent.
        mixing: See `group_counts`.
        exponent: See `group_counts`.
        homogeneous: Fill each global batch from one group; groups smaller than one batch are skipped, with a warning that
            counts them.
        bucket: Sort by length inside buckets; otherwise batches are random.
        seed: Seed of the run.
        num_processes: Processes that train together.
        process_index: This one's rank.
        batch_option: Name of `batch_size` in errors.
        contrast: Whether a loss compares the examples of a batch, which needs two.

    Raises:
        XlsrError: no batch can be filled, or a batch has one example.

    Example:
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
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.groups = np.zeros(len(self.lengths), dtype=np.int64) if groups is None else np.asarray(groups)
        self.batch_size, self.global_batch = batch_size, batch_size * num_processes
        self.homogeneous, self.bucket, self.seed = homogeneous, bucket, seed
        self.num_processes, self.process_index = num_processes, process_index
        self.drop_last = True  # every batch is full: the in-batch losses compare rows over processes
        self.epoch = 0
        if contrast and self.global_batch < 2:
            raise XlsrError(f"{batch_option} must be above 1: a batch of one pair has no negatives.")
        if len(self.lengths) < self.global_batch:
            raise XlsrError(
                f"the training data has {len(self.lengths):,} examples, fewer than one batch of {self.global_batch:,}; "
                f"lower {batch_option}."
            )
        self.members = [np.flatnonzero(self.groups == group) for group in range(int(self.groups.max()) + 1)]
        self.counts = group_counts([len(members) for members in self.members], mixing, exponent)
        if homogeneous:
            self._skip_small(batch_option)

    def _skip_small(self, batch_option: str) -> None:
        """Draws no example of the groups that fill no batch."""
        filled = [group for group, count in enumerate(self.counts) if count]  # a group may have no examples
        small = [group for group in filled if self.counts[group] < self.global_batch]
        lost = sum(self.counts[group] for group in small)
        if small == filled:
            raise XlsrError(
                f"homogeneous_batches: no language pair has the {self.global_batch:,} examples per epoch of one batch; "
                f"lower {batch_option} or use another mixing."
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
        drawn = [
            self._draw(members, count, group, epoch)
            for group, (members, count) in enumerate(zip(self.members, self.counts, strict=True))
        ]
        if self.homogeneous:
            batches = [batch for examples in drawn if len(examples) for batch in self._split(examples, rng)]
        else:
            batches = self._split(np.concatenate(drawn), rng)
        for position in rng.permutation(len(batches)):
            mine = batches[position][self.process_index * self.batch_size : (self.process_index + 1) * self.batch_size]
            yield [(epoch, int(index)) for index in mine]

    def _draw(self, members: np.ndarray, count: int, group: int, epoch: int) -> np.ndarray:
        """The group's next `count` examples of its endless sequence of permutations.

        A group drawn less than once per epoch thus shows all its examples before it repeats one.
        """
        start, size = epoch * count, len(members)
        if not count:
            return members[:0]
        rounds = range(start // size, (start + count - 1) // size + 1)
        order = np.concatenate(
            [np.random.default_rng([self.seed, group, 1, turn]).permutation(size) for turn in rounds]
        )
        return members[order[start % size : start % size + count]]

    def _split(self, examples: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        examples = rng.permutation(examples)
        if self.bucket:
            width = self.global_batch * BATCHES_PER_BUCKET
            buckets = [examples[start : start + width] for start in range(0, len(examples), width)]
            examples = np.concatenate([bucket[np.argsort(self.lengths[bucket], kind="stable")] for bucket in buckets])
        whole = len(examples) // self.global_batch
        # Drop from random places, not always the longest examples of the last bucket.
        keep = np.sort(rng.permutation(len(examples))[: whole * self.global_batch])
        batches = np.split(examples[keep], whole) if whole else []
        # Inside a batch the order is random again: processes must not get the short and the long half.
        return [rng.permutation(batch) for batch in batches]
