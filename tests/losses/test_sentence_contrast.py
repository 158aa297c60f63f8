from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from loss_helpers import value_and_gradients

from hf_xlsr.losses import alignment_loss, sentence_contrast_loss
from hf_xlsr.losses.sentence_contrast import unit_rows


def sides(count: int = 5, width: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, width, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2)]


def naive(source: torch.Tensor, target: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """Equations 2 to 4, sentence by sentence."""

    def similarity(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return one @ other / (one.norm() * other.norm()) / temperature

    total = source.new_zeros(())
    for own, other in ((source, target), (target, source)):
        for index, query in enumerate(own):
            positive = similarity(query, other[index]).exp()
            rest = [row for row in range(len(own)) if row != index]
            negatives = [similarity(query, side[row]).exp() for side in (other, own) for row in rest]
            assert len(negatives) == 2 * len(own) - 2
            total = total - torch.log(positive / (positive + torch.stack(negatives).sum()))
    return total / len(source)


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("temperature", [1.0, 0.3, 7.0])
def test_equals_the_naive_twin(count: int, temperature: float) -> None:
    inputs = sides(count)
    found = value_and_gradients(sentence_contrast_loss, inputs, temperature=temperature)
    expected = value_and_gradients(naive, inputs, temperature=temperature)
    assert expected[1].norm() > 1e-3
    for one, twin in zip(found, expected, strict=True):
        torch.testing.assert_close(one, twin, rtol=1e-10, atol=1e-12)
    single = value_and_gradients(sentence_contrast_loss, [side.float() for side in inputs], temperature=temperature)
    for one, twin in zip(single, expected, strict=True):
        torch.testing.assert_close(one, twin.float(), rtol=1e-4, atol=1e-6)


def test_hand_worked() -> None:
    # Directions (1, 0), (0, 1) and (1, 0), (1, 0): the second translation resembles the first pair.
    source, target = torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[5.0, 0.0], [1.0, 0.0]])
    # x1: positive 1, negatives y2 = 1 and x2 = 0: -log(e / (2e + 1)) = 0.86199
    # x2: positive 0, negatives y1 = 0 and x1 = 0: log 3 = 1.09861
    # y1: positive 1, negatives x2 = 0 and y2 = 1: 0.86199
    # y2: positive 0, negatives x1 = 1 and y1 = 1: -log(1 / (1 + 2e)) = 1.86199
    expected = (0.8619948 + 1.0986123 + 0.8619948 + 1.8619948) / 2
    assert float(sentence_contrast_loss(source, target)) == pytest.approx(expected)


def test_order_and_length_do_not_matter() -> None:
    source, target = sides()
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(
        sentence_contrast_loss(source[order], target[order]), sentence_contrast_loss(source, target)
    )
    scales = torch.arange(1, 6, dtype=torch.float64).unsqueeze(1)
    torch.testing.assert_close(
        sentence_contrast_loss(target * scales, source / scales), sentence_contrast_loss(source, target)
    )
    assert not torch.allclose(sentence_contrast_loss(source[order], target), sentence_contrast_loss(source, target))


def test_negatives_of_the_own_language() -> None:
    ends = torch.eye(2, dtype=torch.float64)
    assert float(alignment_loss(ends, ends, normalize=True)) == pytest.approx(2 * math.log(1 + math.exp(-1)))
    assert float(sentence_contrast_loss(ends, ends)) == pytest.approx(2 * math.log(1 + 2 * math.exp(-1)))


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e6, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_temperatures_stay_finite(temperature: float, dtype: torch.dtype) -> None:
    inputs = sides(dtype=dtype)
    found = value_and_gradients(sentence_contrast_loss, inputs, temperature=temperature)
    assert all(tensor.isfinite().all() for tensor in found)
    if temperature >= 1e6:
        assert float(found[0]) == pytest.approx(2 * math.log(9), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_zero_vectors_have_bounded_gradients(dtype: torch.dtype) -> None:
    source, target = sides(dtype=dtype)
    source[1] = 0
    found = value_and_gradients(sentence_contrast_loss, [source, target])
    assert all(tensor.isfinite().all() for tensor in found)
    assert 0 < found[1][1].abs().max() < 1
    everything = value_and_gradients(sentence_contrast_loss, [torch.zeros_like(source), torch.zeros_like(target)])
    assert float(everything[0]) == pytest.approx(2 * math.log(9))
    assert all(tensor.eq(0).all() for tensor in everything[1:])


def test_unit_rows_are_those_of_torch() -> None:
    (vectors, _), leaves = sides(), []
    for function in (unit_rows, F.normalize):
        leaf = vectors.clone().requires_grad_()
        (function(leaf) * vectors[0]).sum().backward()
        leaves.append(leaf.grad)
    torch.testing.assert_close(unit_rows(vectors), F.normalize(vectors))
    torch.testing.assert_close(*leaves)
    assert unit_rows(vectors.bfloat16()).dtype == torch.float32
