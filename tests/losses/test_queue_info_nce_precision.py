from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from queue_info_nce_helpers import naive, unit_rows, value_and_gradients, watched
from torch.utils._python_dispatch import TorchDispatchMode

from hf_xlsr.losses import queue_info_nce


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
    found = value_and_gradients(queue_info_nce, queries, queries, queue, temperature=0.0625)
    expected = value_and_gradients(naive, queries.double(), queries.double(), queue.double(), temperature=0.0625)
    assert float(expected[0]) == pytest.approx(2.0991e-9, rel=1e-4)
    for one, twin in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), twin, rtol=1e-5, atol=0)


def test_far_negatives_weigh_nothing() -> None:
    queries = torch.tensor([[1.0, 0.0]])
    keys, queue = torch.tensor([[0.5, 0.0]]), torch.tensor([[0.5, 0.0], [-9.0, 0.0], [-1000.0, 0.0]])
    value, slope, _ = value_and_gradients(queue_info_nce, queries, keys, queue, temperature=0.01, chunk_size=1)
    assert float(value) == pytest.approx(math.log(2))
    assert slope.abs().max() < 1e-20


def test_gradients_keep_their_type() -> None:
    queries, keys = unit_rows(3, 4, 0, torch.bfloat16), unit_rows(3, 4, 1, torch.float16)
    queue = unit_rows(8, 4, 2, torch.float32)
    value, slope, key_slope = value_and_gradients(queue_info_nce, queries, keys, queue)
    assert (value.dtype, slope.dtype, key_slope.dtype) == (torch.float32, torch.bfloat16, torch.float16)
    expected = value_and_gradients(naive, queries.double(), keys.double(), queue)
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
        queue_info_nce, tensors["queries"], tensors["keys"], tensors["queue"], other_keys=tensors["other_keys"]
    )
    assert value.isnan() and slope.isnan().any() and key_slope.isnan().any()


def test_bfloat16_products(own_precision: str) -> None:
    queries, keys, queue = (unit_rows(count, 64, seed, torch.float32) for count, seed in ((16, 0), (16, 1), (500, 2)))

    def run(precision: str, dtype: torch.dtype | None = None, **change: Any) -> tuple[Any, set[str]]:
        with watched() as seen, torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            found = value_and_gradients(queue_info_nce, queries, keys, queue, precision=precision, **change)
        assert torch.backends.mkldnn.matmul.fp32_precision == own_precision  # type: ignore[attr-defined]
        return found, {products for name, _, products in seen if name == "aten.mm.out"}

    exact, products = run("auto")
    assert products == {own_precision}
    near, products = run("bfloat16")
    assert products == {"bf16"}
    for one, twin in zip(near, exact, strict=True):
        # bfloat16 keeps 8 bits: one part in 256 of each operand.
        assert (one - twin).norm() <= 0.01 * twin.norm()
        assert one.dtype == torch.float32
    for dtype in (torch.bfloat16, torch.float16):
        cast, products = run("auto", dtype)
        assert products == {"bf16"}
        assert all(torch.equal(one, twin) for one, twin in zip(cast, near, strict=True))
    forced, products = run("float32", torch.bfloat16)
    assert products == {own_precision}
    assert all(torch.equal(one, twin) for one, twin in zip(forced, exact, strict=True))


def test_precision_setting_is_restored_after_an_error(own_precision: str) -> None:
    class Failing(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if str(function) == "aten.mm.out":
                raise MemoryError
            return function(*args, **(kwargs or {}))

    with pytest.raises(MemoryError), Failing():
        queue_info_nce(torch.ones(2, 3), torch.ones(2, 3), torch.ones(5, 3), precision="bfloat16")
    assert torch.backends.mkldnn.matmul.fp32_precision == own_precision  # type: ignore[attr-defined]
