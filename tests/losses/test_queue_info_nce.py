from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import Pairs, naive_info_nce, unit_rows, value_and_gradients, watched

from hf_xlsr.losses import QuantizedRows, matching_pairs, quantize_rows, queue_info_nce


def random_pairs(batch_size: int, columns: int, share: float, seed: int) -> Pairs:
    """Some pairs in no order, one of them twice."""
    generator = torch.Generator().manual_seed(seed)
    pairs = (torch.rand(batch_size, columns, generator=generator) < share).nonzero()
    pairs = torch.cat([pairs, pairs[:1]])[torch.randperm(len(pairs) + len(pairs[:1]), generator=generator)]
    return pairs[:, 0], pairs[:, 1]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    batch_size=st.integers(1, 6),
    width=st.integers(1, 7),
    queue_rows=st.integers(0, 40),
    others=st.none() | st.integers(0, 9),
    chunk_size=st.integers(1, 45) | st.none(),
    temperature=st.sampled_from([1e-3, 0.01, 0.04, 1.0, 1e3]),
    masked_share=st.sampled_from([None, 0.0, 0.2, 0.9, 1.0]),
)
def test_equals_the_naive_loss(
    seed: int,
    batch_size: int,
    width: int,
    queue_rows: int,
    others: int | None,
    chunk_size: int | None,
    temperature: float,
    masked_share: float | None,
) -> None:
    queries, keys = unit_rows(batch_size, width, seed), unit_rows(batch_size, width, seed + 1)
    queue = unit_rows(queue_rows, width, seed + 2)
    other_keys = None if others is None else unit_rows(others, width, seed + 3)
    columns = queue_rows + (others or 0)
    masked = None if masked_share is None else random_pairs(batch_size, columns, masked_share, seed)
    options: dict[str, Any] = {"temperature": temperature, "other_keys": other_keys, "masked": masked}
    found = value_and_gradients(queue_info_nce, [queries, keys], queue, chunk_size=chunk_size, **options)
    expected = value_and_gradients(naive_info_nce, [queries, keys], queue, **options)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("storage", ["float32", "float64", "bfloat16", "float16", "int8"])
def test_storages_equal_the_naive_loss(storage: str) -> None:
    queries, keys, rows = unit_rows(5, 8, 0), unit_rows(5, 8, 1), unit_rows(23, 8, 2)
    queue: torch.Tensor | QuantizedRows
    if storage == "int8":
        queue = quantize_rows(rows)
        held = queue.dequantize(torch.empty_like(rows))
    else:
        queue = rows.to(getattr(torch, storage))
        held = queue.double()
    options: dict[str, Any] = {"other_keys": unit_rows(9, 8, 3, torch.float32)}
    found = value_and_gradients(queue_info_nce, [queries, keys], queue, chunk_size=7, **options)
    for one, twin in zip(found, value_and_gradients(naive_info_nce, [queries, keys], held, **options), strict=True):
        torch.testing.assert_close(one, twin, rtol=1e-10, atol=1e-10)
    single = value_and_gradients(queue_info_nce, [queries.float(), keys.float()], queue, chunk_size=7, **options)
    for one, twin in zip(single, found, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, twin.float(), rtol=1e-4, atol=1e-5)


def test_queue_may_change_before_backward() -> None:
    leaves = [unit_rows(4, 5, seed).requires_grad_() for seed in (0, 1)]
    queue, other = unit_rows(9, 5, 2), unit_rows(6, 5, 3)
    both = queue_info_nce(leaves[0], leaves[1], queue, chunk_size=4) + queue_info_nce(leaves[1], leaves[0], other)
    expected = naive_info_nce(leaves[0], leaves[1], queue.clone()) + naive_info_nce(leaves[1], leaves[0], other)
    wanted = torch.autograd.grad(expected, leaves)
    queue.fill_(math.nan)
    for slope, twin in zip(torch.autograd.grad(3 * both, leaves), wanted, strict=True):
        torch.testing.assert_close(slope, 3 * twin, rtol=1e-10, atol=1e-10)


def test_batch_times_queue_is_never_held() -> None:
    batch_size, width, queue_rows, chunk_size = 32, 8, 3000, 100
    queries = unit_rows(batch_size, width, 0, torch.float32).requires_grad_()
    keys, rows = unit_rows(batch_size, width, 1, torch.float32), unit_rows(queue_rows, width, 2, torch.float32)
    masked = matching_pairs(torch.arange(batch_size), torch.arange(queue_rows) // 2)
    for queue in (rows, rows.bfloat16(), quantize_rows(rows)):
        for bfloat16 in (False, True):
            with watched() as seen, torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                queue_info_nce(queries, keys, queue, masked=masked, chunk_size=chunk_size).backward()
            assert max(size for _, size in seen) == batch_size * chunk_size
            assert sum(name == "aten.mm.out" for name, _ in seen) == 2 * queue_rows / chunk_size
    with watched() as seen, torch.no_grad():
        queue_info_nce(queries, keys, rows, chunk_size=chunk_size)
    assert sum(name == "aten.mm.out" for name, _ in seen) == queue_rows / chunk_size


@settings(max_examples=100, deadline=None)
@given(
    ids=st.lists(st.sampled_from([-(2**63), -5, 0, 1, 2, 65536, 65537, 2**40, 2**63 - 1]), max_size=8),
    queue_ids=st.lists(st.sampled_from([-(2**63), -5, 0, 1, 2, 3, 65536, 2**40, 2**63 - 1]), max_size=20),
)
def test_matching_pairs(ids: list[int], queue_ids: list[int]) -> None:
    tensors = (torch.tensor(values, dtype=torch.int64) for values in (ids, queue_ids))
    rows, columns = matching_pairs(*tensors)
    assert rows.dtype == columns.dtype == torch.int64
    expected = [(i, j) for j, one in enumerate(queue_ids) for i, other in enumerate(ids) if one == other]
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == expected


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("storage", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("bfloat16", [False, True])
def test_accelerator_gives_the_same(storage: str, bfloat16: bool) -> None:
    queries, keys, rows = (unit_rows(count, 64, seed, torch.float32) for count, seed in ((16, 0), (16, 1), (500, 2)))
    masked = matching_pairs(torch.arange(16), torch.arange(500) // 3)
    expected = value_and_gradients(queue_info_nce, [queries, keys], rows, masked=masked)
    there = rows.cuda()
    queue = quantize_rows(there) if storage == "int8" else there.to(getattr(torch, storage))
    on_device = masked[0].cuda(), masked[1].cuda()
    with torch.autocast("cuda", torch.bfloat16, enabled=bfloat16):
        found = value_and_gradients(
            queue_info_nce, [queries.cuda(), keys.cuda()], queue, masked=on_device, chunk_size=77
        )
    tolerance = 1e-4 if storage == "float32" and not bfloat16 else 0.02
    for one, twin in zip(found, expected, strict=True):
        assert (one.cpu() - twin).norm() <= tolerance * twin.norm()


# Rows in int8


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(0, 8), width=st.integers(1, 40), exponent=st.integers(-30, 30))
def test_no_entry_moves_by_more_than_half_a_step(seed: int, rows: int, width: int, exponent: int) -> None:
    original = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent
    quantized = quantize_rows(original)
    moved = (quantized.dequantize().double() - original.double()).abs()
    assert (moved <= quantized.scales.double().unsqueeze(1) * (0.5 + 1e-4)).all()
    assert (quantized.values.abs().amax(1) == 127).all()  # the whole range is used
    assert torch.equal(quantize_rows(quantized.dequantize()).values, quantized.values)
