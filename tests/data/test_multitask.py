from __future__ import annotations

from itertools import chain
from typing import Any

from accelerate.data_loader import SkipBatchSampler
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.sampling import (
    MAIN,
    LengthBucketBatchSampler,
    MultiTaskBatchSampler,
    TaskKey,
)

SIZES = st.integers(4, 60)


def make(main: int, other: int) -> MultiTaskBatchSampler:
    """Pairs, and two other tasks of which the second has one batch an epoch."""

    def sampler(count: int, size: int, seed: int) -> LengthBucketBatchSampler:
        return LengthBucketBatchSampler([5 + i % 3 for i in range(count)], size, seed=seed)

    return MultiTaskBatchSampler(sampler(main, 2, 1), {"nli": sampler(other, 3, 2), "single": sampler(4, 4, 3)})


def epoch_of(sampler: Any, epoch: int) -> list[list[TaskKey]]:
    sampler.set_epoch(epoch)
    return list(sampler)


def keys_of(batch: list[TaskKey], task: str) -> list[Any]:
    return [key for name, key in batch if name == task]


@settings(max_examples=40, deadline=None)
@given(SIZES, SIZES, st.integers(0, 4), st.data())
def test_skipping_resumes_with_the_tail(main: int, other: int, epoch: int, data: st.DataObject) -> None:
    whole = epoch_of(make(main, other), epoch)
    skipped = data.draw(st.integers(0, len(whole)))
    resumed = make(main, other)
    resumed.set_epoch(epoch)
    assert list(SkipBatchSampler(resumed, skipped)) == whole[skipped:]
    assert epoch_of(resumed, epoch + 1) == epoch_of(make(main, other), epoch + 1)


@settings(max_examples=40, deadline=None)
@given(SIZES, SIZES, st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_each_task_continues_over_epochs(main: int, other: int, epochs: list[int]) -> None:
    """Whatever epochs were asked for before: the other task's batches are those of its own epochs in a row."""
    sampler, alone = make(main, other), make(main, other)
    needed = (max(epochs) + 1) * len(sampler)
    nli = alone.others["nli"]
    in_a_row = list(chain.from_iterable(epoch_of(nli, epoch) for epoch in range(needed // len(nli) + 1)))
    for epoch in epochs:
        batches = epoch_of(sampler, epoch)
        assert [keys_of(batch, MAIN) for batch in batches] == epoch_of(alone.main, epoch)
        start = epoch * len(sampler)
        assert [keys_of(batch, "nli") for batch in batches] == in_a_row[start : start + len(sampler)]
        assert [len(keys_of(batch, "single")) for batch in batches] == [4] * len(sampler)
