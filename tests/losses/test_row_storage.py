from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.losses import QuantizedRows, quantize_rows, truncate_rows


def test_hand_worked() -> None:
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


def test_slices_share_memory() -> None:
    quantized = quantize_rows(torch.randn(5, 3))
    part = quantized[1:4]
    assert isinstance(part, QuantizedRows)
    assert (len(quantized), len(part), len(quantized[4:9]), len(quantized[5:])) == (5, 3, 1, 0)
    assert part.values.data_ptr() == quantized.values[1].data_ptr()
    assert torch.equal(part.dequantize(), quantized.dequantize()[1:4])


def test_dequantized_into_a_given_tensor() -> None:
    quantized = quantize_rows(torch.randn(4, 3))
    out = torch.full((4, 3), 7.0, dtype=torch.float64)
    assert quantized.dequantize(out) is out
    assert torch.equal(out, quantized.values.double() * quantized.scales.double().unsqueeze(1))


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
