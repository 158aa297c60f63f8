from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from accelerate.data_loader import SkipBatchSampler
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.sampling import MAIN, LengthBucketBatchSampler, MultiTaskBatchSampler, TaskKey, group_counts


def epoch_of(sampler: LengthBucketBatchSampler, epoch: int) -> list[list[int]]:
    sampler.set_epoch(epoch)
    return [[index for _, index in batch] for batch in sampler]


def naive_order(lengths: list[int], strata: list[int], rng: np.random.Generator) -> list[int]:
    order = sorted(range(len(lengths)), key=lambda place: lengths[place])
    if len(set(strata)) == 1:
        return order
    members = {stratum: [place for place in order if strata[place] == stratum] for stratum in set(strata)}
    own = [members[strata[place]] for place in order]
    shares = [(one.index(place) + rng.random()) / len(one) for one, place in zip(own, order, strict=True)]
    return [place for _, place in sorted(zip(shares, order, strict=True))]


def naive_epoch(sampler: LengthBucketBatchSampler, lengths: list[int], groups: np.ndarray, epoch: int) -> list[Any]:
    """The batches of all processes, with all examples sorted, split and permuted at once."""
    rng = np.random.default_rng([sampler.seed, epoch])

    def sort(bucket: np.ndarray) -> np.ndarray:
        own = np.random.default_rng([sampler.seed, epoch, bucket[0]])
        return bucket[naive_order(np.asarray(lengths)[bucket].tolist(), groups[bucket].tolist(), own)]

    drawn = []
    for group, count in enumerate(sampler.counts):
        members = np.flatnonzero(groups == group)
        turns = range(epoch * count // max(1, len(members)), (epoch + 1) * count // max(1, len(members)) + 1)
        endless = [np.random.default_rng([sampler.seed, group, 1, turn]).permutation(members) for turn in turns]
        start = epoch * count - turns[0] * len(members)
        drawn.append(np.concatenate(endless)[start : start + count])

    def split(examples: np.ndarray) -> list[np.ndarray]:
        examples, width = rng.permutation(examples), 50 * sampler.global_batch
        if sampler.bucket:
            buckets = [examples[start : start + width] for start in range(0, len(examples), width)]
            examples = np.concatenate([sort(bucket) for bucket in buckets])
        whole = len(examples) // sampler.global_batch
        keep = np.sort(rng.permutation(len(examples))[: whole * sampler.global_batch])
        return [rng.permutation(batch) for batch in np.split(examples[keep], whole)]

    parts = [part for part in drawn if len(part)] if sampler.homogeneous else [np.concatenate(drawn)]
    batches = [batch for part in parts for batch in split(part)]
    return [batches[place].tolist() for place in rng.permutation(len(batches))]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(20, 1500),
    st.integers(1, 4),
    st.sampled_from(["proportional", "equal", "temperature"]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 2),
    st.integers(0, 3),
)
def test_lazy_batches_equal_naive_ones(
    count: int, num_groups: int, mixing: str, homogeneous: bool, bucket: bool, processes: int, epoch: int
) -> None:
    rng = np.random.default_rng(count)
    lengths, groups = rng.integers(1, 300, count).tolist(), rng.integers(0, num_groups, count)
    options: dict[str, Any] = {"groups": groups, "mixing": mixing, "homogeneous": homogeneous, "bucket": bucket}
    samplers = [
        LengthBucketBatchSampler(lengths, 2, seed=count, num_processes=processes, process_index=rank, **options)
        for rank in range(processes)
    ]
    found = [sum(parts, []) for parts in zip(*(epoch_of(one, epoch) for one in samplers), strict=True)]
    assert found == naive_epoch(samplers[0], lengths, groups, epoch)
    assert len(found) == len(samplers[0])


def test_every_batch_holds_every_stratum_in_its_share() -> None:
    rng = np.random.default_rng(0)
    strata = np.repeat(np.arange(6), [2000, 1500, 1000, 300, 150, 50])
    lengths = rng.poisson(np.array([20, 10, 40, 8, 60, 15])[strata]) + 1
    batches = epoch_of(LengthBucketBatchSampler(lengths, 100, strata=strata), 0)
    shares = np.array([np.bincount(strata[batch], minlength=6) for batch in batches])
    assert np.abs(shares - np.bincount(strata) / 50).max() < 4
    within = [lengths[np.array(batch)[strata[batch] == 0]] for batch in batches]
    assert np.mean([part.std() for part in within]) < lengths[strata == 0].std() / 10


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=6), st.sampled_from(["proportional", "equal", "temperature"])
)
@settings(max_examples=50, deadline=None)
def test_group_counts_add_up(sizes: list[int], mixing: str) -> None:
    counts = group_counts(sizes, mixing)
    assert sum(counts) == sum(sizes) and min(counts) >= 0
    if mixing == "proportional":
        assert counts == sizes
    assert group_counts([900, 100], "temperature") == [659, 341]  # 900 ** 0.3 to 100 ** 0.3


# Several tasks.

SIZES = st.integers(4, 60)


def make(main: int, other: int) -> MultiTaskBatchSampler:
    """Pairs, and two other tasks of which the second has one batch an epoch."""

    def sampler(count: int, size: int, seed: int) -> LengthBucketBatchSampler:
        return LengthBucketBatchSampler([5 + i % 3 for i in range(count)], size, seed=seed)

    return MultiTaskBatchSampler(sampler(main, 2, 1), {"nli": sampler(other, 3, 2), "single": sampler(4, 4, 3)})


def keys_of_epoch(sampler: Any, epoch: int) -> list[list[TaskKey]]:
    sampler.set_epoch(epoch)
    return list(sampler)


def keys_of(batch: list[TaskKey], task: str) -> list[Any]:
    return [key for name, key in batch if name == task]


@settings(max_examples=40, deadline=None)
@given(SIZES, SIZES, st.integers(0, 4), st.data())
def test_skipping_resumes_with_the_tail(main: int, other: int, epoch: int, data: st.DataObject) -> None:
    whole = keys_of_epoch(make(main, other), epoch)
    skipped = data.draw(st.integers(0, len(whole)))
    resumed = make(main, other)
    resumed.set_epoch(epoch)
    assert list(SkipBatchSampler(resumed, skipped)) == whole[skipped:]
    assert keys_of_epoch(resumed, epoch + 1) == keys_of_epoch(make(main, other), epoch + 1)


@settings(max_examples=40, deadline=None)
@given(SIZES, SIZES, st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_each_task_continues_over_epochs(main: int, other: int, epochs: list[int]) -> None:
    """Whatever epochs were asked for before: the other task's batches are those of its own epochs in a row."""
    sampler, alone = make(main, other), make(main, other)
    needed = (max(epochs) + 1) * len(sampler)
    nli = alone.others["nli"]
    in_a_row = list(chain.from_iterable(keys_of_epoch(nli, epoch) for epoch in range(needed // len(nli) + 1)))
    for epoch in epochs:
        batches = keys_of_epoch(sampler, epoch)
        assert [keys_of(batch, MAIN) for batch in batches] == keys_of_epoch(alone.main, epoch)
        start = epoch * len(sampler)
        assert [keys_of(batch, "nli") for batch in batches] == in_a_row[start : start + len(sampler)]
        assert [len(keys_of(batch, "single")) for batch in batches] == [4] * len(sampler)
