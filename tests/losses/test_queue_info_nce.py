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

NO_PAIRS = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)


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


def test_far_negatives_are_as_fast_as_near_ones() -> None:
    """Subnormal weights would take a processor a hundred times as long."""
    queries = torch.zeros(64, 128)
    queries[:, 0] = 1
    seconds = []
    for similarity in (0.5, -0.42):  # weights of e^0 and e^-92
        queue = torch.zeros(4096, 128)
        queue[:, 0] = similarity
        queue[:, 1:] = 0.01
        leaf = queries.clone().requires_grad_()
        times = []
        for _ in range(5):
            started = time.process_time()
            queue_info_nce(leaf, queries / 2, queue, temperature=0.01)
            times.append(time.process_time() - started)
        seconds.append(min(times))
    assert seconds[1] < 5 * seconds[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_negatives_give_zero(dtype: torch.dtype) -> None:
    queries, keys = unit_rows(4, 3, 0, dtype), unit_rows(4, 3, 1, dtype)
    everything = torch.arange(4).repeat_interleave(9), torch.arange(9).repeat(4)
    cases: list[tuple[torch.Tensor, dict[str, Any]]] = [
        (unit_rows(0, 3, 2, dtype), {}),
        (unit_rows(0, 3, 2, dtype), {"other_keys": unit_rows(0, 3, 2, dtype), "masked": NO_PAIRS}),
        (unit_rows(6, 3, 2, dtype), {"other_keys": unit_rows(3, 3, 2, dtype), "masked": everything, "chunk_size": 4}),
    ]
    for queue, options in cases:
        found = value_and_gradients(queue_info_nce, [queries, keys], queue, **options)
        assert all(tensor.eq(0).all() for tensor in found)


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
            assert max(size for _, size, _ in seen) == batch_size * chunk_size
            assert sum(name == "aten.mm.out" for name, _, _ in seen) == 2 * queue_rows / chunk_size
    with watched() as seen, torch.no_grad():
        queue_info_nce(queries, keys, rows, chunk_size=chunk_size)
    assert sum(name == "aten.mm.out" for name, _, _ in seen) == queue_rows / chunk_size


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


# Precision


@pytest.fixture
def own_precision() -> Iterator[str]:
    """The user's own setting of the processor's products, which the loss has to give back."""
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "ieee"
    yield "ieee"
    matmul.fp32_precision = before


def test_sure_positive_keeps_its_digits() -> None:
    """Probabilities near 1 leave float32 no digits; the loss and its gradient still have theirs."""
    queries, queue = torch.tensor([[1.0, 0.0]]), torch.tensor([[-0.25, 1.0], [-0.5, 0.0]])
    found = value_and_gradients(queue_info_nce, [queries, queries], queue, temperature=0.0625)
    expected = value_and_gradients(
        naive_info_nce, [queries.double(), queries.double()], queue.double(), temperature=0.0625
    )
    assert float(expected[0]) == pytest.approx(2.0991e-9, rel=1e-4)
    for one, twin in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), twin, rtol=1e-5, atol=0)


def test_gradients_keep_their_type() -> None:
    queries, keys = unit_rows(3, 4, 0, torch.bfloat16), unit_rows(3, 4, 1, torch.float16)
    queue = unit_rows(8, 4, 2, torch.float32)
    value, slope, key_slope = value_and_gradients(queue_info_nce, [queries, keys], queue)
    assert (value.dtype, slope.dtype, key_slope.dtype) == (torch.float32, torch.bfloat16, torch.float16)
    expected = value_and_gradients(naive_info_nce, [queries.double(), keys.double()], queue)
    torch.testing.assert_close(value.double(), expected[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(slope.double(), expected[1], rtol=0.01, atol=0.01)


@pytest.mark.parametrize("place", ["queries", "keys", "queue", "other_keys"])
def test_nan_reaches_loss_and_gradient(place: str) -> None:
    tensors = {
        name: unit_rows(3, 4, seed, torch.float32) for seed, name in enumerate(("queries", "keys", "other_keys"))
    }
    tensors["queue"] = unit_rows(7, 4, 5, torch.float32)
    tensors[place][1, 2] = math.nan
    value, slope, key_slope = value_and_gradients(
        queue_info_nce, [tensors["queries"], tensors["keys"]], tensors["queue"], other_keys=tensors["other_keys"]
    )
    assert value.isnan() and slope.isnan().any() and key_slope.isnan().any()


def test_autocast_multiplies_in_bfloat16(own_precision: str) -> None:
    queries, keys, queue = (unit_rows(count, 64, seed, torch.float32) for count, seed in ((16, 0), (16, 1), (500, 2)))

    def run(dtype: torch.dtype | None) -> tuple[Any, set[str]]:
        with watched() as seen, torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            found = value_and_gradients(queue_info_nce, [queries, keys], queue)
        assert torch.backends.mkldnn.matmul.fp32_precision == own_precision  # type: ignore[attr-defined]
        return found, {products for name, _, products in seen if name == "aten.mm.out"}

    exact, products = run(None)
    assert products == {own_precision}
    for dtype in (torch.bfloat16, torch.float16):
        near, products = run(dtype)
        assert products == {"bf16"}
        for one, twin in zip(near, exact, strict=True):
            # bfloat16 keeps 8 bits: one part in 256 of each operand.
            assert (one - twin).norm() <= 0.01 * twin.norm()
            assert one.dtype == torch.float32


def test_precision_setting_is_restored_after_an_error(own_precision: str) -> None:
    class Failing(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if str(function) == "aten.mm.out":
                raise MemoryError
            return function(*args, **(kwargs or {}))

    with pytest.raises(MemoryError), Failing(), torch.autocast("cpu", torch.bfloat16):
        queue_info_nce(torch.ones(2, 3), torch.ones(2, 3), torch.ones(5, 3))
    assert torch.backends.mkldnn.matmul.fp32_precision == own_precision  # type: ignore[attr-defined]


def test_hand_worked_quantization() -> None:
    quantized = quantize_rows(torch.tensor([[2.54, -1.27, 0.011, 0.0], [-0.127, 0.0494, 0.0496, 0.127]]))
    assert quantized.values.dtype == torch.int8 and quantized.scales.dtype == torch.float32
    torch.testing.assert_close(quantized.scales, torch.tensor([0.02, 0.001]))
    assert quantized.values.tolist() in (
        [[127, -64, 1, 0], [-127, 49, 50, 127]],
        [[127, -63, 1, 0], [-127, 49, 50, 127]],
    )
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
    for stored, plain in (
        (rows, rows),
        (rows.bfloat16(), rows.bfloat16().float()),
        (quantized, quantized.dequantize()),
    ):
        truncated = truncate_rows(stored, 4)
        assert truncated.values.data_ptr() == (stored.values if stored is quantized else stored).data_ptr()
        torch.testing.assert_close(truncated.dequantize(), torch.nn.functional.normalize(plain[:, :4], dim=1))
