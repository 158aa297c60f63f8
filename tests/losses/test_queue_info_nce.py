from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import Pairs, naive_info_nce, unit_rows, value_and_gradients, watched
from torch.utils._python_dispatch import TorchDispatchMode

from hf_xlsr.losses import QuantizedRows, matching_pairs, quantize_rows, queue_info_nce, truncate_rows

NO_PAIRS = (torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
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
    inputs = [unit_rows(batch_size, width, seed), unit_rows(batch_size, width, seed + 1)]
    queue = unit_rows(queue_rows, width, seed + 2)
    options: dict[str, Any] = {"temperature": temperature}
    if others is not None:
        options["other_keys"] = unit_rows(others, width, seed + 3)
    if masked_share is not None:
        columns = queue_rows + (others or 0)
        options["masked"] = random_pairs(batch_size, columns, masked_share, seed)

    results = value_and_gradients(queue_info_nce, inputs, queue, chunk_size=chunk_size, **options)
    expected = value_and_gradients(naive_info_nce, inputs, queue, **options)
    torch.testing.assert_close(results, expected, **CLOSE)


def test_hand_worked() -> None:
    queries = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    keys = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    queue = torch.tensor([[0.0, 1.0]])
    # Temperature 2: logits 0.5 against 0, and 0 against 1; losses log(1 + e^-0.5) and log(1 + e).
    value, slope, key_slope = value_and_gradients(queue_info_nce, [queries, keys], queue, temperature=2.0)
    assert float(value) == pytest.approx((0.4740770 + 1.3132617) / 2)
    # The negative's probabilities are 0.3775407 and 0.7310586; each slope is that, times (negative - key) / 2, halved.
    torch.testing.assert_close(slope, torch.tensor([[-0.0943852, 0.0943852], [-0.1827646, 0.1827646]]))
    torch.testing.assert_close(key_slope, torch.tensor([[-0.0943852, 0.0], [0.0, -0.3655293]]))


@pytest.mark.parametrize("storage", ["float32", "float64", "bfloat16", "float16", "int8"])
def test_storages_equal_the_naive_loss(storage: str) -> None:
    queries = unit_rows(5, 8, 0)
    keys = unit_rows(5, 8, 1)
    rows = unit_rows(23, 8, 2)
    queue: torch.Tensor | QuantizedRows
    if storage == "int8":
        queue = quantize_rows(rows)
        stored_values = queue.dequantize(torch.empty_like(rows))
    else:
        queue = rows.to(getattr(torch, storage))
        stored_values = queue.double()
    other_keys = unit_rows(9, 8, 3, torch.float32)

    results = value_and_gradients(queue_info_nce, [queries, keys], queue, chunk_size=7, other_keys=other_keys)
    expected = value_and_gradients(naive_info_nce, [queries, keys], stored_values, other_keys=other_keys)
    torch.testing.assert_close(results, expected, **CLOSE)

    in_float32 = [queries.float(), keys.float()]
    single = value_and_gradients(queue_info_nce, in_float32, queue, chunk_size=7, other_keys=other_keys)
    twins = [tensor.float() for tensor in results]
    torch.testing.assert_close(single, twins, rtol=1e-4, atol=1e-5)


def test_far_negatives_are_as_fast_as_near_ones() -> None:
    """Subnormal weights would take a processor a hundred times as long."""
    queries = torch.zeros(64, 128)
    queries[:, 0] = 1
    seconds = []
    for similarity in (0.5, -0.42):  # weights of e^0 and e^-92
        queue = torch.full((4096, 128), 0.01)
        queue[:, 0] = similarity
        leaf = queries.clone().requires_grad_()

        times = []
        for _ in range(5):
            started = time.process_time()
            queue_info_nce(leaf, queries / 2, queue, temperature=0.01)
            times.append(time.process_time() - started)
        seconds.append(min(times))

    near, far = seconds
    assert far < 5 * near


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_negatives_give_zero(dtype: torch.dtype) -> None:
    inputs = [unit_rows(4, 3, 0, dtype), unit_rows(4, 3, 1, dtype)]
    no_rows = unit_rows(0, 3, 2, dtype)
    everything = (torch.arange(4).repeat_interleave(9), torch.arange(9).repeat(4))
    cases: list[dict[str, Any]] = [
        {"queue": no_rows},
        {"queue": no_rows, "other_keys": no_rows, "masked": NO_PAIRS},
        {
            "queue": unit_rows(6, 3, 2, dtype),
            "other_keys": unit_rows(3, 3, 2, dtype),
            "masked": everything,
            "chunk_size": 4,
        },
    ]
    for options in cases:
        for tensor in value_and_gradients(queue_info_nce, inputs, **options):
            assert tensor.eq(0).all()


def test_queue_may_change_before_backward() -> None:
    leaves = [unit_rows(4, 5, seed).requires_grad_() for seed in (0, 1)]
    source, target = leaves
    source_queue = unit_rows(6, 5, 3)
    target_queue = unit_rows(9, 5, 2)
    onward = queue_info_nce(source, target, target_queue, chunk_size=4)
    back = queue_info_nce(target, source, source_queue)
    naive_loss = naive_info_nce(source, target, target_queue.clone()) + naive_info_nce(target, source, source_queue)
    expected = torch.autograd.grad(3 * naive_loss, leaves)

    target_queue.fill_(math.nan)
    torch.testing.assert_close(torch.autograd.grad(3 * (onward + back), leaves), expected, **CLOSE)


def count_products(operations: list[tuple[str, int, str]]) -> int:
    """Number of matrix products."""
    return sum(name == "aten.mm.out" for name, _, _ in operations)


def test_batch_times_queue_is_never_held() -> None:
    batch_size = 32
    queue_size = 3000
    chunk_size = 100
    queries, keys, rows = float32_rows(batch_size, batch_size, queue_size, width=8)
    queries.requires_grad_()
    masked = matching_pairs(torch.arange(batch_size), torch.arange(queue_size) // 2)
    for queue in (rows, rows.bfloat16(), quantize_rows(rows)):
        for bfloat16 in (False, True):
            with watched() as operations, torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                queue_info_nce(queries, keys, queue, masked=masked, chunk_size=chunk_size).backward()
            assert max(size for _, size, _ in operations) == batch_size * chunk_size
            assert count_products(operations) == 2 * queue_size / chunk_size

    with watched() as operations, torch.no_grad():
        queue_info_nce(queries, keys, rows, chunk_size=chunk_size)
    assert count_products(operations) == queue_size / chunk_size


@settings(max_examples=100, deadline=None)
@given(
    ids=st.lists(st.sampled_from([-(2**63), -5, 0, 1, 2, 65536, 65537, 2**40, 2**63 - 1]), max_size=8),
    queue_ids=st.lists(st.sampled_from([-(2**63), -5, 0, 1, 2, 3, 65536, 2**40, 2**63 - 1]), max_size=20),
)
def test_matching_pairs(ids: list[int], queue_ids: list[int]) -> None:
    expected = []
    for column, queue_id in enumerate(queue_ids):
        for row, query_id in enumerate(ids):
            if queue_id == query_id:
                expected.append((row, column))

    rows, columns = matching_pairs(torch.tensor(ids, dtype=torch.int64), torch.tensor(queue_ids, dtype=torch.int64))
    assert rows.dtype == columns.dtype == torch.int64
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == expected


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
    torch.testing.assert_close([tensor.double() for tensor in results], expected, rtol=1e-5, atol=0)


def test_gradients_keep_their_type() -> None:
    queries = unit_rows(3, 4, 0, torch.bfloat16)
    keys = unit_rows(3, 4, 1, torch.float16)
    queue = unit_rows(8, 4, 2, torch.float32)
    value, slope, key_slope = value_and_gradients(queue_info_nce, [queries, keys], queue)
    assert value.dtype == torch.float32
    assert slope.dtype == torch.bfloat16
    assert key_slope.dtype == torch.float16

    expected, twin, _ = value_and_gradients(naive_info_nce, [queries.double(), keys.double()], queue)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(slope.double(), twin, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("position", range(4), ids=["queries", "keys", "queue", "other_keys"])
def test_nan_reaches_loss_and_gradient(position: int) -> None:
    tensors = float32_rows(3, 3, 7, 3, width=4)
    tensors[position][1, 2] = math.nan
    queries, keys, queue, other_keys = tensors
    results = value_and_gradients(queue_info_nce, [queries, keys], queue, other_keys=other_keys)
    assert all(tensor.isnan().any() for tensor in results)


def test_autocast_multiplies_in_bfloat16(own_precision: str) -> None:
    queries, keys, queue = float32_rows(16, 16, 500)

    def run(dtype: torch.dtype, autocast: bool) -> tuple[list[Any], set[str]]:
        """Value and gradients, and the precisions of the matrix products."""
        with watched() as operations, torch.autocast("cpu", dtype, enabled=autocast):
            results = value_and_gradients(queue_info_nce, [queries, keys], queue)
        assert own_precision == MATMUL.fp32_precision
        return results, {precision for name, _, precision in operations if name == "aten.mm.out"}

    exact, precisions = run(torch.bfloat16, autocast=False)
    assert precisions == {own_precision}
    for dtype in (torch.bfloat16, torch.float16):
        results, precisions = run(dtype, autocast=True)
        assert precisions == {"bf16"}
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


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(0, 8), width=st.integers(1, 40), exponent=st.integers(-30, 30))
def test_no_entry_moves_by_more_than_half_a_step(seed: int, rows: int, width: int, exponent: int) -> None:
    original = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent
    quantized = quantize_rows(original)
    moved = (quantized.dequantize().double() - original.double()).abs()
    assert (moved <= quantized.scales.double().unsqueeze(1) * (0.5 + 1e-4)).all()
    assert (quantized.values.abs().amax(1) == 127).all()  # the whole range is used
    assert torch.equal(quantize_rows(quantized.dequantize()).values, quantized.values)


def test_zero_and_tiny_rows() -> None:
    rows = torch.tensor([[0.0, 0.0], [1e-40, -1e-40], [1e-45, 0.0]])
    values = quantize_rows(rows).dequantize()
    assert values[0].tolist() == [0, 0]
    assert values[1, 0] > 0 > values[1, 1]
    assert (values - rows).abs().max() < 1e-42


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_stays_in_its_row(bad: float) -> None:
    values = quantize_rows(torch.tensor([[1.0, bad], [1.0, 1.0]])).dequantize()
    assert values[0].isnan().all()
    assert values[1].tolist() == [1, 1]


@pytest.mark.parametrize("count", [0, 5, 9000])
def test_truncated_rows_have_length_one(count: int) -> None:
    rows = torch.randn(count, 6, generator=torch.Generator().manual_seed(0))
    quantized = quantize_rows(rows)
    half = rows.bfloat16()
    cases = [(rows, rows, rows), (half, half, half.float()), (quantized, quantized.values, quantized.dequantize())]
    for queue, memory, plain in cases:
        truncated = truncate_rows(queue, 4)
        assert truncated.values.data_ptr() == memory.data_ptr()
        torch.testing.assert_close(truncated.dequantize(), torch.nn.functional.normalize(plain[:, :4], dim=1))
