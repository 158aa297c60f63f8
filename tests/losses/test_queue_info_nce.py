from __future__ import annotations

import math
import time
import timeit
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import (
    Pairs,
    assert_same_loss,
    naive_info_nce,
    random_tensors,
    unit_rows,
    value_and_gradients,
    watched,
)
from torch.utils._python_dispatch import TorchDispatchMode

from hf_xlsr.losses import QuantizedRows, matching_pairs, quantize_rows, queue_info_nce, truncate_rows

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def random_pairs(batch_size: int, columns: int, share: float, seed: int) -> Pairs:
    """Some pairs in no order, one of them twice."""
    generator = torch.Generator().manual_seed(seed)
    pairs = (torch.rand(batch_size, columns, generator=generator) < share).nonzero()
    pairs = torch.cat([pairs, pairs[:1]])
    pairs = pairs[torch.randperm(len(pairs), generator=generator)]
    return pairs[:, 0], pairs[:, 1]


def float32_rows(*sizes: int, width: int = 64) -> list[torch.Tensor]:
    """Unit rows of several matrices, each with a seed of its own."""
    return [unit_rows(size, width, seed, torch.float32) for seed, size in enumerate(sizes)]


@settings(max_examples=150)
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
    inputs = [unit_rows(batch_size, width, seed), unit_rows(batch_size, width, seed + 1)]
    queue = unit_rows(queue_rows, width, seed + 2)
    options: dict[str, Any] = {"temperature": temperature}
    if others is not None:
        options["other_keys"] = unit_rows(others, width, seed + 3)
    if masked_share is not None:
        columns = queue_rows + (others or 0)
        options["masked"] = random_pairs(batch_size, columns, masked_share, seed)

    loss = partial(queue_info_nce, queue=queue, chunk_size=chunk_size, **options)
    twin = partial(naive_info_nce, queue=queue, **options)
    assert_same_loss(loss, twin, inputs, **CLOSE)


def test_hand_worked() -> None:
    queries = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    keys = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    queue = torch.tensor([[0.0, 1.0]])

    value, slope, key_slope = value_and_gradients(queue_info_nce, [queries, keys], queue, temperature=2.0)

    # Logits 0.5 against 0, and 0 against 1; losses log(1 + e^-0.5) and log(1 + e).
    assert float(value) == pytest.approx((0.4740770 + 1.3132617) / 2)
    # The negative's probabilities are 0.3775407 and 0.7310586; each slope is that, times (negative - key) / 2, halved.
    torch.testing.assert_close(slope, torch.tensor([[-0.0943852, 0.0943852], [-0.1827646, 0.1827646]]))
    torch.testing.assert_close(key_slope, torch.tensor([[-0.0943852, 0.0], [0.0, -0.3655293]]))


@pytest.mark.parametrize("storage", ["float32", "float64", "bfloat16", "float16", "int8"])
def test_storages_equal_the_naive_loss(storage: str) -> None:
    inputs = [unit_rows(5, 8, 0), unit_rows(5, 8, 1)]
    rows = unit_rows(23, 8, 2)
    queue: torch.Tensor | QuantizedRows
    if storage == "int8":
        queue = quantize_rows(rows)
        stored_values = queue.dequantize(torch.empty_like(rows))
    else:
        queue = rows.to(getattr(torch, storage))
        stored_values = queue.double()
    other_keys = unit_rows(9, 8, 3, torch.float32)

    loss = partial(queue_info_nce, queue=queue, chunk_size=7, other_keys=other_keys)
    twin = partial(naive_info_nce, queue=stored_values, other_keys=other_keys)
    assert_same_loss(loss, twin, inputs, **CLOSE)

    in_float32 = [tensor.float() for tensor in inputs]
    assert_same_loss(loss, twin, in_float32, rtol=1e-4, atol=1e-5)


def test_far_negatives_are_as_fast_as_near_ones() -> None:
    """Subnormal weights would take a processor a hundred times as long."""
    queries = torch.zeros(64, 128)
    queries[:, 0] = 1
    keys = queries / 2
    queries.requires_grad_()

    def seconds(similarity: float) -> float:
        """The time of a loss whose negatives have this similarity."""
        queue = torch.full((4096, 128), 0.01)
        queue[:, 0] = similarity
        loss = partial(queue_info_nce, queries, keys, queue, temperature=0.01)
        return min(timeit.repeat(loss, timer=time.process_time, number=1))

    weights_of_one = seconds(0.5)
    subnormal_weights = seconds(-0.42)  # e^-92
    assert subnormal_weights < 5 * weights_of_one


NO_ROWS = torch.zeros(0, 3)
NO_PAIRS = (torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
ALL_PAIRS = tuple(torch.ones(4, 9).nonzero().T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options",
    [
        {"queue": NO_ROWS},
        {"queue": NO_ROWS, "other_keys": NO_ROWS, "masked": NO_PAIRS},
        {"queue": unit_rows(6, 3, 2), "other_keys": unit_rows(3, 3, 2), "masked": ALL_PAIRS, "chunk_size": 4},
    ],
    ids=["empty queue", "no other keys", "all masked"],
)
def test_no_negatives_give_zero(options: dict[str, Any], dtype: torch.dtype) -> None:
    inputs = [unit_rows(4, 3, 0, dtype), unit_rows(4, 3, 1, dtype)]
    for tensor in value_and_gradients(queue_info_nce, inputs, **options):
        assert (tensor == 0).all()


def test_queue_may_change_before_backward() -> None:
    leaves = [unit_rows(4, 5, seed).requires_grad_() for seed in (0, 1)]
    source, target = leaves
    source_queue = unit_rows(6, 5, 3)
    target_queue = unit_rows(9, 5, 2)
    loss = queue_info_nce(source, target, target_queue, chunk_size=4)
    loss = loss + queue_info_nce(target, source, source_queue)
    twin = naive_info_nce(source, target, target_queue.clone())
    twin = twin + naive_info_nce(target, source, source_queue)
    expected = torch.autograd.grad(3 * twin, leaves)

    target_queue.fill_(math.nan)
    gradients = torch.autograd.grad(3 * loss, leaves)
    torch.testing.assert_close(gradients, expected, **CLOSE)


def product_precisions(operations: list[tuple[str, int, str]]) -> list[str]:
    """The precision of each matrix product."""
    return [precision for name, _, precision in operations if name == "aten.mm.out"]


def test_batch_times_queue_is_never_held() -> None:
    batch_size = 32
    queue_size = 3000
    chunk_size = 100
    queries, keys, rows = float32_rows(batch_size, batch_size, queue_size, width=8)
    queries.requires_grad_()
    masked = matching_pairs(torch.arange(batch_size), torch.arange(queue_size) // 2)

    for queue, autocast in product((rows, rows.bfloat16(), quantize_rows(rows)), (False, True)):
        with watched() as operations, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            queue_info_nce(queries, keys, queue, masked=masked, chunk_size=chunk_size).backward()
        largest = max(size for _, size, _ in operations)
        assert largest == batch_size * chunk_size
        assert len(product_precisions(operations)) == 2 * queue_size / chunk_size

    with watched() as operations, torch.no_grad():
        queue_info_nce(queries, keys, rows, chunk_size=chunk_size)
    assert len(product_precisions(operations)) == queue_size / chunk_size


@settings(max_examples=100)
@given(
    ids=st.lists(st.sampled_from([-(2**63), -5, 0, 1, 2, 65536, 65537, 2**40, 2**63 - 1]), max_size=8),
    queue_ids=st.lists(st.sampled_from([-(2**63), -5, 0, 1, 2, 3, 65536, 2**40, 2**63 - 1]), max_size=20),
)
def test_matching_pairs(ids: list[int], queue_ids: list[int]) -> None:
    expected = []
    for column, queue_id in enumerate(queue_ids):
        for row, query_id in enumerate(ids):
            if queue_id == query_id:
                expected.append([row, column])

    pairs = matching_pairs(torch.tensor(ids, dtype=torch.int64), torch.tensor(queue_ids, dtype=torch.int64))
    rows, columns = pairs
    assert rows.dtype == torch.int64
    assert columns.dtype == torch.int64
    assert torch.stack(pairs, 1).tolist() == expected


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("storage", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("bfloat16", [False, True])
def test_accelerator_gives_the_same(storage: str, bfloat16: bool) -> None:
    queries, keys, rows = float32_rows(16, 16, 500)
    row_ids, column_ids = matching_pairs(torch.arange(16), torch.arange(500) // 3)
    expected = value_and_gradients(queue_info_nce, [queries, keys], rows, masked=(row_ids, column_ids))

    queue: Any = rows.cuda()
    queue = quantize_rows(queue) if storage == "int8" else queue.to(getattr(torch, storage))
    options: dict[str, Any] = {"masked": (row_ids.cuda(), column_ids.cuda()), "chunk_size": 77}
    with torch.autocast("cuda", torch.bfloat16, enabled=bfloat16):
        results = value_and_gradients(queue_info_nce, [queries.cuda(), keys.cuda()], queue, **options)

    tolerance = 1e-4 if storage == "float32" and not bfloat16 else 0.02
    for tensor, twin in zip(results, expected, strict=True):
        assert (tensor.cpu() - twin).norm() <= tolerance * twin.norm()


# Precision


@pytest.fixture
def own_precision() -> Iterator[str]:
    """The user's own setting of the processor's products, which the loss has to give back."""
    before = MATMUL.fp32_precision
    MATMUL.fp32_precision = "ieee"
    yield "ieee"
    MATMUL.fp32_precision = before


def test_sure_positive_keeps_its_digits() -> None:
    """Probabilities near 1 leave float32 no digits; the loss and its gradient still have theirs."""
    queries = torch.tensor([[1.0, 0.0]])
    queue = torch.tensor([[-0.25, 1.0], [-0.5, 0.0]])
    results = value_and_gradients(queue_info_nce, [queries, queries], queue, temperature=0.0625)

    exact = queries.double()
    expected = value_and_gradients(naive_info_nce, [exact, exact], queue.double(), temperature=0.0625)
    assert float(expected[0]) == pytest.approx(2.0991e-9, rel=1e-4)
    torch.testing.assert_close(results, expected, rtol=1e-5, atol=0, check_dtype=False)


def test_gradients_keep_their_type() -> None:
    queries = unit_rows(3, 4, 0, torch.bfloat16)
    keys = unit_rows(3, 4, 1, torch.float16)
    queue = unit_rows(8, 4, 2, torch.float32)
    value, slope, key_slope = value_and_gradients(queue_info_nce, [queries, keys], queue)
    assert value.dtype == torch.float32
    assert slope.dtype == torch.bfloat16
    assert key_slope.dtype == torch.float16

    expected, twin, _ = value_and_gradients(naive_info_nce, [queries.double(), keys.double()], queue)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=0, check_dtype=False)
    torch.testing.assert_close(slope, twin, rtol=0.01, atol=0.01, check_dtype=False)


@pytest.mark.parametrize("position", range(4), ids=["queries", "keys", "queue", "other_keys"])
def test_nan_reaches_loss_and_gradient(position: int) -> None:
    tensors = float32_rows(3, 3, 7, 3, width=4)
    tensors[position][1, 2] = math.nan
    queries, keys, queue, other_keys = tensors
    for result in value_and_gradients(queue_info_nce, [queries, keys], queue, other_keys=other_keys):
        assert result.isnan().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_multiplies_in_bfloat16(dtype: torch.dtype, own_precision: str) -> None:
    queries, keys, queue = float32_rows(16, 16, 500)
    with watched() as operations:
        exact = value_and_gradients(queue_info_nce, [queries, keys], queue)
    assert set(product_precisions(operations)) == {own_precision}

    with watched() as operations, torch.autocast("cpu", dtype):
        results = value_and_gradients(queue_info_nce, [queries, keys], queue)
    assert set(product_precisions(operations)) == {"bf16"}
    assert own_precision == MATMUL.fp32_precision

    for tensor, twin in zip(results, exact, strict=True):
        # bfloat16 keeps 8 bits: one part in 256 of each operand.
        assert (tensor - twin).norm() <= 0.01 * twin.norm()
        assert tensor.dtype == torch.float32


def test_precision_setting_is_restored_after_an_error(own_precision: str) -> None:
    class Failing(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if str(function) == "aten.mm.out":
                raise MemoryError
            return function(*args, **(kwargs or {}))

    with pytest.raises(MemoryError), Failing(), torch.autocast("cpu", torch.bfloat16):
        queue_info_nce(torch.ones(2, 3), torch.ones(2, 3), torch.ones(5, 3))
    assert own_precision == MATMUL.fp32_precision


def test_hand_worked_quantization() -> None:
    quantized = quantize_rows(torch.tensor([[2.54, -1.27, 0.011, 0.0], [-0.127, 0.0494, 0.0496, 0.127]]))

    assert quantized.values.dtype == torch.int8
    torch.testing.assert_close(quantized.scales, torch.tensor([0.02, 0.001]))
    first, second = quantized.values.tolist()
    assert first in ([127, -64, 1, 0], [127, -63, 1, 0])  # 63.5, or a little less
    assert second == [-127, 49, 50, 127]
    torch.testing.assert_close(quantized.dequantize()[1], torch.tensor([-0.127, 0.049, 0.05, 0.127]))


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6), rows=st.integers(0, 8), width=st.integers(1, 40), exponent=st.integers(-30, 30))
def test_no_entry_moves_by_more_than_half_a_step(seed: int, rows: int, width: int, exponent: int) -> None:
    (original,) = random_tensors((rows, width), seed=seed, dtype=torch.float32)
    original *= 10.0**exponent
    quantized = quantize_rows(original)
    restored = quantized.dequantize()

    moved = (restored.double() - original).abs()
    half_a_step = quantized.scales.double().unsqueeze(1) / 2
    assert (moved <= 1.0002 * half_a_step).all()
    assert (quantized.values.abs().amax(1) == 127).all()  # the whole range is used
    assert torch.equal(quantize_rows(restored).values, quantized.values)


def test_zero_and_tiny_rows() -> None:
    rows = torch.tensor([[0.0, 0.0], [1e-40, -1e-40], [1e-45, 0.0]])
    values = quantize_rows(rows).dequantize()
    torch.testing.assert_close(values, rows, rtol=0, atol=1e-42)

    zero_row, tiny_row, _ = values.tolist()
    assert zero_row == [0, 0]
    assert tiny_row[0] > 0
    assert tiny_row[1] < 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_stays_in_its_row(bad: float) -> None:
    values = quantize_rows(torch.tensor([[1.0, bad], [1.0, 1.0]])).dequantize()
    assert values[0].isnan().all()
    assert values[1].tolist() == [1, 1]


@pytest.mark.parametrize("count", [0, 5, 9000])
def test_truncated_rows_have_length_one(count: int) -> None:
    (rows,) = random_tensors((count, 6), dtype=torch.float32)
    quantized = quantize_rows(rows)
    half = rows.bfloat16()
    # What is truncated, its memory, and its numbers.
    cases = [
        (rows, rows, rows),
        (half, half, half.float()),
        (quantized, quantized.values, quantized.dequantize()),
    ]
    for queue, memory, numbers in cases:
        truncated = truncate_rows(queue, 4)
        assert truncated.values.data_ptr() == memory.data_ptr()
        expected = torch.nn.functional.normalize(numbers[:, :4], dim=1)
        torch.testing.assert_close(truncated.dequantize(), expected)
