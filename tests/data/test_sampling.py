from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from accelerate.data_loader import SkipBatchSampler
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.sampling import (
    MAIN,
    LengthBucketBatchSampler,
    MultiTaskBatchSampler,
    MultiTaskCollator,
    MultiTaskDataset,
    TaskKey,
    group_counts,
)
from hf_xlsr.utils.errors import XlsrError

MIXING = st.sampled_from(["proportional", "equal", "temperature"])


def epoch_of(sampler: LengthBucketBatchSampler, epoch: int) -> list[list[int]]:
    sampler.set_epoch(epoch)
    return [[index for _, index in batch] for batch in sampler]


def joined(shares: list[list[Any]]) -> list[list[Any]]:
    """Batches of all processes."""
    return [list(chain(*batch_shares)) for batch_shares in zip(*shares, strict=True)]


def naive_order(lengths: list[int], strata: list[int], rng: np.random.Generator) -> list[int]:
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    if len(set(strata)) == 1:
        return order

    shares = []
    for index in order:
        members = [member for member in order if strata[member] == strata[index]]
        shares.append((members.index(index) + rng.random()) / len(members))

    ordered = sorted(zip(shares, order, strict=True))
    return [index for _, index in ordered]


def naive_draw(sampler: LengthBucketBatchSampler, groups: np.ndarray, group: int, epoch: int) -> np.ndarray:
    """The epoch's examples of a group, of all its permutations up to this epoch."""
    members = np.flatnonzero(groups == group)
    count = sampler.counts[group]
    start = epoch * count
    drawn = members[:0]
    turn = 0
    while len(drawn) < start + count:
        rng = np.random.default_rng([sampler.seed, group, 1, turn])
        drawn = np.concatenate([drawn, rng.permutation(members)])
        turn += 1
    return drawn[start : start + count]


def naive_epoch(sampler: LengthBucketBatchSampler, lengths: list[int], groups: np.ndarray, epoch: int) -> list[Any]:
    """The batches of all processes, with all examples sorted, split and permuted at once."""
    rng = np.random.default_rng([sampler.seed, epoch])
    size = sampler.global_batch

    def sort(bucket: np.ndarray) -> np.ndarray:
        bucket_rng = np.random.default_rng([sampler.seed, epoch, bucket[0]])
        bucket_lengths = [lengths[index] for index in bucket]
        order = naive_order(bucket_lengths, groups[bucket].tolist(), bucket_rng)
        return bucket[order]

    def split(examples: np.ndarray) -> list[np.ndarray]:
        examples = rng.permutation(examples)
        if sampler.bucket:
            buckets = np.split(examples, range(50 * size, len(examples), 50 * size))
            examples = np.concatenate(list(map(sort, buckets)))

        num_batches = len(examples) // size
        used = np.sort(rng.permutation(len(examples))[: num_batches * size])
        return [rng.permutation(batch) for batch in np.split(examples[used], num_batches)]

    drawn = [naive_draw(sampler, groups, group, epoch) for group in range(len(sampler.counts))]
    if not sampler.homogeneous:
        drawn = [np.concatenate(drawn)]
    batches = []
    for examples in drawn:
        if len(examples):
            batches += split(examples)
    return [batches[number].tolist() for number in rng.permutation(len(batches))]


@settings(max_examples=60)
@given(
    st.integers(20, 1500),
    st.integers(1, 4),
    MIXING,
    st.booleans(),
    st.booleans(),
    st.integers(1, 2),
    st.integers(0, 3),
)
def test_lazy_batches_equal_naive_ones(
    count: int, num_groups: int, mixing: str, homogeneous: bool, bucket: bool, processes: int, epoch: int
) -> None:
    rng = np.random.default_rng(count)
    lengths = rng.integers(1, 300, count).tolist()
    groups = rng.integers(0, num_groups, count)
    shares = []
    for rank in range(processes):
        sampler = LengthBucketBatchSampler(
            lengths,
            2,
            seed=count,
            groups=groups,
            mixing=mixing,
            homogeneous=homogeneous,
            bucket=bucket,
            num_processes=processes,
            process_index=rank,
        )
        shares.append(epoch_of(sampler, epoch))

    batches = joined(shares)
    assert batches == naive_epoch(sampler, lengths, groups, epoch)
    assert len(batches) == len(sampler)


def test_every_batch_holds_every_stratum_in_its_share() -> None:
    rng = np.random.default_rng(0)
    strata = np.repeat(np.arange(6), [2000, 1500, 1000, 300, 150, 50])
    mean_lengths = np.array([20, 10, 40, 8, 60, 15])[strata]
    lengths = rng.poisson(mean_lengths) + 1
    batches = np.array(epoch_of(LengthBucketBatchSampler(lengths, 100, strata=strata), 0))

    expected = np.bincount(strata) / 50
    is_first = strata == 0
    deviations = []
    for batch in batches:
        counts = np.bincount(strata[batch], minlength=6)
        assert np.abs(counts - expected).max() < 4
        first = batch[is_first[batch]]
        deviations.append(lengths[first].std())
    assert np.mean(deviations) < lengths[is_first].std() / 10


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6), MIXING)
@settings(max_examples=50)
def test_group_counts_add_up(sizes: list[int], mixing: str) -> None:
    counts = group_counts(sizes, mixing)
    assert sum(counts) == sum(sizes)
    assert min(counts) >= 0
    if mixing == "proportional":
        assert counts == sizes


def test_group_counts_by_temperature() -> None:
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


@settings(max_examples=40)
@given(SIZES, SIZES, st.integers(0, 4), st.data())
def test_skipping_resumes_with_the_tail(main: int, other: int, epoch: int, data: st.DataObject) -> None:
    whole = keys_of_epoch(make(main, other), epoch)
    skipped = data.draw(st.integers(0, len(whole)))
    resumed = make(main, other)
    resumed.set_epoch(epoch)

    assert list(SkipBatchSampler(resumed, skipped)) == whole[skipped:]
    assert keys_of_epoch(resumed, epoch + 1) == keys_of_epoch(make(main, other), epoch + 1)


@settings(max_examples=40)
@given(SIZES, SIZES, st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_each_task_continues_over_epochs(main: int, other: int, epochs: list[int]) -> None:
    """Whatever epochs were asked for before: the other task's batches are those of its own epochs in a row."""
    sampler = make(main, other)
    alone = make(main, other)
    nli = alone.others["nli"]
    num_batches = (max(epochs) + 1) * len(sampler)
    in_a_row: list[Any] = []
    for epoch in range(num_batches // len(nli) + 1):
        in_a_row += keys_of_epoch(nli, epoch)

    for epoch in epochs:
        batches = keys_of_epoch(sampler, epoch)
        start = epoch * len(sampler)
        assert [keys_of(batch, MAIN) for batch in batches] == keys_of_epoch(alone.main, epoch)
        assert [keys_of(batch, "nli") for batch in batches] == in_a_row[start : start + len(sampler)]
        for batch in batches:
            assert len(keys_of(batch, "single")) == 4


class Words:
    """Rows that each hold one text and their number."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __getitems__(self, keys: list[tuple[int, int]]) -> list[dict[str, Any]]:
        return [{"text": f"{self.word} {index}"} for _, index in keys]


def test_each_task_is_fetched_and_collated_separately() -> None:
    def collate(features: list[dict[str, Any]]) -> dict[str, Any]:
        return {"texts": [feature["text"] for feature in features]}

    keys = [TaskKey(MAIN, (0, 3)), TaskKey("nli", (0, 1)), TaskKey(MAIN, (0, 2))]
    dataset = MultiTaskDataset({"pairs": Words("pair"), "nli": Words("nli")})

    features = dataset.__getitems__(keys)
    assert [feature["text"] for feature in features] == ["pair 3", "nli 1", "pair 2"]

    batch = MultiTaskCollator({"pairs": collate, "nli": collate})(features)
    assert batch == {"texts": ["pair 3", "pair 2"], "nli_texts": ["nli 1"]}


@settings(max_examples=60)
@given(rows=st.integers(1, 300), batch_size=st.integers(1, 9), processes=st.integers(1, 3), groups=st.integers(1, 4))
def test_without_contrast_every_row_is_in_an_epoch_once(
    rows: int, batch_size: int, processes: int, groups: int
) -> None:
    """Only one batch is smaller; processes share each equally, and what they cannot share is left out."""
    lengths = np.random.default_rng(rows).integers(1, 30, rows)
    options: dict[str, Any] = {"contrast": False, "num_processes": processes, "groups": np.arange(rows) % groups}
    if rows < processes:
        with pytest.raises(XlsrError, match="per_device_train_batch_size"):
            LengthBucketBatchSampler(lengths, batch_size, **options)
        return

    shares = []
    sizes = set()
    for rank in range(processes):
        share = list(LengthBucketBatchSampler(lengths, batch_size, process_index=rank, **options))
        shares.append(share)
        sizes.add(tuple(map(len, share)))
    assert len(sizes) == 1

    batches = joined(shares)
    keys = list(chain(*batches))
    global_batch = batch_size * processes
    left_out = rows % global_batch % processes
    assert len(set(keys)) == len(keys) == rows - left_out
    assert sorted(map(len, batches))[1:] == [global_batch] * (len(batches) - 1)
